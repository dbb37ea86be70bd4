"""Runs simulations for API and dashboard: in a thread, one at a time, within limits, and stopped when the caller
leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rota.core.clock import blocking_sleep, stopwatch
from rota.core.effort import unlimited
from rota.core.errors import Invalid
from rota.core.simulation import Scenario, TimeRange
from rota.db.paging import Record
from rota.engine.commands import Engine
from rota.engine.compute import compute
from rota.reports.installation import list_workers
from rota.reports.simulation import Durations, disjoint, read_installation, run_simulation

SPAN_MAX = timedelta(days=366)
SIMULATION_SECONDS = 20.0  # it ends there, truncated
PAUSE_SECONDS = 0.0005  # given to the other threads of the process between steps
LEFT_POLL_SECONDS = 0.5

one_at_a_time = asyncio.Semaphore(1)


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What to simulate."""

    span: TimeRange
    outages: Sequence[TimeRange] = ()
    durations: Durations = Durations.P50
    workers: int | None = None


def check_request(request: SimulationRequest) -> None:
    """Raise Invalid for an empty or too long time range, or an outage that ends before it begins."""
    span = request.span
    if span.end <= span.start:
        raise Invalid("to", span.end.isoformat(), "must lie after `from`")
    if span.end - span.start > SPAN_MAX:
        raise Invalid(
            "to", span.end.isoformat(), f"lies over {SPAN_MAX.days} days after `from`; simulate a shorter time"
        )
    for outage in request.outages:
        if outage.end <= outage.start:
            raise Invalid("outages", outage.end.isoformat(), "must lie after the beginning of the outage")


async def simulate_org(
    engine: Engine, org_id: str, request: SimulationRequest, left: Callable[[], Awaitable[bool]] | None = None
) -> Record:
    """Simulate the schedules of an org. Raises Invalid. `left` returns whether the caller no longer waits: the
    simulation then stops."""
    check_request(request)
    installation = await engine.db.read(read_installation, org_id, request.span.start, request.durations)
    alive, _ = await engine.db.read(list_workers, org_id, limit=200, state="alive")
    concurrency = [worker["concurrency"] for worker in alive]
    each = round(sum(concurrency) / len(concurrency)) if concurrency else engine.settings.concurrency
    places = sum(concurrency) or engine.settings.concurrency if request.workers is None else request.workers * each
    scenario = Scenario(
        request.span, disjoint(request.outages), places, grace=engine.settings.misfire_grace
    )  # fmt: skip
    async with one_at_a_time:
        stopped = False
        ends_at = stopwatch() + SIMULATION_SECONDS

        def go_on() -> bool:
            blocking_sleep(PAUSE_SECONDS)
            return not stopped and stopwatch() < ends_at

        def work() -> Record:
            with unlimited():  # the number of slots and the time are limited instead
                return run_simulation(installation, scenario, go_on)

        task = asyncio.ensure_future(compute(work))
        try:
            while left is not None and not (await asyncio.wait([task], timeout=LEFT_POLL_SECONDS))[0]:
                stopped = stopped or await left()
            return await task
        finally:
            stopped = True
