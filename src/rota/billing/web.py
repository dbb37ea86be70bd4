"""Page of grants and billing."""

from datetime import timedelta

from fastapi import APIRouter, Request, Response

from rota.billing import reports
from rota.engine import grants
from rota.frame.http.auth import Role
from rota.frame.http.reports import reports_of
from rota.frame.web.pages import NavigationItem, engine_of, next_page_url, page, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import schedules as schedule_reports

router = APIRouter()

NAVIGATION = [
    NavigationItem("/grants", "Grants & billing", "b", "key", 1),
]
LAPSE_HORIZON = timedelta(days=30)
USAGE_DAYS = 30
CHART_LEDGER_ENTRIES = 100


@router.get("/grants")
async def list_grants(request: Request, caller: Viewer) -> Response:
    """Show grants, those that lapse soon, and the caller's account; for admins also the usage of the org."""
    engine, db = engine_of(request), reports_of(request, caller)
    now, query = engine.clock.now(), query_values(request, "cursor")
    items, cursor = await db.read(reports.list_grants, caller.org_id, cursor=query["cursor"])
    may_read = caller.reads("billing")
    account_id = await db.read(reports.account_of, caller.org_id, caller.user_id) if may_read else None
    account = await db.read(reports.account, caller.org_id, account_id) if account_id else None
    entries, _ = (
        await db.read(reports.list_ledger, account_id, limit=CHART_LEDGER_ENTRIES) if account_id else ([], None)
    )
    account_filter = None if caller.role >= Role.ADMIN and may_read else account_id or "none"
    since = now - timedelta(days=USAGE_DAYS)
    days, _ = await db.read(reports.usage, caller.org_id, account_filter, "day", limit=USAGE_DAYS, since=since)
    dearest, _ = await db.read(reports.usage, caller.org_id, account_filter, "schedule", limit=10, since=since)
    names = await db.read(schedule_reports.names_of, [row["schedule_id"] for row in items if row["schedule_id"]])
    return page(
        request,
        "grants.html",
        items=items,
        next_page_url=next_page_url(request, cursor),
        names=names,
        account=account,
        entries=entries,
        by_day=[(row["key"], row["charged_credits"]) for row in days[::-1]],
        dearest=dearest,
        soon=await db.read(grants.lapsing, caller.org_id, now + LAPSE_HORIZON),
        billing=engine.settings.billing.value,
    )
