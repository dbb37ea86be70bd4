"""ARCHITECTURE.md is true: its functions exist and are called in that order, its diagrams and tables are those of the
code."""

import re
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from rota import Rota
from rota.db import tables
from rota.engine import why
from rota.testing import world
from tests.diagrams import PAGE, with_diagrams

ROOT = PAGE.parent
STEP = re.compile(r"^\|[^|]*\| \[`([\w.]+)`\]\((src/rota/[\w/]+\.py)\)", re.MULTILINE)


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


async def test_a_slot_takes_the_listed_functions_in_their_order() -> None:
    steps = [(path, name) for name, path in STEP.findall(PAGE.read_text())]
    assert len(steps) > 20
    app = Rota()

    @app.task
    async def tick() -> str:
        return "done"

    with CallOrder() as order:
        app.schedule("ticks", tick, every="1m")
        async with world(app) as installation:
            installation.clock.set(installation.clock.now() + timedelta(minutes=1))
            await installation.drain()
            (run,) = await installation.runs()
            sentences = await installation.engine.db.read(
                why.of_run, installation.org_id, run["id"], installation.clock.now()
            )
    assert run["status"] == "success"
    assert "ticks" in str(sentences)
    called = list(order.calls)
    assert [step for step in steps if step not in called] == []
    assert [step for step in called if step in steps] == steps
    assert len({path for path, _ in steps}) <= 25


def test_the_state_diagrams_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert with_diagrams(text) == text, "run `make diagrams`"


def test_every_table_is_in_the_table_map() -> None:
    text = PAGE.read_text()
    listed = text[text.index("## Tables") : text.index("## Processes")]
    missing = [name for name in tables.metadata.tables if f"`{name}`" not in listed and name != "counters"]
    assert missing == []


def test_every_folder_is_in_the_plan() -> None:
    text = PAGE.read_text()
    folders = [path.parent.name for path in (ROOT / "src" / "rota").glob("*/__init__.py")]
    assert [name for name in folders if f"      {name}/" not in text] == []
