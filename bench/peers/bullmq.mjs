import * as kit from './kit.mjs'

const { Queue, Worker } = kit.need('bullmq')
const { hostname: host, port } = new URL(kit.URL_)
const connection = { host, port: Number(port), maxRetriesPerRequest: null }
const { removeOnComplete, ...working } = kit.SETTINGS

async function using (work) {
  const queue = new Queue('mark', { connection, defaultJobOptions: { removeOnComplete } })
  await queue.waitUntilReady()
  try { return await work(queue) } finally { await queue.close() }
}

await kit.main({
  async prepare () {},
  enqueue: ({ count }) => using(queue => kit.timed(async () => {
    for await (const part of kit.chunks(count)) await queue.addBulk(part.map(i => ({ name: 'mark', data: { i } })))
  })),
  async worker () {
    new Worker('mark', async job => kit.mark(job.data.i), { connection, ...working })
    await new Promise(() => {})
  },
  paced: ({ numbers, gap }) => using(queue => kit.paced(numbers, gap, i => queue.add('mark', { i }))),
  later: ({ due_times }) => using(async queue => {
    for (const [i, at] of due_times) await queue.add('mark', { i }, { delay: Math.max(0, Math.round(at * 1000 - Date.now())) })
  }),
  schedules: ({ count }) => using(queue => kit.timed(() => kit.concurrently(100, kit.distantCrons(count), ([i, pattern]) =>
    queue.upsertJobScheduler(`distant-${i}`, { pattern, tz: 'UTC' }, { name: 'mark', data: { i } }))))
})
