"""Orgs have the right to run commands, and routes of tasks name their org."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TABLES = ("schedules", "jobs", "runs")
PREFIXES = ("task:", "row:")


def upgrade() -> None:
    op.add_column("orgs", sa.Column("shell", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute("UPDATE orgs SET shell = true WHERE slug = 'default'")
    for table in TABLES:
        slug = f"(SELECT slug FROM orgs WHERE orgs.id = {table}.org_id)"
        op.execute(f"UPDATE {table} SET route = 'shell:' || {slug} WHERE kind = 'task' AND route = 'shell'")
        for prefix in PREFIXES:
            op.execute(
                f"UPDATE {table} SET route = '{prefix}' || {slug} || ':' || substr(route, {len(prefix) + 1}) "
                f"WHERE kind = 'task' AND route LIKE '{prefix}%'"
            )


def downgrade() -> None:
    for table in TABLES:
        slug = f"(SELECT slug FROM orgs WHERE orgs.id = {table}.org_id)"
        op.execute(f"UPDATE {table} SET route = 'shell' WHERE kind = 'task' AND route = 'shell:' || {slug}")
        for prefix in PREFIXES:
            op.execute(
                f"UPDATE {table} SET route = '{prefix}' || substr(route, {len(prefix) + 2} + length({slug})) "
                f"WHERE kind = 'task' AND route LIKE '{prefix}%'"
            )
    op.drop_column("orgs", "shell")
