"""Cost of calling a function: validating parameters, creating and closing injected values."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from bench.figures import Figure, Size
from bench.installation import DatabaseKind, installation
from rota import AsyncSession, RunContext
from rota.core.clock import system_time
from rota.core.ids import new_id
from rota.core.model import Job
from rota.core.policy import NO_TERMS
from rota.engine.commands import Engine
from rota.engine.runner import RunLog
from rota.kinds.tasks.registry import TaskRegistry
from rota.kinds.tasks.runner import TaskRunner
from rota.user_code.injection import Injector

CALLS = 5_000
TARGET = "< 30 µs"


class Client:
    """A type that the program provides."""


async def nothing() -> None: ...
async def two_ints(a: int, b: int) -> None: ...
async def context(ctx: RunContext) -> None: ...
async def session(session: AsyncSession) -> None: ...
async def provided(client: Client) -> None: ...


CASES: tuple[tuple[str, Callable[..., Awaitable[None]], dict[str, Any] | None], ...] = (
    ("no parameters", nothing, None),
    ("two ints", two_ints, {"a": 1, "b": 2}),
    ("RunContext", context, None),
    ("AsyncSession, unused", session, None),
    ("a provided type", provided, None),
)


async def injection(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """Time per call through the runner, minus the bare call; everything on one event loop, no queue."""
    async with installation(kind) as here:
        injector = Injector()
        injector.provide(Client, Client)
        runner = TaskRunner(TaskRegistry.of_program(), here.engine.db, injector=injector)
        ctx = run_context(here.engine)
        for name, function, parameters in CASES:
            arguments = parameters or dict.fromkeys(function.__annotations__.keys() - {"return"})
            bare = await per_call(partial(function, **arguments))
            whole = await per_call(partial(runner.call, ctx, function, parameters))
            yield Figure(f"injection: {name}", (whole - bare) * 1e6, "µs", None, TARGET)
        await injector.process.close()


async def per_call(call: Callable[[], Awaitable[Any]]) -> float:
    """Return the seconds per call of the fastest of ten batches: other load can only add to it."""
    await call()  # analyses the signature, once
    spans = []
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(CALLS // 10):
            await call()
        spans.append((time.perf_counter() - begun) / (CALLS // 10))
    return min(spans)


def run_context(engine: Engine) -> RunContext:
    now = system_time()
    job = Job(
        id=new_id(),
        org_id="",
        kind="task",
        target="bench",
        route="",
        payload=None,
        queue="default",
        serial_key=None,
        schedule_id=None,
        slot=None,
        trigger="manual",
        attempt=0,
        tries=0,
        crashes=0,
        rescues=0,
        fence=1,
        queued_at=now,
        run_at=now,
        terms=NO_TERMS,
        last_run_id=None,
        trace=None,
        parent_id=None,
        waiting=None,
        reserved_at=None,
        place_key=None,
    )
    run_id = new_id()
    return RunContext(job, run_id, 1, "bench", RunLog(run_id, system_time), _engine=engine)
