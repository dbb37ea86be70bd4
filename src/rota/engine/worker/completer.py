"""Stores the results of attempts, in batches of one transaction. The fence guards each write: a result whose lease was
lost changes no job and is recorded as a lost attempt."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from rota.core.clock import Clock, real_sleep, stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.core.model import AttemptResult, FinishResult
from rota.core.policy import Failure, FailureClass
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import children, finishing, runs
from rota.engine.run_end_log import log_ended
from rota.engine.runner import Follows, LogLine
from rota.engine.worker.prefetch import GATHER_SECONDS, Prefetch
from rota.engine.worker.registration import Registration

DELIVER_SECONDS = 5.0
RESULT_BATCH_ROWS = 500  # also bounds the advisory locks of one transaction


log = structlog.get_logger("rota.worker")


class Completer:
    """Collects results and log lines; `run` stores them until the registration is finished."""

    def __init__(self, registration: Registration, prefetch: Prefetch) -> None:
        self.registration, self.engine, self.prefetch = registration, registration.engine, prefetch
        self.results: list[AttemptResult] = []  # not stored yet
        self.logs: list[LogLine] = []
        self.stored_at = stopwatch()  # when results were last stored, or the first was added
        self.run_ended = asyncio.Event()  # a run ended, with or without a result
        self._flush_lock = asyncio.Lock()

    def add(self, result: AttemptResult, logs: Sequence[LogLine] = ()) -> None:
        """Store a result, and the last log lines of its run, with the next batch."""
        if not self.results:
            self.stored_at = stopwatch()
        self.results.append(result)
        self.logs.extend(logs)
        self.run_ended.set()

    async def run(self) -> None:
        """Store results as they come. While jobs wait to start, results are gathered for fewer transactions."""
        while not self.registration.finished.is_set():
            if self.results:
                if self.prefetch.waiting and len(self.results) < RESULT_BATCH_ROWS:
                    await real_sleep(GATHER_SECONDS)
                await self.flush()
            else:
                await self.await_run_end()

    async def await_run_end(self) -> None:
        """Wait until the next run ends."""
        self.run_ended.clear()
        await self.run_ended.wait()

    async def flush(self) -> None:
        """Store one batch. If the database is unavailable, keep it and wait a little."""
        async with self._flush_lock:  # a caller that drains waits for a batch in flight
            batch = self.results[:RESULT_BATCH_ROWS]  # stay listed until stored: `known_jobs` of the worker has them
            self.prefetch.resize(batch)
            lines, self.logs = self.logs, []
            try:
                lost = await self.store(batch, lines)
            except Unavailable as error:
                log.debug("results are not stored yet; trying again", count=len(batch), error=error.message)
                self.logs = lines + self.logs
                await real_sleep(random.uniform(0.2, 1))
                return
            except BaseException:  # canceled, and `Worker.close_out` stores them; or an error, and the loop tries again
                self.logs = lines + self.logs
                raise
            del self.results[: len(batch)]
            self.stored_at = stopwatch()
        self.report(batch, lost)

    def report(self, batch: Sequence[AttemptResult], lost: Sequence[AttemptResult]) -> None:
        """Log and count results that are stored, and wake the scheduler for those with another attempt."""
        lost_ids = {result.run_id for result in lost}
        ended = [result for result in batch if result.ended and result.run_id not in lost_ids] + list(lost)
        log_ended(ended)
        self.engine.metrics.refused(lost)
        for result in lost:
            log.error("lease lost before the result came: recorded as lost", job=result.job.id, run=result.run_id)
        self.engine.wake.notify_followers()
        if not all(result.final for result in batch):
            self.engine.wake.signal("later")

    async def store(self, batch: Sequence[AttemptResult], lines: Sequence[LogLine]) -> list[AttemptResult]:
        """Store a batch and return the results whose lease was lost, which are recorded as lost. A batch with a row
        that the database refuses is halved until that row is alone: it becomes an internal failure."""
        try:
            kept, ready = await self.write(batch, lines)
        except DataRefused as error:
            if len(batch) > 1:
                half = len(batch) // 2
                lost = await self.store(batch[:half], lines)
                return lost + await self.store(batch[half:], [])
            batch = [internal_failure_of(batch[0], error)]
            try:
                kept, ready = await self.engine.db.tx(write_results, batch, [], self.registration.id, self.engine.clock)
            except DataRefused as again:  # not even that can be stored; the other runs are not affected
                result = batch[0]
                log.error("run could not be stored at all", run=result.run_id, job=result.job.id, error=again.message)
                return [result]
        if ready or not self.prefetch.unlimited:  # a limit that held jobs back may have room now
            self.engine.wake.signal("ready")
        refused = [result for result in batch if result.run_id not in kept] if len(kept) < len(batch) else []
        if not refused:
            return []
        return await self.engine.db.tx(runs.record_lost, refused, self.registration.id, self.engine.clock.now(), lines)

    async def write(self, batch: Sequence[AttemptResult], lines: Sequence[LogLine]) -> FinishResult:
        """Write a batch in one transaction; in a single statement where nothing else depends on these runs."""
        db, runners = self.engine.db, self.engine.runners
        kinds = {result.job.kind for result in batch}
        follows = {kind: runner for kind in kinds if isinstance(runner := runners[kind], Follows)}
        if finishing.is_plain(batch) and not lines and not follows:
            finished = await db.statement(finishing.finish_plain(batch, self.registration.id, self.engine.clock.now))
            self.engine.metrics.ended(result for result in batch if result.run_id in finished.run_ids)
            if finished.followed:
                await self.deliver(finished.followed)
            return FinishResult(finished.run_ids, bool(finished.followed))
        return await db.tx(write_results, batch, lines, self.registration.id, self.engine.clock, follows)

    async def deliver(self, job_ids: Sequence[str]) -> None:
        """Wake the jobs that wait for the end of these. If the database is unavailable, maintenance does it."""
        try:
            await retry_until_available(
                lambda: self.engine.db.tx(children.deliver_ended, job_ids, self.engine.clock.now()), DELIVER_SECONDS
            )
        except Unavailable as error:
            log.warning("ended jobs are not delivered to their parents yet", count=len(job_ids), error=error.message)


def internal_failure_of(result: AttemptResult, error: DataRefused) -> AttemptResult:
    """What is stored in place of a result that the database refuses."""
    log.error("result could not be stored", run=result.run_id, error=error.message)
    failure = Failure(FailureClass.INTERNAL, "DataRefused", error.message)
    return replace(result, status=Status.FAILED, reason="internal", error=failure.dump(), outcome=None, move=None)


def write_results(
    tx: Tx,
    batch: Sequence[AttemptResult],
    lines: Sequence[LogLine],
    worker: str,
    clock: Clock,
    follows: Mapping[str, Follows] | None = None,
) -> FinishResult:
    """Write results, what their kinds do in response, and log lines of runs whose lease held."""
    now = clock.now()  # read here: the transaction may have waited for the write lock
    kept, ready = finishing.finish(tx, batch, worker, now)
    for kind, runner in (follows or {}).items():
        runner.follow(tx, [result for result in batch if result.job.kind == kind and result.run_id in kept], now)
    if lines:
        refused = {result.run_id for result in batch} - kept  # or stored by a commit whose answer was lost
        runs.write_logs(tx, [line for line in lines if line[0] not in refused])
    return FinishResult(kept, ready or bool(follows))
