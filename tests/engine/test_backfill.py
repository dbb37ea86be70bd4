"""Firing slots of the past, by consent."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from rota.core.errors import Conflict, Invalid
from rota.db.statement import insert_rows
from rota.db.tables import queues, runs, slots
from rota.engine import backfill
from rota.engine import slots as slot_rows
from rota.engine.maintenance import Maintenance
from tests.engine.harness import DAY, HOUR, Harness, at


async def outage(harness: Harness, **fields: Any) -> None:
    """9:10 ran, 9:20 to 10:10 were missed, the next is 10:20."""
    await harness.schedule(misfire="skip", **fields)
    await harness.run_until(at("9:12"))
    await harness.start_at(at("10:15"))
    assert await harness.verdicts() == ["9:10 ran", "9:20-10:10 x6 missed"]


async def test_a_dry_run_lists_the_slots_and_changes_nothing(harness: Harness) -> None:
    await outage(harness)
    assert await harness.backfill(at("9:05"), at("9:40"), dry_run=True) == ["9:20", "9:30", "9:40"]
    assert await harness.verdicts() == ["9:10 ran", "9:20-10:10 x6 missed"]
    assert await harness.queue() == []


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("9:20", "10:10", ["9:20 ran", "9:30 ran", "9:40 ran", "9:50 ran", "10:00 ran", "10:10 ran"]),
        ("9:35", "9:45", ["9:20-9:30 x2 missed", "9:40 ran", "9:50-10:10 x3 missed"]),
        ("9:20", "9:20", ["9:20 ran", "9:30-10:10 x5 missed"]),
        ("10:10", "10:10", ["9:20-10:00 x5 missed", "10:10 ran"]),
        ("9:25", "9:30", ["9:20 missed", "9:30 ran", "9:40-10:10 x4 missed"]),
    ],
)
async def test_slots_leave_the_gap_they_lie_in(harness: Harness, since: str, until: str, expected: list[str]) -> None:
    await outage(harness)
    await harness.backfill(at(since), at(until))
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", *expected]
    assert await harness.planned() == ("10:20", "10:20")


async def test_only_slots_that_never_ran_unless_asked_to_reprocess(harness: Harness) -> None:
    await outage(harness)
    assert await harness.backfill(at("9:05"), at("9:20")) == ["9:20"]
    await harness.work()
    assert await harness.backfill(at("9:05"), at("9:20")) == []
    assert await harness.backfill(at("9:05"), at("9:20"), reprocess=True) == ["9:10", "9:20"]
    await harness.work()
    ledger = await harness.rows(select(runs).where(runs.c.slot == at("9:10")).order_by(runs.c.attempt))
    assert [(row.attempt, row.trigger) for row in ledger] == [(1, "schedule:*/10 * * * *"), (2, "backfill")]
    assert ledger[1].retry_of == ledger[0].id
    assert ledger[1].job_id != ledger[0].job_id


async def test_never_the_next_slot_nor_one_after_it(harness: Harness) -> None:
    await outage(harness)
    assert (await harness.backfill(at("10:05"), at("12:00")))[-1] == "10:10"


async def test_the_limit_takes_the_oldest(harness: Harness) -> None:
    await outage(harness)
    assert await harness.backfill(at("9:05"), at("12:00"), limit=2) == ["9:20", "9:30"]
    with pytest.raises(Invalid):
        await harness.backfill(at("9:05"), at("12:00"), limit=0)
    with pytest.raises(Invalid):
        await harness.backfill(at("9:30"), at("9:20"))


async def test_slots_on_their_way_are_left_to_their_job(harness: Harness) -> None:
    await outage(harness)
    assert len(await harness.backfill(at("9:05"), at("12:00"))) == 6
    assert await harness.backfill(at("9:05"), at("12:00"), reprocess=True) == ["9:10"]
    await harness.work()


@pytest.mark.parametrize("overlap", ["queue_one", "queue_all", "skip", "allow", "replace"])
async def test_one_after_the_other_behind_live_slots_and_never_displaced(harness: Harness, overlap: str) -> None:
    await outage(harness, overlap=overlap)
    harness.fake_runner.long = lambda job: True
    await harness.backfill(at("9:20"), at("9:40"))
    await harness.work()
    assert await harness.fired_slots() == ["9:10", "9:20"]  # one at a time
    await harness.run_until(at("10:20"))
    for _ in range(6):
        await harness.release()
    ran = await harness.fired_slots()
    if overlap == "replace":
        assert ran == ["9:10", "9:20", "10:20", "9:30", "9:40"]
    elif overlap == "skip":
        assert ran == ["9:10", "9:20", "9:30", "9:40"]
    else:
        assert ran == ["9:10", "9:20", "10:20", "9:30", "9:40"]


async def test_a_newer_live_slot_keeps_its_place_before_a_backfill(harness: Harness) -> None:
    await outage(harness)
    await harness.db.tx(insert_rows, queues, [{"org_id": harness.org_id, "name": "default", "paused_at": at("9:00")}])
    await harness.run_until(at("10:21"))
    await harness.backfill(at("9:20"), at("9:30"))
    await harness.run_until(at("10:31"))  # 10:20 waited for the queue and gives way to 10:30
    await harness.write(update(queues).values(paused_at=None))
    await harness.work()
    assert await harness.fired_slots() == ["9:10", "10:30", "9:20", "9:30"]


async def test_slots_before_the_schedule_was_made(harness: Harness) -> None:
    await harness.schedule(cron="0 * * * *")
    assert await harness.backfill(at("6:30"), at("8:30")) == ["7:00", "8:00"]
    await harness.work()
    assert await harness.verdicts() == ["7:00 ran", "8:00 ran"]
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["7:00 ran", "8:00 ran", "10:00 ran"]


async def test_the_past_has_the_slots_of_the_trigger_that_ruled_then(harness: Harness) -> None:
    await outage(harness)
    await harness.edit(cron_expression="*/15 * * * *")
    await harness.run_until(at("10:35"))
    assert await harness.backfill(at("9:25"), at("9:45")) == ["9:30", "9:40"]
    await harness.work()
    assert await harness.verdicts() == [
        "9:10 ran",
        "9:20 missed",
        "9:30 ran",
        "9:40 ran",
        "9:50-10:10 x3 missed",
        "10:30 ran",
    ]


async def test_a_slot_that_was_skipped_by_its_deadline_did_not_run(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_all", start_deadline_seconds=60)
    await harness.run_until(at("9:29"))
    await harness.release()
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: deadline"]
    assert await harness.backfill(at("9:05"), at("9:25")) == ["9:20"]
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_coalesced_and_skipped_slots_can_be_asked_for(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule()
    await harness.run_until(at("9:35"))
    await harness.release()
    await harness.engine.skip_next(harness.org_id, "job")
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 coalesced > 9:30", "9:30 ran", "9:40 skipped: operator"]
    assert await harness.backfill(at("9:05"), at("9:45")) == ["9:20", "9:40"]
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran", "9:40 ran"]


async def test_a_paused_schedule_can_be_backfilled_only_up_to_its_pause(harness: Harness) -> None:
    await outage(harness)
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("11:00"))
    assert (await harness.backfill(at("9:05"), at("11:00")))[-1] == "10:10"
    await harness.work()


async def test_nothing_that_retention_has_taken_can_fire_again(harness: Harness) -> None:
    await outage(harness)
    await harness.db.tx(lambda tx: tx.execute(delete(runs)))  # a slot is kept as long as its runs
    await harness.db.tx(slot_rows.prune, at("9:15"), 100)
    assert await harness.verdicts() == ["9:20-10:10 x6 missed"]
    assert await harness.backfill(at("9:05"), at("9:15"), reprocess=True) == []


async def test_a_slot_whose_runs_retention_has_taken_still_ran(harness: Harness) -> None:
    await harness.schedule(cron="0 * * * *")
    await harness.run_until(at("10:30"))
    harness.clock.set(harness.clock.now() + 40 * DAY)
    await harness.fire()
    await Maintenance(harness.engine, harness.worker.id).prune(harness.clock.now())
    assert await harness.rows(select(runs)) == []
    assert (await harness.rows(select(slots).where(slots.c.slot == at("10:00"))))[0].job_id is not None
    await harness.check()
    assert await harness.backfill(at("9:30"), at("10:30")) == []


async def test_a_long_backfill_of_a_long_gap(harness: Harness) -> None:
    await harness.schedule(cron="* * * * *", misfire="skip")
    await harness.start_at(at("9:00") + 20 * HOUR)
    harness.fake_runner.long = lambda job: True
    assert len(await harness.backfill(at("9:05"), at("9:00") + 20 * HOUR, limit=500)) == 500
    rows = await harness.rows(select(slots).where(slots.c.job_id.is_(None)).order_by(slots.c.slot))
    assert [row.count for row in rows] == [4, 1200 - 4 - 500 - 2, 1]  # of the two within the grace one fired


async def test_an_interval_has_slots_before_its_anchor(harness: Harness) -> None:
    await harness.schedule(cron=None, interval="1h", anchor=at("9:20").isoformat())
    assert await harness.backfill(at("6:00"), at("8:30"), dry_run=True) == ["6:20", "7:20", "8:20"]
    assert await harness.backfill(at("7:00"), at("9:00")) == ["7:20", "8:20"]
    await harness.work()
    await harness.run_until(at("9:30"))
    assert await harness.verdicts() == ["7:20 ran", "8:20 ran", "9:20 ran"]


async def test_a_window_does_not_backfill_slots_that_were_due_before_the_schedule_existed(harness: Harness) -> None:
    await harness.schedule(cron="0 8 * * *", window_start="10:00", window_end="11:00")
    assert await harness.planned() == ("+1 10:00", "+1 10:00")
    await harness.run_until(at("12:00"))
    assert await harness.verdicts() == []
    assert await harness.backfill(at("9:05"), at("12:00")) == []
    harness.clock.set(at("10:30") + DAY)
    await harness.fire()
    await harness.check()  # the audit expects the same slots
    assert await harness.backfill(at("9:05"), at("11:00") + DAY, reprocess=True, dry_run=True) == []  # it is on its way
    await harness.work()
    assert await harness.verdicts() == ["+1 10:00 ran"]
    assert await harness.backfill(at("9:05"), at("11:00") + DAY, reprocess=True) == ["+1 10:00"]
    await harness.work()


async def test_slots_are_computed_before_the_transaction_that_fires_them(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes no lock: another command commits while it runs, and the backfill fires what is still unfired."""
    await outage(harness)
    loop, unfired, others = asyncio.get_running_loop(), backfill.PastSlots.unfired, list[list[str]]()

    def search(past: backfill.PastSlots, limit: int, *, reprocess: bool) -> list[datetime]:
        slots = unfired(past, limit, reprocess=reprocess)
        if not others:
            others.append([])
            other = harness.backfill(at("9:20"), at("9:20"))
            others.append(asyncio.run_coroutine_threadsafe(other, loop).result(timeout=30))
        return slots

    monkeypatch.setattr(backfill.PastSlots, "unfired", search)
    assert await harness.backfill(at("9:15"), at("9:40")) == ["9:30", "9:40"]
    assert others == [[], ["9:20"]]
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran", "9:40 ran", "9:50-10:10 x3 missed"]


async def test_a_backfill_of_a_schedule_that_is_edited_at_the_same_time_is_refused(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await outage(harness)
    loop, unfired = asyncio.get_running_loop(), backfill.PastSlots.unfired

    def search(past: backfill.PastSlots, limit: int, *, reprocess: bool) -> list[datetime]:
        asyncio.run_coroutine_threadsafe(harness.edit(cron_expression="5 * * * *"), loop).result(timeout=30)
        return unfired(past, limit, reprocess=reprocess)

    monkeypatch.setattr(backfill.PastSlots, "unfired", search)
    with pytest.raises(Conflict, match="edited while its slots were computed"):
        await harness.backfill(at("9:15"), at("9:40"))
    assert await harness.queue() == []
