"""Runs tasks: async functions on the event loop, sync ones in threads, commands and isolated functions in processes."""

import asyncio
import contextlib
import copy
import functools
import hashlib
import inspect
import math
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import orjson
import structlog

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, LogicError, NotFound, Refused, Unavailable, WorkError
from rota.core.flow import EnqueueRules
from rota.core.kinds import KindTraits, register
from rota.core.model import PAYLOAD_LIMIT, Job, Schedule
from rota.core.policy import Failure, FailureClass
from rota.core.process_groups import describe_exit, last_line
from rota.core.schedule_form import Defaults
from rota.core.steps import OnNewVersion
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import orgs
from rota.engine.artifacts import JSON
from rota.engine.commands import Engine
from rota.engine.extensions import Describe
from rota.engine.runner import MAX_ISOLATED_RUNS, RunContext, Skipped, Work, WorkFailed
from rota.engine.versions import base_of, pinned
from rota.kinds.tasks import reports, store
from rota.kinds.tasks.executors.container_options import Container
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.executors.functions import RemoteCall
from rota.kinds.tasks.executors.options import WITH_CONTAINER
from rota.kinds.tasks.flow import limits_of, rules_of
from rota.kinds.tasks.registry import COMMAND_OPTIONS, VERSION_CHARACTERS, Task, TaskRegistry, task_options
from rota.kinds.tasks.targets import (
    DECLARED_ROUTE_PREFIX,
    DISABLED_ROUTE,
    UNKNOWN_TASK,
    check_payload,
    route_of,
    row_route,
)
from rota.user_code import frames, processes
from rota.user_code.calls import call, load_frame
from rota.user_code.injection import Injector
from rota.user_code.services import ArtifactManager

TASK_CACHE_SECONDS = 1.0  # of task rows, where no wake-up announced a change

log = structlog.get_logger("rota.tasks")


class TaskRunner:
    """The Runner of kind `task`."""

    kind = "task"
    defaults = Defaults()
    under_grant = False
    traits = register(kind, KindTraits(grant_action="execute", run_artifact=reports.run_artifact))
    describers: Mapping[str, Describe] = MappingProxyType({"tasks": reports.task})

    def __init__(
        self,
        registry: TaskRegistry,
        db: Database,
        app: str | None = None,
        threads: int = 50,
        injector: Injector | None = None,
        org: str = "default",
        orgs: Collection[str] | None = None,
        executors: Executors | None = None,
    ) -> None:
        """`org` is the slug of the program's org, `orgs` those whose commands run here; None for all orgs. Without
        `executors` every function runs in this process."""
        self.registry, self.db, self.app, self.org, self.orgs = registry, db, app, org, orgs
        self._shell_orgs = set(orgs or ("default",))  # slugs; `learn` refreshes them
        self._slugs: dict[str, str] = {}  # by org id; a slug never changes
        self.injector, self.executors = injector or Injector(), executors
        self._threads = ThreadPoolExecutor(threads, "rota-task")
        self._isolated = asyncio.Semaphore(MAX_ISOLATED_RUNS)
        # cache by org and target: time of the read, row
        self._rows: dict[tuple[str, str], tuple[float, store.TaskRow]] = {}
        self._disabled: set[tuple[str, str]] = set()  # cache of (org_id, name)
        self._disabled_lock = asyncio.Lock()
        self._disabled_read: tuple[int, float] | None = None  # wake-up counter and time of the last read

    def reading(self, db: Database) -> "TaskRunner":
        runner = copy.copy(self)
        runner.db, runner._rows = db, {}
        return runner

    def routes(self) -> Collection[str]:
        """Routes that this worker serves: `task:ORG:NAME` of declared tasks, `row:ORG:FUNCTION` of stored tasks that
        name a function, `shell:ORG` of stored commands; of functions that may record steps also with their version."""
        routes = {f"{DECLARED_ROUTE_PREFIX}:{self.org}:{name}": name for name in self.registry.list_all()}
        routes |= {row_route(self.org, name): name for name in self.registry.functions()}
        versions = {route: self.code_version(name) for route, name in routes.items()}
        return {
            DISABLED_ROUTE,
            *(f"shell:{slug}" for slug in self._shell_orgs),
            *routes,
            *(pinned(route, version) for route, version in versions.items() if version is not None),
        }

    def code_version(self, function: str) -> str | None:
        """Return the version of a registered function that may record steps, None for other tasks. On a cluster there
        are no steps."""
        task = self.registry.find_function(function)
        if task is None or task.executor is not None or not takes_context(task.function, self.injector):
            return None
        return task.version

    def on_new_version(self, tx: Tx, org_id: str, target: str) -> OnNewVersion:
        """Return the rule of a task, or of the function that a stored task names."""
        with contextlib.suppress(NotFound):
            row = store.get(tx, org_id, target)
            own = (row.options or {}).get("on_new_version")
            if own is None and row.source != store.CODE:
                own = (store.get(tx, org_id, row.command).options or {}).get("on_new_version")
            return OnNewVersion(str(own or OnNewVersion.CONTINUE))
        return OnNewVersion.CONTINUE

    async def prune(self, engine: Engine, now: datetime) -> None:
        """Delete cached results that have expired."""
        await engine.db.tx(store.prune_results, now)

    def schedule_deleted(self, tx: Tx, schedule: Schedule) -> None:
        """Delete a task that was stored for its schedules, if none of them is left."""
        store.remove_with_schedule(tx, schedule.org_id, schedule.target)

    async def learn(self) -> bool:
        """Refresh which orgs have stored commands that this worker runs; True if its routes changed."""
        allowed = await self.db.read(store.shell_orgs)
        before, self._shell_orgs = self._shell_orgs, allowed if self.orgs is None else allowed & set(self.orgs)
        return before != self._shell_orgs

    async def resolve(self, org_id: str, target: str, payload: object) -> str:
        row = await self.cached_row(org_id, target)
        await self.check(row, payload, "input")
        return await self.route_of(row)

    async def enqueue_rules(self, org_id: str, target: str, payload: object) -> EnqueueRules | None:
        return rules_of(await self.cached_row(org_id, target), payload)

    async def route_of(self, row: store.TaskRow) -> str:
        """Return the route of a task's jobs: to workers that have its function or, while it is disabled, to any."""
        return route_of(row, await self.slug(row.org_id))

    async def slug(self, org_id: str) -> str:
        if org_id not in self._slugs:
            self._slugs[org_id] = await self.db.read(orgs.slug_of, org_id)
        return self._slugs[org_id]

    async def function(self, row: store.TaskRow) -> Task | None:
        """Return the registered function of a stored task; None if another program has it, or the org is another."""
        return self.registry.find_function(row.command) if await self.slug(row.org_id) == self.org else None

    async def check(self, row: store.TaskRow, payload: object, field: str) -> None:
        """Raises Invalid for a payload that does not fit. Where the function is not loaded, only names are checked;
        types are checked when it runs."""
        check_payload(row, payload, field, await self.function(row), self.injector)

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        row = store.get(tx, org_id, target)
        return {row.id, row.name}

    async def prepare(self, ctx: RunContext) -> Work:
        task = self.declared(ctx.job)
        if task is None:
            task = await self.stored(ctx)
        else:
            if self.is_stale(ctx):
                await self.refresh_disabled(ctx)
            if (ctx.org_id, task.name) in self._disabled:
                raise Skipped("disabled")
        info = ctx.info
        info.name, info.version, info.timeout, info.retry = task.name, task.version, task.timeout, task.retry
        info.heartbeat, info.code_version = task.heartbeat, self.code_version(task.command or "")
        if task.limited:
            info.limits = limits_of(task, ctx.org_id, parameters_of(task, ctx.job))
        info.marks_first = task.function is None or task.isolation == "process" or task.executor is not None
        return functools.partial(self.execute, ctx, task)

    async def execute(self, ctx: RunContext, task: Task) -> object:
        """Run a task with the payload of the job, or return its cached result."""
        parameters = parameters_of(task, ctx.job)
        if task.cache_ttl is None:
            return await self.run(ctx, task, parameters)
        cache_fields = orjson.dumps([task.name, task.version, parameters or {}], option=orjson.OPT_SORT_KEYS)
        key = hashlib.sha256(cache_fields).hexdigest()
        cached = await self.db.read(store.find_result, ctx.org_id, key, ctx.engine.clock.now())
        if cached is not None:
            ctx.info.reason = "cached"
            ctx.log.line("system", f"returned the cached result of run {cached.run_id}")
            return cached.outcome
        outcome = await self.run(ctx, task, parameters)
        until = ctx.engine.clock.now() + task.cache_ttl
        try:
            await self.db.tx(store.cache_result, ctx.org_id, key, outcome, ctx.run_id, until)
        except Unavailable as error:  # the run has succeeded without it
            log.warning("result not cached", run=ctx.run_id, error=error.message)
        return outcome

    def run(self, ctx: RunContext, task: Task, parameters: object) -> Awaitable[object]:
        if task.function is None:
            if task.executor in WITH_CONTAINER and self.executors is not None:
                content = command_input(task, parameters)
                return self.executors.run_command(ctx, container_of(task), task.command or "", content)
            return self.run_command(ctx, task, parameters)
        if task.executor is not None and self.executors is not None:
            return self.run_remote(ctx, self.executors, task, parameters)
        if ctx.isolated or task.isolation == "process":
            ctx.heartbeat_at = math.inf  # its process sends the first heartbeat when it has loaded the program
        if ctx.isolated:  # its worker limits these itself
            return self.run_child(ctx, task, parameters)
        if task.isolation == "process":
            return self.run_isolated(ctx, task, parameters)
        return self.call(ctx, task.function, parameters)

    async def run_isolated(self, ctx: RunContext, task: Task, parameters: object) -> object:
        async with self._isolated:
            return await self.run_child(ctx, task, parameters)

    async def run_remote(self, ctx: RunContext, executors: Executors, task: Task, parameters: object) -> object:
        """Run a function on the cluster of its executor; its result is stored as one of this process."""
        assert task.executor is not None
        assert task.function is not None
        signature = self.injector.signature(task.function)
        arguments = signature.check(parameters, "input")
        for name, cls in signature.frames.items():
            if arguments.get(name) is not None:
                arguments[name] = await load_frame(self._threads, ctx, cls, name, arguments[name])
        ctx.heartbeat_at = math.inf  # its process sends the first heartbeat when it has loaded the function
        container = container_of(task) if task.executor == "container" else None
        call = RemoteCall(task.executor, task.name, task.function, arguments, signature, task.memory_mb, container)
        result = await executors.run(ctx, call, ctx.engine.settings.artifact_limit)
        return await self.save_result(ctx, result)

    async def close(self) -> None:
        """Close the connections to clusters."""
        if self.executors is not None:
            await self.executors.close()

    async def run_command(self, ctx: RunContext, task: Task, parameters: object) -> object:
        return await run_command(ctx, task, parameters, ctx.engine.settings.user_of(await self.slug(ctx.org_id)))

    async def run_child(self, ctx: RunContext, task: Task, parameters: object) -> object:
        """Run a function in a child process. On SQLite as the worker's own user: another user cannot open the
        database."""
        user = None if self.db.url.startswith("sqlite") else ctx.engine.settings.user_of(await self.slug(ctx.org_id))
        return await run_child(ctx, self.app, task, parameters, user)

    def call(self, ctx: RunContext, function: Callable[..., object], parameters: object) -> Awaitable[object]:
        """Call a function in this process, with its parameters and injected values."""
        return call(self.injector, self._threads, ctx, function, parameters, functools.partial(self.save_result, ctx))

    async def save_result(self, ctx: RunContext, result: object) -> object:
        """Return the outcome of a run: JSON as it is; other values are saved as an artifact. Raises LogicError for a
        result that can be neither; the side effects of the function stay."""
        if result is None:
            return None
        manager = self.injector.artifacts(ctx)
        serializer = None if isinstance(result, str | int | float | bool) else manager.serializer(result)
        if serializer is None:
            return await self.save_json(ctx, manager, result)
        artifact_id = await manager.save(result, label="result")
        outcome: dict[str, object] = {"artifact_id": artifact_id, "content_type": serializer.content_type}
        return {**outcome, **frames.describe(result)} if frames.is_frame(result) else outcome

    async def save_json(self, ctx: RunContext, manager: ArtifactManager, result: object) -> object:
        """Return a result that is JSON. One larger than PAYLOAD_LIMIT is saved as an artifact if this installation has
        an object store. Raises LogicError."""
        size = size_of_outcome(result)
        if size <= PAYLOAD_LIMIT or ctx.engine.objects is None:
            return check_size(result, size)
        artifact_id = await manager.insert(orjson.dumps(result), ctx.run_id, "result", JSON)
        return {"artifact_id": artifact_id, "content_type": JSON, "size": size}

    def declared(self, job: Job) -> Task | None:
        """Return the declared task of a job, by its route."""
        prefix = f"{DECLARED_ROUTE_PREFIX}:{self.org}:"
        return self.registry.find(base_of(job.route).removeprefix(prefix)) if job.route.startswith(prefix) else None

    async def stored(self, ctx: RunContext) -> Task:
        """Return a stored task, or a declared one that this worker no longer has. Raises Skipped if it is disabled or
        may not run, LogicError if it was deleted, WorkError if its function is not registered here."""
        try:
            row = await self.db.read(store.get_allowed, ctx.org_id, ctx.job.target)
        except Refused as error:
            failure = Failure(FailureClass.PERMISSION, "Refused", error.message, code="no_shell")
            raise Skipped("no_shell", failure) from error
        except NotFound as error:
            raise LogicError(f"{error.message}; it was deleted after the job was enqueued") from error
        if not row.enabled:
            raise Skipped("disabled")
        options = task_options(row.options or {})
        if row.task_type == "shell":
            return Task(row.name, command=row.command, parameters=row.parameters, version=row.version, **options)
        task = await self.function(row)
        if task is None:
            raise WorkError(f"task {row.name!r}: function {row.command!r} is not registered in this worker")
        options = {
            name: value for name, value in options.items() if name not in COMMAND_OPTIONS
        }  # old rows may have them
        version = f"{row.version}/{task.version}"[:VERSION_CHARACTERS]  # of the row, and of the function
        return replace(task, name=row.name, parameters=row.parameters, **{"version": version, **options})

    def is_stale(self, ctx: RunContext) -> bool:
        """Whether a task may have been disabled since the last read of the disabled tasks."""
        last = self._disabled_read
        return last is None or last[0] != ctx.engine.wake.task_changes or stopwatch() - last[1] > TASK_CACHE_SECONDS

    async def refresh_disabled(self, ctx: RunContext) -> None:
        """Read the disabled tasks; concurrent runs share one read."""
        async with self._disabled_lock:
            if self.is_stale(ctx):
                change, read_at = ctx.engine.wake.task_changes, stopwatch()
                self._disabled = await self.db.read(store.disabled)
                self._disabled_read = (change, read_at)

    def forget(self, org_id: str) -> None:
        """Drop the cached task rows of an org, after a change."""
        self._rows = {key: entry for key, entry in self._rows.items() if key[0] != org_id}

    async def cached_row(self, org_id: str, target: str) -> store.TaskRow:
        """Return the row of a task, at most TASK_CACHE_SECONDS old. Raises Invalid if it does not exist."""
        entry = self._rows.get((org_id, target))
        if entry is None or stopwatch() - entry[0] > TASK_CACHE_SECONDS:
            try:
                row = await self.db.read(store.get, org_id, target)
            except NotFound as error:
                raise Invalid("target", target, UNKNOWN_TASK) from error
            entry = self._rows[(org_id, target)] = (stopwatch(), row)
        return entry[1]


def takes_context(function: Callable[..., object] | None, injector: Injector) -> bool:
    """Whether a function has a parameter for its RunContext, so that it may record steps."""
    try:
        return function is not None and RunContext in injector.signature(function).injected.values()
    except Invalid:  # it cannot be called; the error comes with its first job
        return False


def parameters_of(task: Task, job: Job) -> Any:
    """Return the parameters of a job: those of its task, overridden by its payload."""
    return {**task.parameters, **(job.payload or {})} if task.parameters else job.payload


def container_of(task: Task) -> Container:
    """Return the container of a task's runs."""
    options: dict[str, Any] = dict(task.container or {})
    return Container(**options, place=task.executor or "", memory_mb=task.memory_mb, cwd=task.cwd, env=task.env)


def command_input(task: Task, parameters: object) -> bytes:
    """Return the stdin of a command: that of its task, else its parameters as JSON."""
    if task.stdin is not None:
        return task.stdin.encode()
    return orjson.dumps(parameters) if parameters is not None else b""


def size_of_outcome(outcome: object) -> int:
    """Return the size of an outcome in bytes of JSON. Raises LogicError if it is not JSON."""
    try:
        return len(orjson.dumps(outcome))
    except (TypeError, ValueError) as error:
        raise LogicError(f"the task's result is not JSON: {error}") from error


def check_size(outcome: object, size: int) -> object:
    """Return the outcome. Raises LogicError if it is larger than PAYLOAD_LIMIT."""
    if size > PAYLOAD_LIMIT:
        raise LogicError(
            f"the task's result has {size} bytes of JSON; at most {PAYLOAD_LIMIT} are allowed: save it as an artifact"
        )
    return outcome


# processes


async def run_command(ctx: RunContext, task: Task, parameters: object, user: str | None) -> object:
    """Run a command through the system's shell, as `user` if set. Its stdin is the task's `stdin`, else its parameters
    as JSON. Raises WorkFailed for an exit code other than 0, LogicError if it cannot start."""
    assert task.command is not None
    allowed, variables = ((), task.env) if isinstance(task.env, Mapping) else (task.env, {})
    env = processes.environment(ctx, allowed, variables, processes.hidden_variables(ctx))
    try:
        process = await processes.start(ctx, task.command, env, task.cwd, task.memory_mb, user=user)
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        raise LogicError(f"the command cannot be started: {error}") from error
    output = await processes.supervise(ctx, process, command_input(task, parameters))
    outcome = {"exit_code": process.returncode, **output}
    if process.returncode:
        last = last_line(output["stderr"])
        code = process.returncode
        ending = f"exited with code {code}" if code > 0 else f"was ended by {describe_exit(code)}"
        text = f"command {ending}" + (f": {last}" if last else "")
        raise WorkFailed(Failure(FailureClass.LOGIC, "CommandFailed", text), outcome)
    return outcome


async def run_child(ctx: RunContext, app: str | None, task: Task, parameters: object, user: str | None) -> object:
    """Run a function in a Python process of its own; a crash of it does not affect the worker."""
    assert task.function is not None
    assert task.command is not None
    order: processes.ProgramOrder = {
        "app": app,
        "module": inspect.getsourcefile(task.function) or "",
        "task": task.command,
        "name": task.name,
        "payload": parameters,
    }
    return (await processes.ask_child(ctx, order, task.cwd, task.memory_mb, user))["outcome"]
