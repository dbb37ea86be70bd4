"""Organisations, users, service accounts and API keys as records with the field names of the API. Reads only."""

from sqlalchemy import and_, case, or_, select

from rota.access.store.accounts import is_active_user
from rota.core.errors import NotFound
from rota.db.dialect import Tx
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, matching, page_by
from rota.db.tables import api_keys, orgs, users

ORG = (orgs.c.id, orgs.c.slug, orgs.c.name, orgs.c.shell, orgs.c.max_running, orgs.c.created_at)


USER = (
    users.c.id, case((users.c.email.contains("@"), users.c.email)).label("email"), users.c.name, users.c.role,
    users.c.disabled_at.is_not(None).label("disabled"), users.c.disabled_by, users.c.oidc_subject, users.c.created_at,
    users.c.updated_at,
)  # fmt: skip


SERVICE_ACCOUNT = (
    users.c.id, users.c.name, users.c.role, users.c.scopes, users.c.disabled_at.is_not(None).label("disabled"),
    users.c.created_at, users.c.updated_at,
)  # fmt: skip


KEY = (
    api_keys.c.id, api_keys.c.name, api_keys.c.user_id, users.c.name.label("user_name"), api_keys.c.role,
    api_keys.c.scopes, api_keys.c.prefix, api_keys.c.created_at, api_keys.c.expires_at, api_keys.c.last_used_at,
    api_keys.c.revoked_at,
)  # fmt: skip


def list_orgs(tx: Tx, org_id: str | None, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return a page of all orgs, or only one org."""
    stmt = matching(select(*ORG), (orgs.c.id, org_id))
    return page_by(tx, stmt, orgs.c.id, limit, cursor)


def org(tx: Tx, key: str) -> Record:
    """Return an org by its slug or id. Raises NotFound."""
    row = tx.execute(select(*ORG).where(or_(orgs.c.slug == key, orgs.c.id == key))).first()
    if row is None:
        raise NotFound(f"org {key!r} not found")
    return dict_of(row)


def list_users(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    email: str | None = None,
    role: str | None = None,
) -> Page:
    """Return a page of the users of an org."""
    u = users.c
    of_org = and_(u.org_id == org_id, u.email.is_not(None), u.deleted_at.is_(None), u.type == "person")
    stmt = matching(select(*USER).where(of_org), (u.email, email), (u.role, role))
    return page_by(tx, stmt, u.id, limit, cursor)


def user(tx: Tx, org_id: str, user_id: str) -> Record:
    row = tx.execute(select(*USER).where(is_active_user(org_id, user_id))).one_or_none()
    if row is None:
        raise NotFound(f"user {user_id!r} not found")
    return dict_of(row)


def user_name(tx: Tx, user_id: str) -> str | None:
    """Return the name of a user of any type: a person, a service account or the system user; None if unknown."""
    return tx.execute(select(users.c.name).where(users.c.id == user_id)).scalar()


def list_service_accounts(
    tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, name: str | None = None
) -> Page:
    """Return a page of the service accounts of an org."""
    u = users.c
    of_org = and_(u.org_id == org_id, u.type == "service", u.deleted_at.is_(None))
    return page_by(tx, matching(select(*SERVICE_ACCOUNT).where(of_org), (u.name, name)), u.id, limit, cursor)


def service_account(tx: Tx, org_id: str, account_id: str) -> Record:
    row = tx.execute(select(*SERVICE_ACCOUNT).where(is_active_user(org_id, account_id, "service"))).one_or_none()
    if row is None:
        raise NotFound(f"service account {account_id!r} not found")
    return dict_of(row)


def list_keys(
    tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, user_id: str | None = None
) -> Page:
    """Return a page of the API keys of an org, also revoked ones, newest first."""
    k = api_keys.c
    of_org = select(*KEY).join(users, users.c.id == k.user_id).where(k.org_id == org_id)
    stmt = matching(of_org, (k.user_id, user_id))
    return page_by(tx, stmt, k.id, limit, cursor, descending=True)


def api_key(tx: Tx, org_id: str, key_id: str) -> Record:
    k = api_keys.c
    stmt = select(*KEY).join(users, users.c.id == k.user_id).where(k.org_id == org_id, k.id == key_id)
    row = tx.execute(stmt).one_or_none()
    if row is None:
        raise NotFound(f"API key {key_id!r} not found")
    return dict_of(row)
