"""Jobs that go on under one version of their code."""

from alembic import op

from rota.db import online

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    online.create_index("ix_jobs_pinned", "jobs", ["route"], where="route LIKE '%/@%'")


def downgrade() -> None:
    op.drop_index("ix_jobs_pinned", "jobs")
