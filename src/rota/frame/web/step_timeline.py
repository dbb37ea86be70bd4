"""Timeline of a job's recorded steps: a bar per step on one time axis. Pure; the page's table has the same as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup

from rota.core.steps import ENDED, StepStatus, StepType
from rota.db.paging import Record
from rota.frame.web.charts import bar, line, svg, tag, text

AXIS = 520.0  # width of the view box
ROW = 22.0
TICKS_MAX = 6
SHORTEST_BAR = 3.0
LABEL_WIDTH = 60.0  # of a tick, at most
WAITS = frozenset({StepType.SLEEP, StepType.SIGNAL, StepType.APPROVAL, StepType.CHILD})
TICK_UNITS = (  # seconds of a unit, its symbol, numbers of it between two ticks
    (0.001, "ms", (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    (1.0, "s", (1, 2, 5, 10, 20, 30)),
    (60.0, "min", (1, 2, 5, 10, 20, 30)),
    (3600.0, "h", (1, 2, 3, 6, 12)),
    (86_400.0, "d", (1, 2, 5, 10, 20, 50, 100)),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that a timeline shows."""

    start: datetime
    end: datetime

    def x(self, at: datetime) -> float:
        """Return the place of a time; times outside are at the edges."""
        share = (at - self.start) / (self.end - self.start)
        return float(min(max(share, 0.0), 1.0) * AXIS)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places on the axis with the time since its start, at most TICKS_MAX, in one unit."""
        seconds = (self.end - self.start).total_seconds()
        for unit, symbol, numbers in TICK_UNITS:
            for number in numbers:
                if seconds / (unit * number) < TICKS_MAX:
                    count = int(seconds / (unit * number))
                    return [(n * number * unit / seconds * AXIS, f"{n * number} {symbol}") for n in range(count + 1)]
        return [(0.0, "0 d")]


def axis_of(steps: Sequence[Record], attempts: Sequence[Record], now: datetime) -> Axis:
    """Return the axis from the start of a job's first attempt to the end of its last one, or until now."""
    starts = [attempt["started_at"] for attempt in attempts if attempt["started_at"] is not None]
    start = min(starts, default=min((step["started_at"] for step in steps), default=now))
    ends = [attempt["finished_at"] or now for attempt in attempts]
    return Axis(start, max([*ends, start + timedelta(milliseconds=1)]))


def ruler(axis: Axis) -> Markup:
    """Return the scale above the bars."""
    parts = [line(x, 12, x, 18, "rule") for x, _ in axis.ticks()]
    parts += [text(x + 3, 12, label) for x, label in axis.ticks() if x + LABEL_WIDTH <= AXIS]
    return svg(parts, AXIS, 18, "time since the start of the first attempt", "ruler")


def step_bar(step: Record, axis: Axis, now: datetime, words: str) -> Markup:
    """Return the row of a step. A step that was kept from an earlier run is a mark at the left edge."""
    grid = "".join(f"M{x:.4g} 0v{ROW:g}" for x, _ in axis.ticks())
    parts = [tag("path", d=grid, class_="rule")]
    begun, ended = axis.x(step["started_at"]), axis.x(step["finished_at"] or now)
    width = max(SHORTEST_BAR, ended - begun)
    parts.append(bar(min(begun, AXIS - width), 5, width, 12, bar_kind(step), words, 2))
    return svg(parts, AXIS, ROW, words, "lane", "none")


def bar_kind(step: Record) -> str:
    """Return the class of a bar, which has the colour of its state."""
    if step["status"] in (StepStatus.FAILED, StepStatus.TIMED_OUT):
        return "failed"
    if step["status"] in (StepStatus.NEEDS_RECONCILE, StepStatus.INDETERMINATE):
        return "unclear"
    if step["status"] == StepStatus.WAITING or step["type"] in WAITS:
        return "wait"
    return "success" if step["status"] == StepStatus.DONE else "running"


def with_current(steps: Sequence[Record], run: Record, now: datetime) -> list[Record]:
    """Mark the steps that have not ended as current. While a run is between recorded steps, the list ends with a row
    for its code: a step is recorded when it ends."""
    marked = [{**step, "current": step["status"] not in ENDED} for step in steps]
    if run["status"] != "running" or any(step["current"] for step in marked) or run["started_at"] is None:
        return marked
    since = max([run["started_at"], *(step["finished_at"] for step in steps if step["finished_at"])])
    return [*marked, {"name": None, "type": "code", "status": "running", "started_at": min(since, now),
                      "finished_at": None, "attempts": 0, "current": True}]  # fmt: skip
