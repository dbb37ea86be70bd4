"""Crash a program at each of its statements and let another process continue: what `rota_crashes` of the pytest plug-in
and `rota.testing.dies_at` have in common is the child process that is killed.

Each point is a process of its own with a database of its own. A first one that is not killed counts the points.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from rota import testing
from rota.db.migrate import migrate
from rota.db.paging import Record
from rota.testing import MONDAY, Program, World, count_from_here, dies_at, world

NEVER = 1_000_000_000  # a point that is not reached
POINTS_MAX = 40  # of a sweep, unless the caller wants others; more are drawn by the seed
SETTLE = timedelta(minutes=10)  # that pass after the crash: retries with a backoff end

Play = Callable[[World], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Crash:
    """What became of a program that died before one statement. `runs` are those of the API, oldest first, after another
    process continued; `result` is what `check` returned there."""

    point: int
    statement: str  # or `COMMIT`, or the name of a `crash_point`
    runs: list[Record]
    result: Any = None

    @property
    def statuses(self) -> list[str]:
        return [run["status"] for run in self.runs]


def sweep(
    program: Program,
    play: Play,
    *,
    check: Play | None = None,
    points: int | None = POINTS_MAX,
    seed: int = 0,
    start: datetime = MONDAY,
    settle: timedelta = SETTLE,
) -> Iterator[Crash]:
    """Run `play` again and again, each time killed at another point, and yield what another process made of it. With
    more than `points` points so many are drawn by the seed; None visits all. What `check` returns must be JSON.

    Raises AssertionError if the program fails without a crash, or afterwards; its output has the reason."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        migrate(f"sqlite:///{place / 'template.db'}")
        names, until = count_points(program, play, place, start)
        report = place / "report.json"
        for point in chosen_points(len(names), points, seed):
            url = fresh_database(place)
            died = dies_at(point, partial(recorded, program, play, url, start), after_set_up=True)
            assert died, (
                f"the program ended before point {point} of {len(names)}: its statements differ between two runs; "
                "remove what is random from it"
            )
            assert not dies_at(NEVER, partial(settled, program, check, url, until, settle, report))
            data = json.loads(report.read_text())
            yield Crash(point, names[point - 1], data["runs"], data["result"])


def chosen_points(count: int, wanted: int | None, seed: int) -> Sequence[int]:
    """Return the points to visit, in order; the first and the last are always among them."""
    every = range(1, count + 1)
    if wanted is None or count <= wanted:
        return every
    between = random.Random(seed).sample(every[1:-1], max(wanted - 2, 0))
    return sorted({1, *between, count})


def count_points(program: Program, play: Play, place: Path, start: datetime) -> tuple[list[str], datetime]:
    """Play without a crash. Returns the names of all points, and the time at the end."""
    report, url = place / "points.json", fresh_database(place)

    async def counted() -> None:
        names: list[str] = []
        countdown = testing.countdown
        assert countdown is not None
        reached = countdown.reached

        def record(name: str) -> None:
            names.append(name)
            reached(name)

        countdown.reached = record  # type: ignore[method-assign]

        async def from_here(rota: World) -> None:
            names.clear()
            await play(rota)

        ended_at = await recorded(program, from_here, url, start, count=names.copy)
        report.write_bytes(orjson.dumps([*ended_at]))

    dies_at(NEVER, counted)
    *names, until = json.loads(report.read_text())
    assert names, "the program reached no statement: it must do something that is recorded"
    return names, datetime.fromisoformat(until)


async def recorded(
    program: Program, play: Play, url: str, start: datetime, count: Callable[[], list[str]] | None = None
) -> list[str]:
    """Play on a database. Returns the points that `count` has counted, and the time at the end."""
    async with world(program, database_url=url, start=start) as rota:
        count_from_here()
        await play(rota)
        return [*(count() if count else ()), rota.clock.now().isoformat()]


async def settled(
    program: Program, check: Play | None, url: str, start: datetime, settle: timedelta, report: Path
) -> None:
    """Let another process continue after the lease of the dead one has expired, and report what it sees."""
    async with world(program, database_url=url, start=start) as rota:
        await rota.take_over()
        await rota.advance(seconds=settle.total_seconds())
        result = None if check is None else await check(rota)
        report.write_bytes(  # noqa: ASYNC240 (nothing else runs)
            orjson.dumps({"runs": await rota.runs(), "result": result})
        )


def fresh_database(place: Path) -> str:
    for path in place.glob("crash.db*"):
        path.unlink()
    shutil.copy(place / "template.db", place / "crash.db")
    return f"sqlite:///{place / 'crash.db'}"
