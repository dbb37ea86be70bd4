"""Fair shares of a claim: how many jobs a worker claims from each lane (org, queue). Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """Ready work of one org in one queue. `cap` is how much of it may start now; None is without limit."""

    org_id: str
    queue: str
    cap: int | None = None


def divide_claims(
    lanes: Sequence[Lane], room: int, turn: int, org_room: Mapping[str, int] = MappingProxyType({})
) -> list[tuple[Lane, int]]:
    """Divide the room fairly: first among orgs, then among an org's queues; whoever came last goes first next time. An
    org gets at most its `org_room`, where it has one."""
    by_org: dict[str, list[Lane]] = defaultdict(list)
    for lane in lanes:
        if lane.cap is None or lane.cap > 0:
            by_org[lane.org_id].append(lane)
    given: list[tuple[Lane, int]] = []
    for org, part in zip(rotate(list(by_org), turn), split_evenly(room, len(by_org)), strict=True):
        part, queues = min(part, org_room.get(org, part)), rotate(by_org[org], turn)
        for lane, count in zip(queues, split_evenly(part, len(queues)), strict=True):
            count = count if lane.cap is None else min(count, lane.cap)
            if count:
                given.append((lane, count))
    return given


def split_evenly(room: int, among: int) -> list[int]:
    """`room` in `among` parts that differ by one at the most."""
    if not among:
        return []
    each, rest = divmod(room, among)
    return [each + (position < rest) for position in range(among)]


def rotate(items: list[T], turn: int) -> list[T]:
    at = turn % len(items) if items else 0
    return items[at:] + items[:at]
