"""Sign-in by an OpenID Connect provider.

`GET /login/oidc` sends the browser to the provider, which sends it back to `GET /login/oidc/callback`. A cookie holds
the secret of the attempt and the page to return to.
"""

import shlex
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import structlog
from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from rota.access.oidc.flow import SECRET, Attempt, ProviderUnavailable, SignInRefused, clean, identity_of
from rota.access.oidc.settings import OidcSettings
from rota.access.store import sign_ins
from rota.access.store.sign_ins import Identity, Refusal
from rota.access.web.login import Next, is_embedded, log_in, login_page, redirect_logged_in
from rota.core.errors import Invalid
from rota.db.dialect import Tx
from rota.engine import audit_log
from rota.frame.http.auth import address_of
from rota.frame.http.exposure import base_url_of, is_https
from rota.frame.http.guessing import Bucket, FailedAttempts, TooManyFailures, network_of
from rota.frame.web.pages import safe_redirect_path
from rota.frame.web.sessions import set_cookie

if TYPE_CHECKING:
    from rota.access.oidc.provider import Provider

START_PATH, CALLBACK_PATH = "/login/oidc", "/login/oidc/callback"
ATTEMPT_COOKIE = "rota_oidc"
ATTEMPT_LIFETIME = timedelta(minutes=10)
STARTS_PER_MINUTE = 300  # from one address, behind which a company may be
SIGN_INS_PER_MINUTE = 100  # that fail or are under way, from one address
MAX_RETURN_CHARACTERS = 1000  # of the page to return to
MAX_CODE_CHARACTERS = 4000
EXTRA = "signing in by a provider needs Authlib: `pip install 'rota-scheduler[oidc]'`"
STALE = "this sign-in has expired, was completed already, or was started in another browser; start again"

router = APIRouter()
log = structlog.get_logger("rota.oidc")


def make_provider(settings: OidcSettings | None) -> "Provider | None":
    """Return the client of the provider. Raises Invalid if the extra `oidc` is not installed."""
    if settings is None:
        return None
    try:
        from rota.access.oidc.provider import Provider  # an optional library
    except ModuleNotFoundError as error:
        raise Invalid("oidc_issuer", settings.issuer, f"cannot be used: {EXTRA}") from error
    return Provider(settings)


@router.get(START_PATH)
async def start(request: Request, then: Next = "") -> Response:
    """Send the browser to the provider. Another site cannot start a sign-in: the login page is shown instead."""
    provider, now = provider_of(request), request.app.state.engine.clock.now()
    if is_embedded(request):
        return await login_page(request, then)
    bucket = Bucket(f"sign-in started from {network_of(address_of(request))}", STARTS_PER_MINUTE)
    try:
        failures_of(request).count(now, bucket)
        attempt = Attempt.begin()
        url = await provider.authorization_url(attempt, redirect_uri_of(request), now)
    except (ProviderUnavailable, TooManyFailures) as error:
        return await refuse(request, then, error)
    response = RedirectResponse(url, 303)
    back = safe_redirect_path(then)
    value = f"{attempt.secret}.{quote(back, safe='') if len(back) <= MAX_RETURN_CHARACTERS else ''}"
    set_cookie(request, response, cookie_name(request), value, ATTEMPT_LIFETIME)
    return response


@router.get(CALLBACK_PATH)
async def callback(
    request: Request, state: str = "", code: str = "", iss: str | None = None, error: str | None = None
) -> Response:
    """Complete the sign-in that this browser has started, and log in."""
    now, failures = request.app.state.engine.clock.now(), failures_of(request)
    bucket = Bucket(f"sign-in from {network_of(address_of(request))}", SIGN_INS_PER_MINUTE)
    secret, _, back = request.cookies.get(cookie_name(request), "").partition(".")
    then = unquote(back)
    try:
        failures.count(now, bucket)  # before the check: concurrent attempts must count, too
        token = await complete(request, secret, state, code, iss, error, now)
    except (ProviderUnavailable, SignInRefused, TooManyFailures) as refused:
        response = await refuse(request, then, refused)
    else:
        failures.uncount(now, bucket)
        response = redirect_logged_in(request, then, token)
    response.delete_cookie(cookie_name(request), secure=is_https(request), httponly=True, samesite="lax")
    return response


@router.get("/login/oidc/logout")
async def end_provider_session(request: Request) -> Response:
    """Send the browser to the page of the provider that ends the session there."""
    provider, now = provider_of(request), request.app.state.engine.clock.now()
    if is_embedded(request):
        return await login_page(request, "")
    try:
        url = await provider.logout_url(f"{base_url_of(request)}/login", now)
    except ProviderUnavailable as error:
        return await refuse(request, "", error)
    return RedirectResponse(url or "/login", 303)


async def complete(
    request: Request, secret: str, state: str, code: str, iss: str | None, error: str | None, now: datetime
) -> str:
    """Check the answer of the provider against the attempt of this browser and begin a login session; returns the token
    for its cookie. Raises SignInRefused, ProviderUnavailable."""
    provider, attempt = provider_of(request), Attempt(secret)
    if not SECRET.fullmatch(secret) or not attempt.has_state(state):
        raise SignInRefused(STALE)
    await provider.check_issuer(iss, now)
    if error is not None:
        log.warning("sign-in refused by the provider", error=clean(error), address=address_of(request))
        canceled = "the sign-in was canceled, or the provider does not let you use Rota"
        raise SignInRefused(canceled if error == "access_denied" else f"the provider reports: {clean(error)[:60]}")
    if not 0 < len(code) <= MAX_CODE_CHARACTERS or not code.isprintable():
        raise SignInRefused(STALE)
    claims = await provider.claims(code, attempt, redirect_uri_of(request), now)
    identity = identity_of(claims, provider.settings, attempt)

    def step(tx: Tx) -> tuple[str | None, Refusal | None]:
        outcome = sign_ins.sign_in(tx, provider.settings.org, identity, now, audit)
        return None if outcome.user is None else log_in(tx, request, outcome.user, "oidc"), outcome.refusal

    def audit(tx: Tx, org_id: str, user_id: str, verb: str) -> None:
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        address, because = address_of(request), f"role {identity.role} by {provider.settings.title}"
        act = audit_log.AuditEntry(
            org_id, user_id, "users", verb, user_id, None, address, request_id, because, admin=False
        )
        audit_log.write(tx, act, None, None, now)

    token, refusal = await request.app.state.db.tx(step)
    request.app.state.engine.signal("access")  # the role may have changed: keys are read again
    if token is None:
        log.warning("sign-in refused", reason=str(refusal), subject=identity.subject, address=address_of(request))
        raise SignInRefused(words_of(refusal, identity, provider.settings))
    return str(token)


def words_of(refusal: Refusal | None, identity: Identity, settings: OidcSettings) -> str:
    """Return the message of a refused sign-in, and what the person or an admin can do."""
    match refusal:
        case Refusal.NO_ROLE:
            return (
                f"{settings.title} knows you as {identity.name}, but none of your groups has a role in Rota; "
                "ask your administrator to add you to one"
            )
        case Refusal.DISABLED:
            return "your account in Rota is disabled; an admin can enable it"
        case Refusal.ADDRESS_TAKEN:
            command = ["rota", "user", "edit", identity.email or "", "--oidc-subject", identity.subject]
            return (
                f"a user with the address {identity.email} exists and is not connected to {settings.title}; an admin "
                f"connects it with: {shlex.join(command)}"
            )
        case Refusal.NO_ORG:
            return f"the org {settings.org} of ROTA_OIDC_ORG does not exist"
        case Refusal.REPLAYED | None:
            return STALE


async def refuse(request: Request, then: str, error: ProviderUnavailable | SignInRefused | TooManyFailures) -> Response:
    """Show the login page with the reason."""
    if isinstance(error, TooManyFailures):
        response = await login_page(request, then, error.message, 429)
        response.headers["retry-after"] = str(error.seconds)
        return response
    return await login_page(request, then, error.message, 503 if isinstance(error, ProviderUnavailable) else 403)


def provider_of(request: Request) -> "Provider":
    """Return the provider. Raises HTTPException 404 if none is configured."""
    provider: Provider | None = request.app.state.provider
    if provider is None:
        raise HTTPException(404, "no provider is configured; see ROTA_OIDC_ISSUER")
    return provider


def failures_of(request: Request) -> FailedAttempts:
    failures: FailedAttempts = request.app.state.failures
    return failures


def redirect_uri_of(request: Request) -> str:
    return f"{base_url_of(request)}{CALLBACK_PATH}"


def cookie_name(request: Request) -> str:
    """Return the name of the cookie. With the prefix `__Host-` a browser accepts it only from this host: sites of the
    same domain cannot plant an attempt of theirs."""
    return f"__Host-{ATTEMPT_COOKIE}" if is_https(request) else ATTEMPT_COOKIE
