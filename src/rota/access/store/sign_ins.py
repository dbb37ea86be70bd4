"""SQL of sign-ins by an OpenID Connect provider: the user of an identity, created at the first sign-in."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import delete, select, update

from rota.access.store import accounts, logins
from rota.core.ids import new_id
from rota.db.dialect import ResultRow, Tx, notify
from rota.db.statement import insert_new
from rota.db.tables import login_sessions, oidc_nonces, users
from rota.engine.orgs import org_by_slug

NONCE_RETENTION = timedelta(hours=1)  # longer than an ID token is accepted

u = users.c


@dataclass(frozen=True, slots=True)
class Identity:
    """A person as a provider describes them. `email` is None unless the provider verified it."""

    issuer: str
    subject: str
    name: str
    email: str | None
    role: str | None  # by the groups; None: no group has a role
    nonce: str


class Refusal(StrEnum):
    """Why an identity cannot sign in."""

    REPLAYED = "replayed"
    NO_ORG = "no_org"
    NO_ROLE = "no_role"
    DISABLED = "disabled"
    ADDRESS_TAKEN = "address_taken"


@dataclass(frozen=True, slots=True)
class SignIn:
    """The outcome of a sign-in: a user, or why it was refused."""

    user: logins.UserAccount | None = None
    refusal: Refusal | None = None


Audit = Callable[[Tx, str, str, str], None]  # transaction, org, user and verb


def sign_in(tx: Tx, org: str, identity: Identity, now: datetime, audit: Audit) -> SignIn:
    """Return the user of an identity in an org, with the role, name and address that the provider states.

    An identity is known by issuer and subject, never by its e-mail address. A refusal is returned, not raised: it may
    have effects. An identity without a role loses its login sessions, and its API keys are refused until it signs in
    with a role again."""
    if not use_nonce(tx, identity.nonce, now):
        return SignIn(refusal=Refusal.REPLAYED)
    org_id = org_by_slug(tx, org)
    if org_id is None:
        return SignIn(refusal=Refusal.NO_ORG)
    user = find(tx, org_id, identity)
    if user is not None and user.disabled_by == "admin":
        return SignIn(refusal=Refusal.DISABLED)
    if identity.role is None:
        if user is not None:
            disable(tx, user, now, audit)
        return SignIn(refusal=Refusal.NO_ROLE)
    if user is None:
        user_id = create(tx, org_id, identity, identity.role, now)
        if user_id is None:
            return SignIn(refusal=Refusal.ADDRESS_TAKEN)
        audit(tx, org_id, user_id, "create")
    else:
        user_id = user.id
        if refresh(tx, user, identity, identity.role, now):
            audit(tx, org_id, user_id, "edit")
    return SignIn(user=logins.account(tx, org_id, user_id))


def use_nonce(tx: Tx, nonce: str, now: datetime) -> bool:
    """Return whether a nonce was not used before, and record it."""
    tx.execute(delete(oidc_nonces).where(oidc_nonces.c.expires_at <= now))
    row = {"hash": accounts.hash_of(nonce), "expires_at": now + NONCE_RETENTION}
    return bool(insert_new(tx, oidc_nonces, [row], ("hash",)))


def find(tx: Tx, org_id: str, identity: Identity) -> ResultRow | None:
    """Return the user of an identity, disabled ones included."""
    columns = (u.id, u.org_id, u.email, u.name, u.role, u.disabled_at, u.disabled_by)
    this_user = (u.org_id == org_id, u.oidc_issuer == identity.issuer, u.oidc_subject == identity.subject)
    stmt = select(*columns).where(*this_user, u.deleted_at.is_(None), u.type == "person").with_for_update()
    return tx.execute(stmt).one_or_none()


def create(tx: Tx, org_id: str, identity: Identity, role: str, now: datetime) -> str | None:
    """Create the user of an identity; returns the id, None if another user has the address."""
    row = {
        "id": new_id(),
        "org_id": org_id,
        "email": identity.email or placeholder(identity),
        "name": identity.name,
        "role": role,
        "created_at": now,
        "updated_at": now,
        "type": "person",
        "oidc_issuer": identity.issuer,
        "oidc_subject": identity.subject,
    }
    if insert_new(tx, users, [row], ("id",)):
        return str(row["id"])
    concurrent = find(tx, org_id, identity)  # of another sign-in of the same identity
    return None if concurrent is None else str(concurrent.id)


def refresh(tx: Tx, user: ResultRow, identity: Identity, role: str, now: datetime) -> bool:
    """Update a user to what the provider states; returns whether anything changed. The address is not changed to one
    that is not verified, or that another user of the org has."""
    changes: dict[str, object] = {"name": identity.name, "role": role}
    same_email = select(u.id).where(u.org_id == user.org_id, u.email == identity.email, u.deleted_at.is_(None))
    if identity.email is not None and tx.execute(same_email).first() is None:
        changes["email"] = identity.email
    if user.disabled_at is not None:
        changes |= accounts.disabling(False, now)
    changed = any(getattr(user, name) != value for name, value in changes.items())
    if changed:
        tx.execute(update(users).where(u.id == user.id).values(**changes, updated_at=now))
        notify(tx, "access")
    return changed


def disable(tx: Tx, user: ResultRow, now: datetime, audit: Audit) -> None:
    """Disable a user whom the provider gives no role: ends their login sessions; their API keys are refused."""
    tx.execute(delete(login_sessions).where(login_sessions.c.user_id == user.id))
    if user.disabled_at is None:
        changes = accounts.disabling(True, now, "provider")
        tx.execute(update(users).where(u.id == user.id).values(**changes, updated_at=now))
        audit(tx, user.org_id, user.id, "disable")
    notify(tx, "access")


def placeholder(identity: Identity) -> str:
    """Return what `email` of a user without a verified address holds: unique in the org, and no address."""
    return f"oidc:{accounts.hash_of(f'{identity.issuer} {identity.subject}')}"
