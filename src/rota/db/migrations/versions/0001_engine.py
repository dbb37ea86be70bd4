"""The engine: orgs, schedules, clocks, slots, jobs, runs, workers."""

import sqlalchemy as sa
from alembic import op

from rota.db.column_types import Instant, Json

revision = "0001"
down_revision = None


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE fences")
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("parent_id", sa.String(length=26), nullable=True),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("content_type", sa.String(length=200), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
    )
    op.create_index("ix_artifacts_org", "artifacts", ["org_id", "id"], unique=False)
    op.create_index("ix_artifacts_parent", "artifacts", ["parent_id"], unique=False)
    op.create_index("ix_artifacts_run", "artifacts", ["run_id"], unique=False)
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("user_id", sa.String(length=26), nullable=False),
        sa.Column("key_id", sa.String(length=26), nullable=True),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("resource", sa.String(length=40), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=True),
        sa.Column("before", Json(), nullable=True),
        sa.Column("after", Json(), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at", "id"], unique=False)
    op.create_index("ix_audit_log_org", "audit_log", ["org_id", "id"], unique=False)
    op.create_index(
        "ix_audit_log_resource",
        "audit_log",
        ["org_id", "resource", "resource_id", "id"],
        unique=False,
        sqlite_where=sa.text("resource_id IS NOT NULL"),
        postgresql_where=sa.text("resource_id IS NOT NULL"),
    )
    op.create_table(
        "cached_results",
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("outcome", Json(), nullable=True),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("org_id", "key", name=op.f("pk_cached_results")),
    )
    op.create_index("ix_cached_results_expires", "cached_results", ["expires_at"], unique=False)
    op.create_table(
        "causes",
        sa.Column("input_id", sa.String(length=26), nullable=False),
        sa.Column("event_id", sa.String(length=26), nullable=False),
        sa.PrimaryKeyConstraint("input_id", "event_id", name=op.f("pk_causes")),
    )
    op.create_index("ix_causes_event", "causes", ["event_id"], unique=False)
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("lease_until", Instant(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", Json(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("org_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_age", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("payload", Json(), nullable=True),
        sa.Column("queue", sa.String(length=200), nullable=False),
        sa.Column("serial_key", sa.Text(), nullable=True),
        sa.Column("solo_key", sa.Text(), nullable=True),
        sa.Column("job_key", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("queued_at", Instant(), nullable=False),
        sa.Column("run_at", Instant(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("schedule_id", sa.String(length=26), nullable=True),
        sa.Column("slot", Instant(), nullable=True),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("rescues", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("last_run_id", sa.String(length=26), nullable=True),
        sa.Column("started_at", Instant(), nullable=True),
        sa.Column("parked_reason", sa.String(length=40), nullable=True),
        sa.Column("lease_owner", sa.String(length=26), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("cancel_requested_at", Instant(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("terms", Json(), nullable=True),
        sa.Column("trace", sa.String(length=55), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_blocked",
        "jobs",
        ["serial_key", sa.literal_column("priority DESC"), "run_at", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'blocked'"),
        postgresql_where=sa.text("state = 'blocked'"),
    )
    op.create_index(
        "ix_jobs_head",
        "jobs",
        ["serial_key"],
        unique=True,
        sqlite_where=sa.text("serial_key IS NOT NULL AND state IN ('ready', 'running', 'retry', 'parked')"),
        postgresql_where=sa.text("serial_key IS NOT NULL AND state IN ('ready', 'running', 'retry', 'parked')"),
    )
    op.create_index(
        "ix_jobs_held",
        "jobs",
        ["lease_owner", "org_id", "queue"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "ix_jobs_host",
        "jobs",
        ["route", "state"],
        unique=False,
        sqlite_where=sa.text("kind = 'host_job'"),
        postgresql_where=sa.text("kind = 'host_job'"),
    )
    op.create_index(
        "ix_jobs_key",
        "jobs",
        ["org_id", "job_key"],
        unique=True,
        sqlite_where=sa.text("job_key IS NOT NULL"),
        postgresql_where=sa.text("job_key IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_later",
        "jobs",
        ["run_at"],
        unique=False,
        sqlite_where=sa.text("state IN ('later', 'retry')"),
        postgresql_where=sa.text("state IN ('later', 'retry')"),
    )
    op.create_index(
        "ix_jobs_parked",
        "jobs",
        ["org_id", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'parked'"),
        postgresql_where=sa.text("state = 'parked'"),
    )
    op.create_index(
        "ix_jobs_ready",
        "jobs",
        ["org_id", "queue", sa.literal_column("priority DESC"), "run_at", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'ready'"),
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "ix_jobs_run",
        "jobs",
        ["run_id"],
        unique=False,
        sqlite_where=sa.text("run_id IS NOT NULL"),
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_schedule",
        "jobs",
        ["schedule_id"],
        unique=False,
        sqlite_where=sa.text("schedule_id IS NOT NULL"),
        postgresql_where=sa.text("schedule_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_solo",
        "jobs",
        ["solo_key"],
        unique=True,
        sqlite_where=sa.text("solo_key IS NOT NULL"),
        postgresql_where=sa.text("solo_key IS NOT NULL"),
    )
    op.create_table(
        "logs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("stream", sa.String(length=10), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_logs")),
    )
    op.create_index("ix_logs_run", "logs", ["run_id", "id"], unique=False)
    op.create_table(
        "orgs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("slug", sa.String(length=60), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("frozen_at", Instant(), nullable=True),
        sa.Column("frozen_until", Instant(), nullable=True),
        sa.Column("freeze_reason", sa.Text(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_orgs")),
        sa.UniqueConstraint("slug", name=op.f("uq_orgs_slug")),
    )
    op.create_table(
        "pipeline_versions",
        sa.Column("pipeline_id", sa.String(length=26), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=10), nullable=False),
        sa.Column("sql", sa.Text(), nullable=True),
        sa.Column("function", sa.String(length=200), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline_id", "version", name=op.f("pk_pipeline_versions")),
    )
    op.create_table(
        "queues",
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("paused_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("org_id", "name", name=op.f("pk_queues")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("input", Json(), nullable=True),
        sa.Column("target_name", sa.Text(), nullable=True),
        sa.Column("target_version", sa.String(length=60), nullable=True),
        sa.Column("schedule_id", sa.String(length=26), nullable=True),
        sa.Column("slot", Instant(), nullable=True),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("retry_of", sa.String(length=26), nullable=True),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error", Json(), nullable=True),
        sa.Column("outcome", Json(), nullable=True),
        sa.Column("queued_at", Instant(), nullable=False),
        sa.Column("started_at", Instant(), nullable=True),
        sa.Column("finished_at", Instant(), nullable=False),
        sa.Column("recorded_at", Instant(), nullable=False),
        sa.Column("worker", sa.String(length=26), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("trace_id", sa.String(length=32), nullable=True),
        sa.Column("artifact_id", sa.String(length=26), nullable=True),
        sa.Column("grant_id", sa.String(length=26), nullable=True),
        sa.Column("usage", Json(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("job_id", "attempt", name=op.f("uq_runs_job_id_attempt")),
    )
    op.create_index(
        "ix_runs_pipeline",
        "runs",
        ["org_id", "target", "recorded_at", "id"],
        unique=False,
        sqlite_where=sa.text("kind = 'pipeline'"),
        postgresql_where=sa.text("kind = 'pipeline'"),
    )
    op.create_index("ix_runs_recorded", "runs", ["org_id", "recorded_at", "id"], unique=False)
    op.create_index(
        "ix_runs_schedule",
        "runs",
        ["schedule_id", "recorded_at", "id"],
        unique=False,
        sqlite_where=sa.text("schedule_id IS NOT NULL"),
        postgresql_where=sa.text("schedule_id IS NOT NULL"),
    )
    op.create_index(
        "ix_runs_server",
        "runs",
        ["org_id", "target", "recorded_at", "id"],
        unique=False,
        sqlite_where=sa.text("kind = 'host_job'"),
        postgresql_where=sa.text("kind = 'host_job'"),
    )
    op.create_index(
        "ix_runs_status",
        "runs",
        ["org_id", "status", "recorded_at", "id"],
        unique=False,
        sqlite_where=sa.text("status <> 'success'"),
        postgresql_where=sa.text("status <> 'success'"),
    )
    op.create_table(
        "signing_keys",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "slots",
        sa.Column("schedule_id", sa.String(length=26), nullable=False),
        sa.Column("slot", Instant(), nullable=False),
        sa.Column("last_slot", Instant(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.String(length=10), nullable=True),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("into_slot", Instant(), nullable=True),
        sa.Column("job_id", sa.String(length=26), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "slot", name=op.f("pk_slots")),
    )
    op.create_index("ix_slots_age", "slots", ["slot"], unique=False)
    op.create_index(
        "ix_slots_missed",
        "slots",
        ["slot"],
        unique=False,
        sqlite_where=sa.text("verdict = 'missed'"),
        postgresql_where=sa.text("verdict = 'missed'"),
    )
    op.create_index(
        "ix_slots_uncounted",
        "slots",
        ["schedule_id"],
        unique=False,
        sqlite_where=sa.text("count IS NULL"),
        postgresql_where=sa.text("count IS NULL"),
    )
    op.create_table(
        "task_versions",
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=60), nullable=False),
        sa.Column("snapshot", Json(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("org_id", "name", "version", name=op.f("pk_task_versions")),
    )
    op.create_table(
        "trigger_spans",
        sa.Column("schedule_id", sa.String(length=26), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("timing", Json(), nullable=False),
        sa.Column("from_at", Instant(), nullable=False),
        sa.Column("until_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("schedule_id", "revision", name=op.f("pk_trigger_spans")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("host_id", sa.String(length=26), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("kinds", Json(), nullable=False),
        sa.Column("routes", Json(), nullable=False),
        sa.Column("queues", Json(), nullable=True),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("renewed_at", Instant(), nullable=False),
        sa.Column("lease_until", Instant(), nullable=False),
        sa.Column("lease_seconds", sa.Integer(), nullable=False),
        sa.Column("stopped_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(
        "ix_workers_alive",
        "workers",
        ["lease_until"],
        unique=False,
        sqlite_where=sa.text("state = 'alive'"),
        postgresql_where=sa.text("state = 'alive'"),
    )
    op.create_index(
        "ix_workers_host",
        "workers",
        ["host_id", "state"],
        unique=False,
        sqlite_where=sa.text("host_id IS NOT NULL"),
        postgresql_where=sa.text("host_id IS NOT NULL"),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("job_type", sa.String(length=200), nullable=False),
        sa.Column("max_parallel", sa.Integer(), nullable=False),
        sa.Column("stop_on_failure", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=30), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("finished_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_batches_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index("ix_batches_org", "batches", ["org_id", "id"], unique=False)
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("labels", Json(), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("key_version", sa.Integer(), nullable=False),
        sa.Column("agent_version", sa.String(length=40), nullable=True),
        sa.Column("job_types", Json(), nullable=True),
        sa.Column("metrics", Json(), nullable=True),
        sa.Column("last_heartbeat_at", Instant(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_hosts_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("org_id", "name", name=op.f("uq_hosts_org_id_name")),
    )
    op.create_table(
        "pairing_tokens",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_by", sa.String(length=26), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.Column("used_at", Instant(), nullable=True),
        sa.Column("host_id", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_pairing_tokens_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pairing_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_pairing_tokens_hash")),
    )
    op.create_index("ix_pairing_tokens_expires", "pairing_tokens", ["expires_at"], unique=False)
    op.create_table(
        "pipelines",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=10), nullable=False),
        sa.Column("sql", sa.Text(), nullable=True),
        sa.Column("function", sa.String(length=200), nullable=True),
        sa.Column("reads", Json(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.String(length=26), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("max_runs", sa.Integer(), nullable=True),
        sa.Column("max_age_days", sa.Integer(), nullable=True),
        sa.Column("source", sa.String(length=10), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("deleted_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_pipelines_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pipelines")),
    )
    op.create_index(
        "ix_pipelines_kept",
        "pipelines",
        ["id"],
        unique=False,
        sqlite_where=sa.text("max_runs IS NOT NULL OR max_age_days IS NOT NULL"),
        postgresql_where=sa.text("max_runs IS NOT NULL OR max_age_days IS NOT NULL"),
    )
    op.create_index(
        "ix_pipelines_path",
        "pipelines",
        ["org_id", "path"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("owner_id", sa.String(length=26), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", Json(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("input", Json(), nullable=True),
        sa.Column("timing", Json(), nullable=False),
        sa.Column("max_runs", sa.Integer(), nullable=True),
        sa.Column("misfire", sa.String(length=10), nullable=False),
        sa.Column("catch_up_limit", sa.Integer(), nullable=False),
        sa.Column("overlap", sa.String(length=10), nullable=False),
        sa.Column("start_deadline_seconds", sa.BigInteger(), nullable=True),
        sa.Column("timeout_seconds", sa.BigInteger(), nullable=True),
        sa.Column("retry", Json(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("queue", sa.String(length=200), nullable=False),
        sa.Column("grant_id", sa.String(length=26), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("paused_at", Instant(), nullable=True),
        sa.Column("paused_until", Instant(), nullable=True),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("condition", sa.String(length=10), nullable=False),
        sa.Column("condition_reason", sa.Text(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("created_by", sa.String(length=26), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("deleted_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_schedules_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(
        "ix_schedules_broken",
        "schedules",
        ["org_id", "name"],
        unique=False,
        sqlite_where=sa.text("condition = 'broken' AND deleted_at IS NULL"),
        postgresql_where=sa.text("condition = 'broken' AND deleted_at IS NULL"),
    )
    op.create_index(
        "ix_schedules_grant",
        "schedules",
        ["grant_id"],
        unique=False,
        sqlite_where=sa.text("grant_id IS NOT NULL AND deleted_at IS NULL"),
        postgresql_where=sa.text("grant_id IS NOT NULL AND deleted_at IS NULL"),
    )
    op.create_index(
        "ix_schedules_made",
        "schedules",
        ["org_id", "id"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_schedules_name",
        "schedules",
        ["org_id", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_schedules_paused",
        "schedules",
        ["org_id", "name"],
        unique=False,
        sqlite_where=sa.text("paused_at IS NOT NULL AND deleted_at IS NULL"),
        postgresql_where=sa.text("paused_at IS NOT NULL AND deleted_at IS NULL"),
    )
    op.create_index(
        "ix_schedules_target",
        "schedules",
        ["org_id", "target"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index("ix_schedules_updated", "schedules", ["org_id", "updated_at", "id"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("task_type", sa.String(length=10), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("parameters", Json(), nullable=True),
        sa.Column("options", Json(), nullable=True),
        sa.Column("schema", Json(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(length=10), nullable=False),
        sa.Column("program", sa.String(length=200), nullable=True),
        sa.Column("version", sa.String(length=60), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_tasks_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("org_id", "name", name=op.f("uq_tasks_org_id_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("deleted_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_users_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
    )
    op.create_index(
        "ix_users_email",
        "users",
        ["org_id", "email"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_users_system",
        "users",
        ["org_id"],
        unique=True,
        sqlite_where=sa.text("email IS NULL"),
        postgresql_where=sa.text("email IS NULL"),
    )
    op.create_table(
        "workflows",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=60), nullable=False),
        sa.Column("declaration", Json(), nullable=False),
        sa.Column("paused_at", Instant(), nullable=True),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("deleted_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_workflows_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflows")),
        sa.UniqueConstraint("org_id", "name", name=op.f("uq_workflows_org_id_name")),
    )
    op.create_index("ix_workflows_updated", "workflows", ["org_id", "updated_at", "id"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("user_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("scopes", Json(), nullable=False),
        sa.Column("instance_admin", sa.Boolean(), nullable=False),
        sa.Column("prefix", sa.String(length=12), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=True),
        sa.Column("last_used_at", Instant(), nullable=True),
        sa.Column("revoked_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_api_keys_org_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_keys_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_keys_hash")),
    )
    op.create_index("ix_api_keys_org", "api_keys", ["org_id", "id"], unique=False)
    op.create_index("ix_api_keys_prefix", "api_keys", ["prefix"], unique=False)
    op.create_table(
        "batch_members",
        sa.Column("batch_id", sa.String(length=26), nullable=False),
        sa.Column("server_instance_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=True),
        sa.Column("status", sa.String(length=10), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_batch_members_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", "server_instance_id", name=op.f("pk_batch_members")),
    )
    op.create_table(
        "billing_accounts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("owner_id", sa.String(length=26), nullable=False),
        sa.Column("balance_credits", sa.BigInteger(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("closed_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_billing_accounts_org_id")),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_billing_accounts_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_billing_accounts")),
        sa.UniqueConstraint("owner_id", name=op.f("uq_billing_accounts_owner_id")),
    )
    op.create_index("ix_billing_accounts_org", "billing_accounts", ["org_id", "id"], unique=False)
    op.create_table(
        "clocks",
        sa.Column("schedule_id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("next_slot", Instant(), nullable=True),
        sa.Column("next_run_at", Instant(), nullable=True),
        sa.Column("fired", sa.Integer(), nullable=False),
        sa.Column("decided_until", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_clocks_schedule_id")),
        sa.PrimaryKeyConstraint("schedule_id", name=op.f("pk_clocks")),
    )
    op.create_index(
        "ix_clocks_due",
        "clocks",
        ["kind", "next_run_at"],
        unique=False,
        sqlite_where=sa.text("next_run_at IS NOT NULL"),
        postgresql_where=sa.text("next_run_at IS NOT NULL"),
    )
    op.create_index(
        "ix_clocks_held",
        "clocks",
        ["org_id"],
        unique=False,
        sqlite_where=sa.text("next_run_at IS NULL"),
        postgresql_where=sa.text("next_run_at IS NULL"),
    )
    op.create_table(
        "effects",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("workflow_id", sa.String(length=26), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("call", sa.String(length=200), nullable=False),
        sa.Column("params", Json(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("result", Json(), nullable=True),
        sa.Column("error", Json(), nullable=True),
        sa.Column("reconcile_attempts", sa.Integer(), nullable=False),
        sa.Column("resolved_by", sa.Text(), nullable=True),
        sa.Column("inputs", sa.Integer(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_effects_workflow_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effects")),
        sa.UniqueConstraint("run_id", name=op.f("uq_effects_run_id")),
    )
    op.create_index(
        "ix_effects_open",
        "effects",
        ["workflow_id"],
        unique=False,
        sqlite_where=sa.text("status IN ('in_flight', 'needs_reconcile', 'indeterminate')"),
        postgresql_where=sa.text("status IN ('in_flight', 'needs_reconcile', 'indeterminate')"),
    )
    op.create_index("ix_effects_workflow", "effects", ["workflow_id", "id"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("workflow_id", sa.String(length=26), nullable=False),
        sa.Column("topic", sa.String(length=200), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("payload", Json(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=True),
        sa.Column("reserved_by", sa.String(length=26), nullable=True),
        sa.Column("created_by", sa.String(length=26), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_events_workflow_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("workflow_id", "topic", "message_id", name=op.f("uq_events_workflow_id_topic_message_id")),
    )
    op.create_index(
        "ix_events_done",
        "events",
        ["updated_at"],
        unique=False,
        sqlite_where=sa.text("status IN ('consumed', 'skipped')"),
        postgresql_where=sa.text("status IN ('consumed', 'skipped')"),
    )
    op.create_index(
        "ix_events_inputs",
        "events",
        ["workflow_id", "id"],
        unique=False,
        sqlite_where=sa.text("source IS NOT NULL"),
        postgresql_where=sa.text("source IS NOT NULL"),
    )
    op.create_index(
        "ix_events_pending",
        "events",
        ["workflow_id", "status", "topic", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_events_taken",
        "events",
        ["workflow_id", "status", "reserved_by"],
        unique=False,
        sqlite_where=sa.text("status IN ('reserved', 'skipped')"),
        postgresql_where=sa.text("status IN ('reserved', 'skipped')"),
    )
    op.create_index("ix_events_workflow", "events", ["workflow_id", "id"], unique=False)
    op.create_table(
        "handlers",
        sa.Column("workflow_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=10), nullable=False),
        sa.Column("subscribe", Json(), nullable=False),
        sa.Column("schedule_id", sa.String(length=26), nullable=True),
        sa.Column("state", Json(), nullable=True),
        sa.Column("dirty", sa.Boolean(), nullable=False),
        sa.Column("wake_at", Instant(), nullable=True),
        sa.Column("held_run_id", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_handlers_workflow_id")),
        sa.PrimaryKeyConstraint("workflow_id", "name", name=op.f("pk_handlers")),
    )
    op.create_index(
        "ix_handlers_held",
        "handlers",
        ["held_run_id"],
        unique=False,
        sqlite_where=sa.text("held_run_id IS NOT NULL"),
        postgresql_where=sa.text("held_run_id IS NOT NULL"),
    )
    op.create_table(
        "pipeline_triggers",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("pipeline_id", sa.String(length=26), nullable=False),
        sa.Column("type", sa.String(length=20), nullable=False),
        sa.Column("schedule_id", sa.String(length=26), nullable=True),
        sa.Column("token_hash", sa.String(length=64), nullable=True),
        sa.Column("cooldown_seconds", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("waits", sa.Boolean(), nullable=False),
        sa.Column("last_triggered_at", Instant(), nullable=True),
        sa.Column("last_job_id", sa.String(length=26), nullable=True),
        sa.Column("source", sa.String(length=10), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipelines.id"], name=op.f("fk_pipeline_triggers_pipeline_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pipeline_triggers")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_pipeline_triggers_token_hash")),
    )
    op.create_index("ix_pipeline_triggers_org", "pipeline_triggers", ["org_id", "id"], unique=False)
    op.create_index("ix_pipeline_triggers_pipeline", "pipeline_triggers", ["pipeline_id", "id"], unique=False)
    op.create_index("ix_pipeline_triggers_schedule", "pipeline_triggers", ["schedule_id"], unique=False)
    op.create_table(
        "schedule_stats",
        sa.Column("schedule_id", sa.String(length=26), nullable=False),
        sa.Column("last_run_at", Instant(), nullable=True),
        sa.Column("last_run_id", sa.String(length=26), nullable=True),
        sa.Column("last_job_id", sa.String(length=26), nullable=True),
        sa.Column("last_run_status", sa.String(length=20), nullable=True),
        sa.Column("failure_count", sa.Integer(), nullable=False),
        sa.Column("skipped_count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_stats_schedule_id")),
        sa.PrimaryKeyConstraint("schedule_id", name=op.f("pk_schedule_stats")),
    )
    op.create_table(
        "scripts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("workflow_id", sa.String(length=26), nullable=False),
        sa.Column("major", sa.Integer(), nullable=False),
        sa.Column("minor", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("declaration", Json(), nullable=True),
        sa.Column("outcome", sa.String(length=10), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("decided_at", Instant(), nullable=True),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_scripts_workflow_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scripts")),
        sa.UniqueConstraint("workflow_id", "major", "minor", name=op.f("uq_scripts_workflow_id_major_minor")),
    )
    op.create_table(
        "server_instances",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("host_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=200), nullable=False),
        sa.Column("config", Json(), nullable=False),
        sa.Column("labels", Json(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_server_instances_host_id")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_server_instances_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_instances")),
        sa.UniqueConstraint("host_id", "name", name=op.f("uq_server_instances_host_id_name")),
    )
    op.create_index("ix_server_instances_org", "server_instances", ["org_id", "id"], unique=False)
    op.create_table(
        "workflow_runs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("workflow_id", sa.String(length=26), nullable=False),
        sa.Column("handler_id", sa.String(length=200), nullable=False),
        sa.Column("handler_type", sa.String(length=10), nullable=False),
        sa.Column("retry_of", sa.String(length=26), nullable=True),
        sa.Column("phase", sa.String(length=10), nullable=False),
        sa.Column("prepare_result", Json(), nullable=True),
        sa.Column("mutation_outcome", sa.String(length=10), nullable=True),
        sa.Column("mutation_result", Json(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflows.id"], name=op.f("fk_workflow_runs_workflow_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflow_runs")),
    )
    op.create_index("ix_workflow_runs_workflow", "workflow_runs", ["workflow_id", "id"], unique=False)
    op.create_table(
        "charge_receipts",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("billing_account_id", sa.String(length=26), nullable=False),
        sa.Column("virtual_key_id", sa.String(length=26), nullable=False),
        sa.Column("grant_id", sa.String(length=26), nullable=True),
        sa.Column("schedule_id", sa.String(length=26), nullable=True),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("charged_credits", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Text(), nullable=True),
        sa.Column("source_system", sa.String(length=40), nullable=False),
        sa.Column("source_reference", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(
            ["billing_account_id"], ["billing_accounts.id"], name=op.f("fk_charge_receipts_billing_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_charge_receipts")),
        sa.UniqueConstraint(
            "source_system", "source_reference", name=op.f("uq_charge_receipts_source_system_source_reference")
        ),
    )
    op.create_index(
        "ix_charge_receipts_account", "charge_receipts", ["billing_account_id", "created_at", "id"], unique=False
    )
    op.create_index("ix_charge_receipts_org", "charge_receipts", ["org_id", "created_at", "id"], unique=False)
    op.create_index("ix_charge_receipts_run", "charge_receipts", ["run_id"], unique=False)
    op.create_table(
        "credit_ledger",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("billing_account_id", sa.String(length=26), nullable=False),
        sa.Column("virtual_key_id", sa.String(length=26), nullable=True),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("balance_after", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(
            ["billing_account_id"], ["billing_accounts.id"], name=op.f("fk_credit_ledger_billing_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credit_ledger")),
        sa.UniqueConstraint(
            "billing_account_id",
            "reference",
            "reason",
            name=op.f("uq_credit_ledger_billing_account_id_reference_reason"),
        ),
    )
    op.create_index("ix_credit_ledger_account", "credit_ledger", ["billing_account_id", "id"], unique=False)
    op.create_table(
        "grants",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("owner_id", sa.String(length=26), nullable=False),
        sa.Column("billing_account_id", sa.String(length=26), nullable=False),
        sa.Column("scopes", Json(), nullable=False),
        sa.Column("schedule_id", sa.String(length=26), nullable=True),
        sa.Column("expires_at", Instant(), nullable=True),
        sa.Column("revoked_at", Instant(), nullable=True),
        sa.Column("budget_per_day", sa.BigInteger(), nullable=True),
        sa.Column("budget_total", sa.BigInteger(), nullable=True),
        sa.Column("spent_day", Instant(), nullable=True),
        sa.Column("spent_on_day", sa.BigInteger(), nullable=False),
        sa.Column("spent_total", sa.BigInteger(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(
            ["billing_account_id"], ["billing_accounts.id"], name=op.f("fk_grants_billing_account_id")
        ),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_grants_org_id")),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_grants_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    op.create_index("ix_grants_org", "grants", ["org_id", "id"], unique=False)
    op.create_index(
        "ix_grants_schedule",
        "grants",
        ["schedule_id"],
        unique=False,
        sqlite_where=sa.text("schedule_id IS NOT NULL"),
        postgresql_where=sa.text("schedule_id IS NOT NULL"),
    )
    op.create_table(
        "login_links",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("org_id", sa.String(length=26), nullable=False),
        sa.Column("user_id", sa.String(length=26), nullable=False),
        sa.Column("key_id", sa.String(length=26), nullable=True),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_login_links_key_id")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_login_links_org_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_login_links_user_id")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_login_links")),
    )
    op.create_table(
        "pipeline_upstreams",
        sa.Column("trigger_id", sa.String(length=26), nullable=False),
        sa.Column("pipeline_id", sa.String(length=26), nullable=False),
        sa.Column("fresh", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipelines.id"], name=op.f("fk_pipeline_upstreams_pipeline_id")),
        sa.ForeignKeyConstraint(
            ["trigger_id"], ["pipeline_triggers.id"], name=op.f("fk_pipeline_upstreams_trigger_id")
        ),
        sa.PrimaryKeyConstraint("trigger_id", "pipeline_id", name=op.f("pk_pipeline_upstreams")),
    )
    op.create_index("ix_pipeline_upstreams_pipeline", "pipeline_upstreams", ["pipeline_id"], unique=False)
    op.create_table(
        "virtual_keys",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("billing_account_id", sa.String(length=26), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.ForeignKeyConstraint(
            ["billing_account_id"], ["billing_accounts.id"], name=op.f("fk_virtual_keys_billing_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_virtual_keys")),
    )
    op.create_index("ix_virtual_keys_account", "virtual_keys", ["billing_account_id", "id"], unique=False)
    op.create_index(
        "ix_virtual_keys_default",
        "virtual_keys",
        ["billing_account_id"],
        unique=True,
        sqlite_where=sa.text("is_default"),
        postgresql_where=sa.text("is_default"),
    )
    op.execute("INSERT INTO counters (name, value) VALUES ('fences', 0)")


def downgrade() -> None:
    for table in [
        "virtual_keys",
        "pipeline_upstreams",
        "login_links",
        "grants",
        "credit_ledger",
        "charge_receipts",
        "workflow_runs",
        "server_instances",
        "scripts",
        "schedule_stats",
        "pipeline_triggers",
        "handlers",
        "events",
        "effects",
        "clocks",
        "billing_accounts",
        "batch_members",
        "api_keys",
        "workflows",
        "users",
        "tasks",
        "schedules",
        "pipelines",
        "pairing_tokens",
        "hosts",
        "batches",
        "workers",
        "trigger_spans",
        "task_versions",
        "slots",
        "signing_keys",
        "runs",
        "queues",
        "pipeline_versions",
        "orgs",
        "logs",
        "jobs",
        "idempotency_keys",
        "counters",
        "causes",
        "cached_results",
        "audit_log",
        "artifacts",
    ]:
        op.drop_table(table)
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP SEQUENCE fences")
