"""Recurrence rules of RFC 5545 (`FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17`): which local times they match.

python-dateutil evaluates them. It iterates from DTSTART on, so a rule that began long ago would cost one step per
passed time; here each search begins in the period of the rule that contains the wanted time. The parts that RFC 5545
takes from DTSTART (time of day, weekday, day of month) are written out first, so that such a start changes nothing.

The effort is bounded by the limits of `rrule_parts.py` and by `check_rule`, which refuses a rule that matches no date.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from math import gcd
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from rota.core.effort import spend
from rota.core.timing.calendars import HolidayRule
from rota.core.timing.cron import HORIZON_YEARS
from rota.core.timing.rrule_parts import DATE_PARTS, FREQUENCIES, NUMBERS, invalid_rule, parts_of

HORIZON = timedelta(days=366 * HORIZON_YEARS)
CYCLE_YEARS = 400  # after which dates and weekdays of the Gregorian calendar repeat
LAST_CYCLE = 9_500
LAST_YEARS = datetime(9998, 1, 1)  # a rule by weeks or shorter periods must match between here and the year 9999
EARLIEST_LOCAL = datetime(1890, 1, 1)
DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)


class Page(NamedTuple):
    """Times of a rule in a stretch of local time, and the first one after it."""

    times: tuple[datetime, ...]
    following: datetime | None


@dataclass(frozen=True, slots=True)
class RulePattern:
    """A rule with its start in local time. A `LocalPattern` of `dst.py`."""

    rule: str
    start: datetime  # DTSTART, naive
    zone: str  # of an UNTIL in UTC
    skips_gap: bool
    in_both_passes: bool
    holidays: HolidayRule | None = None
    reaches_back: bool = False  # also has times before its start, as if it had begun earlier

    def next_match(self, local: datetime) -> datetime | None:
        """Return the first matching local time strictly after `local`, in its tzinfo; None beyond the horizon."""
        naive = local.replace(tzinfo=None, fold=0)
        found = self.first_from(naive + TICK)
        return None if found is None or found - naive > HORIZON else found.replace(tzinfo=local.tzinfo)

    def previous_match(self, local: datetime) -> datetime | None:
        """Return the latest matching local time at or before `local`, in its tzinfo; None beyond the horizon."""
        naive = local.replace(tzinfo=None, fold=0)
        found = self.last_until(naive)
        return None if found is None or naive - found > HORIZON else found.replace(tzinfo=local.tzinfo)

    def first_from(self, at: datetime) -> datetime | None:
        if self.holidays is None or self.holidays.on_holiday == "run":
            return first_of_rule(self, at)
        return self.first_with_holidays(self.holidays, at)

    def last_until(self, at: datetime) -> datetime | None:
        if self.holidays is None or self.holidays.on_holiday == "run":
            return last_of_rule(self, at)
        return self.last_with_holidays(self.holidays, at)

    def first_with_holidays(self, rule: HolidayRule, at: datetime) -> datetime | None:
        """Search day by day that has times of the rule, the days whose times move to or from a day included."""
        limit, day = at + HORIZON, at.date()
        while True:
            times = times_on(self, day)
            place = bisect_left(times, at)
            if place < len(times):
                return times[place]
            later = later_day(self, rule, day)
            if later is None or midnight_of(later) > limit:
                return None
            spend()
            day = later

    def last_with_holidays(self, rule: HolidayRule, at: datetime) -> datetime | None:
        limit, day = max(at - HORIZON, EARLIEST_LOCAL), at.date()
        while True:
            times = times_on(self, day)
            place = bisect_right(times, at)
            if place:
                return times[place - 1]
            earlier = earlier_day(self, rule, day)
            if earlier is None or midnight_of(earlier) < limit:
                return None
            spend()
            day = earlier


def rule_pattern(
    rule: str, start: datetime, zone: str, skips_gap: bool | None = None, in_both_passes: bool | None = None
) -> RulePattern:
    """Return the pattern of a rule. Without a choice, the set of hours decides about clock changes."""
    hours = {minute // 60 for minute in minutes_of_day(rule, start)}
    elapsed = len(hours) == 24
    return RulePattern(
        rule,
        start,
        zone,
        elapsed if skips_gap is None else skips_gap,
        elapsed if in_both_passes is None else in_both_passes,
    )


def check_rule(rule: str, start: datetime) -> None:
    """Raise Invalid for a rule that dateutil refuses, that matches no date or, by weeks or shorter periods, hardly any.

    dateutil searches up to the year 9999. The search begins close to it, in a period of the rule: after 400 years dates
    and weekdays repeat."""
    long_periods = parts_of(rule).frequency in ("YEARLY", "MONTHLY")
    try:
        shifted = start.replace(year=start.year + (LAST_CYCLE - start.year) // CYCLE_YEARS * CYCLE_YEARS)
        begin = shifted if long_periods else period_start(rule, shifted, LAST_YEARS)
        matches = next(iter(dateutil_rule(rule, start, begin)), None) is not None
    except ValueError as error:
        raise invalid_rule(rule, f"is not a recurrence rule ({error})") from None
    if not matches:
        remedy = "" if long_periods else ", or use FREQ=YEARLY for dates that come less than once in two years"
        raise invalid_rule(rule, f"matches no date; check BYMONTH, BYMONTHDAY, BYDAY, BYSETPOS and INTERVAL{remedy}")


@lru_cache(maxsize=1024)
def minutes_of_day(rule: str, start: datetime) -> frozenset[int]:
    """Return the minutes of the day at which a rule can match."""
    parts = parts_of(rule)
    first = 60 * start.hour + start.minute
    match parts.frequency:
        case "MINUTELY":
            grid = gcd(parts.interval, 1440)
            minutes = set(range(first % grid, 1440, grid))
        case "HOURLY":
            grid = gcd(parts.interval, 24)
            chosen = parts.numbers.get("BYMINUTE", (start.minute,))
            minutes = {60 * hour + minute for hour in range(start.hour % grid, 24, grid) for minute in chosen}
        case _:
            hours = parts.numbers.get("BYHOUR", (start.hour,))
            minutes = {
                60 * hour + minute for hour in hours for minute in parts.numbers.get("BYMINUTE", (start.minute,))
            }
    hours_allowed, minutes_allowed = parts.numbers.get("BYHOUR"), parts.numbers.get("BYMINUTE")
    return frozenset(
        minute
        for minute in minutes
        if (hours_allowed is None or minute // 60 in hours_allowed)
        and (minutes_allowed is None or minute % 60 in minutes_allowed)
    )


# Times of a rule, before holidays


def first_of_rule(pattern: RulePattern, at: datetime) -> datetime | None:
    """Return the first time of the rule from `at` on; None after its end."""
    if not pattern.reaches_back:
        at = max(at, pattern.start)
    page = page_of(pattern.rule, pattern.start, *stretch_of(pattern.rule, at))
    place = bisect_left(page.times, at)
    found = page.times[place] if place < len(page.times) else page.following
    end = end_of_rule(pattern.rule, pattern.start, pattern.zone)
    return None if found is None or (end is not None and found > end) else found


def last_of_rule(pattern: RulePattern, at: datetime) -> datetime | None:
    """Return the latest time of the rule up to `at`. Doubles the stretch that it searches, then halves it, so that the
    cost does not grow with the number of times in between."""
    end = end_of_rule(pattern.rule, pattern.start, pattern.zone)
    at = at if end is None else min(at, end)
    floor = EARLIEST_LOCAL if pattern.reaches_back else pattern.start
    if at < floor:
        return None
    low, high, width = at - DAY, at, DAY
    while (found := first_of_rule(pattern, max(low, floor))) is None or found > at:
        if low <= floor or at - low > HORIZON:
            return None
        width *= 2
        low, high = at - width, low
    low = max(low, floor, found)
    while high - low > DAY:
        middle = low + (high - low) / 2
        found = first_of_rule(pattern, middle)
        if found is not None and found <= at:
            low = found
        else:
            high = middle
    page = page_of(pattern.rule, pattern.start, *stretch_of(pattern.rule, low))
    last = low
    while True:
        inside = page.times[: bisect_right(page.times, at)]
        last = inside[-1] if inside else last
        if page.following is None or page.following > at:
            return last
        last = page.following
        page = page_of(pattern.rule, pattern.start, *stretch_of(pattern.rule, page.following))


def stretch_of(rule: str, at: datetime) -> tuple[datetime, datetime]:
    """Return the stretch of local time around `at` whose times are kept as one page: a day, a month or a year."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match parts_of(rule).frequency:
        case "MINUTELY" | "HOURLY":
            return midnight, midnight + DAY
        case "DAILY" | "WEEKLY":
            first = midnight.replace(day=1)
            return first, (first + 31 * DAY).replace(day=1)
        case _:
            return midnight.replace(month=1, day=1), midnight.replace(year=at.year + 1, month=1, day=1)


@lru_cache(maxsize=128)
def page_of(rule: str, start: datetime, begin: datetime, end: datetime) -> Page:
    """Return the times in `begin <= time < end`, as if the rule had no end and no beginning."""
    times: list[datetime] = []
    for at in dateutil_rule(rule, start, period_start(rule, start, begin)):
        if at >= end:
            return Page(tuple(times), at)
        if at >= begin:
            times.append(at)
    return Page(tuple(times), None)


def period_start(rule: str, start: datetime, at: datetime) -> datetime:
    """Return the latest start of a period of the rule up to `at`: whole intervals away from the period of `start`."""
    parts = parts_of(rule)
    interval = parts.interval
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    match parts.frequency:
        case "YEARLY":
            return datetime(start.year + (at.year - start.year) // interval * interval, 1, 1)
        case "MONTHLY":
            months = 12 * (at.year - start.year) + at.month - start.month
            year, month = divmod(12 * start.year + start.month - 1 + months // interval * interval, 12)
            return datetime(year, month + 1, 1)
        case "WEEKLY":
            origin, span = midnight - (midnight.weekday() - parts.week_start) % 7 * DAY, interval * 7 * DAY
        case "DAILY":
            origin, span = midnight, interval * DAY
        case "HOURLY":
            origin, span = start.replace(minute=0, second=0, microsecond=0), timedelta(hours=interval)
        case _:
            origin, span = start.replace(second=0, microsecond=0), timedelta(minutes=interval)
    return origin + (at - origin) // span * span


def dateutil_rule(rule: str, start: datetime, begin: datetime) -> Any:
    """Return dateutil's iterator over a rule from the period start `begin` on, with the parts that `start` adds."""
    from dateutil import rrule  # 11 ms, needed only by schedules with a rule

    parts = parts_of(rule)
    frequency: Any = FREQUENCIES.index(parts.frequency)
    arguments: dict[str, Any] = {NUMBERS[name][0]: numbers for name, numbers in parts.numbers.items()}
    weekdays: Any = [rrule.weekday(day, nth or None) for day, nth in parts.weekdays]
    if not (parts.weekdays or any(name in parts.numbers for name in DATE_PARTS)):
        if parts.frequency == "YEARLY":
            arguments |= {"bymonth": arguments.get("bymonth", start.month), "bymonthday": start.day}
        elif parts.frequency == "MONTHLY":
            arguments["bymonthday"] = start.day
        elif parts.frequency == "WEEKLY":
            weekdays = [start.weekday()]
    if frequency < FREQUENCIES.index("HOURLY"):
        arguments.setdefault("byhour", start.hour)
    if frequency < FREQUENCIES.index("MINUTELY"):
        arguments.setdefault("byminute", start.minute)
    arguments.setdefault("bysecond", start.second)
    return rrule.rrule(
        frequency,
        dtstart=begin,
        interval=parts.interval,
        wkst=parts.week_start,
        byweekday=weekdays or None,
        **arguments,
    )


@lru_cache(maxsize=1024)
def end_of_rule(rule: str, start: datetime, zone: str) -> datetime | None:
    """Return the last local time of a rule with COUNT or UNTIL; None if it has no end."""
    parts = parts_of(rule)
    if parts.until is not None:
        return until_of(rule, parts.until, zone)
    if parts.count is None:
        return None
    endless = (at for at in dateutil_rule(rule, start, period_start(rule, start, start)) if at >= start)
    last = start - TICK
    for last in islice(endless, parts.count):
        if last - start > HORIZON:
            break
    return last


def until_of(rule: str, text: str, zone: str) -> datetime:
    """Return an UNTIL as local time: a date means its end, `Z` is UTC."""
    try:
        if len(text) == 8:
            return datetime.strptime(text, "%Y%m%d") + DAY - TICK
        at = datetime.strptime(text.removesuffix("Z"), "%Y%m%dT%H%M%S")
        if not text.endswith("Z"):
            return at
        return at.replace(tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    except (ValueError, OverflowError):
        raise invalid_rule(rule, f"has an UNTIL that does not exist: {text}") from None


# Times of a rule on days that a calendar leaves or moves


@lru_cache(maxsize=4096)
def times_on(pattern: RulePattern, day: date) -> tuple[datetime, ...]:
    """Return the times that take place on a day."""
    rule = pattern.holidays
    assert rule is not None
    target, times = day.toordinal(), set[datetime]()
    for source in rule.sources(target, target):
        if rule.target_of(source) == target:
            begin = midnight_of(date.fromordinal(source))
            at = first_of_rule(pattern, begin)
            while at is not None and at < begin + DAY:
                times.add(at + (target - source) * DAY)
                at = first_of_rule(pattern, at + TICK)
    return tuple(sorted(times))


def later_day(pattern: RulePattern, rule: HolidayRule, day: date) -> date | None:
    """Return the next day that can have times: no day in between has any."""
    sources = rule.sources(day.toordinal() + 1, day.toordinal() + 1)
    found = first_of_rule(pattern, midnight_of(date.fromordinal(sources[0])))
    if found is None:
        return None
    if found.date().toordinal() > sources[-1]:
        return found.date() - timedelta(days=len(sources) - 1 if rule.on_holiday == "previous" else 0)
    return day + DAY


def earlier_day(pattern: RulePattern, rule: HolidayRule, day: date) -> date | None:
    """Return the day before that can have times: no day in between has any."""
    sources = rule.sources(day.toordinal() - 1, day.toordinal() - 1)
    found = last_of_rule(pattern, midnight_of(date.fromordinal(sources[-1] + 1)) - TICK)
    if found is None:
        return None
    if found.date().toordinal() < sources[0]:
        return found.date() + timedelta(days=len(sources) - 1 if rule.on_holiday == "next" else 0)
    return day - DAY


def midnight_of(day: date) -> datetime:
    return datetime.combine(day, time())
