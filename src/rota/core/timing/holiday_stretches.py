"""Stretches of consecutive holidays as instants, for slots that are not patterns of local times. Pure."""

from datetime import date, datetime, time

from rota.core.effort import spend
from rota.core.timing.calendars import HolidayRule
from rota.core.timing.dst import local_instant, zone_of


def end_of_holidays(rule: HolidayRule, zone: str, slot: datetime) -> datetime | None:
    """Return the first instant after the holidays that contain a slot; None if it is not on a holiday."""
    if rule.on_holiday == "run":
        return None
    day = first = slot.astimezone(zone_of(zone)).date().toordinal()
    while rule.calendar.is_holiday(day):
        spend()
        day += 1
    return None if day == first else first_instant(day, zone)


def start_of_holidays(rule: HolidayRule, zone: str, slot: datetime) -> datetime | None:
    """Return the first instant of the holidays that contain a slot; None if it is not on a holiday."""
    if rule.on_holiday == "run":
        return None
    day = first = slot.astimezone(zone_of(zone)).date().toordinal()
    while rule.calendar.is_holiday(day):
        spend()
        day -= 1
    return None if day == first else first_instant(day + 1, zone)


def first_instant(day: int, zone: str) -> datetime:
    """Return the first instant of a local day; where the clock skips it, that of the day after."""
    return local_instant(datetime.combine(date.fromordinal(day), time()), zone)
