"""`python -m bench`: runs the workloads on Rota and its peers, round by round; prints a table and saves the figures."""

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
from itertools import chain
from pathlib import Path
from typing import Any

import structlog
import uvloop

from bench import check, profiling, rota_workloads, workloads
from bench.api import api
from bench.dependencies import CACHE, ROOT, Unavailable
from bench.figures import FULL, OURS, QUICK, Figure, Size, summary, table
from bench.graphs import graphs
from bench.hosts import hosts
from bench.injection import injection
from bench.installation import DatabaseKind, WrongCount
from bench.pages import pages
from bench.pipelines import pipelines
from bench.scripts import scripts
from bench.servers import Servers
from bench.systems import NAMES, SYSTEMS, System
from bench.workflows import workflows
from rota.version import __version__

RESULTS = Path(__file__).parent / "results"
WORKLOAD_SECONDS = 600.0  # that all rounds of a workload may take; what is left then is skipped
BENCH_SECONDS = 5400.0
TIME_LIMIT_REACHED = "the time limit was reached"


Durations = dict[str, dict[str, list[float]]]  # seconds of each round, by workload and system


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload to measure, and the systems that it is measured on."""

    name: str
    code: str  # W1 …; empty if it has no number
    measure: workloads.Measure
    fits: Callable[[System], bool] = lambda _: True
    once: bool = False  # too long for every round


def rota_only(
    name: str, code: str, measure: Callable[[DatabaseKind, Size], AsyncIterator[Figure]], once: bool = False
) -> Workload:
    """Return a workload for Rota only, on each of its databases."""

    def on_kind(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
        return measure(servers.kind(system.store), size)

    return Workload(name, code, on_kind, lambda system: system.name == OURS, once)


def serves(system: System) -> bool:
    """Whether two processes and several settings are compared on this system."""
    return system.store != "sqlite"


WORKLOADS = [
    Workload("drain", "W1", workloads.drain("best settings, 1 process")),
    Workload(
        "drain",
        "W1",
        workloads.drain("best settings, 2 processes", 2),
        lambda system: serves(system) and not system.single_process,
    ),
    Workload("drain", "W1", workloads.drain("default settings, 1 process", best=False), serves, once=True),
    Workload("pickup", "W2", workloads.pickup),
    Workload("lateness", "W3", workloads.lateness, once=True),
    Workload("schedules", "W4", workloads.schedules, lambda system: system.schedules > 0, once=True),
    Workload("cron", "W5", workloads.crons, lambda system: system is SYSTEMS[0]),
    Workload("burst", "W6", workloads.burst, once=True),
    rota_only("growth", "W7", rota_workloads.growth, once=True),
    rota_only("fairness", "W8", rota_workloads.fairness),
    Workload("workflows", "W9", workflows, lambda system: system.name in (OURS, "dbos")),
    Workload("durable", "W10", workloads.durable, lambda system: system.name in (OURS, "dbos")),
    rota_only("start", "", rota_workloads.start),
    rota_only("cost", "", rota_workloads.cost),
    rota_only("injection", "", injection),
    rota_only("scripts", "", scripts),
    rota_only("pipelines", "", pipelines),
    rota_only("graphs", "", graphs),
    rota_only("api", "", api, once=True),
    rota_only("hosts", "", hosts, once=True),
    rota_only("pages", "", pages, once=True),
]


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no worker is left behind
    compileall.compile_dir(ROOT / "src", quiet=1)  # installed peers are compiled too
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with closing(Servers()) as servers, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.profile:
            return runner.run(profile(servers, options.database))
        if options.check or options.keep:
            return runner.run(compare(servers, options.keep))
        return runner.run(bench(servers, options))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    names = list(dict.fromkeys(work.name for work in WORKLOADS))
    codes = {work.code.lower(): work.name for work in WORKLOADS if work.code}
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
    """Return a parser of `a,b` into a list of known names; `short` maps abbreviations to names."""
    short = short or {}

    def parse(text: str) -> list[str]:
        chosen = [short.get(word, word) for word in text.lower().split(",") if word != "none"]
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join([*known, *short])}")
        return chosen

    return parse


async def bench(servers: Servers, options: argparse.Namespace) -> int:
    systems = [
        system for system in SYSTEMS if system.name in (OURS, *options.peers) and system.store in options.database
    ]
    size = QUICK if options.quick else FULL
    figures, skipped, durations = await rounds(servers, systems, options.only, size, options.rounds)
    measured = set(chain.from_iterable(durations.values()))  # others may not be installed
    report = {
        **machine(),
        "rounds": options.rounds,
        "size": asdict(size),
        "stores": await servers.settings(),
        "systems": [described(each) for each in systems if f"{each.name} on {each.store}" in measured - set(skipped)],
        "skipped": skipped,
        "seconds": durations,
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
    servers: Servers, systems: Sequence[System], wanted: Sequence[str], size: Size, count: int
) -> tuple[list[Figure], dict[str, str], Durations]:
    """Measure the wanted workloads, round by round and system by system, so that a slow minute affects all systems.
    Returns the figures, what was skipped and why, and how long everything took.

    A peer that is unavailable or fails is skipped from then on, with a message; if Rota fails, so does the benchmark.
    What exceeds the time limit of its workload, or of the benchmark, is skipped.
    """
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    durations: Durations = {}

    def skip(name: str, reason: str) -> None:
        skipped[name] = reason
        print(f"SKIPPED {title}: {reason}", flush=True)

    for turn in range(count):
        for work in WORKLOADS:
            for system in systems:
                label, title = f"{system.name} on {system.store}", f"{system.name} on {system.store}: {work.name}"
                if (
                    work.name not in wanted
                    or not work.fits(system)
                    or (work.once and turn)
                    or {label, title} & set(skipped)
                ):
                    continue
                left = time_left(durations, work.name)
                if left <= 0:
                    skip(f"{title}, round {turn + 1}", TIME_LIMIT_REACHED)
                    continue
                say(f"round {turn + 1} of {count}: {work.code} {title}")
                begun = time.monotonic()
                try:
                    async with asyncio.timeout(left) as limit:
                        async for figure in work.measure(servers, system, size):
                            figures.append(figure)
                except Unavailable as error:
                    skip(label if system.name != OURS else title, str(error))
                except WrongCount as error:
                    if system.name == OURS:
                        raise
                    skip(title, str(error))
                except TimeoutError:
                    if not limit.expired():
                        raise
                    skip(f"{title}, round {turn + 1}", TIME_LIMIT_REACHED)
                seconds = time.monotonic() - begun
                durations.setdefault(work.name, {}).setdefault(label, []).append(round(seconds, 1))
                say(f"took {seconds:.1f} s")
    return figures, skipped, durations


def time_left(durations: Durations, name: str) -> float:
    """Return how many more seconds a workload may take."""
    used = {work: sum(chain.from_iterable(by_system.values())) for work, by_system in durations.items()}
    return min(WORKLOAD_SECONDS - used.get(name, 0.0), BENCH_SECONDS - sum(used.values()))


async def profile(servers: Servers, databases: Sequence[str]) -> int:
    for name in [name for name in ("sqlite", "postgresql") if name in databases]:
        print(profiling.shown(await profiling.profile(servers.kind(name)), name), end="\n\n", flush=True)
    if (count := profiling.instructions()) is not None:
        print(f"{count:,.0f} instructions a job on SQLite, with 0.4 fires and everything around (valgrind)")
    return 0


async def compare(servers: Servers, keep: bool) -> int:
    """Measure the short set and compare it with the kept figures; repeat while something is slower."""
    ours = [system for system in SYSTEMS if system.name == OURS]
    counted = {our.store: await profiling.profile(servers.kind(our.store)) for our in ours}
    calls = {
        f"{phase}, {name}": figures_of_phase["calls"]
        for name, all_ in counted.items()
        for phase, figures_of_phase in all_.items()
    }
    figures: list[Figure] = []

    async def measured(count: int) -> dict[str, Any]:
        figures.extend((await rounds(servers, ours, check.WORKLOADS, check.SIZE, count))[0])
        return {**machine(), "ratios": check.ratios(summary(figures)), "calls": calls}

    if keep:
        figures_to_keep = await measured(check.TRIES * check.ROUNDS)
        check.KEPT.parent.mkdir(exist_ok=True)
        check.KEPT.write_text(json.dumps(figures_to_keep, indent=1, ensure_ascii=False) + "\n")
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
        "durable": system.durable,
        "keeps": system.keeps,
    }


def shown(report: dict[str, Any]) -> str:
    """The whole report as Markdown."""
    lines = [f"{report['at']}, {report['machine']}, load {report['load']:.1f}, rounds: {report['rounds']}", ""]
    lines += [f"- {text}" for text in report["stores"].values()]
    lines += ["", table(report["lines"]), "", "What a system keeps of a finished job, and its best settings:", ""]
    for system in report["systems"]:
        versions = ", ".join(f"{name} {version}" for name, version in system["versions"].items())
        settings = ", ".join(f"{name}={value}" for name, value in system["best"].items()) or "defaults"
        if system["durable"]:
            settings += "; W10: " + ", ".join(f"{name}={value}" for name, value in system["durable"].items())
        lines.append(
            f"- {system['name']} on {system['store']} ({versions}) keeps {system['keeps']}. Settings: {settings}."
        )
    lines += [f"- SKIPPED {name}: {why}" for name, why in report["skipped"].items()]
    lines += ["", "| workload | seconds | slowest system |", "|---|--:|---|"]
    for name, by_system in report["seconds"].items():
        slowest = max(by_system, key=lambda system: sum(by_system[system]))
        total = sum(chain.from_iterable(by_system.values()))
        lines.append(f"| {name} | {total:.0f} | {slowest}: {sum(by_system[slowest]):.0f} |")
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
