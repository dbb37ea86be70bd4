"""Catch-ups beyond the limits of the installation wait for an approval; every slot has one verdict all the same."""

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from rota import Rota
from rota.core.catch_up import CatchUpChoice, CatchUpLimits, UsualRun, plan_catch_up
from rota.core.errors import Conflict, DataRefused, Invalid, NotFound, Refused
from rota.core.policy import Misfire
from rota.db.statement import insert_rows
from rota.db.tables import catch_ups, jobs, runs, slots
from rota.engine.catch_ups import CatchUpRow, CatchUpStatus, get, open_of
from rota.engine.slot_audit import audit
from rota.testing import MONDAY, World, count_from_here, dies_at, world
from tests.engine.harness import HOUR, NINE, Harness, at, open_harness
from tests.kinds.workflows.test_crashes import fresh

NEVER = 1_000_000  # a crash point that is not reached
LIMITS = CatchUpLimits(slots=3)


@pytest.fixture
async def harness(clean_url: str) -> AsyncIterator[Harness]:
    """A harness that lets at most three slots be caught up without an approval."""
    harness = await open_harness(clean_url, catch_up=LIMITS)
    yield harness
    try:
        await harness.check()
    finally:
        await harness.close()


async def outage(harness: Harness, until: str = "10:15", **fields: Any) -> CatchUpRow | None:
    """9:10 ran; the process stops at 9:12 and another starts at `until`. Returns the open catch-up."""
    await harness.schedule(**{"misfire": "all", "overlap": "queue_all", **fields})
    await harness.run_until(at("9:12"))
    await harness.start_at(at(until))
    return await open_catch_up(harness)


async def open_catch_up(harness: Harness) -> CatchUpRow | None:
    return await harness.db.read(open_of, (await harness.record()).id)


async def decide(harness: Harness, held: CatchUpRow | None, chosen: CatchUpChoice | None, **how: Any) -> CatchUpRow:
    assert held is not None
    may: dict[str, Any] = {"may": lambda _: True, "by": "ada"} | how
    return await harness.engine.decide_catch_up(harness.org_id, held.id, chosen, **may)


HELD = ["9:10 ran", "9:20-10:10 x6 missed: awaiting_approval"]
DECISIONS = [
    (CatchUpChoice(), ["9:20 ran", "9:30 ran", "9:40 ran", "9:50 ran", "10:00 ran", "10:10 ran"]),
    (CatchUpChoice(limit=2), ["9:20 ran", "9:30 ran", "9:40-10:10 x4 missed: not_approved"]),
    (CatchUpChoice(Misfire.ONCE), ["9:20-10:00 x5 missed: not_approved", "10:10 ran"]),
    (CatchUpChoice(Misfire.SKIP), ["9:20-10:10 x6 missed: not_approved"]),
    (None, ["9:20-10:10 x6 missed: not_approved"]),
]


@pytest.mark.parametrize(("chosen", "expected"), DECISIONS)
async def test_slots_beyond_the_limit_wait_for_a_decision(
    harness: Harness, chosen: CatchUpChoice | None, expected: list[str]
) -> None:
    held = await outage(harness)
    assert held is not None
    assert (len(held.slots), held.source, held.waits_for) == (6, "outage", ["6 slots, more than 3"])
    assert await harness.verdicts() == HELD
    assert await harness.planned() == ("10:20", "10:20")
    await harness.run_until(at("10:20"))
    await harness.check()
    decided = await decide(harness, held, chosen, comment="looked at it")
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", *expected, "10:20 ran"]
    assert decided.status == ("rejected" if chosen is None else "approved")
    assert (decided.decided_by, decided.comment) == ("ada", "looked at it")
    assert decided.fired == sum(slot.endswith(" ran") for slot in expected)


@pytest.mark.parametrize(
    ("limits", "waits"),
    [
        (CatchUpLimits(), False),
        (CatchUpLimits(slots=6), False),
        (CatchUpLimits(slots=5), True),
        (CatchUpLimits(run_seconds=60), False),
        (CatchUpLimits(run_seconds=59), True),
        (CatchUpLimits(credits=29), True),
        (CatchUpLimits(credits=30), False),
    ],
)
def test_number_run_time_and_cost_are_compared_with_their_limits(limits: CatchUpLimits, waits: bool) -> None:
    passed = [NINE + HOUR * number for number in range(6)]
    plan = plan_catch_up(passed, CatchUpChoice(), UsualRun(20, 10.0, 12.0, 5.0, 0.5), limits, NINE)
    assert bool(plan.waits_for) is waits
    assert (plan.run_seconds, plan.credits, plan.usd) == (60.0, 30.0, 3.0)
    assert plan.ends_at == NINE + timedelta(seconds=60)
    one = plan_catch_up(passed[:1], CatchUpChoice(), UsualRun(20, 9000.0, 9000.0, 500.0, None), limits, NINE)
    assert not one.waits_for
    assert not plan_catch_up(passed, CatchUpChoice(), None, CatchUpLimits(run_seconds=1, credits=1), NINE).waits_for


async def test_run_time_is_learned_from_the_last_runs(clean_url: str) -> None:
    harness = await open_harness(clean_url, catch_up=CatchUpLimits(run_seconds=400))
    try:
        await harness.schedule(misfire="all", overlap="queue_all")
        harness.fake_runner.long = lambda job: job.slot == at("9:10")
        await harness.run_until(at("9:10"))
        harness.clock.set(at("9:11:40"))
        await harness.release()
        await harness.start_at(at("9:51"))
        assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran", "9:40 ran", "9:50 ran"]
        assert await open_catch_up(harness) is None  # four runs of 100 s
    finally:
        await harness.close()


async def test_slots_below_the_limit_and_the_latest_alone_fire_as_before(harness: Harness) -> None:
    assert await outage(harness, "9:45") is None
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran", "9:40 ran"]


async def test_a_schedule_spreads_its_catch_up(harness: Harness) -> None:
    """Live slots fire in between, and a slot that is alone is not delayed."""
    assert await outage(harness, "9:45", catch_up_spread_hours=1) is None
    await harness.run_until(at("9:46"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 (later)", "9:40 (later)"]
    await harness.run_until(at("10:04"))
    assert (await harness.verdicts())[2:] == ["9:30 (later)", "9:40 (later)", "9:50 ran", "10:00 ran"]
    await harness.run_until(at("10:06"))
    assert (await harness.verdicts())[2:4] == ["9:30 ran", "9:40 (later)"]
    await harness.run_until(at("10:26"))
    assert (await harness.verdicts())[3] == "9:40 ran"
    await harness.start_at(at("10:35"))
    assert (await harness.verdicts())[-2:] == ["10:20 ran", "10:30 ran"]


async def test_a_spread_ends_with_the_last_run_of_the_schedule(harness: Harness) -> None:
    assert await outage(harness, "9:45", catch_up_spread_hours=1, max_runs=3) is None
    await harness.run_until(at("11:00"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran", "9:40 missed: limit"]
    assert (await harness.record()).condition == "finished"


async def test_a_schedule_lowers_the_limit_of_the_installation_and_cannot_raise_it(harness: Harness) -> None:
    held = await outage(harness, "9:45", catch_up_approval_slots=2)
    assert held is not None
    assert held.waits_for == ["3 slots, more than 2"]
    await decide(harness, held, CatchUpChoice())
    await harness.edit("job", catch_up_approval_slots=100)
    await harness.run_until(at("9:52"))
    await harness.start_at(at("11:05"))
    held = await open_catch_up(harness)
    assert held is not None
    assert held.waits_for == ["7 slots, more than 3"]


async def test_an_approved_catch_up_is_spread_as_the_schedule_says(harness: Harness) -> None:
    held = await outage(harness, catch_up_spread_hours=6)
    decided = await decide(harness, held, CatchUpChoice())
    assert decided.spread_seconds == 6 * 3600
    assert await decide(harness, held, CatchUpChoice()) == decided
    await harness.work()
    assert (await harness.verdicts())[1:3] == ["9:20 ran", "9:30 (later)"]


async def test_schedules_after_one_that_waits_run_when_it_is_approved(clean_url: str) -> None:
    harness = await open_harness(clean_url)
    try:
        policy = {"misfire": "all", "overlap": "queue_all"}
        await harness.schedule("load", catch_up_approval_slots=1, **policy)
        await harness.schedule("check", after=["load"], **policy)
        await harness.schedule("report", after=["check"], **policy)
        await harness.run_until(at("9:12"))
        await harness.start_at(at("9:35"))
        await harness.run_until(at("9:36"))
        for name in ("check", "report"):
            assert (await harness.verdicts(name))[1:] == ["9:20 skipped: dependency", "9:30 skipped: dependency"]
        harness.fake_runner.began.clear()
        held = await harness.db.read(open_of, (await harness.record("load")).id)
        await decide(harness, held, CatchUpChoice(limit=1))
        await harness.run_until(at("9:38"))
        assert [job.target for job in harness.fake_runner.began] == ["load", "check", "report"]
        assert (await harness.verdicts("load"))[1:] == ["9:20 ran", "9:30 missed: not_approved"]
        for name in ("check", "report"):
            assert (await harness.verdicts(name))[1:] == ["9:20 ran", "9:30 skipped: dependency"]
        await harness.check()
    finally:
        await harness.close()


@pytest.mark.parametrize("misfire", ["skip", "once"])
async def test_other_policies_need_no_approval(harness: Harness, misfire: str) -> None:
    assert await outage(harness, misfire=misfire) is None


async def test_slots_are_spread_over_some_hours_and_live_slots_go_on(harness: Harness) -> None:
    held = await outage(harness, overlap="skip")
    await decide(harness, held, CatchUpChoice(spread=2 * HOUR))
    waiting = [(row.run_at - at("10:15"), row.trigger) for row in await harness.queue()]
    assert waiting == [(timedelta(minutes=20 * number), "catch_up") for number in range(6)]
    await harness.run_until(at("12:16"))
    ran = [slot for slot in await harness.verdicts() if slot.endswith(" ran")]
    assert len(ran) == 1 + 6 + 12, ran  # none of the live slots was skipped for overlap


async def test_the_same_decision_again_changes_nothing_and_another_is_refused(harness: Harness) -> None:
    held = await outage(harness)
    first = await decide(harness, held, CatchUpChoice(limit=2))
    assert await decide(harness, held, CatchUpChoice(limit=2), by="bob") == first
    for other in (None, CatchUpChoice(), CatchUpChoice(limit=2, spread=HOUR)):
        with pytest.raises(Conflict, match="approved by ada"):
            await decide(harness, held, other)
    await harness.work()
    assert [row.job_id for row in await harness.rows(select(runs).where(runs.c.trigger == "catch_up"))].__len__() == 2


async def test_only_an_approver_decides(harness: Harness) -> None:
    held = await outage(harness)
    with pytest.raises(Refused, match="approve:catch-up"):
        await decide(harness, held, CatchUpChoice(), may=lambda who: who != "catch-up")
    with pytest.raises(NotFound):
        await harness.engine.decide_catch_up(harness.org_id, "0" * 26, None, by="x", may=lambda _: True)
    assert await harness.verdicts() == HELD


async def test_a_resume_beyond_the_limit_waits_too(harness: Harness) -> None:
    await harness.schedule(misfire="skip", overlap="queue_all")
    await harness.run_until(at("9:12"))
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("10:15"))
    await harness.engine.resume_schedule(harness.org_id, "job", gap="all")
    held = await open_catch_up(harness)
    assert held is not None
    assert held.source == "resume"
    assert await harness.verdicts() == HELD
    await decide(harness, held, CatchUpChoice(Misfire.ONCE))
    await harness.run_until(at("10:20"))
    assert (await harness.verdicts())[-2:] == ["10:10 ran", "10:20 ran"]


async def test_a_resume_runs_some_slots_or_spreads_them(harness: Harness) -> None:
    await harness.schedule(overlap="queue_all")
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("9:55"))
    with pytest.raises(Invalid, match="gap"):
        await harness.engine.resume_schedule(harness.org_id, "job", gap="once", spread_hours=1)
    for spread in (0, -1, 721, float("nan")):
        with pytest.raises(Invalid, match="spread_hours"):
            await harness.engine.resume_schedule(harness.org_id, "job", gap="all", limit=2, spread_hours=spread)
    await harness.engine.resume_schedule(harness.org_id, "job", gap="all", limit=2, spread_hours=1)
    assert [row.run_at for row in await harness.queue()] == [at("9:55"), at("10:25")]
    await harness.run_until(at("10:30"))
    assert await harness.verdicts() == [
        "9:10 ran", "9:20 ran", "9:30-9:50 x3 missed: limit", "10:00 ran", "10:10 ran", "10:20 ran", "10:30 ran",
    ]  # fmt: skip


async def test_backfills_count_together_for_a_day(harness: Harness) -> None:
    assert await outage(harness, misfire="skip") is None
    assert await harness.backfill(at("9:20"), at("9:30")) == ["9:20", "9:30"]
    await harness.work()
    assert await harness.backfill(at("9:40"), at("9:50")) == []  # two and two are more than three
    held = await open_catch_up(harness)
    assert held is not None
    assert held.source == "backfill"
    assert held.waits_for == ["4 slots, more than 3", "2 of them backfilled in the last 24 hours"]
    with pytest.raises(Conflict, match=held.id):
        await harness.backfill(at("10:00"), at("10:10"))
    assert await harness.backfill(at("9:40"), at("10:00"), limit=1, dry_run=True) == ["10:00"]  # the others wait
    await decide(harness, held, CatchUpChoice())
    await harness.work()
    assert await harness.backfill(at("10:00"), at("10:00")) == ["10:00"]
    await harness.work()
    assert await harness.verdicts() == [f"{9 + n // 6}:{n % 6}0 ran" for n in range(1, 7)] + ["10:10 missed"]


async def test_what_was_left_out_waits_again_whatever_its_number(harness: Harness) -> None:
    held = await outage(harness)
    for change in ({"misfire": "once"}, {"catch_up_limit": 1}, {"misfire": "all"}):
        await harness.edit(**change)
        await harness.run_due()
    assert await harness.verdicts() == HELD
    assert await harness.backfill(at("9:20"), at("10:10")) == []  # they wait for the decision
    await decide(harness, held, None)
    assert await harness.backfill(at("9:20"), at("9:20")) == []
    again = await open_catch_up(harness)
    assert again is not None
    assert again.waits_for == ["1 slots that were not approved before"]
    await decide(harness, again, CatchUpChoice())
    await harness.work()
    assert (await harness.verdicts())[1:] == ["9:20 ran", "9:30-10:10 x5 missed: not_approved"]


async def test_a_second_outage_joins_the_open_catch_up(harness: Harness) -> None:
    first = await outage(harness)
    await harness.run_until(at("10:22"))
    await harness.start_at(at("11:15"))
    second = await open_catch_up(harness)
    assert first is not None
    assert second is not None
    assert (second.id, len(second.slots)) == (first.id, 11)
    await decide(harness, second, CatchUpChoice(limit=8))
    await harness.work()
    assert (await harness.verdicts())[-1] == "10:50-11:10 x3 missed: not_approved"


async def test_held_slots_count_towards_max_runs_when_they_fire(harness: Harness) -> None:
    held = await outage(harness, max_runs=5)
    assert held is not None
    assert len(held.slots) == 4
    assert (await harness.stats()).fired == 1
    await decide(harness, held, CatchUpChoice())
    await harness.work()
    assert (await harness.stats()).fired == 5
    assert (await harness.record()).condition == "finished"


async def test_the_catch_up_of_a_deleted_schedule_is_withdrawn(harness: Harness) -> None:
    held = await outage(harness)
    assert held is not None
    await harness.engine.delete_schedule(harness.org_id, "job")
    assert (await harness.db.read(get, harness.org_id, held.id)).status is CatchUpStatus.WITHDRAWN
    with pytest.raises(Conflict, match="withdrawn"):
        await decide(harness, held, CatchUpChoice())


async def test_the_database_keeps_one_open_catch_up_per_schedule(harness: Harness) -> None:
    held = await outage(harness)
    assert held is not None
    (row,) = await harness.rows(select(catch_ups))
    with pytest.raises(DataRefused, match=r"(?i)unique"):
        await harness.db.tx(insert_rows, catch_ups, [{**row._asdict(), "id": "1" * 26}])


def program() -> Rota:
    app = Rota()

    @app.task
    async def work() -> None:
        pass

    app.schedule("job", work, cron="*/10 * * * *", overlap="queue_all", misfire="all")
    return app


async def hold_and_decide(url: str) -> None:
    """An outage whose catch-up waits, and its approval, spread over an hour."""
    async with world(program(), database_url=url, catch_up=LIMITS) as here:
        here.clock.set(MONDAY + timedelta(minutes=65))
        count_from_here()
        await here.advance()
        await approve(here)


async def approve(here: World) -> None:
    (row,) = await here.engine.db.read(lambda tx: tx.execute(select(catch_ups)).all())
    await here.engine.decide_catch_up(
        here.org_id, row.id, CatchUpChoice(limit=4, spread=HOUR), by="ada", may=lambda _: True
    )


async def settle(url: str) -> None:
    """Another process continues and the approval is repeated: every slot has one verdict."""
    async with world(program(), database_url=url, catch_up=LIMITS, start=MONDAY + timedelta(minutes=66)) as here:
        await here.take_over()
        await here.advance()
        await approve(here)
        await here.advance(hours=2)
        audited = await audit(here.engine.db, here.org_id, None, None, here.clock.now())
        assert audited["ok"], audited["problems"]
        verdicts = await here.engine.db.read(verdicts_of)
        assert verdicts == {"approved": 4, "left out": 2, "jobs": 0}, verdicts


def verdicts_of(tx: Any) -> dict[str, int]:
    ran = tx.execute(select(runs.c.slot).where(runs.c.trigger == "catch_up")).scalars().all()
    left: list[int] = tx.execute(select(slots.c.count).where(slots.c.reason == "not_approved")).scalars().all()
    return {
        "approved": len(set(ran)), "left out": sum(left), "jobs": len(tx.execute(select(jobs)).all()),
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_crash_at_every_statement_leaves_one_decision_and_one_verdict_of_each_slot(
    clean_url: str, sqlite_template: Path
) -> None:
    every = bool(os.environ.get("ROTA_TEST_EVERY_POINT"))
    stride = 1 if every else 9
    for point in range(1 if every else 3, 500, stride):
        fresh(clean_url, sqlite_template)
        died = dies_at(point, partial(hold_and_decide, clean_url), after_set_up=True)
        assert not dies_at(NEVER, partial(settle, clean_url)), f"after a crash at point {point}"
        if not died:
            break
    assert point > 2 * stride, point
