/** Against a running server, whose URL and key are in ROTA_SERVER and ROTA_KEY and which has the task `hello`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, connect, events, items, wait, type Schemas } from "../src/index.js";

const rota = connect();

async function create(name: string, tags: string[] = []): Promise<Schemas["Schedule"]> {
  const { data } = await rota.POST("/api/v1/schedules", { body: { name, target: "hello", interval: "1h", tags } });
  assert.ok(data);
  return data;
}

test("a program creates, lists, runs and waits", async () => {
  for (let number = 0; number < 5; number++) await create(`ts-${number}`, ["typescript"]);
  const names: string[] = [];
  for await (const schedule of items(rota, "/api/v1/schedules", { query: { tag: "typescript", limit: 2 } }))
    names.push(schedule.name);
  assert.deepEqual(names, ["ts-0", "ts-1", "ts-2", "ts-3", "ts-4"]);

  const { data } = await rota.POST("/api/v1/schedules/{key}/$run", {
    params: { path: { key: "ts-0" } },
    body: { input: { name: "Ada" } },
  });
  assert.ok(data?.job_id);
  const job = await wait(rota, data.job_id, 30);
  assert.equal(job.status, "success");
  const { data: run } = await rota.GET("/api/v1/runs/{run_id}", { params: { path: { run_id: job.run_ids[0] ?? "" } } });
  assert.equal(run?.outcome, "Ada");
  const lines: string[] = [];
  for await (const event of events(`/api/v1/runs/${run?.id}/logs`))
    if (event.type === "log") lines.push((event.data as Schemas["Line"]).text);
  assert.deepEqual(lines, ["hello Ada"]);
});

test("refusals are errors with a code and the fields", async () => {
  await assert.rejects(rota.GET("/api/v1/schedules/{key}", { params: { path: { key: "unknown" } } }), (error) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.status, error.code], [404, "not_found"]);
    return true;
  });
  await assert.rejects(
    rota.POST("/api/v1/schedules", { body: { name: "x", target: "hello", interval: "never" } }),
    (error) => error instanceof ApiError && error.status === 422 && error.problem.errors?.[0]?.field === "interval",
  );
  await assert.rejects(
    connect({ key: "rota_wrong" }).GET("/api/v1/queues"),
    (error) => error instanceof ApiError && error.status === 401,
  );
});

test("a repeated POST with the same key runs once", async () => {
  await create("ts-once");
  const request = {
    params: { path: { key: "ts-once" }, header: { "Idempotency-Key": crypto.randomUUID() } },
    body: { overlap: "allow" as const },
  };
  const first = await rota.POST("/api/v1/schedules/{key}/$run", request);
  const second = await rota.POST("/api/v1/schedules/{key}/$run", request);
  assert.equal(first.data?.job_id, second.data?.job_id);
});

test("a call is repeated with its idempotency key when the answer is lost", async () => {
  await create("ts-lost");
  const keys: (string | null)[] = [];
  const lossy = connect({
    fetch: async (input, init) => {
      const request = new Request(input, init);
      keys.push(request.headers.get("idempotency-key"));
      const response = await fetch(request);
      if (keys.length === 1) throw new TypeError("connection lost");
      return response;
    },
  });
  const { data } = await lossy.POST("/api/v1/schedules/{key}/$run", { params: { path: { key: "ts-lost" } }, body: {} });
  assert.equal(new Set(keys).size, 1);
  assert.equal(keys.length, 2);
  const jobs: string[] = [];
  const { data: schedule } = await rota.GET("/api/v1/schedules/{key}", { params: { path: { key: "ts-lost" } } });
  await wait(rota, data?.job_id ?? "", 30);
  for await (const run of items(rota, "/api/v1/runs", { query: { schedule_id: schedule?.id ?? "" } })) jobs.push(run.job_id);
  assert.deepEqual(jobs, [data?.job_id]);
});

test("changes of the installation arrive as events", async () => {
  const stop = new AbortController();
  const seen: string[] = [];
  for await (const event of events("/api/v1/events", { signal: stop.signal })) {
    seen.push(event.type);
    if (event.type === "open") await create("ts-event");
    else stop.abort();
  }
  assert.equal(seen[0], "open");
  assert.ok(seen.length >= 2);
});
