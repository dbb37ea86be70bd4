"""Settings page: display, freeze, retention, login sessions, users, service accounts, API keys."""

from fastapi import APIRouter, Request, Response

from rota.access import reports as access_reports
from rota.access.api.sessions import described, session_limits
from rota.access.authentication import visible_sessions
from rota.access.store import logins
from rota.core.timing.dst import zone_names
from rota.db import paging
from rota.db.paging import Record
from rota.engine import pauses
from rota.frame.http.auth import HOST_SHELL, SHELL, Role
from rota.frame.web.pages import NavigationItem, engine_of, next_page_url, page, query_values
from rota.frame.web.sessions import Viewer

router = APIRouter()

NAVIGATION = [NavigationItem("/settings", "Settings", "e", "sliders", 2)]


@router.get("/settings")
async def settings(request: Request, caller: Viewer) -> Response:
    """Show settings; users and API keys only to admins."""
    engine, query = engine_of(request), query_values(request, "cursor")
    people: list[Record] = []
    service_accounts: list[Record] = []
    keys: list[Record] = []
    cursor = None
    if caller.role >= Role.ADMIN:
        people, _ = await engine.db.read(access_reports.list_users, caller.org_id, limit=paging.PAGE_ROWS_MAX)
        service_accounts, _ = await engine.db.read(
            access_reports.list_service_accounts, caller.org_id, limit=paging.PAGE_ROWS_MAX
        )
        keys, cursor = await engine.db.read(access_reports.list_keys, caller.org_id, cursor=query["cursor"])
    logged_in, _ = await engine.db.read(
        logins.list_sessions, engine.clock.now(), visible_sessions(caller), limits=session_limits(request)
    )
    durations = engine.settings
    return page(
        request,
        "settings.html",
        people=people,
        keys=keys,
        service_accounts=service_accounts,
        logged_in=described(logged_in, caller),
        session_limits=session_limits(request),
        next_page_url=next_page_url(request, cursor),
        zones=sorted(zone_names()),
        roles=[role.name.lower() for role in Role],
        shell=SHELL,
        host_shell=HOST_SHELL,
        freeze=await engine.db.read(pauses.freeze_of, caller.org_id, engine.clock.now()),
        retention=(
            ("Successful runs", durations.keep_success, "ROTA_KEEP_SUCCESS_DAYS"),
            ("All other runs", durations.keep_failed, "ROTA_KEEP_FAILED_DAYS"),
            ("Signals", durations.keep_signals, "ROTA_KEEP_SIGNALS_DAYS"),
            ("Audit log", durations.keep_audit, "ROTA_KEEP_AUDIT_DAYS"),
        ),
    )
