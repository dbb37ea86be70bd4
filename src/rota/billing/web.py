"""The page of grants, which unattended work runs under, and of what it costs."""

from datetime import timedelta

from fastapi import APIRouter, Request, Response

from rota.billing import reports
from rota.engine import dashboard, grants
from rota.frame.http.auth import Role
from rota.frame.web.pages import Place, asked, engine_of, older, page
from rota.frame.web.sessions import Viewer

router = APIRouter()

PLACES = [
    Place("/grants", "Grants & billing", "b", "key", 1),
]
AHEAD = timedelta(days=30)
DAYS = 30
MOVES = 100  # of the balance that its chart shows


@router.get("/grants")
async def list_grants(request: Request, caller: Viewer) -> Response:
    """Grants, what lapses soon, and the account of whoever looks; an admin sees what all of the org used."""
    engine, db = engine_of(request), engine_of(request).db
    now, given = engine.clock.now(), asked(request, "cursor")
    items, cursor = await db.read(reports.list_grants, caller.org_id, cursor=given["cursor"])
    may_read = caller.reads("billing")
    account_id = await db.read(reports.account_of, caller.org_id, caller.user_id) if may_read else None
    account = await db.read(reports.account, caller.org_id, account_id) if account_id else None
    moves, _ = await db.read(reports.list_ledger, account_id, limit=MOVES) if account_id else ([], None)
    whose = None if caller.role >= Role.ADMIN and may_read else account_id or "nobody"
    since = now - timedelta(days=DAYS)
    days, _ = await db.read(reports.usage, caller.org_id, whose, "day", limit=DAYS, since=since)
    dearest, _ = await db.read(reports.usage, caller.org_id, whose, "schedule", limit=10, since=since)
    names = await db.read(dashboard.names_of, [one["schedule_id"] for one in items if one["schedule_id"]])
    return page(
        request, "grants.html", items=items, older=older(request, cursor), names=names, account=account, moves=moves,
        by_day=[(one["key"], one["charged_credits"]) for one in days[::-1]], dearest=dearest,
        soon=await db.read(grants.lapsing, caller.org_id, now + AHEAD),
        billing=engine.settings.billing.value,
    )  # fmt: skip
