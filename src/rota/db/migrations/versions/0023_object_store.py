"""Contents of artifacts in an object store: where they are, and the operations on objects that are not done."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    online.add_column("artifacts", sa.Column("object_key", sa.String(200)))
    online.add_column("artifacts", sa.Column("size", sa.BigInteger()))
    online.add_column("artifacts", sa.Column("sha256", sa.String(64)))
    op.create_table(
        "object_operations",
        sa.Column("object_key", sa.String(200), nullable=False),
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("operation", sa.String(10), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("object_key", name="pk_object_operations"),
        if_not_exists=True,
    )
    online.create_index("ix_object_operations_updated", "object_operations", ["operation", "updated_at"])


def downgrade() -> None:
    op.drop_table("object_operations")
    for column in ("sha256", "size", "object_key"):
        op.drop_column("artifacts", column)
