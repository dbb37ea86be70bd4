"""Durable tasks: recorded steps, signals, suspended jobs, parents and children."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant, Json

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    online.add_column("jobs", sa.Column("parent_id", sa.String(26)))
    online.add_column("jobs", sa.Column("followed", sa.Boolean(), server_default=sa.false(), nullable=False))
    online.add_column("jobs", sa.Column("waiting", Json()))
    online.add_column("runs", sa.Column("parent_id", sa.String(26)))
    online.create_index("ix_jobs_parent", "jobs", ["parent_id"], where="parent_id IS NOT NULL")
    online.create_index("ix_runs_parent", "runs", ["parent_id", "id"], where="parent_id IS NOT NULL")
    online.create_index("ix_jobs_due", "jobs", ["run_at"], where="state IN ('later', 'retry', 'waiting')")
    heads = "serial_key IS NOT NULL AND state IN ('ready', 'running', 'retry', 'waiting', 'parked')"
    online.create_index("ix_jobs_heads", "jobs", ["serial_key"], unique=True, where=heads)
    op.drop_index("ix_jobs_later", "jobs", if_exists=True)
    op.drop_index("ix_jobs_head", "jobs", if_exists=True)
    op.create_table(
        "steps",
        sa.Column("job_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(10), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("finished_at", Instant()),
        sa.Column("result", Json()),
        sa.Column("error", Json()),
        sa.Column("params", Json()),
        sa.Column("until", Instant()),
        sa.Column("topic", sa.String(200)),
        sa.Column("key", sa.String(200)),
        sa.Column("waits_for", sa.Text()),
        sa.Column("child_job_id", sa.String(26)),
        sa.Column("run_id", sa.String(26), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_steps"),
        if_not_exists=True,
    )
    online.create_index(
        "ix_steps_waiting", "steps", ["waits_for", "started_at"], where="status = 'waiting' AND waits_for IS NOT NULL"
    )
    op.create_table(
        "signals",
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("topic", sa.String(200), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("payload", Json()),
        sa.Column("sender", sa.Text()),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("consumed_at", Instant()),
        sa.Column("consumed_by_job", sa.String(26)),
        sa.PrimaryKeyConstraint("org_id", "id", name="pk_signals"),
        if_not_exists=True,
    )
    online.create_index(
        "ix_signals_kept", "signals", ["org_id", "topic", "key", "created_at"], where="consumed_at IS NULL"
    )
    op.create_index("ix_signals_age", "signals", ["created_at"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("signals")
    op.drop_table("steps")
    op.execute("UPDATE jobs SET state = 'retry' WHERE state = 'waiting'")
    online.create_index("ix_jobs_later", "jobs", ["run_at"], where="state IN ('later', 'retry')")
    heads = "serial_key IS NOT NULL AND state IN ('ready', 'running', 'retry', 'parked')"
    online.create_index("ix_jobs_head", "jobs", ["serial_key"], unique=True, where=heads)
    for index, table in (
        ("ix_jobs_due", "jobs"),
        ("ix_jobs_heads", "jobs"),
        ("ix_runs_parent", "runs"),
        ("ix_jobs_parent", "jobs"),
    ):
        op.drop_index(index, table)
    op.drop_column("runs", "parent_id")
    for column in ("waiting", "followed", "parent_id"):
        op.drop_column("jobs", column)
