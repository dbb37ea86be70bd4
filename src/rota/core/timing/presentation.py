"""Timings for display: in words, their next slots with notes, and warnings. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from itertools import islice
from typing import Literal, assert_never

from rota.core.timing.calendars import Calendar, HolidayRule
from rota.core.timing.describe import cron_words, span_words, timestamp_words
from rota.core.timing.dst import TICK, ZERO, DstGap, DstRepeat, LocalPattern, clock_note, offset, periods, zone_of
from rota.core.timing.holiday_stretches import first_instant
from rota.core.timing.rule_words import rule_words
from rota.core.timing.spread import has_spread, without_spread
from rota.core.timing.triggers import (
    LATEST,
    Cron,
    Every,
    Once,
    Recurring,
    Timing,
    cron_pattern,
    local_pattern,
    local_start,
    moves_into_window,
    next_slot,
    slots_between,
)

CLOCK_WARNING_AHEAD = timedelta(days=7)  # how long before a clock change it is announced
HOLIDAYS_SHOWN = 20  # holidays that one preview lists
HOLIDAY_DAYS_SEARCHED = 400  # days of a preview in which it looks for holidays
HOLIDAY_WORDS = {
    "skip": ", not on holidays of {}",
    "next": ", on holidays of {} moved to the next working day",
    "previous": ", on holidays of {} moved to the working day before",
    "run": ", working days by {}",
}
GAP_WORDS = {"run_after": ", after the gap if the clock skips it", "skip": ", not if the clock skips it"}
REPEAT_WORDS = {"first": ", once if it happens twice", "both": ", twice if it happens twice"}


@dataclass(frozen=True, slots=True)
class Preview:
    """A future slot for display; `note` describes how a clock change or a holiday affects it."""

    at: datetime
    local: datetime  # fixed offset: with a ZoneInfo, Python never compares a repeated hour equal to `at`
    note: str | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A holiday on which slots do not take place; `moved_to` is the day on which they do."""

    day: date
    moved_to: date | None


@dataclass(frozen=True, slots=True)
class ClockChanges:
    """How a timing meets clock changes; `chosen_by` is whether the schedule or the default decides."""

    gap: DstGap
    repeat: DstRepeat
    chosen_by: Literal["schedule", "set of hours"]


def describe(timing: Timing) -> str:
    """Return the timing as a short English phrase."""
    zone, window = zone_of(timing.zone), timing.window
    match timing.trigger:
        case Cron() as cron:
            text, in_local_time = cron_words(cron_pattern(cron))
        case Every(span):
            text, in_local_time = f"every {span_words(span)}", False
        case Recurring(rule, anchor):
            text, in_local_time = rule_words(rule, local_start(anchor, timing.zone)), True
        case Once(at):
            text, in_local_time = f"once at {timestamp_words(at.astimezone(zone))}", True
        case _:
            assert_never(timing.trigger)
    if in_local_time:
        text += f" ({timing.zone})"
    if window:
        moved = moves_into_window(timing.trigger, timing.zone, window)
        hours = f"{window.start:%H:%M} and {window.end:%H:%M}"
        text += f", moved to the window between {hours}" if moved else f", between {hours}"
        text += "" if in_local_time else f" ({timing.zone})"
    if timing.holidays:
        text += HOLIDAY_WORDS[timing.holidays.on_holiday].format(timing.holidays.calendar.name)
    if timing.dst_gap:
        text += GAP_WORDS[timing.dst_gap]
    if timing.dst_repeat:
        text += REPEAT_WORDS[timing.dst_repeat]
    if timing.starts_at:
        text += f", from {timestamp_words(timing.starts_at)} UTC"
    if timing.ends_at:
        text += f", until {timestamp_words(timing.ends_at)} UTC"
    if timing.jitter:
        text += f", up to {span_words(timing.jitter, single='1 ')} later"
    return text


def preview(timing: Timing, after: datetime, count: int, since: datetime | None = None) -> list[Preview]:
    """Return the next `count` slots; `since` as in `next_slot`."""
    zone, pattern = zone_of(timing.zone), pattern_if_local(timing)
    slots = list(islice(slots_between(timing, after, LATEST, since), count))
    moved = moved_days(timing, after, slots[-1]) if slots else {}
    previews = []
    for slot in slots:
        local = slot.astimezone(timezone(offset(zone, slot)))
        sources = moved.get(local.date())
        note = clock_note(pattern, zone, slot)
        if sources and timing.holidays:
            days = " and ".join(day.isoformat() for day in sources)
            text = f"also for {days}, a holiday of {timing.holidays.calendar.name}"
            note = f"{note}; {text}" if note else text
        previews.append(Preview(slot, local, note))
    return previews


def left_out(timing: Timing, after: datetime, until: datetime) -> list[LeftOut]:
    """Return the holidays from `after` to `until` on which the trigger would have slots, up to HOLIDAYS_SHOWN."""
    return list(islice(holidays_with_slots(timing, after, until), HOLIDAYS_SHOWN))


def moved_days(timing: Timing, after: datetime, until: datetime) -> dict[date, list[date]]:
    """Return the days to which slots of holidays move, with those holidays."""
    moved: dict[date, list[date]] = {}
    if timing.holidays and timing.holidays.on_holiday in ("next", "previous"):
        reach = timedelta(days=31)
        for holiday in left_out(timing, after - reach, until + reach):
            if holiday.moved_to is not None:
                moved.setdefault(holiday.moved_to, []).append(holiday.day)
    return moved


def holidays_with_slots(timing: Timing, after: datetime, until: datetime) -> Iterator[LeftOut]:
    rule = timing.holidays
    if rule is None or rule.on_holiday == "run":
        return
    zone = zone_of(timing.zone)
    every_day = replace(timing, holidays=HolidayRule(rule.calendar, "run"), starts_at=None, ends_at=None)
    first = after.astimezone(zone).date().toordinal()
    last = min(until.astimezone(zone).date().toordinal(), first + HOLIDAY_DAYS_SEARCHED)
    for day in range(first, last + 1):
        if rule.calendar.is_holiday(day):
            begin, end = first_instant(day, timing.zone), first_instant(day + 1, timing.zone)
            slot = next_slot(every_day, max(begin - TICK, after))
            if slot is not None and slot < end:
                target = rule.target_of(day)
                yield LeftOut(date.fromordinal(day), None if target is None else date.fromordinal(target))


def clock_changes(timing: Timing) -> ClockChanges | None:
    """Return how a timing meets clock changes; None for triggers that follow elapsed time or name an instant."""
    pattern = pattern_if_local(timing)
    if pattern is None:
        return None
    chosen = timing.dst_gap is not None or timing.dst_repeat is not None
    return ClockChanges(
        "skip" if pattern.skips_gap else "run_after",
        "both" if pattern.in_both_passes else "first",
        "schedule" if chosen else "set of hours",
    )


def clock_warnings(timing: Timing, now: datetime) -> list[str]:
    """Return a warning for each clock change of the next week that affects slots."""
    pattern = pattern_if_local(timing)
    if pattern is None:
        return []
    warnings = []
    for period in periods(timing.zone, now, now + CLOCK_WARNING_AHEAD):
        if period.since <= now or period.before == period.offset:
            continue
        before, after = ((period.since + change).replace(tzinfo=None) for change in (period.before, period.offset))
        gap = period.offset - period.before > ZERO
        begin, end = (before, after) if gap else (after, before)
        affected = pattern.next_match(begin - TICK)
        if affected is None or affected >= end:
            continue
        if gap:
            result = (
                "has no slot (dst_gap: skip)" if pattern.skips_gap else f"runs at {after:%H:%M} (dst_gap: run_after)"
            )
            text = f"{affected:%H:%M} does not exist: it {result}"
        else:
            result = "both times (dst_repeat: both)" if pattern.in_both_passes else "the first time (dst_repeat: first)"
            text = f"{affected:%H:%M} happens twice: it runs {result}"
        warnings.append(f"on {before:%Y-%m-%d} the clock goes from {before:%H:%M} to {after:%H:%M}; {text}")
    return warnings


def calendar_warnings(timing: Timing, slots: list[Preview]) -> list[str]:
    """Return a warning if slots are later than the holidays of the calendar are known."""
    calendar: Calendar | None = timing.holidays.calendar if timing.holidays else None
    if calendar is None or calendar.until is None or not slots or slots[-1].local.date() <= calendar.until:
        return []
    return [f"holidays of {calendar.name} are known until {calendar.until}: later slots may still move or vanish"]


def resolved_expression(timing: Timing) -> str | None:
    """Return a cron expression with each `H` replaced; None if it has none."""
    match timing.trigger:
        case Cron(expression, seed) if has_spread(expression):
            return without_spread(expression, seed)
        case _:
            return None


def pattern_if_local(timing: Timing) -> LocalPattern | None:
    return local_pattern(timing) if isinstance(timing.trigger, Cron | Recurring) else None
