"""Queues, many schedules at once, whole replacement, traces, why, metrics, and pages while rows come in."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from rota.core.ids import new_id, trace_id_of
from rota.core.model import AttemptResult
from rota.core.states import Status
from rota.engine import claiming, finishing, workers
from rota.engine.scheduler import Scheduler
from tests.app.harness import NINE, WORKER, Api

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


# queues


async def test_a_queue_is_limited_and_paused(api: Api) -> None:
    await api.schedule("nightly")
    made = await api.call("PUT", "/queues/default", {"max_running": 1})
    assert (made.status_code, made.json()["max_running"], made.json()["paused"]) == (200, 1, False)
    for _ in range(3):
        await api.job()
    assert len(await api.claim()) == 1
    assert (await api.call("PATCH", "/queues/default", {"paused": True})).json()["max_running"] == 1
    assert (await api.call("PATCH", "/queues/default", {"max_running": None})).json()["paused"] is True
    assert await api.claim() == []
    assert (await api.call("PUT", "/queues/default", {})).json() == await api.get("/queues/default")
    assert len(await api.claim()) == 2
    assert (await api.get("/queues/default"))["depth"]["running"] == 3
    assert (await api.call("GET", "/queues/nothing")).status_code == 404


@pytest.mark.parametrize("body", [{"max_running": -1}, {"max_running": "x"}, {"paused": 1}, {"size": 1}])
async def test_a_queue_refuses_what_is_wrong(api: Api, body: Any) -> None:
    for method in ("PUT", "PATCH"):
        answer = await api.call(method, "/queues/default", body)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, next(iter(body)))


# schedules


async def test_many_are_paused_and_resumed_by_what_they_are(api: Api) -> None:
    await api.schedule("a", tags=["reports"])
    await api.schedule("b", tags=["reports", "x"])
    await api.schedule("c")

    async def paused() -> list[str]:
        return [schedule["name"] for schedule in (await api.get("/schedules", paused=True))["items"]]

    answer = await api.call("POST", "/schedules/$pause", {"tag": "reports", "reason": "maintenance"})
    assert (answer.status_code, answer.json()) == (200, {"count": 2})
    assert await paused() == ["a", "b"]
    assert (await api.get("/schedules/a"))["pause_reason"] == "maintenance"
    answer = await api.call("POST", "/schedules/$resume", {"filter": {"name": "B"}})
    assert answer.json() == {"count": 1}
    assert await paused() == ["a"]
    assert (await api.call("POST", "/schedules/$pause", {"filter": {}})).json() == {"count": 3}
    assert (await api.call("POST", "/schedules/$resume", {"filter": {}, "gap": "once"})).json() == {"count": 3}
    assert await paused() == []


@pytest.mark.parametrize(
    "body", [{}, {"tag": "x", "filter": {}}, {"filter": 1}, {"filter": {"odd": 1}}, {"tag": 1}, {"filter": {"kind": 3}}]
)
async def test_pausing_everything_needs_an_explicit_filter(api: Api, body: Any) -> None:
    await api.schedule("a")
    assert (await api.call("POST", "/schedules/$pause", body)).status_code == 422
    assert (await api.get("/schedules", paused=True))["items"] == []


async def test_a_schedule_is_written_anew(api: Api) -> None:
    made = await api.schedule("a", description="x", tags=["t"], priority=5)
    body = {"target": "hello", "schedule_type": "interval", "interval": "5m"}
    api.clock.set(NINE + timedelta(seconds=90))
    answer = await api.call("PUT", f"/schedules/{made['id']}", body, headers={"if-match": '"1"'})
    put = answer.json()
    assert (answer.status_code, answer.headers["etag"], put["name"], put["id"]) == (200, '"2"', "a", made["id"])
    assert (put["description"], put["tags"], put["priority"], put["interval_seconds"]) == ("", [], 0, 300)
    api.clock.set(NINE + timedelta(seconds=200))
    again = (await api.call("PUT", "/schedules/a", body)).json()
    assert (again["next_run_at"], again["revision"]) == (put["next_run_at"], 3)
    assert (await api.call("PUT", "/schedules/a", body, headers={"if-match": '"1"'})).status_code == 412
    assert (await api.call("PUT", "/schedules/a", {"target": "hello"})).status_code == 422
    assert (await api.call("PUT", "/schedules/a", {**body, "kind": "graph"})).status_code == 422
    assert (await api.call("PUT", "/schedules/none", body)).status_code == 404


async def test_schedules_come_in_the_order_that_is_asked_for(api: Api) -> None:
    for name in ("b", "c", "a"):
        await api.schedule(name)

    async def names(**query: Any) -> list[str]:
        seen: list[str] = []
        while True:
            page = await api.get("/schedules", limit=2, **query)
            seen += [schedule["name"] for schedule in page["items"]]
            if page["next_cursor"] is None:
                return seen
            query["cursor"] = page["next_cursor"]

    assert await names() == ["a", "b", "c"]
    assert await names(sort="-name") == ["c", "b", "a"]
    assert await names(sort="id") == ["b", "c", "a"]
    assert await names(sort="-id") == ["a", "c", "b"]
    assert (await api.call("GET", "/schedules", params={"sort": "hash"})).status_code == 422


# traces


@pytest.mark.parametrize(
    ("header", "stored"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-00f067aa0ba902b7-01-more", None),
        ("", None),
    ],
)
async def test_a_run_keeps_the_trace_it_was_asked_in(api: Api, header: str, stored: str | None) -> None:
    await api.schedule("nightly")
    asked = await api.call("POST", "/schedules/nightly/$run", headers={"traceparent": header})
    stored = stored or trace_id_of(asked.json()["job_id"])  # otherwise the job has its own trace
    assert (len(stored), int(stored, 16) > 0) == (32, True)
    assert (await api.get("/runs"))["items"][0]["trace_id"] == stored
    begun = await api.start()
    await api.end(begun, Status.FAILED, "logic")
    assert (await api.get(f"/runs/{begun[0].run_id}"))["trace_id"] == stored
    await api.call("POST", f"/runs/{begun[0].run_id}/$retry")
    assert (await api.get("/runs", status="pending"))["items"][0]["trace_id"] == stored


# why


async def sentences(api: Api, path: str, **params: str) -> str:
    return " ".join((await api.get(path, **params))["sentences"])


async def test_why_explains_a_run(api: Api) -> None:
    await api.schedule("nightly", overlap="queue_all", retry={"max_retries": 2})
    job_id = await api.job()
    explanation = await sentences(api, f"/runs/{job_id}/$why")
    assert "system (key first admin key) asked for schedule nightly to run at once" in explanation
    assert "No live worker can run task:default:hello." in explanation
    await api.call("PUT", "/queues/default", {"paused": True, "max_running": 4})
    explanation = await sentences(api, f"/runs/{job_id}/$why")
    assert "Queue default is paused" in explanation
    assert "may run 4 at once, and runs 0" in explanation
    await api.call("PUT", "/queues/default", {})
    (begun,) = await api.start()
    explanation = await sentences(api, f"/runs/{begun.run_id}/$why")
    assert f"Attempt 1 runs since 2026-05-04T09:00:00+00:00 on worker {WORKER}." in explanation
    api.clock.set(NINE + timedelta(seconds=3))
    error = {"code": "logic", "type": "ValueError", "message": "no", "traceback": None}
    ended = AttemptResult(begun.job, Status.FAILED, "logic", api.clock.now(), begun.run_id, 1, begun.started_at, error)
    await api.db.tx(finishing.finish, [ended], WORKER)
    explanation = await sentences(api, f"/runs/{begun.run_id}/$why")
    assert (
        "ended after 3 s: failed, because the task raised an error (logic). Its error: ValueError: no." in explanation
    )
    assert "overlap queue_all, 2 retries" in explanation
    assert (await api.call("GET", "/runs/none/$why")).status_code == 404
    await api.execute("DELETE FROM audit_log")
    explanation = await sentences(api, f"/runs/{begun.run_id}/$why")
    assert "A user asked for schedule nightly to run at once" in explanation


async def test_why_explains_slots(api: Api) -> None:
    await api.schedule("hourly", cron_expression="0 * * * *", overlap="queue_all", misfire="skip")
    await api.call("POST", "/schedules/hourly/$skip-next", {"reason": "holiday"})
    explanation = await sentences(api, "/slots/$why", schedule="hourly", slot="2026-05-04T10:00:00Z")
    assert "was skipped, because a user asked for it (operator) (holiday)" in explanation
    api.clock.set(NINE + timedelta(hours=5))
    while await Scheduler(api.engine).step():
        pass
    explanation = await sentences(api, "/slots/$why", schedule="hourly", slot="2026-05-04T12:00:00Z")
    assert "slots from 2026-05-04T11:00:00+00:00" in explanation
    api.clock.set(NINE + timedelta(hours=6))
    while await Scheduler(api.engine).step():
        pass
    explanation = await sentences(api, "/slots/$why", schedule="hourly", slot="2026-05-04T15:00:00Z")
    assert "The slot 2026-05-04T15:00:00+00:00 of schedule hourly came due (schedule:0 * * * *)" in explanation
    query = {"schedule": "hourly", "slot": "2026-05-04T15:30:00Z"}
    assert (await api.call("GET", "/slots/$why", params=query)).status_code == 404


# metrics


async def test_metrics_count_and_name_no_org(api: Api) -> None:
    await api.schedule("hourly", cron_expression="0 * * * *")
    api.clock.set(NINE + timedelta(hours=1))
    while await Scheduler(api.engine).step():
        pass
    (begun,) = await api.start()
    ended = AttemptResult(
        begun.job, Status.SUCCESS, None, NINE, begun.run_id, 1, begun.job.run_at + timedelta(seconds=0.2)
    )
    api.engine.metrics.ended([ended])
    api.engine.metrics.refused([ended])
    api.client.headers.pop("authorization")
    text = (await api.client.get("/metrics")).text
    for line in (
        'rota_fires_total{worker="servers"} 1.0',
        'rota_slots_total{verdict="fired",worker="servers"} 1.0',
        'rota_runs_total{kind="task",status="success",worker="servers"} 1.0',
        'rota_refused_results_total{worker="servers"} 1.0',
        'rota_lateness_seconds_bucket{le="0.1",worker="servers"} 0.0',
        'rota_lateness_seconds_bucket{le="0.25",worker="servers"} 1.0',
        'rota_lateness_seconds_count{worker="servers"} 1.0',
        'rota_queue_jobs{state="running"} 1.0',
        "rota_leases 1.0",
        "rota_workers_alive 0.0",
        "rota_database_up 1.0",
    ):
        assert line in text.splitlines(), line
    assert api.org_id not in text


async def test_metrics_need_a_key_from_elsewhere(api: Api) -> None:
    key = api.client.headers.pop("authorization")
    for headers in ({"x-forwarded-for": "10.0.0.1"}, {"forwarded": "for=10.0.0.1"}):
        assert (await api.client.get("/metrics", headers=headers)).status_code == 401
        assert (await api.client.get("/metrics", headers={**headers, "authorization": key})).status_code == 200


# pages


async def test_pages_stay_right_while_rows_come_in(api: Api) -> None:
    """A thousand rows come in while lists are read: none of those that were there is lost, none is seen twice."""
    await api.db.tx(workers.measure)
    names = [f"s{number:04}" for number in range(0, 400, 2)]
    bodies = [{"name": name, "target": "hello", "interval": "1h"} for name in names]
    await api.call("POST", "/schedules/$bulk", {"items": bodies})
    await run_many(api, 200)
    before = {run["id"] for run in await pages(api, "/runs")}
    assert len(before) == 200

    async def more() -> None:
        for part in range(10):
            fresh = [f"s{number:04}" for number in range(1 + 80 * part, 81 + 80 * part, 2)]
            bodies = [{"name": name, "target": "hello", "interval": "1h"} for name in fresh]
            await api.call("POST", "/schedules/$bulk", {"items": bodies})
            await run_many(api, 60)

    coming = asyncio.ensure_future(more())
    while not coming.done():
        seen = [schedule["name"] for schedule in await pages(api, "/schedules")]
        assert len(seen) == len(set(seen))
        assert set(names) <= set(seen)
        ids = [run["id"] for run in await pages(api, "/runs", status="success")]
        assert len(ids) == len(set(ids))
        assert before <= set(ids)
    await coming
    assert len(await pages(api, "/schedules")) == 600
    assert len(await pages(api, "/runs")) == 800


async def pages(api: Api, path: str, **query: Any) -> list[Any]:
    seen: list[Any] = []
    while True:
        page = await api.get(path, limit=17, **query)
        seen += page["items"]
        if page["next_cursor"] is None:
            return seen
        query["cursor"] = page["next_cursor"]


async def run_many(api: Api, count: int) -> None:
    """Runs that ended, as a worker writes them."""
    await api.engine.enqueue(api.org_id, "task", "hello", [None] * count)
    taken = await api.db.tx(
        lambda tx: claiming.claim(
            tx, claiming.lanes(tx), worker=WORKER, routes=["task:default:hello"], room=count, turn=0
        )
    )
    assert len(taken) == count
    ended = [AttemptResult(job, Status.SUCCESS, None, NINE, new_id(), 1, NINE) for job in taken]
    await api.db.tx(finishing.finish, ended, WORKER)


async def test_every_list_takes_a_limit_of_200(api: Api) -> None:
    paths = [path for path, operations in api.app.openapi()["paths"].items() if "get" in operations]
    listed = [
        path
        for path in paths
        if "{" not in path and "Page" in str(api.app.openapi()["paths"][path]["get"]["responses"]["200"])
    ]
    computed = ("graphs", "queues", "pipelines/$namespaces", "grants/$forecast")
    for path in (*listed, *(f"/api/v1/{name}" for name in computed)):
        answer = await api.client.get(path, params={"limit": 200})
        assert answer.status_code == 200, (path, answer.text)
        assert (await api.client.get(path, params={"limit": 201})).status_code == 422, path


async def test_a_computed_list_is_read_page_by_page(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.call("PUT", f"/queues/{name}", {"max_running": 1})
    first = await api.get("/queues", limit=2)
    second = await api.get("/queues", limit=2, cursor=first["next_cursor"])
    assert [queue["name"] for queue in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next_cursor"] is None
