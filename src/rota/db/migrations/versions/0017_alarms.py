"""Alarms, their channels and events, and schedules that are paused after failures in a row."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant, Json

revision = "0017"
down_revision = "0015"


def upgrade() -> None:
    online.add_column("schedules", sa.Column("pause_after_failures", sa.Integer()))
    online.create_index(
        "ix_schedules_pausing",
        "schedules",
        ["id"],
        where="pause_after_failures IS NOT NULL AND deleted_at IS NULL",
    )
    op.create_table(
        "alarm_channels",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("type", sa.String(20), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text()),
        sa.Column("test_seconds", sa.Integer()),
        sa.Column("test_at", Instant()),
        sa.Column("last_delivery_at", Instant()),
        sa.Column("last_status", sa.String(10)),
        sa.Column("last_answer", sa.Text()),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_alarm_channels_org_id"),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_channels"),
        sa.UniqueConstraint("org_id", "name", name="uq_alarm_channels_org_id_name"),
        if_not_exists=True,
    )
    op.create_index(
        "ix_alarm_channels_test",
        "alarm_channels",
        ["test_at"],
        sqlite_where=sa.text("test_at IS NOT NULL"),
        postgresql_where=sa.text("test_at IS NOT NULL"),
        if_not_exists=True,
    )
    op.create_table(
        "alarms",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("rule", sa.String(100), nullable=False),
        sa.Column("scope", sa.Text()),
        sa.Column("notify", Json(), nullable=False),
        sa.Column("quiet", sa.String(20)),
        sa.Column("timezone", sa.String(100), nullable=False),
        sa.Column("group_seconds", sa.Integer(), nullable=False),
        sa.Column("repeat_seconds", sa.Integer()),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_alarms_org_id"),
        sa.PrimaryKeyConstraint("id", name="pk_alarms"),
        sa.UniqueConstraint("org_id", "name", name="uq_alarms_org_id_name"),
        if_not_exists=True,
    )
    op.create_table(
        "alarm_checks",
        sa.Column("alarm_id", sa.String(26), nullable=False),
        sa.Column("place", sa.String(200), nullable=False),
        sa.Column("next_at", Instant(), nullable=False),
        sa.Column("read_until", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("alarm_id", "place", name="pk_alarm_checks"),
        if_not_exists=True,
    )
    op.create_index("ix_alarm_checks_next", "alarm_checks", ["next_at"], if_not_exists=True)
    op.create_table(
        "alarm_events",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("alarm_id", sa.String(26), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("place", sa.String(200), nullable=False),
        sa.Column("measured_at", Instant()),
        sa.Column("fired_at", Instant(), nullable=False),
        sa.Column("notify_at", Instant()),
        sa.Column("notified_at", Instant()),
        sa.Column("notified", sa.Integer(), nullable=False),
        sa.Column("acknowledged_at", Instant()),
        sa.Column("acknowledged_by", sa.String(200)),
        sa.Column("note", sa.Text()),
        sa.Column("resolved_at", Instant()),
        sa.Column("job_ids", Json(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_alarm_events_org_id"),
        sa.ForeignKeyConstraint(["alarm_id"], ["alarms.id"], name="fk_alarm_events_alarm_id"),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_events"),
        if_not_exists=True,
    )
    is_open, has_message = sa.text("state <> 'resolved'"), sa.text("notify_at IS NOT NULL")
    op.create_index(
        "ix_alarm_events_open",
        "alarm_events",
        ["alarm_id", "subject"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
        if_not_exists=True,
    )
    op.create_index("ix_alarm_events_subject", "alarm_events", ["alarm_id", "subject", "id"], if_not_exists=True)
    op.create_index("ix_alarm_events_org", "alarm_events", ["org_id", "id"], if_not_exists=True)
    op.create_index(
        "ix_alarm_events_notify",
        "alarm_events",
        ["alarm_id", "notify_at"],
        sqlite_where=has_message,
        postgresql_where=has_message,
        if_not_exists=True,
    )


def downgrade() -> None:
    for table in ("alarm_events", "alarm_checks", "alarms", "alarm_channels"):
        op.drop_table(table)
    op.drop_index("ix_schedules_pausing", "schedules")
    op.drop_column("schedules", "pause_after_failures")
