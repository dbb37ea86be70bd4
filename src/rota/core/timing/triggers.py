"""When a schedule is due. Pure: the caller brings the time, and every instant is UTC.

How cron meets a clock change: see `wall.py`. Fixed times are never lost and never doubled; an expression that has all
24 hours follows elapsed time.

How a window meets a trigger. An instant is inside the window when its local wall time is, whatever the clock did
before. If the trigger has times of day inside, its slots outside do not exist (also those that a gap pushed out of
the window). If it has none, each slot moves to the next instant inside, unless it was due before the trigger began to
rule. An interval's times of day are
judged by the offsets that the zone has in the year after the anchor: a daily interval that is inside only in summer
has slots only in summer. Nothing further away than 50 years is a slot.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, timezone
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from math import gcd
from typing import Any, assert_never
from zoneinfo import ZoneInfo

from rota.core.effort import spend
from rota.core.errors import Invalid
from rota.core.timing.cron import HORIZON, calendar_of, tidy
from rota.core.timing.describe import cron_words, moment_words, span_words
from rota.core.timing.dst import (
    SECOND,
    TICK,
    clock_note,
    last_cron,
    next_change,
    next_cron,
    offset,
    zone_names,
    zone_of,
)
from rota.core.timing.grid import first_in_window, last_in_window

DAY = timedelta(days=1)
LONGEST = timedelta(days=3660)
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)  # slots lie between these two, so no step leaves what datetime can hold
LATEST = datetime(9900, 1, 1, tzinfo=UTC)
INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked expression, see `parse_cron`."""

    expression: str


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at `anchor + k * span`, k >= 0: no drift."""

    span: timedelta
    anchor: datetime


@dataclass(frozen=True, slots=True)
class Once:
    at: datetime


Trigger = Cron | Every | Once


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open, on the wall of the schedule's zone; `start > end` crosses midnight."""

    start: time
    end: time

    def holds(self, wall: time) -> bool:
        if self.start < self.end:
            return self.start <= wall < self.end
        return wall >= self.start or wall < self.end


@dataclass(frozen=True, slots=True)
class Timing:
    """Everything that decides when a schedule is due. The bounds apply to the final slots."""

    trigger: Trigger
    zone: str = "UTC"
    window: Window | None = None
    starts_at: datetime | None = None  # slots >= starts_at
    ends_at: datetime | None = None  # slots < ends_at
    jitter: timedelta = timedelta(0)  # upper bound of the schedule's delay


@dataclass(frozen=True, slots=True)
class Preview:
    """A coming slot as people see it; `note` says how a clock change touches it."""

    at: datetime
    local: datetime  # a plain offset: with the zone inside, Python would call no twofold hour equal to `at`
    note: str | None


# From text to timing


def parse_cron(expression: object) -> Cron:
    return Cron(tidy(expression))


def parse_interval(value: object, field: str = "interval") -> timedelta:
    """`30s`, `5m`, `2h`, `1d`, `1h30m`, or a number of seconds."""
    span = None
    if isinstance(value, str):
        parts = re.fullmatch(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", value)
        if parts and value:
            days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
            span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        span = timedelta(seconds=min(max(value, 0), 10**9))  # out of bounds, but not so far that it overflows
    if span is None:
        raise Invalid(field, value, "must be a span such as 30s, 5m, 2h, 1d or 1h30m, or a number of seconds")
    if not SECOND <= span <= LONGEST:
        raise Invalid(field, value, f"must be at least 1 second and at most {LONGEST.days} days")
    return span


def parse_zone(value: object, field: str = "timezone") -> str:
    if not isinstance(value, str) or value not in zone_names():
        raise Invalid(field, value, "must be an IANA time zone such as Europe/Oslo or UTC")
    return value


def parse_window(start: object, end: object) -> Window | None:
    """Two wall times `HH:MM`, or None twice."""
    if start is None and end is None:
        return None
    window = Window(parse_wall(start, "window_start"), parse_wall(end, "window_end"))
    if window.start == window.end:
        raise Invalid("window_end", end, "must differ from window_start")
    return window


def parse_instant(value: object, field: str) -> datetime:
    """RFC 3339 with offset (seconds may be left out), or an aware datetime."""
    found = value if isinstance(value, datetime) else None
    try:
        if isinstance(value, str) and re.fullmatch(INSTANT, value):
            found = datetime.fromisoformat(value.upper())
        if found and found.utcoffset() is not None and found.year >= EARLIEST.year:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # the pattern fits, the date does not: 30 February, an hour after the end of time
    raise Invalid(field, value, "must be a moment since 1900 with offset, such as 2026-11-20T09:00:00+01:00")


def check_timing(timing: Timing, now: datetime) -> None:
    """Refuse a timing that cannot be meant: a past moment, bounds in the wrong order, no slot left after `now`."""
    starts_at, ends_at = timing.starts_at, timing.ends_at
    if starts_at and ends_at and starts_at >= ends_at:
        raise Invalid("ends_at", ends_at.isoformat(), f"must be after starts_at, {starts_at.isoformat()}")
    if not timedelta(0) <= timing.jitter <= LONGEST:
        raise Invalid("jitter_seconds", timing.jitter.total_seconds(), f"must be 0 to {LONGEST // SECOND}")
    if isinstance(timing.trigger, Once) and timing.trigger.at <= now:
        raise Invalid("run_at", timing.trigger.at.isoformat(), f"must be in the future; it is {now.isoformat()}")
    if isinstance(timing.trigger, Cron) and not (starts_at or ends_at or timing.window):
        calendar_of(timing.trigger.expression)  # its days come again and again, or it is refused
        return
    if next_slot(timing, now, now):
        return
    if ends_at and (slot := next_slot(replace(timing, ends_at=None), now, now)):
        raise Invalid("ends_at", ends_at.isoformat(), f"leaves no slot: the next one is {slot.isoformat()}")
    if starts_at and (slot := next_slot(replace(timing, starts_at=None, ends_at=None), now, now)):
        raise Invalid("starts_at", starts_at.isoformat(), f"leaves no slot: the next one is {slot.isoformat()}")
    if timing.window and next_slot(replace(timing, window=None, starts_at=None, ends_at=None), now):
        raise Invalid("window_start", f"{timing.window.start:%H:%M}", f"meets no slot within {HORIZON} years")
    match timing.trigger:
        case Cron(expression):
            raise Invalid("cron_expression", expression, f"has no slot within {HORIZON} years")
        case Every(span):
            raise Invalid("interval", span.total_seconds(), f"has no slot within {HORIZON} years")
        case Once(at):
            raise Invalid("run_at", at.isoformat(), f"must be before the year {LATEST.year}")
        case _:
            assert_never(timing.trigger)


# Slots


def reaching_back(timing: Timing, since: datetime) -> Timing:
    """The same timing; an interval also has the slots of its grid from `since` up to its anchor."""
    match timing.trigger:
        case Every(span, anchor) if anchor > since:
            steps = (anchor - max(since, EARLIEST)) // span
            return replace(timing, trigger=Every(span, anchor - steps * span))
        case _:
            return timing


def next_slot(timing: Timing, after: datetime, since: datetime | None = None) -> datetime | None:
    """The first slot strictly after `after`; None when none is left. What was due up to `since`, when the trigger began
    to rule, does not move into a later window."""
    after = in_utc(after)
    if timing.starts_at and after < timing.starts_at:
        after = timing.starts_at - TICK
    if not EARLIEST <= after < LATEST:
        if after >= LATEST:
            return None
        after = EARLIEST
    if timing.window is None:
        slot = upcoming(timing.trigger, timing.zone, after)
    else:
        slot = upcoming_in_window(timing, timing.window, after, since)
    if slot is None or slot >= (timing.ends_at or LATEST):
        return None
    return slot


def last_slot(timing: Timing, until: datetime, since: datetime) -> datetime | None:
    """The latest slot with `since < slot <= until`, by walking back: the length of the gap costs nothing."""
    until, since = min(in_utc(until), LATEST - TICK), max(in_utc(since), EARLIEST)
    if timing.starts_at:
        since = max(since, timing.starts_at - TICK)
    if timing.ends_at:
        until = min(until, timing.ends_at - TICK)
    if until <= since:
        return None
    if timing.window is None:
        slot = latest(timing.trigger, timing.zone, until)
    else:
        slot = latest_in_window(timing, timing.window, until, since)
    return slot if slot and slot > since else None


def slots_between(
    timing: Timing, after: datetime, until: datetime, since: datetime | None = None
) -> Iterator[datetime]:
    """Each slot with `after < slot <= until`, ascending; `since` as in `next_slot`."""
    slot, until = next_slot(timing, after, since), in_utc(until)
    while slot and slot <= until:
        yield slot
        spend()
        slot = next_slot(timing, slot)


def run_at(schedule_id: str, slot: datetime, jitter: timedelta) -> datetime:
    """The slot plus the schedule's delay."""
    return slot + delay_of(schedule_id, jitter)


def delay_of(schedule_id: str, jitter: timedelta) -> timedelta:
    """By how much all slots of a schedule are delayed: the same in every process, below `jitter`."""
    if not jitter:
        return jitter
    digest = blake2b(schedule_id.encode(), digest_size=8).digest()
    return TICK * (jitter // TICK * int.from_bytes(digest) >> 64)


# Windows


def window_open(timing: Timing, at: datetime) -> datetime:
    """`at` when it is inside the window or there is none, else the next moment inside."""
    at = in_utc(at)
    return opening(timing.window, zone_of(timing.zone), at) if timing.window else at


def window_close(timing: Timing, at: datetime) -> datetime | None:
    """When the window that holds `at` closes (outside: the next one); None without a window."""
    at, window, zone = in_utc(at), timing.window, zone_of(timing.zone)
    return closing(window, zone, opening(window, zone, at)) if window else None


# For people


def describe(timing: Timing) -> str:
    """The timing in a short English phrase."""
    zone, window = zone_of(timing.zone), timing.window
    match timing.trigger:
        case Cron(expression):
            text, on_the_wall = cron_words(calendar_of(expression))
        case Every(span):
            text, on_the_wall = f"every {span_words(span)}", False
        case Once(at):
            text, on_the_wall = f"once at {moment_words(at.astimezone(zone))}", True
        case _:
            assert_never(timing.trigger)
    if on_the_wall:
        text += f" ({timing.zone})"
    if window:
        moved = moves(timing.trigger, timing.zone, window)
        hours = f"{window.start:%H:%M} and {window.end:%H:%M}"
        text += f", moved to the window between {hours}" if moved else f", between {hours}"
        text += "" if on_the_wall else f" ({timing.zone})"
    if timing.starts_at:
        text += f", from {moment_words(timing.starts_at)} UTC"
    if timing.ends_at:
        text += f", until {moment_words(timing.ends_at)} UTC"
    if timing.jitter:
        text += f", up to {span_words(timing.jitter, one='1 ')} later"
    return text


def preview(timing: Timing, after: datetime, count: int, since: datetime | None = None) -> list[Preview]:
    """The next `count` slots; `since` as in `next_slot`."""
    zone, trigger = zone_of(timing.zone), timing.trigger
    calendar = calendar_of(trigger.expression) if isinstance(trigger, Cron) else None
    slots = islice(slots_between(timing, after, LATEST, since), count)
    return [
        Preview(slot, slot.astimezone(timezone(offset(zone, slot))), clock_note(calendar, zone, slot)) for slot in slots
    ]


# To plain data and back


def dump(timing: Timing) -> dict[str, Any]:
    """Plain JSON; `load` gives an equal timing."""
    match timing.trigger:
        case Cron(expression):
            trigger: dict[str, Any] = {"type": "cron", "expression": expression}
        case Every(span, anchor):
            trigger = {"type": "interval", "microseconds": span // TICK, "anchor": anchor.isoformat()}
        case Once(at):
            trigger = {"type": "once", "at": at.isoformat()}
        case _:
            assert_never(timing.trigger)
    window = timing.window
    return {
        "trigger": trigger,
        "zone": timing.zone,
        "window": [window.start.isoformat(), window.end.isoformat()] if window else None,
        "starts_at": timing.starts_at.isoformat() if timing.starts_at else None,
        "ends_at": timing.ends_at.isoformat() if timing.ends_at else None,
        "jitter_microseconds": timing.jitter // TICK,
    }


def load(data: dict[str, Any]) -> Timing:
    """What `dump` gave; anything else is refused, so that a damaged row is named as such."""
    try:
        match data["trigger"]:
            case {"type": "cron", "expression": expression}:
                trigger: Trigger = parse_cron(expression)
            case {"type": "interval", "microseconds": int(span), "anchor": anchor} if span > 0:
                trigger = Every(TICK * span, parse_instant(anchor, "anchor"))
            case {"type": "once", "at": at}:
                trigger = Once(parse_instant(at, "run_at"))
            case _:
                raise ValueError
        bounds = [parse_instant(data[key], key) if data[key] else None for key in ("starts_at", "ends_at")]
        window = Window(*map(time.fromisoformat, data["window"])) if data["window"] else None
        jitter = TICK * data["jitter_microseconds"]
        return Timing(trigger, parse_zone(data["zone"]), window, bounds[0], bounds[1], jitter)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise Invalid("timing", data, "is not a stored timing") from None


# Triggers without window and bounds


def upcoming(trigger: Trigger, zone: str, after: datetime) -> datetime | None:
    match trigger:
        case Cron(expression):
            return next_cron(calendar_of(expression), zone_of(zone), after)
        case Every(span, anchor):
            slot = anchor + span * max(0, (after - anchor) // span + 1)
            return slot if slot < LATEST else None
        case Once(at):
            return at if after < at < LATEST else None
        case _:
            assert_never(trigger)


def latest(trigger: Trigger, zone: str, until: datetime) -> datetime | None:
    match trigger:
        case Cron(expression):
            return last_cron(calendar_of(expression), zone_of(zone), until)
        case Every(span, anchor):
            return anchor + span * ((until - anchor) // span) if until >= anchor else None
        case Once(at):
            return at if at <= until else None
        case _:
            assert_never(trigger)


# Triggers in a window


def upcoming_in_window(timing: Timing, window: Window, after: datetime, since: datetime | None) -> datetime | None:
    trigger, zone = timing.trigger, zone_of(timing.zone)
    if moves(trigger, timing.zone, window):
        if not inside(window, zone, after):
            after = last_closing(window, zone, after) - TICK  # what was due since then waits for the window
            after = max(after, since) if since else after
        slot = upcoming(trigger, timing.zone, after)
        return opening(window, zone, slot) if slot else None
    end = after + HORIZON * 366 * DAY
    if isinstance(trigger, Every):
        bounds = since_midnight(window.start), window_length(window)
        return first_in_window(trigger.span, trigger.anchor, *bounds, timing.zone, after, min(end, LATEST))
    slot = upcoming(trigger, timing.zone, after)
    while slot and not inside(window, zone, slot):
        spend()
        slot = upcoming(trigger, timing.zone, opening(window, zone, slot) - TICK) if slot < end else None
    return slot


def latest_in_window(timing: Timing, window: Window, until: datetime, since: datetime) -> datetime | None:
    trigger, zone = timing.trigger, zone_of(timing.zone)
    if moves(trigger, timing.zone, window):
        if not inside(window, zone, until):
            until = last_closing(window, zone, until) - TICK  # what was due since then is not here yet
        slot = latest(trigger, timing.zone, until)
        return opening(window, zone, slot) if slot else None
    since = max(since, until - HORIZON * 366 * DAY)
    if isinstance(trigger, Every):
        bounds = since_midnight(window.start), window_length(window)
        return last_in_window(trigger.span, trigger.anchor, *bounds, timing.zone, until, since)
    slot = latest(trigger, timing.zone, until)
    while slot and not inside(window, zone, slot):
        spend()
        slot = latest(trigger, timing.zone, last_closing(window, zone, slot) - TICK) if slot > since else None
    return slot


@lru_cache(maxsize=4096)
def moves(trigger: Trigger, zone: str, window: Window) -> bool:
    """Whether the trigger has no time of day inside the window, so that its slots move there."""
    match trigger:
        case Cron(expression):
            return not any(window.holds(time(*divmod(minute, 60))) for minute in calendar_of(expression).times)
        case Every(span, anchor):
            grid = TICK * gcd(span // TICK, DAY // TICK)  # its times of day are all those that lie on this grid
            length = window_length(window)
            start = min(anchor, LATEST)
            changes = {offset(zone_of(zone), start + timedelta(weeks=week)) for week in range(53)}
            lead = since_midnight(anchor.time()) - since_midnight(window.start)
            return not any((lead + change) % grid < length for change in changes)
        case Once(at):
            return not inside(window, zone_of(zone), at)
        case _:
            assert_never(trigger)


def inside(window: Window, zone: ZoneInfo, at: datetime) -> bool:
    return window.holds(at.astimezone(zone).time())


def opening(window: Window, zone: ZoneInfo, at: datetime) -> datetime:
    """The first instant from `at` on that is inside."""
    while not inside(window, zone, at):
        ahead_of_us = (since_midnight(window.start) - since_midnight(at.astimezone(zone).time())) % DAY
        change = next_change(zone, at, at + ahead_of_us)
        if change is None:
            return at + ahead_of_us
        at = change
    return at


def closing(window: Window, zone: ZoneInfo, at: datetime) -> datetime:
    """The first instant from `at` on that is outside."""
    while inside(window, zone, at):
        ahead_of_us = (since_midnight(window.end) - since_midnight(at.astimezone(zone).time())) % DAY
        change = next_change(zone, at, at + ahead_of_us)
        if change is None:
            return at + ahead_of_us
        at = change
    return at


def last_closing(window: Window, zone: ZoneInfo, at: datetime) -> datetime:
    """When the window before `at`, which is outside, closed."""
    while True:
        behind_us = (since_midnight(at.astimezone(zone).time()) - since_midnight(window.end)) % DAY
        change = next_change(zone, at - behind_us, at)
        if change is None:
            return at - behind_us
        at = change - TICK
        if inside(window, zone, at):
            return change


# Small things


def in_utc(at: datetime) -> datetime:
    if at.tzinfo is UTC:
        return at
    if at.utcoffset() is None:
        raise ValueError(f"{at} has no offset: instants are UTC")
    return at.astimezone(UTC)


def window_length(window: Window) -> timedelta:
    return (since_midnight(window.end) - since_midnight(window.start)) % DAY


def since_midnight(wall: time) -> timedelta:
    return timedelta(hours=wall.hour, minutes=wall.minute, seconds=wall.second, microseconds=wall.microsecond)


def parse_wall(value: object, field: str) -> time:
    if not isinstance(value, str) or not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", value):
        raise Invalid(field, value, "must be a wall time HH:MM such as 22:00, and both ends of a window are needed")
    return time.fromisoformat(value)
