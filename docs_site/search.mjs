// Searches the built site with the worker of its own search box: node search.mjs SITE QUERY... prints for each query the
// addresses of the pages in the order in which the box lists them, as a line of JSON.
import fs from "node:fs"
import path from "node:path"
import vm from "node:vm"

const [site, ...queries] = process.argv.slice(2)
const scripts = path.join(site, "assets", "javascripts", "workers")
const worker = fs.readdirSync(scripts).find((name) => /^search\.\w+\.min\.js$/.test(name))
const listeners = []
const answers = []
let wake = () => {}
const scope = {
  console,
  setTimeout,
  location: { href: "http://localhost/" },
  addEventListener: (type, listener) => type === "message" && listeners.push(listener),
  postMessage: (message) => {
    answers.push(message)
    wake()
  },
}
scope.self = scope.globalThis = scope
vm.runInNewContext(fs.readFileSync(path.join(scripts, worker), "utf8"), scope)

async function ask(type, data, expected) {
  for (const listener of listeners) listener({ data: { type, data } })
  for (;;) {
    const answer = answers.shift()
    if (answer === undefined) await new Promise((resolve) => (wake = resolve))
    else if (answer.type === expected) return answer.data
  }
}

const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3]
const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"))
await ask(SETUP, { ...index, options: { suggest: true } }, READY)
for (const query of queries) {
  const { items } = await ask(QUERY, query, RESULT)
  console.log(JSON.stringify([query, items.map((group) => group[0].location.split("#")[0])]))
}
process.exit(0)
