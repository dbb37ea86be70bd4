"""Runs tasks: async functions on the loop, sync ones in threads, commands and isolated functions in processes."""

import asyncio
import functools
import hashlib
import inspect
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
import structlog

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, LogicError, NotFound, Refused, Unavailable, WorkError, together
from rota.core.model import PAYLOAD_LIMIT, Job, Schedule
from rota.core.parse import Defaults, wrong_names
from rota.core.policy import Failure, FailureClass
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import orgs
from rota.engine.commands import Engine
from rota.engine.runner import RunContext, Skipped, WorkFailed
from rota.kinds.tasks import store
from rota.kinds.tasks.registry import OF_COMMANDS, VERSION_LIMIT, Task, TaskRegistry, task_options
from rota.user_code import processes
from rota.user_code.calls import call
from rota.user_code.injection import Injector

DECLARED = "task"  # how routes of declared tasks begin
DISABLED_ROUTE = "disabled"  # jobs of tasks that are switched off: any worker skips them
RESOLVED_FOR = 1.0  # seconds that a look-up of a task is trusted where nobody told of a change
ISOLATED_AT_ONCE = 4

log = structlog.get_logger("rota.tasks")


class TaskRunner:
    """Runs tasks: async functions on the loop, sync ones in threads, commands in processes of their own."""

    kind = "task"
    defaults = Defaults()
    under_grant = False

    def __init__(
        self, registry: TaskRegistry, db: Database, app: str | None = None, threads: int = 50,
        injector: Injector | None = None, org: str = "default", orgs: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """`org` is the slug of the program's org, `orgs` those whose commands run here; None for all orgs."""
        self.registry, self.db, self.app, self.org, self.orgs = registry, db, app, org, orgs
        self._shell_orgs = set(orgs or ("default",))  # slugs; `learn` reads them
        self._slugs: dict[str, str] = {}  # by the ids of their orgs; a slug does not change
        self.injector = injector or Injector()
        self._threads = ThreadPoolExecutor(threads, "rota-task")
        self._isolated = asyncio.Semaphore(ISOLATED_AT_ONCE)
        self._resolved: dict[tuple[str, str], tuple[float, Any]] = {}
        self._disabled: set[tuple[str, str]] = set()
        self._looking = asyncio.Lock()
        self._looked: tuple[int, float] | None = None  # when that was read: at which change, at what time

    def routes(self) -> Collection[str]:
        """A declared task is reached as `task:ORG:NAME`, the function of task rows that name it as `row:ORG:FUNCTION`,
        and the stored commands of an org as `shell:ORG`."""
        return {
            DISABLED_ROUTE,
            *(f"shell:{slug}" for slug in self._shell_orgs),
            *(f"{DECLARED}:{self.org}:{name}" for name in self.registry.list_all()),
            *(row_route(self.org, name) for name in self.registry.functions()),
        }

    async def prune(self, engine: Engine, now: datetime) -> None:
        """Delete cached results that have expired."""
        await engine.db.tx(store.prune_results, now)

    def schedule_deleted(self, tx: Tx, schedule: Schedule) -> None:
        """Delete a task that was stored for its schedules, if none of them is left."""
        store.remove_with_schedule(tx, schedule.org_id, schedule.target)

    async def learn(self) -> bool:
        """Read which orgs have stored commands that this worker runs; True if the routes changed by it."""
        allowed = await self.db.read(store.shell_orgs)
        before, self._shell_orgs = self._shell_orgs, allowed if self.orgs is None else allowed & set(self.orgs)
        return before != self._shell_orgs

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:
        row = await self.look_up(org_id, target)
        await self.check(row, payload, "input")
        return await self.route_of(row)

    async def route_of(self, row: Any) -> str:
        """Which workers take jobs of a task: those that have its function or, while it is switched off, any."""
        if not row.enabled:
            return DISABLED_ROUTE
        slug = await self.slug(row.org_id)
        if row.source == store.CODE:
            return f"{DECLARED}:{slug}:{row.name}"
        return f"shell:{slug}" if row.task_type == "shell" else row_route(slug, row.command)

    async def slug(self, org_id: str) -> str:
        if org_id not in self._slugs:
            self._slugs[org_id] = await self.db.read(orgs.slug_of, org_id)
        return self._slugs[org_id]

    async def function(self, row: Any) -> Task | None:
        """The function that a task names, if this program has it and the task is of the program's org."""
        task = self.registry.find(row.command) if await self.slug(row.org_id) == self.org else None
        return task if task is not None and task.function is not None else None

    async def check(self, row: Any, payload: Any, field: str) -> None:
        """Refuse what a task would not take. Where its function is not loaded, its types are checked when it runs."""
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid(field, payload, "is not an object of parameters")
        if row.task_type == "python":
            given = {**(row.parameters or {}), **(payload or {})}
            task = await self.function(row)
            if task is not None and task.function is not None:
                self.injector.signature(task.function).check(given, field)
            elif wrong := wrong_names(row.schema or {}, given, field, "parameter of this task"):
                raise together(wrong)

    def known_as(self, tx: Tx, org_id: str, target: str, payload: Any) -> Collection[str]:  # noqa: ARG002
        row = store.get(tx, org_id, target)
        return {row.id, row.name}

    async def prepare(self, ctx: RunContext) -> None:
        task = self.declared(ctx.job)
        if task is None:
            task = await self.stored(ctx)
        else:
            if self.out_of_date(ctx):
                await self.look_again(ctx)
            if (ctx.org_id, task.name) in self._disabled:
                raise Skipped("disabled")
        info = ctx.info
        info.name, info.version, info.timeout, info.retry = task.name, task.version, task.timeout, task.retry
        info.marks_first = task.function is None or task.isolation == "process"
        info.work = task

    async def execute(self, ctx: RunContext) -> Any:
        task: Task = ctx.info.work
        given = {**task.parameters, **(ctx.job.payload or {})} if task.parameters else ctx.job.payload
        if task.cache_ttl is None:
            return await self.run(ctx, task, given)
        told = orjson.dumps([task.name, task.version, given or {}], option=orjson.OPT_SORT_KEYS)
        key = hashlib.sha256(told).hexdigest()
        found = await self.db.read(store.find_result, ctx.org_id, key, ctx.engine.clock.now())
        if found is not None:
            ctx.info.reason = "cached"
            ctx.log.line("system", f"the result of run {found.run_id} was used again")
            return found.outcome
        outcome = await self.run(ctx, task, given)
        until = ctx.engine.clock.now() + task.cache_ttl
        try:
            await self.db.tx(store.keep_result, ctx.org_id, key, outcome, ctx.run_id, until)
        except Unavailable as error:  # the work is done all the same
            log.warning("a result is not kept for later", run=ctx.run_id, error=error.message)
        return outcome

    def run(self, ctx: RunContext, task: Task, given: Any) -> Awaitable[Any]:
        if task.function is None:
            return self.run_command(ctx, task, given)
        if ctx.isolated:  # its worker has counted it already
            return self.run_child(ctx, task, given)
        if task.isolation == "process":
            return self.run_apart(ctx, task, given)
        return self.call(ctx, task.function, given)

    async def run_apart(self, ctx: RunContext, task: Task, given: Any) -> Any:
        async with self._isolated:
            return await self.run_child(ctx, task, given)

    async def run_command(self, ctx: RunContext, task: Task, given: Any) -> Any:
        return await run_command(ctx, task, given, ctx.engine.settings.user_of(await self.slug(ctx.org_id)))

    async def run_child(self, ctx: RunContext, task: Task, given: Any) -> Any:
        """On SQLite as the worker's own user: another one cannot open the database."""
        user = None if self.db.url.startswith("sqlite") else ctx.engine.settings.user_of(await self.slug(ctx.org_id))
        return await run_child(ctx, self.app, task, given, user)

    def call(self, ctx: RunContext, function: Callable[..., Any], given: Any) -> Awaitable[Any]:
        """Call a function in this process, with what it takes and what is injected."""
        return call(self.injector, self._threads, ctx, function, given, functools.partial(self.kept, ctx))

    async def kept(self, ctx: RunContext, result: Any) -> Any:
        """A result as the ledger keeps it: JSON as it is, what else can be saved as an artifact. The side effects of a
        function whose result cannot be kept are its author's."""
        if result is None:
            return None
        if isinstance(result, str | int | float | bool):
            return checked(result)
        manager = self.injector.artifacts(ctx)
        serializer = manager.serializer(result)
        if serializer is None:
            return checked(result)
        artifact_id = await manager.save(result, label="result")
        return {"artifact_id": artifact_id, "content_type": serializer.content_type}

    def declared(self, job: Job) -> Task | None:
        prefix = f"{DECLARED}:{self.org}:"
        return self.registry.find(job.route.removeprefix(prefix)) if job.route.startswith(prefix) else None

    async def stored(self, ctx: RunContext) -> Task:
        """A task that is stored, not declared; or one that this worker no longer has."""
        try:
            row = await self.db.read(store.get_allowed, ctx.org_id, ctx.job.target)
        except Refused as error:
            failure = Failure(FailureClass.PERMISSION, "Refused", error.message, code="no_shell")
            raise Skipped("no_shell", failure) from error
        except NotFound as error:
            raise LogicError(f"{error.message}; it was deleted after the job was made") from error
        if not row.enabled:
            raise Skipped("disabled")
        options = task_options(row.options or {})
        if row.task_type == "shell":
            return Task(row.name, command=row.command, parameters=row.parameters, version=row.version, **options)
        known = await self.function(row)
        if known is None:
            raise WorkError(f"task {row.name}: its function {row.command} is not known to this worker")
        options = {name: value for name, value in options.items() if name not in OF_COMMANDS}  # of rows of long ago
        version = f"{row.version}/{known.version}"[:VERSION_LIMIT]  # of the row, and of the function
        return replace(known, **{"name": row.name, "parameters": row.parameters, "version": version, **options})

    def out_of_date(self, ctx: RunContext) -> bool:
        """Whether a task may have been switched off since this worker looked which are."""
        looked = self._looked
        return looked is None or looked[0] != ctx.engine.wake.tasks or stopwatch() - looked[1] > RESOLVED_FOR

    async def look_again(self, ctx: RunContext) -> None:
        async with self._looking:  # one look serves all who wait for it
            if self.out_of_date(ctx):
                change, at = ctx.engine.wake.tasks, stopwatch()
                self._disabled = await self.db.read(store.disabled)
                self._looked = (change, at)

    def forget(self, org_id: str) -> None:
        """Trust no earlier look-up of this org's tasks: one of them was changed here."""
        self._resolved = {key: found for key, found in self._resolved.items() if key[0] != org_id}

    async def look_up(self, org_id: str, target: str) -> Any:
        found = self._resolved.get((org_id, target))
        if found is None or stopwatch() - found[0] > RESOLVED_FOR:
            try:
                row = await self.db.read(store.get, org_id, target)
            except NotFound as error:
                raise Invalid(
                    "target", target, "is not a known task; `rota task list` shows those there are"
                ) from error
            found = self._resolved[(org_id, target)] = (stopwatch(), row)
        return found[1]


def row_route(org: str, function: str) -> str:
    """The route of task rows of an org that name a function."""
    return f"row:{org}:{function}"


def checked(outcome: Any) -> Any:
    """An outcome that can be stored, or a clear error."""
    try:
        size = len(orjson.dumps(outcome))
    except (TypeError, ValueError) as error:
        raise LogicError(f"the task's result cannot be written as JSON: {error}") from error
    if size > PAYLOAD_LIMIT:
        raise LogicError(
            f"the task's result has {size} bytes of JSON; at most {PAYLOAD_LIMIT} are kept: save it as an artifact"
        )
    return outcome


# processes


async def run_command(ctx: RunContext, task: Task, given: Any, user: str | None) -> dict[str, Any]:
    """Run a command through the system's shell. Its parameters come as JSON on stdin, where the task says nothing."""
    assert task.command is not None
    allowed, given_env = ((), task.env) if isinstance(task.env, Mapping) else (task.env, {})
    env = processes.environment(ctx, allowed, given_env)
    try:
        process = await processes.start(ctx, task.command, env, task.cwd, task.memory_mb, user=user)
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        raise LogicError(f"the command cannot be started: {error}") from error
    feed = task.stdin.encode() if task.stdin is not None else orjson.dumps(given) if given is not None else b""
    kept = await processes.supervise(ctx, process, feed)
    outcome = {"exit_code": process.returncode, **kept}
    if process.returncode:
        last = next((line for line in reversed(kept["stderr"].splitlines()) if line.strip()), "")
        code = process.returncode
        how = f"exited with code {code}" if code > 0 else f"was ended by {processes.died_of(code)}"
        text = f"command {how}" + (f": {last}" if last else "")
        raise WorkFailed(Failure(FailureClass.LOGIC, "CommandFailed", text), outcome)
    return outcome


async def run_child(ctx: RunContext, app: str | None, task: Task, given: Any, user: str | None) -> Any:
    """Run a function in a Python process of its own, where it can hurt only itself."""
    assert task.function is not None
    order = {"app": app, "module": inspect.getsourcefile(task.function), "task": task.command, "name": task.name}
    return (await processes.ask_child(ctx, {**order, "payload": given}, task.cwd, task.memory_mb, user))["outcome"]
