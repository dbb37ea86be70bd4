"""How each resource of files is read, created, changed and pruned: one entry of RESOURCES each.

A resource has a form: the entry that describes it in a file, without fields that have their defaults. Two forms are
equal if applying one in place of the other would change nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rota.app.files import store
from rota.core.errors import Invalid
from rota.core.flow import parse_rate
from rota.core.model import DueSchedule
from rota.core.redact import public_task
from rota.core.timing.calendars import WEEKDAYS
from rota.db.paging import PAGE_ROWS_MAX, Record
from rota.engine.calendar_commands import SOURCES
from rota.engine.commands import Engine
from rota.frame.http.auth import Caller, Role
from rota.kinds.alarms import manager as alarms_manager
from rota.kinds.alarms.manager import AlarmManager
from rota.kinds.alarms.models import AlarmBody, AlarmChanges
from rota.kinds.alarms.store import rows as alarms_store
from rota.kinds.pipelines import store as pipelines_store
from rota.kinds.pipelines.increments import KINDS
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.tasks.manager import TaskManager
from rota.kinds.tasks.models import TaskBody

Acting = Callable[[str, str, str | None], Engine]  # resource, verb and target of the audit log
BY_PROGRAM = "declared by a program: change it there"
HIDDEN_FIELDS = ("env", "stdin", "parameters", "command")  # of tasks: shown without secrets


@dataclass(frozen=True, slots=True)
class Stored:
    """A resource of the installation. `left_out` is why an export does not describe it."""

    id: str
    form: Record
    left_out: str | None = None
    is_managed: bool = False  # by a program: files cannot describe it
    version: object = None  # what changes with it, beside its form
    schedule: DueSchedule | None = None
    is_pruned: bool = False  # paused because files no longer had it


@dataclass(slots=True)
class Installation:
    """An org, on behalf of a caller, in the transaction of a request."""

    engine: Engine
    acting: Acting
    caller: Caller
    now: datetime
    grants: dict[str, str] = field(default_factory=dict)  # ids by their names in files
    names: dict[str, str] | None = None  # of tasks and servers, by id, once they were read

    @property
    def org_id(self) -> str:
        return self.caller.org_id


class FileResource(ABC):
    """A resource of files. Pausing is the only thing that happens to one that files no longer have."""

    name: str  # as in files and paths of the API
    pruned: str | None = None  # what one is that files no longer have; None: it stays as it is

    def key_of(self, entry: Any) -> str:
        """Return the name of an entry, by which it is found in the installation."""
        return str(entry.name)

    @abstractmethod
    async def stored(self, to: Installation) -> dict[str, Stored]:
        """Return what the installation has, by key."""

    @abstractmethod
    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:
        """Return the form that an entry would have when it is stored. Raises Invalid."""

    @abstractmethod
    async def create(self, to: Installation, entry: Any) -> None: ...

    @abstractmethod
    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None: ...

    async def prune(self, to: Installation, old: Stored) -> bool:  # noqa: ARG002
        """Pause a resource; False if it is paused already, or cannot be."""
        return False


class Queues(FileResource):
    name = "queues"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        queues = {}
        for row in await to.engine.db.read(store.queue_rows, to.org_id):
            form = set_values(name=row.name, max_running=row.max_running, rate=row.rate, burst=row.burst)
            paused = row.paused_at is not None
            if len(form) > 1 or paused:
                queues[row.name] = Stored(row.name, {**form, "paused": paused})
        return queues

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:  # noqa: ARG002
        rate = None if entry.rate is None else parse_rate(entry.rate, burst=entry.burst or 1)
        if rate is None and entry.burst is not None:
            raise Invalid("burst", entry.burst, "needs a rate: set `rate` too, such as 100/1m")
        paused = entry.paused if entry.paused is not None else bool(old and old.form["paused"])
        limits = set_values(
            name=entry.name,
            max_running=entry.max_running,
            rate=None if rate is None else str(rate),
            burst=None if rate is None else rate.burst,
        )
        return {**limits, "paused": paused}

    async def create(self, to: Installation, entry: Any) -> None:
        await self.set(to, await self.form_of(to, entry, None))

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None:  # noqa: ARG002
        await self.set(to, form)

    async def set(self, to: Installation, form: Record) -> None:
        rate = form.get("rate")
        await to.acting("queues", "edit", form["name"]).set_queue(
            to.org_id,
            form["name"],
            max_running=form.get("max_running"),
            paused=form["paused"],
            rate=None if rate is None else parse_rate(rate, burst=form.get("burst") or 1),
        )


class Calendars(FileResource):
    name = "calendars"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        rows = await to.engine.db.read(store.calendar_rows, to.org_id)
        return {row.name: Stored(row.id, self.form(row), version=row.revision) for row in rows}

    def form(self, row: Any) -> Record:
        weekend = [WEEKDAYS[day] for day in row.weekend]
        return {
            "name": row.name, **row.source, "weekend": weekend, "weekend_is_holiday": row.weekend_is_holiday,
            **set_values(description=row.description or None),
        }  # fmt: skip

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:  # noqa: ARG002
        """Weekend fields that are absent stay: their defaults depend on the source."""
        form: Record = entry.present()
        if "dates" in form:
            form["dates"] = sorted(form["dates"])
        if "weekend" in form:
            form["weekend"] = [day for day in WEEKDAYS if day in form["weekend"]]
        kept = {} if old is None else {name: old.form[name] for name in ("weekend", "weekend_is_holiday")}
        return {**kept, **form}

    async def create(self, to: Installation, entry: Any) -> None:
        await to.acting("calendars", "create", None).add_calendar(to.org_id, entry.present())

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None:  # noqa: ARG002
        fields = {name: form[name] for name in (*SOURCES, "weekend", "weekend_is_holiday") if name in form}
        fields["description"] = form.get("description", "")
        await to.acting("calendars", "edit", old.id).edit_calendar(to.org_id, old.id, fields)


class Tasks(FileResource):
    name = "tasks"
    pruned = "disabled"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        tasks = await TaskManager(to.engine, to.org_id).find_all()
        return {task["name"]: self.stored_task(task) for task in tasks}

    def stored_task(self, task: Record) -> Stored:
        fields = {name: task.get(name) for name in TaskBody.model_fields if name != "id"}
        form = task_form(fields)
        is_code = task["source"] == "code"
        return Stored(task["id"], form, BY_PROGRAM if is_code else None, is_code, version=task["version"])

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:
        """A value without its secrets, as exported, stands for the stored one. Raises Refused for another value
        of a caller without the scope `shell`: whether it equals the stored one would answer a guess."""
        form = task_form(entry.stored())
        if old is not None:
            shown = public_task(old.form)
            secret = [name for name in HIDDEN_FIELDS if old.form.get(name) != shown.get(name)]
            if any(name in form and form[name] != shown.get(name) for name in secret):
                to.caller.check_shell()
            form |= {name: old.form[name] for name in HIDDEN_FIELDS if name in form and form[name] == shown.get(name)}
        return form

    async def create(self, to: Installation, entry: Any) -> None:
        if entry.task_type != "python":
            to.caller.check_shell()
        await self.manager(to, "create", None).create(entry_without_name_rules(entry))

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None:  # noqa: ARG002
        if "shell" in (old.form.get("task_type", "shell"), form.get("task_type", "shell")):
            to.caller.check_shell()
        await self.manager(to, "edit", old.id).edit(old.id, form, whole=True)

    async def prune(self, to: Installation, old: Stored) -> bool:
        if old.form.get("enabled") is False:
            return False
        await self.manager(to, "edit", old.id).edit(old.id, {"enabled": False})
        return True

    def manager(self, to: Installation, verb: str, target: str | None) -> TaskManager:
        return TaskManager(to.acting("tasks", verb, target), to.org_id, to.caller.user_id)


class Pipelines(FileResource):
    name = "pipelines"

    def key_of(self, entry: Any) -> str:
        return f"{entry.namespace}/{entry.layer}/{entry.name}"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        pipelines: dict[str, Stored] = {}
        cursor: str | None = None
        while True:
            page, cursor = await to.engine.db.read(
                pipelines_store.list_pipelines, to.org_id, limit=PAGE_ROWS_MAX, cursor=cursor
            )
            for row in page:
                is_code = row["source"] == "code"
                left_out = BY_PROGRAM if is_code else None
                pipelines[row["path"]] = Stored(
                    row["id"], pipeline_form(row), left_out, is_code, version=row["version"]
                )
            if cursor is None:
                return pipelines

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:  # noqa: ARG002
        return pipeline_form(dict(entry))

    async def create(self, to: Installation, entry: Any) -> None:
        await self.manager(to, "create", None).create(entry.present())

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None:  # noqa: ARG002
        path = self.key_of(entry)
        fields = {name: value for name, value in form.items() if name not in ("namespace", "layer", "name")}
        await self.manager(to, "edit", path).edit(path, fields)

    def manager(self, to: Installation, verb: str, target: str | None) -> PipelineManager:
        return PipelineManager(to.acting("pipelines", verb, target), to.org_id, to.caller.user_id)


class Alarms(FileResource):
    name = "alarms"
    pruned = "disabled"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        rows = await to.engine.db.read(alarms_store.list_alarms, to.org_id)
        return {row["name"]: self.stored_alarm(row) for row in rows}

    def stored_alarm(self, row: Record) -> Stored:
        is_code = row["source"] != "api"
        return Stored(row["id"], self.form(row), BY_PROGRAM if is_code else None, is_code)

    def form(self, fields: Mapping[str, Any]) -> Record:
        """Return an alarm without fields that are null or have their defaults."""
        defaults = {**alarms_manager.WIRE_DEFAULTS, "enabled": True}
        shown = {name: fields.get(name, defaults.get(name)) for name in AlarmBody.model_fields}
        return {name: value for name, value in shown.items() if value != defaults.get(name)}

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:  # noqa: ARG002
        return self.form(entry.present())

    async def create(self, to: Installation, entry: Any) -> None:
        await AlarmManager(to.acting("alarms", "create", None), to.org_id).add(entry.present())

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None:  # noqa: ARG002
        defaults = {**alarms_manager.WIRE_DEFAULTS, "enabled": True}
        fields = {**defaults, **form}
        changes = {name: fields[name] for name in AlarmChanges.model_fields if name in fields}
        await AlarmManager(to.acting("alarms", "edit", old.id), to.org_id).edit(old.id, changes)

    async def prune(self, to: Installation, old: Stored) -> bool:
        if old.form.get("enabled") is False:
            return False
        await AlarmManager(to.acting("alarms", "edit", old.id), to.org_id).edit(old.id, {"enabled": False})
        return True


class Grants(FileResource):
    """Grants have no name in the installation and never change: a grant with the same content is the same."""

    name = "grants"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        """Grants by their names in files, if the files are known, else by names that are made up."""
        rows = await to.engine.db.read(store.grant_rows, to.org_id, to.now)
        names = {grant_id: name for name, grant_id in to.grants.items()}
        grants: dict[str, Stored] = {}
        for number, row in enumerate((row for row in rows if row.schedule_id is None), start=1):
            name = names.get(row.id, f"grant-{number}")
            grants[name] = Stored(row.id, {"name": name, **grant_content(row)})
        return grants

    async def find(self, to: Installation, entry: Any) -> str | None:
        """Return the id of a grant that the caller may use, with the content and billing account of an entry; None if
        no grant matches."""
        wanted = await self.form_of(to, entry, None)
        del wanted["name"]
        rows = await to.engine.db.read(store.grant_rows, to.org_id, to.now)
        admin = to.caller.role >= Role.ADMIN
        for row in rows:
            usable = row.schedule_id is None and (admin or row.owner_id == to.caller.user_id)
            same_account = entry.billing_account_id in (None, row.billing_account_id)
            if usable and same_account and grant_content(row) == wanted:
                return str(row.id)
        return None

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:  # noqa: ARG002
        budget = None if entry.budget is None else entry.budget.present() or None
        expires = None if entry.expires_at is None else entry.expires_at.isoformat()
        wide = any("*" in scope for scope in entry.scopes)
        return {
            "name": entry.name,
            **set_values(scopes=sorted(entry.scopes), expires_at=expires, budget=budget, consent=wide or None),
        }

    async def create(self, to: Installation, entry: Any) -> None:
        to.grants[entry.name] = await to.acting("grants", "create", None).create_grant(
            to.org_id,
            to.caller.user_id,
            entry.scopes,
            expires_at=entry.expires_at,
            billing_account_id=entry.billing_account_id,
            budget=None if entry.budget is None else entry.budget.present(),
            any_account=to.caller.role >= Role.ADMIN,
        )

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None: ...


def entry_without_name_rules(entry: Any) -> Mapping[str, object]:
    """Return the fields of a task as they were sent; its manager reads them with its own model."""
    fields: Mapping[str, object] = {name: value for name, value in entry.stored().items() if value is not None}
    return fields


def task_form(fields: Mapping[str, Any]) -> Record:
    """Return a task without fields that are null or have their defaults."""
    form = {name: value for name, value in fields.items() if value is not None and name != "id"}
    if form.get("task_type") == "shell":
        del form["task_type"]
    if form.get("enabled") is True:
        del form["enabled"]
    return form


def pipeline_form(fields: Mapping[str, Any]) -> Record:
    path = ("namespace", "layer", "name")
    names = (*path, "type", "sql", "function", "description", "max_runs", "max_age_days", *KINDS)
    form = {name: fields[name] for name in names if fields.get(name) not in (None, "")}
    return {**form, "type": form.get("type", "sql")}


def grant_content(row: Any) -> Record:
    limits = set_values(per_day=row.budget_per_day, total=row.budget_total)
    return set_values(
        scopes=sorted(row.scopes),
        expires_at=None if row.expires_at is None else row.expires_at.isoformat(),
        budget=limits or None,
        consent=any("*" in scope for scope in row.scopes) or None,
    )


def set_values(**values: Any) -> Record:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
