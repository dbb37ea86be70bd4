import * as kit from './kit.mjs'

const { PgBoss } = kit.need('pg-boss')
const { notify = false, ...working } = kit.SETTINGS

async function boss (more = {}) {
  const one = new PgBoss({ connectionString: kit.URL_, schedule: false, supervise: false, useListenNotify: notify, ...more })
  one.on('error', error => console.error(error))
  return one.start()
}

async function using (work) {
  const one = await boss()
  try { return await work(one) } finally { await one.stop({ graceful: false }) }
}

await kit.main({
  prepare: () => using(one => one.createQueue('mark', { notify })),
  enqueue: ({ count }) => using(one => kit.timed(async () => {
    for await (const part of kit.chunks(count)) await one.insert('mark', part.map(i => ({ data: { i } })))
  })),
  async worker () {
    const one = await boss({ schedule: true, supervise: true })
    await one.work('mark', working, async jobs => { for (const job of jobs) kit.mark(job.data.i) })
    await new Promise(() => {})
  },
  paced: ({ numbers, gap }) => using(one => kit.paced(numbers, gap, i => one.send('mark', { i }))),
  later: ({ moments }) => using(async one => {
    for (const [i, at] of moments) await one.send('mark', { i }, { startAfter: new Date(at * 1000) })
  }),
  schedules: ({ count }) => using(one => kit.timed(() => kit.abreast(10, kit.distantCrons(count), ([i, cron]) =>
    one.schedule('mark', cron, { i }, { key: `distant-${i}`, tz: 'UTC' }))))
})
