"""Pipelines whose runs add to their table, merge into it or replace a day of it."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Json

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    online.add_column("pipelines", sa.Column("increment", Json()))
    online.add_column("pipeline_versions", sa.Column("increment", Json()))


def downgrade() -> None:
    op.drop_column("pipeline_versions", "increment")
    op.drop_column("pipelines", "increment")
