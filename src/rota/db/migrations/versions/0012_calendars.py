"""Calendars of holidays, and which of them a schedule follows."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant, Json

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "calendars",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("source", Json(), nullable=False),
        sa.Column("weekend", Json(), nullable=False),
        sa.Column("weekend_is_holiday", sa.Boolean(), nullable=False),
        sa.Column("holidays", Json(), nullable=False),
        sa.Column("known_until", sa.String(10)),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_calendars_org_id"),
        sa.PrimaryKeyConstraint("id", name="pk_calendars"),
        sa.UniqueConstraint("org_id", "name", name="uq_calendars_org_id_name"),
        if_not_exists=True,
    )
    op.create_index("ix_calendars_known_until", "calendars", ["known_until"], if_not_exists=True)
    online.add_column("schedules", sa.Column("calendar_id", sa.String(26)))
    online.add_column("schedules", sa.Column("calendar_revision", sa.Integer()))
    online.create_index(
        "ix_schedules_calendar",
        "schedules",
        ["calendar_id", "calendar_revision"],
        where="calendar_id IS NOT NULL AND deleted_at IS NULL",
    )


def downgrade() -> None:
    op.drop_index("ix_schedules_calendar", "schedules")
    op.drop_column("schedules", "calendar_revision")
    op.drop_column("schedules", "calendar_id")
    op.drop_table("calendars")
