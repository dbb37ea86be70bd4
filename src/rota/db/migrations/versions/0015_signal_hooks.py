"""Webhooks that send signals."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Instant

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "signal_hooks",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("topic", sa.String(200), nullable=False),
        sa.Column("key_field", sa.String(200)),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("previous_secret", sa.Text()),
        sa.Column("previous_until", Instant()),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_signal_hooks"),
        sa.UniqueConstraint("org_id", "name", name="uq_signal_hooks_org_id_name"),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("signal_hooks")
