"""Runs pipelines on the executor of this process."""

import asyncio
import copy
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from zoneinfo import ZoneInfo

from rota.core.errors import Invalid, LogicError, NotFound, WorkError
from rota.core.kinds import KindTraits, register
from rota.core.model import AttemptResult
from rota.core.policy import Overlap
from rota.core.schedule_form import Defaults
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import orgs
from rota.engine.commands import Engine
from rota.engine.extensions import Describe, prune_in_chunks
from rota.engine.runner import Busy, RunContext, Skipped, Work
from rota.kinds.pipelines import store
from rota.kinds.pipelines.executor import (
    Connection,
    Executor,
    Materialisation,
    MaterialisationResult,
    Materialise,
    Write,
)
from rota.kinds.pipelines.increments import Increment, increment_of, read_input
from rota.kinds.pipelines.records import PipelineRow
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.kinds.pipelines.tables import PipelineTables
from rota.user_code.calls import call
from rota.user_code.injection import Injector

SLOT_WAIT_SECONDS = 0.2  # that a run waits for the next slot of the executor to become free


class PipelineRunner:
    """The Runner of kind `pipeline`."""

    kind = store.PIPELINE
    defaults = Defaults(overlap=Overlap.SKIP)  # missed slots are caught up once
    under_grant = False
    traits = register(
        kind,
        KindTraits(
            grant_action="run",
            grant_resource=re.compile(r"[a-z0-9_-]+/[a-z0-9_-]+/[a-z0-9_-]+"),
            has_paths=True,
            serial=True,  # its jobs replace the same table
        ),
    )
    describers: Mapping[str, Describe] = MappingProxyType({"pipelines": store.describe})

    def __init__(
        self,
        registry: PipelineRegistry,
        db: Database,
        executor: Executor | None,
        org: str = "default",
        injector: Injector | None = None,
    ) -> None:
        self.registry, self.db, self.executor, self.org = registry, db, executor, org
        self.injector = injector or Injector()
        self.connections: dict[str, Connection] = {}  # by run id: of functions that run
        self.threads = ThreadPoolExecutor(64, "rota-pipeline")  # more than the slots of any executor
        self.reserved: set[str] = set()  # runs with a slot of the executor, or about to get it
        self.submitted: set[str] = set()  # those of them that the executor counts
        self.slot_freed = asyncio.Event()
        if executor is not None:
            self.injector.provide(PipelineTables, self.pipeline_tables)
        if executor is not None and find_spec("duckdb") is not None:
            from duckdb import DuckDBPyConnection

            self.injector.provide(DuckDBPyConnection, self.duckdb_connection)

    def reading(self, db: Database) -> "PipelineRunner":
        runner = copy.copy(self)
        runner.db = db
        return runner

    def routes(self) -> Collection[str]:
        if self.executor is None:
            return ()
        functions = (store.route_of(self.org, "python", path) for path in self.registry.functions())
        return {store.SQL_ROUTE, *functions}

    async def resolve(self, org_id: str, target: str, payload: object) -> str:
        try:
            row = await self.db.read(store.get, org_id, target)
        except NotFound as error:
            raise Invalid("target", target, "is not a known pipeline; see `rota pipeline list`") from error
        if row.path != target:
            raise Invalid("target", target, f"is an id; use the path of the pipeline, {row.path}")
        declared = self.registry.pipelines.get(row.function or "")
        increment, rest = read_input(increment_of(row.increment), payload, date.min)
        if row.type == "sql" and rest not in (None, {}):
            raise Invalid("input", rest, "is not empty; a pipeline of type sql has no input of its own")
        if declared is not None and declared.function is not None:
            self.injector.signature(declared.function).check(with_day(declared.function, increment, rest), "input")
        return store.route_of(await self.db.read(orgs.slug_of, org_id), row.type, row.function)

    async def prune(self, engine: Engine, now: datetime) -> None:
        """Delete runs of pipelines that keep fewer than the installation does."""
        for pipeline in await engine.db.read(store.with_limits):
            await prune_in_chunks(engine.db, store.prune, pipeline, now)

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        job, info = ctx.job, ctx.info
        await self.reserve_slot(ctx)
        try:
            row = await self.db.read(store.get, ctx.org_id, job.target)
        except NotFound as error:
            raise LogicError(f"{error.message}; it was deleted after the job was enqueued") from error
        info.name, info.version = row.path, str(row.version)
        info.marks_first = True
        dependent = job.trigger.startswith(f"{store.DEPENDENCY}:") and job.schedule_id is not None
        if dependent and not await self.db.tx(store.claim_slot, job, ctx.engine.clock.now()):
            raise Skipped("upstream")
        return partial(self.execute, ctx, row)

    async def reserve_slot(self, ctx: RunContext) -> None:
        """Reserve a slot of the executor until the run ends; waits for one while runs of this process end. Raises Busy
        after SLOT_WAIT_SECONDS in which none did: another worker may have a free slot."""
        task = asyncio.current_task()
        assert task is not None
        while self.free_slots() <= 0:
            self.slot_freed.clear()
            try:
                async with asyncio.timeout(SLOT_WAIT_SECONDS if self.reserved else 0):
                    await self.slot_freed.wait()
            except TimeoutError as error:
                raise Busy("the pipeline executor has no free slot") from error
        self.reserved.add(ctx.run_id)
        task.add_done_callback(lambda _: self.release_slot(ctx.run_id))

    def release_slot(self, run_id: str) -> None:
        self.reserved.discard(run_id)
        self.submitted.discard(run_id)
        self.slot_freed.set()

    def free_slots(self) -> int:
        about_to_submit = len(self.reserved) - len(self.submitted)
        return 0 if self.executor is None else self.executor.capacity() - about_to_submit

    async def submit(self, order: Materialisation) -> MaterialisationResult:
        assert self.executor is not None
        self.submitted.add(order.run_id)  # in the same step in which the executor counts it
        return await self.executor.submit(order)

    async def close(self) -> None:
        """Close what the executor keeps between runs."""
        if self.executor is not None:
            await self.executor.close()

    async def execute(self, ctx: RunContext, row: PipelineRow) -> object:
        executor = self.executor
        assert executor is not None
        increment, rest = read_input(increment_of(row.increment), ctx.job.payload, await self.default_day(ctx))
        if increment is not None and increment.day is not None:
            ctx.log.line("executor", f"{row.path}: day {increment.day}")
        reads, work = self.function(ctx, row, increment, rest) if row.sql is None else (row.reads, row.sql)
        order = Materialisation(ctx.run_id, ctx.org_id, row.path, reads, work, increment, ctx.job.fence)
        submitted = asyncio.ensure_future(self.submit(order))
        while True:
            try:
                result = await asyncio.shield(submitted)
                return {"rows_written": result.rows, "duration_ms": round(result.seconds * 1000)}
            except asyncio.CancelledError:
                if submitted.done():
                    raise
                submitted.cancel()
                await executor.cancel(ctx.run_id)
            finally:
                for line in executor.logs(ctx.run_id):
                    ctx.log.line("executor", line)

    async def default_day(self, ctx: RunContext) -> date:
        """Return the day before the slot of a job, in the time zone of its schedule; without a slot the day before it
        was enqueued, in UTC."""
        zone = await self.db.read(store.zone_of, ctx.job.schedule_id)
        return ((ctx.job.slot or ctx.job.queued_at).astimezone(ZoneInfo(zone)) - timedelta(days=1)).date()

    def function(
        self, ctx: RunContext, row: PipelineRow, increment: Increment | None, rest: object
    ) -> tuple[Sequence[str], Materialise]:
        """Return the tables that a function reads, and the call of it. Raises WorkError if it is not declared here."""
        declared = self.registry.pipelines.get(row.function or "")
        if declared is None or declared.function is None:
            raise WorkError(f"pipeline {row.path!r}: function {row.function!r} is not declared in this worker")
        function = declared.function
        payload = with_day(function, increment, rest)

        async def work(connection: Connection, write: Write) -> int | None:
            self.connections[ctx.run_id] = connection
            try:
                return await call(self.injector, self.threads, ctx, function, payload, write)
            finally:
                del self.connections[ctx.run_id]

        return declared.reads, work

    async def duckdb_connection(self, ctx: RunContext) -> object:
        """Return the connection that the executor opened for a run as one of DuckDB."""
        return await asyncio.get_running_loop().run_in_executor(
            self.threads, self.connections[ctx.run_id].duckdb_connection
        )

    async def pipeline_tables(self, ctx: RunContext) -> object:
        """Return the tables that the function of a run reads."""
        return await asyncio.get_running_loop().run_in_executor(
            self.threads, self.connections[ctx.run_id].pipeline_tables
        )

    def follow(self, tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
        store.follow(tx, ended, now)


def with_day(function: Callable[..., object], increment: Increment | None, payload: object) -> object:
    """Return the parameters of a function, with the day of its partition if it has a parameter `day`."""
    if increment is None or increment.day is None or "day" not in inspect.signature(function).parameters:
        return payload
    assert isinstance(payload, dict | None)
    return {**(payload or {}), "day": increment.day.isoformat()}
