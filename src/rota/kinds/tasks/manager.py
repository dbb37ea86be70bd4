"""The commands for tasks: make, edit, run, schedule and delete them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import structlog

from rota.core import parse
from rota.core.errors import Conflict, Invalid, NotFound, NotRunnable, together
from rota.core.redact import HIDDEN, has_hidden
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs, schedules, workers
from rota.engine import reports as engine_reports
from rota.engine.commands import Engine
from rota.kinds.tasks import store
from rota.kinds.tasks.registry import OF_COMMANDS, OPTIONS, task_options
from rota.kinds.tasks.runner import DISABLED_ROUTE, TaskRunner, row_route

COMMAND_LIMIT = 100_000  # characters
WIRED = tuple(name for name in OPTIONS if name != "version")  # the version of a stored task is its number
FIELDS = frozenset({"id", "name", "command", "task_type", "parameters", "enabled", *WIRED})
EMPTIABLE = frozenset({"parameters", *WIRED})  # null takes these away; any other field it leaves as it is

log = structlog.get_logger("rota.tasks")


@dataclass(frozen=True, slots=True)
class TaskIn:
    """A task as a program writes it."""

    command: str
    task_type: str = "shell"
    parameters: Mapping[str, Any] | None = None
    enabled: bool = True
    name: str | None = None
    id: str | None = None
    options: Mapping[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("id", "name", "command", "task_type", "parameters", "enabled")}
        return {**{name: value for name, value in found.items() if value is not None}, **(self.options or {})}


@dataclass(frozen=True, slots=True)
class TaskManager:
    """What can be asked about the tasks of one org."""

    engine: Engine
    org_id: str
    by: str | None = None

    # rows

    async def create(self, body: Mapping[str, Any]) -> Record:
        """Store a task. A function that nobody knows is refused, unless the task waits switched off."""
        fields = read_task(body, body.get("id"))
        await self.check_function(fields)

        def step(tx: Tx) -> str:
            if fields["task_type"] == "shell":
                orgs.check_shell(tx, self.org_id)
            return store.insert(tx, self.org_id, fields, self.engine.clock.now())

        return await self.write(step)

    async def edit(self, key: str, body: Mapping[str, Any], *, whole: bool = False) -> Record:
        """Change a task; what is not said stays or, if this is the whole of it, is as in a new one. The type stays."""
        old = await self.row(key)
        before = {name: getattr(old, name) for name in ("name", "command", "task_type", "parameters", "enabled")}
        base = {"task_type": old.task_type, "name": old.name} if whole else {**before, **(old.options or {})}
        said = {
            name: value for name, value in body.items() if name != "id" and (value is not None or name in EMPTIABLE)
        }
        fields = read_task({**base, **said}, old.name)
        runs_else = any(fields[name] != getattr(old, name) for name in store.WHAT_RUNS)
        if old.source == store.CODE and runs_else:
            raise Conflict(f"task {old.name}: a program declares it; change it there. It can be switched off here")
        if fields["name"] != old.name and await self.engine.db.read(
            engine_reports.schedules_of, self.org_id, old, by_name=True
        ):
            raise Conflict(f"task {old.name}: a schedule knows it by this name; let that name the task's id first")
        await self.check_function(fields)
        new = SimpleNamespace(**{**old._mapping, **fields})
        route = await self.runner.route_of(new)

        def step(tx: Tx) -> str:
            if fields["task_type"] == "shell" and runs_else:
                orgs.check_shell(tx, self.org_id)
            task_id = store.change(tx, store.get(tx, self.org_id, old.id), fields, self.engine.clock.now())
            if new.enabled != old.enabled:
                store.reroute(tx, new, route)
            return task_id

        return await self.write(step)

    async def delete(self, key: str) -> None:
        """Take a task away with its schedules; what it ran and left stays."""
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            task = store.get(tx, self.org_id, key)
            if task.source == store.CODE:
                raise Conflict(
                    f"task {task.name}: a program declares it, and would declare it again; disable it instead"
                )
            for schedule_id in engine_reports.schedules_of(tx, self.org_id, task):
                due = schedules.lock(tx, self.org_id, schedule_id)
                schedules.replace_schedule(tx, due, replace(due.schedule, deleted_at=now), now, None)
            store.remove(tx, task)
            return str(task.id)

        await self.engine.clocked(step)
        self.runner.forget(self.org_id)

    async def save(self, task: TaskIn) -> Record:
        """Make the task be so: a new one or, where its id is known, that one written anew."""
        fields = read_task(task.body(), task.id)
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            try:
                old = store.get(tx, self.org_id, task.id or "")
            except NotFound:
                return store.insert(tx, self.org_id, fields, now)
            return store.change(tx, old, {**fields, "name": task.name or old.name}, now)

        return await self.write(step)

    async def find_all(self, enabled: bool | None = None) -> list[Record]:
        """All tasks or, as asked, those that are switched on or off."""
        found, cursor = [], None
        while True:
            items, cursor = await self.engine.db.read(
                engine_reports.list_tasks, self.org_id, cursor=cursor, enabled=enabled
            )
            found += items
            if cursor is None:
                return found

    async def find(self, key: str) -> Record:
        return await self.engine.db.read(engine_reports.task, self.org_id, key)

    async def schema(self, key: str) -> Record | None:
        """The JSON Schema of its function's parameters: from the function, or from the program that declared it."""
        row = await self.row(key)
        known = await self.runner.function(row) if row.task_type == "python" else None
        if known is not None and known.function is not None:
            return self.runner.injector.signature(known.function).schema()
        declared = row if row.schema or row.task_type != "python" else await self.row(row.command)
        found: Record | None = declared.schema
        return found

    # work

    async def execute_task(self, key: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Make a job of a task, at once or as the options of `Engine.enqueue` have it; returns the job's id."""
        try:
            row = await self.row(key)
        except NotFound as error:
            raise NotRunnable(f"Cannot execute task {key}: not found") from error
        if not row.enabled:
            raise NotRunnable(f"Cannot execute disabled task {row.id}")
        if row.task_type == "python" and row.command not in await self.functions():
            raise NotRunnable(f"Cannot execute task {row.id}: no program that is up has its function {row.command}")
        await self.runner.check(row, parameters, "parameters")
        return (await self.engine.enqueue(self.org_id, "task", row.id, [parameters], **options))[0]

    async def schedule(self, key: str, body: Mapping[str, Any]) -> Record:
        """Say when a task runs, in the fields of a schedule."""
        row = await self.row(key)
        check_own(body)
        most = self.engine.settings.max_schedules_per_task
        if most is not None and len(await self.engine.db.read(engine_reports.schedules_of, self.org_id, row)) >= most:
            raise Conflict(f"task {row.name}: it has {most} schedules, and more are not allowed here")
        (made,) = await self.engine.create_schedules(
            self.org_id, [{**body, "kind": "task", "target": row.id}], by=self.by
        )
        return {**engine_reports.new_schedule(made), "task_id": row.id}

    async def schedule_of(self, key: str, schedule_id: str) -> str:
        """The id of a schedule of this task; another task's is not found here."""
        row = await self.row(key)
        if schedule_id not in await self.engine.db.read(engine_reports.schedules_of, self.org_id, row):
            raise NotFound(f"schedule {schedule_id}: task {row.name} has none such")
        return schedule_id

    # orphans

    async def disable_orphans(self, program: str | None = None) -> int:
        """Switch off the tasks whose function is gone, with one warning; a person switches them on again. Of another
        program nothing is presumed: it may just be starting."""
        rows = await self.engine.db.read(store.declared_elsewhere, self.org_id, program)
        functions = {*await self.functions(), *rows}
        found = await self.engine.db.read(store.orphans, self.org_id, functions)
        for row in found:
            await self.engine.db.tx(self.disable, row)
        if found:
            facts: dict[str, Any] = {"task_ids": [row.id for row in found], "commands": [row.command for row in found]}
            log.warning("disabled tasks whose function is gone", count=len(found), **facts)
            self.engine.signal("tasks")
        return len(found)

    def disable(self, tx: Tx, row: Any) -> str:
        """Switch a task off; its jobs and slots are skipped from now on, also where no worker has its function."""
        task_id = store.change(tx, row, {"enabled": False}, self.engine.clock.now())
        store.reroute(tx, row, DISABLED_ROUTE)
        return task_id

    # helpers

    @property
    def runner(self) -> TaskRunner:
        runner = self.engine.runners["task"]
        assert isinstance(runner, TaskRunner)
        return runner

    async def row(self, key: str) -> Any:
        return await self.engine.db.read(store.get, self.org_id, key)

    async def functions(self) -> set[str]:
        """The functions of this org that can run: here, if the program is of this org, or on a live worker."""
        slug = await self.runner.slug(self.org_id)
        prefix = row_route(slug, "")
        routes = await self.engine.db.read(workers.live_routes, self.engine.clock.now())
        return {
            *(self.runner.registry.functions() if self.runner.org == slug else ()),
            *(route.removeprefix(prefix) for route in routes if route.startswith(prefix)),
        }

    async def check_function(self, fields: Mapping[str, Any]) -> None:
        if fields["task_type"] == "python" and fields["enabled"] and fields["command"] not in await self.functions():
            raise Invalid(
                "command", fields["command"],
                "is no function that a running program has; start one that does, or store the task with enabled: false",
            )  # fmt: skip

    async def write(self, step: Any) -> Record:
        task_id = await self.engine.db.tx(step)
        self.engine.signal("tasks")
        self.runner.forget(self.org_id)
        return await self.find(task_id)


def check_own(schedule: Mapping[str, Any]) -> None:
    """A schedule of a task stays with it."""
    if given := [name for name in ("kind", "target") if name in schedule]:
        raise Invalid(given[0], schedule[given[0]], "is known already: it is this task")


def read_task(body: Mapping[str, Any], old_name: str | None = None) -> dict[str, Any]:
    """The columns of a task from its flat form. A name that stays is not checked again: that of a task without one is
    its id, and rules for names may be younger than it."""
    form = parse.Form(body, FIELDS)
    fields = {
        "id": form.take("id", parse.ulid, None),
        "name": form.take("name", lambda value, field: value if value == old_name else parse.name(value, field), None),
        "command": form.need("command", lambda value, field: parse.text(value, field, COMMAND_LIMIT, required=True)),
        "task_type": form.take(
            "task_type", lambda value, field: parse.one_of(value, field, ["shell", "python"]), "shell"
        ),
        "parameters": form.take("parameters", parameters, None),
        "enabled": form.take("enabled", parse.flag, True),
    }
    options = {name: body[name] for name in WIRED if body.get(name) is not None}
    form.check(lambda: check_options(options, str(fields["task_type"])))
    form.check(lambda: check_shown({**options, "parameters": fields["parameters"]}))
    form.done()
    return {**fields, "options": options or None}


def check_shown(fields: Mapping[str, Any]) -> None:
    """Raises Invalid for a field that was read with a secret hidden, and is sent back so."""
    for name in ("env", "stdin", "parameters"):
        if has_hidden(fields.get(name)):
            raise Invalid(name, HIDDEN, "stands for a secret that is not shown; send the secret, or not this field")


def check_options(options: Mapping[str, Any], task_type: str) -> None:
    task_options(options)
    wrong = [name for name in OF_COMMANDS if name in options] if task_type == "python" else []
    if wrong:
        right = "is an option of commands; a function runs where its program does, with its parameters. null removes it"
        raise together([Invalid(name, options[name], right) for name in wrong])


def parameters(value: Any, field: str) -> Any:
    if not isinstance(value, dict):
        raise Invalid(field, value, "is not an object of parameters")
    return parse.payload(value, field)
