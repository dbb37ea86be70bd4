"""Freeze windows on the engine: what they do to slots, and what a change of one does."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.freeze import FreezeWindow
from rota.core.timing.triggers import parse_instant
from rota.engine import freezes
from rota.reports import why
from tests.engine.harness import Harness, at


async def announce(harness: Harness, start: str, end: str, **fields: Any) -> str:
    body = {"name": f"stop-{start}", "starts_at": at(start), "ends_at": at(end), "reason": "release", **fields}
    return await harness.engine.add_freeze_window(harness.org_id, body)


async def explain(harness: Harness, slot: datetime, name: str = "job") -> str:
    answer = await harness.db.read(why.of_slot, harness.org_id, name, slot, harness.clock.now())
    return " ".join(answer["sentences"])


async def test_slots_of_a_window_are_skipped_with_its_name_and_reason(harness: Harness) -> None:
    await harness.schedule()
    await announce(harness, "9:20", "9:40")
    assert "will be skipped" in await explain(harness, at("9:30"))
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: freeze", "9:30 skipped: freeze", "9:40 ran"]
    assert "because a freeze window covered it (freeze) (stop-9:20: release)" in await explain(harness, at("9:30"))
    assert (await harness.stats()).skipped_count == 2


async def test_a_window_covers_schedules_by_kind_queue_and_tag(harness: Harness) -> None:
    covered: dict[str, Any] = {"a": {"tags": ["night"]}, "b": {"queue": "slow"}, "c": {}}
    for name, fields in covered.items():
        await harness.schedule(name, **fields)
    await announce(harness, "9:05", "9:15", tag="night")
    await announce(harness, "9:15", "9:25", queue="slow")
    await announce(harness, "9:25", "9:35", kind="task")
    await announce(harness, "9:35", "9:45", kind="task", tag="night", queue="slow")
    await harness.run_until(at("9:45"))
    skipped = {name: [text for text in await harness.verdicts(name) if "freeze" in text] for name in "abc"}
    assert skipped == {
        "a": ["9:10 skipped: freeze", "9:30 skipped: freeze"],
        "b": ["9:20 skipped: freeze", "9:30 skipped: freeze"],
        "c": ["9:30 skipped: freeze"],
    }


@pytest.mark.parametrize(
    ("overlap", "verdicts"),
    [
        ("queue_one", ["9:10 ran", "9:20-9:30 x2 coalesced > 9:40", "9:40 ran"]),
        ("queue_all", ["9:10 ran", "9:20 ran", "9:30 ran", "9:40 ran"]),
    ],
)
async def test_held_slots_are_due_at_the_end_of_the_window(harness: Harness, overlap: str, verdicts: list[str]) -> None:
    await harness.schedule(overlap=overlap, misfire="skip")
    await announce(harness, "9:15", "9:45", mode="hold")
    await harness.run_until(at("9:44"))
    assert await harness.verdicts() == ["9:10 ran"]
    assert await harness.planned() == ("9:20", "9:45")
    assert "is due at its end" in await explain(harness, at("9:20"))
    await harness.run_until(at("9:46"))
    assert await harness.verdicts() == verdicts


async def test_a_window_holds_slots_of_a_schedule_whose_run_has_not_ended(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="skip")
    await announce(harness, "9:15", "9:25", mode="hold")
    await harness.run_until(at("9:24"))
    assert await harness.planned() == ("9:20", "9:25")
    await harness.run_until(at("9:25"))
    assert await harness.verdicts() == ["9:10 (running)", "9:20 skipped: overlap"]


async def test_held_slots_are_missed_if_nothing_ran_at_the_end_of_the_window(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    await announce(harness, "9:15", "9:45", mode="hold")
    await harness.run_until(at("9:30"))
    await harness.start_at(at("9:55"))
    assert await harness.verdicts() == ["9:10 ran", "9:20-9:40 x3 missed", "9:50 missed"]


async def test_slots_of_an_outage_that_a_window_covers_are_skipped_and_the_others_missed(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    await announce(harness, "9:25", "9:45")
    await harness.start_at(at("10:05"))
    assert await harness.verdicts() == ["9:10-9:20 x2 missed", "9:30-9:40 x2 skipped: freeze", "9:50-10:00 x2 missed"]


async def test_deleting_or_shortening_a_window_releases_the_slots_that_it_holds(harness: Harness) -> None:
    for name, tag in (("a", "x"), ("b", "y")):
        await harness.schedule(name, tags=[tag])
    await announce(harness, "9:05", "11:00", mode="hold", tag="x", name="first")
    await announce(harness, "9:05", "11:30", mode="hold", tag="y", name="second")
    await harness.run_until(at("9:25"))
    await harness.engine.delete_freeze_window(harness.org_id, "first")
    await harness.engine.edit_freeze_window(harness.org_id, "second", {"ends_at": at("9:35")})
    await harness.run_due()
    assert await harness.verdicts("a") == ["9:10 coalesced > 9:20", "9:20 ran"]
    assert await harness.verdicts("b") == []
    assert await harness.planned("b") == ("9:10", "9:35")
    await harness.run_until(at("9:36"))
    assert (await harness.verdicts("b"))[-1] == "9:30 ran"


async def test_a_plan_made_before_a_window_was_announced_is_not_carried_out(harness: Harness) -> None:
    await harness.schedule()
    harness.clock.set(at("9:10"))
    batch = await harness.scheduler.poll()
    await announce(harness, "9:10", "9:15")
    await harness.scheduler.fire_due(batch)
    assert await harness.verdicts() == []
    await harness.run_due()
    assert await harness.verdicts() == ["9:10 skipped: freeze"]


async def test_requests_of_people_run_in_a_window_and_slots_of_it_can_be_backfilled(harness: Harness) -> None:
    await harness.schedule()
    await announce(harness, "9:05", "9:40")
    await harness.run_until(at("9:25"))
    (warning,) = await harness.engine.freeze_warnings(harness.org_id, "job", harness.clock.now())
    assert warning.startswith("freeze stop-9:05: release is in effect until 2026-05-04T09:40:00+00:00")
    await harness.run_now()
    assert await harness.backfill(at("9:05"), at("9:25")) == ["9:10", "9:20"]
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]
    assert await harness.engine.freeze_warnings(harness.org_id, "job", at("9:40")) == []


async def test_resuming_a_paused_schedule_skips_the_slots_of_a_window(harness: Harness) -> None:
    await harness.schedule(overlap="queue_all")
    await announce(harness, "9:15", "9:35")
    await harness.engine.pause_schedule(harness.org_id, "job")
    harness.clock.set(at("9:45"))
    await harness.engine.resume_schedule(harness.org_id, "job", gap="all")
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20-9:30 x2 skipped: freeze", "9:40 ran"]


async def test_a_window_from_now_begins_now_although_the_request_took_seconds(harness: Harness) -> None:
    now = harness.clock.now()
    await announce(harness, "9:20", "9:40", starts_at=now - timedelta(seconds=5))
    (window,) = await harness.db.read(windows_of, harness.org_id)
    assert window.starts_at == now


async def test_invalid_windows_are_refused_and_nothing_is_stored(harness: Harness) -> None:
    for fields, text in (
        ({"starts_at": at("8:00")}, "starts_at: '2026-05-04T08:00:00+00:00' lies in the past"),
        ({"ends_at": at("9:10")}, "ends_at: '2026-05-04T09:10:00+00:00' must lie after `starts_at`"),
        ({"ends_at": parse_instant("2028-01-01T00:00:00Z", "x")}, "announce several windows"),
        ({"kind": "graph"}, "kind: 'graph' is not one of task"),
        ({"mode": "maybe"}, "mode: 'maybe' is not one of"),
    ):
        with pytest.raises(Invalid) as refused:
            await announce(harness, "9:20", "9:40", **fields)
        assert text in str(refused.value)
    assert await harness.db.read(windows_of, harness.org_id) == ()
    await announce(harness, "9:05", "9:40")
    with pytest.raises(Conflict, match="already exists"):
        await announce(harness, "9:05", "9:50")
    harness.clock.set(at("9:10"))
    with pytest.raises(Invalid, match="cannot change: the window has begun"):
        await harness.engine.edit_freeze_window(harness.org_id, "stop-9:05", {"starts_at": at("9:20")})
    harness.clock.set(at("9:50"))
    with pytest.raises(Conflict, match="has ended"):
        await harness.engine.edit_freeze_window(harness.org_id, "stop-9:05", {"reason": "x"})
    other = await harness.add_org("other")
    with pytest.raises(NotFound):
        await harness.engine.delete_freeze_window(other, "stop-9:05")


def windows_of(tx: Any, org_id: str) -> tuple[FreezeWindow, ...]:
    return tuple(freezes.between(tx, [org_id], at("0:00"), None).get(org_id, ()))
