"""Runs pipelines on the executor of this process."""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import MappingProxyType

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
from rota.kinds.pipelines.executor import Executor, Materialisation, Materialise, Write
from rota.kinds.pipelines.records import PipelineRow
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.user_code.calls import call
from rota.user_code.injection import Injector


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
        self.connections: dict[str, object] = {}  # by run id: of functions that run
        self.threads = ThreadPoolExecutor(64, "rota-pipeline")  # more than the slots of any executor
        if executor is not None:
            from duckdb import DuckDBPyConnection

            self.injector.provide(DuckDBPyConnection, self.connection)

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
        if row.type == "sql" and payload not in (None, {}):
            raise Invalid("input", payload, "is not empty; a pipeline of type sql has no input")
        if declared is not None and declared.function is not None:
            self.injector.signature(declared.function).check(payload, "input")
        return store.route_of(await self.db.read(orgs.slug_of, org_id), row.type, row.function)

    async def prune(self, engine: Engine, now: datetime) -> None:
        """Delete runs of pipelines that keep fewer than the installation does."""
        for pipeline in await engine.db.read(store.with_limits):
            await prune_in_chunks(engine.db, store.prune, pipeline, now)

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        job, info = ctx.job, ctx.info
        if self.executor is None or self.executor.capacity() <= 0:
            raise Busy("the pipeline executor has no free slot")
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

    async def execute(self, ctx: RunContext, row: PipelineRow) -> object:
        executor = self.executor
        assert executor is not None
        reads, work = self.function(ctx, row) if row.sql is None else (row.reads, row.sql)
        order = Materialisation(ctx.run_id, ctx.org_id, row.path, reads, work)
        submitted = asyncio.ensure_future(executor.submit(order))
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

    def function(self, ctx: RunContext, row: PipelineRow) -> tuple[Sequence[str], Materialise]:
        """Return the tables that a function reads, and the call of it. Raises WorkError if it is not declared here."""
        declared = self.registry.pipelines.get(row.function or "")
        if declared is None or declared.function is None:
            raise WorkError(f"pipeline {row.path!r}: function {row.function!r} is not declared in this worker")
        function = declared.function

        async def work(connection: object, write: Write) -> int | None:
            self.connections[ctx.run_id] = connection
            try:
                return await call(self.injector, self.threads, ctx, function, ctx.job.payload, write)
            finally:
                del self.connections[ctx.run_id]

        return declared.reads, work

    def connection(self, ctx: RunContext) -> object:
        """Return the connection that the executor opened for a run."""
        return self.connections[ctx.run_id]

    def follow(self, tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
        store.follow(tx, ended, now)
