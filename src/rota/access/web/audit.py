"""Page of the audit log."""

from datetime import datetime

from fastapi import APIRouter, Request, Response

from rota.core.timing.triggers import parse_instant
from rota.frame.http.reports import reports_of
from rota.frame.web.forms import to_rfc3339
from rota.frame.web.pages import NavigationItem, next_page_url, page, preferences, query_values
from rota.frame.web.sessions import Admin
from rota.reports.audit import list_audit

router = APIRouter()

NAVIGATION = [NavigationItem("/audit", "Audit", "a", "list", 2, admins=True)]


@router.get("/audit")
async def list_all(request: Request, caller: Admin) -> Response:
    query = query_values(request, "action", "resource", "resource_id", "user_id", "since", "until", "cursor")
    zone = preferences(request).zone

    def instant(name: str) -> datetime | None:
        text = query[name]
        return parse_instant(to_rfc3339(text, zone), name) if text else None

    items, cursor = await reports_of(request, caller).read(
        list_audit,
        caller.org_id,
        cursor=query["cursor"],
        action=query["action"],
        resource=query["resource"],
        resource_id=query["resource_id"],
        user_id=query["user_id"],
        since=instant("since"),
        until=instant("until"),
    )
    return page(request, "audit.html", items=items, next_page_url=next_page_url(request, cursor), query=query)
