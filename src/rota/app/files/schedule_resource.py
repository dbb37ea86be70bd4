"""Schedules as a resource of files."""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from rota.app.files import store
from rota.app.files.resources import FileResource, Installation, Stored
from rota.core import schedule_form
from rota.core.errors import Invalid
from rota.core.kinds import DEFAULT_KIND, traits_of
from rota.core.model import DueSchedule, Schedule
from rota.core.redact import redacted
from rota.core.schedule_form import Defaults
from rota.core.states import Condition
from rota.core.timing_form import TimingFields
from rota.db.column_types import EPOCH
from rota.db.paging import Record
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store.hosts import KIND as HOST_JOB

PRUNED_REASON = "no longer in the files of this installation"
ENDED_FIELDS = frozenset({"run_at", "ends_at", "starts_at", "rrule"})  # whose times may have passed since an apply


class Schedules(FileResource):
    name = "schedules"
    pruned = "paused"

    async def stored(self, to: Installation) -> dict[str, Stored]:
        db = to.engine.db
        to.names = None  # read again: tasks may have been created
        names = await self.names(to)
        return {
            due.schedule.name: self.stored_schedule(to, due, names)
            for due in await db.read(store.all_schedules, to.org_id)
        }

    async def names(self, to: Installation) -> Mapping[str, str]:
        """Return the names of tasks, servers and grants by id."""
        if to.names is None:
            db, org_id = to.engine.db, to.org_id
            to.names = {**await db.read(store.task_names, org_id), **await db.read(store.server_names, org_id)}
        return {**to.names, **{grant_id: name for name, grant_id in to.grants.items()}}

    def stored_schedule(self, to: Installation, due: DueSchedule, names: Mapping[str, str]) -> Stored:
        schedule = due.schedule
        left_out = f"managed by {schedule.managed_by}" if schedule.managed_by else None
        is_managed = left_out is not None
        if left_out is None and schedule.condition is not Condition.OK:
            left_out = f"it is {schedule.condition.value}"
        return Stored(
            schedule.id,
            self.form(to, schedule, names),
            left_out,
            is_managed,
            version=schedule.revision,
            schedule=due,
            is_pruned=schedule.paused_at is not None and schedule.pause_reason == PRUNED_REASON,
        )

    def form(self, to: Installation, schedule: Schedule, names: Mapping[str, str]) -> Record:
        """Return the entry of a schedule, without fields that have their defaults. A grant that was minted with the
        schedule is not named: it is minted again."""
        fields = schedule_form.flat(schedule)
        grant = names.get(schedule.grant_id or "")
        defaults = default_fields(schedule.kind, to.engine.defaults[schedule.kind])
        target = ",".join(names.get(part, part) for part in schedule.target.split(","))
        form = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in {**fields, "target": target}.items()
            if name not in ("grant_id", "schedule_type") and value != defaults.get(name)
        }
        if grant is not None:
            form["grant"] = grant
        return form

    def body(self, to: Installation, entry: Any, old: Stored | None) -> Record:
        """Return the body of a request for an entry. Raises Invalid for an unknown grant."""
        body: Record = {name: value for name, value in entry.sent().items() if name != "grant"}
        if entry.grant is not None:
            if entry.grant not in to.grants:
                raise Invalid("grant", entry.grant, "is not the name of a grant in these files")
            body["grant_id"] = to.grants[entry.grant]
        elif old and old.schedule and "grant" not in old.form and entry.grant_id is None:
            body["grant_id"] = old.schedule.schedule.grant_id  # it was minted with the schedule
        stored_input = old.schedule.schedule.input if old and old.schedule else None
        if stored_input is not None and entry.input == redacted(stored_input):
            body["input"] = stored_input  # as it was exported, without its secrets
        return body

    async def form_of(self, to: Installation, entry: Any, old: Stored | None) -> Record:
        engine = to.engine
        body = self.body(to, entry, old)
        known = await engine.calendars_named(to.org_id, [body])
        names = await self.names(to)
        if old is None or old.schedule is None:
            new = schedule_form.parse_schedule(
                body, org_id=to.org_id, defaults=engine.defaults, now=to.now, source="file", by=None, calendars=known
            )
            return self.form(to, new, names)
        before = old.schedule.schedule
        try:
            new = schedule_form.parse_put(before, body, defaults=engine.defaults, now=to.now, calendars=known)
        except Invalid as error:
            if all(wrong.field in ENDED_FIELDS and same_text(entry, old.form, wrong.field) for wrong in error.all):
                return old.form  # it has ended since it was applied
            raise
        return self.form(to, new, names)

    async def create(self, to: Installation, entry: Any) -> None:
        body = await self.with_servers(to, self.body(to, entry, None))
        await to.acting("schedules", "create", None).create_schedules(
            to.org_id, [body], by=to.caller.user_id, source="file", check=to.caller.check_schedule
        )

    async def change(self, to: Installation, old: Stored, entry: Any, form: Record) -> None:
        assert old.schedule is not None
        if old.is_pruned:
            await to.acting("schedules", "resume", old.id).resume_schedule(to.org_id, old.id)
        if form != old.form:
            body = await self.with_servers(to, self.body(to, entry, old))
            await to.acting("schedules", "edit", old.id).edit_schedule(
                to.org_id, old.id, body, whole=True, check=to.caller.check_schedule
            )

    async def prune(self, to: Installation, old: Stored) -> bool:
        assert old.schedule is not None
        if old.schedule.schedule.paused_at is not None or not old.schedule.schedule.enabled:
            return False
        await to.acting("schedules", "pause", old.id).pause_schedule(to.org_id, old.id, reason=PRUNED_REASON)
        return True

    async def with_servers(self, to: Installation, body: Record) -> Record:
        """Return the body with names of servers replaced by ids."""
        if body.get("kind") != HOST_JOB:
            return body
        return {**body, "target": await HostManager(to.engine, to.org_id).target_id(str(body["target"]))}


def shown_schedule(form: Record) -> Record:
    """Return an entry without secrets in the input of host jobs."""
    if traits_of(form.get("kind", DEFAULT_KIND)).orders_hosts and "input" in form:
        return {**form, "input": redacted(form["input"])}
    return form


def same_text(entry: Any, form: Record, field: str) -> bool:
    value = getattr(entry, field)
    return (value.isoformat() if isinstance(value, datetime) else value) == form.get(field)


@lru_cache(maxsize=32)
def default_fields(kind: str, defaults: Defaults) -> Record:
    """Return the values of fields that an entry need not name."""
    plain = {"name": "x", "target": "x", "kind": kind, "interval_seconds": 60}
    schedule = schedule_form.parse_schedule(
        plain, org_id="", defaults={kind: defaults}, now=EPOCH, source="file", by=None
    )
    fields = schedule_form.flat(schedule)
    shown = {"name", "target", "kind", *TimingFields.model_fields}
    timing = dict.fromkeys(TimingFields.model_fields)
    return {
        **{name: value for name, value in fields.items() if name not in shown},
        **timing,
        "timezone": "UTC",
        "jitter_seconds": 0,
        "kind": DEFAULT_KIND,
    }
