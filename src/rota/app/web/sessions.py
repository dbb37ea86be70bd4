"""Who is logged in. Nothing is stored: a cookie names the user, their org, the key it was made with and its span.

It is signed over these and the user's password hash, so that it ends with the password, and with the user or the key.
Each form carries a token that follows from the cookie: only a page of ours can have shown it to this browser.
"""

import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import BackgroundTasks, Depends, Request, Response
from starlette.exceptions import HTTPException

from rota.app.auth import Caller, Role, Unauthenticated, at_least, caller_of, note_caller
from rota.app.http import read_bytes
from rota.core.errors import Invalid, Refused
from rota.store import accounts, sessions
from rota.store.database import Database
from rota.store.dialect import Tx
from rota.store.sessions import Account

COOKIE = "rota_session"
LOGIN_COOKIE = "rota_login"  # what the login form's token follows from, before there is a session
LIFE = timedelta(days=14)
SHAPE = re.compile(r"(([0-9A-Z]{26})\.([0-9A-Z]{26})\.([0-9A-Z]{26}|-)\.[0-9]{10}\.([0-9]{10}))\.([0-9a-f]{64})")
FIELDS = 1000  # of a form

NOT_LOGGED_IN = "nobody is logged in here"


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who is logged in, as pages show them."""

    user: Account
    csrf_token: str
    role: Role


def start(request: Request, response: Response, secret: bytes, user: Account, key_id: str | None) -> None:
    """Log somebody in with this answer."""
    now: datetime = request.app.state.engine.clock.now()
    span = f"{int(now.timestamp())}.{int((now + LIFE).timestamp())}"
    text = f"{user.user_id}.{user.org_id}.{key_id or '-'}.{span}"
    set_cookie(request, response, COOKIE, f"{text}.{signature(secret, text, user)}", LIFE)


async def signed_in(request: Request, later: BackgroundTasks) -> Caller:
    """The caller behind a session, who is the same to the rest of Rota as one with a key."""
    found = SHAPE.fullmatch(request.cookies.get(COOKIE, ""))
    if found is None:
        raise Unauthenticated(NOT_LOGGED_IN)
    text, user_id, org_id, key_id, expires, given = found.groups()
    now: datetime = request.app.state.engine.clock.now()

    def look(tx: Tx) -> tuple[bytes | None, Account | None, accounts.Key | None]:
        return sessions.signing_key(tx), sessions.account(tx, org_id, user_id), accounts.key_by_id(tx, key_id)

    db: Database = request.app.state.db
    secret, user, key = await db.read(look)
    if secret is None or user is None or not hmac.compare_digest(given, signature(secret, text, user)):
        raise Unauthenticated(NOT_LOGGED_IN)
    if int(expires) <= now.timestamp() or (key is None and key_id != "-"):
        raise Unauthenticated(NOT_LOGGED_IN)
    role = Role[user.role.upper()]
    caller = caller_of(key, now) if key else Caller(org_id, user_id, None, role, frozenset(), instance_admin=False)
    request.state.session = Session(user, csrf_token(secret, found[0]), caller.role)
    await note_caller(request, later, caller)
    return caller


SignedIn = Annotated[Caller, Depends(signed_in)]  # where the API judges what they may do
Viewer = Annotated[Caller, Depends(at_least(Role.VIEWER, signed_in))]
Admin = Annotated[Caller, Depends(at_least(Role.ADMIN, signed_in))]


# forms


async def check_csrf(request: Request) -> None:
    """Before every route: what changes something must come from a form of ours."""
    if request.method in ("GET", "HEAD"):
        return
    cookie = request.cookies.get(LOGIN_COOKIE if request.url.path == "/login" else COOKIE, "")
    if not cookie and request.url.path != "/login":
        raise Unauthenticated(NOT_LOGGED_IN)
    given = (await read_form(request)).get("csrf_token", "")
    secret = await secret_of(request)
    if not cookie or not hmac.compare_digest(given.encode(), csrf_token(secret, cookie).encode()):
        raise Refused("this form is too old, or did not come from here; go back, load the page anew and try again")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, read once per request."""
    if not hasattr(request.state, "form"):
        raw = await read_bytes(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if raw and kind != "application/x-www-form-urlencoded":
            raise HTTPException(415, f"the body is {kind or 'of no type'}; send a form")
        try:
            fields = dict(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=FIELDS))
        except ValueError as error:
            raise Invalid("form", "…", f"cannot be read: {error}") from error
        for name, value in fields.items():
            if "\0" in value:
                raise Invalid(name, "…", "has a NUL character")
        request.state.form = fields
    form: dict[str, str] = request.state.form
    return form


def csrf_token(secret: bytes, cookie: str) -> str:
    return hmac.digest(secret, f"csrf {cookie}".encode(), "sha256").hex()


def signature(secret: bytes, text: str, user: Account) -> str:
    return hmac.digest(secret, f"session {text} {user.password_hash or ''}".encode(), "sha256").hex()


async def secret_of(request: Request) -> bytes:
    """The key that signs, made when it is first needed."""
    db: Database = request.app.state.db
    found = await db.read(sessions.signing_key)
    return await db.tx(sessions.make_signing_key, request.app.state.engine.clock.now()) if found is None else found


def set_cookie(request: Request, response: Response, name: str, value: str, life: timedelta | None = None) -> None:
    seconds, secure = None if life is None else int(life.total_seconds()), request.url.scheme == "https"
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="lax", secure=secure)
