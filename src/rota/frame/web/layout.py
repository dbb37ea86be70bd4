"""Places of boxes in columns and routes of arrows between them (layered drawing after Sugiyama). Pure.

An arrow that skips columns passes between the boxes of those; one that points back, in a cycle, turns round beside its
first box, passes below or above boxes and turns again. Each such passage is a place of a column, as a box is, only
lower.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SWEEPS = 6  # over all columns, to reduce crossings
STRAIGHTENING_ROUNDS = 4
PASSAGE = 12.0  # height of the place of an arrow in a column

Edge = tuple[str, str]
Key = str | tuple[int, int]  # of a box, or (edge, column) of a passage


@dataclass(frozen=True, slots=True)
class Route:
    """The passages of an arrow from its first box to its last."""

    passages: list[tuple[int, float]]  # columns with the middle of the place there
    back: bool  # it points to the left, or to a box of the same column


@dataclass(frozen=True, slots=True)
class Layout:
    middles: dict[str, float]  # of the boxes, by key
    routes: list[Route]  # of the edges, in their order
    height: float


@dataclass
class Grid:
    """Columns with boxes and passages, and which of them neighbouring columns connect."""

    columns: list[list[Key]]
    heights: dict[Key, float]
    before: dict[Key, list[Key]] = field(default_factory=dict)
    after: dict[Key, list[Key]] = field(default_factory=dict)

    def connect(self, left: Key, right: Key) -> None:
        self.after.setdefault(left, []).append(right)
        self.before.setdefault(right, []).append(left)


def layered(columns: Sequence[Sequence[str]], edges: Sequence[Edge], box: float, gap: float) -> Layout:
    """Return where boxes of this height belong in their columns, with at least `gap` between two of them."""
    column_of = {key: number for number, keys in enumerate(columns) for key in keys}
    heights: dict[Key, float] = dict.fromkeys(column_of, box + gap)
    grid = Grid([list(keys) for keys in columns], heights)
    passages: list[list[Key]] = []
    for number, (start, end) in enumerate(edges):
        first, last = column_of[start], column_of[end]
        back = last <= first
        spanned = range(first, last - 1, -1) if back else range(first + 1, last)
        keys: list[Key] = [(number, column) for column in spanned]
        for key, column in zip(keys, spanned, strict=True):
            grid.columns[column].append(key)
            heights[key] = PASSAGE
        chain: list[Key] = keys[::-1] if back else [start, *keys, end]
        for left, right in pairwise(chain):
            grid.connect(left, right)
        passages.append(keys)
    for listed in grid.columns:
        listed.sort(key=lambda key: key not in grid.before and key not in grid.after)  # without arrows: last
    order(grid)
    middles = straightened(grid)
    top = min((middles[key] - heights[key] / 2 for key in middles), default=0.0)
    middles = {key: middle - top for key, middle in middles.items()}
    routes = [
        Route([(key[1], middles[key]) for key in keys if isinstance(key, tuple)], column_of[end] <= column_of[start])
        for (start, end), keys in zip(edges, passages, strict=True)
    ]
    height = max((middles[key] + heights[key] / 2 for key in middles), default=0.0)
    return Layout({key: middles[key] for key in column_of}, routes, height)


def order(grid: Grid) -> None:
    """Order each column by the mean position of what it is connected with, and keep the order with fewest crossings."""
    best, fewest = [list(keys) for keys in grid.columns], crossings(grid)
    for sweep in range(SWEEPS):
        rightwards = sweep % 2 == 0
        neighbours = grid.before if rightwards else grid.after
        columns = grid.columns if rightwards else grid.columns[::-1]
        for previous, keys in pairwise(columns):
            position = {key: place for place, key in enumerate(previous)}
            mean = {
                key: means([position[other] for other in neighbours.get(key, ()) if other in position], place)
                for place, key in enumerate(keys)
            }
            keys.sort(key=mean.__getitem__)
        count = crossings(grid)
        if count < fewest:
            best, fewest = [list(keys) for keys in grid.columns], count
    grid.columns = best


def means(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def crossings(grid: Grid) -> int:
    """Count crossings of arrows between neighbouring columns."""
    count = 0
    for left, right in pairwise(grid.columns):
        place = {key: number for number, key in enumerate(right)}
        seen: list[int] = []
        for key in left:
            ends = sorted(place[other] for other in grid.after.get(key, ()))
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def straightened(grid: Grid) -> dict[Key, float]:
    """Return the middle of each place: near the mean of its neighbours, in the order of its column, not overlapping."""
    middles: dict[Key, float] = {}
    for keys in grid.columns:
        middles.update(packed(keys, grid.heights, [0.0] * len(keys)))
    for _ in range(STRAIGHTENING_ROUNDS):
        for columns in (grid.columns, grid.columns[::-1]):
            for keys in columns:
                wanted = [
                    means([middles[other] for other in (*grid.before.get(key, ()), *grid.after.get(key, ()))],
                          middles[key])
                    for key in keys
                ]  # fmt: skip
                middles.update(packed(keys, grid.heights, wanted))
    return middles


def packed(keys: Sequence[Key], heights: Mapping[Key, float], wanted: Sequence[float]) -> dict[Key, float]:
    """Return middles in this order without overlap, with the least squared distance from the wanted ones: blocks of
    touching places move together (pool adjacent violators)."""
    offsets, below = [], 0.0
    for key in keys:
        offsets.append(below + heights[key] / 2)
        below += heights[key]
    blocks: list[tuple[float, int]] = []  # mean shift, number of places
    for middle, offset in zip(wanted, offsets, strict=True):
        mean, count = middle - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, others = blocks.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        blocks.append((mean, count))
    shifts = [mean for mean, count in blocks for _ in range(count)]
    return {key: offset + shift for key, offset, shift in zip(keys, offsets, shifts, strict=True)}


def ranked(keys: Iterable[str], edges: Iterable[Edge]) -> list[list[str]]:
    """Return keys in columns, so that edges between them point to the right, except one of each cycle."""
    listed = list(keys)
    after: dict[str, list[str]] = {key: [] for key in listed}
    for start, end in edges:
        if start in after and end in after and start != end:
            after[start].append(end)
    finished = reversed(depth_first(listed, after))
    place = {key: number for number, key in enumerate(finished)}
    rank = dict.fromkeys(place, 0)
    for key in place:
        for end in after[key]:
            if place[end] > place[key]:
                rank[end] = max(rank[end], rank[key] + 1)
    columns: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for key in listed:
        columns[rank[key]].append(key)
    return columns


def depth_first(keys: Sequence[str], after: Mapping[str, Sequence[str]]) -> list[str]:
    """Return keys in the order in which a depth-first search leaves them; not recursive, graphs may be deep."""
    left: list[str] = []
    seen: set[str] = set()
    for first in keys:
        if first in seen:
            continue
        seen.add(first)
        path = [(first, iter(after[first]))]
        while path:
            key, ends = path[-1]
            following = next((end for end in ends if end not in seen), None)
            if following is None:
                left.append(key)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(after[following])))
    return left
