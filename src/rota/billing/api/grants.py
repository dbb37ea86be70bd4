"""Grants: the authority that unattended work runs under, and can lose."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from rota.billing import reports
from rota.core import parse
from rota.engine import grants
from rota.frame.http.auth import Operator, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_part, engine_of, read_body

router = APIRouter(prefix="/grants", tags=["grants"])

Days = Annotated[int, Query(ge=1, le=366)]


@router.post("", status_code=201)
async def create(request: Request, caller: Operator) -> Response:
    """`{scopes, expires_at?, billing_account_id?, consent?, budget?: {per_day, total}}`. A scope that allows everything
    of its kind, like `graph:execute:*`, needs `consent: true`. Only admins name an account that is not their own."""
    engine = engine_of(request)
    body, admin = await read_body(request), caller.role >= Role.ADMIN
    grant_id = await engine.create_grant(caller.org_id, body, caller.user_id, any_account=admin)
    found = await engine.db.read(reports.grant, caller.org_id, grant_id)
    return answer(found, 201, {"location": f"/api/v1/grants/{grant_id}"})


@router.get("")
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Newest first."""
    return answer_page(await engine_of(request).db.read(reports.list_grants, caller.org_id, limit=limit, cursor=cursor))


@router.get("/$forecast")
async def forecast(
    request: Request, caller: Viewer, days: Days = 30, limit: Limit = 200, cursor: Cursor = None
) -> Response:
    """The schedules whose grant lapses within so many days, or has lapsed: what will not run, since when and why."""
    engine = engine_of(request)
    before = engine.clock.now() + timedelta(days=days)
    return answer_part(await engine.db.read(grants.lapsing, caller.org_id, before), limit, cursor)


@router.get("/{grant_id}")
async def read(request: Request, caller: Viewer, grant_id: str) -> Response:
    """One grant, with the names of the schedules that a revocation would stop."""
    db = engine_of(request).db
    found = await db.read(reports.grant, caller.org_id, grant_id)
    users = await db.read(grants.users_of, caller.org_id, grant_id)
    return answer({**found, "schedules": users})


@router.post("/{grant_id}/$revoke")
async def revoke(request: Request, caller: Operator, grant_id: str) -> Response:
    """Take it back: `{cancel_running?}`. What runs finishes, unless `cancel_running`. Twice is as once."""
    engine = engine_of(request)
    body: dict[str, Any] = await read_body(request, ["cancel_running"], optional=True)
    stop = parse.flag(body.get("cancel_running", False), "cancel_running")
    await engine.revoke_grant(caller.org_id, grant_id, cancel_running=stop)
    return answer(await engine.db.read(reports.grant, caller.org_id, grant_id))
