// Shared code of the node programs; the same as kit.py.
import fs from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'

export const URL_ = process.env.BENCH_URL
export const SETTINGS = JSON.parse(process.env.BENCH_SETTINGS || '{}')
export const CHUNK = 1000
export const need = createRequire(path.join(process.env.BENCH_MODULES, 'here.js'))

const now = () => (performance.timeOrigin + performance.now()) / 1000
let marks

export function mark (i) {
  marks ??= fs.openSync(path.join(process.env.BENCH_HOME, 'marks'), 'a')
  fs.writeSync(marks, `${String(i).padStart(8)} ${now().toFixed(6)}\n`)
}

export async function * chunks (count) {
  for (let at = 0; at < count; at += CHUNK) yield Array.from({ length: Math.min(CHUNK, count - at) }, (_, k) => at + k)
}

export async function timed (work) {
  const begun = performance.now()
  await work()
  return { seconds: (performance.now() - begun) / 1000 }
}

export async function paced (numbers, gap, send) {
  const sent = []
  let turn = performance.now()
  for (const i of numbers) {
    turn += gap * 1000
    await new Promise(resolve => setTimeout(resolve, Math.max(0, turn - performance.now())))
    const called = now()
    await send(i)
    sent.push([i, called, now()])
  }
  return sent
}

// Any fixed sequence will do: the crons need not be those of kit.py, only as rare.
export function distantCrons (count) {
  let state = 11
  const below = n => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 65536) % n }
  return Array.from({ length: count }, (_, i) => [i, `${below(60)} ${below(24)} ${1 + below(28)} ${1 + below(12)} *`])
}

// So many at a time: a client that awaits each call would measure the round trip.
export async function concurrently (limit, items, work) {
  const rest = items.values()
  await Promise.all(Array.from({ length: limit }, async () => { for (const item of rest) await work(item) }))
}

export async function main (commands) {
  const input = fs.readFileSync(0, 'utf8')
  const result = await commands[process.argv[2]](input ? JSON.parse(input) : {})
  console.log(JSON.stringify(result ?? null))
}
