"""Runs one slot of a schedule and prints the functions of Rota that it calls, in the order of first calls, as JSON.

A process of its own (`python -m tests.call_order`): threads that exist already cannot be profiled.
"""

import asyncio
import json
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from rota import Rota
from rota.reports import why
from rota.testing import world

ROOT = Path(__file__).parents[1]


class CallOrder:
    """Functions of Rota in the order of their first call, as (path, qualified name), in all threads."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], None] = {}

    def __enter__(self) -> "CallOrder":
        threading.setprofile(self.record)
        sys.setprofile(self.record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "src" / "rota"):
            self.calls.setdefault((str(path.relative_to(ROOT)), frame.f_code.co_qualname))


async def run_a_slot(app: Rota) -> None:
    """Declare, fire, run and explain one slot. Raises AssertionError unless it succeeds."""
    async with world(app) as installation:
        installation.clock.set(installation.clock.now() + timedelta(minutes=1))
        await installation.drain()
        (run,) = await installation.runs()
        now = installation.clock.now()
        sentences = await installation.engine.db.read(why.of_run, installation.org_id, run["id"], now)
        assert run["status"] == "success"
        assert "ticks" in str(sentences)


async def tick() -> str:
    return "done"


if __name__ == "__main__":
    app = Rota()
    app.task(tick)
    with CallOrder() as order:
        app.schedule("ticks", tick, every="1m")
        asyncio.run(run_a_slot(app))
    print(json.dumps(list(order.calls)))
