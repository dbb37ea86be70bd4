"""Verdicts of slots that passed during a downtime, and when the schedule is due again."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from rota.db.tables import clocks, schedules
from rota.engine.maintenance import fill_counts
from rota.engine.slot_audit import audit
from tests.engine.harness import DAY, HOUR, FakeRunner, Harness, at

ALL_OVERLAPS = ["queue_one", "queue_all", "skip", "allow", "replace"]

# two hours without anybody, from 9:12 on; up again at 11:15: the latest slot is five minutes old
LATE = [
    ({"misfire": "skip"}, ["9:20-11:10 x12 missed"]),
    ({"misfire": "once"}, ["9:20-11:00 x11 coalesced > 11:10", "11:10 ran"]),
    (
        {"misfire": "all", "catch_up_limit": 3},
        ["9:20 ran", "9:30 ran", "9:40 ran", "9:50-11:10 x9 missed: limit"],
    ),
    ({"misfire": "all"}, [f"{9 + n // 6}:{n % 6}0 ran" for n in range(2, 14)]),
]


@pytest.mark.parametrize("overlap", ALL_OVERLAPS)
@pytest.mark.parametrize(("policy", "expected"), LATE)
async def test_two_hours_without_anybody(
    harness: Harness, policy: dict[str, Any], expected: list[str], overlap: str
) -> None:
    await harness.schedule(**policy, overlap=overlap)
    await harness.run_until(at("9:12"))
    await harness.start_at(at("11:15"))
    assert await harness.verdicts() == ["9:10 ran", *expected]
    assert await harness.planned() == ("11:20", "11:20")
    await harness.run_until(at("11:25"))
    assert (await harness.verdicts())[-1] == "11:20 ran"


# the same, but up again at 11:10:30: the slot of 11:10 is within the grace, so misfire has no say about it
FRESH = [
    ({"misfire": "skip"}, ["9:20-11:00 x11 missed", "11:10 ran"]),
    ({"misfire": "once"}, ["9:20-11:00 x11 coalesced > 11:10", "11:10 ran"]),
    ({"misfire": "all", "catch_up_limit": 2}, ["9:20 ran", "9:30 ran", "9:40-11:00 x9 missed: limit", "11:10 ran"]),
]


@pytest.mark.parametrize("overlap", ALL_OVERLAPS)
@pytest.mark.parametrize(("policy", "expected"), FRESH)
async def test_the_latest_slot_is_within_the_grace(
    harness: Harness, policy: dict[str, Any], expected: list[str], overlap: str
) -> None:
    await harness.schedule(**policy, overlap=overlap)
    await harness.run_until(at("9:12"))
    await harness.start_at(at("11:10:30"))
    assert await harness.verdicts() == ["9:10 ran", *expected]
    assert await harness.planned() == ("11:20", "11:20")


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("queue_one", ["9:01-9:01:40 x3 coalesced > 9:02", "9:02 ran"]),
        ("skip", ["9:01-9:01:40 x3 coalesced > 9:02", "9:02 ran"]),
        ("replace", ["9:01-9:01:40 x3 coalesced > 9:02", "9:02 ran"]),
        ("queue_all", ["9:01 ran", "9:01:20 ran", "9:01:40 ran", "9:02 ran"]),
        ("allow", ["9:01 ran", "9:01:20 ran", "9:01:40 ran", "9:02 ran"]),
    ],
)
async def test_several_slots_within_the_grace(harness: Harness, overlap: str, expected: list[str]) -> None:
    await harness.schedule(cron=None, interval="20s", overlap=overlap, misfire="skip")
    await harness.run_until(at("9:00:45"))
    await harness.start_at(at("9:02"))
    assert await harness.verdicts() == ["9:00:20 ran", "9:00:40 ran", *expected]
    assert await harness.planned() == ("9:02:20", "9:02:20")


async def test_a_slot_exactly_as_old_as_the_grace_is_not_late(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    await harness.start_at(at("9:11"))
    assert await harness.verdicts() == ["9:10 ran"]


async def test_a_slot_older_than_the_grace_is_late(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    await harness.start_at(at("9:11:01"))
    assert await harness.verdicts() == ["9:10 missed"]
    assert await harness.planned() == ("9:20", "9:20")


async def test_a_delay_by_jitter_is_not_lateness(harness: Harness) -> None:
    await harness.schedule(cron="0 * * * *", misfire="skip", jitter_seconds=1800)
    await harness.run_until(at("20:59"))
    verdicts = await harness.verdicts()
    assert len(verdicts) >= 11
    assert all(verdict.endswith("ran") for verdict in verdicts), verdicts


async def test_jitter_never_changes_the_slot_nor_fires_before_it(harness: Harness) -> None:
    await harness.schedule(cron="0 * * * *", jitter_seconds=600)
    slot, due = await harness.planned()
    assert slot == "10:00"
    rows = await harness.queue()
    assert rows == []
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ([] if due != "10:00" else ["10:00 ran"])
    await harness.run_until(at("10:10"))
    assert await harness.verdicts() == ["10:00 ran"]


async def test_a_gap_too_long_to_count_is_counted_by_maintenance(harness: Harness) -> None:
    await harness.schedule(cron="0 12 * * *", window_start="13:00", window_end="14:00", misfire="skip")
    await harness.start_at(at("9:00") + 3000 * DAY)
    assert (await harness.verdicts())[0].endswith("xNone missed")
    while await harness.db.tx(fill_counts):
        pass
    assert (await harness.verdicts())[0].endswith("x3000 missed")


async def test_catch_up_stops_at_its_limit_also_when_fresh_slots_follow(harness: Harness) -> None:
    await harness.schedule(cron=None, interval="1s", misfire="all", catch_up_limit=1000, overlap="queue_all")
    harness.clock.set(at("11:00"))
    await harness.fire()
    rows = await harness.verdicts()
    assert len(rows) == 1000 + 1 + 61
    assert [row for row in rows if "missed" in row] == ["9:16:41-10:58:59 x6139 missed: limit"]


async def test_thousands_of_fresh_slots_fire_in_portions_and_none_is_lost(harness: Harness) -> None:
    harness.engine.settings = replace(harness.engine.settings, misfire_grace=HOUR)
    await harness.schedule(cron=None, interval="1s", overlap="queue_all")
    harness.clock.set(at("9:50"))
    await harness.scheduler.step()
    assert len(await harness.queue()) == 1000
    await harness.fire()
    assert len(await harness.queue()) == 3000


async def test_a_schedule_of_a_kind_without_a_live_worker_does_not_fire(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    await harness.write(update(schedules).values(kind="graph"))
    await harness.write(update(clocks).values(kind="graph"))
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == []
    assert await harness.planned() == ("9:10", "9:10")
    harness.engine.runners = {**harness.engine.runners, "graph": FakeRunner("graph")}  # a worker that runs it starts
    await harness.fire_elsewhere()
    assert await harness.verdicts() == ["9:10-9:50 x5 missed", "10:00 (ready)"]


async def test_a_batch_full_of_due_schedules_is_followed_by_the_next(harness: Harness) -> None:
    bodies = [{"name": f"job{n}", "target": "job", "cron_expression": "*/10 * * * *"} for n in range(450)]
    await harness.engine.create_schedules(harness.org_id, bodies)
    await harness.run_until(at("9:10"))
    assert len(await harness.fired_slots("job")) == 450


async def test_a_run_has_the_input_of_the_time_it_was_fired(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_all", input={"n": 1})
    await harness.run_until(at("9:20"))
    await harness.edit(input={"n": 2})
    await harness.run_until(at("9:30"))
    await harness.release()
    assert [job.payload for job in harness.fake_runner.began] == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran"]


async def test_the_audit_lists_slots_that_are_overdue_beyond_the_grace(harness: Harness) -> None:
    await harness.schedule("report", "0 * * * *")
    await harness.run_until(at("9:30"))
    harness.clock.set(at("10:01"))
    proof = await audit(harness.db, harness.org_id, None, None, harness.clock.now())
    assert (proof["ok"], proof["overdue"]) == (True, [])
    harness.clock.set(at("10:02"))
    proof = await audit(harness.db, harness.org_id, None, None, harness.clock.now())
    assert proof["ok"]
    assert proof["overdue"] == ["schedule report: due at 2026-05-04T10:00:00+00:00, not fired for 120 s"]
    await harness.run_due()
    assert (await audit(harness.db, harness.org_id, None, None, harness.clock.now()))["overdue"] == []
