"""The commands for pipelines: make, edit, try, run and delete them, and say what makes them run."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Any

from rota.access.store import accounts
from rota.core import parse
from rota.core.errors import Conflict, Invalid, NotFound, RotaError
from rota.core.model import Schedule
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs, schedules, workers
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.kinds.pipelines import store
from rota.kinds.pipelines.executor import Executor
from rota.kinds.pipelines.registry import Declared, PipelineRegistry, path_of, read_path
from rota.kinds.pipelines.runner import PipelineRunner

SQL_LIMIT = 100_000  # characters
PREVIEW_ROWS = 50
TOKEN_BYTES = 32
FIELDS = frozenset({"namespace", "layer", "name", "type", "sql", "function", "description", "max_runs", "max_age_days"})
TRIGGER_FIELDS = frozenset({"type", "upstream", "upstreams", "cron_expression", "timezone", "cooldown_seconds"})


class Cooling(RotaError):
    """A trigger fired a moment ago, and may not do so again yet."""

    code = "cooldown"

    def __init__(self, seconds: int) -> None:
        super().__init__(f"this trigger cools down; try again in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class PipelineManager:
    """What can be asked about the pipelines of one org."""

    engine: Engine
    org_id: str
    by: str | None = None

    # pipelines

    async def create(self, body: Mapping[str, Any]) -> Record:
        """Store a pipeline: saved is live."""
        fields = await self.read({"type": "sql", **body})
        columns = {**fields, "owner_id": self.by, "source": "api"}
        made = await self.engine.db.tx(store.insert, self.org_id, columns, self.engine.clock.now())
        return await self.find(made)

    async def edit(self, path: str, body: Mapping[str, Any]) -> Record:
        """Write it anew; where it runs something else, that is its next version."""
        row = await self.row(path)
        if row.source == "code":
            raise Conflict(f"pipeline {path}: a program declares it; change it there")
        namespace, layer, name = path.split("/")
        fields = await self.read({"type": row.type, **body, "namespace": namespace, "layer": layer, "name": name})
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            return store.change(tx, store.get(tx, self.org_id, path, lock=True), fields, now)

        return await self.find(await self.engine.db.tx(step))

    async def delete(self, path: str) -> None:
        row, now = await self.row(path), self.engine.clock.now()
        if row.source == "code":
            raise Conflict(f"pipeline {path}: a program declares it, and would declare it again; take it out there")
        await self.engine.write_and_wake(lambda tx: store.remove(tx, store.get(tx, self.org_id, path, lock=True), now))

    async def find(self, key: str) -> Record:
        return await self.engine.db.read(store.describe, self.org_id, key)

    # work

    async def run(self, path: str, given: Any = None, trace: str | None = None, **options: Any) -> str:
        """A job, at once or as the options of `Engine.enqueue` have it; returns its id."""
        await self.row(path)
        (job_id,) = await self.engine.enqueue(self.org_id, "pipeline", path, [given], trace=trace, **options)
        return job_id

    async def preview(self, path: str, sql: Any = None) -> Record:
        """Columns and first rows of a pipeline's SQL, or of a draft of it. Nothing is written."""
        text = await self.draft(path, sql)
        columns, rows = await self.executor.preview(self.org_id, text, PREVIEW_ROWS)
        return {"columns": columns, "rows": rows}

    async def validate(self, path: str, sql: Any = None) -> Record:
        """Whether a pipeline's SQL, or a draft of it, could run now: what it reads and makes, or what is wrong."""
        text = await self.draft(path, sql)
        try:
            reads = await self.check(text, path)
            columns, _ = await self.executor.preview(self.org_id, text, 0)
        except Invalid as error:
            return {"ok": False, "error": error.message, "reads": [], "columns": []}
        return {"ok": True, "error": None, "reads": reads, "columns": columns}

    # triggers

    async def add_trigger(self, path: str, body: Mapping[str, Any]) -> tuple[Record, str | None]:
        """Say what else makes it run; the trigger, and the token of a webhook, which is told only now."""
        now, row = self.engine.clock.now(), await self.row(path)
        form = parse.Form(body, TRIGGER_FIELDS)
        kinds = [store.SUCCESS, store.DEPENDENCY, store.WEBHOOK]
        kind = form.need("type", lambda value, field: parse.one_of(value, field, kinds))
        pause = form.take("cooldown_seconds", cooldown, 0)
        upstreams = form.take("upstreams", read_paths, None) or []
        upstreams += form.take("upstream", lambda value, field: [read_path(value, field)], None) or []
        form.done()
        if bool(upstreams) == (kind == store.WEBHOOK) or (kind == store.SUCCESS and len(upstreams) > 1):
            right = {store.SUCCESS: "one upstream", store.DEPENDENCY: "upstreams", store.WEBHOOK: "none"}
            raise Invalid("upstreams", upstreams, f"does not fit: {kind} takes {right[str(kind)]}")
        schedule = self.timer(row, body, now) if kind == store.DEPENDENCY else None
        if schedule is None and (given := body.get("cron_expression")) is not None:
            raise Invalid("cron_expression", given, f"is for {store.DEPENDENCY} alone")
        token = secrets.token_urlsafe(TOKEN_BYTES) if kind == store.WEBHOOK else None
        if schedule is not None:
            schedule = replace(schedule, route=await self.engine.resolve(schedule))
        fields = {
            "type": kind, "cooldown_seconds": pause, "upstreams": upstreams,
            "token_hash": accounts.hash_of(token) if token else None, "schedule_id": schedule.id if schedule else None,
        }  # fmt: skip

        def step(tx: Tx) -> str:
            made = store.insert_trigger(tx, row, fields, now)
            if schedule is not None:
                schedules.insert(tx, [schedule], now)
            return made

        return await self.trigger(path, await self.engine.write_and_wake(step)), token

    async def edit_trigger(self, path: str, trigger_id: str, body: Mapping[str, Any]) -> Record:
        await self.trigger(path, trigger_id)
        form = parse.Form(body, frozenset({"enabled", "cooldown_seconds"}))
        found = {
            "enabled": form.take("enabled", parse.flag, None),
            "cooldown_seconds": form.take("cooldown_seconds", cooldown, None),
        }
        form.done()
        changes = {name: value for name, value in found.items() if value is not None}
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
        found = self.engine.runners["pipeline"]
        assert isinstance(found, PipelineRunner)
        return found

    @property
    def executor(self) -> Executor:
        if self.runner.executor is None:
            raise Conflict("SQL can be neither read nor run here: install rota[duckdb]")
        return self.runner.executor

    async def row(self, path: str) -> Any:
        return await self.engine.db.read(store.get, self.org_id, path)

    async def draft(self, path: str, sql: Any) -> str:
        if sql is not None:
            return parse.text(sql, "sql", SQL_LIMIT, required=True)
        row = await self.row(path)
        if row.sql is None:
            raise Invalid("sql", None, f"is missing: pipeline {path} is a function, which only a run can try")
        return str(row.sql)

    async def read(self, body: Mapping[str, Any]) -> Record:
        """The columns of a pipeline from its flat form."""
        form = parse.Form(body, FIELDS)
        path = path_of(body.get("namespace"), body.get("layer"), body.get("name"))
        kind = form.need("type", lambda value, field: parse.one_of(value, field, ["sql", "python"]))
        work, other = ("sql", "function") if kind == "sql" else ("function", "sql")
        text = form.need(work, lambda value, field: parse.text(value, field, SQL_LIMIT, required=True))
        if body.get(other) is not None:
            form.errors.append(Invalid(other, body[other], f"does not belong to type {kind}"))
        fields = {
            "path": path, "type": kind, "sql": None, "function": None, work: text,
            "description": form.take("description", lambda value, field: parse.text(value, field, 2000), "") or "",
            "max_runs": form.take("max_runs", lambda value, field: parse.whole(value, field, 1, 1_000_000), None),
            "max_age_days": form.take("max_age_days", lambda value, field: parse.whole(value, field, 1, 36_500), None),
        }  # fmt: skip
        form.done()
        if kind == "python":
            await self.check_function(str(text))
        return {**fields, "reads": await self.check(str(text), path) if kind == "sql" else []}

    async def check(self, sql: str, path: str) -> list[str]:
        """What SQL reads: tables of other pipelines that there are."""
        reads = self.executor.check(sql)
        missing = await self.engine.db.read(store.unknown, self.org_id, reads)
        if path in reads:
            raise Invalid("sql", path, "cannot be read by the pipeline that makes it")
        if missing:
            raise Invalid("sql", missing[0], "is read, and there is no such pipeline")
        return reads

    async def check_function(self, function: str) -> None:
        slug = await self.engine.db.read(orgs.slug_of, self.org_id)
        route = store.route_of(slug, "python", function)
        routes = await self.engine.db.read(workers.live_routes, self.engine.clock.now())
        if route not in {*routes, *(self.runner.routes() if self.runner.org == slug else ())}:
            raise Invalid("function", function, "is no pipeline function that a running program declares")

    def timer(self, row: Any, body: Mapping[str, Any], now: datetime) -> Schedule:
        """The schedule whose slots ask for a cron_dependency."""
        cron = {name: body.get(name) for name in ("cron_expression", "timezone")}
        if cron["cron_expression"] is None:
            raise Invalid("cron_expression", None, f"is missing: {store.DEPENDENCY} needs one")
        fields = {"kind": "pipeline", "target": row.path, "schedule_type": "cron", **cron}
        return parse.parse_schedule(
            fields, org_id=self.org_id, defaults=self.engine.defaults, now=now, source=f"trigger:{row.path}", by=self.by
        )


async def fire_webhook(engine: Engine, token: str) -> str:
    """The job of the pipeline that waits for this token."""
    now = engine.clock.now()

    def step(tx: Tx) -> tuple[str | None, datetime | None]:
        row = store.by_token(tx, accounts.hash_of(token))
        if row is None:
            return None, None
        return store.fire(tx, [row.id], now).get(row.id), store.ready_at(row)

    job_id, ready_at = await engine.write_and_wake(step)
    if ready_at is None:
        raise NotFound("there is no webhook of this token")
    if job_id is None:
        raise Cooling(max(1, ceil((ready_at - now).total_seconds())))
    return job_id


async def declare(engine: Engine, org: str, declared: PipelineRegistry) -> None:
    """Make the database say what a program says. Any number of processes may do this at once."""
    if not declared.known:
        return
    now = engine.clock.now()
    org_id = await engine.db.read(orgs.org_by_slug, org)
    if org_id is None:
        raise NotFound(f"org {org!r} not found; make it first, or declare for another")
    system = await engine.db.tx(orgs.system_user, org_id, now)
    manager = PipelineManager(engine.audited_as(AuditEntry(org_id, system, "pipelines", "declare")), org_id)
    rows = [row_of(manager, one, system) for one in declared.known.values()]
    await manager.engine.db.tx(store.sync, org_id, rows, now)


def row_of(manager: PipelineManager, one: Declared, owner_id: str) -> Record:
    reads = list(one.reads) if one.sql is None else manager.executor.check(one.sql)
    return {
        "path": one.path, "type": "python" if one.sql is None else "sql", "sql": one.sql,
        "function": one.path if one.sql is None else None, "reads": reads, "description": one.description,
        "owner_id": owner_id, "source": "code", "after": list(one.after),
    }  # fmt: skip


def cooldown(value: Any, field: str) -> int:
    return parse.whole(value, field, 0, 366 * 86_400)


def read_paths(value: Any, field: str) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= 100:
        raise Invalid(field, value, "is not a list of 1 to 100 paths of pipelines")
    return sorted({read_path(one, field) for one in value})
