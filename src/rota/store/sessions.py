"""What logging in to the dashboard needs: links that work once, the people behind them, the key that signs sessions."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, select

from rota.store import accounts
from rota.store.dialect import Tx, insert_new, insert_rows
from rota.store.tables import login_links, orgs, signing_keys, users

LINK_LIFE = timedelta(minutes=15)
SESSIONS = "sessions"

link, u = login_links.c, users.c


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


# links


def first_link(tx: Tx, now: datetime) -> Link:
    """A link for whoever starts the server: as the system user of the default org."""
    org_id, _ = accounts.ensure_default_org(tx, now)
    return make_link(tx, org_id, accounts.system_user(tx, org_id, now), None, now)


def make_link(tx: Tx, org_id: str, user_id: str, key_id: str | None, now: datetime) -> Link:
    """A link that logs this user in once. What is made with a key may do what the key may, as long as it may."""
    tx.execute(delete(login_links).where(link.expires_at <= now))
    made = Link(secrets.token_urlsafe(32), now + LINK_LIFE)
    hashed = accounts.hash_of(made.token)
    row = {"hash": hashed, "org_id": org_id, "user_id": user_id, "key_id": key_id, "expires_at": made.expires_at}
    insert_rows(tx, login_links, [row])
    return made


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


# the key that signs


def signing_key(tx: Tx) -> bytes | None:
    """Read for each request, never kept: when somebody deletes it, all sessions have ended."""
    found = tx.execute(select(signing_keys.c.key).where(signing_keys.c.name == SESSIONS)).scalar_one_or_none()
    return None if found is None else bytes.fromhex(found)


def make_signing_key(tx: Tx, now: datetime) -> bytes:
    """The key; of several servers that make one at once, all get the same."""
    insert_new(tx, signing_keys, [{"name": SESSIONS, "key": secrets.token_hex(32), "created_at": now}], ("name",))
    found = signing_key(tx)
    assert found is not None
    return found
