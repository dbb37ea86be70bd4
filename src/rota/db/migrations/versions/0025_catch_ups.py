"""Catch-ups that wait for an approval."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Instant, Json

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "catch_ups",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("schedule_id", sa.String(26), nullable=False),
        sa.Column("source", sa.String(10), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("slots", Json(), nullable=False),
        sa.Column("reprocess", sa.Boolean(), nullable=False),
        sa.Column("estimate", Json(), nullable=False),
        sa.Column("waits_for", Json(), nullable=False),
        sa.Column("requested_by", sa.String(26)),
        sa.Column("requested_at", Instant(), nullable=False),
        sa.Column("decided_by", sa.String(200)),
        sa.Column("decided_at", Instant()),
        sa.Column("comment", sa.Text()),
        sa.Column("gap", sa.String(10)),
        sa.Column("slot_limit", sa.Integer()),
        sa.Column("spread_seconds", sa.Integer()),
        sa.Column("fired", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "(status = 'open' AND decided_at IS NULL) OR (status <> 'open' AND decided_at IS NOT NULL)",
            name="ck_catch_ups_decided",
        ),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_catch_ups_org_id"),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name="fk_catch_ups_schedule_id"),
        sa.PrimaryKeyConstraint("id", name="pk_catch_ups"),
        if_not_exists=True,
    )
    op.create_index("ix_catch_ups_org", "catch_ups", ["org_id", "id"], if_not_exists=True)
    for name, column, unique, where in (
        ("ix_catch_ups_open", "schedule_id", True, "status = 'open'"),
        ("ix_catch_ups_decided", "decided_at", False, "decided_at IS NOT NULL"),
    ):
        condition = sa.text(where)
        op.create_index(
            name, "catch_ups", [column], unique=unique, sqlite_where=condition, postgresql_where=condition,
            if_not_exists=True,
        )  # fmt: skip


def downgrade() -> None:
    op.drop_table("catch_ups")
