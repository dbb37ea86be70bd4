"""Routes of service accounts: principals of an org that are not people. API keys act for them."""

from fastapi import APIRouter, Request, Response

from rota.access import reports
from rota.access.api import models
from rota.access.api.people import check_scopes, resources
from rota.access.store import accounts
from rota.frame.http.auth import Admin, Role
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.models import BodyRoute, page_of

router = APIRouter(route_class=BodyRoute, tags=["service-accounts"])


@router.post("/service-accounts", status_code=201, response_model=models.ServiceAccount)
async def create_service_account(request: Request, caller: Admin, body: models.ServiceAccountBody) -> Response:
    """Create a service account `{name, role, scopes?}`. Its API keys (`POST /api-keys {user_id}`) have at most its role
    and scopes. It cannot log in to the dashboard. A role above viewer needs a key without scopes or expiry."""
    engine = engine_of(request)
    scopes = check_scopes(body.scopes or [], resources(request))
    if body.role != Role.VIEWER.name.lower():
        caller.check_account_change(f"creating a service account with the role {body.role}")
    now = engine.clock.now()
    account_id = await engine.db.tx(accounts.create_service_account, caller.org_id, body.name, body.role, scopes, now)
    account = await engine.db.read(reports.service_account, caller.org_id, account_id)
    return answer(account, 201, {"location": f"/api/v1/service-accounts/{account_id}"})


@router.get("/service-accounts", response_model=page_of(models.ServiceAccount))
async def list_service_accounts(
    request: Request, caller: Admin, limit: Limit = 50, cursor: Cursor = None, name: str | None = None
) -> Response:
    return answer_page(
        await engine_of(request).db.read(
            reports.list_service_accounts, caller.org_id, limit=limit, cursor=cursor, name=name
        )
    )


@router.get("/service-accounts/{account_id}", response_model=models.ServiceAccount)
async def read_service_account(request: Request, caller: Admin, account_id: str) -> Response:
    return answer(await engine_of(request).db.read(reports.service_account, caller.org_id, account_id))


@router.patch("/service-accounts/{account_id}", response_model=models.ServiceAccount)
async def edit_service_account(
    request: Request, caller: Admin, account_id: str, body: models.ServiceAccountChanges
) -> Response:
    """Change some of `{name, role, scopes, disabled}`. A lower role and fewer scopes also apply to its API keys; while
    it is disabled they are refused. All changes but that of `name` need a key without scopes or expiry."""
    engine, changes = engine_of(request), body.present()
    now = engine.clock.now()
    if changes.keys() - {"name"}:
        caller.check_account_change("changing a service account's role or scopes, or whether it is disabled")
    if body.scopes is not None:
        changes["scopes"] = check_scopes(body.scopes, resources(request))
    if (disabled := changes.pop("disabled", None)) is not None:
        changes |= accounts.disabling(bool(disabled), now)
    if body.name is not None:
        changes["email"] = accounts.service_placeholder(body.name)
    await engine.db.tx(accounts.edit_user, caller.org_id, account_id, changes, now, "service")
    engine.signal("access")
    return answer(await engine.db.read(reports.service_account, caller.org_id, account_id))


@router.delete("/service-accounts/{account_id}", status_code=204)
async def delete_service_account(request: Request, caller: Admin, account_id: str) -> Response:
    """Delete a service account; revokes its API keys and grants."""
    engine = engine_of(request)
    await engine.db.tx(accounts.delete_user, caller.org_id, account_id, engine.clock.now(), "service")
    engine.signal("access")
    return Response(status_code=204)
