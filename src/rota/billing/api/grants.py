"""Routes of grants: the authority under which unattended work runs."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from rota.billing import reports
from rota.billing.api import models
from rota.engine import grants
from rota.frame.http.auth import Operator, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_slice, engine_of
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of

router = APIRouter(prefix="/grants", tags=["grants"], route_class=BodyRoute)

Revocation = Annotated[models.RevokeBody, Body(default_factory=models.RevokeBody)]
Days = Annotated[int, Query(ge=1, le=366)]


@router.post("", status_code=201, response_model=models.Grant)
async def create(request: Request, caller: Operator, body: models.GrantBody) -> Response:
    """Create a grant `{scopes, expires_at?, billing_account_id?, consent?, budget?: {per_day, total}}`. A wildcard
    scope such as `graph:execute:*` needs `consent: true`. Only admins may use an account of another user."""
    engine = engine_of(request)
    grant_id = await engine.create_grant(
        caller.org_id,
        caller.user_id,
        body.scopes,
        expires_at=body.expires_at,
        billing_account_id=body.billing_account_id,
        budget=None if body.budget is None else body.budget.present(),
        any_account=caller.role >= Role.ADMIN,
    )
    grant = await engine.db.read(reports.grant, caller.org_id, grant_id)
    return answer(grant, 201, {"location": f"/api/v1/grants/{grant_id}"})


@router.get("", response_model=page_of(models.Grant))
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List grants, newest first."""
    return answer_page(
        await reports_of(request, caller).read(reports.list_grants, caller.org_id, limit=limit, cursor=cursor)
    )


@router.get("/$forecast", response_model=page_of(models.LapsingSchedule))
async def forecast(
    request: Request, caller: Viewer, days: Days = 30, limit: Limit = 200, cursor: Cursor = None
) -> Response:
    """List schedules whose grant has lapsed or lapses within `days`, with the time and the reason."""
    engine = engine_of(request)
    before = engine.clock.now() + timedelta(days=days)
    return answer_slice(await reports_of(request, caller).read(grants.lapsing, caller.org_id, before), limit, cursor)


@router.get("/{grant_id}", response_model=models.GrantUse)
async def read(request: Request, caller: Viewer, grant_id: str) -> Response:
    """Return a grant with the names of the schedules that depend on it."""
    db = engine_of(request).db
    grant = await db.read(reports.grant, caller.org_id, grant_id)
    schedules = await db.read(grants.users_of, caller.org_id, grant_id)
    return answer({**grant, "schedules": schedules})


@router.post("/{grant_id}/$revoke", response_model=models.Grant)
async def revoke(request: Request, caller: Operator, grant_id: str, body: Revocation) -> Response:
    """Revoke a grant `{cancel_running?}`. Running jobs finish unless `cancel_running`. Idempotent."""
    engine = engine_of(request)
    await engine.revoke_grant(caller.org_id, grant_id, cancel_running=body.cancel_running is True)
    return answer(await engine.db.read(reports.grant, caller.org_id, grant_id))
