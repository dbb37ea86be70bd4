"""Login by a single-use link or by a password, and logout. Sign-in by a provider is in `oidc`."""

import contextlib
import secrets
from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, BackgroundTasks, Query, Request, Response
from starlette.responses import RedirectResponse

from rota.access.login_settings import LoginSettings
from rota.access.oidc.flow import ProviderUnavailable
from rota.access.password_thread import in_password_thread
from rota.access.store import accounts, logins
from rota.access.store.logins import Browser, LoginMethod, UserAccount
from rota.core.errors import Refused, short_repr
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import audit_log
from rota.frame.http.auth import SessionUser, address_of, guess_bucket
from rota.frame.http.exposure import base_url_of, is_local
from rota.frame.http.guessing import (
    PASSWORDS_PER_ADDRESS,
    PASSWORDS_PER_PERSON,
    Bucket,
    FailedAttempts,
    TooManyFailures,
    network_of,
)
from rota.frame.web.pages import page, safe_redirect_path
from rota.frame.web.sessions import LOGIN_COOKIE, SESSION_COOKIE, csrf_token, read_form, set_cookie, signed_in

EMAIL_LIMIT = 320
AUDITED_FAILURES_PER_MINUTE = 5  # wrong passwords per user that the audit log records

router = APIRouter()
log = structlog.get_logger("rota.web")

Next = Annotated[str, Query(alias="next")]


@router.get("/login")
async def login(
    request: Request, token: str | None = None, then: Next = "", signed_out: Literal["provider"] | None = None
) -> Response:
    """Show the login form. With the token of a link: log in directly from loopback, else show a page with a button."""
    if token is None:
        return await login_page(request, then, signed_out=signed_out is not None)
    db, now = request.app.state.db, request.app.state.engine.clock.now()
    user = await db.read(logins.user_of_link, token, now)  # read only: an invalid token causes no write
    if user is None:
        return await refuse_link(request, then)
    replaced = await logged_in_user(request)
    if replaced is not None and (replaced.org_id, replaced.user_id) == (user.org_id, user.user_id):
        replaced = None
    if replaced is None and is_local(request) and not is_embedded(request):
        return await log_in_by_link(request, token, then)
    return link_page(request, token, then, user, replaced)


async def log_in_by_link(request: Request, token: str, then: str) -> Response:
    now = request.app.state.engine.clock.now()

    def step(tx: Tx) -> str | None:
        user_and_key = logins.use_link(tx, token, now)
        return None if user_and_key is None else log_in(tx, request, user_and_key[0], "link", user_and_key[1])

    user = await request.app.state.db.read(
        logins.user_of_link, token, now
    )  # read only: an invalid token causes no write
    cookie = None if user is None else await request.app.state.db.tx(step)
    return await refuse_link(request, then) if cookie is None else redirect_logged_in(request, then, cookie)


async def refuse_link(request: Request, then: str) -> Response:
    """Show the login form for an invalid link. Raises TooManyFailures after too many of them."""
    failures: FailedAttempts = request.app.state.failures
    failures.count(request.app.state.engine.clock.now(), guess_bucket(request, "login link"))
    log.warning("login link refused", address=address_of(request))
    return await login_page(request, then, "This link was already used, or is older than 15 minutes.", 403)


async def logged_in_user(request: Request) -> SessionUser | None:
    """Return the user of the browser's current session, if any."""
    try:
        await signed_in(request, BackgroundTasks())
    except Refused:
        return None
    user: SessionUser = request.state.session.user
    del request.state.session  # the link page has no navigation
    return user


def is_embedded(request: Request) -> bool:
    """Return whether another site embeds the link, or the browser prefetches it."""
    site = request.headers.get("sec-fetch-site", "none")
    purpose = " ".join(request.headers.get(name, "") for name in ("sec-purpose", "purpose", "x-moz"))
    return site in ("cross-site", "same-site") or "prefetch" in purpose.lower()


@router.post("/login")
async def login_by_password(request: Request) -> Response:
    form = await read_form(request)
    if "token" in form:
        return await log_in_by_link(request, form["token"], form.get("next", ""))
    slug, password, then = form.get("org", "").strip(), form.get("password", ""), form.get("next", "")
    if not login_settings(request).passwords:
        return await login_page(request, then, "Logging in with a password is switched off.", 403)
    email = form.get("email", "").strip().lower()[:EMAIL_LIMIT]
    db: Database = request.app.state.db
    now, network = request.app.state.engine.clock.now(), network_of(address_of(request))
    person = f"{slug[:60]} {email}"
    buckets = (
        Bucket(f"password of {person} from {network}"),
        Bucket(f"password from {network}", PASSWORDS_PER_ADDRESS),
        Bucket(f"password of {person}", PASSWORDS_PER_PERSON),
    )
    failures: FailedAttempts = request.app.state.failures
    try:
        failures.check(now, *buckets)
    except TooManyFailures as error:
        answer = await login_page(request, then, error.message, 429)
        answer.headers["retry-after"] = str(error.seconds)
        return answer
    failures.add(now, *buckets)  # before the check: concurrent attempts must count, too
    user = await db.read(logins.account_by_email, slug, email)
    hashed = None if user is None else user.password_hash
    matches = await in_password_thread(accounts.password_matches, hashed, password)
    token = await db.tx(log_in_with_password, request, user) if matches and user is not None else None
    if token is None:
        log.warning("login failed", email=short_repr(email), org=short_repr(slug), address=address_of(request))
        if user is not None:
            await record_failure(request, user)
        return await login_page(request, then, "Wrong e-mail address or password.", 403)
    failures.uncount(now, *buckets)
    return redirect_logged_in(request, then, token)


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session on the server; the cookie is invalid afterwards. A person who signed in by the provider gets a
    page that offers to end the session there, too."""
    now, provider = request.app.state.engine.clock.now(), request.app.state.provider
    ended = await request.app.state.db.tx(end_session_of, request)
    at_provider = None
    if ended is not None and ended.method == "oidc" and provider is not None:
        with contextlib.suppress(ProviderUnavailable):
            at_provider = await provider.logout_url(base_url_of(request), now)
    response = RedirectResponse("/login" if at_provider is None else "/login?signed_out=provider", 303)
    response.delete_cookie(SESSION_COOKIE)
    return response


def end_session_of(tx: Tx, request: Request) -> logins.EndedSession | None:
    """End the session of the browser, if any, and record it in the audit log; returns it."""
    now = request.app.state.engine.clock.now()
    ended = logins.log_out(tx, request.cookies.get(SESSION_COOKIE, ""))
    if ended is not None:
        act = audit_entry_of(request, ended.org_id, ended.user_id, "delete", ended.id, ended.key_id)
        audit_log.write(tx, act, None, None, now)
    return ended


def log_in_with_password(tx: Tx, request: Request, user: UserAccount) -> str | None:
    """Log in; None if the password was changed since it was verified."""
    current = logins.account(tx, user.org_id, user.user_id)
    same = current is not None and current.password_hash == user.password_hash
    return log_in(tx, request, user, "password") if same else None


def log_in(tx: Tx, request: Request, user: UserAccount, method: LoginMethod, key_id: str | None = None) -> str:
    """Begin a session, end the browser's earlier one, and record both in the audit log; returns the token for the
    cookie."""
    end_session_of(tx, request)
    now, user_agent = request.app.state.engine.clock.now(), request.headers.get("user-agent", "")
    browser, limits = Browser(address_of(request), printable(user_agent)), login_settings(request).session_limits
    session_id, token = logins.start_session(tx, user, key_id, method, browser, now, limits)
    audit_log.write(
        tx, audit_entry_of(request, user.org_id, user.user_id, "create", session_id, key_id), None, None, now
    )
    return token


async def record_failure(request: Request, user: UserAccount) -> None:
    """Record a wrong password in the audit log, at most AUDITED_FAILURES_PER_MINUTE per user."""
    failures: FailedAttempts = request.app.state.failures
    now = request.app.state.engine.clock.now()
    with contextlib.suppress(TooManyFailures):
        failures.count(now, Bucket(f"audit of {user.user_id}", AUDITED_FAILURES_PER_MINUTE))
        act = audit_entry_of(request, user.org_id, user.user_id, "fail", user.user_id, None)
        await request.app.state.db.tx(audit_log.write, act, None, None, now)


def link_page(request: Request, token: str, then: str, user: UserAccount, replaced: SessionUser | None) -> Response:
    """Show a page whose button uses a login link: link previews and embedded requests do not log anyone in."""
    cookie = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(16)
    response = page(
        request,
        "enter.html",
        token=token,
        then=safe_redirect_path(then),
        link_user=user,
        replaced=replaced,
        csrf_token=csrf_token(cookie),
    )
    set_cookie(request, response, LOGIN_COOKIE, cookie)
    return response


async def login_page(
    request: Request, then: str, message: str | None = None, status: int = 200, *, signed_out: bool = False
) -> Response:
    """Show the ways to log in; with `signed_out`, also the way to end the session at the provider."""
    form, settings = getattr(request.state, "form", {}), login_settings(request)
    cookie = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(16)
    response = page(
        request,
        "login.html",
        status,
        message=message,
        then=safe_redirect_path(then),
        email=form.get("email", ""),
        org=form.get("org", ""),
        several_orgs=await request.app.state.db.read(logins.several_orgs),
        passwords=settings.passwords,
        provider=settings.oidc.title if settings.oidc else None,
        signed_out=signed_out and settings.oidc is not None,
        csrf_token=csrf_token(cookie),
    )
    set_cookie(request, response, LOGIN_COOKIE, cookie)
    return response


def redirect_logged_in(request: Request, then: str, token: str) -> Response:
    response = RedirectResponse(safe_redirect_path(then), 303)
    set_cookie(request, response, SESSION_COOKIE, token, login_settings(request).session_limits.lifetime)
    return response


def login_settings(request: Request) -> LoginSettings:
    settings: LoginSettings = request.app.state.login
    return settings


def audit_entry_of(
    request: Request, org_id: str, user_id: str, verb: str, session_id: str, key_id: str | None
) -> audit_log.AuditEntry:
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return audit_log.AuditEntry(org_id, user_id, "sessions", verb, session_id, key_id, address_of(request), request_id)


def printable(text: str) -> str:
    """Return text with control characters replaced: PostgreSQL cannot store NUL, pages must not show the others."""
    return "".join(character if character.isprintable() else "?" for character in text)
