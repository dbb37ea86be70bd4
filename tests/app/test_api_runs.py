"""Runs, jobs, slots, workers and queues over HTTP."""

from datetime import timedelta
from typing import Any

import pytest

from rota.core.states import Status
from rota.engine import runs, workers
from rota.engine.scheduler import Scheduler
from tests.app.harness import NINE, WORKER, Api

RUN_FIELDS = {
    "id", "job_id", "kind", "target", "target_name", "target_version", "schedule_id", "slot", "trigger", "attempt",
    "retry_of", "status", "reason", "error", "outcome", "queued_at", "started_at", "finished_at", "worker",
    "artifact_id", "trace_id", "usage", "input", "retry_at", "cpu_seconds", "peak_memory_bytes",
}  # fmt: skip


@pytest.fixture
async def schedule(api: Api) -> Any:
    return await api.schedule("nightly")


async def test_a_run_is_pending_then_running_then_in_the_ledger(api: Api, schedule: Any) -> None:
    job_id = await api.job()
    (pending,) = (await api.get("/runs"))["items"]
    assert set(pending) == RUN_FIELDS
    assert (pending["id"], pending["job_id"], pending["status"], pending["attempt"]) == (None, job_id, "pending", 1)
    job = await api.get(f"/jobs/{job_id}")
    assert (job["status"], job["run_ids"], job["started_at"]) == ("pending", [], None)

    (held,) = await api.claim()
    (pending,) = (await api.get("/runs"))["items"]
    assert (pending["id"], pending["status"]) == (None, "pending")  # claimed is not started
    await api.execute("UPDATE jobs SET state = 'ready', lease_owner = NULL WHERE id = :id", id=held.id)

    (begun,) = await api.start()
    (running,) = (await api.get("/runs"))["items"]
    assert (running["id"], running["status"], running["worker"]) == (begun.run_id, "running", WORKER)
    assert await api.get(f"/runs/{begun.run_id}") == running
    job = await api.get(f"/jobs/{job_id}")
    assert (job["status"], job["run_ids"], job["attempt"]) == ("running", [begun.run_id], 1)

    api.clock.set(NINE + timedelta(seconds=5))
    await api.end([begun])
    (ended,) = (await api.get("/runs"))["items"]
    assert set(ended) == RUN_FIELDS
    assert {**ended, "status": "running", "finished_at": None, "artifact_id": None} == running
    assert ended["artifact_id"] == begun.run_id  # a run of a task is its own artifact
    assert (ended["status"], ended["finished_at"]) == ("success", "2026-05-04T09:00:05+00:00")
    job = await api.get(f"/jobs/{job_id}")
    assert (job["status"], job["run_ids"], job["submitted_at"]) == (
        "success",
        [begun.run_id],
        "2026-05-04T09:00:00+00:00",
    )
    shown = await api.get("/schedules/nightly")
    assert (shown["last_run_status"], shown["last_run_id"], shown["last_job_id"]) == ("success", begun.run_id, job_id)
    assert shown["id"] == schedule["id"]


async def test_pages_of_runs_go_from_the_queue_into_the_ledger(api: Api, schedule: Any) -> None:
    for _ in range(5):
        await api.job()
    await api.end(await api.start())
    for _ in range(4):
        await api.job()
    await api.start()
    for _ in range(3):
        await api.job()
    everything = (await api.get("/runs"))["items"]
    assert [run["status"] for run in everything].count("pending") == 3
    assert {run["status"] for run in everything[:7]} == {"pending", "running"}
    assert [run["status"] for run in everything[7:]] == ["success"] * 5
    for limit in (1, 2, 3, 4, 7, 11, 12):
        seen: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = await api.get("/runs", limit=limit, **cursor)
            assert 0 < len(page["items"]) <= limit
            seen += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert seen == everything, limit


async def test_a_run_that_ends_between_pages_is_not_lost(api: Api, schedule: Any) -> None:
    for _ in range(4):
        await api.job()
    begun = await api.start()
    first = await api.get("/runs", limit=2)
    await api.end(begun)
    rest = await api.get("/runs", limit=50, cursor=first["next_cursor"])
    seen = {run["job_id"] for run in first["items"] + rest["items"]}
    assert seen == {attempt.job.id for attempt in begun}


async def test_runs_are_found_by_what_they_are(api: Api, schedule: Any) -> None:
    other = await api.schedule("other")
    failed = await api.job("nightly")
    await api.end(await api.start(), Status.FAILED, "logic")
    api.clock.set(NINE + timedelta(hours=1))
    worked = await api.job("other")
    await api.end(await api.start())
    running = await api.job("other")
    await api.start()
    waiting = await api.job("nightly")

    async def found(**query: str) -> list[str]:
        return [run["job_id"] for run in (await api.get("/runs", **query))["items"]]

    assert await found() == [waiting, running, worked, failed]
    assert await found(schedule_id="nightly") == [waiting, failed]
    assert await found(schedule_id=other["id"]) == [running, worked]
    assert await found(schedule_id="unknown") == []
    assert await found(job_id=failed) == [failed]
    assert await found(job_id=waiting) == [waiting]
    assert await found(status="pending") == [waiting]
    assert await found(status="running") == [running]
    assert await found(status="success") == [worked]
    assert await found(status="failed", reason="logic") == [failed]
    assert await found(reason="timeout") == []
    assert await found(kind="task", target="hello") == [waiting, running, worked, failed]
    assert await found(kind="graph") == []
    assert await found(target="disk") == []
    assert await found(since="2026-05-04T09:30:00Z") == [waiting, running, worked]
    assert await found(until="2026-05-04T09:30:00Z") == [failed]
    assert (await api.call("GET", "/runs", params={"status": "odd"})).status_code == 422
    by_schedule = await api.get("/schedules/nightly/runs", status="failed")
    assert [run["job_id"] for run in by_schedule["items"]] == [failed]
    await api.call("DELETE", "/schedules/other")
    assert [run["job_id"] for run in (await api.get(f"/schedules/{other['id']}/runs"))["items"]] == [running, worked]


async def test_a_waiting_job_is_canceled_at_once(api: Api, schedule: Any) -> None:
    job_id = await api.job()
    answer = await api.call("POST", f"/jobs/{job_id}/$cancel")
    assert (answer.status_code, answer.json()) == (202, {"job_id": job_id})
    assert (await api.get(f"/jobs/{job_id}"))["status"] == "canceled"
    assert (await api.call("POST", f"/jobs/{job_id}/$cancel")).status_code == 409


async def test_a_running_one_is_asked_to_stop_and_retried_later(api: Api, schedule: Any) -> None:
    await api.job()
    (begun,) = await api.start()
    assert (await api.call("POST", f"/runs/{begun.run_id}/$cancel")).status_code == 202
    assert (await api.get(f"/runs/{begun.run_id}"))["status"] == "running"
    await api.end([begun], Status.CANCELED, "operator")
    answer = await api.call("POST", f"/runs/{begun.run_id}/$retry")
    assert answer.status_code == 202
    again = (await api.get("/runs", job_id=answer.json()["job_id"]))["items"][0]
    assert (again["status"], again["retry_of"], again["attempt"]) == ("pending", begun.run_id, 2)


async def test_logs_come_in_pages(api: Api, schedule: Any) -> None:
    await api.job()
    (begun,) = await api.start()
    lines = [(begun.run_id, NINE, "stdout", f"line {number}") for number in range(5)]
    await api.db.tx(runs.write_logs, lines)
    page = await api.get(f"/runs/{begun.run_id}/logs", limit=3)
    assert [line["text"] for line in page["items"]] == ["line 0", "line 1", "line 2"]
    assert set(page["items"][0]) == {"id", "at", "stream", "text"}
    rest = await api.get(f"/runs/{begun.run_id}/logs", after=page["next_cursor"])
    assert [line["text"] for line in rest["items"]] == ["line 3", "line 4"]
    assert rest["next_cursor"] is None
    assert (await api.call("GET", f"/runs/{begun.run_id}/logs", params={"after": "x"})).status_code == 422


async def test_a_fired_slot_has_the_verdict_of_its_run(api: Api) -> None:
    for name in ("works", "fails"):
        await api.schedule(name, cron_expression="0 * * * *")
    api.clock.set(NINE + timedelta(hours=1))
    while await Scheduler(api.engine).step():
        pass

    async def slot_states() -> list[tuple[str, Any, Any]]:
        slots = (await api.get("/slots"))["items"]
        return [(slot["schedule_name"], slot["verdict"], slot["status"]) for slot in slots]

    assert sorted(await slot_states()) == [("fails", None, "pending"), ("works", None, "pending")]
    begun = await api.start()
    assert {verdict for _, verdict, _ in await slot_states()} == {None}
    assert {status for _, _, status in await slot_states()} == {"running"}
    works = (await api.get("/schedules/works"))["id"]
    await api.end([attempt for attempt in begun if attempt.job.schedule_id == works])
    await api.end([attempt for attempt in begun if attempt.job.schedule_id != works], Status.FAILED, "logic")
    assert sorted(await slot_states()) == [("fails", "ran", "failed"), ("works", "ran", "success")]
    (slot,) = (await api.get("/schedules/works/slots"))["items"]
    assert slot["slot"] == "2026-05-04T10:00:00+00:00"
    assert slot["run_id"] in [attempt.run_id for attempt in begun]
    assert (slot["count"], slot["last_slot"], slot["into_slot"]) == (1, slot["slot"], None)
    assert (await api.get("/slots", verdict="skipped"))["items"] == []
    assert len((await api.get("/slots", verdict="ran"))["items"]) == 2
    assert (await api.get("/slots", since="2026-05-04T10:00:01Z"))["items"] == []
    assert (await api.get("/slots", until="2026-05-04T10:00:00Z"))["items"] == []
    assert len((await api.get("/slots", since="2026-05-04T10:00:00Z", schedule="works"))["items"]) == 1
    audit = await api.get("/slots/$audit", schedule="works")
    assert audit == {"ok": True, "schedules": 1, "slots": 1, "problems": [], "overdue": []}


async def test_a_fired_slot_without_job_and_run_has_no_verdict(api: Api) -> None:
    await api.schedule("works", cron_expression="0 * * * *")
    api.clock.set(NINE + timedelta(hours=1))
    while await Scheduler(api.engine).step():
        pass
    await api.execute("DELETE FROM jobs")
    (slot,) = (await api.get("/slots"))["items"]
    assert (slot["verdict"], slot["status"], slot["run_id"]) == (None, None, None)
    assert (await api.get("/slots", verdict="ran"))["items"] == []
    audit = await api.get("/slots/$audit")
    assert audit["problems"] == ["schedule works: slot 2026-05-04T10:00:00+00:00 has neither a job nor a run"]


async def test_pages_of_slots_show_each_once(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.schedule(name, cron_expression="0 * * * *")
    for hour in range(1, 5):
        api.clock.set(NINE + timedelta(hours=hour))
        for name in ("a", "b", "c"):
            await api.call("POST", f"/schedules/{name}/$skip-next")
    everything = (await api.get("/slots"))["items"]
    assert len(everything) == 12
    assert [item["slot"] for item in everything] == sorted((item["slot"] for item in everything), reverse=True)
    seen: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = await api.get("/slots", limit=5, **cursor)
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == everything


async def test_workers_and_queues_are_listed(api: Api, schedule: Any) -> None:
    attempt_fields: dict[str, Any] = {
        "pid": 7,
        "version": "1",
        "concurrency": 50,
        "kinds": ["task"],
        "routes": ["task:default:hello"],
        "queues": None,
    }
    await api.db.tx(workers.register, worker=WORKER, lease=timedelta(seconds=30), now=NINE, **attempt_fields)
    await api.job()
    await api.start()
    api.clock.set(NINE + timedelta(seconds=1))
    await api.job()
    (worker,) = (await api.get("/workers"))["items"]
    assert (worker["id"], worker["state"], worker["running"], worker["kinds"]) == (WORKER, "alive", 1, ["task"])
    assert worker["lease_until"] == "2026-05-04T09:00:30+00:00"
    assert (await api.get("/workers", state="dead"))["items"] == []
    (queue,) = (await api.get("/queues"))["items"]
    assert (queue["name"], queue["max_running"], queue["paused"]) == ("default", None, False)
    assert (queue["depth"]["running"], queue["depth"]["ready"]) == (1, 1)
    assert queue["oldest_ready_at"] == "2026-05-04T09:00:01+00:00"


async def test_a_run_of_a_task_shows_name_input_and_who_asked_while_it_is_alive(api: Api) -> None:
    task = (await api.call("POST", "/tasks", {"name": "greet", "command": "hello", "task_type": "python"})).json()
    asked = await api.call("POST", "/tasks/greet/$execute", {"parameters": {"name": "you"}})
    job_id = asked.json()["job_id"]
    for target in ("greet", task["id"]):
        (pending,) = (await api.get("/runs", target=target))["items"]
        assert (pending["target_name"], pending["target"], pending["input"]) == ("greet", task["id"], {"name": "you"})
    assert (await api.get("/runs", target="other"))["items"] == []
    sentences = (await api.get(f"/runs/{job_id}/$why"))["sentences"]
    assert "A user asked" not in " ".join(sentences)
    assert "admin" in sentences[0]
    assert "asked for task greet to run at once" in sentences[0]


async def test_secrets_in_the_input_of_a_run_are_hidden(api: Api, schedule: Any) -> None:
    await api.call("POST", "/schedules/nightly/$run", {"input": {"name": "postgresql://me:s3cret@host/db"}})
    (waiting,) = (await api.get("/runs"))["items"]
    await api.end(await api.start())
    (ended,) = (await api.get("/runs"))["items"]
    assert waiting["input"] == ended["input"] == {"name": "postgresql://me:***@host/db"}
