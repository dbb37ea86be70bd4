"""Freeze windows, and how often those of an org changed."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "freeze_windows",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("starts_at", Instant(), nullable=False),
        sa.Column("ends_at", Instant(), nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(20)),
        sa.Column("queue", sa.String(200)),
        sa.Column("tag", sa.String(200)),
        sa.Column("created_by", sa.String(26)),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_freeze_windows_org_id"),
        sa.PrimaryKeyConstraint("id", name="pk_freeze_windows"),
        sa.UniqueConstraint("org_id", "name", name="uq_freeze_windows_org_id_name"),
        if_not_exists=True,
    )
    op.create_index("ix_freeze_windows_end", "freeze_windows", ["org_id", "ends_at"], if_not_exists=True)
    online.add_column("orgs", sa.Column("freeze_revision", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("orgs", "freeze_revision")
    op.drop_table("freeze_windows")
