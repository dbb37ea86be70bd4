"""What one run costs from its claim to its recorded end, by phase: time, statements and transactions.

A worker takes single steps, so that a phase is not mixed with the loops of other runs.
"""

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

from bench.figures import Figure
from bench.installation import Installation, WrongCount
from rota.db.connection import Database
from rota.db.crash_points import at_each_statement
from rota.engine.commands import Engine
from rota.engine.runner import RunContext, Work
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker

PHASES = ("claim", "start", "work", "finish")  # start: look up, authorize, record the start
WARM_UP_RUNS = 5  # statements are prepared, threads are started
PAUSE_SECONDS = 0.02  # before each run, in which the one before it comes to rest
RUN_SECONDS = 30.0  # limit of one run
LIVE_SECONDS = 60.0  # limit of all runs of a live worker
TRANSACTION_WORDS = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")

Enqueue = Callable[[int], Awaitable[object]]


@dataclass
class Cost:
    """What runs cost so far, by phase."""

    runs: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    statements: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)  # that write
    reads: Counter[str] = field(default_factory=Counter)
    texts: list[tuple[str, str]] = field(default_factory=list)  # phase and statement, of the last run

    def milliseconds(self, *phases: str) -> float:
        """Return the median over runs of the time in these phases, by default in all."""
        spans = zip(*(self.seconds[phase] for phase in phases or PHASES), strict=True)
        return statistics.median(map(sum, spans)) * 1000


class Meter:
    """Assigns time, statements and transactions to the current phase of the current run."""

    def __init__(self) -> None:
        self.cost, self.phase, self.since = Cost(), "", 0.0

    def begin(self, phase: str) -> None:
        now = time.perf_counter()
        if self.phase:
            self.cost.seconds[self.phase].append(now - self.since)
        self.phase, self.since = phase, now

    def statement(self, text: str) -> None:
        if self.phase and not text.strip().startswith(TRANSACTION_WORDS):
            self.cost.statements[self.phase] += 1
            self.cost.texts.append((self.phase, " ".join(text.split())))

    @contextlib.contextmanager
    def watching(self, db: Database) -> Iterator[None]:
        """Count what goes through a database."""

        async def counted(counter: str, method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
            if self.phase:
                getattr(self.cost, counter)[self.phase] += 1
            return await method(*args, **kwargs)

        counters = {"tx": "transactions", "statement": "transactions", "read": "reads"}
        with contextlib.ExitStack() as patches:
            for name, counter in counters.items():
                method = partial(counted, counter, getattr(db, name))
                patches.enter_context(mock.patch.object(db, name, method))
            patches.enter_context(at_each_statement(self.statement))
            yield

    def around(self, prepare: Callable[[RunContext], Awaitable[Work]]) -> Callable[[RunContext], Awaitable[Work]]:
        """Return a runner's `prepare` that marks where its run starts, and where its work begins and ends."""

        async def prepared(ctx: RunContext) -> Work:
            self.begin("start")
            work = await prepare(ctx)

            async def executed() -> object:
                self.begin("work")
                try:
                    return await work()
                finally:
                    self.begin("finish")

            return executed

        return prepared


async def single_runs(engine: Engine, kind: str, enqueue: Enqueue, count: int) -> Cost:
    """Return the cost of `count` runs, one after another with pauses. `enqueue` gets the number of the run."""
    worker, meter = Worker(engine), Meter()
    await worker.learn()
    await worker.registration.store()  # without the heartbeat thread, which is not part of a run's cost
    runner = engine.runners[kind]
    with meter.watching(engine.db), mock.patch.object(runner, "prepare", meter.around(runner.prepare)):
        for number in range(-WARM_UP_RUNS, count):
            if number == 0:
                meter.cost = Cost()
            await asyncio.sleep(PAUSE_SECONDS)
            await enqueue(number + WARM_UP_RUNS)
            meter.cost.texts.clear()
            async with asyncio.timeout(RUN_SECONDS):
                meter.begin("claim")
                await worker.prefetch.claim()
                while not worker.completer.results:
                    await worker.completer.await_run_end()
                await worker.completer.flush()
            meter.begin("")
            meter.cost.runs += 1
    await worker.registration.end()
    return meter.cost


async def task_runs(here: Installation, count: int) -> Cost:
    """Return the cost of runs of a task that does nothing."""

    async def enqueue(_: int) -> None:
        await here.engine.enqueue(here.org_id, "task", "quiet", [{}])

    return await single_runs(here.engine, "task", enqueue, count)


async def runs_per_second(here: Installation, engine: Engine, enqueue: Enqueue, count: int) -> float:
    """Return how many waiting runs a worker ends per second with all its loops, from their start on."""
    before = await here.count("runs")
    for number in range(count):
        await enqueue(number)

    async def ended() -> bool:
        return await here.count("runs") - before >= count

    async with working(engine):
        begun = time.perf_counter()
        await here.until(ended, f"{count} runs ended", LIVE_SECONDS, 0.01)
        took = time.perf_counter() - begun
    succeeded = await here.scalar("SELECT count(*) FROM runs WHERE status = 'success'")
    if (succeeded, await here.count("jobs")) != (before + count, 0):
        raise WrongCount(f"{here.kind.name}: {count} jobs, but {succeeded - before} of their runs succeeded")
    return count / took


@contextlib.asynccontextmanager
async def working(engine: Engine) -> AsyncIterator[None]:
    """A worker and a scheduler of this process with their loops."""
    worker, scheduler = Worker(engine), Scheduler(engine)
    steps = (worker.run(), scheduler.run(), engine.wake.listen(engine.db))
    loops = [asyncio.ensure_future(step) for step in steps]
    try:
        yield
    finally:
        scheduler.stopping = True
        await worker.drain(engine.settings.cancel_grace)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


def figures_of(label: str, cost: Cost, task: Cost) -> Iterator[Figure]:
    """The figures of a kind of run, beside those of a task that does nothing."""
    yield Figure(f"{label}: claim → recorded end, p50", cost.milliseconds(), "ms")
    yield Figure(f"{label}: the same of a task", task.milliseconds(), "ms")
    yield Figure(f"{label}: overhead beyond a task", cost.milliseconds() - task.milliseconds(), "ms")
    for phase in PHASES:
        yield Figure(f"{label}: {phase}, p50", cost.milliseconds(phase), "ms")
    for name in ("statements", "transactions", "reads"):
        counter: Counter[str] = getattr(cost, name)
        for phase in counter:
            yield Figure(f"{label}: {name} of {phase}", counter[phase] / cost.runs, "per run")
        yield Figure(f"{label}: {name}", counter.total() / cost.runs, "per run")
