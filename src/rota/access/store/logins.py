"""What logging in to the dashboard needs: links that work once, the people behind them, and their sessions."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, select, update

from rota.access.store import accounts
from rota.core.errors import NotFound
from rota.core.ids import new_id
from rota.db import paging
from rota.db.dialect import Tx, insert_rows
from rota.db.tables import api_keys, login_links, login_sessions, orgs, users

LINK_LIFE = timedelta(minutes=15)
SESSION_LIFE = timedelta(days=14)
USER_AGENT_LIMIT = 200  # characters

link, session, u, keys = login_links.c, login_sessions.c, users.c, api_keys.c


@dataclass(frozen=True, slots=True)
class Link:
    """A new login link; only the hash of its token is stored."""

    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Account:
    """A living user, as a session needs them."""

    user_id: str
    org_id: str
    name: str
    role: str
    password_hash: str | None
    org_name: str


@dataclass(frozen=True, slots=True)
class Session:
    """A login session that has not ended."""

    id: str
    last_used_at: datetime


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose sessions: an org's, those of one of its users, or those that login links of one of its keys began."""

    org_id: str
    user_id: str | None = None
    key_id: str | None = None


# links


def first_link(tx: Tx, now: datetime) -> Link | None:
    """The link that a starting server shows. Its session acts with the first key, and ends with it."""
    key = accounts.first_key(tx, now)
    return None if key is None else make_link(tx, key.org_id, key.user_id, key.id, now)


def make_link(tx: Tx, org_id: str, user_id: str, key_id: str | None, now: datetime) -> Link:
    """A link that logs this user in once. What is made with a key may do what the key may, as long as it may."""
    tx.execute(delete(login_links).where(link.expires_at <= now))
    made = Link(secrets.token_urlsafe(32), now + LINK_LIFE)
    hashed = accounts.hash_of(made.token)
    row = {"hash": hashed, "org_id": org_id, "user_id": user_id, "key_id": key_id, "expires_at": made.expires_at}
    insert_rows(tx, login_links, [row])
    return made


def user_of_link(tx: Tx, token: str, now: datetime) -> Account | None:
    """Whom a link would log in; None if it was used or has expired. The link stays good."""
    stmt = select(link.org_id, link.user_id).where(link.hash == accounts.hash_of(token), link.expires_at > now)
    row = tx.execute(stmt).one_or_none()
    return None if row is None else account(tx, row.org_id, row.user_id)


def use_link(tx: Tx, token: str, now: datetime) -> tuple[Account, str | None] | None:
    """Whom a link logs in, and with which key. Of any number who try at once, one gets it: the row is there once."""
    mine = (link.hash == accounts.hash_of(token), link.expires_at > now)
    stmt = delete(login_links).where(*mine).returning(link.org_id, link.user_id, link.key_id)
    found = tx.execute(stmt).one_or_none()
    who = None if found is None else account(tx, found.org_id, found.user_id)
    return None if found is None or who is None else (who, found.key_id)


# people


def account(tx: Tx, org_id: str, user_id: str) -> Account | None:
    found = tx.execute(account_query().where(u.org_id == org_id, u.id == user_id)).one_or_none()
    return None if found is None else Account(*found)


def account_by_email(tx: Tx, slug: str, email: str) -> Account | None:
    """A person of an org; without its slug, of the only org there is."""
    if not slug and several_orgs(tx):
        return None
    stmt = account_query().where(u.email == email)
    found = tx.execute(stmt.where(orgs.c.slug == slug) if slug else stmt).one_or_none()
    return None if found is None else Account(*found)


def several_orgs(tx: Tx) -> bool:
    return len(tx.execute(select(orgs.c.id).limit(2)).all()) > 1


def account_query() -> Select[Any]:
    columns = (u.id, u.org_id, u.name, u.role, u.password_hash, orgs.c.name)
    return select(*columns).join(orgs, orgs.c.id == u.org_id).where(u.deleted_at.is_(None))


# sessions


def start_session(
    tx: Tx, user: Account, key_id: str | None, address: str | None, user_agent: str, now: datetime
) -> tuple[str, str]:
    """A new session of a user; returns its id and the token for the cookie, of which only the hash is stored."""
    tx.execute(delete(login_sessions).where(session.expires_at <= now))
    token = secrets.token_urlsafe(32)
    row = {
        "id": new_id(), "hash": accounts.hash_of(token), "org_id": user.org_id, "user_id": user.user_id,
        "key_id": key_id, "address": address, "user_agent": user_agent[:USER_AGENT_LIMIT], "created_at": now,
        "last_used_at": now, "expires_at": now + SESSION_LIFE,
    }  # fmt: skip
    insert_rows(tx, login_sessions, [row])
    return str(row["id"]), token


def find_session(tx: Tx, token: str, now: datetime) -> tuple[Session, Account, accounts.Key | None] | None:
    """The session of a cookie's token, with its user and the key that it acts with; None after its end."""
    columns = (session.id, session.user_id, session.org_id, session.key_id, session.last_used_at)
    wanted = (session.hash == accounts.hash_of(token), session.expires_at > now)
    row = tx.execute(select(*columns).where(*wanted)).one_or_none()
    if row is None:
        return None
    user = account(tx, row.org_id, row.user_id)
    key = None if row.key_id is None else accounts.key_by_id(tx, row.key_id)
    if user is None or (key is None and row.key_id is not None):
        return None
    return Session(row.id, row.last_used_at), user, key


def touch_session(tx: Tx, session_id: str, now: datetime) -> None:
    tx.execute(update(login_sessions).where(session.id == session_id).values(last_used_at=now))


def log_out(tx: Tx, token: str) -> tuple[str, str, str, str | None] | None:
    """End the session of a cookie's token; returns the ids of its org, its user, itself and its key, if it existed."""
    stmt = delete(login_sessions).where(session.hash == accounts.hash_of(token))
    row = tx.execute(stmt.returning(session.org_id, session.user_id, session.id, session.key_id)).one_or_none()
    return None if row is None else (row.org_id, row.user_id, row.id, row.key_id)


def list_sessions(
    tx: Tx,
    now: datetime,
    owner: Owner,
    *,
    limit: int = paging.PAGE_ROWS,
    cursor: str | None = None,
    user_id: str | None = None,
) -> paging.Page:
    """The sessions of an owner, newest first."""
    columns = (
        session.id, session.user_id, u.name.label("user_name"), session.key_id, keys.name.label("key_name"),
        session.address, session.user_agent, session.created_at, session.last_used_at, session.expires_at,
    )  # fmt: skip
    joined = login_sessions.join(users, u.id == session.user_id).outerjoin(api_keys, keys.id == session.key_id)
    stmt: Select[Any] = select(*columns).select_from(joined).where(*belong_to(owner), session.expires_at > now)
    stmt = paging.matching(stmt, (session.user_id, user_id))
    return paging.page_by(tx, stmt, session.id, limit, cursor, descending=True)


def end_session(tx: Tx, session_id: str, owner: Owner) -> None:
    """End a session. Raises NotFound unless it belongs to the owner."""
    if not tx.execute(delete(login_sessions).where(session.id == session_id, *belong_to(owner))).rowcount:
        raise NotFound(f"session {session_id} not found; it may have ended")


def belong_to(owner: Owner) -> list[ColumnElement[bool]]:
    pairs = ((session.org_id, owner.org_id), (session.user_id, owner.user_id), (session.key_id, owner.key_id))
    return [column == value for column, value in pairs if value is not None]
