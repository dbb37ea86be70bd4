"""Calendars and the schedules that follow them. The clock begins on Monday, 2026-05-04, 09:00 UTC."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.timing import stored
from rota.db.tables import calendars, clocks, schedules, trigger_spans
from rota.engine import calendars as store
from rota.engine.maintenance import Maintenance
from rota.reports import calendars as reports
from rota.reports import why
from tests.engine.harness import DAY, Harness, at


async def add(harness: Harness, name: str = "closed", **fields: Any) -> str:
    source = fields or {"dates": ["2026-05-05"]}
    return await harness.engine.add_calendar(harness.org_id, {"name": name, **source})


async def next_slot(harness: Harness, name: str = "job") -> str:
    of_name = select(clocks.c.next_slot).join(schedules, schedules.c.id == clocks.c.schedule_id)
    (row,) = await harness.rows(of_name.where(schedules.c.name == name))
    return str(row.next_slot.isoformat())


async def test_slots_on_holidays_do_not_exist_and_the_audit_agrees(harness: Harness) -> None:
    await add(harness)
    await harness.schedule(cron="0 12 * * *", calendar="closed")
    await harness.run_until(at("9:00") + 3 * DAY)
    assert [verdict.split()[-1] for verdict in await harness.verdicts()] == ["ran", "ran"]
    explained = await harness.db.read(
        why.of_slot, harness.org_id, "job", at("12:00") + DAY, harness.clock.now(), harness.engine.runners
    )
    assert explained["sentences"] == [
        "2026-05-05 is a holiday of calendar closed, and on_holiday of schedule job is skip: it has no slots."
    ]


async def test_slots_move_to_the_next_working_day(harness: Harness) -> None:
    await add(harness, dates=["2026-05-08"])  # a Friday
    await harness.schedule(cron="0 12 8 * *", calendar="closed", on_holiday="next")
    assert await next_slot(harness) == "2026-05-11T12:00:00+00:00"


async def test_an_edited_calendar_plans_its_schedules_anew_and_keeps_the_past(harness: Harness) -> None:
    await add(harness)
    await harness.schedule(cron="0 12 * * *", calendar="closed")
    await harness.run_until(at("9:00") + 2 * DAY)
    await harness.engine.edit_calendar(harness.org_id, "closed", {"dates": ["2026-05-06", "2026-05-07"]})
    assert await next_slot(harness) == "2026-05-08T12:00:00+00:00"
    spans = await harness.rows(select(trigger_spans).order_by(trigger_spans.c.from_at))
    dates = [stored.dump(stored.load(span.timing))["calendar"]["holidays"] for span in spans]  # type: ignore[index]
    assert dates == [["2026-05-05"], ["2026-05-06", "2026-05-07"]]
    await harness.check()


async def test_maintenance_finishes_an_edit_that_a_crash_interrupted(harness: Harness) -> None:
    calendar_id = await add(harness)
    await harness.schedule(cron="0 12 * * *", calendar="closed")
    values = {"holidays": {"2026-05-04": "", "2026-05-05": ""}}
    await harness.db.tx(store.change, harness.org_id, calendar_id, values, harness.clock.now())  # no schedule yet
    assert await next_slot(harness) == "2026-05-04T12:00:00+00:00"
    await Maintenance(harness.engine).reconcile()
    assert await next_slot(harness) == "2026-05-06T12:00:00+00:00"


async def test_maintenance_appends_years_without_a_new_trigger_span(harness: Harness) -> None:
    calendar_id = await add(harness, "norway", holidays="NO")
    await harness.schedule(cron="0 12 17 5 *", calendar="norway", on_holiday="next")
    (before,) = await harness.rows(select(calendars))
    known = {day: name for day, name in before.holidays.items() if day < "2027"}
    short = {"holidays": known, "known_until": "2026-12-31", "revision": 2}
    await harness.write(update(calendars).where(calendars.c.id == calendar_id).values(short))
    await harness.engine.adopt_calendars()
    spans = len(await harness.rows(select(trigger_spans)))
    await Maintenance(harness.engine).reconcile()
    (after,) = await harness.rows(select(calendars))
    assert after.known_until == "2036-12-31"
    assert after.holidays == before.holidays
    assert len(await harness.rows(select(trigger_spans))) == spans
    (row,) = await harness.rows(select(schedules))
    assert row.calendar_revision == after.revision == 3
    assert await next_slot(harness) == "2026-05-18T12:00:00+00:00"  # 17 May 2026 is a Sunday


async def test_a_calendar_in_use_cannot_be_deleted(harness: Harness) -> None:
    await add(harness)
    await harness.schedule(calendar="closed")
    with pytest.raises(Conflict, match="calendar 'closed' is used by job"):
        await harness.engine.delete_calendar(harness.org_id, "closed")
    await harness.edit(calendar=None)
    await harness.engine.delete_calendar(harness.org_id, "closed")
    with pytest.raises(NotFound):
        await harness.db.read(reports.calendar, harness.org_id, "closed")


async def test_a_calendar_of_another_org_is_not_found(harness: Harness) -> None:
    other = await harness.add_org("other")
    await harness.engine.add_calendar(other, {"name": "theirs", "dates": ["2026-05-05"]})
    with pytest.raises(Invalid, match="calendar: 'theirs' not found"):
        await harness.schedule(calendar="theirs")
    with pytest.raises(NotFound):
        await harness.db.read(reports.calendar, harness.org_id, "theirs")
    with pytest.raises(NotFound):
        await harness.engine.delete_calendar(harness.org_id, "theirs")


async def test_names_are_unique_per_org(harness: Harness) -> None:
    await add(harness)
    with pytest.raises(Conflict, match="already exists"):
        await add(harness)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"holidays": "ZZ"}, "is not a known country"),
        ({"holidays": "DE-XX"}, "has an unknown subdivision"),
        ({"exchange": "NOPE"}, "is not a known exchange"),
        ({"ical": "garbage"}, "is not an iCal file"),
        ({"dates": ["2026-02-30"]}, "must be a date"),
        ({"dates": ["2026-12-24"], "holidays": "NO"}, "cannot be combined"),
        ({}, "is missing"),
    ],
)
async def test_a_bad_source_is_refused_and_nothing_is_stored(
    harness: Harness, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        await harness.engine.add_calendar(harness.org_id, {"name": "bad", **fields})
    assert await harness.db.read(reports.list_calendars, harness.org_id) == []


async def test_an_interval_rests_on_holidays(harness: Harness) -> None:
    await add(harness, dates=["2026-05-04"])
    await harness.schedule(cron=None, interval="1h", calendar="closed")
    assert await next_slot(harness) == "2026-05-05T00:00:00+00:00"


async def test_a_recurrence_rule_fires_and_ends_by_its_count(harness: Harness) -> None:
    await harness.schedule(cron=None, rrule="FREQ=HOURLY;COUNT=12;BYMINUTE=0")  # counted from midnight
    await harness.run_until(at("9:00") + timedelta(hours=6))
    assert await harness.verdicts() == ["10:00 ran", "11:00 ran"]
    assert (await harness.record()).condition == "finished"


async def test_renaming_a_schedule_keeps_the_values_of_h(harness: Harness) -> None:
    await harness.schedule(cron="H H * * *")
    before = await next_slot(harness)
    await harness.edit(name="renamed")
    await harness.edit("renamed", cron_expression="H H * * *")
    assert await next_slot(harness, "renamed") == before
