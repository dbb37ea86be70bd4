"""Events in the topics of a workflow: publish, peek, reserve, consume, skip.

The caller of a function that writes holds the workflow's lock or the lease of the run's job.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, literal_column, or_, select, update

from rota.core.errors import LogicError
from rota.core.ids import new_id
from rota.db import tables
from rota.db.dialect import Tx, is_listed
from rota.db.statement import insert_new
from rota.engine import signals
from rota.kinds.workflows.rules import EventStatus
from rota.kinds.workflows.store import statements
from rota.kinds.workflows.store.records import EventRow, NewEvent, RunRow, StartedRun, WorkflowRow

e, causes = tables.events.c, tables.causes.c

Run = StartedRun | RunRow
EventSource = tuple[str, str | None]  # the id of an event, and its source if it is an input


class EventsSkipped(LogicError):
    """An operator skipped the events that a run was about to reserve."""


# publish


def publish(
    tx: Tx,
    workflow: WorkflowRow,
    new_events: Sequence[NewEvent],
    now: datetime,
    *,
    source: str | None = None,
    run_id: str | None = None,
    inputs: Collection[str] = (),
) -> list[tuple[str, str]]:
    """Insert events and mark their consumers dirty; returns the id and the result of each: `created`, `replaced` if the
    earlier event of its message id is pending, else `kept`. With a `source` they are inputs, else derived from
    `inputs`."""
    latest = {(event.topic, event.message_id): event for event in new_events}
    new_ids = {key: new_id() for key in latest}
    rows = [(new_ids[key], *key, event.payload, event.title) for key, event in latest.items()]
    published = statements.PUBLISH.run(
        tx, rows, workflow_id=workflow.id, org_id=workflow.org_id, source=source, run_id=run_id, now=now
    )
    written = {(topic, message_id): event_id for event_id, topic, message_id, _ in published}
    for event_id, topic, message_id, is_awaited in published:
        if is_awaited:
            payload = latest[(topic, message_id)].payload
            signals.send_event(tx, workflow.org_id, event_id, topic, message_id, payload, now)
    results = {
        key: (event_id, "created" if event_id == new_ids[key] else "replaced") for key, event_id in written.items()
    }
    kept = [key for key in latest if key not in written]
    results |= {key: (event_id, "kept") for key, event_id in ids_of(tx, workflow.id, kept).items()}
    links = [{"input_id": input_id, "event_id": event} for event in written.values() for input_id in sorted(inputs)]
    insert_new(tx, tables.causes, links, ("event_id",))
    topics = {topic for topic, _ in written}
    for handler in workflow.handlers.values():
        handler.dirty = handler.dirty or not topics.isdisjoint(handler.subscribe)  # as the statement wrote it
    return [results[(event.topic, event.message_id)] for event in new_events]


def ids_of(tx: Tx, workflow_id: str, messages: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the ids of events by their topics and message ids."""
    by_topic: dict[str, list[str]] = {}
    for topic, message_id in messages:
        by_topic.setdefault(topic, []).append(message_id)
    if not by_topic:
        return {}
    matches = [and_(e.topic == topic, is_listed(tx, e.message_id, ids)) for topic, ids in by_topic.items()]
    rows = tx.execute(select(e.id, e.topic, e.message_id).where(e.workflow_id == workflow_id, or_(*matches)))
    return {(row.topic, row.message_id): row.id for row in rows}


# read


def peek(tx: Tx, workflow_id: str, limits: Mapping[str, int]) -> list[EventRow]:
    """Return pending events of topics, of each up to its limit, oldest first."""
    rows = statements.PENDING_EVENTS.run(tx, list(limits.items()), workflow_id=workflow_id)
    return [EventRow(**dict(zip(e.keys(), row, strict=True))) for row in rows]


def by_ids(tx: Tx, workflow_id: str, topic: str, ids: Collection[str]) -> list[EventRow]:
    """Return events of a topic by their ids, in any status."""
    stmt = select(tables.events).where(is_listed(tx, e.id, ids), e.workflow_id == workflow_id, e.topic == topic)
    return [EventRow(**row._asdict()) for row in tx.execute(stmt.order_by(e.id))]


def oldest_pending(tx: Tx, workflow_id: str, topics: Iterable[str]) -> str | None:
    """Return the id of the oldest pending event in any of these topics."""
    return min((event.id for event in peek(tx, workflow_id, dict.fromkeys(topics, 1))), default=None)


def is_pending() -> ColumnElement[bool]:
    return e.status == literal_column("'pending'")  # a literal: a partial index does not match a parameter


def is_in_status(*statuses: str) -> ColumnElement[bool]:
    """As literals, in the words of the partial index: an index does not match parameters."""
    return e.status.in_([literal_column(f"'{status}'") for status in statuses])


# events of a run


def reserve(tx: Tx, run: Run, wanted: Mapping[str, list[str]], status: EventStatus, now: datetime) -> list[EventSource]:
    """Reserve pending events for a run, or consume them at once, as `status` says: all or none. Raises EventsSkipped if
    an operator skipped the missing ones, else LogicError."""
    batch = [(topic, event_id) for topic, ids in wanted.items() for event_id in ids]
    rows = statements.TAKE_EVENTS.run(
        tx, batch, workflow_id=run.workflow_id, run_id=run.id, status=status.value, now=now
    )
    taken = {event_id for event_id, _ in rows}
    for topic, ids in wanted.items():
        missing = set(ids) - taken
        if missing:
            rest = by_ids(tx, run.workflow_id, topic, missing)
            skipped = {event.id for event in rest if event.status == EventStatus.SKIPPED}
            shown = f"of {topic} that are not pending there: {', '.join(sorted(missing)[:3])}"
            raise (EventsSkipped if skipped == missing else LogicError)(f"prepare reserved events {shown}")
    return [(event_id, source) for event_id, source in rows]


def is_reserved_by(run: Run) -> ColumnElement[bool]:
    """Events that a run has reserved and not consumed, also if an operator skipped them since."""
    return and_(e.workflow_id == run.workflow_id, e.reserved_by == run.id, is_in_status("reserved", "skipped"))


def is_still_reserved_by(run: Run) -> ColumnElement[bool]:
    return and_(is_reserved_by(run), e.status == EventStatus.RESERVED)


def reserved_events(tx: Tx, run: Run) -> list[EventSource]:
    """Return the events that a run has reserved, also if an operator skipped them since."""
    rows = tx.execute(select(e.id, e.source).where(is_reserved_by(run)))
    return [(row.id, row.source) for row in rows]


def hand_over(tx: Tx, old: Run, run_id: str, now: datetime) -> None:
    """Give the reserved events of a run to its next attempt."""
    reserved = is_reserved_by(old)
    tx.execute(update(tables.events).where(reserved).values(reserved_by=run_id, updated_at=now))


def release(tx: Tx, run: Run, now: datetime) -> None:
    """Make the events that a run had reserved pending again."""
    values = {"status": EventStatus.PENDING.value, "reserved_by": None, "attempt": e.attempt + 1, "updated_at": now}
    tx.execute(update(tables.events).where(is_still_reserved_by(run)).values(values))


def consume(tx: Tx, run: Run, now: datetime) -> list[EventSource]:
    """Mark the events that a run had reserved as consumed, and return them."""
    stmt = update(tables.events).where(is_still_reserved_by(run))
    stmt = stmt.values(status=EventStatus.CONSUMED.value, updated_at=now)
    return [(row.id, row.source) for row in tx.execute(stmt.returning(e.id, e.source))]


def skip_reserved(tx: Tx, run: Run, now: datetime) -> None:
    """Mark the events that a run had reserved as skipped."""
    skipped = {"status": EventStatus.SKIPPED.value, "updated_at": now}
    tx.execute(update(tables.events).where(is_still_reserved_by(run)).values(skipped))


def skip_oldest(tx: Tx, workflow_id: str, topics: Iterable[str], seen_at: datetime, now: datetime) -> None:
    """Skip the oldest pending event that a `prepare` which began at `seen_at` could see. If that failed, it had
    reserved none and most likely failed on this one."""
    visible = and_(e.workflow_id == workflow_id, e.topic.in_(list(topics)), is_pending(), e.updated_at <= seen_at)
    event_id = tx.execute(select(e.id).where(visible).order_by(e.id).limit(1)).scalar_one_or_none()
    if event_id is not None:
        skipped = {"status": EventStatus.SKIPPED.value, "updated_at": now}
        tx.execute(update(tables.events).where(e.id == event_id).values(skipped))


def inputs_of(tx: Tx, events: Sequence[EventSource]) -> list[str]:
    """Return the ids of the inputs that these events are, or were derived from."""
    derived = [event_id for event_id, source in events if source is None]
    stmt = select(causes.input_id).where(is_listed(tx, causes.event_id, derived)).distinct()
    causing = tx.execute(stmt).scalars() if derived else ()
    return sorted({*(event_id for event_id, source in events if source is not None), *causing})
