"""Calendars: their rows, and the dates that the schedules which follow them have.

A schedule carries the dates of its calendar in its timing, so firing reads no calendar. A changed calendar gets a new
revision; `adopt` brings the schedules with an older one to it, in batches. A crash in between is repaired by
maintenance.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.model import DueSchedule, Schedule
from rota.core.timing import stored, triggers
from rota.core.timing.calendars import Calendar, HolidayRule, ordinals
from rota.db.dialect import Tx, notify
from rota.db.statement import insert_new
from rota.db.tables import calendars, schedules, trigger_spans
from rota.engine.schedules import LIVING, finish_schedules, lock, replace_schedule, set_clock

c, s = calendars.c, schedules.c
ADOPT_BATCH_ROWS = 50  # schedules that one transaction brings to a new revision
NAMED_IN_ERRORS = 5  # schedules that an error lists


def insert(tx: Tx, row: Mapping[str, object]) -> None:
    """Store a calendar. Raises Conflict for a name that exists."""
    if not insert_new(tx, calendars, [dict(row)], ("id",)):
        raise Conflict(f"calendar {row['name']!r} already exists; choose another name or edit that calendar")


def row(tx: Tx, org_id: str, key: str, *, for_update: bool = False) -> Any:
    """Return the row of a calendar by its name or id. Raises NotFound."""
    stmt = select(calendars).where(c.org_id == org_id, or_(c.name == key, c.id == key)).order_by(c.name != key)
    found = tx.execute(stmt.with_for_update() if for_update else stmt).first()
    if found is None:
        raise NotFound(f"calendar {key!r} not found")
    return found


def by_name(tx: Tx, org_id: str, names: Collection[str]) -> dict[str, Calendar]:
    """Return the calendars of an org with these names; names that do not exist are left out."""
    if not names:
        return {}
    rows = tx.execute(select(calendars).where(c.org_id == org_id, c.name.in_(sorted(names))))
    return {found.name: calendar_of(found) for found in rows}


def all_of(tx: Tx, org_id: str) -> list[Calendar]:
    """Return all calendars of an org, by name."""
    rows = tx.execute(select(calendars).where(c.org_id == org_id).order_by(c.name))
    return [calendar_of(calendar) for calendar in rows]


def calendar_of(row: Any) -> Calendar:
    until = date.fromisoformat(row.known_until) if row.known_until else None
    days = ordinals(date.fromisoformat(day) for day in row.holidays)
    return Calendar(row.id, row.name, row.revision, days, frozenset(row.weekend), row.weekend_is_holiday, until)


def hold(tx: Tx, org_id: str, used: Collection[Schedule]) -> None:
    """Keep the calendars of schedules that are being stored from deletion until the transaction ends. Raises Invalid if
    one was deleted in between."""
    names = {
        schedule.calendar_id: schedule.timing.holidays.calendar.name for schedule in used if schedule.timing.holidays
    }
    if names:
        stmt = select(c.id).where(c.org_id == org_id, c.id.in_(sorted(filter(None, names)))).order_by(c.id)
        held = set(tx.execute(stmt.with_for_update(read=True)).scalars())
        for calendar_id, name in names.items():
            if calendar_id not in held:
                raise Invalid("calendar", name, "not found: add it, or see `rota calendar list`")


def change(tx: Tx, org_id: str, key: str, values: Mapping[str, object], now: datetime) -> Calendar:
    """Change a calendar and count its revision up."""
    found = row(tx, org_id, key, for_update=True)
    tx.execute(update(calendars).where(c.id == found.id).values(**values, revision=found.revision + 1, updated_at=now))
    return calendar_of(row(tx, org_id, found.id))


def remove(tx: Tx, org_id: str, key: str) -> None:
    """Delete a calendar. Raises Conflict if schedules follow it."""
    found = row(tx, org_id, key, for_update=True)
    users = schedules_of(tx, found.id, NAMED_IN_ERRORS + 1)
    if users:
        names = ", ".join(users[:NAMED_IN_ERRORS]) + (" and more" if len(users) > NAMED_IN_ERRORS else "")
        raise Conflict(f"calendar {found.name!r} is used by {names}; give these schedules another calendar first")
    tx.execute(delete(calendars).where(c.id == found.id))


def schedules_of(tx: Tx, calendar_id: str, limit: int) -> list[str]:
    """Return the names of schedules that follow a calendar."""
    stmt = select(s.name).where(s.calendar_id == calendar_id, LIVING).order_by(s.name).limit(limit)
    return list(tx.execute(stmt).scalars())


def behind(calendar_id: ColumnElement[Any], revision: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match schedules whose dates are older than those of their calendar."""
    return and_(s.calendar_id == calendar_id, s.calendar_revision < revision, LIVING)


def outdated(tx: Tx, limit: int = ADOPT_BATCH_ROWS) -> list[tuple[str, str]]:
    """Return (org, schedule) ids of schedules that have older dates than their calendar."""
    stmt = select(s.org_id, s.id).select_from(calendars.join(schedules, behind(c.id, c.revision))).limit(limit)
    return [(org_id, schedule_id) for org_id, schedule_id in tx.execute(stmt)]


def adopt(tx: Tx, ids: Sequence[tuple[str, str]], now: datetime) -> list[str]:
    """Bring schedules to the dates that their calendars have now; returns the ids of those that changed."""
    changed = []
    for org_id, schedule_id in ids:
        living = select(s.id).where(s.id == schedule_id, s.org_id == org_id, LIVING)
        if tx.execute(living).first() is None:
            continue
        due = lock(tx, org_id, schedule_id)
        rule = due.schedule.timing.holidays
        if rule is None:
            continue
        calendar = calendar_of(row(tx, org_id, rule.calendar.id))
        if calendar.revision > rule.calendar.revision:
            take_dates(tx, due, rule, calendar, now)
            changed.append(schedule_id)
    return changed


def take_dates(tx: Tx, due: DueSchedule, rule: HolidayRule, calendar: Calendar, now: datetime) -> None:
    """Give a schedule the dates of a calendar. If only later dates were added, slots that are planned or decided stay
    as they are and the trigger span goes on; else the schedule is planned anew, as after an edit of its trigger."""
    timing = replace(due.schedule.timing, holidays=replace(rule, calendar=calendar))
    new = replace(due.schedule, timing=timing)
    if not only_extends(rule.calendar, calendar):
        replace_schedule(tx, due, new, now)
        return
    values = {"timing": stored.dump(timing), "calendar_revision": calendar.revision}
    tx.execute(update(schedules).where(s.id == new.id).values(values))
    open_span = and_(trigger_spans.c.schedule_id == new.id, trigger_spans.c.until_at.is_(None))
    tx.execute(update(trigger_spans).where(open_span).values(timing=stored.dump(timing)))
    known = rule.calendar.until
    if known is not None and due.next_slot is not None and due.next_slot.date() > known:
        slot = triggers.next_slot(timing, now)
        set_clock(tx, new, slot, now)
        if slot is None:
            finish_schedules(tx, [(new.id, now)], now)
        notify(tx, "clocks")


def only_extends(old: Calendar, new: Calendar) -> bool:
    """Whether a calendar differs from an older revision only in dates after those that were known."""
    if old.until is None or (old.weekend, old.weekend_is_holiday) != (new.weekend, new.weekend_is_holiday):
        return (old.holidays, old.weekend, old.weekend_is_holiday) == (
            new.holidays,
            new.weekend,
            new.weekend_is_holiday,
        )
    last = old.until.toordinal()
    return old.holidays == tuple(day for day in new.holidays if day <= last)


def ending_before(tx: Tx, day: date, limit: int = 20) -> list[Any]:
    """Return calendars whose holidays are known only until before a day."""
    stmt = select(calendars).where(c.known_until.is_not(None), c.known_until < day.isoformat())
    return list(tx.execute(stmt.order_by(c.known_until).limit(limit)))


def count(tx: Tx, org_id: str) -> int:
    return tx.execute(select(func.count()).select_from(calendars).where(c.org_id == org_id)).scalar_one()
