"""Organisations, users, keys, logins, the audit log and idempotency keys."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

counters = Table(
    "counters",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

orgs = Table(
    "orgs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("slug", String(60), nullable=False, unique=True),
    Column("name", Name, nullable=False),
    Column("max_running", Integer),
    Column("shell", Boolean, nullable=False, server_default=false()),  # whether its people may store commands
    Column("frozen_at", Instant),
    Column("frozen_until", Instant),
    Column("freeze_reason", Text),
    Column("freeze_revision", Integer, nullable=False, server_default="0"),  # counts changes of its freeze windows
    Column("created_at", Instant, nullable=False),
)

users = Table(  # a person is known per org: an admin of one org cannot set a password that opens another
    "users",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column(
        "email", String(320)
    ),  # none: the org's `system` user, for whom code and the first key act; else see accounts
    Column("name", Name, nullable=False),
    Column("password_hash", Text),
    Column("role", String(20), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("deleted_at", Instant),
    Column("type", String(10), nullable=False, server_default="person"),  # `person`, or `service` for service accounts
    Column("scopes", Json),  # of a service account: limits those of its keys
    Column("disabled_at", Instant),
    Column("disabled_by", String(10)),  # `admin`, or `provider`: undone by the next sign-in with a role
    Column("oidc_issuer", String(500)),
    Column("oidc_subject", String(255)),
)
partial_index("ix_users_email", users.c.org_id, users.c.email, where=text("deleted_at IS NULL"), unique=True)
partial_index("ix_users_system", users.c.org_id, where=text("email IS NULL"), unique=True)
partial_index(
    "ix_users_oidc",
    users.c.org_id,
    users.c.oidc_issuer,
    users.c.oidc_subject,
    where=text("oidc_subject IS NOT NULL AND deleted_at IS NULL"),
    unique=True,
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("user_id", Id, ForeignKey("users.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("role", String(20), nullable=False),
    Column("scopes", Json, nullable=False),
    Column("instance_admin", Boolean, nullable=False),
    Column("prefix", String(12), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant),
    Column("last_used_at", Instant),
    Column("revoked_at", Instant),
    Index("ix_api_keys_prefix", "prefix"),
    Index("ix_api_keys_org", "org_id", "id"),
)

login_links = Table(  # unused ones: using a link deletes it
    "login_links",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("user_id", Id, ForeignKey("users.id"), nullable=False),
    Column("key_id", Id, ForeignKey("api_keys.id")),  # whose session it will be, and end with; none: the user's own
    Column("expires_at", Instant, nullable=False),
)

login_sessions = Table(  # of the dashboard; logging out deletes the row
    "login_sessions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # of the cookie's random token
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("user_id", Id, ForeignKey("users.id"), nullable=False),
    Column("key_id", Id, ForeignKey("api_keys.id")),  # whose login link began it; it ends with that key
    Column("address", Text),
    Column("user_agent", String(200)),
    Column("created_at", Instant, nullable=False),
    Column("last_used_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("method", String(10)),  # how it began: `password`, `link`, `oidc`
    Index("ix_login_sessions_org", "org_id", "id"),
    Index("ix_login_sessions_user", "user_id"),
)

saved_views = Table(  # named filters of runs
    "saved_views",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("filter", Json, nullable=False),
    Column("visibility", String(10), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "owner_id", "name"),
    Index("ix_saved_views_name", "org_id", "name", "id"),
)

oidc_nonces = Table(  # of completed sign-ins, until their ID tokens are too old: each ID token signs in once
    "oidc_nonces",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("expires_at", Instant, nullable=False),
)

audit_log = Table(  # append-only
    "audit_log",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("at", Instant, nullable=False),
    Column("user_id", Id, nullable=False),
    Column("key_id", Id),
    Column("action", String(60), nullable=False),
    Column("resource", String(40), nullable=False),
    Column("resource_id", Text),
    Column("before", Json),
    Column("after", Json),
    Column("address", Text),
    Column("request_id", String(64)),
    Index("ix_audit_log_org", "org_id", "id"),
    Index("ix_audit_log_at", "at", "id"),  # what is new, and what is old
)
partial_index(  # the history of one resource
    "ix_audit_log_resource",
    audit_log.c.org_id,
    audit_log.c.resource,
    audit_log.c.resource_id,
    audit_log.c.id,
    where=text("resource_id IS NOT NULL"),
)

idempotency_keys = Table(  # first answers, returned to repeated requests
    "idempotency_keys",
    metadata,
    Column("org_id", Id, primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("route", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("state", String(10), nullable=False),
    Column("lease_until", Instant, nullable=False),
    Column("status", Integer),
    Column("headers", Json),
    Column("body", LargeBinary),
    Column("created_at", Instant, nullable=False),
    Index("ix_idempotency_keys_age", "created_at"),
)
