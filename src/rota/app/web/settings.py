"""Settings: how pages look, people, keys, how long things are kept, and the freeze."""

from fastapi import APIRouter, Request, Response

from rota.access import reports as access_reports
from rota.access.authentication import visible_sessions
from rota.access.store import logins
from rota.core.timing.dst import zone_names
from rota.db import paging
from rota.db.paging import Record
from rota.engine import reports as engine_reports
from rota.frame.http.auth import HOST_SHELL, SHELL, Role
from rota.frame.web.pages import Place, asked, engine_of, older, page
from rota.frame.web.sessions import Viewer

router = APIRouter()

PLACES = [Place("/settings", "Settings", "e", "sliders", 2)]


@router.get("/settings")
async def settings(request: Request, caller: Viewer) -> Response:
    """Everybody may choose how pages look; people and keys are for admins."""
    engine, given = engine_of(request), asked(request, "cursor")
    people: list[Record] = []
    keys: list[Record] = []
    cursor = None
    if caller.role >= Role.ADMIN:
        people, _ = await engine.db.read(access_reports.list_users, caller.org_id, limit=paging.PAGE_ROWS_MAX)
        keys, cursor = await engine.db.read(access_reports.list_keys, caller.org_id, cursor=given["cursor"])
    logged_in, _ = await engine.db.read(logins.list_sessions, engine.clock.now(), visible_sessions(caller))
    kept = engine.settings
    return page(
        request, "settings.html", people=people, keys=keys, logged_in=logged_in, older=older(request, cursor),
        zones=sorted(zone_names()),
        roles=[role.name.lower() for role in Role], shell=SHELL, host_shell=HOST_SHELL,
        freeze=await engine.db.read(engine_reports.freeze, caller.org_id, engine.clock.now()),
        retention=(
            ("Runs that succeeded", kept.keep_success, "ROTA_KEEP_SUCCESS_DAYS"),
            ("All other runs", kept.keep_failed, "ROTA_KEEP_FAILED_DAYS"),
            ("The audit log", kept.keep_audit, "ROTA_KEEP_AUDIT_DAYS"),
        ),
    )  # fmt: skip
