"""Slots of a schedule: trigger, time zone, window and bounds. Pure: the caller passes the time; instants are UTC.

Cron expressions and recurrence rules are patterns of local times; `dst.py` converts them to instants by the choices of
the schedule. A calendar removes or moves days of a pattern; of an interval it removes the slots on holidays.

Windows. An instant is inside the window if its local time is, regardless of earlier clock changes. If the trigger has
times of day inside, its slots outside do not exist (also those that a skipped hour pushed out of the window). If it has
none, each slot moves to the next instant inside, unless it was due before the trigger took effect. The times of day of
an interval are computed with the zone's offsets in the year after the anchor: a daily interval that is inside only in
summer has slots only in summer. Slots more than 50 years away do not exist.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from hashlib import blake2b
from math import gcd
from typing import assert_never

from rota.core.effort import spend
from rota.core.errors import Invalid
from rota.core.order import After
from rota.core.timing.calendars import HolidayRule
from rota.core.timing.cron import (
    HORIZON_YEARS,
    MAX_EXPRESSION_LENGTH,
    CronPattern,
    normalize,
    pattern_of,
    with_holidays,
)
from rota.core.timing.dst import (
    SECOND,
    TICK,
    DstGap,
    DstRepeat,
    last_local,
    next_local,
    offset,
    zone_names,
    zone_of,
)
from rota.core.timing.grid import first_in_window, last_in_window
from rota.core.timing.holiday_stretches import end_of_holidays, start_of_holidays
from rota.core.timing.rrule_parts import normalize_rule, parts_of
from rota.core.timing.rrules import RulePattern, check_rule, minutes_of_day, rule_pattern
from rota.core.timing.spread import has_spread, without_spread
from rota.core.timing.windows import (
    Window,
    closing,
    inside,
    last_closing,
    opening,
    since_midnight,
    window_length,
)

DAY = timedelta(days=1)
MAX_SPAN = timedelta(days=3660)  # of an interval or a jitter
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)  # all slots are between these two, so that datetime does not overflow
LATEST = datetime(9900, 1, 1, tzinfo=UTC)
INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A normalized expression, see `parse_cron`."""

    expression: str
    seed: str = ""  # of `H` in the expression, see `spread.py`


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at `anchor + k * span`, k >= 0: no drift."""

    span: timedelta
    anchor: datetime


@dataclass(frozen=True, slots=True)
class Once:
    at: datetime


@dataclass(frozen=True, slots=True)
class Recurring:
    """A normalized recurrence rule, see `rrules.py`. `anchor` is its DTSTART."""

    rule: str
    anchor: datetime
    reaches_back: bool = False  # also has slots before the anchor


Trigger = Cron | Every | Once | Recurring


@dataclass(frozen=True, slots=True)
class Timing:
    """Everything that determines the slots of a schedule. The bounds apply after slots have moved into the window."""

    trigger: Trigger
    zone: str = "UTC"
    window: Window | None = None
    starts_at: datetime | None = None  # slots >= starts_at
    ends_at: datetime | None = None  # slots < ends_at
    jitter: timedelta = timedelta(0)  # upper bound of the schedule's delay
    dst_gap: DstGap | None = None  # None: by the set of hours, see dst.py
    dst_repeat: DstRepeat | None = None
    holidays: HolidayRule | None = None
    after: After | None = None  # whose jobs of the same slot go first; changes no slot


# From text to timing


def parse_cron(expression: object, seed: str = "") -> Cron:
    """Parse a cron expression or macro. `seed` decides what an `H` means. Raises Invalid."""
    if isinstance(expression, str) and has_spread(expression) and len(expression) <= MAX_EXPRESSION_LENGTH:
        text = " ".join(expression.split())
        normalize(without_spread(text, seed))
        return Cron(text.upper(), seed)
    return Cron(normalize(expression))


def parse_rule(rule: object) -> str:
    """Parse a recurrence rule of RFC 5545. Raises Invalid."""
    return normalize_rule(rule)


def parse_interval(value: object, field: str = "interval") -> timedelta:
    """`30s`, `5m`, `2h`, `1d`, `1h30m`, or a number of seconds."""
    span = None
    if isinstance(value, str):
        parts = re.fullmatch(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", value)
        if parts and value:
            days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
            span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        span = timedelta(seconds=min(max(value, 0), 10**9))  # stays out of bounds without an overflow
    if span is None:
        raise Invalid(field, value, "must be a span such as 30s, 5m, 2h, 1d or 1h30m, or a number of seconds")
    if not SECOND <= span <= MAX_SPAN:
        raise Invalid(field, value, f"must be at least 1 second and at most {MAX_SPAN.days} days")
    return span


def parse_zone(value: object, field: str = "timezone") -> str:
    if not isinstance(value, str) or value not in zone_names():
        raise Invalid(field, value, "must be an IANA time zone such as Europe/Oslo or UTC")
    return value


def parse_instant(value: object, field: str) -> datetime:
    """Parse RFC 3339 with offset (seconds are optional), or an aware datetime, to UTC. Raises Invalid."""
    instant = value if isinstance(value, datetime) else None
    try:
        if isinstance(value, str) and re.fullmatch(INSTANT, value):
            instant = datetime.fromisoformat(value.upper())
        if instant and instant.utcoffset() is not None and instant.year >= EARLIEST.year:
            return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # the pattern matches, the date does not exist: 30 February, or is out of range
    raise Invalid(field, value, "must be a timestamp since 1900 with offset, such as 2026-11-20T09:00:00+01:00")


def check_timing(timing: Timing, now: datetime) -> None:
    """Raise Invalid for a `run_at` in the past, bounds in the wrong order, or no slot after `now`."""
    starts_at, ends_at = timing.starts_at, timing.ends_at
    if starts_at and ends_at and starts_at >= ends_at:
        raise Invalid("ends_at", ends_at.isoformat(), f"must be after starts_at, {starts_at.isoformat()}")
    if not timedelta(0) <= timing.jitter <= MAX_SPAN:
        raise Invalid("jitter_seconds", timing.jitter.total_seconds(), f"must be 0 to {MAX_SPAN // SECOND}")
    if isinstance(timing.trigger, Once) and timing.trigger.at <= now:
        raise Invalid("run_at", timing.trigger.at.isoformat(), f"must be in the future; it is {now.isoformat()}")
    if isinstance(timing.trigger, Recurring):
        check_rule(timing.trigger.rule, local_start(timing.trigger.anchor, timing.zone))
    if isinstance(timing.trigger, Cron) and not (starts_at or ends_at or timing.window or timing.holidays):
        cron_pattern(timing.trigger)  # raises if its days never occur
        return
    if next_slot(timing, now, now):
        return
    if ends_at and (slot := next_slot(replace(timing, ends_at=None), now, now)):
        raise Invalid("ends_at", ends_at.isoformat(), f"leaves no slot: the next one is {slot.isoformat()}")
    if starts_at and (slot := next_slot(replace(timing, starts_at=None, ends_at=None), now, now)):
        raise Invalid("starts_at", starts_at.isoformat(), f"leaves no slot: the next one is {slot.isoformat()}")
    if timing.window and next_slot(replace(timing, window=None, starts_at=None, ends_at=None), now):
        raise Invalid("window_start", f"{timing.window.start:%H:%M}", f"meets no slot within {HORIZON_YEARS} years")
    if timing.holidays and next_slot(replace(timing, holidays=None, starts_at=None, ends_at=None), now):
        raise Invalid(
            "on_holiday",
            timing.holidays.on_holiday,
            f"leaves no slot: all are holidays of {timing.holidays.calendar.name}",
        )
    match timing.trigger:
        case Cron(expression):
            raise Invalid("cron_expression", expression, f"has no slot within {HORIZON_YEARS} years")
        case Every(span):
            raise Invalid("interval", span.total_seconds(), f"has no slot within {HORIZON_YEARS} years")
        case Once(at):
            raise Invalid("run_at", at.isoformat(), f"must be before the year {LATEST.year}")
        case Recurring(rule):
            raise Invalid("rrule", rule, f"has no slot after now within {HORIZON_YEARS} years: COUNT or UNTIL ended it")
        case _:
            assert_never(timing.trigger)


# Slots


def reaching_back(timing: Timing, since: datetime) -> Timing:
    """Return the timing with slots before its anchor, from `since` on: an interval on its grid, a recurrence rule
    unless it has a COUNT."""
    match timing.trigger:
        case Every(span, anchor) if anchor > since:
            steps = (anchor - max(since, EARLIEST)) // span
            return replace(timing, trigger=Every(span, anchor - steps * span))
        case Recurring(rule, anchor) if anchor > since and parts_of(rule).count is None:
            return replace(timing, trigger=Recurring(rule, anchor, reaches_back=True))
        case _:
            return timing


def next_slot(timing: Timing, after: datetime, since: datetime | None = None) -> datetime | None:
    """Return the first slot strictly after `after`; None if no slot is left. Slots due up to `since`, when the trigger
    took effect, do not move into a later window."""
    after = in_utc(after)
    if timing.starts_at and after < timing.starts_at:
        after = timing.starts_at - TICK
    if not EARLIEST <= after < LATEST:
        if after >= LATEST:
            return None
        after = EARLIEST
    slot = next_in_bounds(timing, after, since)
    if timing.holidays and isinstance(timing.trigger, Every):
        while slot and (end := end_of_holidays(timing.holidays, timing.zone, slot)):
            spend()
            slot = next_in_bounds(timing, end - TICK, None) if end < LATEST else None
    if slot is None or slot >= (timing.ends_at or LATEST):
        return None
    return slot


def next_in_bounds(timing: Timing, after: datetime, since: datetime | None) -> datetime | None:
    if timing.window is None:
        return next_of_trigger(timing, after)
    return next_in_window(timing, timing.window, after, since)


def last_slot(timing: Timing, until: datetime, since: datetime) -> datetime | None:
    """Return the latest slot with `since < slot <= until`, searching backwards: the cost does not grow with the gap."""
    until, since = min(in_utc(until), LATEST - TICK), max(in_utc(since), EARLIEST)
    if timing.starts_at:
        since = max(since, timing.starts_at - TICK)
    if timing.ends_at:
        until = min(until, timing.ends_at - TICK)
    if until <= since:
        return None
    slot = last_in_bounds(timing, until, since)
    if timing.holidays and isinstance(timing.trigger, Every):
        while slot and slot > since and (start := start_of_holidays(timing.holidays, timing.zone, slot)):
            spend()
            slot = last_in_bounds(timing, start - TICK, since)
    return slot if slot and slot > since else None


def last_in_bounds(timing: Timing, until: datetime, since: datetime) -> datetime | None:
    if timing.window is None:
        return last_of_trigger(timing, until)
    return last_of_window(timing, timing.window, until, since)


def slots_between(
    timing: Timing, after: datetime, until: datetime, since: datetime | None = None
) -> Iterator[datetime]:
    """Yield each slot with `after < slot <= until`, ascending; `since` as in `next_slot`."""
    slot, until = next_slot(timing, after, since), in_utc(until)
    while slot and slot <= until:
        yield slot
        spend()
        slot = next_slot(timing, slot)


def run_at(schedule_id: str, slot: datetime, jitter: timedelta) -> datetime:
    """Return when the slot is due: the slot plus the delay of the schedule."""
    return slot + delay_of(schedule_id, jitter)


def delay_of(schedule_id: str, jitter: timedelta) -> timedelta:
    """Return the delay of all slots of a schedule: below `jitter`, the same in every process (hash of the id)."""
    if not jitter:
        return jitter
    digest = blake2b(schedule_id.encode(), digest_size=8).digest()
    return TICK * (jitter // TICK * int.from_bytes(digest) >> 64)


# Windows


def window_open(timing: Timing, at: datetime) -> datetime:
    """Return the first instant from `at` on that is inside the window; `at` itself without a window."""
    at = in_utc(at)
    return opening(timing.window, zone_of(timing.zone), at) if timing.window else at


def window_close(timing: Timing, at: datetime) -> datetime | None:
    """Return when the window that contains `at`, or else the next one, closes; None without a window."""
    at, window, zone = in_utc(at), timing.window, zone_of(timing.zone)
    return closing(window, zone, opening(window, zone, at)) if window else None


# Triggers without window and bounds


def next_of_trigger(timing: Timing, after: datetime) -> datetime | None:
    match timing.trigger:
        case Every(span, anchor):
            slot = anchor + span * max(0, (after - anchor) // span + 1)
            return slot if slot < LATEST else None
        case Once(at):
            return at if after < at < LATEST else None
        case _:
            return next_local(local_pattern(timing), zone_of(timing.zone), after)


def last_of_trigger(timing: Timing, until: datetime) -> datetime | None:
    match timing.trigger:
        case Every(span, anchor):
            return anchor + span * ((until - anchor) // span) if until >= anchor else None
        case Once(at):
            return at if at <= until else None
        case _:
            return last_local(local_pattern(timing), zone_of(timing.zone), until)


def local_pattern(timing: Timing) -> CronPattern | RulePattern:
    """Return the local times of a cron expression or recurrence rule, with the choices of the schedule."""
    match timing.trigger:
        case Cron() as cron if timing.dst_gap is None and timing.dst_repeat is None and timing.holidays is None:
            return cron_pattern(cron)
        case Cron() | Recurring() as trigger:
            return chosen_pattern(trigger, timing.zone, timing.dst_gap, timing.dst_repeat, timing.holidays)
        case _:
            raise TypeError(f"{timing.trigger} has no local times")


def cron_pattern(cron: Cron) -> CronPattern:
    """Return the pattern of an expression, by the rules for schedules that choose nothing."""
    expression = cron.expression
    return pattern_of(without_spread(expression, cron.seed) if "H" in expression else expression)


@lru_cache(maxsize=4096)
def chosen_pattern(
    trigger: Cron | Recurring, zone: str, gap: DstGap | None, repeat: DstRepeat | None, holidays: HolidayRule | None
) -> CronPattern | RulePattern:
    skips_gap = None if gap is None else gap == "skip"
    in_both_passes = None if repeat is None else repeat == "both"
    if isinstance(trigger, Recurring):
        start = local_start(trigger.anchor, zone)
        rule = rule_pattern(trigger.rule, start, zone, skips_gap, in_both_passes)
        return replace(rule, holidays=holidays, reaches_back=trigger.reaches_back)
    cron = cron_pattern(trigger)
    cron = cron._replace(
        skips_gap=cron.skips_gap if skips_gap is None else skips_gap,
        in_both_passes=cron.in_both_passes if in_both_passes is None else in_both_passes,
    )
    return cron if holidays is None else with_holidays(cron, holidays)


def local_start(anchor: datetime, zone: str) -> datetime:
    return anchor.astimezone(zone_of(zone)).replace(tzinfo=None, fold=0)


# Triggers in a window


def next_in_window(timing: Timing, window: Window, after: datetime, since: datetime | None) -> datetime | None:
    trigger, zone = timing.trigger, zone_of(timing.zone)
    if moves_into_window(trigger, timing.zone, window):
        if not inside(window, zone, after):
            after = last_closing(window, zone, after) - TICK  # slots due since then move into the window
            after = max(after, since) if since else after
        slot = next_of_trigger(timing, after)
        return opening(window, zone, slot) if slot else None
    end = after + HORIZON_YEARS * 366 * DAY
    if isinstance(trigger, Every):
        bounds = since_midnight(window.start), window_length(window)
        return first_in_window(trigger.span, trigger.anchor, *bounds, timing.zone, after, min(end, LATEST))
    slot = next_of_trigger(timing, after)
    while slot and not inside(window, zone, slot):
        spend()
        slot = next_of_trigger(timing, opening(window, zone, slot) - TICK) if slot < end else None
    return slot


def last_of_window(timing: Timing, window: Window, until: datetime, since: datetime) -> datetime | None:
    trigger, zone = timing.trigger, zone_of(timing.zone)
    if moves_into_window(trigger, timing.zone, window):
        if not inside(window, zone, until):
            until = last_closing(window, zone, until) - TICK  # slots due since then have not moved yet
        slot = last_of_trigger(timing, until)
        return opening(window, zone, slot) if slot else None
    since = max(since, until - HORIZON_YEARS * 366 * DAY)
    if isinstance(trigger, Every):
        bounds = since_midnight(window.start), window_length(window)
        return last_in_window(trigger.span, trigger.anchor, *bounds, timing.zone, until, since)
    slot = last_of_trigger(timing, until)
    while slot and not inside(window, zone, slot):
        spend()
        slot = last_of_trigger(timing, last_closing(window, zone, slot) - TICK) if slot > since else None
    return slot


@lru_cache(maxsize=4096)
def moves_into_window(trigger: Trigger, zone: str, window: Window) -> bool:
    """Whether the trigger has no time of day inside the window, so that its slots move into it."""
    match trigger:
        case Cron() as cron:
            return not any(window.holds(time(*divmod(minute, 60))) for minute in cron_pattern(cron).times)
        case Recurring(rule, anchor):
            minutes = minutes_of_day(rule, local_start(anchor, zone))
            return not any(window.holds(time(*divmod(minute, 60))) for minute in minutes)
        case Every(span, anchor):
            grid = TICK * gcd(span // TICK, DAY // TICK)  # its times of day are the multiples of this, shifted
            length = window_length(window)
            start = min(anchor, LATEST)
            changes = {offset(zone_of(zone), start + timedelta(weeks=week)) for week in range(53)}
            lead = since_midnight(anchor.time()) - since_midnight(window.start)
            return not any((lead + change) % grid < length for change in changes)
        case Once(at):
            return not inside(window, zone_of(zone), at)
        case _:
            assert_never(trigger)


# Helpers


def in_utc(at: datetime) -> datetime:
    if at.tzinfo is UTC:
        return at
    if at.utcoffset() is None:
        raise ValueError(f"{at} has no offset: instants are UTC")
    return at.astimezone(UTC)
