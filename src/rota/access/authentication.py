"""Looks up API keys and login sessions in the database. Implements `Authentication`."""

import contextlib
from dataclasses import dataclass
from datetime import datetime

from rota.access.store import accounts, logins
from rota.access.store.logins import SessionOwner
from rota.core.errors import RotaError
from rota.db.connection import Database
from rota.frame.http.auth import Caller, LoginSession, Role, Unauthenticated


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """The API keys and login sessions of a database."""

    db: Database

    def key_prefix(self, text: str) -> str:
        return text[: accounts.KEY_PREFIX_CHARACTERS]

    async def caller_by_key(self, text: str, now: datetime) -> Caller | None:
        key = await self.db.read(accounts.find_key, text) if text.isprintable() else None
        return None if key is None else caller_of(key, now)

    async def login_session(self, token: str, now: datetime) -> LoginSession | None:
        stored = await self.db.read(logins.find_session, token, now)
        if stored is None:
            return None
        session, user, key = stored
        if key is None:
            role = Role[user.role.upper()]
            caller = Caller(user.org_id, user.user_id, None, role, frozenset(), instance_admin=False)
        else:
            caller = caller_of(key, now)
        return LoginSession(session.id, session.last_used_at, user, caller)

    async def record_key_use(self, key_id: str, now: datetime) -> None:
        with contextlib.suppress(RotaError):
            await self.db.tx(accounts.touch_key, key_id, now)

    async def record_session_use(self, session_id: str, now: datetime) -> None:
        with contextlib.suppress(RotaError):
            await self.db.tx(logins.touch_session, session_id, now)


def caller_of(key: accounts.Key, now: datetime) -> Caller:
    """Return the caller behind a stored key. Raises Unauthenticated if it was revoked or has expired."""
    if key.revoked_at is not None:
        raise Unauthenticated("this API key has been revoked")
    if key.expires_at is not None and key.expires_at <= now:
        raise Unauthenticated(f"this API key expired at {key.expires_at.isoformat(timespec='seconds')}")
    role = min(Role[key.role.upper()], Role[key.user_role.upper()])
    return Caller(
        key.org_id,
        key.user_id,
        key.id,
        role,
        frozenset(key.scopes),
        key.instance_admin,
        key.last_used_at,
        key.expires_at,
    )


def visible_sessions(caller: Caller) -> SessionOwner:
    """Return whose login sessions a caller may list and end: the org's for admins, else the caller's own."""
    return (
        SessionOwner(caller.org_id)
        if caller.role >= Role.ADMIN
        else SessionOwner(caller.org_id, caller.user_id, caller.key_id)
    )
