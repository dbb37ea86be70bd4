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
from rota.db.statement import Statement, insert_rows
from rota.db.tables import charge_receipts, credit_ledger, virtual_keys
from rota.engine import billing_accounts, grants
from rota.engine.billing_accounts import MAX_CREDITS, BillingAccount
from rota.engine.statements import GRANT

CREDITS_PER_USD = 10_000_000
CHARGE = "charge"  # reason of ledger entries for runs

b, v, e = tables.billing_accounts.c, virtual_keys.c, credit_ledger.c


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
    return [add_ledger_entry(tx, account, amount, reason, reference, now)]


def lock_account(tx: Tx, account_id: str) -> BillingAccount:
    """Return an account, locked until the transaction ends."""
    row = tx.execute(select(tables.billing_accounts).where(b.id == account_id).with_for_update()).one()
    return BillingAccount(**row._asdict())


def add_ledger_entry(tx: Tx, account: BillingAccount, amount: int, reason: str, reference: str, now: datetime) -> str:
    """Change the balance of a locked account and append a ledger entry; returns its id."""
    after = account.balance_credits + amount
    tx.execute(update(tables.billing_accounts).where(b.id == account.id).values(balance_credits=after))
    row = {
        "id": new_id(),
        "billing_account_id": account.id,
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

RECEIPT = [column.name for column in charge_receipts.c if column.name != "virtual_key_id"]
INSERT_RECEIPT = f"""
    INSERT INTO charge_receipts ({", ".join(RECEIPT)}, virtual_key_id)
    SELECT {", ".join(f"batch.{name}" for name in RECEIPT)},
           (SELECT virtual_keys.id FROM virtual_keys
            WHERE virtual_keys.billing_account_id = batch.billing_account_id AND virtual_keys.is_default)
    FROM batch WHERE batch.id IS NOT NULL
    ON CONFLICT DO NOTHING"""
REDUCE_BALANCE = """
    UPDATE billing_accounts SET balance_credits = billing_accounts.balance_credits - batch.charged_credits
    FROM batch WHERE billing_accounts.id = batch.billing_account_id AND """
INSERT_ENTRY = """
    INSERT INTO credit_ledger
        (id, billing_account_id, virtual_key_id, amount, balance_after, reason, reference, created_at)
    SELECT batch.entry_id, batch.billing_account_id, receipt.virtual_key_id, -batch.charged_credits,
           account.balance_credits, 'charge', batch.reference, batch.created_at"""
SPEND_BUDGET = """
    UPDATE grants SET
        spent_on_day = CASE WHEN grants.spent_day = batch.today THEN grants.spent_on_day ELSE 0 END
                       + batch.charged_credits,
        spent_total = grants.spent_total + batch.charged_credits,
        spent_day = batch.today
    FROM batch WHERE grants.id = batch.grant_id AND """
IS_NEW = "EXISTS (SELECT 1 FROM charge_receipts WHERE charge_receipts.id = batch.id)"
READ_BUDGET = "SELECT {returns} FROM batch JOIN grants ON grants.id = batch.grant_id"

LOCK_ACCOUNT = Statement(
    """Lock an account until the transaction ends.""",
    "SELECT id FROM billing_accounts WHERE id = :account_id FOR UPDATE",
    "SELECT id FROM billing_accounts WHERE id = :account_id",
)

CHARGE_UNIT = Statement(
    """Insert the receipt of one unit under the default key and, if it is new, reduce the balance of its account, append
    the ledger entry and add to what the grant has spent; returns the grant.""",
    f"""
    WITH receipt AS ({INSERT_RECEIPT} RETURNING virtual_key_id),
         account AS ({REDUCE_BALANCE} EXISTS (SELECT 1 FROM receipt) RETURNING billing_accounts.balance_credits),
         entry AS ({INSERT_ENTRY} FROM batch CROSS JOIN receipt CROSS JOIN account),
         spent AS ({SPEND_BUDGET} EXISTS (SELECT 1 FROM receipt) RETURNING {{returns}})
    SELECT * FROM spent
    UNION ALL
    {READ_BUDGET} WHERE NOT EXISTS (SELECT 1 FROM spent)
    """,
    (
        INSERT_RECEIPT,
        REDUCE_BALANCE + IS_NEW,
        f"""{INSERT_ENTRY}
    FROM batch JOIN charge_receipts AS receipt ON receipt.id = batch.id
    JOIN billing_accounts AS account ON account.id = batch.billing_account_id""",
        SPEND_BUDGET + IS_NEW,
        READ_BUDGET,
    ),
    batch={
        **{name: charge_receipts.c[name] for name in RECEIPT},
        "entry_id": credit_ledger.c.id,
        "reference": credit_ledger.c.reference,
        "today": tables.grants.c.spent_day,
    },
    returns=GRANT,
)


def charge(tx: Tx, work: Charge, usage: Usage, markup: Decimal, now: datetime) -> str | None:
    """Charge a unit of work, idempotently and regardless of the balance: the work is done. Returns which budget of the
    grant is used up: `per_day`, `total`, or None."""
    # the account is locked first: concurrent charges are serialised, and the ids of entries rise with them
    LOCK_ACCOUNT.run(tx, account_id=work.account_id)
    reference = work.reference(usage.unit)
    receipt = {
        "id": new_id(),
        "org_id": work.org_id,
        "billing_account_id": work.account_id,
        "grant_id": work.grant_id,
        "schedule_id": work.schedule_id,
        "target": work.target,
        "run_id": work.run_id,
        "attempt": work.attempt,
        "unit": usage.unit,
        "model": usage.model,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "charged_credits": credits_for(usage.cost_usd, markup),
        "cost_usd": str(usage.cost_usd),
        "source_system": work.source_system,
        "source_reference": reference,
        "created_at": now,
    }
    entry = {"entry_id": new_id(), "reference": f"{work.source_system}:{reference}", "today": grants.day_of(now)}
    row = {**receipt, **entry}
    charged = CHARGE_UNIT.run(tx, [[row[name] for name in CHARGE_UNIT.batch]])
    return grants.grant_of(charged[0]).used_up(now) if charged else None


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
