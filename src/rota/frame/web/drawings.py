"""Diagrams of boxes and arrows in columns, as SVG: topics of a workflow, pipelines by layer, jobs after jobs.

They have their natural size, and their box on the page scrolls; the script adds zoom. Positions are whole pixels, and a
diagram of many boxes has one line in each: so several hundred fit into a page of 200 kB.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from rota.frame.web.charts import joined, tag
from rota.frame.web.layout import Route, layered, ranked

TOP, EDGE = 30, 10  # height of headings, free space around
SPACE = 64  # between columns, for arrows
SMALL = 0.72  # of the characters of words
TURN = 26  # of an arrow that points back, beside its box
NARROW, NARROW_DETAILED, WIDE = 132, 204, 236  # widths of boxes
CHARACTER, PADDING = 8.1, 28  # width of a character of a name, of what is beside a text
MOST = 400  # boxes
ARROWS = 800
DETAILED_MOST = 80  # boxes that have a second line
ARROW_BYTES, ARROWS_BYTES_MOST = 30, 60_000  # of an arrow beside its path, of all of them
LISTED_MOST = 300  # arrows that are listed for screen readers


@dataclass(frozen=True, slots=True)
class Box:
    key: str
    name: str
    words: str = ""
    kind: str = ""  # classes; `current` marks the one that the page is about
    href: str = ""
    status: str = ""  # class of its stripe


Arrow = tuple[str, str, str]  # from, to, kind
Columns = Sequence[tuple[str, Sequence[Box]]]


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the boxes of a diagram."""

    height: int
    gap: int
    detailed: bool


def network(columns: Columns, arrows: Iterable[Arrow], words: str) -> Markup:
    """Return a diagram: boxes in columns with headings, arrows to the right, those of cycles back beside the boxes.
    Boxes below one heading that have arrows between them are in columns of their own."""
    boxes = {box.key: box for _, listed in columns for box in listed}
    links = [(start, end, kind) for start, end, kind in arrows if start != end and start in boxes and end in boxes]
    links = list(dict.fromkeys(links))[:ARROWS]
    edges = [(start, end) for start, end, _ in links]
    groups = [(heading, ranked(sorted((box.key for box in listed), key=lambda key: boxes[key].name), edges))
              for heading, listed in columns]  # fmt: skip
    flat = [keys for _, group in groups for keys in group]
    detailed = len(boxes) <= DETAILED_MOST
    size = Size(44, 16, detailed) if detailed else Size(24, 8, detailed)
    layout = layered(flat, edges, size.height, size.gap)
    widths = [width_of([boxes[key] for key in keys], size) for keys in flat]
    lefts = [EDGE + sum(widths[:number]) + SPACE * number for number in range(len(widths))]
    total, height = (lefts[-1] + widths[-1] + EDGE if lefts else 0), round(TOP + layout.height + EDGE)
    column_of = {key: number for number, keys in enumerate(flat) for key in keys}
    numbers = {key: number for number, key in enumerate(boxes)}
    forms = [
        tag("rect", id=f"box{column}", width=width, height=size.height, rx=7) for column, width in enumerate(widths)
    ]
    parts = [tag("defs", joined([tip(), *forms])), *headings(groups, lefts, widths, height)]
    paths = [
        arrow_path(lefts, widths, column_of[start], column_of[end], layout.middles[start], layout.middles[end], route)
        for (start, end), route in zip(edges, layout.routes, strict=True)
    ]
    drawn_arrows, missing = within_bytes(links, paths)
    parts += arrow_groups(drawn_arrows, numbers)
    places = {
        key: (lefts[column], round(TOP + layout.middles[key] - size.height / 2)) for key, column in column_of.items()
    }
    parts += [
        box_shape(boxes[key], numbers[key], x, y, widths[column_of[key]], column_of[key], size)
        for key, (x, y) in places.items()
    ]
    parts += stripes([(boxes[key].status, x, y) for key, (x, y) in places.items()], size)
    attributes = {"viewBox": f"0 0 {total} {height}", "width": total, "height": height, "role": "group"}
    drawn = tag("svg", joined(parts), **attributes, aria_label=words, class_="chart network")
    note = tag("p", f"{missing} long arrows are not drawn.", class_="hint") if missing else Markup("")
    return drawn + arrow_list(links, boxes) + note


def width_of(boxes: Sequence[Box], size: Size) -> int:
    """Return the width of a column, by its names: words change with each run, and boxes must not move then."""
    longest = max(columns_of(box.name) for box in boxes)
    return round(min(max(NARROW_DETAILED if size.detailed else NARROW, longest * CHARACTER + PADDING), WIDE))


def columns_of(text: str) -> int:
    """Return the width of a text in characters: East Asian ones are twice as wide."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text[:100])


def cut(text: str, width: float) -> str:
    """Return a text that fits into this many characters."""
    if columns_of(text) <= width:
        return text
    end, used = 0, 0
    while end < len(text) and used < width - 1:
        used += columns_of(text[end])
        end += 1
    return f"{text[:end]}…"


def headings(
    groups: Sequence[tuple[str, list[list[str]]]], lefts: Sequence[int], widths: Sequence[int], height: int
) -> list[Markup]:
    """Return the headings, each above a band for all of its columns."""
    parts, column = [], 0
    for heading, group in groups:
        if not group:
            continue
        last = column + len(group) - 1
        left, right = lefts[column] - EDGE, lefts[last] + widths[last] + EDGE
        parts.append(tag("rect", x=left, y=0, width=right - left, height=height, rx=8, class_="band"))
        parts.append(tag("text", heading, x=lefts[column], y=18, class_="heading"))
        column = last + 1
    return parts


def box_shape(box: Box, number: int, x: int, y: int, width: int, column: int, size: Size) -> Markup:
    """Return a box with its name and, if there is room, its words. Its shape is that of its column."""
    fits = (width - PADDING + 4) / CHARACTER
    name, words = cut(box.name, fits), cut(box.words, fits / SMALL)
    two = size.detailed and bool(box.words)
    shapes = [
        Markup(f'<use href="#box{column}" class="box {escape(box.kind)}"/>'),
        Markup(f'<text x="16" y="{19 if two else size.height // 2 + 5}" class="name">{escape(name)}</text>'),
    ]
    if two:
        shapes.append(Markup(f'<text x="16" y="35">{escape(words)}</text>'))
    hidden = [box.name[:300]] if name != box.name else []
    hidden += [box.words[:300]] if box.words and (not two or words != box.words) else []
    if hidden:
        shapes.append(Markup(f"<title>{escape(': '.join(hidden))}</title>"))
    place = f'transform="translate({x} {y})" data-n="{number}"'
    if box.href:
        current = ' aria-current="true"' if "current" in box.kind.split() else ""
        return Markup(f'<a href="{escape(box.href)}" {place}{current}>{joined(shapes)}</a>')
    return Markup(f'<g {place} tabindex="0" role="img" aria-label="{escape(box.name[:300])}: {escape(box.words)}">'
                  f"{joined(shapes)}</g>")  # fmt: skip


def stripes(places: Iterable[tuple[str, int, int]], size: Size) -> list[Markup]:
    """Return the stripes with the colours of the states, a shape per state."""
    paths: dict[str, list[str]] = {}
    for status, x, y in places:
        paths.setdefault(status or "none", []).append(f"M{x + 4} {y + 5}h4v{size.height - 10}h-4z")
    return [tag("path", d="".join(parts), class_=f"stripe {status}") for status, parts in paths.items()]


def arrow_path(
    lefts: Sequence[int], widths: Sequence[int], first: int, last: int, start: float, end: float, route: Route
) -> str:
    """Return the path from the right side of a box to the left side of another, through its passages."""
    rights = [left + width for left, width in zip(lefts, widths, strict=True)]
    x, y, target = rights[first], round(TOP + start), round(TOP + end)
    path = [f"M{x} {y}"]
    if not route.back:
        for column, middle in route.passages:
            below = round(TOP + middle)
            path.append(f"{curve(x, y, lefts[column], below)}H{rights[column]}")
            x, y = rights[column], below
        return "".join([*path, curve(x, y, lefts[last], target)])
    for number, (column, middle) in enumerate(route.passages):
        below = round(TOP + middle)
        turn = f"C{x + TURN} {y} {x + TURN} {below} {x} {below}"
        path.append(f"{curve(x, y, rights[column], below) if number else turn}H{lefts[column]}")
        x, y = lefts[column], below
    return "".join([*path, f"C{x - TURN} {y} {x - TURN} {target} {x} {target}"])


def curve(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return a curve that begins and ends level."""
    if y == to_y:
        return f"H{to_x}"
    middle = (x + to_x) // 2
    return f"C{middle} {y} {middle} {to_y} {to_x} {to_y}"


def within_bytes(links: Sequence[Arrow], paths: Sequence[str]) -> tuple[list[tuple[Arrow, str]], int]:
    """Return the arrows that fit into a page, short ones first, and how many do not."""
    drawn, used = list[tuple[Arrow, str]](), 0
    for link, path in sorted(zip(links, paths, strict=True), key=lambda item: len(item[1])):
        used += len(path) + ARROW_BYTES
        if used > ARROWS_BYTES_MOST:
            break
        drawn.append((link, path))
    return drawn, len(links) - len(drawn)


def arrow_groups(arrows: Sequence[tuple[Arrow, str]], numbers: dict[str, int]) -> list[Markup]:
    """Return the arrows of each kind as a group. `data-e` are the numbers of their boxes, for the script."""
    kinds: dict[str, list[str]] = {}
    for (start, end, kind), path in arrows:
        kinds.setdefault(kind, []).append(f'<path d="{path}" data-e="{numbers[start]} {numbers[end]}"/>')
    return [
        tag("g", Markup("".join(drawn)), class_=f"arrow {kind}", marker_end="url(#tip)")
        for kind, drawn in kinds.items()
    ]


def arrow_list(links: Sequence[Arrow], boxes: dict[str, Box]) -> Markup:
    """Return the arrows as a list that only screen readers show."""
    if not links or len(links) > LISTED_MOST:
        return Markup("")
    rows = [tag("li", f"{boxes[start].name[:100]} → {boxes[end].name[:100]}") for start, end, _ in links]
    return tag("ul", joined(rows), class_="hidden", aria_label="Arrows of the drawing")


def tip() -> Markup:
    head = tag("path", d="M0 0L8 4L0 8z", class_="tip")
    size = {"viewBox": "0 0 8 8", "markerWidth": 7, "markerHeight": 7, "refX": 7.5, "refY": 4}
    return tag("marker", head, id="tip", orient="auto", **size)


def levels(first: Sequence[str], links: Sequence[Arrow]) -> dict[str, int]:
    """Return the distance of each key from the first ones, by breadth-first search."""
    after: dict[str, list[str]] = {}
    for start, end, _ in links:
        after.setdefault(start, []).append(end)
    levels_by_key, open_ends = dict.fromkeys(first, 0), deque(first)
    while open_ends:
        now = open_ends.popleft()
        for end in after.get(now, ()):
            if end not in levels_by_key:
                levels_by_key[end] = levels_by_key[now] + 1
                open_ends.append(end)
    return levels_by_key
