"""A row of the timeline as SVG: waits and runs of a schedule, its slots without runs, and those to come.

Horizontal places are percentages, so that texts keep their size at every width. Few runs are linked bars. Many are
drawn together, a shape per status, and have links when the reader zooms in: a page has 20 rows and 200 kB.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup, escape

from rota.core.states import Status
from rota.db.paging import Record
from rota.frame.web.axes import percentile
from rota.frame.web.charts import joined, tag

HEIGHT = 24
TRACKS_MOST = 3  # of runs at the same time
LINKED_MOST = 24  # runs of a row that are bars with links
BINS = 400  # in which many runs are drawn
SHORTEST = 0.3  # percent: the width of a bar at least
BAD = (Status.FAILED.value, Status.CRASHED.value, "missed")
Mark = tuple[datetime, datetime | None, str, str]  # from, to, kind, words


@dataclass(frozen=True, slots=True)
class Range:
    """The time that is shown."""

    start: datetime
    end: datetime
    now: datetime

    def x(self, at: datetime) -> float:
        """Return the place of a time in percent, within the range."""
        return min(max((at - self.start) / (self.end - self.start), 0.0), 1.0) * 100


@dataclass(frozen=True, slots=True)
class Bar:
    """A run: it waited, then ran until its end or until now."""

    run: Record
    queued: datetime
    started: datetime | None
    ended: datetime
    track: int

    @property
    def seconds(self) -> float | None:
        return (self.ended - self.started).total_seconds() if self.started else None


def bars_of(runs: Sequence[Record], now: datetime) -> list[Bar]:
    """Return the bars of runs. A further attempt waits since the end of the one before it; runs at the same time have
    tracks of their own."""
    ends: dict[str, datetime] = {}
    free: list[datetime] = []
    bars = []
    for run in sorted(runs, key=lambda run: (run["started_at"] or run["finished_at"] or now, run["attempt"])):
        ended = run["finished_at"] or now
        queued = max(run["queued_at"], ends.get(run["job_id"], run["queued_at"]))
        begun = run["started_at"]
        visible_from = begun or queued
        track = next((place for place, until in enumerate(free) if until <= visible_from), len(free))
        if track < TRACKS_MOST:
            free[track : track + 1] = [ended]
        bars.append(Bar(run, min(queued, begun or queued), begun, max(ended, visible_from), track % TRACKS_MOST))
        ends[run["job_id"]] = ended
    return bars


def lane(
    shown: Range,
    bars: Sequence[Bar],
    slots: Sequence[Record],
    coming: Sequence[datetime],
    marks: Sequence[Mark],
    more: tuple[datetime | None, datetime | None],
    name: str,
    span: Callable[[float], str],
    at: Callable[[datetime], str],
) -> Markup:
    """Return the row of a schedule. `more` says before which time runs are not drawn, and after which planned slots."""
    parts = [rect(shown.x(shown.now), 100, 0, HEIGHT, "future")] if shown.now < shown.end else []
    parts += [
        rect(shown.x(since), max(shown.x(until or since), shown.x(since) + 0.2), 0, HEIGHT, kind, words)
        for since, until, kind, words in marks
    ]
    earlier, later = more
    if earlier is not None and shown.x(earlier) > 0:
        parts.append(rect(0, shown.x(earlier), 9, 6, "many", "earlier runs: zoom in to see them"))
    if later is not None and shown.x(later) < 100:
        parts.append(rect(shown.x(later), 100, 9, 6, "many coming", "planned throughout"))
    parts.append(together({"coming": [(shown.x(slot), shown.x(slot) + 0.15, 6, 12) for slot in coming]}))
    parts += [slot_mark(shown, slot, at) for slot in slots[-LINKED_MOST:]]
    parts += linked_bars(shown, bars, span, at) if len(bars) <= LINKED_MOST else [binned_bars(shown, bars)]
    if shown.start < shown.now < shown.end:
        place = f"{shown.x(shown.now):.3f}%"
        parts.append(tag("line", x1=place, y1=0, x2=place, y2=HEIGHT, class_="now"))
    label = f"{name}: {summary(bars, slots, coming, span)}"
    return tag("svg", joined(parts), role="group", aria_label=label, class_="chart lane", height=HEIGHT)


def summary(
    bars: Sequence[Bar], slots: Sequence[Record], coming: Sequence[datetime], span: Callable[[float], str]
) -> str:
    """Return the row in words: runs by status, percentiles of durations, slots without runs and coming ones."""
    counts: dict[str, int] = {}
    for status in (*(bar.run["status"] for bar in bars), *(slot["verdict"] for slot in slots)):
        counts[status] = counts.get(status, 0) + 1
    words = [f"{count} {status}" for status, count in sorted(counts.items())] or ["no runs"]
    return ", ".join([*words, *percentiles(bars, span), *([f"{len(coming)} planned"] if coming else [])])


def percentiles(bars: Sequence[Bar], span: Callable[[float], str]) -> list[str]:
    took = durations(bars)
    return [f"p50 {span(percentile(took, 0.5))}", f"p95 {span(percentile(took, 0.95))}"] if took else []


def durations(bars: Sequence[Bar]) -> list[float]:
    """Return the seconds that ended runs took."""
    return [bar.seconds for bar in bars if bar.seconds is not None and bar.run["finished_at"]]


def linked_bars(
    shown: Range, bars: Sequence[Bar], span: Callable[[float], str], at: Callable[[datetime], str]
) -> list[Markup]:
    """Return bars of which each links to its run, with a thin line while it waited."""
    tracks = max((bar.track for bar in bars), default=0) + 1
    high, parts = (HEIGHT - 6) / tracks, list[Markup]()
    for bar in bars:
        top, run = 3 + bar.track * high, bar.run
        waited = ((bar.started or bar.ended) - bar.queued).total_seconds()
        took = f" for {span(bar.seconds)}" if bar.seconds is not None else ""
        attempt = f", attempt {run['attempt']}" if run["attempt"] > 1 else ""
        words = f"{run['status']}{took}{attempt}, {at(bar.started or bar.queued)}, waited {span(max(waited, 0.0))}"
        shapes = []
        if shown.x(bar.started or bar.ended) - shown.x(bar.queued) > SHORTEST / 2:
            shapes.append(rect(shown.x(bar.queued), shown.x(bar.started or bar.ended), top + high / 2 - 1.5, 3, "wait"))
        if bar.started is not None:
            left = shown.x(bar.started)
            right = max(shown.x(bar.ended), left + SHORTEST)
            shapes.append(rect(min(left, 100 - SHORTEST), right, top, high - 1, run["status"], round_=2))
        inner = joined([*shapes, Markup(f"<title>{escape(words)}</title>")])
        key = run["id"] or run["job_id"]
        parts.append(Markup(f'<a href="/runs/{key}" tabindex="-1">{inner}</a>'))
    return parts


def binned_bars(shown: Range, bars: Sequence[Bar]) -> Markup:
    """Return the bars as one shape per status, failures above the others; those of one bin once."""
    shapes: dict[str, set[tuple[float, float, float, float]]] = {}
    for bar in bars:
        if bar.started is None:
            continue
        left = round(shown.x(bar.started) / 100 * BINS) * 100 / BINS
        right = max(round(shown.x(bar.ended) / 100 * BINS) * 100 / BINS, left + 100 / BINS)
        high = (3, HEIGHT - 6) if bar.run["status"] in BAD else (5, HEIGHT - 10)
        shapes.setdefault(bar.run["status"], set()).add((left, right, *high))
    statuses = sorted(shapes, key=lambda status: status in BAD)
    return together({status: sorted(shapes[status]) for status in statuses})


def together(shapes: Mapping[str, Sequence[tuple[float, float, float, float]]]) -> Markup:
    """Return rectangles (left, right, top, height) as one path per class, stretched to the width of the row."""
    paths = [
        tag("path", d="".join(f"M{left * 10:.4g} {top:g}h{(right - left) * 10:.3g}v{high:g}h-{(right - left) * 10:.3g}z"
                              for left, right, top, high in listed), class_=kind)
        for kind, listed in shapes.items() if listed
    ]  # fmt: skip
    return tag("svg", joined(paths), viewBox=f"0 0 1000 {HEIGHT}", preserveAspectRatio="none") if paths else Markup("")


def slot_mark(shown: Range, slot: Record, at: Callable[[datetime], str]) -> Markup:
    """Return a slot without a run, or a gap of such slots."""
    left = shown.x(slot["slot"])
    right = max(shown.x(slot["last_slot"] or slot["slot"]), left + SHORTEST)
    until = f" to {at(slot['last_slot'])}, {slot['count'] or '?'} slots" if slot["last_slot"] else ""
    reason = f": {slot['reason']}" if slot["reason"] else ""
    return rect(left, right, 7, HEIGHT - 14, slot["verdict"], f"{slot['verdict']}, {at(slot['slot'])}{until}{reason}")


def rect(left: float, right: float, top: float, high: float, kind: str, words: str = "", round_: int = 0) -> Markup:
    title = f"<title>{escape(words)}</title>" if words else ""
    rounded = f' rx="{round_}"' if round_ else ""
    place = f'x="{left:.2f}%" width="{max(right - left, 0):.2f}%" y="{top:g}" height="{high:.3g}"'
    return Markup(f'<rect {place}{rounded} class="{escape(kind)}">{title}</rect>')


def ruler(shown: Range, ticks: Sequence[tuple[datetime, str]], zoom: Callable[[datetime, datetime], str]) -> Markup:
    """Return the axis. The space between two ticks links to itself, enlarged."""
    parts = []
    edges = [*(tick for tick, _ in ticks), shown.end]
    for (tick, label), following in zip(ticks, edges[1:], strict=True):
        left, right = shown.x(tick), shown.x(following)
        inner = [
            rect(left, right, 0, 22, "interval"),
            tag("line", x1=f"{left:.3f}%", y1=6, x2=f"{left:.3f}%", y2=22, class_="rule"),
            tag("text", label, x=f"{left:.3f}%", y=15, dx=4),
        ]
        words = f"Zoom to {label}" + (f" until {next((text for at, text in ticks if at == following), 'the end')}")
        parts.append(tag("a", joined(inner), href=zoom(tick, following), aria_label=words))
    if shown.start < shown.now < shown.end:
        place = f"{shown.x(shown.now):.3f}%"
        parts.append(tag("line", x1=place, y1=0, x2=place, y2=22, class_="now"))
    return tag("svg", joined(parts), role="group", aria_label="time axis", class_="chart timeaxis", height=22)
