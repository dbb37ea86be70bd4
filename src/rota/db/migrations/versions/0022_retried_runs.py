"""An index of runs by the run that they retry."""

from alembic import op

from rota.db import online

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    online.create_index("ix_runs_retry", "runs", ["retry_of"], where="retry_of IS NOT NULL")


def downgrade() -> None:
    op.drop_index("ix_runs_retry", "runs")
