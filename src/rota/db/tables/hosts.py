"""Hosts, servers and batches."""

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata

hosts = Table(  # machines of an org, each with one agent
    "hosts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("labels", Json, nullable=False),
    Column("key_hash", String(64), nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("agent_version", String(40)),
    Column("job_types", Json),  # what its agent can do; none before it first spoke
    Column("metrics", Json),
    Column("last_heartbeat_at", Instant),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)

pairing_tokens = Table(
    "pairing_tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created_by", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
    Column("host_id", Id),
    Index("ix_pairing_tokens_expires", "expires_at"),
)

server_instances = Table(
    "server_instances",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("host_id", Id, ForeignKey("hosts.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("type", Name, nullable=False),
    Column("config", Json, nullable=False),
    Column("labels", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("host_id", "name"),
    Index("ix_server_instances_org", "org_id", "id"),
)

batches = Table(  # one job on many servers; its id is the id of its coordinating job
    "batches",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("target", Text, nullable=False),
    Column("job_type", Name, nullable=False),
    Column("max_parallel", Integer, nullable=False),
    Column("stop_on_failure", Boolean, nullable=False),
    Column("status", String(30), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Index("ix_batches_org", "org_id", "id"),
)

batch_members = Table(
    "batch_members",
    metadata,
    Column("batch_id", Id, ForeignKey("batches.id"), primary_key=True),
    Column("server_instance_id", Id, primary_key=True),
    Column("name", Name, nullable=False),
    Column("job_id", Id),  # none before its turn has come
    Column("status", String(10)),  # what it ended as
)
