import * as kit from './kit.mjs'

const { Logger, makeWorkerUtils, run } = kit.need('graphile-worker')
const logger = new Logger(() => () => {})

async function using (work) {
  const utils = await makeWorkerUtils({ connectionString: kit.URL_, logger })
  try { return await work(utils) } finally { await utils.release() }
}

await kit.main({
  prepare: () => using(utils => utils.migrate()),
  enqueue: ({ count }) => using(utils => kit.timed(async () => {
    for await (const part of kit.chunks(count)) await utils.addJobs(part.map(i => ({ identifier: 'mark', payload: { i } })))
  })),
  async worker () {
    const worker = { connectionString: kit.URL_, logger, ...kit.SETTINGS }
    await (await run({ preset: { worker }, taskList: { mark: ({ i }) => kit.mark(i) } })).promise
  },
  paced: ({ numbers, gap }) => using(utils => kit.paced(numbers, gap, i => utils.addJob('mark', { i }))),
  later: ({ due_times }) => using(async utils => {
    for (const [i, at] of due_times) await utils.addJob('mark', { i }, { runAt: new Date(at * 1000) })
  })
})
