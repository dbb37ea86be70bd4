"""Figures of several rounds, their medians and ratios, and the table that shows them. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "rota"
BARE = "bare driver"  # a loop with only the database work: see baselines.py


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    jobs: int = 20_000
    time_limit: float = 10.0  # seconds after which a slow peer is measured by the jobs it finished so far
    paced: int = 300
    gap: float = 0.02
    late: int = 200
    span: float = 20.0
    schedules: int = 100_000
    window: float = 15.0
    cron_seconds: float = 0.5
    burst: int = 5_000
    ledgers: tuple[int, int] = (10_000, 5_000_000)
    backlog: int = 100_000
    stored_runs: int = 1_000_000
    requests: int = 400


FULL = Size()
QUICK = Size(
    jobs=2_000,
    time_limit=8.0,
    paced=50,
    late=40,
    span=5.0,
    schedules=2_000,
    window=4.0,
    cron_seconds=0.1,
    burst=500,
    ledgers=(10_000, 200_000),
    backlog=10_000,
    stored_runs=50_000,
    requests=100,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of one round, the value of the bare driver in that round, and the target."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    target: str = ""
    system: str = OURS


def summary(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Return a line per figure and system: median, values, and how many times as good Rota is."""
    values_of: dict[tuple[str, str], list[float]] = defaultdict(list)
    about: dict[str, Figure] = {}
    for figure in figures:
        about.setdefault(figure.name, figure)
        values_of[figure.name, figure.system].append(figure.value)
        if figure.baseline is not None:
            values_of[figure.name, BARE].append(figure.baseline)
    return [
        {
            "name": name,
            "system": system,
            "unit": about[name].unit,
            "target": about[name].target if system == OURS else "",
            "median": statistics.median(values),
            "values": values,
            "ratio": None if system == OURS else ratio(values_of.get((name, OURS), []), values, about[name].unit),
        }
        for name in about
        for (of, system), values in values_of.items()
        if of == name
    ]


def ratio(ours: Sequence[float], theirs: Sequence[float], unit: str) -> float | None:
    """Return how many times as good ours is. Ratios are taken per round if both have the same number of rounds."""
    if not ours or not theirs:
        return None
    if len(ours) != len(theirs):
        ours, theirs = [statistics.median(ours)], [statistics.median(theirs)]
    pairs = zip(ours, theirs, strict=True) if more_is_better(unit) else zip(theirs, ours, strict=True)
    good = [over / under for over, under in pairs if over > 0 and under > 0]
    return statistics.median(good) if good else None


def more_is_better(unit: str) -> bool:
    return unit.endswith("/s")


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return an aligned Markdown table."""
    cells = [["workload", "system", "median", "min - max", "Rota is … times as good"]]
    before = None
    for line in lines:
        unit, values = line["unit"], line["values"]
        note = line["target"] and f"target: {line['target']}"
        cells.append(
            [
                line["name"] if line["name"] != before else "",
                line["system"],
                f"{number(line['median'])} {unit}",
                f"{number(min(values))} - {number(max(values))}" if len(values) > 1 else "",
                note if line["ratio"] is None else number(line["ratio"]),
            ]
        )
        before = line["name"]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    cells.insert(1, ["-" * width if at < 2 else "-" * (width - 1) + ":" for at, width in enumerate(widths)])
    align = [str.ljust, str.ljust, str.rjust, str.rjust, str.rjust]
    return "\n".join(
        "| " + " | ".join(how(cell, width) for how, cell, width in zip(align, row, widths, strict=True)) + " |"
        for row in cells
    )


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
