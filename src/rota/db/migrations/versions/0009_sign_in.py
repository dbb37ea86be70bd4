"""Sign-in by an OpenID Connect provider, service accounts, and users that are disabled."""

import sqlalchemy as sa
from alembic import op

from rota.db import online
from rota.db.column_types import Instant, Json

revision = "0009"
down_revision = "0008"

SIGNED_IN = "oidc_subject IS NOT NULL AND deleted_at IS NULL"
USER_COLUMNS = ("oidc_subject", "oidc_issuer", "disabled_by", "disabled_at", "scopes", "type")


def upgrade() -> None:
    online.add_column("users", sa.Column("type", sa.String(10), nullable=False, server_default="person"))
    online.add_column("users", sa.Column("scopes", Json()))
    online.add_column("users", sa.Column("disabled_at", Instant()))
    online.add_column("users", sa.Column("disabled_by", sa.String(10)))
    online.add_column("users", sa.Column("oidc_issuer", sa.String(500)))
    online.add_column("users", sa.Column("oidc_subject", sa.String(255)))
    online.add_column("login_sessions", sa.Column("method", sa.String(10)))
    online.create_index(
        "ix_users_oidc", "users", ["org_id", "oidc_issuer", "oidc_subject"], unique=True, where=SIGNED_IN
    )
    op.create_table(  # last: it is committed with the revision, so that an interrupted migration can be repeated
        "oidc_nonces",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_oidc_nonces")),
    )


def downgrade() -> None:
    op.drop_table("oidc_nonces")
    op.drop_column("login_sessions", "method")
    op.drop_index("ix_users_oidc", "users")
    for name in USER_COLUMNS:
        op.drop_column("users", name)
