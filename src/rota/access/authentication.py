"""Looks up API keys and login sessions in the database. Implements `Authentication`.

The rows of API keys are cached for CACHE_SECONDS, so that a request by key needs no statement of its own. Whatever
revokes a key, or changes or deletes its user, notifies the topic `access` with its commit: the process that did it
drops its cache before it answers, the others as soon as the notification arrives, and without one (LISTEN connection
lost, row changed by hand) the cache ends by itself.
"""

import contextlib
import hashlib
from dataclasses import replace
from datetime import datetime

from rota.access.store import accounts, logins
from rota.access.store.logins import DEFAULT_SESSION_LIMITS, SessionLimits, SessionOwner
from rota.core.clock import stopwatch
from rota.core.errors import RotaError
from rota.db.connection import Database
from rota.db.wake import Wake
from rota.frame.http.auth import Caller, LoginSession, Role, Unauthenticated, scopes_within

CACHE_SECONDS = 2.0
CACHED_KEYS = 1000


class StoredCredentials:
    """The API keys and login sessions of a database."""

    def __init__(self, db: Database, wake: Wake, limits: SessionLimits = DEFAULT_SESSION_LIMITS) -> None:
        self.db, self.wake, self.limits = db, wake, limits
        self._keys: dict[bytes, tuple[accounts.Key, float]] = {}  # with the time of reading, by the hash of the text
        self._access_changes = wake.access_changes  # when the cache was empty last

    def key_prefix(self, text: str) -> str:
        return text[: accounts.KEY_PREFIX_CHARACTERS]

    async def caller_by_key(self, text: str, now: datetime) -> Caller | None:
        key = await self._key(text) if text.isprintable() else None
        return None if key is None else caller_of(key, now)

    async def _key(self, text: str) -> accounts.Key | None:
        """Return the key of a text, from the cache if access has not changed since it was read."""
        changes, read_at = self.wake.access_changes, stopwatch()
        if changes != self._access_changes:
            self._keys.clear()
            self._access_changes = changes
        digest = hashlib.sha256(text.encode()).digest()
        cached = self._keys.get(digest)
        if cached is not None and read_at - cached[1] < CACHE_SECONDS:
            return cached[0]
        key = await self.db.read(accounts.find_key, text)
        if key is not None and self.wake.access_changes == changes:  # else it may have been read before the change
            if len(self._keys) >= CACHED_KEYS:
                self._keys.clear()
            self._keys[digest] = key, read_at
        return key

    async def login_session(self, token: str, now: datetime) -> LoginSession | None:
        stored = await self.db.read(logins.find_session, token, now, self.limits)
        if stored is None:
            return None
        session, user, key = stored
        if key is None:
            role = Role[user.role.upper()]
            caller = Caller(user.org_id, user.user_id, None, role, frozenset(), instance_admin=False)
        else:
            caller = caller_of(key, now)
        caller = replace(caller, session_id=session.id)
        return LoginSession(session.id, session.last_used_at, user, caller)

    async def record_key_use(self, key_id: str, now: datetime) -> None:
        for digest, (key, read_at) in self._keys.items():
            if key.id == key_id:
                self._keys[digest] = replace(key, last_used_at=now), read_at
        with contextlib.suppress(RotaError):
            await self.db.tx(accounts.touch_key, key_id, now)

    async def record_session_use(self, session_id: str, now: datetime) -> None:
        with contextlib.suppress(RotaError):
            await self.db.tx(logins.touch_session, session_id, now)


def caller_of(key: accounts.Key, now: datetime) -> Caller:
    """Return the caller behind a stored key. Raises Unauthenticated if it was revoked or has expired, or its user is
    disabled."""
    if key.revoked_at is not None:
        raise Unauthenticated("this API key has been revoked")
    if key.expires_at is not None and key.expires_at <= now:
        raise Unauthenticated(f"this API key expired at {key.expires_at.isoformat(timespec='seconds')}")
    if key.user_disabled:
        raise Unauthenticated("the user or service account of this API key is disabled")
    role = min(Role[key.role.upper()], Role[key.user_role.upper()])
    return Caller(
        key.org_id,
        key.user_id,
        key.id,
        role,
        scopes_within(key.scopes, key.user_scopes or ()),
        key.instance_admin,
        key.last_used_at,
        key.expires_at,
        is_service=key.user_type == "service",
    )


def visible_sessions(caller: Caller) -> SessionOwner:
    """Return whose login sessions a caller may list and end: the org's for admins, else the caller's own."""
    return (
        SessionOwner(caller.org_id)
        if caller.role >= Role.ADMIN
        else SessionOwner(caller.org_id, caller.user_id, caller.key_id)
    )
