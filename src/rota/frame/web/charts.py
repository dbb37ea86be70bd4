"""Charts as SVG: no script and no inline style (CSP); colours come from the style sheet. Texts are escaped."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from rota.db.paging import Record

if TYPE_CHECKING:
    from rota.frame.web.pages import TimeFormat

WIDE, HALF = 1040, 520  # view box widths; the page scales them
MAX_TIMELINE_MARKS = 200  # per schedule: more are indistinguishable


def tag(name: str, inner: object = "", **attributes: object) -> Markup:
    """Return an element. Attributes are escaped, `class_` is `class`, numbers have at most one decimal."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(plain(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{attribute_text}>{escape(inner)}</{name}>")


def plain(value: object) -> object:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def svg(
    parts: Iterable[Markup],
    width: float,
    height: float,
    label: str,
    kind: str,
    fit: str = "xMinYMid",
    role: str = "img",
) -> Markup:
    """Return a chart. `fit="none"` allows stretching (charts without text); `role="group"` is for charts with links."""
    box = f"0 0 {width:g} {height:g}"
    attributes = {
        "viewBox": box,
        "preserveAspectRatio": fit,
        "role": role,
        "aria_label": label,
        "class_": f"chart {kind}",
    }
    return tag("svg", joined(parts), **attributes)


def bar(x: float, y: float, width: float, height: float, kind: str, title: str = "", round_: float = 0) -> Markup:
    """Return a rectangle. Formatted without `tag` for speed: a page has hundreds."""
    title_element = f"<title>{escape(title)}</title>" if title else ""
    geometry = f'x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}" rx="{round_:g}"'
    return Markup(f'<rect {geometry} class="{escape(kind)}">{title_element}</rect>')


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "axis") -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=kind)


def link(shape: Markup, run_id: str, words: str) -> Markup:
    """Link a shape to a run, not focusable: lists beside the chart have the same links for the keyboard."""
    return tag("a", shape, href=f"/runs/{run_id}", aria_label=words, tabindex="-1")


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


# verdicts


def verdict_strip(slots: Sequence[Record], times: "TimeFormat", zone: str | None = None, count: int = 30) -> Markup:
    """Return the last verdicts as bars, the newest on the right; height and colour show the status."""
    parts, empty = [], count - len(slots)
    if empty:
        parts.append(bar(0, 15, empty * 6 - 2, 1, "none"))
    for number, slot in enumerate(slots, empty):
        tall = TALL.get(slot["status"], 10)
        parts.append(bar(number * 6, 16 - tall, 4, tall, slot["status"] or "none", slot_words(slot, times, zone), 1))
    counts = ", ".join(f"{n} {status}" for status, n in counted(slots))
    return svg(
        parts, count * 6, 16, f"the last {len(slots)} slots: {counts}" if slots else "no slot yet", "strip", "none"
    )


TALL = {"success": 12, "failed": 16, "crashed": 16, "missed": 16, "skipped": 6, "coalesced": 6}


def counted(slots: Sequence[Record]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for slot in slots:
        status = slot["status"] or "without verdict"
        counts[status] = counts.get(status, 0) + 1
    return sorted(counts.items())


def slot_words(slot: Record, times: "TimeFormat", zone: str | None) -> str:
    gap = f" to {times.at(slot['last_slot'], zone)} ({slot['count'] or '?'} slots)" if slot["last_slot"] else ""
    reason = f": {slot['reason']}" if slot["reason"] else ""
    return f"{times.at(slot['slot'], zone)}{gap}: {slot['status'] or 'without verdict'}{reason}"


# runs


def durations(
    runs: Sequence[Record], period: float | None, times: "TimeFormat", zone: str | None, span: Callable[[float], str]
) -> Markup:
    """Return durations of the last runs as bars, oldest on the left, with the schedule's period as a line."""
    timed_runs = [(run, (run["finished_at"] - run["started_at"]).total_seconds()) for run in runs]
    longest = max([seconds for _, seconds in timed_runs], default=1.0) or 1.0
    drawn = period is not None and period <= longest * 4  # a line far above the bars would flatten them
    top = max(longest, period or 0.0) if drawn else longest
    high, foot, step = 140.0, 4.0, (WIDE - 70) / max(len(timed_runs), 30)
    scale = (high - foot - 14) / top
    parts = [line(0, high - foot, WIDE, high - foot, "rule")]
    for number, (run, seconds) in enumerate(timed_runs):
        tall = max(1.5, seconds * scale)
        title = f"{times.at(run['started_at'], zone)}: {run['status']} after {span(seconds)}"
        shape = bar(number * step, high - foot - tall, max(1.5, step - 3), tall, run["status"], title, 1.5)
        parts.append(link(shape, run["id"], title))
    if drawn and period is not None:
        y = high - foot - period * scale
        parts += [line(0, y, WIDE - 70, y, "limit"), text(WIDE - 62, y + 4, f"{span(period)}")]
    parts.append(text(WIDE, high - foot - longest * scale + (16 if drawn else 4), span(longest), "end"))
    label = f"durations of the last {len(timed_runs)} runs; longest {span(longest)}"
    return svg(parts, WIDE, high, label, "bars", role="group")


def gantt(attempts: Sequence[Record], now: datetime, times: "TimeFormat", span: Callable[[float], str]) -> Markup:
    """Return a Gantt chart of a job's attempts: waiting and running times."""
    start = min(attempt["queued_at"] for attempt in attempts)
    end = max([attempt["finished_at"] or now for attempt in attempts] + [start + timedelta(milliseconds=1)])
    left, row = 120.0, 30.0
    scale = (WIDE - left) / (end - start).total_seconds()

    def x(at: datetime) -> float:
        return float(left + (at - start).total_seconds() * scale)

    parts, before = [], start
    for number, attempt in enumerate(attempts):
        y = number * row + 5
        begun, ended = attempt["started_at"], attempt["finished_at"] or now
        waited = (begun or ended) - before
        parts.append(text(0, y + 13, f"attempt {attempt['attempt']}"))
        parts.append(
            bar(
                x(before),
                y + 6,
                max(1.0, x(begun or ended) - x(before)),
                4,
                "wait",
                f"waited {span(waited.total_seconds())}",
                2,
            )
        )
        if begun is not None:
            took = (ended - begun).total_seconds()
            phase = f", {attempt['phase']}" if attempt.get("phase") else ""
            words = f"{attempt['status']}{phase}, {times.at(begun)}, {span(took)}"
            parts.append(bar(x(begun), y, max(3.0, x(ended) - x(begun)), 16, attempt["status"], words, 3))
        before = ended
    high = len(attempts) * row + 20
    parts += [line(left, high - 16, WIDE, high - 16, "rule"), text(left, high - 3, "queued")]
    parts.append(text(WIDE, high - 3, f"{span((end - start).total_seconds())} later", "end"))
    return svg(parts, WIDE, high, f"{len(attempts)} attempts over {span((end - start).total_seconds())}", "gantt")


# the timeline


def lane(
    slots: Sequence[Record],
    coming: Sequence[datetime],
    start: datetime,
    end: datetime,
    now: datetime,
    marks: Sequence[tuple[datetime, datetime | None, str, str]],
    times: "TimeFormat",
    zone: str | None,
) -> Markup:
    """Return past and next slots of a schedule between two times. `marks` are (from, to, kind, label)."""
    scale = WIDE / (end - start).total_seconds()

    def x(at: datetime) -> float:
        return min(max((at - start).total_seconds() * scale, 0.0), float(WIDE))

    parts = [bar(0, 0, x(now), 22, "past")] if now > start else []
    for since, until, kind, words in marks:
        wide = 2.0 if until is None else max(2.0, x(until) - x(since))
        parts.append(bar(x(since), 0, wide, 22, kind, words))
    for slot in slots:
        wide = 3.0 if slot["last_slot"] is None else max(3.0, x(slot["last_slot"]) - x(slot["slot"]))
        shape = bar(x(slot["slot"]), 4, wide, 14, slot["status"] or "none", slot_words(slot, times, zone), 1)
        parts.append(link(shape, slot["run_id"], slot_words(slot, times, zone)) if slot["run_id"] else shape)
    if len(slots) == MAX_TIMELINE_MARKS:
        parts.append(bar(0, 8, x(slots[0]["slot"]), 6, "many", "earlier slots are not drawn individually"))
    if len(coming) == MAX_TIMELINE_MARKS:
        parts.append(
            bar(x(coming[0]), 7, WIDE - x(coming[0]), 8, "coming", f"planned from {times.at(coming[0], zone)} on")
        )
    else:
        parts += [bar(x(at), 7, 2, 8, "coming", f"{times.at(at, zone)}: planned") for at in coming]
    if start < now < end:
        parts.append(line(x(now), 0, x(now), 22, "now"))
    counts = ", ".join(f"{n} {status}" for status, n in counted(slots)) or "no runs"
    return svg(parts, WIDE, 22, f"{counts}; {len(coming)} upcoming", "lane", "none", "group")


def ruler(start: datetime, end: datetime, times: "TimeFormat", *, week: bool) -> Markup:
    """Return the time axis: hours of a day, or days of a week."""
    step = timedelta(days=1) if week else timedelta(hours=3)
    scale = WIDE / (end - start).total_seconds()
    parts, at = [], start
    while at < end:
        x = (at - start).total_seconds() * scale
        local = times.local(at)
        parts += [line(x, 10, x, 16, "rule"), text(x + 3, 13, f"{local:%a %d %b}" if week else f"{local:%H:%M}")]
        at += step
    return svg(parts, WIDE, 16, "the hours" if not week else "the days", "ruler")


def heat(hours: Sequence[int], start: datetime, times: "TimeFormat") -> Markup:
    """Return a heat map of slots per hour of the next week, one row per day."""
    most, left, cell, row = max([*hours, 1]), 90.0, (WIDE - 90) / 24, 22.0
    parts = []
    for number in range(0, 24, 3):
        at = times.local(start + timedelta(hours=number))
        parts.append(text(left + number * cell, 11, f"{at:%H:%M}"))
    for number, count in enumerate(hours):
        at, day, hour = times.local(start + timedelta(hours=number)), number // 24, number % 24
        if hour == 0:
            parts.append(text(0, 18 + day * row + 14, f"{at:%a %d}"))
        level = -(-5 * count // most)  # linear scale from zero
        words = f"{at:%a %H:%M}: {count:,} slots"
        parts.append(bar(left + hour * cell, 18 + day * row, cell - 2, row - 2, f"heat{level}", words, 2))
    return svg(parts, WIDE, 18 + row * (len(hours) // 24), f"slots per hour of the next week, at most {most:,}", "heat")


# sums


def columns(values: Sequence[tuple[str, float]], words: str, kind: str = "success") -> Markup:
    """Return a column chart with the labels of the first and last value."""
    most = max([value for _, value in values], default=0) or 1
    step, high = HALF / max(len(values), 7), 90.0
    parts = [line(0, high - 14, HALF, high - 14, "rule")]
    for number, (label, value) in enumerate(values):
        tall = max(1.0, value / most * (high - 26))
        parts.append(bar(number * step, high - 14 - tall, max(2.0, step - 4), tall, kind, f"{label}: {value:,.10g}", 2))
    if values:
        parts += [text(0, high - 2, values[0][0]), text(HALF, high - 2, values[-1][0], "end")]
    return svg(parts, HALF, high, words, "bars")


def curve(values: Sequence[float], words: str) -> Markup:
    """Return a line chart, oldest value first."""
    if len(values) < 2:
        return Markup("")
    low, high = min([*values, 0.0]), max([*values, 1e-9])
    step, tall = HALF / (len(values) - 1), 80.0

    def y(value: float) -> float:
        return 4 + (tall - 8) * (1 - (value - low) / (high - low or 1))

    points = " ".join(f"{number * step:.1f},{y(value):.1f}" for number, value in enumerate(values))
    area = f"0,{tall} {points} {HALF},{tall}"
    drawn = [tag("polygon", points=area, class_="area"), tag("polyline", points=points, class_="curve")]
    return svg([line(0, y(0), HALF, y(0), "rule"), *drawn], HALF, tall, words, "curve")
