"""Metrics of workers are stored with their heartbeats; runs have the CPU time and the peak memory that they used."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Json

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("workers", sa.Column("metrics", Json()))
    op.add_column("workers", sa.Column("metrics_merged", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("runs", sa.Column("cpu_seconds", sa.Float()))
    op.add_column("runs", sa.Column("peak_memory_bytes", sa.BigInteger()))
    op.create_table(
        "metric_totals",
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("metrics", Json(), nullable=False),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_metric_totals")),
    )


def downgrade() -> None:
    op.drop_table("metric_totals")
    op.drop_column("runs", "peak_memory_bytes")
    op.drop_column("runs", "cpu_seconds")
    op.drop_column("workers", "metrics_merged")
    op.drop_column("workers", "metrics")
