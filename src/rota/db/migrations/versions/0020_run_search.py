"""An index of runs with an error, for searches, and saved views."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant, Json

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    online.create_index("ix_runs_error", "runs", ["org_id", "recorded_at", "id"], where="error IS NOT NULL")
    op.create_table(
        "saved_views",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("owner_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("filter", Json(), nullable=False),
        sa.Column("visibility", sa.String(10), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name="fk_saved_views_org_id"),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_saved_views_owner_id"),
        sa.PrimaryKeyConstraint("id", name="pk_saved_views"),
        sa.UniqueConstraint("org_id", "owner_id", "name", name="uq_saved_views_org_id_owner_id_name"),
        if_not_exists=True,
    )
    op.create_index("ix_saved_views_name", "saved_views", ["org_id", "name", "id"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("saved_views")
    op.drop_index("ix_runs_error", "runs")
