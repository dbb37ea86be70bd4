"""Billing accounts, their ledgers, charges and grants as records with the field names of the API. Reads only."""

from datetime import datetime
from decimal import Decimal
from typing import Literal, TypedDict, Unpack

from sqlalchemy import BigInteger, Column, ColumnElement, Numeric, and_, cast, false, func, select
from sqlalchemy.types import NullType

from rota.billing.store import CHARGE
from rota.core.errors import NotFound
from rota.db.dialect import Query, ResultRow, Tx, day_of
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, matching, page_by, within
from rota.db.tables import billing_accounts, charge_receipts, credit_ledger, grants, schedules, users, virtual_keys
from rota.engine import grants as engine_grants
from rota.reports.schedules import schedule_id_of

By = Literal["schedule", "graph", "grant", "day"]

b, v, e, c = billing_accounts.c, virtual_keys.c, credit_ledger.c, charge_receipts.c

ACCOUNT = (
    b.id, b.owner_id, users.c.name.label("owner_name"), b.balance_credits, v.id.label("default_virtual_key_id"),
    b.created_at, b.closed_at,
)  # fmt: skip
KEY = (v.id, v.billing_account_id, v.label, v.is_default, v.active, v.created_at)
ENTRY = (e.id, e.billing_account_id, e.virtual_key_id, e.amount, e.balance_after, e.reason, e.reference, e.created_at)
RECEIPT = (
    c.id, c.billing_account_id, c.virtual_key_id, c.grant_id, c.schedule_id, c.target, c.run_id, c.attempt, c.unit,
    c.model, c.input_tokens, c.output_tokens, c.charged_credits, c.cost_usd, c.source_system, c.source_reference,
    c.created_at,
)  # fmt: skip


# accounts


def accounts() -> Query:
    default = and_(v.billing_account_id == b.id, v.is_default)
    joined = billing_accounts.join(users, users.c.id == b.owner_id).outerjoin(virtual_keys, default)
    return select(*ACCOUNT).select_from(joined)


def account(tx: Tx, org_id: str, account_id: str) -> Record:
    """Return an account, also a closed one. Raises NotFound."""
    row = tx.execute(accounts().where(b.org_id == org_id, b.id == account_id)).one_or_none()
    if row is None:
        raise NotFound(f"billing account {account_id!r} not found")
    return dict_of(row)


def account_of(tx: Tx, org_id: str, user_id: str) -> str | None:
    return tx.execute(select(b.id).where(b.org_id == org_id, b.owner_id == user_id)).scalar_one_or_none()


def list_accounts(tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    stmt = accounts().where(b.org_id == org_id)
    return page_by(tx, stmt, b.id, limit, cursor)


def list_keys(tx: Tx, account_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return a page of the virtual keys of an account, oldest first."""
    stmt = select(*KEY).where(v.billing_account_id == account_id)
    return page_by(tx, stmt, v.id, limit, cursor)


def key(tx: Tx, org_id: str, key_id: str) -> Record:
    stmt = select(*KEY).join(billing_accounts, b.id == v.billing_account_id).where(b.org_id == org_id, v.id == key_id)
    row = tx.execute(stmt).one_or_none()
    if row is None:
        raise NotFound(f"virtual key {key_id!r} not found")
    return dict_of(row)


# ledgers and charges


def list_ledger(
    tx: Tx,
    account_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page:
    """Return a page of the ledger of an account, newest first."""
    stmt = within(select(*ENTRY).where(e.billing_account_id == account_id), e.created_at, since, until)
    return page_by(tx, stmt, e.id, limit, cursor, descending=True)


def top_up_entry(tx: Tx, account_id: str, reference: str) -> Record:
    """Return the ledger entry of a top-up."""
    of_top_up = and_(e.billing_account_id == account_id, e.reference == reference, e.reason != CHARGE)
    return dict_of(tx.execute(select(*ENTRY).where(of_top_up)).one())


def changed(tx: Tx, org_id: str, item_id: str) -> Record:
    """Return what the audit log describes of billing by its id: a ledger entry, an account, or a virtual key."""
    entries = select(*ENTRY).join(billing_accounts, b.id == e.billing_account_id)
    for stmt in (entries.where(e.id == item_id), accounts().where(b.id == item_id)):
        if (row := tx.execute(stmt.where(b.org_id == org_id)).one_or_none()) is not None:
            return dict_of(row)
    return key(tx, org_id, item_id)


class ReceiptFilters(TypedDict, total=False):
    """Filters of charges. A schedule is named by its id or name."""

    run_id: str | None
    grant_id: str | None
    schedule_id: str | None
    since: datetime | None
    until: datetime | None


def list_receipts(
    tx: Tx,
    /,
    org_id: str,
    account_id: str | None,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    **filters: Unpack[ReceiptFilters],
) -> Page:
    """Return a page of charges, newest first, of an account or of the whole org."""
    stmt = charged(tx, select(*RECEIPT), org_id, account_id, **filters)
    return page_by(tx, stmt, (c.created_at, c.id), limit, cursor, descending=True)


def usage(
    tx: Tx,
    /,
    org_id: str,
    account_id: str | None,
    by: By,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    **filters: Unpack[ReceiptFilters],
) -> Page:
    """Return the sums of charges: the largest first, days from the newest. Exact in credits; the
    provider's cost is a decimal text in the receipts, and its sum is rounded to ten places."""
    columns: dict[By, ColumnElement[str]] = {
        "schedule": c.schedule_id,
        "graph": c.target,
        "grant": c.grant_id,
        "day": day_of(tx, c.created_at),
    }
    group = columns[by]
    sums = select(
        func.coalesce(group, "").label("key"),
        func.count(c.run_id.distinct()).label("runs"),
        func.count().label("units"),
        total(c.input_tokens),
        total(c.output_tokens),
        total(c.charged_credits),
        func.sum(cast(c.cost_usd, Numeric()), type_=NullType()).label("cost_usd"),  # a float on SQLite
    )
    summed = charged(tx, sums, org_id, account_id, **filters).group_by(group).subquery("sums")
    u = summed.c
    order = (u.key,) if by == "day" else (u.charged_credits, u.key)
    named = summed.outerjoin(schedules, schedules.c.id == u.key if by == "schedule" else false())
    stmt = select(schedules.c.name, *u).select_from(named)
    return page_by(tx, stmt, order, limit, cursor, usage_record, descending=True)


def charged(
    tx: Tx,
    stmt: Query,
    org_id: str,
    account_id: str | None,
    **filters: Unpack[ReceiptFilters],
) -> Query:
    """Keep the receipts of an account, or of the whole org, that match the filters."""
    schedule_id = filters.get("schedule_id")
    if schedule_id is not None:
        schedule_id = schedule_id_of(tx, org_id, schedule_id) or schedule_id
    receipts = matching(
        stmt.where(c.org_id == org_id),
        (c.billing_account_id, account_id),
        (c.run_id, filters.get("run_id")),
        (c.grant_id, filters.get("grant_id")),
        (c.schedule_id, schedule_id),
    )
    return within(receipts, c.created_at, filters.get("since"), filters.get("until"))


def total(column: Column[int]) -> ColumnElement[int]:
    return cast(func.sum(column), BigInteger).label(column.name)  # PostgreSQL sums to decimals


def usage_record(row: ResultRow) -> Record:
    return {**dict_of(row), "key": row.key or None, "cost_usd": f"{Decimal(row.cost_usd or 0):.10f}"}


# grants


def list_grants(tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return a page of the grants of an org, newest first."""
    stmt = select(grants).where(grants.c.org_id == org_id)
    return page_by(tx, stmt, grants.c.id, limit, cursor, grant_record, descending=True)


def grant(tx: Tx, org_id: str, grant_id: str) -> Record:
    return grant_record(engine_grants.get(tx, org_id, grant_id))


def grant_record(grant: engine_grants.Grant | ResultRow) -> Record:
    limits = {"per_day": grant.budget_per_day, "total": grant.budget_total}
    return {
        "id": grant.id,
        "owner_id": grant.owner_id,
        "billing_account_id": grant.billing_account_id,
        "scopes": grant.scopes,
        "schedule_id": grant.schedule_id,
        "expires_at": grant.expires_at,
        "revoked_at": grant.revoked_at,
        "budget": limits if any(limit is not None for limit in limits.values()) else None,
        "spent": grant.spent_total,
        "created_at": grant.created_at,
    }
