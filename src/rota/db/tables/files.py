"""Table of what was applied from files."""

from sqlalchemy import Column, ForeignKey, String, Table

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, metadata

applied_resources = Table(  # schedules, tasks, … that files described when they were last applied
    "applied_resources",
    metadata,
    Column("org_id", Id, ForeignKey("orgs.id"), primary_key=True),
    Column("resource", String(40), primary_key=True),  # as in files: `schedules`
    Column("name", String(400), primary_key=True),
    Column("digests", Json, nullable=False),  # of its fields, by field: values may be secret
    Column("applied_by", Id),
    Column("applied_at", Instant, nullable=False),
)
