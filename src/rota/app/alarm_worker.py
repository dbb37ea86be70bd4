"""Alarms of a server without a worker: it evaluates them and delivers their messages, so that people learn of it when
every worker is gone."""

import asyncio
import contextlib
import copy
from dataclasses import replace
from datetime import timedelta

import structlog

from rota.core.clock import real_sleep
from rota.core.errors import Unavailable
from rota.db.retry import retry_until_available
from rota.engine import jobs
from rota.engine.commands import Engine
from rota.engine.maintenance import Maintenance
from rota.engine.metrics import Metrics
from rota.engine.supervision import start_supervised
from rota.engine.worker import Worker
from rota.kinds.alarms.evaluation import Evaluation
from rota.kinds.alarms.runner import AlarmRunner
from rota.kinds.alarms.settings import AlarmSettings

DELIVERIES_AT_ONCE = 4
DRAIN = timedelta(seconds=3)  # that deliveries under way may take when the server stops

log = structlog.get_logger("rota.alarms")


async def run_alarms(engine: Engine, settings: AlarmSettings) -> None:
    """Evaluate alarms and deliver messages, except by commands, until canceled."""
    evaluation = start_supervised("alarms", Evaluation(engine, settings).run)
    try:
        while True:
            await run_worker(delivering(engine, settings), settings.period)
            await real_sleep(1)
    finally:
        evaluation.cancel()
        await asyncio.gather(evaluation, return_exceptions=True)


def delivering(engine: Engine, settings: AlarmSettings) -> Engine:
    """Return an engine that runs deliveries only. It has metrics of its own: those of the server have no worker."""
    deliveries = copy.copy(engine)
    deliveries.runners = {AlarmRunner.kind: AlarmRunner(engine.db, settings, runs_commands=False)}
    deliveries.settings = replace(engine.settings, concurrency=DELIVERIES_AT_ONCE)
    deliveries.metrics = Metrics()
    return deliveries


async def make_ready(engine: Engine, worker: Worker, period: timedelta) -> None:
    """Rescue deliveries of workers that died, and make those ready whose next attempt is due: no scheduler or worker
    may be left that does."""
    maintenance = Maintenance(engine, worker.id, lambda: worker.heartbeat is None or worker.heartbeat.may_judge)
    while True:
        await real_sleep(period.total_seconds())
        with contextlib.suppress(Unavailable):
            await maintenance.rescue_dead_workers()
            if await engine.db.tx(jobs.release_due, engine.clock.now()):
                engine.wake.signal("ready")


async def run_worker(engine: Engine, period: timedelta) -> None:
    """Run a worker until it loses its lease; canceled, it ends its registration."""
    worker = Worker(engine)
    running = asyncio.ensure_future(worker.run())
    upkeep = start_supervised("alarm retries", lambda: make_ready(engine, worker, period))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await worker.drain(DRAIN, asyncio.Event())
        await asyncio.wait([running])
        raise
    finally:
        upkeep.cancel()
        running.cancel()
        await asyncio.gather(upkeep, running, return_exceptions=True)
    if worker.registration.lost:
        worker.abandon()
        await retry_until_available(worker.close_out)
