"""Logging in, by a link that works once or by a password, and out."""

import asyncio
import re
import secrets
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from rota.app.auth import Failures, TooManyFailures, address_of
from rota.app.web.pages import page
from rota.app.web.sessions import COOKIE, LOGIN_COOKIE, csrf_token, read_form, secret_of, set_cookie, start
from rota.core.errors import shown
from rota.engine import trail
from rota.store import accounts, sessions
from rota.store.database import Database
from rota.store.dialect import Tx
from rota.store.sessions import Account

PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")  # of this site: browsers read `/\x` and `/<tab>/x` as `//x`
EMAIL_LIMIT = 320

router = APIRouter()
log = structlog.get_logger("rota.web")

Next = Annotated[str, Query(alias="next")]


@router.get("/login")
async def login(request: Request, token: str | None = None, then: Next = "") -> Response:
    """The form; or, with the token of a link, straight in."""
    if token is None:
        return await login_page(request, then)
    db, now, who = request.app.state.db, request.app.state.engine.clock.now(), guesser(request)
    failures: Failures = request.app.state.failures
    failures.check(now, *who)

    def step(tx: Tx) -> tuple[Account, str | None] | None:
        found = sessions.use_link(tx, token, now)
        if found is not None:
            trail.write(tx, act_of_login(request, *found), None, None, now)
        return found

    found = await db.tx(step)
    if found is None:
        failures.add(now, *who)
        log.warning("a login link was refused", address=address_of(request))
        return await login_page(request, then, "This link has been used, or is older than 15 minutes.", 403)
    return await enter(request, then, *found)


@router.post("/login")
async def login_by_password(request: Request) -> Response:
    form = await read_form(request)
    slug, password, then = form.get("org", "").strip(), form.get("password", ""), form.get("next", "")
    email = form.get("email", "").strip().lower()[:EMAIL_LIMIT]
    db: Database = request.app.state.db
    now, who = request.app.state.engine.clock.now(), guesser(request, f"login {slug[:60]} {email}")
    failures: Failures = request.app.state.failures
    try:
        failures.check(now, *who)
    except TooManyFailures as error:
        answer = await login_page(request, then, error.message, 429)
        answer.headers["retry-after"] = str(error.seconds)
        return answer
    failures.add(now, *who)  # before the password is tried: else many at once would all be tried
    found = await db.read(sessions.account_by_email, slug, email)
    hashed = None if found is None else found.password_hash
    if not await asyncio.to_thread(accounts.password_fits, hashed, password) or found is None:
        log.warning("a login failed", email=shown(email), org=shown(slug), address=address_of(request))
        return await login_page(request, then, "The address or the password is not right.", 403)
    failures.forgive(now, *who)
    await db.tx(trail.write, act_of_login(request, found), None, None, now)
    return await enter(request, then, found)


@router.post("/logout")
async def logout() -> Response:
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


async def login_page(request: Request, then: str, message: str | None = None, status: int = 200) -> Response:
    form = getattr(request.state, "form", {})
    cookie = request.cookies.get(LOGIN_COOKIE) or secrets.token_urlsafe(16)
    response = page(
        request, "login.html", status, message=message, then=path_of_ours(then), email=form.get("email", ""),
        org=form.get("org", ""), several_orgs=await request.app.state.db.read(sessions.several_orgs),
        csrf_token=csrf_token(await secret_of(request), cookie),
    )  # fmt: skip
    set_cookie(request, response, LOGIN_COOKIE, cookie)
    return response


async def enter(request: Request, then: str, user: Account, key_id: str | None = None) -> Response:
    response = RedirectResponse(path_of_ours(then), 303)
    start(request, response, await secret_of(request), user, key_id)
    return response


def path_of_ours(text: str) -> str:
    """Where to go after the login: nowhere but to a page of this site."""
    return text if PATH.fullmatch(text) else "/"


def guesser(request: Request, *more: str) -> tuple[str, ...]:
    return (f"address {address_of(request)}", *more)


def act_of_login(request: Request, user: Account, key_id: str | None = None) -> trail.Act:
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    given = (user.org_id, user.user_id, "sessions", "create", user.user_id, key_id, address_of(request))
    return trail.Act(*given, request_id)
