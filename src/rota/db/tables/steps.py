"""Tables of durable tasks: recorded steps, signals, and webhooks that send signals."""

from sqlalchemy import Column, Index, Integer, PrimaryKeyConstraint, String, Table, Text, UniqueConstraint, text

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

steps = Table(  # of jobs; kept as long as the runs of the job
    "steps",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("seq", Integer, nullable=False),  # the order of the calls
    Column("type", String(10), nullable=False),
    Column("status", String(20), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Column("result", Json),
    Column("error", Json),
    Column("params", Json),  # of an effect, for its reconcile function; of an approval, its title
    Column("until", Instant),
    Column("topic", Name),  # of a signal; of an approval, who may decide
    Column("key", Name),
    Column("waits_for", Text),
    Column("child_job_id", Id),
    Column("run_id", Id, nullable=False),  # the run that wrote it
)
partial_index(
    "ix_steps_waiting",
    steps.c.waits_for,
    steps.c.started_at,
    where=text("status = 'waiting' AND waits_for IS NOT NULL"),
)

signals = Table(
    "signals",
    metadata,
    Column("org_id", Id, nullable=False),
    Column("id", Name, nullable=False),  # chosen by the sender: the same id is one signal
    Column("topic", Name, nullable=False),
    Column("key", Name, nullable=False),  # empty without one
    Column("payload", Json),
    Column("sender", Text),
    Column("created_at", Instant, nullable=False),
    Column("consumed_at", Instant),
    Column("consumed_by_job", Id),
    PrimaryKeyConstraint("org_id", "id", name="pk_signals"),
)
partial_index(
    "ix_signals_kept",
    signals.c.org_id,
    signals.c.topic,
    signals.c.key,
    signals.c.created_at,
    where=text("consumed_at IS NULL"),
)
Index("ix_signals_age", signals.c.created_at)

signal_hooks = Table(
    "signal_hooks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, nullable=False),
    Column("name", Name, nullable=False),
    Column("topic", Name, nullable=False),
    Column("key_field", Name),  # where the body has the key of the signal
    Column("secret", Text, nullable=False),  # as it is: signatures are computed with it
    Column("previous_secret", Text),
    Column("previous_until", Instant),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)
