"""Who calls, and what they may do. `Authorization: Bearer …` or `X-API-Key: …`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from fastapi import Depends, Request

from rota.core.errors import Refused
from rota.store import accounts
from rota.store.database import Database


class Role(IntEnum):
    """Each may do what those before it may."""

    VIEWER = 1  # reads
    OPERATOR = 2  # runs and edits
    ADMIN = 3  # everything


@dataclass(frozen=True, slots=True)
class Caller:
    org_id: str
    role: Role
    key_id: str


class Unauthenticated(Refused):
    """Nobody we know: 401, where a known caller who may not gets 403."""

    code = "unauthenticated"


async def authenticate(request: Request) -> Caller:
    """The caller behind a request; FastAPI asks once per request."""
    text = key_text(request)
    if text is None:
        raise Unauthenticated("this needs an API key: send `Authorization: Bearer rota_…` or `X-API-Key: rota_…`")
    db: Database = request.app.state.db
    key = await db.read(accounts.find_key, text) if text.isprintable() else None
    if key is None:
        raise Unauthenticated("this API key is not known here; it may have been revoked, or belong to another server")
    return Caller(key.org_id, Role[key.role.upper()], key.id)


def at_least(role: Role) -> Callable[[Caller], Awaitable[Caller]]:
    """The one place that compares roles."""

    async def check(caller: Annotated[Caller, Depends(authenticate)]) -> Caller:
        if caller.role < role:
            raise Refused(f"this needs the role {role.name.lower()}; this key has {caller.role.name.lower()}")
        return caller

    return check


Viewer = Annotated[Caller, Depends(at_least(Role.VIEWER))]
Operator = Annotated[Caller, Depends(at_least(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(at_least(Role.ADMIN))]


def key_text(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key") or None
