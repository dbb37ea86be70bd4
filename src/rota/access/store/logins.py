"""SQL of logins to the dashboard: single-use login links, accounts of users, login sessions."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import ColumnElement, and_, delete, not_, select, update

from rota.access.store import accounts
from rota.core.errors import NotFound
from rota.core.ids import new_id
from rota.db import paging
from rota.db.dialect import Query, Tx
from rota.db.statement import insert_rows
from rota.db.tables import api_keys, login_links, login_sessions, orgs, users

LOGIN_LINK_LIFETIME = timedelta(minutes=15)
USER_AGENT_LIMIT = 200  # characters

LoginMethod = Literal["password", "link", "oidc"]

link, session, u, keys = login_links.c, login_sessions.c, users.c, api_keys.c


@dataclass(frozen=True, slots=True)
class LoginLink:
    """A new login link; only the hash of its token is stored."""

    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How long a login session lasts at most, and without being used. They apply to sessions that exist, too."""

    lifetime: timedelta = timedelta(days=14)
    idle: timedelta = timedelta(days=7)


DEFAULT_SESSION_LIMITS = SessionLimits()


@dataclass(frozen=True, slots=True)
class UserAccount:
    """A person who can log in (not deleted, not disabled), with the name of the org."""

    user_id: str
    org_id: str
    name: str
    role: str
    password_hash: str | None
    org_name: str


@dataclass(frozen=True, slots=True)
class Session:
    """A live login session."""

    id: str
    last_used_at: datetime


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """Selects login sessions: of an org, of one of its users, or started by login links of one of its keys."""

    org_id: str
    user_id: str | None = None
    key_id: str | None = None


# links


def first_link(tx: Tx, now: datetime) -> LoginLink | None:
    """Create the login link that a starting server prints. Its session acts with the first key, and ends with it."""
    key = accounts.first_key(tx, now)
    return None if key is None else make_link(tx, key.org_id, key.user_id, key.id, now)


def make_link(tx: Tx, org_id: str, user_id: str, key_id: str | None, now: datetime) -> LoginLink:
    """Create a link that logs a user in once. With a key, the session has the permissions and lifetime of the key."""
    tx.execute(delete(login_links).where(link.expires_at <= now))
    new_link = LoginLink(secrets.token_urlsafe(32), now + LOGIN_LINK_LIFETIME)
    hashed = accounts.hash_of(new_link.token)
    row = {"hash": hashed, "org_id": org_id, "user_id": user_id, "key_id": key_id, "expires_at": new_link.expires_at}
    insert_rows(tx, login_links, [row])
    return new_link


def user_of_link(tx: Tx, token: str, now: datetime) -> UserAccount | None:
    """Return the user of a link without using it; None if it was used or has expired."""
    stmt = select(link.org_id, link.user_id).where(link.hash == accounts.hash_of(token), link.expires_at > now)
    row = tx.execute(stmt).one_or_none()
    return None if row is None else account(tx, row.org_id, row.user_id)


def use_link(tx: Tx, token: str, now: datetime) -> tuple[UserAccount, str | None] | None:
    """Use a link: returns its user and key, None if it was used or has expired. The DELETE makes it single-use under
    concurrency."""
    this_link = (link.hash == accounts.hash_of(token), link.expires_at > now)
    stmt = delete(login_links).where(*this_link).returning(link.org_id, link.user_id, link.key_id)
    row = tx.execute(stmt).one_or_none()
    user = None if row is None else account(tx, row.org_id, row.user_id)
    return None if row is None or user is None else (user, row.key_id)


# accounts


def account(tx: Tx, org_id: str, user_id: str) -> UserAccount | None:
    row = tx.execute(account_query().where(u.org_id == org_id, u.id == user_id)).one_or_none()
    return None if row is None else UserAccount(**row._asdict())


def account_by_email(tx: Tx, slug: str, email: str) -> UserAccount | None:
    """Return the account with an e-mail address in an org. The slug may be empty if there is only one org."""
    if not slug and several_orgs(tx):
        return None
    stmt = account_query().where(u.email == email)
    row = tx.execute(stmt.where(orgs.c.slug == slug) if slug else stmt).one_or_none()
    return None if row is None else UserAccount(**row._asdict())


def several_orgs(tx: Tx) -> bool:
    return len(tx.execute(select(orgs.c.id).limit(2)).all()) > 1


def account_query() -> Query:
    columns = (u.id.label("user_id"), u.org_id, u.name, u.role, u.password_hash, orgs.c.name.label("org_name"))
    may_log_in = (u.deleted_at.is_(None), u.disabled_at.is_(None), u.type == "person")
    return select(*columns).join(orgs, orgs.c.id == u.org_id).where(*may_log_in)


# sessions


@dataclass(frozen=True, slots=True)
class Browser:
    """Where a login comes from."""

    address: str | None
    user_agent: str


def start_session(
    tx: Tx,
    user: UserAccount,
    key_id: str | None,
    method: LoginMethod,
    browser: Browser,
    now: datetime,
    limits: SessionLimits = DEFAULT_SESSION_LIMITS,
) -> tuple[str, str]:
    """Start a login session. Returns its id and the token for the cookie; only the hash of the token is stored."""
    tx.execute(delete(login_sessions).where(not_(and_(*live(now, limits)))))
    token = secrets.token_urlsafe(32)
    row = {
        "id": new_id(),
        "hash": accounts.hash_of(token),
        "org_id": user.org_id,
        "user_id": user.user_id,
        "key_id": key_id,
        "address": browser.address,
        "user_agent": browser.user_agent[:USER_AGENT_LIMIT],
        "created_at": now,
        "last_used_at": now,
        "expires_at": now + limits.lifetime,
        "method": method,
    }
    insert_rows(tx, login_sessions, [row])
    return str(row["id"]), token


def live(now: datetime, limits: SessionLimits) -> tuple[ColumnElement[bool], ...]:
    """Condition: the session has not ended by its lifetime or by not being used."""
    return (
        session.expires_at > now,
        session.created_at > now - limits.lifetime,
        session.last_used_at > now - limits.idle,
    )


def find_session(
    tx: Tx, token: str, now: datetime, limits: SessionLimits = DEFAULT_SESSION_LIMITS
) -> tuple[Session, UserAccount, accounts.Key | None] | None:
    """Return the live session of a cookie's token, with its user and key; None if it has ended."""
    columns = (session.id, session.user_id, session.org_id, session.key_id, session.last_used_at)
    this_session = (session.hash == accounts.hash_of(token), *live(now, limits))
    row = tx.execute(select(*columns).where(*this_session)).one_or_none()
    if row is None:
        return None
    user = account(tx, row.org_id, row.user_id)
    key = None if row.key_id is None else accounts.key_by_id(tx, row.key_id)
    if user is None or (key is None and row.key_id is not None):
        return None
    return Session(row.id, row.last_used_at), user, key


def touch_session(tx: Tx, session_id: str, now: datetime) -> None:
    tx.execute(update(login_sessions).where(session.id == session_id).values(last_used_at=now))


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A login session that was ended by its browser."""

    org_id: str
    user_id: str
    id: str
    key_id: str | None
    method: LoginMethod | None


def log_out(tx: Tx, token: str) -> EndedSession | None:
    """End the session of a cookie's token; returns it, if it existed."""
    columns = (session.org_id, session.user_id, session.id, session.key_id, session.method)
    stmt = delete(login_sessions).where(session.hash == accounts.hash_of(token))
    row = tx.execute(stmt.returning(*columns)).one_or_none()
    return None if row is None else EndedSession(**row._asdict())


def list_sessions(
    tx: Tx,
    now: datetime,
    owner: SessionOwner,
    *,
    limit: int = paging.PAGE_ROWS,
    cursor: str | None = None,
    user_id: str | None = None,
    limits: SessionLimits = DEFAULT_SESSION_LIMITS,
) -> paging.Page:
    """List live sessions of an owner, newest first."""
    columns = (
        session.id,
        session.user_id,
        u.name.label("user_name"),
        session.key_id,
        keys.name.label("key_name"),
        session.address,
        session.user_agent,
        session.created_at,
        session.last_used_at,
        session.expires_at,
        session.method,
    )
    joined = login_sessions.join(users, u.id == session.user_id).outerjoin(api_keys, keys.id == session.key_id)
    listed = select(*columns).select_from(joined).where(*owned_by(owner), *live(now, limits))
    stmt = paging.matching(listed, (session.user_id, user_id))
    return paging.page_by(tx, stmt, session.id, limit, cursor, descending=True)


def end_session(tx: Tx, session_id: str, owner: SessionOwner) -> None:
    """End a session. Raises NotFound unless it belongs to the owner."""
    if not tx.execute(delete(login_sessions).where(session.id == session_id, *owned_by(owner))).rowcount:
        raise NotFound(f"session {session_id} not found; it may have ended")


def end_sessions(tx: Tx, owner: SessionOwner, kept_id: str | None = None) -> list[str]:
    """End all sessions of an owner but one; returns their ids."""
    stmt = delete(login_sessions).where(*owned_by(owner), session.id != (kept_id or ""))
    return list(tx.execute(stmt.returning(session.id)).scalars())


def owned_by(owner: SessionOwner) -> list[ColumnElement[bool]]:
    pairs = ((session.org_id, owner.org_id), (session.user_id, owner.user_id), (session.key_id, owner.key_id))
    return [column == value for column, value in pairs if value is not None]
