"""Routes of orgs, users, API keys, login links and the audit log."""

from fastapi import APIRouter, Request, Response

from rota.access import reports
from rota.access.api import models
from rota.access.api.password_rules import check_not_address
from rota.access.login_settings import LoginSettings
from rota.access.password_thread import in_password_thread
from rota.access.store import accounts, logins
from rota.core.errors import Conflict, Invalid, Refused
from rota.engine import orgs
from rota.frame.http.auth import ADDING_SCOPES, Admin, InstanceAdmin, Role, Viewer, adds_to_role, scopes_within
from rota.frame.http.contract import Cursor, Limit, Timestamp, answer, answer_page, engine_of, time_span
from rota.frame.http.exposure import base_url_of
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of
from rota.reports import audit as audit_reports

router = APIRouter(route_class=BodyRoute)

NO_STORE = {"cache-control": "no-store"}  # a secret must not be cached


# orgs


@router.post("/orgs", status_code=201, tags=["orgs"], response_model=models.NewOrg)
async def create_org(request: Request, _: InstanceAdmin, body: models.OrgBody) -> Response:
    """Create an org `{name, slug}`; its `admin_key` is returned only once. Needs an instance admin key."""
    engine = engine_of(request)
    org_id, key = await engine.db.tx(accounts.create_org, body.name, body.slug, engine.clock.now())
    return answer({"id": org_id, "slug": body.slug, "name": body.name, "admin_key": key}, 201, NO_STORE)


@router.get("/orgs", tags=["orgs"], response_model=page_of(models.Org))
async def list_orgs(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the caller's org; all orgs with an instance admin key."""
    org_id = None if caller.instance_admin else caller.org_id
    return answer_page(await engine_of(request).db.read(reports.list_orgs, org_id, limit=limit, cursor=cursor))


@router.patch("/orgs/{slug}", tags=["orgs"], response_model=models.Org)
async def edit_org(request: Request, _: InstanceAdmin, slug: str, body: models.OrgChanges) -> Response:
    """Change `shell`, the permission for shell tasks, or `max_running`, the maximum concurrent runs of the org (null:
    no limit). Omitted fields are not changed. Needs an instance admin key."""
    engine = engine_of(request)
    changes: dict[str, object] = {} if body.shell is None else {"shell": body.shell}
    if "max_running" in body.sent():
        changes["max_running"] = body.max_running
    if changes:
        await engine.db.tx(orgs.edit_org, slug, changes)
        engine.wake.signal("tasks")
    return answer(await engine.db.read(reports.org, slug))


# users


@router.post("/users", status_code=201, tags=["users"], response_model=models.User)
async def create_user(request: Request, caller: Admin, body: models.UserBody) -> Response:
    """Create a user `{email, name, password, role}`. A role above viewer needs a key without scopes or expiry."""
    engine = engine_of(request)
    check_not_address(body.password, body.email)
    if body.role != Role.VIEWER.name.lower():
        caller.check_account_change(f"creating a user with the role {body.role}")
    hashed = await in_password_thread(accounts.hash_password, body.password)
    name = body.name or body.email
    now = engine.clock.now()
    user_id = await engine.db.tx(accounts.create_user, caller.org_id, body.email, name, hashed, body.role, now)
    user = await engine.db.read(reports.user, caller.org_id, user_id)
    return answer(user, 201, {"location": f"/api/v1/users/{user_id}"})


@router.get("/users", tags=["users"], response_model=page_of(models.User))
async def list_users(
    request: Request,
    caller: Admin,
    limit: Limit = 50,
    cursor: Cursor = None,
    email: str | None = None,
    role: str | None = None,
) -> Response:
    return answer_page(
        await engine_of(request).db.read(
            reports.list_users, caller.org_id, limit=limit, cursor=cursor, email=email, role=role
        )
    )


@router.get("/users/{user_id}", tags=["users"], response_model=models.User)
async def read_user(request: Request, caller: Admin, user_id: str) -> Response:
    return answer(await engine_of(request).db.read(reports.user, caller.org_id, user_id))


@router.patch("/users/{user_id}", tags=["users"], response_model=models.User)
async def edit_user(request: Request, caller: Admin, user_id: str, body: models.UserChanges) -> Response:
    """Change some of `{email, name, password, role, disabled, oidc_subject}`. A lower role also applies to the user's
    API keys. A disabled user cannot log in, their login sessions end and their API keys are refused.

    `oidc_subject` connects the user with a subject of the provider of ROTA_OIDC_ISSUER and removes their password, an
    empty one disconnects. All changes but that of `name` need a key without scopes or expiry.
    """
    engine = engine_of(request)
    changes, now = body.present(), engine.clock.now()
    if changes.keys() & {"email", "password", "role", "disabled", "oidc_subject"}:
        caller.check_account_change("changing a user's email, password, role, sign-in or whether they are disabled")
    if (disabled := changes.pop("disabled", None)) is not None:
        changes |= accounts.disabling(bool(disabled), now)
    if (subject := changes.get("oidc_subject")) is not None:
        changes |= oidc_identity(request, str(subject))
    if (password := changes.pop("password", None)) is not None:
        email = body.email or await engine.db.read(accounts.email_of, caller.org_id, user_id)
        check_not_address(password, email or "")
        changes["password_hash"] = await in_password_thread(accounts.hash_password, password)
    await engine.db.tx(accounts.edit_user, caller.org_id, user_id, changes, now)
    engine.signal("access")
    return answer(await engine.db.read(reports.user, caller.org_id, user_id))


@router.delete("/users/{user_id}", status_code=204, tags=["users"])
async def delete_user(request: Request, caller: Admin, user_id: str) -> Response:
    """Delete a user and revoke their API keys."""
    engine = engine_of(request)
    await engine.db.tx(accounts.delete_user, caller.org_id, user_id, engine.clock.now())
    engine.signal("access")
    return Response(status_code=204)


# keys


@router.post("/api-keys", status_code=201, tags=["api-keys"], response_model=models.NewKey)
async def create_key(request: Request, caller: Admin, body: models.KeyBody) -> Response:
    """Create a key `{name, role, scopes?, expires_at?, user_id?}` for the caller's user, or for the service account
    `user_id`; `key` is returned only once.

    Scopes restrict the role to resources (`schedules`, `runs:read`); `shell` adds shell tasks to an operator's key.
    A new key has at most the scopes of the key that creates it, and expires no later (403).
    """
    engine = engine_of(request)
    now = engine.clock.now()
    scopes = check_scopes(body.scopes or [], resources(request))
    if body.user_id not in (None, caller.user_id):
        account = await engine.db.read(reports.service_account, caller.org_id, body.user_id or "")
        scopes = account_scopes(scopes, account["scopes"])
    if body.expires_at is not None and body.expires_at <= now:
        raise Invalid("expires_at", body.expires_at.isoformat(), "is not in the future")
    caller.check_new_key(scopes, body.expires_at)
    key_id, text = await engine.db.tx(
        accounts.issue_key,
        caller.org_id,
        body.name,
        body.role,
        now,
        user_id=body.user_id or caller.user_id,
        scopes=scopes,
        expires_at=body.expires_at,
    )
    key = await engine.db.read(reports.api_key, caller.org_id, key_id)
    return answer({**key, "key": text}, 201, {**NO_STORE, "location": f"/api/v1/api-keys/{key_id}"})


@router.get("/api-keys", tags=["api-keys"], response_model=page_of(models.Key))
async def list_keys(
    request: Request, caller: Admin, limit: Limit = 50, cursor: Cursor = None, user_id: str | None = None
) -> Response:
    """List keys, including revoked and expired ones; only the first characters of each key are stored."""
    return answer_page(
        await engine_of(request).db.read(reports.list_keys, caller.org_id, limit=limit, cursor=cursor, user_id=user_id)
    )


@router.get("/api-keys/{key_id}", tags=["api-keys"], response_model=models.Key)
async def read_key(request: Request, caller: Admin, key_id: str) -> Response:
    return answer(await engine_of(request).db.read(reports.api_key, caller.org_id, key_id))


@router.delete("/api-keys/{key_id}", status_code=204, tags=["api-keys"])
async def revoke_key(request: Request, caller: Admin, key_id: str) -> Response:
    """Revoke a key. Only an instance admin can revoke an instance admin key."""
    engine = engine_of(request)
    now = engine.clock.now()
    await engine.db.tx(accounts.revoke_key, caller.org_id, key_id, now, instance_admin=caller.instance_admin)
    engine.signal("access")
    return Response(status_code=204)


# the dashboard


@router.post("/login-links", status_code=201, tags=["login-links"], response_model=models.LoginLink)
async def create_login_link(request: Request, caller: Viewer) -> Response:
    """Create a link that logs the caller in to the dashboard once, within 15 minutes; `url` is returned only once.

    The login session has the permissions of this key, for 14 days or until the key is revoked or expires.
    """
    caller.check(Role.VIEWER, "login-links", writes=True)
    if caller.is_service:
        raise Refused("service accounts cannot log in to the dashboard")
    engine = engine_of(request)
    now = engine.clock.now()
    link = await engine.db.tx(logins.make_link, caller.org_id, caller.user_id, caller.key_id, now)
    url = f"{base_url_of(request)}/login?token={link.token}"
    return answer({"url": url, "expires_at": link.expires_at}, 201, NO_STORE)


# audit


@router.get("/audit", tags=["audit"], response_model=page_of(models.Act))
async def list_audit(
    request: Request,
    caller: Admin,
    limit: Limit = 50,
    cursor: Cursor = None,
    action: str | None = None,
    resource: str | None = None,
    resource_id: str | None = None,
    user_id: str | None = None,
    key_id: str | None = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """List the audit log, newest first: who changed what."""
    return answer_page(
        await reports_of(request, caller).read(
            audit_reports.list_audit,
            caller.org_id,
            limit=limit,
            cursor=cursor,
            action=action,
            resource=resource,
            resource_id=resource_id,
            user_id=user_id,
            key_id=key_id,
            **time_span(since, until),
        )
    )


def oidc_identity(request: Request, subject: str) -> dict[str, object]:
    """Return the changes that connect a user with a subject of the provider, and end their password: whom the provider
    keeps out must not get in by another way. Raises Conflict without a provider."""
    settings: LoginSettings = request.app.state.login
    if not subject:
        return {"oidc_issuer": None, "oidc_subject": None}
    if settings.oidc is None:
        raise Conflict("this server has no provider to sign in by; set ROTA_OIDC_ISSUER")
    return {"oidc_issuer": settings.oidc.issuer, "oidc_subject": subject, "password_hash": None}


def account_scopes(scopes: list[str], limits: list[str]) -> list[str]:
    """Return the scopes of a key of a service account: by default those of the account. Raises Invalid for others."""
    if not scopes or not limits:
        return scopes or limits
    allowed = scopes_within(scopes, limits)
    for scope in scopes:
        if scope not in allowed:
            raise Invalid("scopes", scope, f"is not a scope of the service account, which has {', '.join(limits)}")
    return scopes


def check_scopes(scopes: list[str], known_resources: set[str]) -> list[str]:
    """Return the scopes, sorted, each once. Raises Invalid for an unknown one."""
    for scope in scopes:
        if not adds_to_role(scope) and scope.removesuffix(":read") not in known_resources:
            adding = ", ".join(sorted(ADDING_SCOPES))
            raise Invalid(
                "scopes", scope, f"is an unknown scope; use {adding}, approve:WHO, or a resource with or without :read"
            )
    return sorted(set(scopes))


def resources(request: Request) -> set[str]:
    return {path.split("/")[3] for path in request.app.openapi()["paths"] if path.startswith("/api/v1/")}
