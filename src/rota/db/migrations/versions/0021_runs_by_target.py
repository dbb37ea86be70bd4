"""An index of runs by the name of their target."""

from alembic import op

from rota.db import online

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    online.create_index("ix_runs_target", "runs", ["org_id", "target_name", "recorded_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_runs_target", "runs")
