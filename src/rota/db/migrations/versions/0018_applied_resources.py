"""Resources that were applied from files, with digests of their fields: what drifted, and what files no longer have."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Instant, Json

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "applied_resources",
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("resource", sa.String(40), nullable=False),
        sa.Column("name", sa.String(400), nullable=False),
        sa.Column("digests", Json(), nullable=False),
        sa.Column("applied_by", sa.String(26)),
        sa.Column("applied_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_applied_resources_org_id"),
        sa.PrimaryKeyConstraint("org_id", "resource", "name", name="pk_applied_resources"),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("applied_resources")
