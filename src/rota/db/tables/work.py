"""Tasks, pipelines and artifacts."""

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
    text,
)

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("task_type", String(10), nullable=False),
    Column("command", Text, nullable=False),
    Column("parameters", Json),
    Column("options", Json),
    Column("schema", Json),  # of a function's parameters, for those who cannot see the function
    Column("enabled", Boolean, nullable=False),
    Column("source", String(10), nullable=False),
    Column("program", Name),  # which one declares it
    Column("version", String(60), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)

task_versions = Table(  # append-only: the task as a run ran it, even if it was edited or deleted since
    "task_versions",
    metadata,
    Column("org_id", Id, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("version", String(60), primary_key=True),
    Column("snapshot", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
)

cached_results = Table(
    "cached_results",
    metadata,
    Column("org_id", Id, primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("outcome", Json),
    Column("run_id", Id, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Index("ix_cached_results_expires", "expires_at"),
)

pipelines = Table(
    "pipelines",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("path", Name, nullable=False),  # namespace/layer/name
    Column("type", String(10), nullable=False),
    Column("sql", Text),
    Column("function", Name),
    Column("reads", Json, nullable=False),  # the paths of the tables that it reads
    Column("description", Text, nullable=False),
    Column("owner_id", Id),
    Column("version", Integer, nullable=False),
    Column("max_runs", Integer),  # of its runs that are kept, where that is fewer than by age
    Column("max_age_days", Integer),
    Column("increment", Json),  # columns by append_by, merge_by or partition_by; null: runs replace the table
    Column("source", String(10), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("deleted_at", Instant),
)
partial_index("ix_pipelines_path", pipelines.c.org_id, pipelines.c.path, where=text("deleted_at IS NULL"), unique=True)
partial_index("ix_pipelines_kept", pipelines.c.id, where=text("max_runs IS NOT NULL OR max_age_days IS NOT NULL"))

pipeline_versions = Table(  # append-only: the pipeline as a run ran it
    "pipeline_versions",
    metadata,
    Column("pipeline_id", Id, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("type", String(10), nullable=False),
    Column("sql", Text),
    Column("function", Name),
    Column("increment", Json),
    Column("created_at", Instant, nullable=False),
)

pipeline_triggers = Table(  # events that make a pipeline run, beside schedules and requests
    "pipeline_triggers",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("pipeline_id", Id, ForeignKey("pipelines.id"), nullable=False),
    Column("type", String(20), nullable=False),
    Column("schedule_id", Id),  # of a cron_dependency: whose slots ask for it
    Column("token_hash", String(64), unique=True),  # of a webhook
    Column("cooldown_seconds", Integer, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("waits", Boolean, nullable=False),  # its slot has come, and not all of its upstreams have
    Column("last_triggered_at", Instant),
    Column("last_job_id", Id),
    Column("source", String(10), nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_pipeline_triggers_pipeline", "pipeline_id", "id"),
    Index("ix_pipeline_triggers_schedule", "schedule_id"),
    Index("ix_pipeline_triggers_org", "org_id", "id"),
)

pipeline_upstreams = Table(  # the pipelines that a trigger waits for
    "pipeline_upstreams",
    metadata,
    Column("trigger_id", Id, ForeignKey("pipeline_triggers.id"), primary_key=True),
    Column("pipeline_id", Id, ForeignKey("pipelines.id"), primary_key=True),
    Column("fresh", Boolean, nullable=False),  # it succeeded since the trigger fired last
    Index("ix_pipeline_upstreams_pipeline", "pipeline_id"),
)

artifacts = Table(  # results of runs beside their outcome; a run is the root of its artifacts
    "artifacts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("run_id", Id),
    Column("parent_id", Id),
    Column("level", Integer, nullable=False),
    Column("label", Name, nullable=False),
    Column("content_type", Name, nullable=False),
    Column("content", LargeBinary, nullable=False),  # empty if it is in the object store
    Column("created_at", Instant, nullable=False),
    Column("object_key", String(200)),  # of the object with the content, below ROTA_ARTIFACTS_URL
    Column("size", BigInteger),  # of that object, in bytes
    Column("sha256", String(64)),
    Index("ix_artifacts_org", "org_id", "id"),
    Index("ix_artifacts_run", "run_id"),
    Index("ix_artifacts_parent", "parent_id"),
)

object_operations = Table(  # uploads whose artifact is not stored yet, and deletions of objects that are not done
    "object_operations",
    metadata,
    Column("object_key", String(200), primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("operation", String(10), nullable=False),
    Column("updated_at", Instant, nullable=False),  # an upload renews it; database clock
    Index("ix_object_operations_updated", "operation", "updated_at"),
)
