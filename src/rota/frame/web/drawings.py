"""Diagrams of boxes and arrows in columns, as SVG: topics of a workflow, pipelines by layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rota.frame.web.charts import WIDE, bar, joined, tag, text

HIGH, GAP, TOP = 46.0, 14.0, 28.0  # height of a box, gap between boxes, height of headings
STEP, BOX = 330.0, 230.0  # maximum distance of columns, maximum width of a box
MOST = 120  # boxes: more are illegible
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
    """Return a diagram: boxes in columns with headings; arrows point right where possible."""
    step = max(200.0, min(WIDE / len(columns), STEP))
    wide = min(BOX, step - 60)
    links = [item for item in arrows if item[0] != item[1]]
    rows = arranged(columns, links)
    tallest = max(len(row) for row in rows)
    width, height = max(WIDE, step * len(columns) - step + wide), TOP + tallest * (HIGH + GAP)
    at: dict[str, tuple[float, float]] = {}
    parts = [tip()]
    for number, ((heading, _), row) in enumerate(zip(columns, rows, strict=True)):
        parts.append(text(number * step, 14, heading, kind="heading"))
        lower = (tallest - len(row)) * (HIGH + GAP) / 2
        at.update({item.key: (number * step, TOP + lower + n * (HIGH + GAP)) for n, item in enumerate(row)})
    drawn = [item for item in links if item[0] in at and item[1] in at][:ARROWS]
    parts += [arrow(at[start], at[end], wide, kind) for start, end, kind in drawn]
    parts += [box(item, *at[item.key], wide) for row in rows for item in row]
    attributes: dict[str, object] = {"viewBox": f"0 0 {width:g} {height:g}", "role": "group", "aria_label": words}
    return tag("svg", joined(parts), **attributes, class_="chart network", preserveAspectRatio="xMinYMin")


def arranged(columns: Columns, links: Sequence[Arrow]) -> list[list[Box]]:
    """Order the boxes of each column by the mean position of their predecessors, to reduce crossing arrows."""
    positions: dict[str, float] = {}
    rows = []
    for _, boxes in columns:
        own = {}
        for item in boxes:
            before = [positions[start] for start, end, _ in links if end == item.key and start in positions]
            own[item.key] = sum(before) / len(before) if before else 1e9
        row = sorted(boxes, key=lambda item: (own[item.key], item.name))
        positions.update({item.key: n - len(row) / 2 for n, item in enumerate(row)})
        rows.append(row)
    return rows


def box(item: Box, x: float, y: float, wide: float) -> Markup:
    shape = bar(x, y, wide, HIGH, f"box {item.kind}", f"{item.name[:300]}{': ' + item.words if item.words else ''}", 8)
    lines = [text(0, 19 if item.words else 28, item.name[:80], kind="name")]
    lines += [text(0, 36, item.words[:80])] if item.words else []
    inner = tag("svg", joined(lines), x=x + 12, y=y, width=wide - 20, height=HIGH)  # clips long text
    whole = joined([shape, inner])
    return tag("a", whole, href=item.href) if item.href else whole


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
    """Return the distance of each key from the first ones, by breadth-first search."""
    levels_by_key, open_ends = dict.fromkeys(first, 0), list(first)
    while open_ends:
        now = open_ends.pop(0)
        for start, end, _ in links:
            if start == now and end not in levels_by_key:
                levels_by_key[end] = levels_by_key[now] + 1
                open_ends.append(end)
    return levels_by_key
