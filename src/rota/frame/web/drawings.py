"""Things, and what goes from one to the other, as SVG in columns: the topics of a workflow, pipelines by layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from rota.frame.web.charts import WIDE, bar, joined, tag, text

HIGH, GAP, TOP = 46.0, 14.0, 28.0  # a box, what is between two, and the headings
STEP, BOX = 330.0, 230.0  # from column to column at most, and how wide a box is at most
MOST = 120  # boxes: more cannot be read
ARROWS = 300


@dataclass(frozen=True, slots=True)
class Box:
    key: str
    name: str
    words: str = ""
    kind: str = ""
    href: str = ""


Arrow = tuple[str, str, str]  # from, to, kind
Columns = Sequence[tuple[str, Sequence[Box]]]


def network(columns: Columns, arrows: Iterable[Arrow], words: str) -> Markup:
    """Boxes in columns with headings; arrows go from left to right where they can."""
    step = max(200.0, min(WIDE / len(columns), STEP))
    wide = min(BOX, step - 60)
    links = [one for one in arrows if one[0] != one[1]]
    rows = arranged(columns, links)
    tallest = max(len(row) for row in rows)
    width, height = max(WIDE, step * len(columns) - step + wide), TOP + tallest * (HIGH + GAP)
    at: dict[str, tuple[float, float]] = {}
    parts = [tip()]
    for number, ((heading, _), row) in enumerate(zip(columns, rows, strict=True)):
        parts.append(text(number * step, 14, heading, kind="heading"))
        lower = (tallest - len(row)) * (HIGH + GAP) / 2
        at.update({one.key: (number * step, TOP + lower + n * (HIGH + GAP)) for n, one in enumerate(row)})
    drawn = [one for one in links if one[0] in at and one[1] in at][:ARROWS]
    parts += [arrow(at[start], at[end], wide, kind) for start, end, kind in drawn]
    parts += [box(one, *at[one.key], wide) for row in rows for one in row]
    given: dict[str, Any] = {"viewBox": f"0 0 {width:g} {height:g}", "role": "group", "aria_label": words}
    return tag("svg", joined(parts), **given, class_="chart network", preserveAspectRatio="xMinYMin")


def arranged(columns: Columns, links: Sequence[Arrow]) -> list[list[Box]]:
    """The boxes of each column in an order that lets few arrows cross: near the middle of what leads to them."""
    place: dict[str, float] = {}
    found = []
    for _, boxes in columns:
        own = {}
        for one in boxes:
            before = [place[start] for start, end, _ in links if end == one.key and start in place]
            own[one.key] = sum(before) / len(before) if before else 1e9
        row = sorted(boxes, key=lambda one: (own[one.key], one.name))
        place.update({one.key: n - len(row) / 2 for n, one in enumerate(row)})
        found.append(row)
    return found


def box(one: Box, x: float, y: float, wide: float) -> Markup:
    shape = bar(x, y, wide, HIGH, f"box {one.kind}", f"{one.name[:300]}{': ' + one.words if one.words else ''}", 8)
    lines = [text(0, 19 if one.words else 28, one.name[:80], kind="name")]
    lines += [text(0, 36, one.words[:80])] if one.words else []
    inner = tag("svg", joined(lines), x=x + 12, y=y, width=wide - 20, height=HIGH)  # which cuts off what is too long
    whole = joined([shape, inner])
    return tag("a", whole, href=one.href) if one.href else whole


def arrow(start: tuple[float, float], end: tuple[float, float], wide: float, kind: str) -> Markup:
    (x1, y1), (x2, y2) = start, end
    ahead, beside = x2 > x1, x2 == x1
    x1, x2 = (x1 if not ahead and not beside else x1 + wide), (x2 if ahead else x2 + wide)
    y1, y2 = y1 + HIGH / 2, y2 + HIGH / 2
    bend = 46.0 if beside else max(30.0, abs(x2 - x1) / 2)
    first, last = (x1 + bend, x2 - bend) if ahead else (x1 + bend, x2 + bend) if beside else (x1 - bend, x2 + bend)
    path = f"M{x1:g} {y1:g}C{first:g} {y1:g} {last:g} {y2:g} {x2:g} {y2:g}"
    return tag("path", d=path, class_=f"arrow {kind}", marker_end="url(#tip)")


def tip() -> Markup:
    head = tag("path", d="M0 0L8 4L0 8z", class_="tip")
    size = {"viewBox": "0 0 8 8", "markerWidth": 7, "markerHeight": 7, "refX": 7.5, "refY": 4}
    return tag("defs", tag("marker", head, id="tip", orient="auto", **size))


def levels(first: Iterable[str], links: Sequence[Arrow]) -> Mapping[str, int]:
    """How many steps each thing is from the first ones; a circle is walked once."""
    found, open_ends = dict.fromkeys(first, 0), list(first)
    while open_ends:
        now = open_ends.pop(0)
        for start, end, _ in links:
            if start == now and end not in found:
                found[end] = found[now] + 1
                open_ends.append(end)
    return found
