"""The pytest plug-in of Rota: fixtures for tests of programs. Installed with Rota; imports nothing of it until a test
asks for a fixture.

    def test_the_report(rota_world):
        rota = rota_world(app)
        rota.advance(hours=24)
        assert [run["status"] for run in rota.runs(target="report")] == ["success"] * 24
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rota.crash_sweep import Crash
    from rota.testing import Program, World

SEED_MAX = 2**32


class BlockingWorld:
    """A `rota.testing.World` for tests that are plain functions."""

    def __init__(self, runner: asyncio.Runner, world: "World") -> None:
        self._runner, self.world = runner, world

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def drain(self) -> None:
        """Fire and run everything that is due now, including what follows from it."""
        self._runner.run(self.world.drain())

    def advance(self, **span: float) -> None:
        """Advance the clock, running everything at its due time: `advance(minutes=5)`."""
        self._runner.run(self.world.advance(**span))

    def enqueue(self, task: str, kind: str = "task", **parameters: object) -> str:
        """Enqueue a job; returns its id. `drain` runs it."""
        org_id = self.world.org_id
        (job_id,) = self._runner.run(self.world.engine.enqueue(org_id, kind, task, [parameters or None]))
        return job_id

    def publish(self, workflow: str, topic: str, *, message_id: str, payload: object = None) -> str:
        """Publish an event from outside; returns `created`, `replaced` or `kept`."""
        return self._runner.run(self.world.publish(workflow, topic, message_id=message_id, payload=payload))

    def runs(self, **filters: Any) -> list[dict[str, Any]]:
        """Return the newest 200 runs, oldest first."""
        return self._runner.run(self.world.runs(**filters))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rota")
    group.addoption("--rota-seed", type=int, help="seed of the crash points that rota_crashes visits")
    group.addoption("--rota-every-point", action="store_true", help="let rota_crashes visit every crash point")


@pytest.fixture
def rota_world() -> "Iterator[Callable[..., BlockingWorld]]":
    """Return a function that sets up a program, on a clock that the test advances: `rota = rota_world(app)`. It takes
    the options of `rota.testing.world`: `start`, `database_url`, settings."""
    from rota.testing import world

    with asyncio.Runner() as runner:
        entered: list[Any] = []

        def set_up(program: "Program", **options: Any) -> BlockingWorld:
            manager = world(program, **options)
            opened = runner.run(manager.__aenter__())
            entered.append(manager)
            return BlockingWorld(runner, opened)

        yield set_up
        for manager in reversed(entered):
            runner.run(manager.__aexit__(None, None, None))


@pytest.fixture
def rota_seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this test, of `--rota-seed` or a new one; a failed test shows it."""
    option: int | None = request.config.getoption("--rota-seed")
    seed = random.SystemRandom().randrange(SEED_MAX) if option is None else option
    print(f"rota: seed {seed}; repeat with --rota-seed={seed}")
    return seed


@pytest.fixture
def rota_crashes(request: pytest.FixtureRequest, rota_seed: int) -> "Callable[..., list[Crash]]":
    """Return a function that runs `play(world)`, an async function, again and again, each time killed before another
    statement, and returns what another process made of it: `rota_crashes(app, play, check=…, points=40)`."""
    if not hasattr(os, "fork"):
        pytest.skip("rota_crashes needs os.fork, which this system does not have")
    every = request.config.getoption("--rota-every-point")

    def crashes(program: "Program", play: Any, **options: Any) -> "list[Crash]":
        from rota.crash_sweep import sweep

        points = {"points": None} if every else {}
        return list(sweep(program, play, **{"seed": rota_seed, **options, **points}))

    return crashes
