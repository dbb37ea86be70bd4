import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers import kit
from rota.app import cli

if TYPE_CHECKING:
    from rota.engine.commands import Engine

PROGRAM = Path(__file__).parent.parent / "program.py"


def prepare() -> None:
    from rota.db.migrate import migrate

    migrate(kit.URL)


async def engine() -> "tuple[Engine, str]":
    from bench.installation import make_engine  # here: a worker loads what `rota worker` loads and no more
    from rota.db.connection import open_database

    return await make_engine(open_database(kit.URL))


async def enqueue(count: int, steps: int = 0) -> Any:
    rota, org = await engine()
    begun = time.perf_counter()
    for part in kit.chunks(count):
        await rota.enqueue(org, "task", ("mark", "one_step", "five_steps")[steps], [{"i": i} for i in part])
    return kit.since(begun)


def worker() -> None:
    os.environ |= {"ROTA_DATABASE_URL": kit.URL, "ROTA_DATA_DIR": str(kit.HOME), "ROTA_LOG_LEVEL": "warning"}
    os.environ |= {f"ROTA_{name.upper()}": str(value) for name, value in kit.SETTINGS.items()}
    sys.argv = ["rota", "worker", str(PROGRAM)]
    cli.main()


async def paced(numbers: list[int], gap: float) -> Any:
    rota, org = await engine()
    return await kit.paced_async(numbers, gap, lambda i: rota.enqueue(org, "task", "mark", [{"i": i}]))


async def later(due_times: list[tuple[int, float]]) -> None:
    """Create repeating schedules with their first slot at the due time."""
    rota, org = await engine()
    bodies = [
        {"name": f"later-{i}", "target": "mark", "input": {"i": i}}
        | {"interval": "1h", "anchor": datetime.fromtimestamp(at, UTC)}
        for i, at in due_times
    ]
    for part in kit.chunks(len(bodies)):
        await rota.create_schedules(org, [bodies[at] for at in part])


async def schedules(count: int) -> Any:
    rota, org = await engine()
    bodies = [
        {"name": f"distant-{i}", "target": "quiet", "cron_expression": "{} {} {} {} *".format(*when)}
        for i, when in kit.distant_crons(count)
    ]
    calls = (
        4 if kit.URL.startswith("postgresql") else 2
    )  # SQLite has one writer: the second call is parsed while the first is written
    begun = time.perf_counter()
    await kit.concurrently(
        calls, kit.chunks(count), lambda part: rota.create_schedules(org, [bodies[at] for at in part])
    )
    return kit.since(begun)


if __name__ == "__main__":
    kit.main(globals())
