"""Acknowledgements of failing schedules and targets."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Instant

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "acknowledgements",
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("user_id", sa.String(length=26), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_acknowledgements_org_id")),
        sa.PrimaryKeyConstraint("org_id", "subject", name=op.f("pk_acknowledgements")),
    )


def downgrade() -> None:
    op.drop_table("acknowledgements")
