import * as kit from './kit.mjs'

const { Logger, makeWorkerUtils, run } = kit.need('graphile-worker')
const logger = new Logger(() => () => {})

async function utils (work) {
  const one = await makeWorkerUtils({ connectionString: kit.URL_, logger })
  try { return await work(one) } finally { await one.release() }
}

await kit.main({
  prepare: () => utils(one => one.migrate()),
  enqueue: ({ count }) => utils(one => kit.timed(async () => {
    for await (const part of kit.chunks(count)) await one.addJobs(part.map(i => ({ identifier: 'mark', payload: { i } })))
  })),
  async worker () {
    const worker = { connectionString: kit.URL_, logger, ...kit.SETTINGS }
    await (await run({ preset: { worker }, taskList: { mark: ({ i }) => kit.mark(i) } })).promise
  },
  paced: ({ numbers, gap }) => utils(one => kit.paced(numbers, gap, i => one.addJob('mark', { i }))),
  later: ({ moments }) => utils(async one => {
    for (const [i, at] of moments) await one.addJob('mark', { i }, { runAt: new Date(at * 1000) })
  })
})
