"""Lost attempts: one whose start was not recorded has the number of the next attempt of its job."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("lost_fence", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
        runs.drop_constraint("uq_runs_job_id_attempt", type_="unique")
        runs.create_unique_constraint("uq_runs_job_id_attempt_lost_fence", ["job_id", "attempt", "lost_fence"])


def downgrade() -> None:
    op.execute("DELETE FROM runs WHERE status = 'lost'")
    with op.batch_alter_table("runs") as runs:
        runs.drop_constraint("uq_runs_job_id_attempt_lost_fence", type_="unique")
        runs.create_unique_constraint("uq_runs_job_id_attempt", ["job_id", "attempt"])
        runs.drop_column("lost_fence")
