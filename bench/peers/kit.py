"""Shared code of the Python programs."""

import asyncio
import inspect
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

URL = os.environ.get("BENCH_URL", "")
HOME = Path(os.environ.get("BENCH_HOME", "."))
SETTINGS: dict[str, Any] = json.loads(os.environ.get("BENCH_SETTINGS", "{}"))
CHUNK = 1_000  # jobs or schedules created in one call, if the system supports several

marks: list[int] = []


def mark(i: int) -> None:
    """Append number and start time of a job. All lines have one length, so that the file size counts them."""
    if not marks:
        marks.append(os.open(HOME / "marks", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644))
    os.write(marks[0], b"%8d %.6f\n" % (i, time.time()))


def chunks(count: int) -> Iterator[range]:
    for at in range(0, count, CHUNK):
        yield range(at, min(count, at + CHUNK))


def since(begun: float) -> dict[str, float]:
    return {"seconds": time.perf_counter() - begun}


def paced(numbers: list[int], gap: float, send: Callable[[int], object]) -> list[tuple[int, float, float]]:
    """Send a job every `gap` seconds: its number, the times before and after the call."""
    sent, turn = [], time.perf_counter()
    for i in numbers:
        turn += gap
        time.sleep(max(0, turn - time.perf_counter()))
        called = time.time()
        send(i)
        sent.append((i, called, time.time()))
    return sent


async def paced_async(
    numbers: list[int], gap: float, send: Callable[[int], Awaitable[object]]
) -> list[tuple[int, float, float]]:
    sent, turn = [], time.perf_counter()
    for i in numbers:
        turn += gap
        await asyncio.sleep(max(0, turn - time.perf_counter()))
        called = time.time()
        await send(i)
        sent.append((i, called, time.time()))
    return sent


def distant_crons(count: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Minute, hour, day, month somewhere in the year: of 100,000 of these about one is due in five minutes."""
    chance = random.Random(11)
    for i in range(count):
        yield i, (chance.randrange(60), chance.randrange(24), chance.randrange(1, 29), chance.randrange(1, 13))


async def concurrently(limit: int, items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Call `work` for all items, `limit` at a time: a client that awaits each call would measure the round trip."""
    rest = iter(items)

    async def consume() -> None:
        for item in rest:
            await work(item)

    await asyncio.gather(*(consume() for _ in range(limit)))


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def main(commands: dict[str, Any]) -> None:
    values = json.loads(sys.stdin.read() or "{}")
    result = commands[sys.argv[1]](**values)
    if inspect.iscoroutine(result):
        if SETTINGS.get("uvloop"):
            import uvloop

            result = uvloop.run(result)
        else:
            result = asyncio.run(result)
    answer(result)
