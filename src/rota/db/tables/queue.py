"""Schedules, slots, jobs, runs and workers."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from rota.core.states import HEADS, State
from rota.db.column_types import Double, Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index, where_state

queues = Table(
    "queues",
    metadata,
    Column("org_id", Id, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("max_running", Integer),
    Column("paused_at", Instant),
    Column("rate", String(40)),  # such as 100/1m
    Column("burst", Integer),
)

rate_limits = Table(  # a row per key that started a job lately; see `core/flow.py`
    "rate_limits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("tat_us", BigInteger, nullable=False),  # theoretical arrival time, in microseconds since 1970
)
Index("ix_rate_limits_tat", rate_limits.c.tat_us)

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
    Column("catch_up_spread_hours", Double),  # none: at once
    Column("catch_up_approval_slots", Integer),  # more wait for an approval; none: as the installation says
    Column("overlap", String(10), nullable=False),
    Column("start_deadline_seconds", BigInteger),
    Column("timeout_seconds", BigInteger),
    Column("retry", Json),
    Column("priority", SmallInteger, nullable=False),
    Column("queue", Name, nullable=False),
    Column("grant_id", Id),
    Column("keep_runs_days", Integer),  # none: as long as the installation keeps runs
    Column("calendar_id", Id),
    Column("calendar_revision", Integer),  # of the dates in `timing`
    Column("pause_after_failures", Integer),  # in a row; none: it goes on
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

partial_index("ix_schedules_name", schedules.c.org_id, schedules.c.name, where=text("deleted_at IS NULL"), unique=True)
partial_index("ix_schedules_made", schedules.c.org_id, schedules.c.id, where=text("deleted_at IS NULL"))
partial_index("ix_schedules_target", schedules.c.org_id, schedules.c.target, where=text("deleted_at IS NULL"))
partial_index(
    "ix_schedules_broken",
    schedules.c.org_id,
    schedules.c.name,
    where=text("condition = 'broken' AND deleted_at IS NULL"),
)
partial_index(
    "ix_schedules_paused",
    schedules.c.org_id,
    schedules.c.name,
    where=text("paused_at IS NOT NULL AND deleted_at IS NULL"),
)
partial_index("ix_schedules_grant", schedules.c.grant_id, where=text("grant_id IS NOT NULL AND deleted_at IS NULL"))
partial_index("ix_schedules_kept", schedules.c.keep_runs_days, schedules.c.id, where=text("keep_runs_days IS NOT NULL"))
partial_index(
    "ix_schedules_calendar",
    schedules.c.calendar_id,
    schedules.c.calendar_revision,
    where=text("calendar_id IS NOT NULL AND deleted_at IS NULL"),
)
partial_index(
    "ix_schedules_pausing",
    schedules.c.id,
    where=text("pause_after_failures IS NOT NULL AND deleted_at IS NULL"),
)
Index("ix_schedules_updated", schedules.c.org_id, schedules.c.updated_at, schedules.c.id)

calendars = Table(
    "calendars",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("description", Text, nullable=False),
    Column("source", Json, nullable=False),  # where its holidays come from: one of holidays, exchange, ical, dates
    Column("weekend", Json, nullable=False),  # weekdays from Monday = 0
    Column("weekend_is_holiday", Boolean, nullable=False),
    Column("holidays", Json, nullable=False),  # names by date, resolved
    Column("known_until", String(10)),  # date; none: the set is complete
    Column("revision", Integer, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)
Index("ix_calendars_known_until", calendars.c.known_until)

freeze_windows = Table(
    "freeze_windows",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("starts_at", Instant, nullable=False),
    Column("ends_at", Instant, nullable=False),
    Column("mode", String(10), nullable=False),  # skip or hold
    Column("reason", Text, nullable=False),
    Column("kind", String(20)),  # of the schedules that it covers; none: all kinds
    Column("queue", Name),
    Column("tag", Name),
    Column("created_by", Id),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)
Index("ix_freeze_windows_end", freeze_windows.c.org_id, freeze_windows.c.ends_at)

schedule_tags = Table(  # of schedules that are not deleted; the lists by tag, in the order of both of their sorts
    "schedule_tags",
    metadata,
    Column("org_id", Id, primary_key=True),
    Column("tag", Name, primary_key=True),
    Column("name", Name, primary_key=True),  # of the schedule
    Column("schedule_id", Id, ForeignKey("schedules.id"), nullable=False),
)
Index("ix_schedule_tags_id", schedule_tags.c.org_id, schedule_tags.c.tag, schedule_tags.c.schedule_id)

clocks = Table(  # a separate table from schedules, so that firing and editing do not rewrite each other's rows
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

partial_index("ix_clocks_due", clocks.c.kind, clocks.c.next_run_at, where=text("next_run_at IS NOT NULL"))
partial_index("ix_clocks_held", clocks.c.org_id, where=text("next_run_at IS NULL"))

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

trigger_spans = Table(  # append-only: the trigger of a schedule over time, for the slot audit
    "trigger_spans",
    metadata,
    Column("schedule_id", Id, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("timing", Json, nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("until_at", Instant),
)

slots = Table(  # the primary key guarantees one job per slot
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
partial_index("ix_slots_missed", slots.c.slot, where=text("verdict = 'missed'"))
partial_index("ix_slots_uncounted", slots.c.schedule_id, where=text("count IS NULL"))

PINNED = "route LIKE '%/@%'"  # of jobs that go on under one version of their code

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
    Column("parent_id", Id),  # the job whose run enqueued it
    Column("followed", Boolean, nullable=False, server_default=false()),  # another job waits for its end
    Column("waiting", Json),  # what a suspended run waits for; until its start on the next worker is recorded
    Column("reserved_at", Instant),  # the start that a rate limit reserved for it
    Column("place_key", Text),  # the key of which it holds a place
    Column("place_wanted", Text),  # the key of which it waits for a place
    Column("place_limit", Integer),  # how many places that key has
)


partial_index(  # read by claim: lane by lane, most urgent first
    "ix_jobs_ready",
    jobs.c.org_id,
    jobs.c.queue,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    where=where_state(State.READY),
)
partial_index("ix_jobs_due", jobs.c.run_at, where=where_state(State.LATER, State.RETRY, State.WAITING))
# by lease owner; also counts the running jobs of a queue
partial_index("ix_jobs_held", jobs.c.lease_owner, jobs.c.org_id, jobs.c.queue, where=where_state(State.RUNNING))
partial_index(  # one head per serial key
    "ix_jobs_heads",
    jobs.c.serial_key,
    where=text(f"serial_key IS NOT NULL AND {where_state(*HEADS)}"),
    unique=True,
)
partial_index(
    "ix_jobs_blocked",
    jobs.c.serial_key,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    where=where_state(State.BLOCKED),
)
partial_index("ix_jobs_host", jobs.c.route, jobs.c.state, where=text("kind = 'host_job'"))  # read by agents
partial_index("ix_jobs_parked", jobs.c.org_id, jobs.c.id, where=where_state(State.PARKED))
partial_index("ix_jobs_solo", jobs.c.solo_key, where=text("solo_key IS NOT NULL"), unique=True)
partial_index("ix_jobs_key", jobs.c.org_id, jobs.c.job_key, where=text("job_key IS NOT NULL"), unique=True)
partial_index("ix_jobs_place", jobs.c.place_key, where=text("place_key IS NOT NULL"))
partial_index(  # read when a place becomes free
    "ix_jobs_place_wanted",
    jobs.c.place_wanted,
    jobs.c.priority.desc(),
    jobs.c.queued_at,
    jobs.c.id,
    where=text("place_wanted IS NOT NULL"),
)
partial_index("ix_jobs_run", jobs.c.run_id, where=text("run_id IS NOT NULL"))
partial_index("ix_jobs_schedule", jobs.c.schedule_id, where=text("schedule_id IS NOT NULL"))
partial_index("ix_jobs_pinned", jobs.c.route, where=text(PINNED))
partial_index("ix_jobs_parent", jobs.c.parent_id, where=text("parent_id IS NOT NULL"))

job_dependencies = Table(  # jobs after jobs; kept as long as the runs of the job that follows
    "job_dependencies",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("depends_on", Id, primary_key=True),
    Column("condition", String(10), nullable=False),
    Column("status", String(10)),  # of a job that has ended, once that is known
)
Index("ix_job_dependencies_on", job_dependencies.c.depends_on)

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
    Column("cpu_seconds", Double),
    Column("peak_memory_bytes", BigInteger),
    Column("parent_id", Id),
    UniqueConstraint("job_id", "attempt", "lost_fence"),
)
Index("ix_runs_recorded", runs.c.org_id, runs.c.recorded_at, runs.c.id)  # feeds, pruning, lists
partial_index(
    "ix_runs_schedule", runs.c.schedule_id, runs.c.recorded_at, runs.c.id, where=text("schedule_id IS NOT NULL")
)
partial_index(
    "ix_runs_status", runs.c.org_id, runs.c.status, runs.c.recorded_at, runs.c.id, where=text("status <> 'success'")
)

partial_index(
    "ix_runs_error", runs.c.org_id, runs.c.recorded_at, runs.c.id, where=text("error IS NOT NULL")
)  # searches
partial_index(
    "ix_runs_pipeline", runs.c.org_id, runs.c.target, runs.c.recorded_at, runs.c.id, where=text("kind = 'pipeline'")
)
partial_index(
    "ix_runs_server", runs.c.org_id, runs.c.target, runs.c.recorded_at, runs.c.id, where=text("kind = 'host_job'")
)
Index("ix_runs_target", runs.c.org_id, runs.c.target_name, runs.c.recorded_at, runs.c.id)
partial_index("ix_runs_retry", runs.c.retry_of, where=text("retry_of IS NOT NULL"))
partial_index("ix_runs_parent", runs.c.parent_id, runs.c.id, where=text("parent_id IS NOT NULL"))

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
    Column("metrics", Json),  # what the process has counted, stored with its heartbeat
    Column("metrics_merged", Boolean, nullable=False, server_default=false()),  # into `metric_totals`
)
partial_index("ix_workers_alive", workers.c.lease_until, where=text("state = 'alive'"))
partial_index("ix_workers_host", workers.c.host_id, workers.c.state, where=text("host_id IS NOT NULL"))

metric_totals = Table(  # what processes without a row in `workers` have counted: a row per source
    "metric_totals",
    metadata,
    Column("source", String(20), primary_key=True),
    Column("metrics", Json, nullable=False),
)
