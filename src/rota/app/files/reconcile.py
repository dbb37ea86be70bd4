"""Plan and apply: bring an installation to what files describe, in the transaction of one request.

A plan is an apply that is rolled back: it is checked by the same code, and what it shows is what would be stored.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import orjson

from rota.app import impact
from rota.app.files import store
from rota.app.files.models import MODELS, FileSchedule
from rota.app.files.resources import (
    Alarms,
    Calendars,
    FileResource,
    Grants,
    Installation,
    Pipelines,
    Queues,
    Stored,
    Tasks,
)
from rota.app.files.schedule_resource import Schedules, shown_schedule
from rota.app.files.store import Applied
from rota.core import effort
from rota.core.errors import Conflict, Invalid, NotFound, Refused, RotaError, StaleRevision, TooMuchEffort, together
from rota.core.order import in_order
from rota.core.redact import public_task
from rota.core.wire import RequestBody
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import usual_runs
from rota.engine.compute import compute
from rota.frame.http.auth import Role

ENTRIES_MAX = 5_000  # of one request
IMPACTS_SHOWN = 50  # schedules of a plan whose slots are compared
IMPACT_SLOTS = 2_000  # of each timing of a plan
IMPACT_STEPS = 200_000  # of slot searches in one plan

GRANTS = Grants()
RESOURCES: dict[str, FileResource] = {  # in the order in which they are applied; `MODELS` has their entries
    resource.name: resource for resource in (Queues(), Calendars(), Tasks(), Pipelines(), GRANTS, Schedules(), Alarms())
}


@dataclass(slots=True)
class Entry:
    """An entry of files: its position in the request names it in errors."""

    resource: FileResource
    position: int
    body: RequestBody

    @property
    def key(self) -> str:
        return self.resource.key_of(self.body)

    @property
    def place(self) -> str:
        return f"{self.resource.name}[{self.position}]"


@dataclass(slots=True)
class Change:
    """What a plan does with a resource."""

    resource: str
    key: str
    action: str
    before: Stored | None
    drift: list[str] = field(default_factory=list)
    note: str | None = None


async def reconcile(
    to: Installation,
    resources: Mapping[str, Sequence[Mapping[str, object]]],
    *,
    prune: bool = False,
    version: str | None = None,
) -> Record:
    """Apply the entries of files; returns the changes. Raises Invalid with all malformed entries, or the first error of
    storing them, and StaleRevision if the installation is not the one that `version` was planned for."""
    entries = read_entries(resources)
    before = {name: await resource.stored(to) for name, resource in RESOURCES.items()}
    for entry in entries:
        if entry.resource is GRANTS and (known := await GRANTS.find(to, entry.body)) is not None:
            to.grants[entry.key] = known
    before["grants"], before["schedules"] = await GRANTS.stored(to), await RESOURCES["schedules"].stored(to)
    applied = await to.engine.db.read(store.applied, to.org_id)
    current = version_of(entries, before, applied, prune)
    if version is not None and version != current:
        raise StaleRevision(
            f"the installation has changed since this was planned (version {version}, now {current}); plan again"
        )
    changes = [await apply_entry(to, entry, before, applied) for entry in entries]
    changes += await prune_rest(to, entries, before, applied, prune=prune)
    after = {name: await resource.stored(to) for name, resource in RESOURCES.items()}
    await record(to, changes, after, applied)
    shown = [shown_change(change, after) for change in changes if change.action != "none" or change.drift]
    await add_impacts(to, changes, shown, after)
    return {
        "version": current,
        "changes": shown,
        "unchanged": sum(change.action == "none" for change in changes),
    }


def read_entries(resources: Mapping[str, Sequence[Mapping[str, object]]]) -> list[Entry]:
    """Return the entries in the order in which they are applied. Raises Invalid with all malformed ones."""
    wrong = [
        Invalid(name, None, f"is unknown; files have {', '.join(MODELS)}") for name in resources if name not in MODELS
    ]
    if (count := sum(map(len, resources.values()))) > ENTRIES_MAX:
        raise Invalid("resources", count, f"entries are too many; at most {ENTRIES_MAX} are allowed")
    entries: list[Entry] = []
    for name, resource in RESOURCES.items():
        keys: dict[str, int] = {}
        for position, body in enumerate(resources.get(name, ())):
            try:
                entry = Entry(resource, position, MODELS[name].read(body))
            except Invalid as error:
                wrong += [Invalid(f"{name}[{position}].{each.field}", each.value, each.right) for each in error.all]
                continue
            if keys.setdefault(entry.key, position) != position:
                wrong.append(Invalid(f"{entry.place}.name", entry.key, f"is also {name}[{keys[entry.key]}]"))
            entries.append(entry)
    if wrong:
        raise together(wrong)
    return followers_last(entries)


def followers_last(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with schedules behind those that they run after."""
    following = {entry.key: entry.body.after or () for entry in entries if isinstance(entry.body, FileSchedule)}
    places = {key: place for place, key in enumerate(in_order(following))}
    resources = list(RESOURCES.values())

    def place(entry: Entry) -> tuple[int, int]:
        of_schedule = places[entry.key] if isinstance(entry.body, FileSchedule) else 0
        return resources.index(entry.resource), of_schedule

    return sorted(entries, key=place)


def version_of(
    entries: Sequence[Entry],
    before: Mapping[str, Mapping[str, Stored]],
    applied: Mapping[tuple[str, str], Applied],
    prune: bool,
) -> str:
    """Return a digest of all that the entries would change: the version that a plan was made for. It has no secrets, or
    a reader could guess them: of those, `Stored.version` changes."""
    keys = sorted({*((entry.resource.name, entry.key) for entry in entries), *applied})
    state = [
        (
            name,
            key,
            None
            if (old := before[name].get(key)) is None
            else [shown_form(name, old.form), old.version, old.is_pruned],
        )
        for name, key in keys
        if name in before
    ]
    return hashlib.sha256(orjson.dumps([prune, state], option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


async def apply_entry(
    to: Installation,
    entry: Entry,
    before: Mapping[str, Mapping[str, Stored]],
    applied: Mapping[tuple[str, str], Applied],
) -> Change:
    """Store an entry if it differs from what is stored. Raises the error of storing it, with its place."""
    resource, old = entry.resource, before[entry.resource.name].get(entry.key)
    last = applied.get((resource.name, entry.key))
    drift = drifted_fields(old, last)
    change = Change(resource.name, entry.key, "none", old, drift)
    try:
        if old is not None and old.is_managed:
            raise Conflict(f"{old.left_out}; remove it from the files")
        form = await resource.form_of(to, entry.body, old)
        if old is None:
            change.action = "create"
        elif form != old.form or old.is_pruned:
            change.action = "change"
        if change.action != "none":
            to.caller.check(Role.OPERATOR, resource.name, writes=True)
        if old is None:
            await resource.create(to, entry.body)
        elif change.action == "change":
            await resource.change(to, old, entry.body, form)
    except RotaError as error:
        raise_at(error, entry)
    if change.drift and change.action == "none":
        change.note = "changed elsewhere to what the files say now"
    elif change.drift:
        change.note = f"changed elsewhere since it was applied: {', '.join(change.drift)}"
    return change


def raise_at(error: RotaError, entry: Entry) -> NoReturn:
    """Raise an error of storing an entry again, with its place."""
    if isinstance(error, TooMuchEffort):
        raise error
    if isinstance(error, Invalid):
        raise together(
            [Invalid(f"{entry.place}.{wrong.field}", wrong.value, wrong.right) for wrong in error.all]
        ) from error
    for kind in (StaleRevision, Conflict, NotFound, Refused):
        if isinstance(error, kind):
            raise kind(f"{entry.place} {entry.key!r}: {error.message}") from error
    raise error


async def prune_rest(
    to: Installation,
    entries: Sequence[Entry],
    before: Mapping[str, Mapping[str, Stored]],
    applied: Mapping[tuple[str, str], Applied],
    *,
    prune: bool,
) -> list[Change]:
    """Pause what was applied from files that no longer have it, if asked for; else only name it."""
    named = {(entry.resource.name, entry.key) for entry in entries}
    changes = []
    for name, key in sorted(applied.keys() - named):
        resource, old = RESOURCES.get(name), before.get(name, {}).get(key)
        if resource is None or old is None:
            continue
        change = Change(name, key, "left", old, note="no longer in the files")
        if resource.pruned is None:
            change.note = "no longer in the files; it stays: delete it if it is not needed"
        elif not prune:
            change.note = f"no longer in the files; --prune leaves it {resource.pruned}"
        else:
            to.caller.check(Role.OPERATOR, name, writes=True)
            change.action = "pause" if await resource.prune(to, old) else "left"
        changes.append(change)
    return changes


async def record(
    to: Installation,
    changes: Sequence[Change],
    after: Mapping[str, Mapping[str, Stored]],
    applied: Mapping[tuple[str, str], Applied],
) -> None:
    """Record what was applied, and forget what was pruned. Writes only what differs, so that a second apply writes
    nothing."""

    def step(tx: Tx) -> list[str]:
        written = []
        for change in changes:
            place, stored = (change.resource, change.key), after[change.resource].get(change.key)
            if change.action == "pause":
                store.forget_applied(tx, to.org_id, *place)
                written.append(change.key)
            elif change.action != "left" and stored is not None:
                digests = digests_of(stored.form)
                if place not in applied or applied[place].digests != digests:
                    store.record_applied(tx, to.org_id, *place, digests, to.caller.user_id, to.now)
                    written.append(change.key)
        return written

    if any(change.action in ("create", "change", "pause") or change.drift for change in changes) or any(
        (change.resource, change.key) not in applied for change in changes if change.action == "none"
    ):
        await to.engine.db.tx(step)


def drifted_fields(old: Stored | None, last: Applied | None) -> list[str]:
    """Return the fields that changed elsewhere since the resource was applied."""
    if old is None or last is None:
        return []
    now = digests_of(old.form)
    return sorted(name for name in {*now, *last.digests} if now.get(name) != last.digests.get(name))


def digests_of(form: Record) -> dict[str, str]:
    """Return a digest per field: of values that may be secret, only their change is recorded."""
    return {name: hashlib.sha256(orjson.dumps(value)).hexdigest()[:16] for name, value in form.items()}


def shown_form(resource: str, form: Record) -> Record:
    """Return a form without secrets."""
    return public_task(form) if resource == "tasks" else shown_schedule(form) if resource == "schedules" else form


def shown_change(change: Change, after: Mapping[str, Mapping[str, Stored]]) -> Record:
    stored = after[change.resource].get(change.key)
    is_changed = change.action in ("create", "change")
    old, new = (change.before.form if change.before else {}), (stored.form if stored and is_changed else {})
    changed = [name for name in {**old, **new} if is_changed and old.get(name) != new.get(name)]
    before, shown = shown_form(change.resource, old), shown_form(change.resource, new)
    if change.before is not None and change.before.is_pruned and is_changed:
        changed, before, shown = [*changed, "paused"], {**before, "paused": True}, {**shown, "paused": False}
    return {
        "resource": change.resource,
        "name": change.key,
        "action": change.action,
        "fields": [{"field": name, "before": before.get(name), "after": shown.get(name)} for name in changed],
        "drift": change.drift,
        "note": change.note,
        "slots": None,
    }


async def add_impacts(
    to: Installation, changes: Sequence[Change], shown: Sequence[Record], after: Mapping[str, Mapping[str, Stored]]
) -> None:
    """Add what happens to the slots of the first changed schedules."""
    keys = {change.key for change in changes if change.resource == "schedules" and change.action != "none"}
    edited = [item for item in shown if item["resource"] == "schedules" and item["name"] in keys][:IMPACTS_SHOWN]
    if not edited:
        return
    around = await to.engine.db.read(impact.surroundings, to.org_id, to.now, to.now + timedelta(days=impact.DIFF_DAYS))
    before = {change.key: change.before for change in changes if change.resource == "schedules"}
    usual = {
        item["name"]: await to.engine.db.read(usual_runs.usual_run, to.org_id, old.id)
        for item in edited
        if (old := before[item["name"]]) is not None
    }

    def compare() -> None:
        with effort.limited(IMPACT_STEPS):
            for item in edited:
                old, new = before[item["name"]], after["schedules"][item["name"]].schedule
                if new is None or item["action"] not in ("create", "change"):
                    continue
                try:
                    found: Any = impact.impact(
                        old.schedule if old else None, new.schedule, around, usual.get(item["name"]), IMPACT_SLOTS
                    )
                except TooMuchEffort:
                    continue
                item["slots"] = {name: value for name, value in found.items() if name != "fields"}

    await compute(compare)


async def known_grants(to: Installation) -> dict[str, str]:
    """Return the ids of grants that files named when they were applied, by those names."""
    applied = await to.engine.db.read(store.applied, to.org_id)
    contents = {  # digests of content, without the name
        name: {key: digest for key, digest in last.digests.items() if key != "name"}
        for (resource, name), last in applied.items()
        if resource == GRANTS.name
    }
    named: dict[str, str] = {}
    for grant in (await GRANTS.stored(to)).values():
        content = digests_of({key: value for key, value in grant.form.items() if key != "name"})
        name = next((name for name, known in contents.items() if known == content and name not in named), None)
        if name is not None:
            named[name] = grant.id
    return named


async def export(to: Installation, *, secrets: bool = False) -> Record:
    """Return all that files can describe, and what they cannot. Secrets of tasks are hidden unless asked for."""
    to.grants.update(await known_grants(to))
    stored_grants = await GRANTS.stored(to)
    to.grants.update({name: grant.id for name, grant in stored_grants.items()})
    resources: dict[str, list[Record]] = {}
    left_out: list[Record] = []
    for name, resource in RESOURCES.items():
        items = stored_grants if resource is GRANTS else await resource.stored(to)
        if not to.caller.reads(name):
            left_out.append({"resource": name, "name": "*", "reason": f"your key does not read {name}"})
            continue
        resources[name] = [
            item.form if secrets else shown_form(name, item.form) for item in items.values() if item.left_out is None
        ]
        left_out += [
            {"resource": name, "name": key, "reason": item.left_out}
            for key, item in items.items()
            if item.left_out is not None
        ]
    hidden = [form["name"] for form in resources.get("tasks", []) if not secrets and orjson.dumps(form).count(b"***")]
    left_out += [
        {"resource": "tasks", "name": name, "reason": "its secrets are hidden as ***; --secrets exports them"}
        for name in hidden
    ]
    return {"resources": resources, "left_out": left_out}
