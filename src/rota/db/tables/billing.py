"""Accounts, credits, charges and grants."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

billing_accounts = Table(
    "billing_accounts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False, unique=True),
    Column("balance_credits", BigInteger, nullable=False),  # the sum of its ledger, kept with it
    Column("created_at", Instant, nullable=False),
    Column("closed_at", Instant),
    Index("ix_billing_accounts_org", "org_id", "id"),
)

virtual_keys = Table(  # names under which usage is charged; they hold no secret
    "virtual_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("label", Name, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_virtual_keys_account", "billing_account_id", "id"),
)
partial_index("ix_virtual_keys_default", virtual_keys.c.billing_account_id, where=text("is_default"), unique=True)

credit_ledger = Table(  # append-only
    "credit_ledger",
    metadata,
    Column("id", Id, primary_key=True),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("virtual_key_id", Id),
    Column("amount", BigInteger, nullable=False),
    Column("balance_after", BigInteger, nullable=False),
    Column("reason", String(40), nullable=False),
    Column("reference", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("billing_account_id", "reference", "reason"),
    Index("ix_credit_ledger_account", "billing_account_id", "id"),
)

charge_receipts = Table(  # append-only; its unique constraint makes charges idempotent
    "charge_receipts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("virtual_key_id", Id, nullable=False),
    Column("grant_id", Id),
    Column("schedule_id", Id),
    Column("target", Text, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("unit", Name, nullable=False),
    Column("model", Name),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("charged_credits", BigInteger, nullable=False),
    Column("cost_usd", Text),  # a decimal, as it was reported
    Column("source_system", String(40), nullable=False),
    Column("source_reference", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("source_system", "source_reference"),
    Index("ix_charge_receipts_account", "billing_account_id", "created_at", "id"),
    Index("ix_charge_receipts_org", "org_id", "created_at", "id"),
    Index("ix_charge_receipts_run", "run_id"),
)

grants = Table(
    "grants",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("scopes", Json, nullable=False),
    Column("schedule_id", Id),  # whose creation minted it, and whose deletion revokes it
    Column("expires_at", Instant),
    Column("revoked_at", Instant),
    Column("budget_per_day", BigInteger),
    Column("budget_total", BigInteger),
    Column("spent_day", Instant),  # the day, in UTC, that `spent_on_day` counts
    Column("spent_on_day", BigInteger, nullable=False),
    Column("spent_total", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_grants_org", "org_id", "id"),
)
partial_index("ix_grants_schedule", grants.c.schedule_id, where=text("schedule_id IS NOT NULL"))
