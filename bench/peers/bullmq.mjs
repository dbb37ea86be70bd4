import * as kit from './kit.mjs'

const { Queue, Worker } = kit.need('bullmq')
const { hostname: host, port } = new URL(kit.URL_)
const connection = { host, port: Number(port), maxRetriesPerRequest: null }
const { removeOnComplete, ...working } = kit.SETTINGS

async function queue (work) {
  const one = new Queue('mark', { connection, defaultJobOptions: { removeOnComplete } })
  await one.waitUntilReady()
  try { return await work(one) } finally { await one.close() }
}

await kit.main({
  async prepare () {},
  enqueue: ({ count }) => queue(one => kit.timed(async () => {
    for await (const part of kit.chunks(count)) await one.addBulk(part.map(i => ({ name: 'mark', data: { i } })))
  })),
  async worker () {
    new Worker('mark', async job => kit.mark(job.data.i), { connection, ...working })
    await new Promise(() => {})
  },
  paced: ({ numbers, gap }) => queue(one => kit.paced(numbers, gap, i => one.add('mark', { i }))),
  later: ({ moments }) => queue(async one => {
    for (const [i, at] of moments) await one.add('mark', { i }, { delay: Math.max(0, Math.round(at * 1000 - Date.now())) })
  }),
  schedules: ({ count }) => queue(one => kit.timed(() => kit.abreast(100, kit.distantCrons(count), ([i, pattern]) =>
    one.upsertJobScheduler(`distant-${i}`, { pattern, tz: 'UTC' }, { name: 'mark', data: { i } }))))
})
