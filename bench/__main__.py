"""`python -m bench`: Rota beside its peers on the same work, round by round; prints one table and keeps the numbers."""

import argparse
import asyncio
import compileall
import json
import logging
import os
import platform
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
import uvloop

from bench import check, measures, profiling, works
from bench.api import api
from bench.equipment import CACHE, ROOT, Missing
from bench.figures import FULL, OURS, QUICK, Figure, Size, summary, table
from bench.hosts import hosts
from bench.injection import injection
from bench.lab import Lab
from bench.pages import pages
from bench.pipelines import crowd
from bench.scripts import scripts
from bench.site import Kind, WrongCount
from bench.systems import NAMES, SYSTEMS, System
from bench.workflows import workflows
from rota.version import __version__

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Work:
    """Something to measure, for the systems that it fits."""

    name: str
    code: str  # W1 …; empty for what has no number
    measure: works.Measure
    fits: Callable[[System], bool] = lambda _: True
    once: bool = False  # too long for every round: it repeats what it can by itself


def alone(name: str, code: str, measure: Callable[[Kind, Size], AsyncIterator[Figure]], once: bool = False) -> Work:
    """A measure of Rota's own, on each of its databases."""

    def on_kind(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:
        return measure(lab.kind(system.store), size)

    return Work(name, code, on_kind, lambda one: one.name == OURS, once)


def serves(one: System) -> bool:
    """Where two processes and several settings are worth a comparison."""
    return one.store != "sqlite"


WORKS = [
    Work("drain", "W1", works.drain("best settings, 1 process")),
    Work("drain", "W1", works.drain("best settings, 2 processes", 2), lambda one: serves(one) and not one.alone),
    Work("drain", "W1", works.drain("default settings, 1 process", best=False), serves),
    Work("pickup", "W2", works.pickup),
    Work("lateness", "W3", works.lateness),
    Work("schedules", "W4", works.schedules, lambda one: one.schedules > 0),
    Work("cron", "W5", works.crons, lambda one: one is SYSTEMS[0]),
    Work("burst", "W6", works.burst),
    alone("growth", "W7", measures.growth, once=True),
    alone("fairness", "W8", measures.fairness),
    alone("workflows", "W9", workflows, once=True),
    alone("start", "", measures.start),
    alone("cost", "", measures.cost),
    alone("injection", "", injection),
    alone("scripts", "", scripts),
    alone("pipelines", "", crowd),
    alone("api", "", api, once=True),
    alone("hosts", "", hosts, once=True),
    alone("pages", "", pages, once=True),
]


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`: no worker is left behind
    compileall.compile_dir(ROOT / "src", quiet=1)  # as what is installed is; the peers are
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with closing(Lab()) as lab, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.profile:
            return runner.run(profile(lab, options.database))
        if options.check or options.keep:
            return runner.run(compare(lab, options.keep))
        return runner.run(bench(lab, options))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    names = list(dict.fromkeys(work.name for work in WORKS))
    codes = {work.code.lower(): work.name for work in WORKS if work.code}
    parser = argparse.ArgumentParser("bench", description=__doc__)
    parser.add_argument("--only", type=some_of(names, codes), default=names, help="w1,w2 … or names")
    parser.add_argument("--peers", type=some_of(NAMES), default=NAMES, help=f"of {', '.join(NAMES)}; none: only Rota")
    stores = ["postgresql", "redis", "sqlite"]
    parser.add_argument("--database", type=some_of(stores), default=stores, help=f"of {', '.join(stores)}")
    parser.add_argument("--rounds", type=int, help="how often each figure is measured (3)")
    parser.add_argument("--quick", action="store_true", help="less of everything, one round: to see that it works")
    parser.add_argument("--profile", action="store_true", help="instead: where the time of one job goes")
    parser.add_argument("--check", action="store_true", help="instead: fail if Rota is slower than it was")
    parser.add_argument("--keep", action="store_true", help="the same, but keep the figures for later checks")
    options = parser.parse_args(words)
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


def some_of(known: Collection[str], short: Mapping[str, str] | None = None) -> Callable[[str], list[str]]:
    """Reads `a,b` as a list of known names, or of short ones for them."""
    short = short or {}

    def parse(text: str) -> list[str]:
        chosen = [short.get(one, one) for one in text.lower().split(",") if one != "none"]
        unknown = [one for one in chosen if one not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join([*known, *short])}")
        return chosen

    return parse


async def bench(lab: Lab, options: argparse.Namespace) -> int:
    systems = [
        system for system in SYSTEMS if system.name in (OURS, *options.peers) and system.store in options.database
    ]
    size = QUICK if options.quick else FULL
    figures, skipped = await rounds(lab, systems, options.only, size, options.rounds)
    report = {
        **machine(),
        "rounds": options.rounds,
        "size": asdict(size),
        "stores": await lab.settings(),
        "systems": [described(system) for system in systems if f"{system.name} on {system.store}" not in skipped],
        "skipped": skipped,
        "lines": summary(figures),
    }
    print(f"\n{shown(report)}")
    place = CACHE if options.quick else RESULTS
    place.mkdir(exist_ok=True)
    path = place / f"{report['at'].replace(':', '')}.json"
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{path}")
    return 0


async def rounds(
    lab: Lab, systems: Sequence[System], wanted: Sequence[str], size: Size, count: int
) -> tuple[list[Figure], dict[str, str]]:
    """Round after round and system beside system, so that a slow minute of the machine touches all a little.

    A peer that cannot be had, or fails, is left out from then on, visibly; if Rota fails, so does the benchmark.
    """
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    for turn in range(count):
        for work in WORKS:
            for system in systems:
                who, what = f"{system.name} on {system.store}", f"{system.name} on {system.store}: {work.name}"
                if (
                    work.name not in wanted
                    or not work.fits(system)
                    or (work.once and turn)
                    or {who, what} & set(skipped)
                ):
                    continue
                say(f"round {turn + 1} of {count}: {work.code} {what}")
                try:
                    async for figure in work.measure(lab, system, size):
                        figures.append(figure)
                except Missing as error:
                    skipped[who if system.name != OURS else what] = str(error)
                    print(f"SKIPPED {what}: {error}", flush=True)
                except WrongCount as error:
                    if system.name == OURS:
                        raise
                    skipped[what] = str(error)
                    print(f"SKIPPED {what}: {error}", flush=True)
    return figures, skipped


async def profile(lab: Lab, databases: Sequence[str]) -> int:
    for name in [one for one in ("sqlite", "postgresql") if one in databases]:
        print(profiling.shown(await profiling.profile(lab.kind(name)), name), end="\n\n", flush=True)
    if (count := profiling.instructions()) is not None:
        print(f"{count:,.0f} instructions a job on SQLite, with 0.4 fires and everything around (valgrind)")
    return 0


async def compare(lab: Lab, keep: bool) -> int:
    """Measure the short set, and hold it against what is kept; all of it again while something seems to be lost."""
    ours = [system for system in SYSTEMS if system.name == OURS]
    counted = {our.store: await profiling.profile(lab.kind(our.store)) for our in ours}
    calls = {f"{phase}, {name}": one["calls"] for name, all_ in counted.items() for phase, one in all_.items()}
    figures: list[Figure] = []

    async def measured(count: int) -> dict[str, Any]:
        figures.extend((await rounds(lab, ours, check.WORKS, check.SIZE, count))[0])
        return {**machine(), "ratios": check.ratios(summary(figures)), "calls": calls}

    if keep:
        found = await measured(check.TRIES * check.ROUNDS)
        check.KEPT.parent.mkdir(exist_ok=True)
        check.KEPT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(f"kept in {check.KEPT}")
        return 0
    kept = json.loads(check.KEPT.read_text())
    lost: list[str] = []
    for _ in range(check.TRIES):
        lost = check.losses(kept, await measured(check.ROUNDS))
        if not lost:
            break
    for line in lost:
        print(f"LOST  {line}")
    verdict = f"{len(lost)} figures are worse by more" if lost else "no figure is worse by more"
    print(f"{verdict} than {check.LIMIT:.0%} than those kept on {kept['at'][:10]}")
    return 1 if lost else 0


def described(system: System) -> dict[str, Any]:
    return {
        "name": system.name,
        "store": system.store,
        "versions": {OURS: __version__} if system.name == OURS else system.versions(),
        "best": system.best,
        "keeps": system.keeps,
    }


def shown(report: dict[str, Any]) -> str:
    """The whole report as Markdown."""
    lines = [f"{report['at']}, {report['machine']}, load {report['load']:.1f}, rounds: {report['rounds']}", ""]
    lines += [f"- {text}" for text in report["stores"].values()]
    lines += ["", table(report["lines"]), "", "What a system keeps of a finished job, and its best settings:", ""]
    for system in report["systems"]:
        versions = ", ".join(f"{name} {version}" for name, version in system["versions"].items())
        settings = ", ".join(f"{name}={value}" for name, value in system["best"].items()) or "as it comes"
        lines.append(
            f"- {system['name']} on {system['store']} ({versions}) keeps {system['keeps']}. Settings: {settings}."
        )
    lines += [f"- SKIPPED {who}: {why}" for who, why in report["skipped"].items()]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    text = f"{os.cpu_count()} CPUs ({processor()}), {platform.system()} {platform.release()}, "
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": text + f"Python {platform.python_version()}",
        "rota": __version__,
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.machine()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
