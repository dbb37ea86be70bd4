"""SQL of billing accounts in credits; 10,000,000 equal one US dollar. The ledger is append-only; `balance_credits` is
its sum.

IDEMPOTENT_CHARGES: a charge is identified by run, attempt and unit; charging it again is a no-op.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from sqlalchemy import and_, func, select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.db import tables
from rota.db.dialect import Tx
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import charge_receipts, credit_ledger, virtual_keys
from rota.engine import billing_accounts, grants
from rota.engine.billing_accounts import MAX_CREDITS, BillingAccount

CREDITS_PER_USD = 10_000_000
CHARGE = "charge"  # reason of ledger entries for runs

b, v, e, g = tables.billing_accounts.c, virtual_keys.c, credit_ledger.c, tables.grants.c


@dataclass(frozen=True, slots=True)
class Usage:
    """Reported cost of a unit of work."""

    unit: str
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Charge:
    """What is charged: the run, its target, grant and account."""

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
    """Return the price in credits of a cost, rounded up."""
    return int((cost_usd * markup * CREDITS_PER_USD).to_integral_value(ROUND_CEILING))


# accounts


def org_of(tx: Tx, account_id: str) -> str | None:
    """The id of the org that an account belongs to; None if the account is not found."""
    return tx.execute(select(b.org_id).where(b.id == account_id)).scalar_one_or_none()


def close(tx: Tx, org_id: str, account_id: str, now: datetime | None) -> str:
    """Close an account at `now`: no run is started at its expense, running ones are still charged. With None, reopen
    it. Idempotent."""
    other = b.closed_at.is_(None) if now else b.closed_at.is_not(None)
    tx.execute(
        update(tables.billing_accounts).where(b.org_id == org_id, b.id == account_id, other).values(closed_at=now)
    )
    return account_id


def default_key(tx: Tx, account_id: str) -> str:
    """Return the default virtual key of an account, under which it is charged."""
    return str(tx.execute(select(v.id).where(v.billing_account_id == account_id, v.is_default)).scalar_one())


def credit(tx: Tx, org_id: str, account_id: str, amount: int, reason: str, reference: str, now: datetime) -> list[str]:
    """Add credits to an account; returns the id of the ledger entry. Idempotent by `reference`: a repeat returns no id.
    Raises Conflict if the reference was used with another amount or reason."""
    if not 0 < amount <= MAX_CREDITS:
        raise Invalid("amount_credits", amount, f"is not a number of credits from 1 to {MAX_CREDITS}")
    if reason == CHARGE:
        raise Invalid("reason", reason, "is reserved for charges of runs; use another reason")
    account = lock_account(tx, billing_accounts.get(tx, org_id, account_id).id)
    same_reference = and_(e.billing_account_id == account.id, e.reference == reference, e.reason != CHARGE)
    before = tx.execute(select(e.amount, e.reason).where(same_reference)).one_or_none()
    if before is not None:
        if (before.amount, before.reason) != (amount, reason):
            as_before = f"with {before.amount} credits for {before.reason}"
            raise Conflict(f"reference {reference!r} was already credited {as_before}")
        return []
    if account.balance_credits + amount > MAX_CREDITS:
        raise Invalid(
            "amount_credits", amount, f"would bring the balance, {account.balance_credits}, above {MAX_CREDITS}"
        )
    return [add_ledger_entry(tx, account, amount, reason, reference, None, now)]


def lock_account(tx: Tx, account_id: str) -> BillingAccount:
    """Return an account, locked until the transaction ends."""
    row = tx.execute(select(tables.billing_accounts).where(b.id == account_id).with_for_update()).one()
    return BillingAccount(**row._asdict())


def add_ledger_entry(
    tx: Tx, account: BillingAccount, amount: int, reason: str, reference: str, key: str | None, now: datetime
) -> str:
    """Change the balance of a locked account and append a ledger entry; returns its id."""
    after = account.balance_credits + amount
    tx.execute(update(tables.billing_accounts).where(b.id == account.id).values(balance_credits=after))
    row = {
        "id": new_id(),
        "billing_account_id": account.id,
        "virtual_key_id": key,
        "amount": amount,
        "balance_after": after,
        "reason": reason,
        "reference": reference,
        "created_at": now,
    }
    insert_rows(tx, credit_ledger, [row])
    return str(row["id"])


# virtual keys


@dataclass(frozen=True, slots=True)
class VirtualKey:
    """A row of `virtual_keys`."""

    id: str
    billing_account_id: str
    label: str
    is_default: bool
    active: bool
    created_at: datetime


def add_key(tx: Tx, org_id: str, account_id: str, label: str, now: datetime) -> str:
    """Create a virtual key of an account; returns its id."""
    account = billing_accounts.get(tx, org_id, account_id)
    row = {"id": new_id(), "billing_account_id": account.id, "label": label, "is_default": False, "active": True}
    insert_rows(tx, virtual_keys, [{**row, "created_at": now}])
    return str(row["id"])


def make_default(tx: Tx, org_id: str, key_id: str) -> str:
    """Make a virtual key the default of its account. Raises Conflict if it is not active."""
    key = lock_account_of_key(tx, org_id, key_id)
    if not key.active:
        raise Conflict(f"virtual key {key_id} is not active")
    tx.execute(update(virtual_keys).where(v.billing_account_id == key.billing_account_id).values(is_default=False))
    tx.execute(update(virtual_keys).where(v.id == key_id).values(is_default=True))
    return key_id


def deactivate(tx: Tx, org_id: str, key_id: str) -> str:
    """Deactivate a virtual key. Idempotent. Raises Conflict for the default key."""
    if lock_account_of_key(tx, org_id, key_id).is_default:
        raise Conflict(f"virtual key {key_id} is the default of its account; make another key the default first")
    tx.execute(update(virtual_keys).where(v.id == key_id).values(active=False))
    return key_id


def lock_account_of_key(tx: Tx, org_id: str, key_id: str) -> VirtualKey:
    """Return a virtual key, with its account locked so that charges do not read the default key during a change."""
    stmt = select(v.billing_account_id).join(tables.billing_accounts, b.id == v.billing_account_id)
    account_id = tx.execute(stmt.where(b.org_id == org_id, v.id == key_id)).scalar_one_or_none()
    if account_id is None:
        raise NotFound(f"virtual key {key_id!r} not found")
    lock_account(tx, account_id)
    return VirtualKey(**tx.execute(select(virtual_keys).where(v.id == key_id)).one()._asdict())


# charges


def charge(tx: Tx, work: Charge, usage: Usage, markup: Decimal, now: datetime) -> str | None:
    """Charge a unit of work, idempotently and regardless of the balance: the work is done. Returns which budget of the
    grant is used up: `per_day`, `total`, or None."""
    # lock the account first: concurrent charges are serialised, and no update of the balance is lost
    account = lock_account(tx, work.account_id)
    reference, price = work.reference(usage.unit), credits_for(usage.cost_usd, markup)
    receipt = {
        "id": new_id(),
        "org_id": work.org_id,
        "billing_account_id": account.id,
        "virtual_key_id": default_key(tx, account.id),
        "grant_id": work.grant_id,
        "schedule_id": work.schedule_id,
        "target": work.target,
        "run_id": work.run_id,
        "attempt": work.attempt,
        "unit": usage.unit,
        "model": usage.model,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "charged_credits": price,
        "cost_usd": str(usage.cost_usd),
        "source_system": work.source_system,
        "source_reference": reference,
        "created_at": now,
    }
    if insert_new(tx, charge_receipts, [receipt], ("id",)):
        add_ledger_entry(
            tx, account, -price, CHARGE, f"{work.source_system}:{reference}", str(receipt["virtual_key_id"]), now
        )
        if work.grant_id is not None:
            spend(tx, work.grant_id, price, now)
    return None if work.grant_id is None else grants.used_up(tx, work.grant_id, now)


def spend(tx: Tx, grant_id: str, price: int, now: datetime) -> None:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    grant = tx.execute(select(tables.grants).where(g.id == grant_id).with_for_update()).one()
    before = grant.spent_on_day if grant.spent_day == today else 0
    values = {"spent_day": today, "spent_on_day": before + price, "spent_total": grant.spent_total + price}
    tx.execute(update(tables.grants).where(g.id == grant_id).values(values))


def used_by(tx: Tx, org_id: str, run_id: str) -> dict[str, object]:
    """Return the usage of a run, summed over its receipts."""
    r = charge_receipts.c
    receipts = tx.execute(select(charge_receipts).where(r.org_id == org_id, r.run_id == run_id)).all()
    return {
        "units": len(receipts),
        "input_tokens": sum(receipt.input_tokens for receipt in receipts),
        "output_tokens": sum(receipt.output_tokens for receipt in receipts),
        "cost_usd": str(sum((Decimal(receipt.cost_usd) for receipt in receipts), Decimal(0))),
        "credits": sum(receipt.charged_credits for receipt in receipts),
    }


def balance_of_ledger(tx: Tx, account_id: str) -> int:
    """Return the sum of an account's ledger, which must equal its balance."""
    total = select(func.coalesce(func.sum(e.amount), 0)).where(e.billing_account_id == account_id)
    return int(tx.execute(total).scalar_one())
