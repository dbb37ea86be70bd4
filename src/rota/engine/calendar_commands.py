"""Commands on calendars: add, edit, delete, and the extension of their horizon by maintenance."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import structlog

from rota.core import calendar_sources
from rota.core.calendar_sources import Resolved, resolve, today_of
from rota.core.errors import Conflict, Invalid
from rota.core.ids import new_id
from rota.core.timing.calendars import WEEKDAYS, Calendar
from rota.db.dialect import Tx
from rota.engine import calendars
from rota.engine.compute import compute
from rota.engine.engine_base import EngineBase

CALENDARS_MAX = 500  # of an org
SOURCES = ("holidays", "exchange", "ical", "dates")
EXTEND_BEFORE = timedelta(days=2 * 366)  # a calendar whose dates end sooner gets further years

log = structlog.get_logger("rota.calendars")


class CalendarCommands(EngineBase):
    async def calendars_named(self, org_id: str, bodies: Iterable[Mapping[str, object]]) -> dict[str, Calendar]:
        """Return the calendars that schedules in their flat form name; unknown names are left out."""
        names = {name for body in bodies if isinstance(name := body.get("calendar"), str)}
        return await self.db.read(calendars.by_name, org_id, names) if names else {}

    async def add_calendar(self, org_id: str, fields: Mapping[str, Any]) -> str:
        """Store a calendar with its dates; returns its id. Raises Invalid, or Conflict for a name that exists."""
        now = self.clock.now()
        source = source_of(fields)
        if source is None:
            raise Invalid("holidays", None, f"is missing: give one of {', '.join(SOURCES)}")
        resolved = await compute(resolve, source, today_of(now))
        weekend = weekend_of(fields.get("weekend"), resolved)
        is_holiday = fields.get("weekend_is_holiday")
        row = {
            "id": new_id(),
            "org_id": org_id,
            "name": fields["name"],
            "description": fields.get("description") or "",
            "source": source,
            "weekend": weekend,
            "weekend_is_holiday": "exchange" in source if is_holiday is None else is_holiday,
            **dates_of(resolved),
            "revision": 1,
            "created_at": now,
            "updated_at": now,
        }

        def step(tx: Tx) -> str:
            if calendars.count(tx, org_id) >= CALENDARS_MAX:
                raise Conflict(f"the org has {CALENDARS_MAX} calendars already; delete one that is not used")
            calendars.insert(tx, row)
            return str(row["id"])

        return await self.db.tx(step)

    async def edit_calendar(self, org_id: str, key: str, fields: Mapping[str, Any]) -> str:
        """Change a calendar: absent fields stay, and its dates are resolved again. Its schedules are planned anew.
        Returns its id."""
        now = self.clock.now()
        old = await self.db.read(calendars.row, org_id, key)
        source = source_of(fields) or old.source
        resolved = await compute(resolve, source, today_of(now))
        same_kind = source.keys() == old.source.keys()
        weekend = fields.get("weekend")
        values: dict[str, object] = {
            "source": source,
            **dates_of(with_past(resolved, old) if same_kind else resolved),
            "weekend": old.weekend if weekend is None and same_kind else weekend_of(weekend, resolved),
        }
        for field in ("description", "weekend_is_holiday"):
            if fields.get(field) is not None:
                values[field] = fields[field]
        await self.db.tx(calendars.change, org_id, old.id, values, now)
        await self.adopt_calendars()
        return str(old.id)

    async def delete_calendar(self, org_id: str, key: str) -> None:
        """Delete a calendar. Raises Conflict, naming schedules, if it is used."""
        await self.db.tx(calendars.remove, org_id, key)

    async def adopt_calendars(self) -> int:
        """Bring all schedules with older dates than their calendar to the current ones; returns their number."""
        adopted = 0
        while ids := await self.db.read(calendars.outdated):
            changed = await self.write_and_wake(lambda tx, ids=ids: calendars.adopt(tx, ids, self.clock.now()))  # type: ignore[misc]
            adopted += len(changed)
            if not changed:
                break
        return adopted

    async def extend_calendars(self, now: datetime) -> int:
        """Append later years to calendars whose dates end soon; returns their number. Dates that are known stay as they
        are, also if the library has changed its mind about them."""
        extended = 0
        for old in await self.db.read(calendars.ending_before, today_of(now) + EXTEND_BEFORE):
            try:
                resolved = await compute(resolve, old.source, today_of(now))
            except Invalid as error:  # the library no longer knows the country, or an extra is not installed here
                log.warning("calendar cannot be extended", calendar=old.name, org=old.org_id, error=error.message)
                continue
            if resolved.until is not None and resolved.until.isoformat() <= old.known_until:
                continue
            later = {day: name for day, name in resolved.dates.items() if day.isoformat() > old.known_until}
            known = {date.fromisoformat(day): name for day, name in old.holidays.items()}
            values = dates_of(Resolved({**known, **later}, resolved.until))
            await self.db.tx(calendars.change, old.org_id, old.id, values, now)
            extended += 1
        return extended


def source_of(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the source that fields name, None if they name none. Raises Invalid for several."""
    sources = {name: fields[name] for name in SOURCES if fields.get(name) is not None}
    if len(sources) > 1:
        raise Invalid(
            sorted(sources)[0], None, f"cannot be combined with {sorted(sources)[1]}: a calendar has one source"
        )
    if "dates" in sources:
        sources["dates"] = calendar_sources.parse_dates(sources["dates"])
    return sources or None


def weekend_of(names: Sequence[str] | None, resolved: Resolved) -> list[int]:
    if names is None:
        return sorted(resolved.weekend)
    return sorted({WEEKDAYS.index(name) for name in names})


def dates_of(resolved: Resolved) -> dict[str, object]:
    return {
        "holidays": {day.isoformat(): name for day, name in sorted(resolved.dates.items())},
        "known_until": resolved.until.isoformat() if resolved.until else None,
    }


def with_past(resolved: Resolved, old: Any) -> Resolved:
    """Return the dates with those of years that the source no longer covers, so that an edit forgets no past."""
    first = min(resolved.dates, default=None)
    if resolved.until is None or first is None:
        return resolved
    past = {
        date.fromisoformat(day): name for day, name in old.holidays.items() if date.fromisoformat(day).year < first.year
    }
    return Resolved({**past, **resolved.dates}, resolved.until, resolved.weekend)
