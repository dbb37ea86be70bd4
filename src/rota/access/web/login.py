"""Logging in, by a link that works once or by a password, and out."""

import contextlib
import secrets
from typing import Annotated

import structlog
from fastapi import APIRouter, BackgroundTasks, Query, Request, Response
from starlette.responses import RedirectResponse

from rota.access.password_thread import in_password_thread
from rota.access.store import accounts, logins
from rota.access.store.logins import SESSION_LIFE, Account
from rota.core.errors import Refused, short_repr
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import audit_log
from rota.frame.http.auth import SessionUser, address_of, guesser
from rota.frame.http.exposure import is_local
from rota.frame.http.guessing import (
    PASSWORDS_PER_ADDRESS,
    PASSWORDS_PER_PERSON,
    Bucket,
    Failures,
    TooManyFailures,
    network_of,
)
from rota.frame.web.pages import page, safe_redirect_path
from rota.frame.web.sessions import COOKIE, LOGIN_COOKIE, csrf_token, read_form, set_cookie, signed_in

EMAIL_LIMIT = 320
AUDITED_FAILURES_PER_MINUTE = 5  # wrong passwords of one person that the audit log has

router = APIRouter()
log = structlog.get_logger("rota.web")

Next = Annotated[str, Query(alias="next")]


@router.get("/login")
async def login(request: Request, token: str | None = None, then: Next = "") -> Response:
    """The form. With the token of a link: straight in for the server's own machine, else a page with a button."""
    if token is None:
        return await login_page(request, then)
    db, now = request.app.state.db, request.app.state.engine.clock.now()
    user = await db.read(logins.user_of_link, token, now)  # a guess writes nothing
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
        known = logins.use_link(tx, token, now)
        return None if known is None else log_in(tx, request, *known)

    good = await request.app.state.db.read(logins.user_of_link, token, now)  # a guess writes nothing
    cookie = None if good is None else await request.app.state.db.tx(step)
    return await refuse_link(request, then) if cookie is None else enter(request, then, cookie)


async def refuse_link(request: Request, then: str) -> Response:
    """Raises TooManyFailures where links are guessed."""
    failures: Failures = request.app.state.failures
    failures.count(request.app.state.engine.clock.now(), guesser(request, "login link"))
    log.warning("a login link was refused", address=address_of(request))
    return await login_page(request, then, "This link has been used, or is older than 15 minutes.", 403)


async def logged_in_user(request: Request) -> SessionUser | None:
    """The user of the session that this browser has already."""
    try:
        await signed_in(request, BackgroundTasks())
    except Refused:
        return None
    user: SessionUser = request.state.session.user
    del request.state.session  # the page to come shows no navigation
    return user


def is_embedded(request: Request) -> bool:
    """Whether another site, or the browser by itself, follows a link, and not a person."""
    site = request.headers.get("sec-fetch-site", "none")
    purpose = " ".join(request.headers.get(name, "") for name in ("sec-purpose", "purpose", "x-moz"))
    return site in ("cross-site", "same-site") or "prefetch" in purpose.lower()


@router.post("/login")
async def login_by_password(request: Request) -> Response:
    form = await read_form(request)
    if "token" in form:
        return await log_in_by_link(request, form["token"], form.get("next", ""))
    slug, password, then = form.get("org", "").strip(), form.get("password", ""), form.get("next", "")
    email = form.get("email", "").strip().lower()[:EMAIL_LIMIT]
    db: Database = request.app.state.db
    now, network = request.app.state.engine.clock.now(), network_of(address_of(request))
    person = f"{slug[:60]} {email}"
    buckets = (
        Bucket(f"password of {person} from {network}"),
        Bucket(f"password from {network}", PASSWORDS_PER_ADDRESS),
        Bucket(f"password of {person}", PASSWORDS_PER_PERSON),
    )
    failures: Failures = request.app.state.failures
    try:
        failures.check(now, *buckets)
    except TooManyFailures as error:
        answer = await login_page(request, then, error.message, 429)
        answer.headers["retry-after"] = str(error.seconds)
        return answer
    failures.add(now, *buckets)  # before the password is tried: else many at once would all be tried
    found = await db.read(logins.account_by_email, slug, email)
    hashed = None if found is None else found.password_hash
    fits = await in_password_thread(accounts.password_fits, hashed, password)
    token = await db.tx(log_in_with_password, request, found) if fits and found is not None else None
    if token is None:
        log.warning("a login failed", email=short_repr(email), org=short_repr(slug), address=address_of(request))
        if found is not None:
            await record_failure(request, found)
        return await login_page(request, then, "The address or the password is not right.", 403)
    failures.forgive(now, *buckets)
    return enter(request, then, token)


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session at the server; the cookie is worth nothing afterwards."""
    now = request.app.state.engine.clock.now()

    def step(tx: Tx) -> None:
        ended = logins.log_out(tx, request.cookies.get(COOKIE, ""))
        if ended is not None:
            org_id, user_id, session_id, key_id = ended
            audit_log.write(tx, act_of(request, org_id, user_id, "delete", session_id, key_id), None, None, now)

    await request.app.state.db.tx(step)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


def log_in_with_password(tx: Tx, request: Request, user: Account) -> str | None:
    """None if the password was changed since it was compared."""
    current = logins.account(tx, user.org_id, user.user_id)
    same = current is not None and current.password_hash == user.password_hash
    return log_in(tx, request, user, None) if same else None


def log_in(tx: Tx, request: Request, user: Account, key_id: str | None) -> str:
    """Begin a session and record it in the audit log; returns the token for its cookie."""
    now, user_agent = request.app.state.engine.clock.now(), request.headers.get("user-agent", "")
    session_id, token = logins.start_session(tx, user, key_id, address_of(request), storable(user_agent), now)
    audit_log.write(tx, act_of(request, user.org_id, user.user_id, "create", session_id, key_id), None, None, now)
    return token


async def record_failure(request: Request, user: Account) -> None:
    """Record a wrong password in the audit log; of many a minute for one person only the first ones."""
    failures: Failures = request.app.state.failures
    now = request.app.state.engine.clock.now()
    with contextlib.suppress(TooManyFailures):
        failures.count(now, Bucket(f"audit of {user.user_id}", AUDITED_FAILURES_PER_MINUTE))
        act = act_of(request, user.org_id, user.user_id, "fail", user.user_id, None)
        await request.app.state.db.tx(audit_log.write, act, None, None, now)


def link_page(request: Request, token: str, then: str, user: Account, replaced: SessionUser | None) -> Response:
    """A page whose button uses a login link: a preview of the link does not, and nobody is logged in unawares."""
    cookie = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(16)
    response = page(
        request, "enter.html", token=token, then=safe_redirect_path(then), link_user=user, replaced=replaced,
        csrf_token=csrf_token(cookie),
    )  # fmt: skip
    set_cookie(request, response, LOGIN_COOKIE, cookie)
    return response


async def login_page(request: Request, then: str, message: str | None = None, status: int = 200) -> Response:
    form = getattr(request.state, "form", {})
    cookie = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(16)
    response = page(
        request, "login.html", status, message=message, then=safe_redirect_path(then), email=form.get("email", ""),
        org=form.get("org", ""), several_orgs=await request.app.state.db.read(logins.several_orgs),
        csrf_token=csrf_token(cookie),
    )  # fmt: skip
    set_cookie(request, response, LOGIN_COOKIE, cookie)
    return response


def enter(request: Request, then: str, token: str) -> Response:
    response = RedirectResponse(safe_redirect_path(then), 303)
    set_cookie(request, response, COOKIE, token, SESSION_LIFE)
    return response


def act_of(
    request: Request, org_id: str, user_id: str, verb: str, session_id: str, key_id: str | None
) -> audit_log.AuditEntry:
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return audit_log.AuditEntry(org_id, user_id, "sessions", verb, session_id, key_id, address_of(request), request_id)


def storable(text: str) -> str:
    """A header's text without control characters, which no page may show and PostgreSQL cannot store."""
    return "".join(character if character.isprintable() else "?" for character in text)
