"""Password rules, and the route to change the caller's password."""

from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from rota.access.password_thread import in_password_thread
from rota.access.store import accounts, logins
from rota.core import parse
from rota.core.errors import Conflict, Invalid, Refused
from rota.frame.http.auth import Role, Viewer, address_of
from rota.frame.http.contract import engine_of, read_body
from rota.frame.http.guessing import Bucket, FailedAttempts, network_of

PASSWORD_CHARACTERS = (8, 1000)
DIFFERENT_CHARACTERS = 3  # at least
COMMON_PASSWORDS = Path(__file__).parent / "common_passwords.txt"

router = APIRouter()


@router.post("/users/me/$password", status_code=204, tags=["users"])
async def change_own_password(request: Request, caller: Viewer) -> Response:
    """Change the caller's own password: `{current_password, new_password}`. Ends all login sessions of the user.

    Wrong current passwords are counted like those of a login.
    """
    caller.check(Role.VIEWER, "users", writes=True)
    caller.check_unnarrowed("changing a password")
    engine = engine_of(request)
    form = parse.Form(await read_body(request), frozenset({"current_password", "new_password"}))
    current = form.need("current_password", lambda value, field: parse.text(value, field, PASSWORD_CHARACTERS[1])) or ""
    new = form.need("new_password", read_password) or ""
    form.done()
    user = await engine.db.read(logins.account, caller.org_id, caller.user_id)
    if user is None or user.password_hash is None:
        raise Conflict("your user has no password; it logs in by keys and login links")
    now, failures = engine.clock.now(), request.app.state.failures
    assert isinstance(failures, FailedAttempts)
    bucket = Bucket(f"password change of {user.user_id} from {network_of(address_of(request))}")
    failures.count(now, bucket)  # before the check: concurrent attempts must count, too
    if not await in_password_thread(accounts.password_matches, user.password_hash, current):
        raise Refused("the current password is wrong")
    failures.uncount(now, bucket)
    email = await engine.db.read(accounts.email_of, caller.org_id, caller.user_id)
    check_not_address(new, email or "", "new_password")
    hashed = await in_password_thread(accounts.hash_password, new)

    def step(tx: Any) -> str:
        accounts.edit_user(tx, caller.org_id, caller.user_id, {"password_hash": hashed}, now)
        return caller.user_id

    await engine.db.tx(step)
    return Response(status_code=204)


def read_password(value: Any, field: str) -> str:
    """Raises Invalid for a password that is too short, too long, too simple or widely used, without naming it."""
    low, high = PASSWORD_CHARACTERS
    if not isinstance(value, str) or not low <= len(value) <= high:
        raise Invalid(field, "…", f"is not a text of {low} to {high} characters")
    if len(set(value.lower())) < DIFFERENT_CHARACTERS:
        raise Invalid(field, "…", f"has fewer than {DIFFERENT_CHARACTERS} different characters; choose another")
    if value.lower() in common_passwords():
        raise Invalid(field, "…", "is a common password; choose another")
    return parse.text(value, field, high)


def check_not_address(password: str, email: str, field: str = "password") -> None:
    """Raises Invalid for a password that is the user's e-mail address, or the part of it before the @."""
    if email and password.lower() in (email.lower(), email.lower().partition("@")[0]):
        raise Invalid(field, "…", "is the e-mail address of the user; choose another")


@cache
def common_passwords() -> frozenset[str]:
    lines = COMMON_PASSWORDS.read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("# "))
