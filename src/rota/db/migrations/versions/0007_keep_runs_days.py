"""Schedules may keep their runs for another time than the installation does."""

import sqlalchemy as sa
from alembic import op

from rota.db import online

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    online.add_column("schedules", sa.Column("keep_runs_days", sa.Integer()))
    online.create_index("ix_schedules_kept", "schedules", ["keep_runs_days", "id"], where="keep_runs_days IS NOT NULL")


def downgrade() -> None:
    op.drop_index("ix_schedules_kept", "schedules")
    op.drop_column("schedules", "keep_runs_days")
