import logging
import time
from datetime import UTC, datetime
from typing import Any

from huey import RedisHuey, SqliteHuey

from bench.peers import kit

logging.disable(logging.CRITICAL)
if kit.URL.startswith("sqlite"):
    queue = SqliteHuey(filename=kit.URL.removeprefix("sqlite:///"), fsync=True, results=False)
else:
    queue = RedisHuey(url=kit.URL, results=False)


@queue.task(name="mark")
def mark(i: int) -> None:
    kit.mark(i)


def prepare() -> None:
    """It makes its tables itself."""


def enqueue(count: int) -> Any:
    begun = time.perf_counter()
    for i in range(count):
        mark(i)
    return kit.since(begun)


def worker() -> None:
    queue.create_consumer(**kit.SETTINGS).run()


def paced(numbers: list[int], gap: float) -> Any:
    return kit.paced(numbers, gap, mark)


def later(due_times: list[tuple[int, float]]) -> None:
    for i, at in due_times:
        mark.schedule((i,), eta=datetime.fromtimestamp(at, UTC))  # a naive one would lose its fraction of a second


if __name__ == "__main__":
    kit.main(globals())
