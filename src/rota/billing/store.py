"""Accounts in credits: 10,000,000 are one US dollar. The ledger only grows; a balance is its sum, kept beside it.

IDEMPOTENT_CHARGES: a charge is named by the run, the attempt and the unit that cost something; charging it again is a
silent success.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any

from sqlalchemy import and_, func, select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.db import tables
from rota.db.dialect import Tx, insert_new, insert_rows
from rota.db.tables import charge_receipts, credit_ledger, virtual_keys
from rota.engine import billing_accounts, grants
from rota.engine.billing_accounts import MAX_CREDITS

CREDITS_PER_USD = 10_000_000
CHARGE = "charge"  # why what a run cost is in the ledger

b, v, e, g = tables.billing_accounts.c, virtual_keys.c, credit_ledger.c, tables.grants.c


@dataclass(frozen=True, slots=True)
class Usage:
    """What a unit of work cost, as it was reported."""

    unit: str
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Charge:
    """For what a unit is charged: the run and its authority."""

    org_id: str
    account_id: str
    grant_id: str | None
    schedule_id: str | None
    target: str
    run_id: str
    attempt: int
    source_system: str = "rota"

    def reference(self, unit: str) -> str:
        return f"{self.run_id}/{self.attempt}/{unit}"


def credits_for(cost_usd: Decimal, markup: Decimal) -> int:
    """The price of a cost. Rounded up, once, here."""
    return int((cost_usd * markup * CREDITS_PER_USD).to_integral_value(ROUND_CEILING))


# accounts


def org_of(tx: Tx, account_id: str) -> str | None:
    """The id of the org that an account belongs to; None if the account is not found."""
    return tx.execute(select(b.org_id).where(b.id == account_id)).scalar_one_or_none()


def close(tx: Tx, org_id: str, account_id: str, now: datetime | None) -> str:
    """Let nothing more begin at an account's expense; its past stays, and what runs is still charged. Twice is as once.
    Without a moment it is opened again."""
    other = b.closed_at.is_(None) if now else b.closed_at.is_not(None)
    tx.execute(
        update(tables.billing_accounts).where(b.org_id == org_id, b.id == account_id, other).values(closed_at=now)
    )
    return account_id


def default_key(tx: Tx, account_id: str) -> str:
    """The virtual key that charges of an account go by: looked up when something runs, never stored before."""
    return str(tx.execute(select(v.id).where(v.billing_account_id == account_id, v.is_default)).scalar_one())


def credit(tx: Tx, org_id: str, account_id: str, amount: int, reason: str, reference: str, now: datetime) -> list[str]:
    """Put credits on an account; returns the id of the new line of its ledger. A reference counts once: saying the same
    again does nothing and returns nothing, saying something else under it is a conflict."""
    if not 0 < amount <= MAX_CREDITS:
        raise Invalid("amount_credits", amount, f"is not a number of credits from 1 to {MAX_CREDITS}")
    if reason == CHARGE:
        raise Invalid("reason", reason, "is the reason of what runs cost; say another")
    account = held(tx, billing_accounts.get(tx, org_id, account_id).id)
    known = and_(e.billing_account_id == account.id, e.reference == reference, e.reason != CHARGE)
    before = tx.execute(select(e.amount, e.reason).where(known)).one_or_none()
    if before is not None:
        if (before.amount, before.reason) != (amount, reason):
            told = f"with {before.amount} credits for {before.reason}"
            raise Conflict(f"reference {reference}: it has been credited already, {told}")
        return []
    if account.balance_credits + amount > MAX_CREDITS:
        raise Invalid(
            "amount_credits", amount, f"would bring the balance, {account.balance_credits}, above {MAX_CREDITS}"
        )
    return [move(tx, account, amount, reason, reference, None, now)]


def held(tx: Tx, account_id: str) -> Any:
    """An account that nobody else changes before this transaction ends."""
    return tx.execute(select(tables.billing_accounts).where(b.id == account_id).with_for_update()).one()


def move(tx: Tx, account: Any, amount: int, reason: str, reference: str, key: str | None, now: datetime) -> str:
    """Change the balance of an account whose row is held, and say so in the ledger; returns the id of the line."""
    after = account.balance_credits + amount
    tx.execute(update(tables.billing_accounts).where(b.id == account.id).values(balance_credits=after))
    row = {
        "id": new_id(), "billing_account_id": account.id, "virtual_key_id": key, "amount": amount,
        "balance_after": after, "reason": reason, "reference": reference, "created_at": now,
    }  # fmt: skip
    insert_rows(tx, credit_ledger, [row])
    return str(row["id"])


# virtual keys


def add_key(tx: Tx, org_id: str, account_id: str, label: str, now: datetime) -> str:
    """One more name that charges of an account may go by; returns its id."""
    account = billing_accounts.get(tx, org_id, account_id)
    row = {"id": new_id(), "billing_account_id": account.id, "label": label, "is_default": False, "active": True}
    insert_rows(tx, virtual_keys, [{**row, "created_at": now}])
    return str(row["id"])


def make_default(tx: Tx, org_id: str, key_id: str) -> str:
    """From now on the account is charged by this key."""
    key = held_key(tx, org_id, key_id)
    if not key.active:
        raise Conflict(f"virtual key {key_id}: it is not active")
    tx.execute(update(virtual_keys).where(v.billing_account_id == key.billing_account_id).values(is_default=False))
    tx.execute(update(virtual_keys).where(v.id == key_id).values(is_default=True))
    return key_id


def deactivate(tx: Tx, org_id: str, key_id: str) -> str:
    """Let nothing be charged by a key any more; what was, stays. Twice is as once."""
    if held_key(tx, org_id, key_id).is_default:
        raise Conflict(f"virtual key {key_id}: charges go by it; make another the default first")
    tx.execute(update(virtual_keys).where(v.id == key_id).values(active=False))
    return key_id


def held_key(tx: Tx, org_id: str, key_id: str) -> Any:
    """A key, with its account held: while the default moves, nobody looks for it."""
    mine = select(v.billing_account_id).join(tables.billing_accounts, b.id == v.billing_account_id)
    account_id = tx.execute(mine.where(b.org_id == org_id, v.id == key_id)).scalar_one_or_none()
    if account_id is None:
        raise NotFound(f"virtual key {key_id!r} not found")
    held(tx, account_id)
    return tx.execute(select(virtual_keys).where(v.id == key_id)).one()


# charges


def charge(tx: Tx, what: Charge, usage: Usage, markup: Decimal, now: datetime) -> str | None:
    """Charge a unit, once. Never refuses, whatever the balance: the work is done. Returns which budget of the grant is
    used up by now: `per_day`, `total`, or None."""
    # the account's row is held first, by everybody: charges to one account queue up, and no balance is lost
    account = held(tx, what.account_id)
    reference, price = what.reference(usage.unit), credits_for(usage.cost_usd, markup)
    receipt = {
        "id": new_id(), "org_id": what.org_id, "billing_account_id": account.id,
        "virtual_key_id": default_key(tx, account.id), "grant_id": what.grant_id, "schedule_id": what.schedule_id,
        "target": what.target, "run_id": what.run_id, "attempt": what.attempt, "unit": usage.unit,
        "model": usage.model, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
        "charged_credits": price, "cost_usd": str(usage.cost_usd), "source_system": what.source_system,
        "source_reference": reference, "created_at": now,
    }  # fmt: skip
    if insert_new(tx, charge_receipts, [receipt], ("id",)):
        move(tx, account, -price, CHARGE, f"{what.source_system}:{reference}", str(receipt["virtual_key_id"]), now)
        if what.grant_id is not None:
            spend(tx, what.grant_id, price, now)
    return None if what.grant_id is None else grants.used_up(tx, what.grant_id, now)


def spend(tx: Tx, grant_id: str, price: int, now: datetime) -> None:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    grant = tx.execute(select(tables.grants).where(g.id == grant_id).with_for_update()).one()
    before = grant.spent_on_day if grant.spent_day == today else 0
    values = {"spent_day": today, "spent_on_day": before + price, "spent_total": grant.spent_total + price}
    tx.execute(update(tables.grants).where(g.id == grant_id).values(values))


def used_by(tx: Tx, org_id: str, run_id: str) -> dict[str, Any]:
    """What a run has used, by its receipts."""
    r = charge_receipts.c
    found = tx.execute(select(charge_receipts).where(r.org_id == org_id, r.run_id == run_id)).all()
    return {
        "units": len(found), "input_tokens": sum(one.input_tokens for one in found),
        "output_tokens": sum(one.output_tokens for one in found),
        "cost_usd": str(sum((Decimal(one.cost_usd) for one in found), Decimal(0))),
        "credits": sum(one.charged_credits for one in found),
    }  # fmt: skip


def balance_of_ledger(tx: Tx, account_id: str) -> int:
    """What the ledger adds up to; the balance must say the same."""
    total = select(func.coalesce(func.sum(e.amount), 0)).where(e.billing_account_id == account_id)
    return int(tx.execute(total).scalar_one())
