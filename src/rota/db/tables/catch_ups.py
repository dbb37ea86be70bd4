"""Catch-ups: passed slots that wait for an approval, and the decisions about them."""

from sqlalchemy import Boolean, CheckConstraint, Column, ForeignKey, Index, Integer, String, Table, Text, text

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

catch_ups = Table(
    "catch_ups",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("schedule_id", Id, ForeignKey("schedules.id"), nullable=False),
    Column("source", String(10), nullable=False),  # outage, resume or backfill
    Column("status", String(10), nullable=False),  # open, approved, rejected or withdrawn
    Column("slots", Json, nullable=False),  # timestamps, ascending
    Column("reprocess", Boolean, nullable=False),  # also those that ran
    Column("estimate", Json, nullable=False),  # run_seconds, credits and usd, from the last runs
    Column("waits_for", Json, nullable=False),  # which limits it exceeds, in words
    Column("requested_by", Id),
    Column("requested_at", Instant, nullable=False),
    Column("decided_by", Name),
    Column("decided_at", Instant),
    Column("comment", Text),
    Column("gap", String(10)),  # as decided, with the two below
    Column("slot_limit", Integer),
    Column("spread_seconds", Integer),
    Column("fired", Integer, nullable=False),
    CheckConstraint(
        "(status = 'open' AND decided_at IS NULL) OR (status <> 'open' AND decided_at IS NOT NULL)",
        name="ck_catch_ups_decided",
    ),
)
Index("ix_catch_ups_org", catch_ups.c.org_id, catch_ups.c.id)
partial_index("ix_catch_ups_open", catch_ups.c.schedule_id, where=text("status = 'open'"), unique=True)
partial_index("ix_catch_ups_decided", catch_ups.c.decided_at, where=text("decided_at IS NOT NULL"))
