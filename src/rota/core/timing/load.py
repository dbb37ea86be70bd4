"""Slots per hour of many schedules together. Pure.

Intervals without conditions are counted by their length: the number of slots of all intervals of one length before an
instant follows from where the instant lies among their sorted phases. So a hundred thousand intervals, each with an
anchor of its own, cost a sort. All other timings are counted one by one, equal ones once.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache

import orjson

from rota.core import effort
from rota.core.errors import Invalid
from rota.core.timing import stored
from rota.core.timing.counting import HOUR, count_slots, slots_per_hour
from rota.core.timing.dst import TICK
from rota.core.timing.spread import has_spread, without_spread
from rota.core.timing.triggers import Timing

DISTINCT_TIMINGS_CACHED = 20_000
CONDITIONS = ("window", "starts_at", "ends_at", "calendar", "dst")
WITHOUT_EFFECT = ("jitter_microseconds", "after", "when")  # on the number of slots


@dataclass
class HourlyLoad:
    """Adds up the slots of schedules in each of the hours from `start` on."""

    start: datetime
    hours: int
    singly: list[int] = field(default_factory=list)
    phases: dict[int, list[int]] = field(default_factory=dict)  # by length of the interval, in microseconds

    def __post_init__(self) -> None:
        self.singly = [0] * self.hours

    def add(self, timings: Mapping[str, int]) -> None:
        """Add schedules by their stored timing, with the number of schedules that have it."""
        with effort.unlimited():  # slots are counted by arithmetic, not walked
            others: Counter[str] = Counter()
            for text, count in timings.items():
                data = orjson.loads(text)
                interval = plain_interval(data, self.start)
                if interval is None:
                    others[normalised(data)] += count
                else:
                    span, phase = interval
                    self.phases.setdefault(span, []).extend([phase] * count)
            for text, count in others.items():
                self.add_hours(by_hour(text, self.start, self.hours), count)

    def add_limited(self, text: str, next_slot: datetime, left: int) -> None:
        """Add a schedule that fires only `left` more slots, from `next_slot` on."""
        with effort.unlimited():
            try:
                timing = stored.load(orjson.loads(text))
                last = last_slot(timing, next_slot, left, self.start + self.hours * HOUR)
                self.add_hours(slots_per_hour(replace(timing, ends_at=last), self.start, self.hours), 1)
            except (Invalid, ValueError):
                return

    def add_hours(self, more: list[int] | tuple[int, ...], count: int) -> None:
        self.singly = [sum_so_far + count * slots for sum_so_far, slots in zip(self.singly, more, strict=True)]

    def totals(self) -> list[int]:
        """Return the number of slots in each hour."""
        counts = list(self.singly)
        for span, phases in self.phases.items():
            phases.sort()
            edges = [microseconds(self.start + hour * HOUR) for hour in range(self.hours + 1)]
            before = [len(phases) * (edge // span) + bisect_left(phases, edge % span) for edge in edges]
            counts = [count + after - first for count, first, after in zip(counts, before, before[1:], strict=False)]
        return counts


def plain_interval(data: dict[str, object], start: datetime) -> tuple[int, int] | None:
    """Return length and phase in microseconds of a stored timing that is an interval since before `start` without
    conditions; None for others."""
    match data:
        case {"trigger": {"type": "interval", "microseconds": int(span), "anchor": str(text)}} if span > 0:
            if any(data.get(name) for name in CONDITIONS):
                return None
            anchor = datetime.fromisoformat(text)
            if anchor.tzinfo is None or anchor > start:
                return None
            return span, microseconds(anchor) % span
        case _:
            return None


def microseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // TICK


def normalised(data: dict[str, object]) -> str:
    """Return the text of a stored timing that is the same for timings with the same slots."""
    kept = {name: value for name, value in data.items() if name not in WITHOUT_EFFECT}
    match data.get("trigger"):
        case {"type": "cron", "expression": str(expression), "seed": str(seed)} if has_spread(expression):
            with suppress(Invalid):
                kept["trigger"] = {"type": "cron", "expression": without_spread(expression, seed)}
        case _:
            pass
    return orjson.dumps({**kept, "jitter_microseconds": 0}, option=orjson.OPT_SORT_KEYS).decode()


@lru_cache(DISTINCT_TIMINGS_CACHED)
def by_hour(text: str, start: datetime, hours: int) -> tuple[int, ...]:
    """Return slots per hour of one stored timing; zeros if it is invalid."""
    try:
        return tuple(slots_per_hour(stored.load(orjson.loads(text)), start, hours))
    except (Invalid, ValueError):
        return (0,) * hours


def last_slot(timing: Timing, first: datetime, count: int, until: datetime) -> datetime | None:
    """Return the end of a timing that has only `count` more slots from `first` on, as `ends_at` means it, which is
    exclusive; its own end if those slots reach `until`."""
    before = first - TICK

    def slots_by(at: datetime) -> int:
        slots = count_slots(timing, before, at, count)
        return count + 1 if slots is None else slots

    if slots_by(until) <= count:
        return timing.ends_at
    low, high = before, until  # at most `count` slots by `low`, more by `high`
    while high - low > TICK:
        middle = low + (high - low) // 2
        if slots_by(middle) <= count:
            low = middle
        else:
            high = middle
    return high if timing.ends_at is None else min(high, timing.ends_at)
