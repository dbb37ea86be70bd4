"""Fair shares of a claim: how many jobs a worker claims from each lane (org, queue). Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """The ready jobs of one org in one queue. `cap` is how many of them may start now; None: no limit."""

    org_id: str
    queue: str
    cap: int | None = None


def divide_claims(
    lanes: Sequence[Lane], room: int, turn: int, org_room: Mapping[str, int] = MappingProxyType({})
) -> list[tuple[Lane, int]]:
    """Divide `room` fairly among orgs, then among an org's queues. `turn` rotates the order, so that the remainder
    goes to another lane each time. An org gets at most its `org_room`. Returns lanes with their counts."""
    by_org: dict[str, list[Lane]] = defaultdict(list)
    for lane in lanes:
        if lane.cap is None or lane.cap > 0:
            by_org[lane.org_id].append(lane)
    counts: list[tuple[Lane, int]] = []
    for org, share in zip(rotate(list(by_org), turn), split_evenly(room, len(by_org)), strict=True):
        share, queues = min(share, org_room.get(org, share)), rotate(by_org[org], turn)
        for lane, count in zip(queues, split_evenly(share, len(queues)), strict=True):
            count = count if lane.cap is None else min(count, lane.cap)
            if count:
                counts.append((lane, count))
    return counts


def split_evenly(room: int, parts: int) -> list[int]:
    """Split `room` into `parts` numbers that differ by at most one."""
    if not parts:
        return []
    share, remainder = divmod(room, parts)
    return [share + (position < remainder) for position in range(parts)]


def rotate(items: list[T], turn: int) -> list[T]:
    """Return the items in the same cyclic order, starting at `turn`."""
    start = turn % len(items) if items else 0
    return items[start:] + items[:start]
