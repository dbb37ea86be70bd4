"""Commands for pipelines: create, edit, preview, run and delete them, and manage their triggers."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from math import ceil
from typing import Unpack

import structlog

from rota.access.store import accounts
from rota.core import schedule_form
from rota.core.errors import MISSING, Conflict, Invalid, NotFound, RotaError, Unavailable, together
from rota.core.model import Schedule
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs, schedules, workers
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.engine.enqueueing import EnqueueOptions
from rota.kinds.pipelines import store
from rota.kinds.pipelines.executor import Executor
from rota.kinds.pipelines.increments import days_between, to_store
from rota.kinds.pipelines.models import PipelineBody, PipelineChanges, TriggerBody, TriggerChanges
from rota.kinds.pipelines.records import PipelineRow
from rota.kinds.pipelines.registry import DeclaredPipeline, PipelineRegistry
from rota.kinds.pipelines.runner import PipelineRunner
from rota.version import DISTRIBUTION

log = structlog.get_logger("rota.pipelines")

PREVIEW_ROWS = 50
WEBHOOK_TOKEN_BYTES = 32


class CooldownActive(RotaError):
    """The cooldown of a trigger has not ended."""

    code = "cooldown"

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the cooldown of this trigger has not ended; retry in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class PipelineManager:
    """Commands and queries on the pipelines of one org."""

    engine: Engine
    org_id: str
    by: str | None = None

    # pipelines

    async def create(self, body: PipelineBody | Mapping[str, object]) -> Record:
        """Store a pipeline; it can run at once. Raises Invalid or Conflict."""
        form = PipelineBody.read(body)
        fields = await self.columns(f"{form.namespace}/{form.layer}/{form.name}", form.type or "sql", form)
        columns = {**fields, "owner_id": self.by, "source": "api"}
        pipeline_id = await self.engine.db.tx(store.insert, self.org_id, columns, self.engine.clock.now())
        return await self.find(pipeline_id)

    async def edit(self, path: str, body: PipelineChanges | Mapping[str, object]) -> Record:
        """Replace a pipeline, as a new version if it runs something else. Raises Conflict if a program declares it."""
        row, form = await self.row(path), PipelineChanges.read(body)
        if row.source == "code":
            raise Conflict(f"pipeline {path!r} is declared by a program; change it there")
        fields = await self.columns(path, form.type or row.type, form)
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            return store.change(tx, store.get(tx, self.org_id, path, lock=True), fields, now)

        return await self.find(await self.engine.db.tx(step))

    async def delete(self, path: str) -> None:
        row, now = await self.row(path), self.engine.clock.now()
        if row.source == "code":
            raise Conflict(f"pipeline {path!r} is declared by a program; remove it there")
        await self.engine.write_and_wake(lambda tx: store.remove(tx, store.get(tx, self.org_id, path, lock=True), now))

    async def find(self, key: str) -> Record:
        return await self.engine.db.read(store.describe, self.org_id, key)

    # work

    async def run(
        self, path: str, payload: object = None, trace: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> str:
        """Enqueue a job, with the options of `Engine.enqueue`; returns its id."""
        await self.row(path)
        (job_id,) = await self.engine.enqueue(self.org_id, "pipeline", path, [payload], trace=trace, **options)
        return job_id

    async def backfill(self, path: str, first: date, last: date) -> list[str]:
        """Enqueue a job for each of these days of a pipeline with partitions; returns their ids. Raises Invalid."""
        if (await self.row(path)).increment is None or not (await self.find(path))["partition_by"]:
            raise Invalid("path", path, "has no partitions: only a pipeline with partition_by has days to backfill")
        payloads = [{"day": day.isoformat()} for day in days_between(first, last)]
        return await self.engine.enqueue(self.org_id, "pipeline", path, payloads, trigger="backfill")

    async def preview(self, path: str, sql: str | None = None) -> Record:
        """Return columns and first rows of a pipeline's SQL, or of a draft. Writes nothing."""
        text = await self.draft(path, sql)
        columns, rows = await self.executor.preview(self.org_id, text, PREVIEW_ROWS)
        return {"columns": columns, "rows": rows}

    async def validate(self, path: str, sql: str | None = None) -> Record:
        """Return whether a pipeline's SQL, or a draft, could run now: its reads and columns, or its error."""
        text = await self.draft(path, sql)
        try:
            reads = await self.check(text, path)
            columns, _ = await self.executor.preview(self.org_id, text, 0)
        except Invalid as error:
            return {"ok": False, "error": error.message, "reads": [], "columns": []}
        return {"ok": True, "error": None, "reads": reads, "columns": columns}

    # triggers

    async def add_trigger(self, path: str, body: TriggerBody | Mapping[str, object]) -> tuple[Record, str | None]:
        """Create a trigger; returns it, and the token of a webhook, which is not stored. Raises Invalid."""
        now, row, form = self.engine.clock.now(), await self.row(path), TriggerBody.read(body)
        upstreams = [*(form.upstreams or []), *([form.upstream] if form.upstream else [])]
        if bool(upstreams) == (form.type == store.WEBHOOK) or (form.type == store.SUCCESS and len(upstreams) > 1):
            expected = {store.SUCCESS: "one upstream", store.DEPENDENCY: "upstreams", store.WEBHOOK: "no upstream"}
            raise Invalid("upstreams", upstreams, f"does not fit: {form.type} needs {expected[form.type]}")
        schedule = self.schedule_of(row, form, now) if form.type == store.DEPENDENCY else None
        if schedule is None and form.cron_expression is not None:
            raise Invalid("cron_expression", form.cron_expression, f"is only for triggers of type {store.DEPENDENCY}")
        token = secrets.token_urlsafe(WEBHOOK_TOKEN_BYTES) if form.type == store.WEBHOOK else None
        if schedule is not None:
            schedule = replace(schedule, route=await self.engine.resolve(schedule))
        fields = {
            "type": form.type, "cooldown_seconds": form.cooldown_seconds or 0, "upstreams": upstreams,
            "token_hash": accounts.hash_of(token) if token else None, "schedule_id": schedule.id if schedule else None,
        }  # fmt: skip

        def step(tx: Tx) -> str:
            trigger_id = store.insert_trigger(tx, row, fields, now)
            if schedule is not None:
                schedules.insert(tx, [schedule], now)
            return trigger_id

        return await self.trigger(path, await self.engine.write_and_wake(step)), token

    async def edit_trigger(self, path: str, trigger_id: str, body: TriggerChanges | Mapping[str, object]) -> Record:
        changes = TriggerChanges.read(body).present()
        await self.trigger(path, trigger_id)
        now = self.engine.clock.now()
        if changes:
            await self.engine.write_and_wake(lambda tx: store.change_trigger(tx, self.org_id, trigger_id, changes, now))
        return await self.trigger(path, trigger_id)

    async def delete_trigger(self, path: str, trigger_id: str) -> None:
        await self.trigger(path, trigger_id)
        now = self.engine.clock.now()
        await self.engine.write_and_wake(lambda tx: store.remove_trigger(tx, self.org_id, trigger_id, now))

    async def trigger(self, path: str, trigger_id: str) -> Record:
        return await self.engine.db.read(store.trigger, self.org_id, path, trigger_id)

    # helpers

    @property
    def runner(self) -> PipelineRunner:
        runner = self.engine.runners["pipeline"]
        assert isinstance(runner, PipelineRunner)
        return runner

    @property
    def executor(self) -> Executor:
        if self.runner.executor is None:
            raise Conflict(f"pipelines need DuckDB, which is not installed here: install {DISTRIBUTION}[duckdb]")
        return self.runner.executor

    async def row(self, path: str) -> PipelineRow:
        return await self.engine.db.read(store.get, self.org_id, path)

    async def draft(self, path: str, sql: str | None) -> str:
        """Return the draft, or without one the SQL of the pipeline. Raises Invalid for a function."""
        if sql is not None:
            return sql
        row = await self.row(path)
        if row.sql is None:
            raise Invalid("sql", None, f"is missing: pipeline {path} is a function, which has no preview; run it")
        return row.sql

    async def columns(self, path: str, pipeline_type: str, form: PipelineChanges) -> Record:
        """Return the columns of a pipeline. Raises Invalid for SQL or a function that is missing, wrong or too much."""
        work, other = ("sql", "function") if pipeline_type == "sql" else ("function", "sql")
        text, wrong = getattr(form, work), []
        if text is None:
            wrong.append(Invalid(work, None, MISSING))
        if getattr(form, other) is not None:
            wrong.append(Invalid(other, getattr(form, other), f"is not a field of type {pipeline_type}"))
        if wrong:
            raise together(wrong)
        await self.executor.verify()
        if pipeline_type == "python":
            await self.check_function(text)
        return {
            "path": path,
            "type": pipeline_type,
            "sql": form.sql,
            "function": form.function,
            "description": form.description or "",
            "max_runs": form.max_runs,
            "max_age_days": form.max_age_days,
            "increment": to_store(form.append_by, form.merge_by, form.partition_by),
            "reads": await self.check(text, path) if pipeline_type == "sql" else [],
        }

    async def check(self, sql: str, path: str) -> list[str]:
        """Return the pipelines whose tables a query reads. Raises Invalid for its own table, and for unknown ones."""
        reads = self.executor.check(sql)
        missing = await self.engine.db.read(store.unknown, self.org_id, reads)
        if path in reads:
            raise Invalid("sql", path, "cannot be read by the pipeline that makes it")
        if missing:
            raise Invalid("sql", missing[0], "is read, but is not a pipeline")
        return reads

    async def check_function(self, function: str) -> None:
        """Raises Invalid if no running program declares the function."""
        slug = await self.engine.db.read(orgs.slug_of, self.org_id)
        route = store.route_of(slug, "python", function)
        routes = await self.engine.db.read(workers.live_routes, self.engine.clock.now())
        if route not in {*routes, *(self.runner.routes() if self.runner.org == slug else ())}:
            raise Invalid("function", function, "is not a pipeline function of a running program")

    def schedule_of(self, row: PipelineRow, form: TriggerBody, now: datetime) -> Schedule:
        """Return the schedule of a cron_dependency. Raises Invalid."""
        cron = {"cron_expression": form.cron_expression, "timezone": form.timezone}
        if form.cron_expression is None:
            raise Invalid("cron_expression", None, f"is missing: {store.DEPENDENCY} needs one")
        fields = {"kind": "pipeline", "target": row.path, "schedule_type": "cron", **cron}
        return schedule_form.parse_schedule(
            fields, org_id=self.org_id, defaults=self.engine.defaults, now=now, source=f"trigger:{row.path}", by=self.by
        )


async def fire_webhook(engine: Engine, token: str) -> str:
    """Enqueue a job of the pipeline whose webhook has this token; returns its id. Raises NotFound or CooldownActive."""
    now = engine.clock.now()

    def step(tx: Tx) -> tuple[str | None, datetime | None]:
        row = store.by_token(tx, accounts.hash_of(token))
        if row is None:
            return None, None
        return store.fire_triggers(tx, [row.id], now).get(row.id), row.ready_at

    job_id, ready_at = await engine.write_and_wake(step)
    if ready_at is None:
        raise NotFound("no webhook has this token")
    if job_id is None:
        raise CooldownActive(max(1, ceil((ready_at - now).total_seconds())))
    return job_id


async def declare(engine: Engine, org: str, declared: PipelineRegistry) -> None:
    """Store the pipelines of a program; safe to call from several processes at once. Raises NotFound for the org."""
    if not declared.pipelines:
        return
    now = engine.clock.now()
    org_id = await engine.db.read(orgs.org_by_slug, org)
    if org_id is None:
        raise NotFound(f"org {org!r} not found; create it first")
    system = await engine.db.tx(orgs.system_user, org_id, now)
    manager = PipelineManager(engine.audited_as(AuditEntry(org_id, system, "pipelines", "declare")), org_id)
    if manager.runner.executor is not None:
        try:
            await manager.runner.executor.verify()
        except Unavailable as error:  # a program starts without its engine: runs are retried until it is back
            log.warning("the engine of pipelines is out of reach", error=error.message)
    rows = [row_of(manager, pipeline, system) for pipeline in declared.pipelines.values()]
    await manager.engine.db.tx(store.sync, org_id, rows, now)


def row_of(manager: PipelineManager, pipeline: DeclaredPipeline, owner_id: str) -> Record:
    sql = pipeline.sql
    return {
        "path": pipeline.path,
        "type": "python" if sql is None else "sql",
        "sql": sql,
        "function": pipeline.path if sql is None else None,
        "reads": list(pipeline.reads) if sql is None else manager.executor.check(sql),
        "description": pipeline.description,
        "owner_id": owner_id,
        "increment": pipeline.increment,
        "source": "code",
        "after": list(pipeline.after),
    }
