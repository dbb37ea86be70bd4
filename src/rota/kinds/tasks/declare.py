"""Tasks and schedules that a program declares, when it starts."""

from collections.abc import Mapping, Sequence

from rota.core.errors import NotFound
from rota.db.paging import Record
from rota.engine import orgs
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.engine.declare import NOWHERE, declare_schedules
from rota.kinds.tasks import store


async def declare(
    engine: Engine,
    org: str,
    app: str | None,
    declared: Sequence[Record],
    wanted: Sequence[Mapping[str, object]],
    places: Mapping[str, str] = NOWHERE,
) -> None:
    """Store the tasks of a program as rows and, if the program has a name, its schedules. Any number of processes may
    do this at once. An error about a schedule has its name and, from `places`, where it is declared."""
    now = engine.clock.now()
    org_id = await engine.db.read(orgs.org_by_slug, org)
    if org_id is None:
        raise NotFound(f"org {org!r} not found; make it first, or declare for another")
    system = await engine.db.tx(orgs.system_user, org_id, now)
    if declared:
        audited = engine.audited_as(AuditEntry(org_id, system, "tasks", "declare")).db
        await audited.tx(store.sync, org_id, declared, now)
    if app is not None:
        await declare_schedules(engine, org_id, app, wanted, system, places)
