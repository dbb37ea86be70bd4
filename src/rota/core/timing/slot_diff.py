"""Difference between the slots of two timings, and what the new slots meet: holidays, freezes, their own runs. Pure.

A slot is moved if its local day loses as many slots as it gains. Without such a day, slots are moved if removed and
added ones alternate, such as Mondays that became Tuesdays. All other slots are added or removed.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import islice, pairwise

from rota.core.timing.calendars import Calendar
from rota.core.timing.dst import zone_of
from rota.core.timing.triggers import Timing, slots_between

COMPARED_SLOTS_MAX = 10_000  # of each timing; later slots are not compared
CLASH_DAYS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PlannedSlots:
    """Slots of a timing in a span of time; `until` is earlier than the end of the span if there are too many."""

    slots: tuple[datetime, ...]
    until: datetime


@dataclass(frozen=True, slots=True)
class SlotDiff:
    """Slots that a change adds, removes and moves, up to `until`. `before` and `after` count the slots of each."""

    added: list[datetime]
    removed: list[datetime]
    moved: list[tuple[datetime, datetime]]
    before: int
    after: int
    until: datetime


@dataclass(frozen=True, slots=True)
class BlockedSpan:
    """A span of time in which slots do not fire, such as a freeze; None: without an end."""

    name: str
    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Clash:
    """Slots that fall on holidays of a calendar, or into a span in which nothing fires."""

    type: str  # calendar or freeze
    name: str
    count: int
    days: list[date]  # the first of them, in the zone of the schedule


def planned_slots(
    timing: Timing | None, after: datetime, until: datetime, left: int | None = None, most: int = COMPARED_SLOTS_MAX
) -> PlannedSlots:
    """Return the slots in `after < slot <= until`, up to `most`. None has no slots; `left` is the number of slots that
    may still fire, if that is limited."""
    if timing is None or left == 0:
        return PlannedSlots((), until)
    slots = tuple(islice(slots_between(timing, after, until, after), most if left is None else min(left, most)))
    is_cut = len(slots) == most and left != most
    return PlannedSlots(slots, slots[-1] if is_cut else until)


def diff_slots(before: PlannedSlots, after: PlannedSlots, zone: str) -> SlotDiff:
    """Compare two lists of slots up to the earlier of their ends. `zone` decides about local days."""
    until = min(before.until, after.until)
    old = {slot for slot in before.slots if slot <= until}
    new = {slot for slot in after.slots if slot <= until}
    removed, added, moved = pair_by_day(sorted(old - new), sorted(new - old), zone)
    if not moved and alternate(removed, added):
        moved = list(zip(removed, added, strict=False))
        removed, added = removed[len(moved) :], added[len(moved) :]
    return SlotDiff(added, removed, moved, len(old), len(new), until)


def pair_by_day(
    removed: Sequence[datetime], added: Sequence[datetime], zone: str
) -> tuple[list[datetime], list[datetime], list[tuple[datetime, datetime]]]:
    """Return the slots that are removed, added and moved: those of days that lose as many slots as they gain."""
    tz = zone_of(zone)
    days: dict[date, tuple[list[datetime], list[datetime]]] = defaultdict(lambda: ([], []))
    for side, slots in enumerate((removed, added)):
        for slot in slots:
            days[slot.astimezone(tz).date()][side].append(slot)
    even = [sides for _, sides in sorted(days.items()) if len(sides[0]) == len(sides[1])]
    moved = [pair for sides in even for pair in zip(*sides, strict=True)]
    gone, come = {old for old, _ in moved}, {new for _, new in moved}
    return [slot for slot in removed if slot not in gone], [slot for slot in added if slot not in come], moved


def alternate(removed: Sequence[datetime], added: Sequence[datetime]) -> bool:
    """Whether a removed and an added slot follow each other in turns."""
    sides = [side for _, side in sorted([*((slot, 0) for slot in removed), *((slot, 1) for slot in added)])]
    return all(earlier != later for earlier, later in pairwise(sides))


def calendar_clashes(slots: Sequence[datetime], zone: str, calendars: Collection[Calendar]) -> list[Clash]:
    """Return the calendars on whose holidays slots fall."""
    tz = zone_of(zone)
    days = [slot.astimezone(tz).date() for slot in slots]
    clashes = []
    for calendar in calendars:
        is_holiday = {day: calendar.is_holiday(day.toordinal()) for day in set(days)}
        holidays = [day for day in days if is_holiday[day]]
        if holidays:
            clashes.append(Clash("calendar", calendar.name, len(holidays), sorted(set(holidays))[:CLASH_DAYS_SHOWN]))
    return clashes


def freeze_clashes(slots: Sequence[datetime], zone: str, spans: Collection[BlockedSpan]) -> list[Clash]:
    """Return the spans in which slots do not fire."""
    tz = zone_of(zone)
    clashes = []
    for span in spans:
        inside = [slot for slot in slots if span.start <= slot and (span.end is None or slot < span.end)]
        if inside:
            days = sorted({slot.astimezone(tz).date() for slot in inside})
            clashes.append(Clash("freeze", span.name, len(inside), days[:CLASH_DAYS_SHOWN]))
    return clashes


def shortest_gap(slots: Sequence[datetime]) -> timedelta | None:
    """Return the shortest time between two slots; None if there are fewer than two."""
    return min((later - earlier for earlier, later in pairwise(slots)), default=None)
