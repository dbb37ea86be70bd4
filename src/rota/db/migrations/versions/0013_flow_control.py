"""Rates of queues and tasks, places of keys, and jobs after jobs."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    online.add_column("queues", sa.Column("rate", sa.String(40)))
    online.add_column("queues", sa.Column("burst", sa.Integer()))
    online.add_column("jobs", sa.Column("reserved_at", Instant()))
    online.add_column("jobs", sa.Column("place_key", sa.Text()))
    online.add_column("jobs", sa.Column("place_wanted", sa.Text()))
    online.add_column("jobs", sa.Column("place_limit", sa.Integer()))
    online.create_index("ix_jobs_place", "jobs", ["place_key"], where="place_key IS NOT NULL")
    online.create_index(
        "ix_jobs_place_wanted",
        "jobs",
        ["place_wanted", sa.text("priority DESC"), "queued_at", "id"],
        where="place_wanted IS NOT NULL",
    )
    op.create_table(
        "rate_limits",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("tat_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_rate_limits"),
        if_not_exists=True,
    )
    op.create_index("ix_rate_limits_tat", "rate_limits", ["tat_us"], if_not_exists=True)
    op.create_table(
        "job_dependencies",
        sa.Column("job_id", sa.String(26), nullable=False),
        sa.Column("depends_on", sa.String(26), nullable=False),
        sa.Column("condition", sa.String(10), nullable=False),
        sa.Column("status", sa.String(10)),
        sa.PrimaryKeyConstraint("job_id", "depends_on", name="pk_job_dependencies"),
        if_not_exists=True,
    )
    op.create_index("ix_job_dependencies_on", "job_dependencies", ["depends_on"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("job_dependencies")
    op.drop_table("rate_limits")
    op.drop_index("ix_jobs_place_wanted", "jobs")
    op.drop_index("ix_jobs_place", "jobs")
    for column in ("place_limit", "place_wanted", "place_key", "reserved_at"):
        op.drop_column("jobs", column)
    for column in ("burst", "rate"):
        op.drop_column("queues", column)
