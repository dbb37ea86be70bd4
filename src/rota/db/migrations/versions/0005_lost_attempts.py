"""Lost attempts: one whose start was not recorded has the number of the next attempt of its job."""

import sqlalchemy as sa
from alembic import op

from rota.db import online

revision = "0005"
down_revision = "0004"


OLD, NEW = "uq_runs_job_id_attempt", "uq_runs_job_id_attempt_lost_fence"
COLUMNS = ["job_id", "attempt", "lost_fence"]


def upgrade() -> None:
    lost_fence = sa.Column("lost_fence", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    if op.get_context().dialect.name == "sqlite":
        with op.batch_alter_table("runs") as runs:
            runs.add_column(lost_fence)
            runs.drop_constraint(OLD, type_="unique")
            runs.create_unique_constraint(NEW, COLUMNS)
    else:
        online.add_column("runs", lost_fence)
        online.create_index(NEW, "runs", COLUMNS, unique=True)
        op.execute(f"ALTER TABLE runs DROP CONSTRAINT {OLD}, ADD CONSTRAINT {NEW} UNIQUE USING INDEX {NEW}")


def downgrade() -> None:
    op.execute("DELETE FROM runs WHERE status = 'lost'")
    with op.batch_alter_table("runs") as runs:
        runs.drop_constraint("uq_runs_job_id_attempt_lost_fence", type_="unique")
        runs.create_unique_constraint("uq_runs_job_id_attempt", ["job_id", "attempt"])
        runs.drop_column("lost_fence")
