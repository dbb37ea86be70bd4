"""Charts as SVG: no script and no inline style (CSP); colours come from the style sheet. Texts are escaped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from markupsafe import Markup, escape

from rota.db.paging import Record
from rota.frame.web.axes import duration_ticks, percentile, value_ticks

if TYPE_CHECKING:
    from rota.frame.web.pages import TimeFormat


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
    """Return durations of the last runs as bars, oldest on the left, with the schedule's period and the median and 95th
    percentile as lines."""
    timed_runs = [(run, (run["finished_at"] - run["started_at"]).total_seconds()) for run in runs]
    taken = [seconds for _, seconds in timed_runs]
    longest = max(taken, default=1.0) or 0.001
    drawn = period is not None and period <= longest * 4  # a line far above the bars would flatten them
    plot = Plot(max(longest, period or 0.0) if drawn else longest)
    step = 100 / max(len(timed_runs), 30)
    ticks = duration_ticks(plot.top)
    parts = plot.grid(ticks)
    for number, (run, seconds) in enumerate(timed_runs):
        words = f"{times.at(run['started_at'], zone)}: {run['status']} after {span(seconds)}"
        shape = plot.column(number * step, step * 0.8, seconds, run["status"], words)
        parts.append(link(shape, run["id"], words))
    if drawn and period is not None:
        parts += plot.level(period, f"period {span(period)}", "limit")
    p50, p95 = percentile(taken, 0.5), percentile(taken, 0.95)
    if len(taken) > 1:
        parts += plot.level(p95, f"p95 {span(p95)}", "share") + plot.level(p50, f"p50 {span(p50)}", "share", below=True)
    parts += plot.labels(ticks, span)
    if timed_runs:
        first, last = timed_runs[0][0]["started_at"], timed_runs[-1][0]["started_at"]
        parts += plot.ends(times.relative(first, zone), times.relative(last, zone), len(timed_runs) * step)
    label = f"durations of the last {len(timed_runs)} runs; p50 {span(p50)}, p95 {span(p95)}, longest {span(longest)}"
    return plot.drawn(parts, label, "bars", role="group")


def gantt(attempts: Sequence[Record], now: datetime, times: "TimeFormat", span: Callable[[float], str]) -> Markup:
    """Return a Gantt chart of a job's attempts: waiting and running times, on an axis from the time it was queued."""
    start = min(attempt["queued_at"] for attempt in attempts)
    end = max([attempt["finished_at"] or now for attempt in attempts] + [start + timedelta(milliseconds=1)])
    total, row, top = (end - start).total_seconds(), 36.0, 20.0
    high = top + len(attempts) * row

    def x(at: datetime) -> float:
        return float((at - start).total_seconds() / total * 100)

    parts, before = [], start
    for seconds in duration_ticks(total, 6):
        place = f"{seconds / total * 100:.3f}%"
        parts.append(tag("line", x1=place, x2=place, y1=4, y2=high, class_="rule"))
        if seconds / total < 0.93:
            parts.append(tag("text", span(seconds) if seconds else "queued", x=place, y=13, dx=4, class_="axis"))
    for number, attempt in enumerate(attempts):
        y = top + number * row
        begun, ended = attempt["started_at"], attempt["finished_at"] or now
        waited = ((begun or ended) - before).total_seconds()
        phase = f", {attempt['phase']}" if attempt.get("phase") else ""
        words = [f"attempt {attempt['attempt']}: {attempt['status']}{phase}", f"waited {span(max(waited, 0.0))}"]
        parts.append(flat(x(before), x(begun or ended), y + 22, 4, "wait", f"waited {span(max(waited, 0.0))}"))
        if begun is not None:
            took = span((ended - begun).total_seconds())
            title = f"{words[0]}, {times.at(begun)}, {took}"
            parts.append(flat(x(begun), max(x(ended), x(begun) + 0.4), y + 16, 15, attempt["status"], title))
            words.append(f"ran {took}")
        parts.append(tag("text", ", ".join(words), x=0, y=y + 12, class_="name"))
        before = ended
    return responsive(parts, high, f"{len(attempts)} attempts over {span(total)}", "gantt")


# the week's load


def heat(hours: Sequence[int], start: datetime, times: "TimeFormat") -> Markup:
    """Return a heat map of slots per hour of the next week, one row per day, with its scale."""
    most, left, row, top = max([*hours, 1]), 13.0, 22, 18
    cell = (100 - left) / 24
    parts = [
        tag("text", f"{times.local(start + timedelta(hours=number)):%H:%M}", x=f"{left + number * cell:.2f}%", y=12,
            class_="axis" if number % 6 == 0 else "axis minor")
        for number in range(0, 24, 3)
    ]  # fmt: skip
    for number, count in enumerate(hours):
        at, day, hour = times.local(start + timedelta(hours=number)), number // 24, number % 24
        if hour == 0:
            parts.append(text(0, top + day * row + 14, f"{at:%a %d}"))
        words, x = f"{at:%a %H:%M}: {count:,} slots", left + hour * cell
        parts.append(flat(x, x + cell * 0.94, top + day * row, row - 2, f"heat{heat_level(count, most)}", words))
    scale = top + row * (len(hours) // 24) + 8
    for level in range(6):
        x = left + level * 13
        parts.append(flat(x, x + 12.8, scale, 8, f"heat{level}"))
        parts.append(tag("text", f"{scale_number(most * level // 5)}", x=f"{x:.2f}%", y=scale + 21, class_="axis"))
    parts.append(text(0, scale + 9, "an hour"))
    return responsive(parts, scale + 26, f"slots per hour of the next week, at most {most:,}", "heat")


def heat_level(count: int, most: int) -> int:
    """Return the colour of a count: linear from zero."""
    return -(-5 * count // most)


def scale_number(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e4 else f"{count:,}"


# sums


def columns(values: Sequence[tuple[str, float]], words: str, kind: str = "success", unit: str = "") -> Markup:
    """Return a column chart with an axis of round numbers and the labels of the first and last value."""
    plot = Plot(max([value for _, value in values], default=0) or 1)
    step = 100 / max(len(values), 7)
    ticks = value_ticks(plot.top)
    parts = plot.grid(ticks)
    for number, (label, value) in enumerate(values):
        parts.append(plot.column(number * step, step * 0.85, value, kind, f"{label}: {value:,.10g} {unit}".strip()))
    parts += plot.labels(ticks, lambda value: f"{value:,.10g} {unit}".strip())
    if values:
        parts += plot.ends(values[0][0], values[-1][0] if len(values) > 1 else "", len(values) * step)
    return plot.drawn(parts, words, "bars")


def curve(
    values: Sequence[float],
    words: str,
    shown: Callable[[float], str] = lambda value: f"{value:,.10g}",
    *,
    shares: bool = False,
) -> Markup:
    """Return a line chart, oldest value first, with an axis; with `shares` also the median and 95th percentile."""
    if len(values) < 2:
        return Markup("")
    plot = Plot(max([*values, 1e-9]), low=min([*values, 0.0]))
    ticks = duration_ticks(plot.top) if shares else value_ticks(plot.top)
    points = " ".join(
        f"{number / (len(values) - 1) * 1000:.5g},{plot.y(value):.4g}" for number, value in enumerate(values)
    )
    area = f"0,{plot.y(0):.4g} {points} 1000,{plot.y(0):.4g}"
    lines = joined([tag("polygon", points=area, class_="area"), tag("polyline", points=points, class_="curve")])
    ticks = [*([plot.low] if plot.low < 0 else []), *ticks]
    parts = plot.grid(ticks)
    parts.append(tag("svg", lines, viewBox=f"0 0 1000 {Plot.HIGH}", height=Plot.HIGH, preserveAspectRatio="none"))
    parts += plot.labels(ticks, shown)
    label = words
    if shares:
        p50, p95 = percentile(values, 0.5), percentile(values, 0.95)
        parts += plot.level(p95, f"p95 {shown(p95)}", "share") + plot.level(
            p50, f"p50 {shown(p50)}", "share", below=True
        )
        label += f"; p50 {shown(p50)}, p95 {shown(p95)}"
    parts += plot.ends("oldest", "newest", 100)
    return plot.drawn(parts, label, "curve")


# axes: horizontal places are percentages, so that texts keep their size at every width


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart with a vertical axis from `low` to `top`."""

    HIGH: ClassVar[int] = 150
    FOOT: ClassVar[int] = 18
    HEAD: ClassVar[int] = 14

    top: float
    low: float = 0.0

    def y(self, value: float) -> float:
        return self.HEAD + (self.HIGH - self.FOOT - self.HEAD) * (1 - (value - self.low) / (self.top - self.low))

    def grid(self, ticks: Sequence[float]) -> list[Markup]:
        """Return horizontal lines, which are behind the values."""
        return [tag("line", x1=0, x2="100%", y1=self.y(value), y2=self.y(value), class_="rule") for value in ticks]

    def labels(self, ticks: Sequence[float], shown: Callable[[float], str]) -> list[Markup]:
        """Return the values of the lines, which are in front."""
        return [tag("text", shown(value) if value else "0", x=0, y=self.y(value) - 3, class_="axis") for value in ticks]

    def column(self, x: float, width: float, value: float, kind: str, words: str) -> Markup:
        y, foot = self.y(value), self.y(self.low)
        return flat(x, x + width, min(y, foot - 1.5), max(1.5, foot - y), kind, words)

    def level(self, value: float, words: str, kind: str, *, below: bool = False) -> list[Markup]:
        """Return a line across the chart with a text at its right end."""
        y = self.y(value)
        below = below and y < self.HIGH - self.FOOT - 12
        label = tag("text", words, x="100%", y=y + (12 if below else -4), text_anchor="end", class_="axis level")
        return [tag("line", x1=0, x2="100%", y1=y, y2=y, class_=kind), label]

    def ends(self, first: str, last: str, until: float) -> list[Markup]:
        """Return the labels of the ends of the horizontal axis."""
        end = tag("text", last, x=f"{until:.2f}%", y=self.HIGH - 3, text_anchor="end", class_="axis")
        return [text(0, self.HIGH - 3, first), *([end] if until > 30 else [])]

    def drawn(self, parts: Iterable[Markup], label: str, kind: str, role: str = "img") -> Markup:
        return responsive(parts, self.HIGH, label, kind, role)


def flat(left: float, right: float, top: float, high: float, kind: str, words: str = "") -> Markup:
    """Return a rectangle between two percentages."""
    title = f"<title>{escape(words)}</title>" if words else ""
    place = f'x="{left:.2f}%" width="{max(right - left, 0.05):.2f}%" y="{top:.4g}" height="{high:.4g}"'
    return Markup(f'<rect {place} rx="2" class="{escape(kind)}">{title}</rect>')


def responsive(parts: Iterable[Markup], high: float, label: str, kind: str, role: str = "img") -> Markup:
    """Return a chart of a fixed height that is as wide as its place."""
    return tag("svg", joined(parts), height=high, role=role, aria_label=label, class_=f"chart plot {kind}")
