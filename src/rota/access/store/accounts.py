"""SQL of orgs, users, service accounts and API keys.

A row of `users` is a person, a service account (`type`) or the org's system user (no `email`). Rows that have no e-mail
address but are not the system user have a placeholder in `email`, which is unique and no address: `service:NAME`, or
`oidc:` and a hash for a person whose provider sends no verified address.

An API key is 32 random bytes; only its prefix and its SHA-256 are stored. A slow hash would gain nothing: a key cannot
be guessed. Passwords can, and are stored as argon2 hashes.
"""

import functools
import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict, Unpack

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, or_, select, update

from rota.core.errors import Conflict, NotFound, Refused
from rota.core.ids import new_id
from rota.db.dialect import Query, ResultRow, Tx, notify
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import api_keys, grants, login_sessions, orgs, users
from rota.engine.orgs import org_by_slug, system_user

KEY_PREFIX_CHARACTERS = 12  # stored in plain text: finds the row and identifies the key in lists
FIRST_KEY = "first admin key"

UserType = Literal["person", "service"]
DisabledBy = Literal["admin", "provider"]
NAMES_OF_TYPES: dict[UserType, str] = {"person": "user", "service": "service account"}

k, u, session = api_keys.c, users.c, login_sessions.c


@dataclass(frozen=True, slots=True)
class Key:
    """A stored API key. `user_role` is the current role of its user; `user_scopes` those of its service account."""

    id: str
    org_id: str
    user_id: str
    role: str
    user_role: str
    scopes: list[str]
    instance_admin: bool
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    user_type: UserType
    user_scopes: list[str] | None
    user_disabled: bool


# orgs


def ensure_default_org(tx: Tx, now: datetime) -> tuple[str, str | None]:
    """Return the id of the default org; if this created it, also its first admin key, which is not stored."""
    org_id = org_by_slug(tx, "default") or tx.execute(select(orgs.c.id).order_by(orgs.c.id).limit(1)).scalar()
    if org_id is not None:
        return org_id, None
    org = {"id": new_id(), "slug": "default", "name": "Default", "shell": True, "created_at": now}
    if not insert_new(tx, orgs, [org], ("id",)):  # another process created it concurrently and has the key
        return org_by_slug(tx, "default") or "", None
    text = create_key(tx, str(org["id"]), FIRST_KEY, "admin", now, instance_admin=True)
    return str(org["id"]), text


def create_org(tx: Tx, name: str, slug: str, now: datetime) -> tuple[str, str]:
    """Create an org with its system user. Returns its id and its admin key. Raises Conflict."""
    org = {"id": new_id(), "slug": slug, "name": name, "created_at": now}
    if not insert_new(tx, orgs, [org], ("id",)):
        raise Conflict(f"org {slug!r} already exists; choose another slug")
    return str(org["id"]), create_key(tx, str(org["id"]), FIRST_KEY, "admin", now)


# users


def create_user(tx: Tx, org_id: str, email: str, name: str, password_hash: str, role: str, now: datetime) -> str:
    user = {
        "id": new_id(),
        "org_id": org_id,
        "email": email,
        "name": name,
        "password_hash": password_hash,
        "role": role,
        "created_at": now,
        "updated_at": now,
    }
    if not insert_new(tx, users, [user], ("id",)):
        raise Conflict(f"user {email!r} already exists")
    return str(user["id"])


def email_of(tx: Tx, org_id: str, user_id: str) -> str | None:
    return tx.execute(select(u.email).where(is_active_user(org_id, user_id))).scalar_one_or_none()


def create_service_account(tx: Tx, org_id: str, name: str, role: str, scopes: Collection[str], now: datetime) -> str:
    """Create a service account of an org. Returns its id. Raises Conflict."""
    row = {
        "id": new_id(),
        "org_id": org_id,
        "email": service_placeholder(name),
        "name": name,
        "role": role,
        "created_at": now,
        "updated_at": now,
        "type": "service",
        "scopes": sorted(scopes),
    }
    if not insert_new(tx, users, [row], ("id",)):
        raise Conflict(f"service account {name!r} already exists")
    return str(row["id"])


def edit_user(
    tx: Tx, org_id: str, user_id: str, changes: dict[str, object], now: datetime, user_type: UserType = "person"
) -> None:
    """Change a user or service account. Ends their login sessions if the password changes or they are disabled.

    Raises NotFound, Conflict."""
    email = changes.get("email")
    if email is not None:
        same_email = select(u.id).where(u.org_id == org_id, u.email == email, u.deleted_at.is_(None), u.id != user_id)
        if tx.execute(same_email).first() is not None:
            raise Conflict(f"{NAMES_OF_TYPES[user_type]} {changes.get('name', email)!r} already exists")
    if subject := changes.get("oidc_subject"):
        same_subject = (u.org_id == org_id, u.oidc_issuer == changes["oidc_issuer"], u.oidc_subject == subject)
        if tx.execute(select(u.id).where(*same_subject, u.deleted_at.is_(None), u.id != user_id)).first() is not None:
            raise Conflict(f"subject {subject!r} of the provider is connected to another user; delete that one first")
    this_user = is_active_user(org_id, user_id, user_type)
    if not tx.execute(update(users).where(this_user).values(**changes, updated_at=now)).rowcount:
        raise NotFound(f"{NAMES_OF_TYPES[user_type]} {user_id!r} not found")
    both = and_(u.id == user_id, u.password_hash.is_not(None), u.oidc_subject.is_not(None))
    if tx.execute(select(u.id).where(both)).first() is not None:
        raise Conflict(f"user {user_id!r} signs in by the provider and cannot have a password")
    if "password_hash" in changes or changes.get("disabled_at") is not None:
        tx.execute(delete(login_sessions).where(session.user_id == user_id))
    notify(tx, "access")
    check_admin_remains(tx, org_id, now)


def delete_user(tx: Tx, org_id: str, user_id: str, now: datetime, user_type: UserType = "person") -> None:
    """Delete a user or service account, revoking their keys and grants. The row is kept for the audit log.

    Raises NotFound, Conflict."""
    this_user = is_active_user(org_id, user_id, user_type)
    deletion = update(users).where(this_user).values(deleted_at=now, updated_at=now, password_hash=None)
    if not tx.execute(deletion).rowcount:
        raise NotFound(f"{NAMES_OF_TYPES[user_type]} {user_id!r} not found")
    tx.execute(delete(login_sessions).where(session.user_id == user_id))
    tx.execute(update(api_keys).where(k.user_id == user_id, k.revoked_at.is_(None)).values(revoked_at=now))
    active_grants = and_(grants.c.org_id == org_id, grants.c.owner_id == user_id, grants.c.revoked_at.is_(None))
    tx.execute(update(grants).where(active_grants).values(revoked_at=now))
    notify(tx, "access")
    check_admin_remains(tx, org_id, now)


def disabling(disabled: bool, now: datetime, by: DisabledBy = "admin") -> dict[str, object]:
    """Return the changes that disable a user, or enable them."""
    return {"disabled_at": now, "disabled_by": by} if disabled else {"disabled_at": None, "disabled_by": None}


def is_active_user(org_id: str, user_id: str, user_type: UserType = "person") -> ColumnElement[bool]:
    """Condition: a user of the org and type that is not deleted and not the system user."""
    of_type = and_(u.type == user_type, u.email.is_not(None), u.deleted_at.is_(None))
    return and_(u.org_id == org_id, u.id == user_id, of_type)


def service_placeholder(name: str) -> str:
    """Return what `email` of a service account holds: unique in the org, and no address that can log in."""
    return f"service:{name}"


def hash_password(text: str) -> str:
    """Return the argon2 hash of a password. Slow by design: call it outside transactions, in the password thread."""
    from argon2 import PasswordHasher  # a native library that few processes need

    return PasswordHasher().hash(text)


def password_matches(hashed: str | None, text: str) -> bool:
    """Return whether a password matches. Takes the same time without a hash, so that users cannot be enumerated."""
    from argon2 import PasswordHasher
    from argon2.exceptions import InvalidHashError, VerificationError

    dummy = (
        dummy_password_hash()
    )  # always computed: else the first call would reveal by its time whether the user exists
    try:
        PasswordHasher().verify(hashed or dummy, text)
    except (VerificationError, InvalidHashError):
        return False
    return hashed is not None


@functools.cache
def dummy_password_hash() -> str:
    return hash_password(secrets.token_urlsafe(32))


# keys


class KeyOptions(TypedDict, total=False):
    """Options of a new key."""

    user_id: str | None  # None: the org's system user
    scopes: Collection[str]
    expires_at: datetime | None
    instance_admin: bool


def create_key(tx: Tx, /, org_id: str, name: str, role: str, now: datetime, **options: Unpack[KeyOptions]) -> str:
    """Create a key of an org. Returns its text, which is not stored."""
    return issue_key(tx, org_id, name, role, now, **options)[1]


def issue_key(
    tx: Tx,
    org_id: str,
    name: str,
    role: str,
    now: datetime,
    **options: Unpack[KeyOptions],
) -> tuple[str, str]:
    """Create a key of a user, by default of the org's system user. Returns its id and text."""
    text = f"rota_{secrets.token_urlsafe(32)}"
    key = {
        "id": new_id(),
        "org_id": org_id,
        "user_id": options.get("user_id") or system_user(tx, org_id, now),
        "name": name,
        "role": role,
        "scopes": sorted(options.get("scopes", ())),
        "instance_admin": options.get("instance_admin", False),
        "prefix": text[:KEY_PREFIX_CHARACTERS],
        "hash": hash_of(text),
        "created_at": now,
        "expires_at": options.get("expires_at"),
    }
    insert_rows(tx, api_keys, [key])
    return str(key["id"]), text


def find_key(tx: Tx, text: str) -> Key | None:
    """Return the stored key of a text, even if expired or revoked. Compares in constant time."""
    wanted_hash, key = hash_of(text), None
    for row in tx.execute(KEYS_WITH_PREFIX, {"prefix": text[:KEY_PREFIX_CHARACTERS]}):
        if hmac.compare_digest(row.hash, wanted_hash):
            key = key_of(row)
    return key


def key_by_id(tx: Tx, key_id: str) -> Key | None:
    """Return a stored key by its id, for a login session that was started with it."""
    row = tx.execute(key_query().where(k.id == key_id)).one_or_none()
    return None if row is None else key_of(row)


def first_key(tx: Tx, now: datetime) -> Key | None:
    """Return the newest valid instance admin key."""
    row = tx.execute(key_query().where(*instance_admins(now)).order_by(k.id.desc()).limit(1)).one_or_none()
    return None if row is None else key_of(row)


def key_of(row: ResultRow) -> Key:
    """Return the key of a row of `key_query`."""
    columns = row._asdict()
    del columns["hash"]
    return Key(**columns)


def key_query() -> Query:
    columns = (
        k.hash,
        k.id,
        k.org_id,
        k.user_id,
        k.role,
        u.role.label("user_role"),
        k.scopes,
        k.instance_admin,
        k.expires_at,
        k.last_used_at,
        k.revoked_at,
        u.type.label("user_type"),
        u.scopes.label("user_scopes"),
        u.disabled_at.is_not(None).label("user_disabled"),
    )
    return select(*columns).join(users, u.id == k.user_id)


KEYS_WITH_PREFIX = key_query().where(k.prefix == bindparam("prefix"))


def touch_key(tx: Tx, key_id: str, now: datetime) -> None:
    tx.execute(update(api_keys).where(k.id == key_id).values(last_used_at=now))


def revoke_key(tx: Tx, org_id: str, key_id: str, now: datetime, *, instance_admin: bool = False) -> None:
    """Revoke a key of an org. Raises Refused if it is an instance admin's and the caller is none, Conflict if the org
    would be left without an admin key, or the installation without an instance admin key."""
    this_key = (k.org_id == org_id, k.id == key_id)
    stored_key = tx.execute(select(k.instance_admin, k.revoked_at).where(*this_key)).one_or_none()
    if stored_key is None:
        raise NotFound(f"API key {key_id!r} not found")
    if stored_key.instance_admin and not instance_admin:
        raise Refused(f"API key {key_id} is an instance admin's; only an instance admin can revoke it")
    tx.execute(update(api_keys).where(*this_key, k.revoked_at.is_(None)).values(revoked_at=now))
    tx.execute(delete(login_sessions).where(session.key_id == key_id))
    notify(tx, "access")
    check_admin_remains(tx, org_id, now)
    if stored_key.instance_admin and not tx.execute(select(func.count()).where(*instance_admins(now))).scalar_one():
        raise Conflict(
            f"API key {key_id} is the last instance admin key, without which no org can be created; "
            "`rota admin reset-key` on the server's machine replaces it"
        )


def reset_first_key(tx: Tx, now: datetime) -> str:
    """Revoke all instance admin keys, end their sessions and issue a new key; returns its text."""
    org_id, text = ensure_default_org(tx, now)
    if text is not None:
        return text
    tx.execute(update(api_keys).where(k.instance_admin, k.revoked_at.is_(None)).values(revoked_at=now))
    tx.execute(delete(login_sessions).where(session.key_id.in_(select(k.id).where(k.instance_admin))))
    notify(tx, "access")
    return create_key(tx, org_id, FIRST_KEY, "admin", now, instance_admin=True)


def check_admin_remains(tx: Tx, org_id: str, now: datetime) -> None:
    if not tx.execute(select(func.count()).where(k.org_id == org_id, *admins(now))).scalar_one():
        raise Conflict("this would leave the org without an admin key; create another one first")


def admins(now: datetime) -> tuple[ColumnElement[bool], ...]:
    acts_as = select(u.id).where(u.role == "admin", u.deleted_at.is_(None), u.disabled_at.is_(None))
    return (
        k.role == "admin",
        k.revoked_at.is_(None),
        or_(k.expires_at.is_(None), k.expires_at > now),
        k.user_id.in_(acts_as),
    )


def instance_admins(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (k.instance_admin, *admins(now))


def only_first_key(tx: Tx) -> bool:
    """Return whether the installation has no user and no key but the first."""
    people = tx.execute(select(func.count()).select_from(users).where(u.email.is_not(None))).scalar_one()
    return not people and tx.execute(select(func.count()).select_from(api_keys)).scalar_one() <= 1


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
