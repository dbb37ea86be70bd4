"""What is failing: grouped by schedule or target, decided by the last attempt, gone after a success or apart once
acknowledged."""

from dataclasses import dataclass, field

import pytest

from rota import Retry, Rota, TransientError
from rota.core.errors import Conflict
from rota.core.states import Status, shown_status
from rota.reports import failing, overview
from rota.reports import runs as run_reports
from rota.testing import World, world
from tests.app.harness import Api


@dataclass
class FailingTasks:
    """A program whose tasks end as the test decides."""

    app: Rota = field(default_factory=Rota)
    errors: dict[str, list[Exception]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        @self.app.task
        def backup() -> None:
            self.end("backup")

        @self.app.task(retry=Retry(max_retries=2))
        def report() -> None:
            self.end("report")

        self.app.schedule("nightly", "backup", every="1h")
        self.app.schedule("import", "report", every="1h", params={}, retry=Retry(max_retries=2))

    def end(self, task: str) -> None:
        if self.errors.get(task):
            raise self.errors[task].pop(0)


async def failing_now(installation: World) -> list[tuple[str, int, bool]]:
    rows = await installation.engine.db.read(failing.failing, installation.org_id, installation.clock.now())
    return [(row["schedule"] or row["target_name"], row["times"], row["acknowledged"] is not None) for row in rows]


async def test_failures_are_counted_by_schedule_over_the_whole_day(clean_url: str) -> None:
    failing_tasks = FailingTasks(errors={"backup": [ValueError("disk")] * 15, "report": [ValueError("net")] * 3})
    async with world(failing_tasks.app, database_url=clean_url) as installation:
        await installation.advance(hours=15)
        assert await failing_now(installation) == [("nightly", 15, False)]


async def test_an_attempt_that_is_retried_is_not_failing(clean_url: str) -> None:
    failing_tasks = FailingTasks(errors={"report": [TransientError("blip"), TransientError("blip")]})
    async with world(failing_tasks.app, database_url=clean_url) as installation:
        await installation.advance(hours=1)
        assert await failing_now(installation) == []
        listed, _ = await installation.engine.db.read(run_reports.list_runs, installation.org_id)
        first = next(run for run in listed if run["status"] == Status.PAUSED)
        assert (first["reason"], shown_status(first), first["retry_at"] is not None) == ("transient", "retrying", True)
        await installation.advance(minutes=30)
        listed, _ = await installation.engine.db.read(run_reports.list_runs, installation.org_id)
        assert {shown_status(run) for run in listed} == {"success", "retried"}
        counts = (
            await installation.engine.db.read(overview.overview, installation.org_id, [], installation.clock.now())
        )["counts"]
        assert (counts["retried"], counts["paused"], counts["failed"]) == (2, 0, 0)


async def test_a_schedule_that_succeeded_since_is_no_longer_failing(clean_url: str) -> None:
    failing_tasks = FailingTasks(errors={"backup": [ValueError("disk")]})
    async with world(failing_tasks.app, database_url=clean_url) as installation:
        await installation.advance(hours=1)
        assert await failing_now(installation) == [("nightly", 1, False)]
        await installation.advance(hours=1)
        assert await failing_now(installation) == []


async def test_a_task_without_a_schedule_fails_and_recovers_by_its_name(clean_url: str) -> None:
    failing_tasks = FailingTasks(errors={"backup": [ValueError("disk")]})
    async with world(failing_tasks.app, database_url=clean_url) as installation:
        engine, org_id = installation.engine, installation.org_id
        await engine.enqueue(org_id, "task", "backup", [None])
        await installation.drain()
        assert await failing_now(installation) == [("backup", 1, False)]
        await engine.enqueue(org_id, "task", "backup", [None])
        installation.clock.set(installation.clock.now().replace(second=1))
        await installation.drain()
        assert await failing_now(installation) == []


async def test_an_acknowledgement_names_a_person_and_holds_until_the_next_success(clean_url: str) -> None:
    failing_tasks = FailingTasks(errors={"backup": [ValueError("disk")] * 2})
    async with world(failing_tasks.app, database_url=clean_url) as installation:
        engine, org_id, now = installation.engine, installation.org_id, installation.clock.now
        await installation.advance(hours=1)
        (row,) = await engine.db.read(failing.failing, org_id, now())
        await engine.db.tx(failing.acknowledge, org_id, row["id"], None, "disk is ordered", now())
        await installation.advance(hours=1)
        assert await failing_now(installation) == [("nightly", 2, True)]
        await installation.advance(hours=1)
        failing_tasks.errors["backup"] = [ValueError("disk")]
        await installation.advance(hours=1)
        assert await failing_now(installation) == [("nightly", 3, False)]
        success = next(
            run for run in (await engine.db.read(run_reports.list_runs, org_id))[0] if run["status"] == Status.SUCCESS
        )
        with pytest.raises(Conflict, match="did not fail: its status is success"):
            await engine.db.tx(failing.acknowledge, org_id, success["id"], None, "", now())


async def test_the_api_lists_failures_by_name_with_who_acknowledged_them(api: Api) -> None:
    for name in ("nightly", "weekly"):
        await api.schedule(name)
    for name in ("nightly", "nightly", "weekly"):
        await api.job(name)
        await api.end(await api.start(), Status.FAILED, "logic")
    assert (await api.call("POST", "/tasks/hello/$execute")).status_code == 202
    await api.end(await api.start(), Status.FAILED, "logic")
    items = (await api.get("/failing"))["items"]
    names = {item["schedule"] or item["target_name"]: item["times"] for item in items}
    assert names == {"nightly": 2, "weekly": 1, "hello": 1}
    weekly = next(item for item in items if item["schedule"] == "weekly")
    answer = await api.call("POST", f"/runs/{weekly['id']}/$acknowledge", {"note": "known"})
    assert answer.status_code == 204
    (acknowledged,) = [item for item in (await api.get("/failing"))["items"] if item["acknowledged"]]
    assert (acknowledged["schedule"], acknowledged["acknowledged"]["note"]) == ("weekly", "known")
    assert acknowledged["acknowledged"]["by"]
