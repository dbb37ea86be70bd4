"""Login sessions are rows. The key that signed their cookies is gone, so everybody logs in again."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Instant

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.drop_table("signing_keys")
    op.create_table(
        "login_sessions",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("user_id", sa.String(length=26), nullable=False),
        sa.Column("key_id", sa.String(length=26), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("user_agent", sa.String(length=200), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("last_used_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_login_sessions_key_id")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_login_sessions_org_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_login_sessions_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_sessions")),
        sa.UniqueConstraint("hash", name=op.f("uq_login_sessions_hash")),
    )
    op.create_index("ix_login_sessions_org", "login_sessions", ["org_id", "id"])
    op.create_index("ix_login_sessions_user", "login_sessions", ["user_id"])


def downgrade() -> None:
    op.drop_table("login_sessions")
    op.create_table(
        "signing_keys",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_signing_keys")),
    )
