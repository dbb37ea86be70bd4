"""Schedules may spread their catch-ups, and let them wait for an approval."""

import sqlalchemy as sa
from alembic import op

from rota.db import online

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    online.add_column("schedules", sa.Column("catch_up_spread_hours", sa.Float()))
    online.add_column("schedules", sa.Column("catch_up_approval_slots", sa.Integer()))


def downgrade() -> None:
    op.drop_column("schedules", "catch_up_approval_slots")
    op.drop_column("schedules", "catch_up_spread_hours")
