"""Commands for tasks: create, edit, run, schedule and delete them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import structlog

from rota.core import parse
from rota.core.errors import Conflict, Invalid, NotFound, NotRunnable, together
from rota.core.redact import HIDDEN, has_hidden
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs, schedules, workers
from rota.engine.commands import Engine
from rota.engine.enqueueing import EnqueueOptions
from rota.kinds.tasks import reports, store
from rota.kinds.tasks.executors.options import check_executor
from rota.kinds.tasks.flow_options import check_flow_options
from rota.kinds.tasks.models import TaskBody, TaskChanges, TaskReplacement, TaskScheduleBody
from rota.kinds.tasks.registry import COMMAND_OPTIONS, OPTIONS, task_options
from rota.kinds.tasks.runner import TaskRunner
from rota.kinds.tasks.store import TaskRow
from rota.kinds.tasks.targets import DISABLED_ROUTE, row_route
from rota.reports import schedules as schedule_reports

STORED_OPTIONS = tuple(name for name in OPTIONS if name != "version")  # Rota numbers the versions of stored tasks
NULLABLE_FIELDS = frozenset({"parameters", *STORED_OPTIONS})  # null removes these; of other fields it is ignored

log = structlog.get_logger("rota.tasks")


@dataclass(frozen=True, slots=True)
class TaskIn:
    """A task for `TaskManager.save`."""

    command: str
    task_type: str = "shell"
    parameters: Mapping[str, object] | None = None
    enabled: bool = True
    name: str | None = None
    id: str | None = None
    options: Mapping[str, object] | None = None

    def body(self) -> dict[str, object]:
        """The flat form that `TaskBody` reads."""
        names = ("id", "name", "command", "task_type", "parameters", "enabled")
        fields = {name: getattr(self, name) for name in names}
        return {**{name: value for name, value in fields.items() if value is not None}, **(self.options or {})}


@dataclass(frozen=True, slots=True)
class TaskManager:
    """Commands and queries on the tasks of one org."""

    engine: Engine
    org_id: str
    by: str | None = None

    # rows

    async def create(self, body: TaskBody | Mapping[str, object]) -> Record:
        """Store a task. Raises Invalid if it is enabled and no running program has its function."""
        fields = task_columns(TaskBody.read(body).stored())
        check_not_declared(fields, None)
        await self.check_function(fields)

        def step(tx: Tx) -> str:
            if fields["task_type"] == "shell":
                orgs.check_shell(tx, self.org_id)
            return store.insert(tx, self.org_id, fields, self.engine.clock.now())

        return await self.write(step)

    async def edit(self, key: str, body: TaskChanges | Mapping[str, object], *, whole: bool = False) -> Record:
        """Change the fields of `body`; the others stay or, with `whole`, get their defaults. Name and type always stay
        unless sent. Raises Conflict for what a program declares, and for the name of a task whose schedules use it."""
        form: type[TaskChanges] = TaskReplacement if whole else TaskChanges
        old = await self.row(key)
        before = {name: getattr(old, name) for name in ("name", "command", "task_type", "parameters", "enabled")}
        base = {"task_type": old.task_type, "name": old.name} if whole else {**before, **(old.options or {})}
        changes = {
            name: value
            for name, value in form.read(body).stored().items()
            if name != "id" and (value is not None or name in NULLABLE_FIELDS)
        }
        if changes.get("name", old.name) != old.name:  # an old name may be an id, or older than today's rules for names
            parse.name(changes["name"], "name")
        fields = task_columns({**base, **changes})
        new_version = any(fields[name] != getattr(old, name) for name in store.VERSIONED_FIELDS)
        if old.source == store.CODE and new_version:
            raise Conflict(f"task {old.name!r} is declared by a program; change it there. It can only be disabled here")
        if fields["name"] != old.name and await self.engine.db.read(
            reports.schedules_of, self.org_id, old, by_name=True
        ):
            raise Conflict(
                f"task {old.name!r} is the target of a schedule by this name; set the schedule's target to its id first"
            )
        check_not_declared(fields, old)
        await self.check_function(fields)
        new = replace(old, **{**fields, "id": old.id})
        route = await self.runner.route_of(new)

        def step(tx: Tx) -> str:
            if fields["task_type"] == "shell" and new_version:
                orgs.check_shell(tx, self.org_id)
            task_id = store.change(tx, store.get(tx, self.org_id, old.id), fields, self.engine.clock.now())
            if new.enabled != old.enabled:
                store.reroute(tx, new, route)
            return task_id

        return await self.write(step)

    async def delete(self, key: str) -> None:
        """Delete a task with its schedules; its runs and artifacts stay. Raises Conflict if a program declares it."""
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            task = store.get(tx, self.org_id, key)
            if task.source == store.CODE:
                raise Conflict(f"task {task.name!r} is declared by a program; disable it, or remove it there")
            for schedule_id in reports.schedules_of(tx, self.org_id, task):
                due = schedules.lock(tx, self.org_id, schedule_id)
                schedules.replace_schedule(tx, due, replace(due.schedule, deleted_at=now), now, None)
            store.remove(tx, task)
            return str(task.id)

        await self.engine.write_and_wake(step)
        self.runner.forget(self.org_id)

    async def save(self, task: TaskIn) -> Record:
        """Store a task, or replace the one with its id."""
        fields = task_columns(TaskBody.read(task.body()).stored())
        check_not_declared(fields, None)
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            try:
                old = store.get(tx, self.org_id, task.id or "")
            except NotFound:
                return store.insert(tx, self.org_id, fields, now)
            return store.change(tx, old, {**fields, "name": task.name or old.name}, now)

        return await self.write(step)

    async def find_all(self, enabled: bool | None = None) -> list[Record]:
        """Return all tasks, or those that are enabled or disabled."""
        tasks, cursor = [], None
        while True:
            items, cursor = await self.engine.db.read(reports.list_tasks, self.org_id, cursor=cursor, enabled=enabled)
            tasks += items
            if cursor is None:
                return tasks

    async def find(self, key: str) -> Record:
        return await self.engine.db.read(reports.task, self.org_id, key)

    async def schema(self, key: str) -> Record | None:
        """Return the JSON Schema of its parameters: of the function if it is registered here, else as a program
        declared it."""
        row = await self.row(key)
        task = await self.runner.function(row) if row.task_type == "python" else None
        if task is not None and task.function is not None:
            return self.runner.injector.signature(task.function).schema()
        declared = row if row.schema or row.task_type != "python" else await self.row(row.command)
        return declared.schema

    # work

    async def execute_task(
        self,
        key: str,
        parameters: Mapping[str, object] | None = None,
        trace: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> str:
        """Enqueue a job of a task, with the options of `Engine.enqueue`; returns its id. Raises NotRunnable if the task
        is unknown, disabled, or without a running program that has its function."""
        try:
            row = await self.row(key)
        except NotFound as error:
            raise NotRunnable(f"Cannot execute task {key}: not found") from error
        if not row.enabled:
            raise NotRunnable(f"Cannot execute disabled task {row.id}")
        if row.task_type == "python" and row.command not in await self.functions():
            raise NotRunnable(f"Cannot execute task {row.id}: no running program has its function {row.command}")
        await self.runner.check(row, parameters, "parameters")
        return (await self.engine.enqueue(self.org_id, "task", row.id, [parameters], trace=trace, **options))[0]

    async def schedule(self, key: str, body: TaskScheduleBody | Mapping[str, object]) -> Record:
        """Create a schedule of a task from the fields of a schedule."""
        row, fields = await self.row(key), TaskScheduleBody.read(body).sent()
        limit = self.engine.settings.max_schedules_per_task
        if limit is not None and len(await self.engine.db.read(reports.schedules_of, self.org_id, row)) >= limit:
            raise Conflict(f"task {row.name!r} has {limit} schedules, the maximum; delete one first")
        (schedule,) = await self.engine.create_schedules(
            self.org_id, [{**fields, "kind": "task", "target": row.id}], by=self.by
        )
        return {**schedule_reports.new_schedule(schedule), "task_id": row.id}

    async def schedule_of(self, key: str, schedule_id: str) -> str:
        """Return `schedule_id`. Raises NotFound unless it is a schedule of this task."""
        row = await self.row(key)
        if schedule_id not in await self.engine.db.read(reports.schedules_of, self.org_id, row):
            raise NotFound(f"schedule {schedule_id!r} of task {row.name!r} not found")
        return schedule_id

    # orphans

    async def disable_orphans(self, program: str | None = None) -> int:
        """Disable tasks whose function no program has any more, and log a warning; returns how many. Functions that
        other programs declared are left alone: those may be starting. A person enables the tasks again."""
        elsewhere = await self.engine.db.read(store.declared_elsewhere, self.org_id, program)
        functions = {*await self.functions(), *elsewhere}
        orphans = await self.engine.db.read(store.orphans, self.org_id, functions)
        for row in orphans:
            await self.engine.db.tx(self.disable, row)
        if orphans:
            log.warning(
                "disabled tasks whose function is gone",
                count=len(orphans),
                task_ids=[row.id for row in orphans],
                commands=[row.command for row in orphans],
            )
            self.engine.signal("tasks")
        return len(orphans)

    def disable(self, tx: Tx, row: TaskRow) -> str:
        """Disable a task and reroute its jobs, so that any worker skips them, also one without its function."""
        task_id = store.change(tx, row, {"enabled": False}, self.engine.clock.now())
        store.reroute(tx, row, DISABLED_ROUTE)
        return task_id

    # helpers

    @property
    def runner(self) -> TaskRunner:
        runner = self.engine.runners["task"]
        assert isinstance(runner, TaskRunner)
        return runner

    async def row(self, key: str) -> TaskRow:
        return await self.engine.db.read(store.get, self.org_id, key)

    async def functions(self) -> set[str]:
        """Return the functions that can run in this org: of this program, if it belongs to the org, and of live
        workers."""
        slug = await self.runner.slug(self.org_id)
        prefix = row_route(slug, "")
        routes = await self.engine.db.read(workers.live_routes, self.engine.clock.now())
        return {
            *(self.runner.registry.functions() if self.runner.org == slug else ()),
            *(route.removeprefix(prefix) for route in routes if route.startswith(prefix)),
        }

    async def check_function(self, fields: Mapping[str, object]) -> None:
        if fields["task_type"] == "python" and fields["enabled"] and fields["command"] not in await self.functions():
            remedy = "start the program that registers it, or store the task with enabled: false"
            raise Invalid("command", fields["command"], f"is not a function of a running program; {remedy}")

    async def write(self, step: Callable[[Tx], str]) -> Record:
        task_id = await self.engine.db.tx(step)
        self.engine.signal("tasks")
        self.runner.forget(self.org_id)
        return await self.find(task_id)


def task_columns(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a task from its flat form. Raises Invalid for fields that do not fit together."""
    options = {name: body[name] for name in STORED_OPTIONS if body.get(name) is not None}
    fields = {name: body.get(name) for name in ("id", "name", "command", "parameters")}
    task_type, enabled = body.get("task_type") or "shell", body.get("enabled") is not False
    check_options(options, task_type)
    check_not_hidden({**options, "parameters": fields["parameters"]})
    return {**fields, "task_type": task_type, "enabled": enabled, "options": options or None}


def check_not_declared(fields: Mapping[str, Any], old: TaskRow | None) -> None:
    """Raises Invalid for an executor or a container that is not set where the task is declared."""
    declared = (old.options if old is not None else None) or {}
    for name in ("executor", "container"):
        value = (fields["options"] or {}).get(name)
        if value is not None and value != declared.get(name):
            decorator = "@app.task" if fields["task_type"] == "python" else "app.shell"
            raise Invalid(name, value, f"is set where the task is declared, by {decorator}({name}=…); leave it out")


def check_not_hidden(fields: Mapping[str, object]) -> None:
    """Raises Invalid for a field that is sent back with the placeholder of a hidden secret."""
    for name in ("env", "stdin", "parameters"):
        if has_hidden(fields.get(name)):
            raise Invalid(name, HIDDEN, "is the placeholder of a hidden secret; send the secret, or omit this field")


def check_options(options: Mapping[str, object], task_type: str) -> None:
    """Raises Invalid for options of commands in a task of type python, and for options that do not fit together."""
    wrong = [name for name in COMMAND_OPTIONS if name in options] if task_type == "python" else []
    if wrong:
        reason = "is an option of commands, not of functions; null removes it"
        raise together([Invalid(name, options[name], reason) for name in wrong])
    parsed = task_options(options)
    check_flow_options(parsed, None, is_command=task_type == "shell")
    if unfit := check_executor(parsed, is_command=task_type == "shell"):
        raise together(unfit)
