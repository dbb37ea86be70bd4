"""The audit log: who changed what."""

from typing import Any

from fastapi import APIRouter, Request, Response

from rota.core.timing.triggers import parse_instant
from rota.engine import audit_rows
from rota.frame.web.forms import moment
from rota.frame.web.pages import Place, asked, engine_of, older, page, preferences
from rota.frame.web.sessions import Admin

router = APIRouter()

PLACES = [Place("/audit", "Audit", "a", "list", 2, admins=True)]


@router.get("/audit")
async def list_all(request: Request, caller: Admin) -> Response:
    given = asked(request, "action", "resource", "resource_id", "user_id", "since", "until", "cursor")
    wanted: dict[str, Any] = dict(given)
    for name in ("since", "until"):
        text = given[name]
        wanted[name] = parse_instant(moment(text, preferences(request).zone), name) if text else None
    items, cursor = await engine_of(request).db.read(audit_rows.list_audit, caller.org_id, **wanted)
    return page(request, "audit.html", items=items, older=older(request, cursor), given=given)
