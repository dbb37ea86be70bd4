"""Calendars for people: lists, and one with its dates and the schedules that follow it."""

from datetime import date
from typing import Any

from sqlalchemy import func, select

from rota.core.timing.calendars import WEEKDAYS
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.tables import calendars, schedules
from rota.engine import calendars as store
from rota.engine.schedules import LIVING

SCHEDULES_SHOWN = 100
c, s = calendars.c, schedules.c


def list_calendars(tx: Tx, org_id: str) -> list[Record]:
    """Return the calendars of an org by name, without their dates."""
    rows = tx.execute(select(calendars).where(c.org_id == org_id).order_by(c.name)).all()
    used = select(s.calendar_id, func.count()).where(s.org_id == org_id, s.calendar_id.is_not(None), LIVING)
    counts: dict[str, int] = dict(row.tuple() for row in tx.execute(used.group_by(s.calendar_id)))
    return [{**summary(row), "schedule_count": counts.get(row.id, 0)} for row in rows]


def calendar(tx: Tx, org_id: str, key: str) -> Record:
    """Return a calendar by its name or id. Raises NotFound."""
    row = store.row(tx, org_id, key)
    names = store.schedules_of(tx, row.id, SCHEDULES_SHOWN)
    count = tx.execute(select(func.count()).select_from(schedules).where(s.calendar_id == row.id, LIVING)).scalar_one()
    dates = [{"date": day, "name": name} for day, name in sorted(row.holidays.items())]
    return {**summary(row), "schedule_count": count, "dates": dates, "schedules": names}


def holiday_name(tx: Tx, org_id: str, calendar_id: str, day: date) -> str | None:
    """Return the name of a holiday; None if the calendar or the date is not there any more."""
    row = tx.execute(select(c.holidays).where(c.org_id == org_id, c.id == calendar_id)).first()
    return row.holidays.get(day.isoformat()) if row is not None else None


def summary(row: Any) -> Record:
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "type": next(iter(row.source)),
        "holidays": row.source.get("holidays"),
        "exchange": row.source.get("exchange"),
        "weekend": [WEEKDAYS[day] for day in row.weekend],
        "weekend_is_holiday": row.weekend_is_holiday,
        "date_count": len(row.holidays),
        "known_until": row.known_until,
        "revision": row.revision,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
