"""What becomes of slots that passed while nobody was up, and when the schedule is due again."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from rota.db.tables import clocks, schedules
from rota.engine.maintenance import fill_counts
from rota.engine.slot_audit import audit
from tests.engine.harness import DAY, HOUR, Hands, House, at

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
    house: House, policy: dict[str, Any], expected: list[str], overlap: str
) -> None:
    await house.schedule(**policy, overlap=overlap)
    await house.live(at("9:12"))
    await house.wake_up(at("11:15"))
    assert await house.verdicts() == ["9:10 ran", *expected]
    assert await house.planned() == ("11:20", "11:20")
    await house.live(at("11:25"))
    assert (await house.verdicts())[-1] == "11:20 ran"


# the same, but up again at 11:10:30: the slot of 11:10 is within the grace, so misfire has no say about it
FRESH = [
    ({"misfire": "skip"}, ["9:20-11:00 x11 missed", "11:10 ran"]),
    ({"misfire": "once"}, ["9:20-11:00 x11 coalesced > 11:10", "11:10 ran"]),
    ({"misfire": "all", "catch_up_limit": 2}, ["9:20 ran", "9:30 ran", "9:40-11:00 x9 missed: limit", "11:10 ran"]),
]


@pytest.mark.parametrize("overlap", ALL_OVERLAPS)
@pytest.mark.parametrize(("policy", "expected"), FRESH)
async def test_the_latest_slot_is_within_the_grace(
    house: House, policy: dict[str, Any], expected: list[str], overlap: str
) -> None:
    await house.schedule(**policy, overlap=overlap)
    await house.live(at("9:12"))
    await house.wake_up(at("11:10:30"))
    assert await house.verdicts() == ["9:10 ran", *expected]
    assert await house.planned() == ("11:20", "11:20")


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
async def test_several_slots_within_the_grace(house: House, overlap: str, expected: list[str]) -> None:
    await house.schedule(cron=None, interval="20s", overlap=overlap, misfire="skip")
    await house.live(at("9:00:45"))
    await house.wake_up(at("9:02"))
    assert await house.verdicts() == ["9:00:20 ran", "9:00:40 ran", *expected]
    assert await house.planned() == ("9:02:20", "9:02:20")


async def test_a_slot_exactly_as_old_as_the_grace_is_not_late(house: House) -> None:
    await house.schedule(misfire="skip")
    await house.wake_up(at("9:11"))
    assert await house.verdicts() == ["9:10 ran"]


async def test_a_slot_older_than_the_grace_is_late(house: House) -> None:
    await house.schedule(misfire="skip")
    await house.wake_up(at("9:11:01"))
    assert await house.verdicts() == ["9:10 missed"]
    assert await house.planned() == ("9:20", "9:20")


async def test_a_delay_by_jitter_is_not_lateness(house: House) -> None:
    await house.schedule(cron="0 * * * *", misfire="skip", jitter_seconds=1800)
    await house.live(at("20:59"))
    found = await house.verdicts()
    assert len(found) >= 11
    assert all(one.endswith("ran") for one in found), found


async def test_jitter_never_changes_the_slot_nor_fires_before_it(house: House) -> None:
    await house.schedule(cron="0 * * * *", jitter_seconds=600)
    slot, due = await house.planned()
    assert slot == "10:00"
    rows = await house.queue()
    assert rows == []
    await house.live(at("10:00"))
    assert await house.verdicts() == ([] if due != "10:00" else ["10:00 ran"])
    await house.live(at("10:10"))
    assert await house.verdicts() == ["10:00 ran"]


async def test_a_gap_too_long_to_count_is_counted_by_maintenance(house: House) -> None:
    await house.schedule(cron="0 12 * * *", window_start="13:00", window_end="14:00", misfire="skip")
    await house.wake_up(at("9:00") + 3000 * DAY)
    assert (await house.verdicts())[0].endswith("xNone missed")
    while await house.db.tx(fill_counts):
        pass
    assert (await house.verdicts())[0].endswith("x3000 missed")


async def test_catch_up_stops_at_its_limit_also_when_fresh_slots_follow(house: House) -> None:
    await house.schedule(cron=None, interval="1s", misfire="all", catch_up_limit=1000, overlap="queue_all")
    house.clock.set(at("11:00"))
    await house.fire()
    rows = await house.verdicts()
    assert len(rows) == 1000 + 1 + 61
    assert [row for row in rows if "missed" in row] == ["9:16:41-10:58:59 x6139 missed: limit"]


async def test_thousands_of_fresh_slots_fire_in_portions_and_none_is_lost(house: House) -> None:
    house.engine.settings = replace(house.engine.settings, misfire_grace=HOUR)
    await house.schedule(cron=None, interval="1s", overlap="queue_all")
    house.clock.set(at("9:50"))
    await house.scheduler.step()
    assert len(await house.queue()) == 1000
    await house.fire()
    assert len(await house.queue()) == 3000


async def test_a_schedule_of_a_kind_that_nobody_runs_does_not_fire(house: House) -> None:
    await house.schedule(misfire="skip")
    await house.write(update(schedules).values(kind="graph"))
    await house.write(update(clocks).values(kind="graph"))
    await house.live(at("10:00"))
    assert await house.verdicts() == []
    assert await house.planned() == ("9:10", "9:10")
    house.engine.runners = {**house.engine.runners, "graph": Hands("graph")}  # somebody who runs it comes up
    await house.fire_elsewhere()
    assert await house.verdicts() == ["9:10-9:50 x5 missed", "10:00 (ready)"]


async def test_a_batch_full_of_due_schedules_is_followed_by_the_next(house: House) -> None:
    bodies = [{"name": f"job{n}", "target": "job", "cron_expression": "*/10 * * * *"} for n in range(450)]
    await house.engine.create_schedules(house.org_id, bodies)
    await house.live(at("9:10"))
    assert len(await house.fired_slots("job")) == 450


async def test_a_run_takes_its_input_from_the_moment_it_fired(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="queue_all", input={"n": 1})
    await house.live(at("9:20"))
    await house.edit(input={"n": 2})
    await house.live(at("9:30"))
    await house.release()
    assert [job.payload for job in house.hands.began] == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert await house.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran"]


async def test_the_audit_lists_slots_that_are_overdue_beyond_the_grace(house: House) -> None:
    await house.schedule("report", "0 * * * *")
    await house.live(at("9:30"))
    house.clock.set(at("10:01"))
    proof = await audit(house.db, house.org_id, None, None, house.clock.now())
    assert (proof["ok"], proof["overdue"]) == (True, [])
    house.clock.set(at("10:02"))
    proof = await audit(house.db, house.org_id, None, None, house.clock.now())
    assert proof["ok"]
    assert proof["overdue"] == ["schedule report: due at 2026-05-04T10:00:00+00:00, not fired for 120 s"]
    await house.act()
    assert (await audit(house.db, house.org_id, None, None, house.clock.now()))["overdue"] == []
