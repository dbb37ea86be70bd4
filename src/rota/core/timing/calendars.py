"""Calendars: named sets of holidays, and the working days that are left. Pure.

A holiday is a date of the set, and with `weekend_is_holiday` also each day of the weekend. A working day is a day that
is neither a holiday nor in the weekend. The dates are resolved: a timing carries the dates by which its slots were
decided, so that they can be computed again when the library that named the holidays has changed.
"""

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Literal, get_args

OnHoliday = Literal["skip", "next", "previous", "run"]
ON_HOLIDAY: tuple[OnHoliday, ...] = get_args(OnHoliday)
MOVE_DAYS_MAX = 31  # a slot of a holiday whose nearest working day is further away does not exist
SATURDAY_AND_SUNDAY = frozenset((5, 6))
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Calendar:
    """A revision of a calendar. Days are proleptic ordinals (`date.toordinal`), weekdays count from Monday = 0."""

    id: str
    name: str
    revision: int
    holidays: tuple[int, ...] = ()  # ascending
    weekend: frozenset[int] = SATURDAY_AND_SUNDAY
    weekend_is_holiday: bool = False
    until: date | None = None  # holidays after this day are not known yet; None: the set is complete

    def is_holiday(self, day: int) -> bool:
        place = bisect_left(self.holidays, day)
        if place < len(self.holidays) and self.holidays[place] == day:
            return True
        return self.weekend_is_holiday and self.in_weekend(day)

    def in_weekend(self, day: int) -> bool:
        return (day + 6) % 7 in self.weekend  # ordinal 1 is a Monday

    def is_working_day(self, day: int) -> bool:
        return not self.in_weekend(day) and not self.is_holiday(day)

    def working_day(self, day: int, step: int) -> int | None:
        """Return the nearest working day after (`step` 1) or before (-1) a day; None if it is too far away."""
        for distance in range(1, MOVE_DAYS_MAX + 1):
            if self.is_working_day(day + step * distance):
                return day + step * distance
        return None


MONDAY_TO_FRIDAY = Calendar("", "", 0)


@dataclass(frozen=True, slots=True)
class HolidayRule:
    """What a calendar does to the slots of a schedule."""

    calendar: Calendar
    on_holiday: OnHoliday

    def target_of(self, day: int) -> int | None:
        """Return the day on which the slots of a day take place; None if they do not exist."""
        if self.on_holiday == "run" or not self.calendar.is_holiday(day):
            return day
        if self.on_holiday == "skip":
            return None
        return self.calendar.working_day(day, 1 if self.on_holiday == "next" else -1)

    def sources(self, first: int, last: int) -> range:
        """Return the days whose slots can take place from `first` to `last`."""
        reach = MOVE_DAYS_MAX
        return range(
            first - (reach if self.on_holiday == "next" else 0),
            last + (reach if self.on_holiday == "previous" else 0) + 1,
        )


@lru_cache(maxsize=4096)
def working_days_mask(calendar: Calendar, year: int, month: int) -> int:
    """Return the working days of a month; bit n is day n."""
    before = date(year, month, 1).toordinal() - 1
    return sum(1 << day for day in range(1, monthrange(year, month)[1] + 1) if calendar.is_working_day(before + day))


def dump_calendar(calendar: Calendar) -> dict[str, object]:
    """Return a calendar as JSON data; `load_calendar` restores it."""
    return {
        "id": calendar.id,
        "name": calendar.name,
        "revision": calendar.revision,
        "holidays": [date.fromordinal(day).isoformat() for day in calendar.holidays],
        "weekend": sorted(calendar.weekend),
        "weekend_is_holiday": calendar.weekend_is_holiday,
        "until": calendar.until.isoformat() if calendar.until else None,
    }


def load_calendar(data: Mapping[str, object]) -> Calendar:
    """Restore a calendar from `dump_calendar`. Raises KeyError, TypeError or ValueError for anything else."""
    match data:
        case {
            "id": str(calendar_id),
            "name": str(name),
            "revision": int(revision),
            "holidays": [*holidays],
            "weekend": [*weekend],
            "weekend_is_holiday": bool(weekend_is_holiday),
            "until": str() | None as until,
        }:
            return restored(
                calendar_id, name, revision, tuple(holidays), tuple(weekend), weekend_is_holiday, until
            )  # fmt: skip
        case _:
            raise ValueError


@lru_cache(maxsize=1024)  # many schedules have the same calendar
def restored(
    calendar_id: str,
    name: str,
    revision: int,
    holidays: tuple[str, ...],
    weekend: tuple[int, ...],
    weekend_is_holiday: bool,
    until: str | None,
) -> Calendar:
    days = ordinals(date.fromisoformat(day) for day in holidays)
    end = date.fromisoformat(until) if until else None
    return Calendar(calendar_id, name, revision, days, frozenset(weekend), weekend_is_holiday, end)


def ordinals(days: Iterable[date]) -> tuple[int, ...]:
    return tuple(sorted({day.toordinal() for day in days}))
