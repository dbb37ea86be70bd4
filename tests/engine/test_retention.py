"""Runs are kept as long as the installation says, or as their schedule says."""

import pytest
from sqlalchemy import select

from rota.core.errors import Conflict, NotFound
from rota.db.crash_points import at_each_statement
from rota.db.tables import runs, schedules, slots
from rota.engine.maintenance import Maintenance
from tests.engine.harness import DAY, MINUTE, Harness, at


async def kept(harness: Harness) -> dict[str, int]:
    """Return the number of runs by the name of their schedule."""
    stmt = select(schedules.c.name).join(runs, runs.c.schedule_id == schedules.c.id)
    names = [row.name for row in await harness.rows(stmt)]
    return {name: names.count(name) for name in sorted(set(names))}


async def run_schedules(harness: Harness) -> None:
    """Three schedules with two runs each; the installation keeps successful ones for 30 days, failed ones for 90."""
    for name, days in (("short", 3), ("long", 400), ("usual", None)):
        await harness.schedule(name, cron="0 * * * *", ends_at=at("11:30").isoformat(), keep_runs_days=days)
    await harness.run_until(at("11:30"))
    assert await kept(harness) == {"long": 2, "short": 2, "usual": 2}


async def test_a_schedule_may_keep_its_runs_shorter_or_longer(harness: Harness) -> None:
    await run_schedules(harness)
    maintenance = Maintenance(harness.engine, harness.worker.id)
    for days, expected in (
        (2, {"long": 2, "short": 2, "usual": 2}),
        (4, {"long": 2, "usual": 2}),
        (31, {"long": 2}),
        (399, {"long": 2}),
        (401, {}),
    ):
        harness.clock.set(at("11:30") + days * DAY)
        await maintenance.prune(harness.clock.now())
        assert await kept(harness) == expected, days


async def test_slots_are_kept_as_long_as_their_runs(harness: Harness) -> None:
    await run_schedules(harness)
    maintenance = Maintenance(harness.engine, harness.worker.id)
    by_name = select(schedules.c.name).join(slots, slots.c.schedule_id == schedules.c.id)
    for days, expected in ((91, ["long", "long"]), (401, [])):
        harness.clock.set(at("11:30") + days * DAY)
        await maintenance.prune(harness.clock.now())
        assert [row.name for row in await harness.rows(by_name)] == expected, days


async def test_a_failed_run_is_kept_as_long_as_its_schedule_says(harness: Harness) -> None:
    harness.fake_runner.errors = [ValueError("no")] * 6
    await run_schedules(harness)
    harness.clock.set(at("11:30") + 31 * DAY)
    await Maintenance(harness.engine, harness.worker.id).prune(harness.clock.now())
    assert await kept(harness) == {"long": 2, "usual": 2}


async def test_a_deleted_run_leaves_the_verdict_of_its_slot(harness: Harness) -> None:
    """The proof of the slots needs no runs; an attempt that has not ended is not deleted."""
    await harness.schedule("nightly", cron="0 * * * *", ends_at=at("11:30").isoformat())
    await harness.run_until(at("11:30"))
    of_runs = await harness.rows(select(runs.c.id, runs.c.job_id, runs.c.org_id).order_by(runs.c.recorded_at))
    await harness.engine.delete_run(harness.org_id, of_runs[0].id)
    await harness.engine.delete_run(harness.org_id, of_runs[1].job_id)
    assert await kept(harness) == {}
    stored = await harness.rows(select(slots.c.verdict, slots.c.reason).order_by(slots.c.slot))
    assert [tuple(row) for row in stored] == [("ran", None), ("ran", None)]
    with pytest.raises(NotFound):
        await harness.engine.delete_run(harness.org_id, of_runs[0].id)
    await harness.check()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", "t", [{}])
    with pytest.raises(Conflict, match="has not ended"):
        await harness.engine.delete_run(harness.org_id, job_id)


async def test_an_edited_limit_holds_from_the_next_pass_on(harness: Harness) -> None:
    await run_schedules(harness)
    maintenance = Maintenance(harness.engine, harness.worker.id)
    harness.clock.set(at("11:30") + 31 * DAY)
    await maintenance.prune(harness.clock.now())
    await harness.edit("long", keep_runs_days=20)
    await maintenance.prune(harness.clock.now() + MINUTE)
    assert await kept(harness) == {}


async def test_a_removed_limit_holds_within_a_day(harness: Harness) -> None:
    """Between full passes only runs that became old since the last pass are read."""
    await run_schedules(harness)
    maintenance = Maintenance(harness.engine, harness.worker.id)
    harness.clock.set(at("11:30") + 40 * DAY)
    await maintenance.prune(harness.clock.now())
    await harness.edit("long", keep_runs_days=None)
    await maintenance.prune(harness.clock.now() + MINUTE)
    assert await kept(harness) == {"long": 2}
    await maintenance.prune(harness.clock.now() + DAY)
    assert await kept(harness) == {}


async def test_runs_that_became_old_between_full_passes_are_deleted(harness: Harness) -> None:
    await run_schedules(harness)
    maintenance = Maintenance(harness.engine, harness.worker.id)
    await maintenance.prune(at("9:59") + 30 * DAY)
    assert (await kept(harness))["usual"] == 2
    await maintenance.prune(at("10:30") + 30 * DAY)
    assert (await kept(harness))["usual"] == 1
    await maintenance.prune(at("11:01") + 30 * DAY)
    assert "usual" not in await kept(harness)


async def test_limits_of_schedules_cost_no_statement_each(harness: Harness) -> None:
    maintenance = Maintenance(harness.engine, harness.worker.id)
    counts = []
    for number in range(3):
        for more in range(number * 10):
            await harness.schedule(f"s{number}-{more}", cron="0 0 1 1 *", keep_runs_days=5)
        statements: list[str] = []
        with at_each_statement(statements.append):
            await maintenance.prune(harness.clock.now())
        counts.append(len(statements))
    assert counts[0] < counts[1] == counts[2]
