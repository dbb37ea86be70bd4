"""The tables, with the promises as constraints. Alembic's migrations must lead to exactly this."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

from rota.core.states import HEADS, State

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


class Instant(TypeDecorator[datetime]):
    """A moment in UTC: `timestamptz` on PostgreSQL, microseconds since 1970 on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else DateTime(timezone=True))

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], Any] | None:
        return ticks_of if dialect.name == "sqlite" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:  # noqa: ARG002
        return moment_of if dialect.name == "sqlite" else None  # asyncpg gives UTC


def ticks_of(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - EPOCH) // TICK


def moment_of(ticks: int | None) -> datetime | None:
    return None if ticks is None else EPOCH + timedelta(microseconds=ticks)


class Json(TypeDecorator[Any]):
    """A JSON text, the same bytes on both databases: what was stored comes back, and no database re-reads it."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str | None]:  # noqa: ARG002
        return json_text

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], Any]:  # noqa: ARG002
        return json_value


def json_text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def json_value(text: str | None) -> Any:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return Damaged(text)


class Damaged(str):
    """A text that should be JSON and is not: one bad row must not cost the others that were read with it."""


Id = String(26)
Name = String(200)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

fences = Sequence("fences", metadata=metadata)  # SQLite keeps it in `counters`


def where_state(*states: State) -> Any:
    quoted = [f"'{state.value}'" for state in states]
    return text(f"state = {quoted[0]}" if len(quoted) == 1 else f"state IN ({', '.join(quoted)})")


def partial(name: str, *columns: Any, where: Any, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


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
    Column("created_at", Instant, nullable=False),
)

users = Table(  # a person is known per org: nobody's admin may set a password that opens another org
    "users",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("email", String(320)),  # none: the org's `system` user, for whom code and the first key act
    Column("name", Name, nullable=False),
    Column("password_hash", Text),
    Column("role", String(20), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("deleted_at", Instant),
)
partial("ix_users_email", users.c.org_id, users.c.email, where=text("deleted_at IS NULL"), unique=True)
partial("ix_users_system", users.c.org_id, where=text("email IS NULL"), unique=True)

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

login_links = Table(  # what nobody has used yet: using one deletes it
    "login_links",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("user_id", Id, ForeignKey("users.id"), nullable=False),
    Column("key_id", Id, ForeignKey("api_keys.id")),  # whose session it will be, and end with; none: the user's own
    Column("expires_at", Instant, nullable=False),
)

login_sessions = Table(  # of the dashboard; the end of a session deletes its row
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
    Index("ix_login_sessions_org", "org_id", "id"),
    Index("ix_login_sessions_user", "user_id"),
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
partial(  # the history of one thing
    "ix_audit_log_resource",
    audit_log.c.org_id,
    audit_log.c.resource,
    audit_log.c.resource_id,
    audit_log.c.id,
    where=text("resource_id IS NOT NULL"),
)

idempotency_keys = Table(  # first answers, for those who ask again
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

billing_accounts = Table(
    "billing_accounts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False, unique=True),
    Column("balance_credits", BigInteger, nullable=False),  # the sum of its ledger, kept with it
    Column("created_at", Instant, nullable=False),
    Column("closed_at", Instant),
    Index("ix_billing_accounts_org", "org_id", "id"),
)

virtual_keys = Table(  # names for what is charged; there is no secret in them
    "virtual_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("label", Name, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_virtual_keys_account", "billing_account_id", "id"),
)
partial("ix_virtual_keys_default", virtual_keys.c.billing_account_id, where=text("is_default"), unique=True)

credit_ledger = Table(  # append-only
    "credit_ledger",
    metadata,
    Column("id", Id, primary_key=True),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("virtual_key_id", Id),
    Column("amount", BigInteger, nullable=False),
    Column("balance_after", BigInteger, nullable=False),
    Column("reason", String(40), nullable=False),
    Column("reference", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("billing_account_id", "reference", "reason"),
    Index("ix_credit_ledger_account", "billing_account_id", "id"),
)

charge_receipts = Table(  # append-only; IDEMPOTENT_CHARGES is its unique constraint
    "charge_receipts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("virtual_key_id", Id, nullable=False),
    Column("grant_id", Id),
    Column("schedule_id", Id),
    Column("target", Text, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("unit", Name, nullable=False),
    Column("model", Name),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("charged_credits", BigInteger, nullable=False),
    Column("cost_usd", Text),  # a decimal, as it was reported
    Column("source_system", String(40), nullable=False),
    Column("source_reference", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("source_system", "source_reference"),
    Index("ix_charge_receipts_account", "billing_account_id", "created_at", "id"),
    Index("ix_charge_receipts_org", "org_id", "created_at", "id"),
    Index("ix_charge_receipts_run", "run_id"),
)

grants = Table(
    "grants",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False),
    Column("billing_account_id", Id, ForeignKey("billing_accounts.id"), nullable=False),
    Column("scopes", Json, nullable=False),
    Column("schedule_id", Id),  # whose creation minted it, and whose deletion revokes it
    Column("expires_at", Instant),
    Column("revoked_at", Instant),
    Column("budget_per_day", BigInteger),
    Column("budget_total", BigInteger),
    Column("spent_day", Instant),  # the day, in UTC, that `spent_on_day` counts
    Column("spent_on_day", BigInteger, nullable=False),
    Column("spent_total", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_grants_org", "org_id", "id"),
)
partial("ix_grants_schedule", grants.c.schedule_id, where=text("schedule_id IS NOT NULL"))

queues = Table(
    "queues",
    metadata,
    Column("org_id", Id, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("max_running", Integer),
    Column("paused_at", Instant),
)

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

task_versions = Table(  # append-only: what a run ran, however its task was edited or deleted since
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
    Column("source", String(10), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("deleted_at", Instant),
)
partial("ix_pipelines_path", pipelines.c.org_id, pipelines.c.path, where=text("deleted_at IS NULL"), unique=True)
partial("ix_pipelines_kept", pipelines.c.id, where=text("max_runs IS NOT NULL OR max_age_days IS NOT NULL"))

pipeline_versions = Table(  # append-only: what a run ran
    "pipeline_versions",
    metadata,
    Column("pipeline_id", Id, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("type", String(10), nullable=False),
    Column("sql", Text),
    Column("function", Name),
    Column("created_at", Instant, nullable=False),
)

pipeline_triggers = Table(  # what makes a pipeline run, beside schedules and people
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

pipeline_upstreams = Table(  # what a trigger waits for
    "pipeline_upstreams",
    metadata,
    Column("trigger_id", Id, ForeignKey("pipeline_triggers.id"), primary_key=True),
    Column("pipeline_id", Id, ForeignKey("pipelines.id"), primary_key=True),
    Column("fresh", Boolean, nullable=False),  # it succeeded since the trigger fired last
    Index("ix_pipeline_upstreams_pipeline", "pipeline_id"),
)

artifacts = Table(  # what runs left beside their outcome; a run itself is the root of its own
    "artifacts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("run_id", Id),
    Column("parent_id", Id),
    Column("level", Integer, nullable=False),
    Column("label", Name, nullable=False),
    Column("content_type", Name, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_artifacts_org", "org_id", "id"),
    Index("ix_artifacts_run", "run_id"),
    Index("ix_artifacts_parent", "parent_id"),
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("owner_id", Id),
    Column("name", Name, nullable=False),
    Column("description", Text, nullable=False),
    Column("tags", Json, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("target", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("input", Json),
    Column("timing", Json, nullable=False),
    Column("max_runs", Integer),
    Column("misfire", String(10), nullable=False),
    Column("catch_up_limit", Integer, nullable=False),
    Column("overlap", String(10), nullable=False),
    Column("start_deadline_seconds", BigInteger),
    Column("timeout_seconds", BigInteger),
    Column("retry", Json),
    Column("priority", SmallInteger, nullable=False),
    Column("queue", Name, nullable=False),
    Column("grant_id", Id),
    Column("enabled", Boolean, nullable=False),
    Column("paused_at", Instant),
    Column("paused_until", Instant),
    Column("pause_reason", Text),
    Column("condition", String(10), nullable=False),
    Column("condition_reason", Text),
    Column("revision", Integer, nullable=False),
    Column("source", String(200), nullable=False),
    Column("created_by", Id),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("deleted_at", Instant),
)

partial("ix_schedules_name", schedules.c.org_id, schedules.c.name, where=text("deleted_at IS NULL"), unique=True)
partial("ix_schedules_made", schedules.c.org_id, schedules.c.id, where=text("deleted_at IS NULL"))
partial("ix_schedules_target", schedules.c.org_id, schedules.c.target, where=text("deleted_at IS NULL"))
partial(
    "ix_schedules_broken",
    schedules.c.org_id,
    schedules.c.name,
    where=text("condition = 'broken' AND deleted_at IS NULL"),
)
partial(
    "ix_schedules_paused",
    schedules.c.org_id,
    schedules.c.name,
    where=text("paused_at IS NOT NULL AND deleted_at IS NULL"),
)
partial("ix_schedules_grant", schedules.c.grant_id, where=text("grant_id IS NOT NULL AND deleted_at IS NULL"))
Index("ix_schedules_updated", schedules.c.org_id, schedules.c.updated_at, schedules.c.id)

clocks = Table(  # apart from schedules, so that firing and editing do not rewrite each other's rows
    "clocks",
    metadata,
    Column("schedule_id", Id, ForeignKey("schedules.id"), primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("next_slot", Instant),
    Column("next_run_at", Instant),
    Column("fired", Integer, nullable=False),
    Column("decided_until", Instant),
)

partial("ix_clocks_due", clocks.c.kind, clocks.c.next_run_at, where=text("next_run_at IS NOT NULL"))
partial("ix_clocks_held", clocks.c.org_id, where=text("next_run_at IS NULL"))

schedule_stats = Table(
    "schedule_stats",
    metadata,
    Column("schedule_id", Id, ForeignKey("schedules.id"), primary_key=True),
    Column("last_run_at", Instant),
    Column("last_run_id", Id),
    Column("last_job_id", Id),
    Column("last_run_status", String(20)),
    Column("failure_count", Integer, nullable=False),
    Column("skipped_count", Integer, nullable=False),
)

trigger_spans = Table(  # append-only: what the schedule's slots were, for the audit
    "trigger_spans",
    metadata,
    Column("schedule_id", Id, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("timing", Json, nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("until_at", Instant),
)

slots = Table(  # the home of a slot; the primary key is ONE_JOB_PER_SLOT
    "slots",
    metadata,
    Column("schedule_id", Id, primary_key=True),
    Column("slot", Instant, primary_key=True),
    Column("last_slot", Instant),
    Column("count", Integer),
    Column("verdict", String(10)),
    Column("reason", String(40)),
    Column("note", Text),
    Column("into_slot", Instant),
    Column("job_id", Id),
    Column("attempts", Integer, nullable=False),
)

Index("ix_slots_age", slots.c.slot)
partial("ix_slots_missed", slots.c.slot, where=text("verdict = 'missed'"))
partial("ix_slots_uncounted", slots.c.schedule_id, where=text("count IS NULL"))

jobs = Table(  # small and hot: finished jobs leave it
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("target", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("payload", Json),
    Column("queue", Name, nullable=False),
    Column("serial_key", Text),
    Column("solo_key", Text),
    Column("job_key", Text),
    Column("priority", SmallInteger, nullable=False),
    Column("queued_at", Instant, nullable=False),
    Column("run_at", Instant, nullable=False),
    Column("state", String(10), nullable=False),
    Column("schedule_id", Id),
    Column("slot", Instant),
    Column("trigger", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("rescues", Integer, nullable=False),
    Column("run_id", Id),
    Column("last_run_id", Id),
    Column("started_at", Instant),
    Column("parked_reason", String(40)),
    Column("lease_owner", Id),
    Column("fence", BigInteger, nullable=False),
    Column("cancel_requested_at", Instant),
    Column("cancel_reason", Text),
    Column("terms", Json),
    Column("trace", String(55)),
)


partial(  # lane by lane, most urgent first: what claim reads
    "ix_jobs_ready",
    jobs.c.org_id,
    jobs.c.queue,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    where=where_state(State.READY),
)
partial("ix_jobs_later", jobs.c.run_at, where=where_state(State.LATER, State.RETRY))
# who holds what; it also counts what runs in a queue, which is never much
partial("ix_jobs_held", jobs.c.lease_owner, jobs.c.org_id, jobs.c.queue, where=where_state(State.RUNNING))
partial(  # QUEUE_SERIALIZES
    "ix_jobs_head",
    jobs.c.serial_key,
    where=text(f"serial_key IS NOT NULL AND {where_state(*HEADS)}"),
    unique=True,
)
partial(
    "ix_jobs_blocked",
    jobs.c.serial_key,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    where=where_state(State.BLOCKED),
)
partial("ix_jobs_host", jobs.c.route, jobs.c.state, where=text("kind = 'host_job'"))  # what an agent asks for
partial("ix_jobs_parked", jobs.c.org_id, jobs.c.id, where=where_state(State.PARKED))
partial("ix_jobs_solo", jobs.c.solo_key, where=text("solo_key IS NOT NULL"), unique=True)
partial("ix_jobs_key", jobs.c.org_id, jobs.c.job_key, where=text("job_key IS NOT NULL"), unique=True)
partial("ix_jobs_run", jobs.c.run_id, where=text("run_id IS NOT NULL"))
partial("ix_jobs_schedule", jobs.c.schedule_id, where=text("schedule_id IS NOT NULL"))

runs = Table(  # the ledger: a row per attempt, written when it ended
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("org_id", Id, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("target", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("input", Json),
    Column("target_name", Text),
    Column("target_version", String(60)),
    Column("schedule_id", Id),
    Column("slot", Instant),
    Column("trigger", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("retry_of", Id),
    Column("status", String(10), nullable=False),
    Column("reason", Text),
    Column("error", Json),
    Column("outcome", Json),
    Column("queued_at", Instant, nullable=False),
    Column("started_at", Instant),
    Column("finished_at", Instant, nullable=False),
    Column("recorded_at", Instant, nullable=False),
    Column("worker", Id),
    Column("fence", BigInteger),
    Column("trace_id", String(32)),
    Column("artifact_id", Id),
    Column("grant_id", Id),  # the authority that it ran under
    Column("usage", Json),
    # else 0: the fence of a lost attempt whose start was not recorded; the next attempt has the same number
    Column("lost_fence", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("job_id", "attempt", "lost_fence"),
)
Index("ix_runs_recorded", runs.c.org_id, runs.c.recorded_at, runs.c.id)  # what is new, what is old, and lists
partial("ix_runs_schedule", runs.c.schedule_id, runs.c.recorded_at, runs.c.id, where=text("schedule_id IS NOT NULL"))
partial(
    "ix_runs_status", runs.c.org_id, runs.c.status, runs.c.recorded_at, runs.c.id, where=text("status <> 'success'")
)

partial(
    "ix_runs_pipeline", runs.c.org_id, runs.c.target, runs.c.recorded_at, runs.c.id, where=text("kind = 'pipeline'")
)
partial("ix_runs_server", runs.c.org_id, runs.c.target, runs.c.recorded_at, runs.c.id, where=text("kind = 'host_job'"))

acknowledgements = Table(  # of failing schedules and targets, until their next success
    "acknowledgements",
    metadata,
    Column("org_id", Id, ForeignKey("orgs.id"), primary_key=True),
    Column("subject", Text, primary_key=True),  # id of the schedule, else kind:target
    Column("run_id", Id, nullable=False),
    Column("user_id", Id),
    Column("note", Text, nullable=False),
    Column("at", Instant, nullable=False),
)

workflows = Table(  # its row is the lock of everything that changes together in it
    "workflows",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("description", Text, nullable=False),
    Column("source", String(200), nullable=False),
    Column("version", String(60), nullable=False),
    Column("declaration", Json, nullable=False),
    Column("paused_at", Instant),
    Column("pause_reason", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("deleted_at", Instant),  # its name is then its id, so that another may have it
    UniqueConstraint("org_id", "name"),
    Index("ix_workflows_updated", "org_id", "updated_at", "id"),
)

scripts = Table(  # versions of workflows that are scripts: major ones by people, minor ones by repair
    "scripts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workflow_id", Id, ForeignKey("workflows.id"), nullable=False),
    Column("major", Integer, nullable=False),
    Column("minor", Integer, nullable=False),
    Column("source", Text),  # none until a repairer has answered
    Column("declaration", Json),  # none if it could not be loaded
    Column("outcome", String(10), nullable=False),
    Column("why", Text),
    Column("run_id", Id),  # the run whose failure it repairs
    Column("created_by", Text),
    Column("decided_by", Text),
    Column("created_at", Instant, nullable=False),
    Column("decided_at", Instant),
    UniqueConstraint("workflow_id", "major", "minor"),
)

handlers = Table(  # what the scheduler of a workflow knows of its producers and consumers
    "handlers",
    metadata,
    Column("workflow_id", Id, ForeignKey("workflows.id"), primary_key=True),
    Column("name", Name, primary_key=True),
    Column("type", String(10), nullable=False),
    Column("subscribe", Json, nullable=False),
    Column("schedule_id", Id),
    Column("state", Json),
    Column("dirty", Boolean, nullable=False),  # something came since its last run began
    Column("wake_at", Instant),
    Column("held_run_id", Id),  # it failed, and the others go on without it
)

partial("ix_handlers_held", handlers.c.held_run_id, where=text("held_run_id IS NOT NULL"))

events = Table(  # append-only but for their status, and the payload while pending
    "events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workflow_id", Id, ForeignKey("workflows.id"), nullable=False),
    Column("topic", Name, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("payload", Json),
    Column("title", Text),
    Column("status", String(10), nullable=False),
    Column("source", Name),  # who took it in, if it is an input: a producer, or `api`
    Column("reserved_by", Id),  # a run; kept when it is consumed
    Column("created_by", Id),
    Column("attempt", Integer, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("workflow_id", "topic", "message_id"),
    Index("ix_events_workflow", "workflow_id", "id"),
)
# with the status as a column: SQLite knows nothing of how many rows there are, and takes the index that has most of
# what is asked for; else it would walk through all that a workflow ever had
partial(
    "ix_events_pending",
    events.c.workflow_id,
    events.c.status,
    events.c.topic,
    events.c.id,
    where=text("status = 'pending'"),
)
partial(
    "ix_events_taken",
    events.c.workflow_id,
    events.c.status,
    events.c.reserved_by,
    where=text("status IN ('reserved', 'skipped')"),
)
partial("ix_events_done", events.c.updated_at, where=text("status IN ('consumed', 'skipped')"))
partial("ix_events_inputs", events.c.workflow_id, events.c.id, where=text("source IS NOT NULL"))

causes = Table(  # which inputs an event goes back to; an input goes back to itself, without a row
    "causes",
    metadata,
    Column("input_id", Id, primary_key=True),
    Column("event_id", Id, primary_key=True),
    Index("ix_causes_event", "event_id"),
)

workflow_runs = Table(  # what a run of a workflow is beside its job and its row in the ledger, which have its status
    "workflow_runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workflow_id", Id, ForeignKey("workflows.id"), nullable=False),
    Column("handler_id", Name, nullable=False),
    Column("handler_type", String(10), nullable=False),
    Column("retry_of", Id),
    Column("phase", String(10), nullable=False),
    Column("prepare_result", Json),
    Column("mutation_outcome", String(10)),
    Column("mutation_result", Json),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Index("ix_workflow_runs_workflow", "workflow_id", "id"),
)

effects = Table(  # the ledger of mutations: a row is written before it is tried, and its id is the idempotency key
    "effects",
    metadata,
    Column("id", Id, primary_key=True),
    Column("workflow_id", Id, ForeignKey("workflows.id"), nullable=False),
    Column("run_id", Id, nullable=False, unique=True),  # the run that has to do with it now
    Column("call", Name, nullable=False),
    Column("params", Json, nullable=False),
    Column("title", Text),
    Column("status", String(20), nullable=False),
    Column("result", Json),
    Column("error", Json),
    Column("reconcile_attempts", Integer, nullable=False),
    Column("resolved_by", Text),
    Column("inputs", Integer, nullable=False),  # how many it goes back to
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Index("ix_effects_workflow", "workflow_id", "id"),
)
partial(
    "ix_effects_open",
    effects.c.workflow_id,
    where=text("status IN ('in_flight', 'needs_reconcile', 'indeterminate')"),
)

logs = Table(
    "logs",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("run_id", Id, nullable=False),
    Column("at", Instant, nullable=False),
    Column("stream", String(10), nullable=False),
    Column("text", Text, nullable=False),
    Index("ix_logs_run", "run_id", "id"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Id, primary_key=True),
    Column("state", String(10), nullable=False),
    Column("host", Text, nullable=False),
    Column("host_id", Id),  # of an agent; it serves that host alone
    Column("pid", Integer, nullable=False),
    Column("version", String(40), nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("kinds", Json, nullable=False),
    Column("routes", Json, nullable=False),
    Column("queues", Json),
    Column("started_at", Instant, nullable=False),
    Column("renewed_at", Instant, nullable=False),
    Column("lease_until", Instant, nullable=False),
    Column("lease_seconds", Integer, nullable=False),
    Column("stopped_at", Instant),
)
partial("ix_workers_alive", workers.c.lease_until, where=text("state = 'alive'"))
partial("ix_workers_host", workers.c.host_id, workers.c.state, where=text("host_id IS NOT NULL"))

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

batches = Table(  # one job on many servers; its id is the id of the job that sees to it
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
