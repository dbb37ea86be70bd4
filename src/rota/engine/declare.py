"""Schedules that a program declares: created, updated on drift, paused when they vanish from it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog

from rota.core import schedule_form
from rota.core.errors import Conflict, DataRefused, RotaError, Unavailable
from rota.core.kinds import traits_of
from rota.core.model import Schedule
from rota.core.order import in_order
from rota.engine import schedules
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.engine.schedule_commands import UNDECLARED_REASON

NOWHERE: Mapping[str, str] = {}

log = structlog.get_logger("rota.declare")


async def declare_schedules(
    engine: Engine,
    org_id: str,
    app: str,
    wanted: Sequence[Mapping[str, object]],
    system: str,
    places: Mapping[str, str] = NOWHERE,
) -> None:
    """Create, update and pause schedules, for the org's user `system`, so that they are as the program declares them.
    Any number of processes may do this at once. An error about a schedule has its name and, from `places`, where it is
    declared."""
    source = f"code:{Path(app).stem}"
    declared = await engine.db.read(schedules.declared_by, org_id, source)
    known = {schedule.name: schedule for schedule in declared if not traits_of(schedule.kind).declares_schedules}
    new = [body for body in wanted if body["name"] not in known]

    def audited_as(verb: str, name: object) -> Engine:
        target = str(name) if verb != "create" else None
        return engine.audited_as(AuditEntry(org_id, system, "schedules", verb, target, admin=True))

    by_name = {str(body["name"]): body for body in new}
    for name in in_order({name: names_before(body) for name, body in by_name.items()}):
        body = by_name[name]
        with naming(str(body["name"]), places):
            await create(audited_as("create", body["name"]), org_id, body, source, system)
    for body in wanted:
        if body["name"] in known:
            with naming(str(body["name"]), places):
                await update(audited_as("edit", body["name"]), org_id, known[str(body["name"])], body)
    for name in sorted(set(known) - {str(body["name"]) for body in wanted}):
        if known[name].paused_at is None:
            log.warning("schedule vanished from the program; paused", schedule=name)
            await audited_as("pause", name).pause_schedule(org_id, name, reason=UNDECLARED_REASON)


def names_before(body: Mapping[str, object]) -> list[str]:
    """Return the names in `after` of a schedule; the form of a wrong one is checked when it is created."""
    names = body.get("after")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


@contextmanager
def naming(schedule: str, places: Mapping[str, str]) -> Iterator[None]:
    """Put the schedule and where it is declared in front of the message of an error about it."""
    try:
        yield
    except RotaError as error:
        if not isinstance(error, Unavailable):
            place = f"{places[schedule]}: " if places.get(schedule) else ""
            error.message = f"{place}schedule {schedule!r}: {error.message}"
            error.args = (error.message,)
        raise


async def create(engine: Engine, org_id: str, body: Mapping[str, object], source: str, by: str) -> None:
    """Another process that declares the same may be faster: then there is nothing to do."""
    try:
        await engine.create_schedules(org_id, [body], by=by, source=source)
    except (Conflict, DataRefused):
        taken = await engine.db.read(schedules.get, org_id, str(body["name"]))
        if taken.source != source:
            raise


async def update(engine: Engine, org_id: str, old: Schedule, body: Mapping[str, object]) -> None:
    """Bring a schedule in line with the program, if they differ. Whether it is enabled is its operator's business."""
    if old.paused_at is not None and old.pause_reason == UNDECLARED_REASON:
        await engine.resume_schedule(org_id, old.name)
    fresh = schedule_form.parse_schedule(
        {**body, "enabled": old.enabled}, org_id=org_id, defaults=engine.defaults, now=old.created_at,
        source=old.source, by=None, calendars=await engine.calendars_named(org_id, [body]),
    )  # fmt: skip
    before, after = schedule_form.flat(old), schedule_form.flat(fresh)
    if after["schedule_type"] in ("interval", "rrule") and "anchor" not in body:
        after["anchor"] = before["anchor"]
    if "grant_id" not in body:  # the one that was minted with it
        after["grant_id"] = before["grant_id"]
    changes = {field: value for field, value in after.items() if before[field] != value}
    if changes:
        log.info("schedule updated from the program", schedule=old.name, fields=sorted(changes))
        await engine.edit_schedule(org_id, old.id, changes, by_manager=True)
