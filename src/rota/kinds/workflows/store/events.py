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
from rota.kinds.workflows.rules import EventStatus
from rota.kinds.workflows.store import statements
from rota.kinds.workflows.store.records import EventRow, NewEvent, RunRow, StartedRun, WorkflowRow
from rota.kinds.workflows.store.workflows import update_handler

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
    rows = [event_row(workflow.id, event, source, run_id, now) for event in latest.values()]
    results = {
        (topic, message_id): (event_id, "created")
        for event_id, topic, message_id in insert_new(tx, tables.events, rows, ("id", "topic", "message_id"))
    }
    existing = [event for key, event in latest.items() if key not in results]
    for row in tx.execute(select(tables.events).where(is_same_message(workflow.id, existing))) if existing else ():
        key = (row.topic, row.message_id)
        is_replaced = replace_pending(tx, EventRow(**row._asdict()), latest[key], now)
        results[key] = (row.id, "replaced" if is_replaced else "kept")
    written = {key: event_id for key, (event_id, result) in results.items() if result != "kept"}
    links = [{"input_id": input_id, "event_id": event} for event in written.values() for input_id in sorted(inputs)]
    insert_new(tx, tables.causes, links, ("event_id",))
    topics = {topic for topic, _ in written}
    for handler in workflow.handlers.values():
        if topics & set(handler.subscribe):
            update_handler(tx, handler, dirty=True)
    return [results[(event.topic, event.message_id)] for event in new_events]


def event_row(
    workflow_id: str, event: NewEvent, source: str | None, run_id: str | None, now: datetime
) -> dict[str, object]:
    return {
        "id": new_id(),
        "workflow_id": workflow_id,
        "topic": event.topic,
        "message_id": event.message_id,
        "payload": event.payload,
        "title": event.title,
        "status": EventStatus.PENDING.value,
        "source": source,
        "reserved_by": None,
        "created_by": run_id,
        "attempt": 1,
        "created_at": now,
        "updated_at": now,
    }


def is_same_message(workflow_id: str, new_events: Iterable[NewEvent]) -> ColumnElement[bool]:
    by_topic: dict[str, list[str]] = {}
    for event in new_events:
        by_topic.setdefault(event.topic, []).append(event.message_id)
    matches = [and_(e.topic == topic, e.message_id.in_(ids)) for topic, ids in by_topic.items()]
    return and_(e.workflow_id == workflow_id, or_(*matches))


def replace_pending(tx: Tx, old: EventRow, event: NewEvent, now: datetime) -> bool:
    """Replace payload and title of an event; False if it is not pending."""
    if old.status != EventStatus.PENDING:
        return False
    values = {"payload": event.payload, "title": event.title or old.title, "updated_at": now}
    still_pending = and_(e.id == old.id, e.status == EventStatus.PENDING)
    return bool(tx.execute(update(tables.events).where(still_pending).values(values)).rowcount)


# read


def peek(tx: Tx, workflow_id: str, topic: str, limit: int) -> list[EventRow]:
    """Return pending events of a topic, oldest first."""
    rows = statements.PENDING_EVENTS.run(tx, workflow_id=workflow_id, topic=topic, count=limit)
    return [EventRow(**dict(zip(e.keys(), row, strict=True))) for row in rows]


def by_ids(tx: Tx, workflow_id: str, topic: str, ids: Collection[str]) -> list[EventRow]:
    """Return events of a topic by their ids, in any status."""
    stmt = select(tables.events).where(is_listed(tx, e.id, ids), e.workflow_id == workflow_id, e.topic == topic)
    return [EventRow(**row._asdict()) for row in tx.execute(stmt.order_by(e.id))]


def oldest_pending(tx: Tx, workflow_id: str, topics: Iterable[str]) -> str | None:
    """Return the id of the oldest pending event in any of these topics."""
    oldest = [event.id for topic in topics for event in peek(tx, workflow_id, topic, 1)]
    return min(oldest, default=None)


def is_pending() -> ColumnElement[bool]:
    return e.status == literal_column("'pending'")  # a literal: a partial index does not match a parameter


def is_in_status(*statuses: str) -> ColumnElement[bool]:
    """As literals, in the words of the partial index: an index does not match parameters."""
    return e.status.in_([literal_column(f"'{status}'") for status in statuses])


# events of a run


def reserve(tx: Tx, run: Run, wanted: Mapping[str, list[str]], status: EventStatus, now: datetime) -> list[EventSource]:
    """Reserve pending events for a run, or consume them at once, as `status` says: all or none. Raises EventsSkipped if
    an operator skipped the missing ones, else LogicError."""
    reserved: list[EventSource] = []
    for topic, ids in wanted.items():
        rows = statements.RESERVE_EVENTS.run(
            tx,
            [(event_id,) for event_id in ids],
            workflow_id=run.workflow_id,
            topic=topic,
            run_id=run.id,
            status=status.value,
            now=now,
        )
        missing = set(ids) - {event_id for event_id, _ in rows}
        if missing:
            rest = by_ids(tx, run.workflow_id, topic, missing)
            skipped = {event.id for event in rest if event.status == EventStatus.SKIPPED}
            shown = f"of {topic} that are not pending there: {', '.join(sorted(missing)[:3])}"
            raise (EventsSkipped if skipped == missing else LogicError)(f"prepare reserved events {shown}")
        reserved += [(event_id, source) for event_id, source in rows]
    return reserved


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
