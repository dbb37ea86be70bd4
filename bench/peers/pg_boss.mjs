import * as kit from './kit.mjs'

const { PgBoss } = kit.need('pg-boss')
const { notify = false, ...working } = kit.SETTINGS

async function start (more = {}) {
  const boss = new PgBoss({ connectionString: kit.URL_, schedule: false, supervise: false, useListenNotify: notify, ...more })
  boss.on('error', error => console.error(error))
  return boss.start()
}

async function using (work) {
  const boss = await start()
  try { return await work(boss) } finally { await boss.stop({ graceful: false }) }
}

await kit.main({
  prepare: () => using(boss => boss.createQueue('mark', { notify })),
  enqueue: ({ count }) => using(boss => kit.timed(async () => {
    for await (const part of kit.chunks(count)) await boss.insert('mark', part.map(i => ({ data: { i } })))
  })),
  async worker () {
    const boss = await start({ schedule: true, supervise: true })
    await boss.work('mark', working, async jobs => { for (const job of jobs) kit.mark(job.data.i) })
    await new Promise(() => {})
  },
  paced: ({ numbers, gap }) => using(boss => kit.paced(numbers, gap, i => boss.send('mark', { i }))),
  later: ({ due_times }) => using(async boss => {
    for (const [i, at] of due_times) await boss.send('mark', { i }, { startAfter: new Date(at * 1000) })
  }),
  schedules: ({ count }) => using(boss => kit.timed(() => kit.concurrently(10, kit.distantCrons(count), ([i, cron]) =>
    boss.schedule('mark', cron, { i }, { key: `distant-${i}`, tz: 'UTC' }))))
})
