"""`python -m bench`: measure, print one table per database, keep the numbers in bench/results/."""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from bench import measures
from bench.injection import injection
from bench.measures import Figure
from bench.site import Kind, databases

RESULTS = Path(__file__).parent / "results"
ROUNDS: dict[str, measures.Measure] = {**measures.ROUNDS, "injection": injection}
NAMES = [*ROUNDS, "scale"]


def main() -> None:
    options = arguments()
    size = measures.QUICK if options.quick else measures.FULL
    rounds = options.rounds or (1 if options.quick else 3)
    report: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **machine(), "tables": {}}
    print(f"{report['at']}  {report['machine']}  rounds: {rounds}{'  quick' if options.quick else ''}")
    with databases(options.database or ["sqlite", "postgresql"]) as kinds:
        for kind in kinds:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(measure(kind, options.only or NAMES, size, rounds))
            report["tables"][kind.name] = [summary(name, found) for name, found in figures.items()]
            print(f"\n{table(kind.name, report['tables'][kind.name])}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report['at'].replace(':', '')}.json"
    path.write_text(json.dumps(report, indent=1))
    print(f"\n{path}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=NAMES, help="measure only this; may be repeated")
    parser.add_argument("--database", action="append", choices=["sqlite", "postgresql"], help="only on this one")
    parser.add_argument("--quick", action="store_true", help="less of everything, one round: a first look")
    parser.add_argument("--rounds", type=int, help="how often each figure is measured (3)")
    return parser.parse_args()


async def measure(kind: Kind, wanted: list[str], size: measures.Size, rounds: int) -> dict[str, list[Figure]]:
    """Round after round, so that a slow minute of the machine touches every figure a little, not one a lot."""
    found: dict[str, list[Figure]] = defaultdict(list)
    for turn in range(rounds):
        for name in [one for one in ROUNDS if one in wanted]:
            say(f"{kind.name}: {name}, round {turn + 1} of {rounds}")
            async for figure in ROUNDS[name](kind, size):
                found[figure.name].append(figure)
    if "scale" in wanted:
        say(f"{kind.name}: scale")
        async for figure in measures.scale(kind, size, rounds):
            found[figure.name].append(figure)
    return found


def summary(name: str, found: list[Figure]) -> dict[str, Any]:
    values = [one.value for one in found]
    ratios = [one.value / one.yardstick for one in found if one.yardstick]
    return {
        "name": name,
        "unit": found[0].unit,
        "bar": found[0].bar,
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "ratio": statistics.median(ratios) if ratios else None,
        "values": values if len(values) < 20 else len(values),
    }


def table(title: str, lines: list[dict[str, Any]]) -> str:
    """Markdown that can be read as it is."""
    cells = [["figure", "median", "min - max", "÷ yardstick", "bar"]]
    for one in lines:
        unit = one["unit"]
        spread = f"{number(one['min'], unit)} - {number(one['max'], unit)}"
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.3g}"
        cells.append([one["name"], f"{number(one['median'], unit)} {unit}", spread, ratio, one["bar"]])
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    cells.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    align = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    rows = [
        "| " + " | ".join(how(cell, w) for how, cell, w in zip(align, row, widths, strict=True)) + " |" for row in cells
    ]
    return f"### {title}\n\n" + "\n".join(rows)


def number(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit in ("/s", "MiB", "µs") else f"{value:.2f}"


def machine() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    text = f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()} {platform.release()}, "
    return {"machine": text + f"Python {platform.python_version()}", "load": load}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
