"""Where the holidays of a calendar come from: a country, an exchange, an iCal file, or dates. Pure.

The libraries are imported when they are needed: `holidays` takes 50 ms, `icalendar` 70 ms, `exchange_calendars` 320 ms.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from rota.core.errors import Invalid
from rota.core.timing.calendars import SATURDAY_AND_SUNDAY
from rota.core.timing.rrule_parts import normalize_rule
from rota.core.timing.rrules import check_rule, rule_pattern

DATES_MAX = 2_000  # of one calendar
ICAL_BYTES_MAX = 256 * 1024
EVENTS_MAX = 5_000
EVENT_DAYS_MAX = 366
NAME_CHARS = 200  # of a holiday
YEARS_BACK, YEARS_AHEAD = 1, 10
EXCHANGE_YEARS_AHEAD = 3
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The holidays of a source: names by date, until which day they are known (None: all), and its weekend."""

    dates: Mapping[date, str]
    until: date | None
    weekend: frozenset[int] = SATURDAY_AND_SUNDAY


def resolve(source: Mapping[str, Any], today: date) -> Resolved:
    """Return the holidays of a source as it is stored: one of `holidays`, `exchange`, `ical`, `dates`. Raises Invalid
    for an unknown country or exchange, a broken file, or too many dates."""
    first, last = date(today.year - YEARS_BACK, 1, 1), date(today.year + YEARS_AHEAD, 12, 31)
    match source:
        case {"holidays": str(country)}:
            resolved = of_country(country, first, last)
        case {"exchange": str(exchange)}:
            resolved = of_exchange(exchange, first, today)
        case {"ical": str(text)}:
            resolved = of_ical(text, first, last)
        case {"dates": [*days]}:
            resolved = Resolved({parse_date(day): "" for day in days}, None)
        case _:
            raise Invalid("holidays", None, "is missing: give one of holidays, exchange, ical, dates")
    if len(resolved.dates) > DATES_MAX:
        raise Invalid(next(iter(source)), len(resolved.dates), f"has more than {DATES_MAX} dates")
    return resolved


def of_country(code: str, first: date, last: date) -> Resolved:
    import holidays

    country, _, subdivision = code.partition("-")
    country = country.upper()
    supported = holidays.list_supported_countries(include_aliases=False)
    if country not in supported:
        raise Invalid("holidays", code, "is not a known country: use a code such as NO, US-CA or DE-BY")
    known = supported[country]
    subdivision = subdivision if subdivision in known else subdivision.upper()
    if subdivision and subdivision not in known:
        remedy = f"one of {', '.join(known)}" if known else "it has none"
        raise Invalid("holidays", code, f"has an unknown subdivision: {country} has {remedy}")
    found = holidays.country_holidays(country, subdiv=subdivision or None, years=range(first.year, last.year + 1))
    dates = {day: name[:NAME_CHARS] for day, name in sorted(found.items()) if first <= day <= last}
    return Resolved(dates, last, frozenset(found.weekend))


def of_exchange(code: str, first: date, today: date) -> Resolved:
    try:
        import exchange_calendars
    except ImportError:
        raise Invalid(
            "exchange", code, "needs a package that is not installed: pip install 'rota-scheduler[exchanges]'"
        ) from None
    if code.upper() not in exchange_calendars.get_calendar_names(include_aliases=False):
        raise Invalid("exchange", code, "is not a known exchange: use a code such as XOSL, XNYS or XLON")
    kind: Any = type(exchange_calendars.get_calendar(code.upper()))
    bound = kind.bound_max()
    last = date(today.year + EXCHANGE_YEARS_AHEAD, 12, 31)
    last = min(last, bound.date()) if bound is not None else last
    calendar = kind(start=first.isoformat(), end=last.isoformat())
    open_days = {session.date() for session in calendar.sessions}
    weekend = frozenset(weekday for weekday in range(7) if all(day.weekday() != weekday for day in open_days))
    days = (first + DAY * distance for distance in range((last - first).days + 1))
    dates = {day: "closed" for day in days if day not in open_days and day.weekday() not in weekend}
    return Resolved(dates, last, weekend)


def of_ical(text: str, first: date, last: date) -> Resolved:
    import icalendar

    if len(text.encode()) > ICAL_BYTES_MAX:
        raise Invalid("ical", f"{len(text)} characters", f"is larger than {ICAL_BYTES_MAX // 1024} KiB")
    try:
        events = icalendar.Calendar.from_ical(text).walk("VEVENT")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Invalid("ical", text[:40], f"is not an iCal file ({str(error)[:200]})") from None
    if not 1 <= len(events) <= EVENTS_MAX:
        raise Invalid("ical", len(events), f"must have 1 to {EVENTS_MAX} events")
    dates: dict[date, str] = {}
    recurring = False
    for event in events:
        if str(event.get("STATUS", "")).upper() != "CANCELLED":
            recurring = recurring or "RRULE" in event
            dates |= days_of_event(event, first, last)
        if len(dates) > DATES_MAX:
            break
    return Resolved(dict(sorted(dates.items())), last if recurring else None)


def days_of_event(event: Any, first: date, last: date) -> dict[date, str]:
    """Return the days that an event covers, those of its recurrence rule included."""
    name = str(event.get("SUMMARY", ""))[:NAME_CHARS]
    try:
        start, end = event.start, event.end
    except Exception as error:  # icalendar raises errors of its own for each way in which an event is incomplete
        raise Invalid("ical", name, f"has an event without a usable DTSTART or DTEND ({error})") from None
    begin, length = day_of(start), max(1, (day_of(end) - day_of(start)).days if not has_time(start) else 1)
    if length > EVENT_DAYS_MAX:
        raise Invalid("ical", name, f"has an event of {length} days; at most {EVENT_DAYS_MAX} are allowed")
    starts = [begin]
    if "RRULE" in event:
        starts = recurrences(event["RRULE"].to_ical().decode(), begin, first, last, name)
    excluded = excluded_days(event)
    return {
        day + DAY * distance: name
        for day in starts
        if day not in excluded
        for distance in range(length)
        if first <= day + DAY * distance <= last or "RRULE" not in event
    }


def recurrences(rule: str, begin: date, first: date, last: date, name: str) -> list[date]:
    start = datetime.combine(begin, datetime.min.time())
    try:
        text = normalize_rule(rule)
        check_rule(text, start)
    except Invalid as error:
        raise Invalid("ical", name, f"has an event whose recurrence {error.right}") from None
    pattern, days = rule_pattern(text, start, "UTC"), list[date]()
    at = pattern.first_from(max(start, datetime.combine(first, datetime.min.time())))
    while at is not None and at.date() <= last and len(days) <= DATES_MAX:
        days.append(at.date())
        at = pattern.first_from(at + timedelta(microseconds=1))
    return days


def excluded_days(event: Any) -> set[date]:
    lists = event.get("EXDATE", [])
    return {day_of(item.dt) for dates in (lists if isinstance(lists, list) else [lists]) for item in dates.dts}


def has_time(value: date) -> bool:
    return isinstance(value, datetime)


def day_of(value: date) -> date:
    return value.date() if isinstance(value, datetime) else value


def parse_dates(values: Sequence[object]) -> list[str]:
    """Return dates as ISO text, ascending and without duplicates. Raises Invalid."""
    if not 1 <= len(values) <= DATES_MAX:
        raise Invalid("dates", len(values), f"must be 1 to {DATES_MAX} dates")
    return sorted({parse_date(value).isoformat() for value in values})


def parse_date(value: object) -> date:
    try:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            day = date.fromisoformat(value)
            if day.year >= 1900:
                return day
    except ValueError:
        pass  # the pattern matches, the date does not exist
    raise Invalid("dates", value, "must be a date since 1900 such as 2026-12-24")


def today_of(now: datetime) -> date:
    return now.astimezone(UTC).date()
