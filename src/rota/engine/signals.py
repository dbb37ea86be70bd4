"""Signals: one completes the oldest step that waits for its topic and key; one that comes first is kept."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, select, update

from rota.core.errors import Conflict
from rota.core.model import Job
from rota.core.steps import StepStatus
from rota.db.dialect import Tx, lock_keys
from rota.db.statement import insert_new
from rota.db.tables import signals
from rota.engine import steps
from rota.engine.records import StepRow

c = signals.c


@dataclass(frozen=True, slots=True)
class Signal:
    """A message to a waiting run. The sender chooses its id: the same id is the same signal."""

    id: str
    org_id: str
    topic: str
    key: str  # empty without one
    payload: object
    sender: str | None


class SentSignal(NamedTuple):
    id: str
    delivered: bool  # False: it is kept until a step waits for it


def subject_of(org_id: str, topic: str, key: str) -> str:
    """Return what a step that waits for a signal has as `waits_for`. No topic and no key has a line break."""
    return f"signal:{org_id}:{topic}\n{key}"


def send(tx: Tx, signal: Signal, now: datetime) -> SentSignal:
    """Store a signal and complete the oldest step that waits for it. Idempotent by its id. Raises Conflict if another
    signal has this id."""
    subject = subject_of(signal.org_id, signal.topic, signal.key)
    lock_keys(tx, [subject])
    row = {
        "org_id": signal.org_id, "id": signal.id, "topic": signal.topic, "key": signal.key,
        "payload": signal.payload, "sender": signal.sender, "created_at": now,
    }  # fmt: skip
    if not insert_new(tx, signals, [row], ["id"]):
        first = tx.execute(select(signals).where(c.org_id == signal.org_id, c.id == signal.id)).one()
        if (first.topic, first.key, first.payload) != (signal.topic, signal.key, signal.payload):
            raise Conflict(f"signal {signal.id!r} was sent before, with another topic, key or payload")
        return SentSignal(signal.id, first.consumed_at is not None)
    for step in steps.waiting_for(tx, subject):
        completed = steps.lock_job(tx, step.job_id) and steps.complete(
            tx, step.job_id, step.name, StepStatus.DONE, now, signal.payload
        )
        if completed:  # not if its job has ended or it has timed out since it was read
            consume(tx, signal.org_id, signal.id, step.job_id, now)
            steps.wake(tx, [step.job_id], now)
            return SentSignal(signal.id, True)
    return SentSignal(signal.id, False)


def send_event(tx: Tx, org_id: str, event_id: str, topic: str, message_id: str, payload: object, now: datetime) -> None:
    """Send the event of a workflow as a signal, if a step waits for its topic: with its message id as key, else without
    a key. An event is one signal, also if its payload is replaced later; without a wait it is none."""
    signal_id = f"event:{event_id}"
    if tx.execute(select(c.id).where(c.org_id == org_id, c.id == signal_id)).first() is not None:
        return
    for key in (message_id, ""):
        if steps.waiting_for(tx, subject_of(org_id, topic, key), limit=1):
            send(tx, Signal(signal_id, org_id, topic, key, payload, f"event {event_id}"), now)
            return


def register(tx: Tx, job: Job, row: StepRow, now: datetime) -> StepRow:
    """Register a wait for a signal, and complete it with the oldest one that is kept; returns the step as it is
    recorded. Raises LeaseLost."""
    topic, key = row.topic or "", row.key or ""
    lock_keys(tx, [subject_of(job.org_id, topic, key)])
    row = steps.register(tx, job, row)
    kept = (c.org_id == job.org_id, c.topic == topic, c.key == key, c.consumed_at.is_(None))
    first = tx.execute(select(signals).where(*kept).order_by(c.created_at, c.id).limit(1)).one_or_none()
    if row.status is not StepStatus.WAITING or first is None:
        return row
    steps.complete(tx, job.id, row.name, StepStatus.DONE, now, first.payload)
    consume(tx, job.org_id, first.id, job.id, now)
    completed = steps.get(tx, job.id, row.name)
    assert completed is not None
    return completed


def consume(tx: Tx, org_id: str, signal_id: str, job_id: str, now: datetime) -> None:
    own = (c.org_id == org_id, c.id == signal_id)
    tx.execute(update(signals).where(*own).values(consumed_at=now, consumed_by_job=job_id))


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Delete signals that were sent before `before`, waiting or consumed; returns their number."""
    old = select(c.org_id, c.id).where(c.created_at < before).order_by(c.created_at).limit(limit)
    rows = list(tx.execute(old))
    for row in rows:
        tx.execute(delete(signals).where(c.org_id == row.org_id, c.id == row.id))
    return len(rows)
