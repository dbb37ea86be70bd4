"""Accounts that grants are charged to, as the engine needs them: whose they are, whether they are open."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id
from rota.db.dialect import Tx
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import billing_accounts, users, virtual_keys

MAX_CREDITS = 2**53  # in one amount: what JSON carries without loss

b = billing_accounts.c


@dataclass(frozen=True, slots=True)
class BillingAccount:
    """A row of `billing_accounts`."""

    id: str
    org_id: str
    owner_id: str
    balance_credits: int
    created_at: datetime
    closed_at: datetime | None


def account_of(tx: Tx, org_id: str, user_id: str, now: datetime) -> BillingAccount:
    """Return a user's account, which is created with its default key when first needed. Raises NotFound for a user of
    another org."""
    of_user = select(billing_accounts).where(b.owner_id == user_id, b.org_id == org_id)
    account = tx.execute(of_user).one_or_none()
    if account is None:
        if tx.execute(select(users.c.id).where(users.c.id == user_id, users.c.org_id == org_id)).first() is None:
            raise NotFound(f"user {user_id!r} not found")
        row = {"id": new_id(), "org_id": org_id, "owner_id": user_id, "balance_credits": 0, "created_at": now}
        if insert_new(tx, billing_accounts, [row], ("id",)):
            key = {"id": new_id(), "billing_account_id": row["id"], "label": "Default", "is_default": True}
            insert_rows(tx, virtual_keys, [{**key, "active": True, "created_at": now}])
        account = tx.execute(of_user).one()
    return BillingAccount(**account._asdict())


def get(tx: Tx, org_id: str, account_id: str) -> BillingAccount:
    """Return an account that can be charged. Raises NotFound, and Conflict if it is closed."""
    row = tx.execute(select(billing_accounts).where(b.org_id == org_id, b.id == account_id)).one_or_none()
    if row is None:
        raise NotFound(f"billing account {account_id!r} not found")
    account = BillingAccount(**row._asdict())
    if account.closed_at is not None:
        raise Conflict(f"billing account {account_id}: it is closed")
    return account
