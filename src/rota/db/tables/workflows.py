"""Workflows, their events and effects."""

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

workflows = Table(  # its row is the lock of everything in the workflow that changes together
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

handlers = Table(  # producers and consumers, and what decides when they run
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

partial_index("ix_handlers_held", handlers.c.held_run_id, where=text("held_run_id IS NOT NULL"))

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
# with the status as a column: SQLite has no row statistics and chooses the index that covers most of the condition;
# otherwise it scans all events that a workflow ever had
partial_index(
    "ix_events_pending",
    events.c.workflow_id,
    events.c.status,
    events.c.topic,
    events.c.id,
    where=text("status = 'pending'"),
)
partial_index(
    "ix_events_taken",
    events.c.workflow_id,
    events.c.status,
    events.c.reserved_by,
    where=text("status IN ('reserved', 'skipped')"),
)
partial_index("ix_events_done", events.c.updated_at, where=text("status IN ('consumed', 'skipped')"))
partial_index("ix_events_inputs", events.c.workflow_id, events.c.id, where=text("source IS NOT NULL"))

causes = Table(  # the inputs that an event was derived from; an input has no row
    "causes",
    metadata,
    Column("input_id", Id, primary_key=True),
    Column("event_id", Id, primary_key=True),
    Index("ix_causes_event", "event_id"),
)

workflow_runs = Table(  # the part of a workflow's run that is not in jobs and runs
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

effects = Table(  # a row is written before the mutation is tried; its id is the idempotency key
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
partial_index(
    "ix_effects_open",
    effects.c.workflow_id,
    where=text("status IN ('in_flight', 'needs_reconcile', 'indeterminate')"),
)
