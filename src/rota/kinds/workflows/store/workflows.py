"""Workflows: everything about them that changes together, changed together. No other module writes these tables.

The row of a workflow is its lock: publish, begin, commit and what people ask for take it first (`get` with `hold`),
then the serial key, then jobs. Whoever holds it has its handlers in hand: what they need is decided from these, and a
change of one (`note`) is made in both places. So a publish during a run is never swallowed: it sets a flag that the
run's commit does not clear, and there is a job for it behind the running one. A need is a job (see `arm`).
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    delete,
    exists,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from rota.core import parse
from rota.core.errors import Conflict, LeaseLost, LogicError, NotFound
from rota.core.ids import new_id
from rota.core.model import WORKFLOW, Attempt, AttemptResult, Job, NewJob, Schedule, record, serial_key_of_target
from rota.core.policy import RECONCILIATION
from rota.core.states import Move, Phase, State, Status, state_after, states_before
from rota.db.dialect import (
    Batch,
    Given,
    Tx,
    hot,
    insert_new,
    insert_rows,
    is_listed,
    listed,
    lock_keys,
    notify,
    records_of,
    update_row,
)
from rota.db.tables import causes, effects, events, handlers, jobs, workflow_runs, workflows
from rota.db.tables import runs as attempts
from rota.engine import firing, grants, schedules
from rota.engine import jobs as queue
from rota.engine import runs as ledger
from rota.kinds.workflows.rules import (
    EFFECT_MOVES,
    OPEN_EFFECTS,
    Candidate,
    EffectStatus,
    EventStatus,
    HandlerKind,
    Outcome,
    Resolution,
    first_of,
    may_move,
    start_of,
)

PAUSED = "paused"  # why a job waits that came up while its workflow was paused
CONSUMERS_FIRST = 1  # the priority of their jobs; that of producers is 0
GONE = "no longer declared in the program"
SCRIPT = "script"  # the source of those that people upload; others name their program

w, h, e, r, f, j = workflows.c, handlers.c, events.c, workflow_runs.c, effects.c, jobs.c


@record
class Published:
    """An event on its way into a topic."""

    topic: str
    message_id: str
    payload: Any
    title: str | None = None


@record
class Begun:
    """A run under way, as it stands in the database."""

    id: str
    workflow_id: str
    handler: str
    kind: HandlerKind
    phase: Phase
    state: Any
    started_at: datetime
    prepared: Mapping[str, Any] | None = None
    outcome: Outcome | None = None
    result: Any = None
    effect: Any = None  # the row of an effect that is still open
    retry_of: str | None = None


@record
class Decided:
    """What `prepare` decided, not yet written down: as JSON, which events of which topics, when to look again."""

    result: Mapping[str, Any]
    wanted: Mapping[str, list[str]]
    wake_at: datetime | None


class Overtaken(LogicError):
    """A person skipped the events that a run was about to reserve."""


class Flow(SimpleNamespace):
    """A workflow: its row, and its handlers by name."""

    handlers: dict[str, Any]


# declared


def get(tx: Tx, org_id: str, key: str, hold: bool = False) -> Flow:
    """A workflow of an org by its id or name; held until the transaction ends, if asked."""
    found = records_of(tx, list(w), finding(tx, Given({"org": org_id, "key": key}, (hold,))))
    if not found:
        raise NotFound(f"workflow {key!r} not found")
    return with_handlers(tx, dict(zip(w.keys(), found[0], strict=True)))


@hot
def finding(_: Tx, hold: bool) -> Any:
    org, key = bindparam("org", type_=w.org_id.type), bindparam("key", type_=Text)
    stmt = select(workflows).where(w.org_id == org, or_(w.id == key, w.name == key), w.deleted_at.is_(None))
    stmt = stmt.order_by(w.id != key)
    return stmt.with_for_update() if hold else stmt


def with_handlers(tx: Tx, row: Mapping[str, Any]) -> Flow:
    """In a statement of its own: one that waited for a lock still sees other tables as they were before it waited."""
    found = records_of(tx, list(h), staff(tx, Given({"flow": row["id"]})))
    members = [SimpleNamespace(**dict(zip(h.keys(), one, strict=True))) for one in found]
    return Flow(**row, handlers={one.name: one for one in members})


@hot
def staff(_: Tx) -> Any:
    return select(handlers).where(h.workflow_id == bindparam("flow", type_=h.workflow_id.type)).order_by(h.name)


def note(tx: Tx, handler: Any, **changes: Any) -> None:
    """Change what is known of a handler, if that is news."""
    new = {name: value for name, value in changes.items() if getattr(handler, name) != value}
    if new:
        update_row(tx, handlers, {"workflow_id": handler.workflow_id, "name": handler.name}, new)
        handler.__dict__.update(new)


def deploy(
    tx: Tx, org_id: str, fields: Mapping[str, Any], producers: Mapping[str, Schedule], now: datetime
) -> str | None:
    """Make the database say what a program declares; None where it does already. What is new or changed runs at once:
    producers by a job beside their slots, consumers because they cannot know what they would do now."""
    row = {"id": new_id(), "org_id": org_id, **fields, "created_at": now, "updated_at": now}
    new = bool(insert_new(tx, workflows, [row], ("id",)))
    flow = get(tx, org_id, fields["name"], hold=True)
    if (flow.source == SCRIPT) != (fields["source"] == SCRIPT):
        raise Conflict(f"workflow {flow.name}: it is there already, from {flow.source}; give one of them another name")
    if not new and all(getattr(flow, name) == value for name, value in fields.items()) and flow.pause_reason != GONE:
        return None
    again = {"paused_at": None, "pause_reason": None} if flow.pause_reason == GONE else {}
    tx.execute(update(workflows).where(w.id == flow.id).values({**fields, **again, "updated_at": now}))
    declared = {one["name"]: one for one in fields["declaration"]["handlers"]}
    for name in flow.handlers.keys() - declared.keys():
        schedules.delete_if_exists(tx, org_id, flow.handlers[name].schedule_id, now)
        tx.execute(delete(handlers).where(h.workflow_id == flow.id, h.name == name))
    for name, one in declared.items():
        kept = flow.handlers.get(name)
        schedule_id = None if kept is None else kept.schedule_id
        if name in producers:
            schedule_id = plan_producer(tx, org_id, producers[name], schedule_id, now)
        elif schedule_id is not None:
            schedules.delete_if_exists(tx, org_id, schedule_id, now)  # it became a consumer
            schedule_id = None
        values = {
            "type": one["type"], "subscribe": one["subscribe"], "schedule_id": schedule_id,
            "dirty": one["type"] == HandlerKind.CONSUMER,
        }  # fmt: skip
        if kept is None:
            insert_rows(tx, handlers, [{"workflow_id": flow.id, "name": name, **values}])
        else:
            note(tx, kept, **values)
    flow = get(tx, org_id, flow.id)
    arm(tx, flow, now, "deploy")
    return str(flow.id)


def plan_producer(tx: Tx, org_id: str, wanted: Schedule, schedule_id: str | None, now: datetime) -> str:
    """A producer's schedule is one like any other. One that did not change keeps its next slot."""
    if schedule_id is None or not schedules.exists(tx, org_id, schedule_id):
        schedules.insert(tx, [wanted], now)
        found = wanted
    else:
        due = schedules.lock(tx, org_id, schedule_id)
        found = due.schedule
        same = parse.flat_timing(wanted.timing) | {"anchor": None} == parse.flat_timing(found.timing) | {"anchor": None}
        if same and found.enabled:
            return schedule_id
        found = schedules.replace_schedule(tx, due, replace(found, timing=wanted.timing, enabled=True), now)
    firing.run_now(tx, found, found.input, found.overlap, None, now, "deploy")
    return found.id


def retire(tx: Tx, org_id: str, source: str, declared: Collection[str], now: datetime) -> list[str]:
    """Pause what vanished from its program; it is not deleted."""
    gone = and_(w.org_id == org_id, w.source == source, w.name.not_in(declared), w.paused_at.is_(None))
    stmt = update(workflows).where(gone).values(paused_at=now, pause_reason=GONE, updated_at=now).returning(w.id)
    return list(tx.execute(stmt).scalars())


# events


def publish(
    tx: Tx, flow: Flow, new: Sequence[Published], now: datetime, *, source: str | None = None,
    run_id: str | None = None, inputs: Collection[str] = (),
) -> list[tuple[str, str]]:  # fmt: skip
    """Put events into topics: (id, what became of it) of each, which is `created`, `replaced` while the earlier one of
    its message id is pending, else `kept`. With a `source` they are inputs; else they go back to `inputs`. The caller
    holds the workflow."""
    last = {(one.topic, one.message_id): one for one in new}
    rows = [
        {
            "id": new_id(), "workflow_id": flow.id, "topic": one.topic, "message_id": one.message_id,
            "payload": one.payload, "title": one.title, "status": EventStatus.PENDING.value, "source": source,
            "reserved_by": None, "created_by": run_id, "attempt": 1, "created_at": now, "updated_at": now,
        }
        for one in last.values()
    ]  # fmt: skip
    became = {(topic, message): (one, "created") for one, topic, message in
              insert_new(tx, events, rows, ("id", "topic", "message_id"))}  # fmt: skip
    known = [one for key, one in last.items() if key not in became]
    for row in tx.execute(select(events).where(among(flow.id, known))) if known else ():
        given = last[(row.topic, row.message_id)]
        word = "kept"
        if row.status == EventStatus.PENDING:
            changed = {"payload": given.payload, "title": given.title or row.title, "updated_at": now}
            still = and_(e.id == row.id, e.status == EventStatus.PENDING)
            word = "replaced" if tx.execute(update(events).where(still).values(changed)).rowcount else "kept"
        became[(row.topic, row.message_id)] = (row.id, word)
    fresh = {key: one for key, (one, word) in became.items() if word != "kept"}
    links = [{"input_id": one, "event_id": event} for event in fresh.values() for one in sorted(inputs)]
    insert_new(tx, causes, links, ("event_id",))
    touched = {topic for topic, _ in fresh}
    for one in flow.handlers.values():
        if touched & set(one.subscribe):
            note(tx, one, dirty=True)
    return [became[(one.topic, one.message_id)] for one in new]


def among(workflow_id: str, wanted: Iterable[Published]) -> ColumnElement[bool]:
    by_topic: dict[str, list[str]] = {}
    for one in wanted:
        by_topic.setdefault(one.topic, []).append(one.message_id)
    some = [and_(e.topic == topic, e.message_id.in_(ids)) for topic, ids in by_topic.items()]
    return and_(e.workflow_id == workflow_id, or_(*some))


def publish_outside(tx: Tx, org_id: str, key: str, topic: str, new: Published, now: datetime) -> tuple[str, str, bool]:
    """An event from somebody who is not the workflow: an input of source `api`; its id, what became of it, and whether
    there is a job now that was not there."""
    flow = get(tx, org_id, key, hold=True)
    if topic not in flow.declaration["topics"]:
        raise NotFound(f"workflow {flow.name}: it has no topic {topic}")
    ((event_id, word),) = publish(tx, flow, [new], now, source="api")
    return event_id, word, arm(tx, flow, now)


def peek(tx: Tx, workflow_id: str, topic: str, limit: int) -> list[Any]:
    """Pending events of a topic, oldest first."""
    found = peeking(tx, Given({"flow": workflow_id, "topic": topic, "limit": limit}))
    return [SimpleNamespace(**dict(zip(e.keys(), one, strict=True))) for one in records_of(tx, list(e), found)]


@hot
def peeking(_: Tx) -> Any:
    return select(events).where(*waits(e.topic == TOPIC)).order_by(e.id).limit(bindparam("limit", type_=Integer))


def waits(where: ColumnElement[bool]) -> tuple[ColumnElement[bool], ...]:
    return (e.workflow_id == bindparam("flow", type_=e.workflow_id.type), where, is_pending())


TOPIC = bindparam("topic", type_=Text)


def is_pending() -> ColumnElement[bool]:
    return e.status == literal_column("'pending'")  # in the statement's text: a partial index serves no parameter


def by_ids(tx: Tx, workflow_id: str, topic: str, ids: Collection[str]) -> list[Any]:
    """Events of a topic by their ids, in any status."""
    stmt = select(events).where(is_listed(tx, e.id, "ids"), e.workflow_id == workflow_id, e.topic == topic)
    return list(tx.execute(stmt.order_by(e.id), {"ids": listed(tx, ids)}))


# needs


def arm(tx: Tx, flow: Flow, now: datetime, trigger: str = "event", leaving: bool = False) -> bool:
    """See to it that there is a job for what consumers need, at the moment they need it: at most one that waits, since
    each commit looks again. Whether anything changed. The caller holds the workflow; one whose own job is about to
    leave lets that promote."""
    free = [one for one in flow.handlers.values() if one.type == HandlerKind.CONSUMER and one.held_run_id is None]
    dirty = any(one.dirty for one in free)
    at = now if dirty else min((one.wake_at for one in free if one.wake_at), default=None)
    found = records_of(tx, [j.id, j.state, j.run_at], waiting(tx, Given({"flow": flow.id})))
    line = serial_key_of_target(WORKFLOW, flow.org_id, flow.name)
    why = trigger if dirty else "wake_at"
    if not found:
        if at is not None:
            job = NewJob(
                flow.org_id, WORKFLOW, flow.name, None, max(at, now), why, route=route_of(flow), serial_key=line,
                solo_key=flow.id, priority=CONSUMERS_FIRST,
            )  # fmt: skip
            if not leaving:
                lock_keys(tx, [line])
            queue.add(tx, [job], now, promoting=not leaving)
        return at is not None
    ((job_id, state, run_at),) = found
    if state != State.LATER or run_at == at:
        return False
    lock_keys(tx, [line])
    # a job that became due just now stays as it is: its run reads what it needs
    delayed = and_(j.id == job_id, queue.is_in(j.state, states_before(Move.WAIT)))
    if at is None:
        tx.execute(delete(jobs).where(delayed))
    elif at > now:
        tx.execute(update(jobs).where(delayed).values(run_at=at, trigger=why))
    else:
        tx.execute(update(jobs).where(delayed).values(run_at=at, trigger=why, state=state_after(Move.WAIT)))
        queue.promote(tx, [line])
    notify(tx, "ready" if at is not None and at <= now else "later")
    return True


@hot
def waiting(_: Tx) -> Any:
    return select(j.id, j.state, j.run_at).where(j.solo_key == bindparam("flow", type_=Text))


def route_of(flow: Flow) -> str:
    """What a worker must have to run it: the program that declares it."""
    return str(flow.declaration["route"])


def choose(tx: Tx, flow: Flow, now: datetime) -> Any | None:
    """The consumer that runs next, if any needs to."""
    free = [one for one in flow.handlers.values() if one.type == HandlerKind.CONSUMER and one.held_run_id is None]
    due = [one for one in free if one.dirty or (one.wake_at is not None and one.wake_at <= now)]
    if len(due) < 2:
        return due[0] if due else None
    first = first_of(Candidate(one.name, one.wake_at, oldest(tx, flow.id, one.subscribe)) for one in due)
    return next(one for one in due if one.name == first)


def oldest(tx: Tx, workflow_id: str, topics: Iterable[str]) -> str | None:
    """The first event that waits in any of these topics."""
    found = [first_waiting(tx, Given({"flow": workflow_id, "topic": topic})) for topic in topics]
    return min((one for rows in found for (one,) in rows), default=None)


@hot
def first_waiting(_: Tx) -> Any:
    return select(e.id).where(*waits(e.topic == TOPIC)).order_by(e.id).limit(1)  # a minimum may look at all of them


# a run


def begin(tx: Tx, job: Job, run_id: str, number: int, now: datetime) -> Begun | str:
    """Start an attempt: which handler, from which phase, with what of the attempt before. Or a word why not: `paused`,
    `yield` (the job waits again), `idle` (there is nothing to do), or the code of a grant that does not hold."""
    return enter(tx, get(tx, job.org_id, job.target, hold=True), Attempt(job, run_id, number, now))


def enter(tx: Tx, flow: Flow, attempt: Attempt) -> Begun | str:
    job, run_id, now = attempt.job, attempt.run_id, attempt.started_at
    before = tx.execute(select(workflow_runs).where(r.id == job.last_run_id)).one_or_none() if job.last_run_id else None
    if before is not None and before.phase == Phase.COMMITTED:
        before = None
    named = before.handler_id if before is not None else job.payload and job.payload["handler"]
    one = flow.handlers.get(named) if named else choose(tx, flow, now)
    why_not = None
    if flow.paused_at is not None:
        why_not = PAUSED
    elif before is None and named and any(row[1] == State.BLOCKED for row in waiting(tx, Given({"flow": flow.id}))):
        why_not = "yield"
    elif one is None or (before is None and one.held_run_id is not None):
        why_not = "idle"
    elif before is None and one.type == HandlerKind.CONSUMER and (code := grant_trouble(tx, flow, now)) is not None:
        why_not = code
    elif not queue.mark_started(tx, [attempt]):
        raise LeaseLost(f"job {job.id}: it is not ours any more")
    elif (started := start(tx, flow, one, before, run_id, now)) is not None:
        return started
    again = tx.execute(select(workflow_runs).where(r.id == run_id)).one_or_none()
    if again is not None:  # the answer to the first call was lost
        return begun(tx, flow, again)
    if why_not in (PAUSED, "yield"):
        lock_keys(tx, [job.serial_key or ""])
        how, reason = (Move.PARK, PAUSED) if why_not == PAUSED else (Move.YIELD, None)
        queue.set_aside(tx, job, how, job.schedule_id or flow.id, reason)
    return why_not or "idle"


def grant_trouble(tx: Tx, flow: Flow, now: datetime) -> str | None:
    """Why consumers may not begin: a grant of the workflow, which is one of its producers' schedules, does not hold."""
    for grant_id in schedules.grants_of(tx, [one.schedule_id for one in flow.handlers.values() if one.schedule_id]):
        code = grants.trouble(tx, flow.org_id, grant_id, WORKFLOW, {flow.id, flow.name}, now)
        if code is not None or grants.used_up(tx, grant_id, now) is not None:
            return code or "budget"
    return None


def start(tx: Tx, flow: Flow, handler: Any, before: Any | None, run_id: str, now: datetime) -> Begun | None:
    """A new run; None if it is there already. By the reset rules it keeps what the one before had, or gives its events
    back."""
    kind, begins, effect, kept = HandlerKind(handler.type), None, None, None
    if before is not None:
        effect = open_effect(tx, before.id)
        outcome = Outcome(before.mutation_outcome) if before.mutation_outcome else None
        begins = start_of(kind, Phase(before.phase), outcome, effect and EffectStatus(effect.status))
        kept = before if begins.keeps else None
    phase = (begins or start_of(kind)).phase
    row = {
        "id": run_id, "workflow_id": flow.id, "handler_id": handler.name, "handler_type": kind.value,
        "retry_of": before and before.id, "phase": phase.value, "prepare_result": kept and kept.prepare_result,
        "mutation_outcome": kept and kept.mutation_outcome, "mutation_result": kept and kept.mutation_result,
        "created_at": now, "updated_at": now,
    }  # fmt: skip
    if not insert_new(tx, workflow_runs, [row], ("id",)):
        return None
    if kept is not None:
        mine = taken_by(flow.id, kept.id)
        tx.execute(update(events).where(mine).values(reserved_by=run_id, updated_at=now))
        tx.execute(update(effects).where(f.run_id == kept.id).values(run_id=run_id, updated_at=now))
        if effect is not None and effect.status == EffectStatus.IN_FLIGHT:  # the worker died, or could not tell
            move_effect(tx, effect.id, EffectStatus.NEEDS_RECONCILE, now)
    elif before is not None:
        release(tx, before, now)
    if phase is Phase.PREPARING:  # whatever comes from now on is for the next run
        note(tx, handler, dirty=False, wake_at=None)
    outcome = Outcome(kept.mutation_outcome) if kept is not None and kept.mutation_outcome else None
    return Begun(
        run_id, flow.id, handler.name, kind, phase, handler.state, now, row["prepare_result"], outcome,
        row["mutation_result"], effect if kept is not None else None, row["retry_of"],
    )  # fmt: skip


def begun(tx: Tx, flow: Flow, row: Any) -> Begun:
    outcome = Outcome(row.mutation_outcome) if row.mutation_outcome else None
    return Begun(
        row.id, row.workflow_id, row.handler_id, HandlerKind(row.handler_type), Phase(row.phase),
        flow.handlers[row.handler_id].state, row.created_at, row.prepare_result, outcome, row.mutation_result,
        open_effect(tx, row.id), row.retry_of,
    )  # fmt: skip


def open_effect(tx: Tx, run_id: str) -> Any | None:
    return tx.execute(select(effects).where(f.run_id == run_id, f.status.in_(OPEN_EFFECTS))).one_or_none()


def taken_by(workflow_id: str, run_id: str) -> ColumnElement[bool]:
    """Events that a run has taken and not consumed."""
    return and_(e.workflow_id == workflow_id, e.reserved_by == run_id, is_one_of("reserved", "skipped"))


def is_one_of(*statuses: str) -> ColumnElement[bool]:
    """In the statement's text, as partial indexes have it: those serve no parameter."""
    return e.status.in_([literal_column(f"'{one}'") for one in statuses])


def release(tx: Tx, run: Any, now: datetime) -> None:
    """What a run had reserved is pending again."""
    mine = and_(taken_by(run.workflow_id, run.id), e.status == EventStatus.RESERVED)
    values = {"status": EventStatus.PENDING.value, "reserved_by": None, "attempt": e.attempt + 1, "updated_at": now}
    tx.execute(update(events).where(mine).values(values))


def prepared(
    tx: Tx, job: Job, run: Begun, result: Mapping[str, Any], wanted: Mapping[str, list[str]], wake_at: datetime | None,
    now: datetime,
) -> None:  # fmt: skip
    """Reserve events, all or none, and keep what `prepare` decided."""
    if move_phase(tx, job, run, Phase.PREPARED, now, prepare_result=result):
        take(tx, run, wanted, EventStatus.RESERVED, now)
        if wake_at is not None:  # it was cleared when the run began
            mine = {"workflow_id": run.workflow_id, "name": run.handler}
            update_row(tx, handlers, mine, {"wake_at": wake_at})


def take(
    tx: Tx, run: Begun, wanted: Mapping[str, list[str]], status: EventStatus, now: datetime
) -> list[tuple[str, str | None]]:
    """Make pending events a run's own, all or none: their ids, and sources of those that are inputs."""
    found: list[tuple[str, str | None]] = []
    for topic, ids in wanted.items():
        given, shape = TAKEN.given(tx, [(run.workflow_id, topic, run.id, status.value, now)])
        taken = taking(tx, Given({**given, "ids": listed(tx, ids)}, shape))
        missing = set(ids) - {one for one, _ in taken}
        if missing:
            gone = {one.id for one in by_ids(tx, run.workflow_id, topic, missing) if one.status == EventStatus.SKIPPED}
            shown = f"of {topic} that are not pending there: {', '.join(sorted(missing)[:3])}"
            raise (Overtaken if gone == missing else LogicError)(f"prepare reserved events {shown}")
        found += [(one, source) for one, source in taken]
    return found


TAKEN = Batch("taken", flow=Text(), topic=Text(), run=Text(), status=Text(), at=e.updated_at.type)


@hot
def taking(tx: Tx, alike: tuple[str, ...]) -> Any:
    new = TAKEN.table(tx, alike)
    # the rest is asked in a way that no index serves: PostgreSQL may know nothing of these rows yet, and would then
    # rather look at all that is pending than for each event by its id
    nothing, pending = literal_column("''", Text), literal_column("'pending'", Text)
    same = (e.workflow_id + nothing == new.c.flow, e.topic + nothing == new.c.topic, e.status + nothing == pending)
    mine = and_(is_listed(tx, e.id, "ids"), *same)
    values = {"status": new.c.status, "reserved_by": new.c.run, "updated_at": new.c.at}
    return update(events).where(mine).values(values).returning(e.id, e.source)


def call(
    tx: Tx, job: Job, run: Begun, effect_id: str, called: str, params: Any, title: str | None, now: datetime
) -> None:
    """Write down a mutation before it is tried."""
    if move_phase(tx, job, run, Phase.MUTATING, now):
        row = {
            "id": effect_id, "workflow_id": run.workflow_id, "run_id": run.id, "call": called, "params": params,
            "title": title, "status": EffectStatus.IN_FLIGHT.value, "reconcile_attempts": 0,
            "inputs": len(roots(tx, taken_of(tx, run))), "created_at": now, "updated_at": now,
        }  # fmt: skip
        insert_rows(tx, effects, [row])


def settle(
    tx: Tx, job: Job, run: Begun, effect_id: str, status: EffectStatus, now: datetime, result: Any = None,
    error: Any = None, asked: int = 0,
) -> None:  # fmt: skip
    """Write down what became of a mutation. If that is known now, the run is past the boundary, or surely before it."""
    outcome = {EffectStatus.APPLIED: Outcome.APPLIED, EffectStatus.FAILED: Outcome.FAILED}.get(status)
    if outcome is None:
        own(tx, job)
    elif not move_phase(
        tx, job, run, Phase.MUTATED, now, mutation_outcome=outcome.value, mutation_result=result
    ):  # fmt: skip
        return
    move_effect(tx, effect_id, status, now, error=error, reconcile_attempts=asked, result=result)


def move_effect(tx: Tx, /, effect_id: str, to: EffectStatus, now: datetime, **values: Any) -> None:
    """Move a mutation in its ledger, as EFFECT_MOVES allows; a repeat changes nothing. Raises Conflict."""
    sources = [before.value for before, after in EFFECT_MOVES if after is to]
    moved = update(effects).where(f.id == effect_id, f.status.in_(sources))
    if tx.execute(moved.values(status=to.value, updated_at=now, **values)).rowcount:
        return
    status = tx.execute(select(f.status).where(f.id == effect_id)).scalar_one()
    if status != to:
        raise Conflict(f"mutation {effect_id}: it cannot become {to.value}, because it is {status}")


def emitting(tx: Tx, job: Job, run: Begun, now: datetime) -> None:
    """Record that `next` runs, or failed."""
    move_phase(tx, job, run, Phase.EMITTING, now)


def commit(
    tx: Tx, job: Job, run: Begun, state: Any, new: Sequence[Published], worker: str, ended: AttemptResult,
    lines: Sequence[Any], now: datetime, decided: Decided | None = None, follows: bool = False,
) -> tuple[Attempt, Begun | None] | None:  # fmt: skip
    """Make a run stand: state, events, what it published, its phase, its row in the ledger, and the job for what comes
    next. All of it, or nothing; once. Also what `prepare` decided, where nothing came between; and, if the worker
    follows, the start of the next run."""
    flow = get(tx, job.org_id, job.target, hold=True)
    changes: dict[str, Any] = {} if run.outcome else {"mutation_outcome": Outcome.NONE.value}
    if decided is not None:
        changes["prepare_result"] = decided.result
    if not move_phase(tx, job, run, Phase.COMMITTED, now, **changes):
        return followed(tx, flow, job, worker)
    if decided is not None:
        taken = take(tx, run, decided.wanted, EventStatus.CONSUMED, now)
    else:
        taken = consume(tx, run, now) if run.kind is HandlerKind.CONSUMER else []
    one, consumer = flow.handlers.get(run.handler), run.kind is HandlerKind.CONSUMER
    inputs = roots(tx, taken or taken_of(tx, run)) if consumer and new else []
    publish(tx, flow, new, now, source=None if consumer else run.handler, run_id=run.id, inputs=inputs)
    if one is not None:  # a new version may have none of this name
        dirty = one.dirty or bool(taken and oldest(tx, flow.id, one.subscribe))  # it took some, and more may wait
        wake_at = one.wake_at if decided is None else decided.wake_at
        note(tx, one, dirty=dirty, wake_at=wake_at, state=one.state if state is None else state)
    arm(tx, flow, now, leaving=True)  # before the job leaves: what it leaves behind stands in line by its priority
    ledger.write_logs(tx, lines)
    kept, behind = queue.pass_on(tx, ended, worker, now, follows and flow.paused_at is None)
    if not kept:
        raise LeaseLost(f"job {job.id}: it is not ours any more")
    if behind is None:
        return None
    attempt = Attempt(behind, new_id(), behind.attempt + 1, now)
    found = enter(tx, flow, attempt)
    if isinstance(found, str):
        return None if found in (PAUSED, "yield") else (attempt, None)
    return attempt, found


def followed(tx: Tx, flow: Flow, job: Job, worker: str) -> tuple[Attempt, Begun | None] | None:
    """What a commit began whose answer was lost."""
    head = queue.head_of(tx, job.serial_key or "")
    if head is None or head.id == job.id or head.lease_owner != worker or head.run_id is None:
        return None
    found = tx.execute(select(*queue.FIELDS).where(j.id == head.id)).one()
    attempt = Attempt(
        replace(queue.job_of(found), attempt=head.attempt - 1), head.run_id, head.attempt, head.started_at
    )
    return attempt, begun(tx, flow, tx.execute(select(workflow_runs).where(r.id == head.run_id)).one())


def consume(tx: Tx, run: Begun, now: datetime) -> list[tuple[str, str | None]]:
    """What a run had reserved is consumed: ids, and sources of those that are inputs."""
    mine = and_(taken_by(run.workflow_id, run.id), e.status == EventStatus.RESERVED)
    stmt = update(events).where(mine).values(status=EventStatus.CONSUMED.value, updated_at=now)
    return [(one.id, one.source) for one in tx.execute(stmt.returning(e.id, e.source))]


def put_aside(
    tx: Tx, job: Job, run: Begun, worker: str, ended: AttemptResult, lines: Sequence[Any], now: datetime
) -> None:
    """A handler that failed waits for a person while the others go on."""
    flow = get(tx, job.org_id, job.target, hold=True)
    if run.handler in flow.handlers:
        note(tx, flow.handlers[run.handler], held_run_id=run.id)
    arm(tx, flow, now, leaving=True)
    if not queue.finish(tx, [ended], worker, now).recorded:
        raise LeaseLost(f"job {job.id}: it is not ours any more")
    ledger.write_logs(tx, lines)


def taken_of(tx: Tx, run: Begun) -> list[tuple[str, str | None]]:
    """The events that a run has reserved, or had when a person decided to skip them."""
    found = tx.execute(select(e.id, e.source).where(taken_by(run.workflow_id, run.id)))
    return [(one.id, one.source) for one in found]


def roots(tx: Tx, taken: Sequence[tuple[str, str | None]]) -> list[str]:
    """The inputs that events go back to."""
    rest = [one for one, source in taken if source is None]
    derived = select(causes.c.input_id).where(is_listed(tx, causes.c.event_id, "ids")).distinct()
    more = tx.execute(derived, {"ids": listed(tx, rest)}).scalars() if rest else ()
    return sorted({*(one for one, source in taken if source is not None), *more})


def own(tx: Tx, job: Job) -> None:
    """NO_MOVE_WITHOUT_THE_LEASE: nothing is written about a run whose job is somebody else's now."""
    held = select(j.id).where(j.id == job.id, j.fence == job.fence, queue.RUNS).with_for_update()
    if tx.execute(held).first() is None:
        raise LeaseLost(f"job {job.id}: it is not ours any more")


def move_phase(tx: Tx, job: Job, run: Begun, to: Phase, now: datetime, **values: Any) -> bool:
    """PHASE_MOVES_FORWARD. False if it is there already, because the answer to the first try was lost."""
    batch = moved_batch(tuple(values))
    given, shape = batch.given(tx, [(run.id, job.id, job.fence, to.value, now, *values.values())])
    earlier = listed(tx, [one.value for one in Phase if may_move(one, to)])
    if moving(tx, Given({**given, "earlier": earlier}, (*shape, *values))):
        return True
    before = tx.execute(select(r.phase).where(r.id == run.id)).scalar_one()
    if before == to:
        return False
    own(tx, job)
    raise Conflict(f"run {run.id}: from {before} to {to} is no move")


@functools.cache
def moved_batch(names: tuple[str, ...]) -> Batch:
    more = {name: r[name].type for name in names}
    return Batch("moved", run=Text(), job=Text(), fence=j.fence.type, phase=Text(), at=r.updated_at.type, **more)


@hot
def moving(tx: Tx, alike: tuple[str, ...], *names: str) -> Any:
    new = moved_batch(names).table(tx, alike)
    running = select(j.id).where(queue.held(new.c.job, new.c.fence)).with_for_update(of=jobs).cte("running")
    mine = and_(r.id == new.c.run, is_listed(tx, r.phase, "earlier"), exists(select(running.c.id)))
    values = {"phase": new.c.phase, "updated_at": new.c.at, **{name: new.c[name] for name in names}}
    return update(workflow_runs).where(mine).values(values).returning(r.id)


# people


def run_now(tx: Tx, org_id: str, key: str, now: datetime) -> list[str]:
    """Queue all producers, one after the other. Refused while something is under way or stuck."""
    flow = get(tx, org_id, key, hold=True)
    head = queue.head_of(tx, serial_key_of_target(WORKFLOW, org_id, flow.name))
    if flow.paused_at is not None:
        raise Conflict(f"workflow {flow.name}: it is paused; resume it first")
    if head is not None and head.state == State.PARKED:
        raise Conflict(f"workflow {flow.name}: it needs attention ({head.parked_reason}); resolve that first")
    if head is not None and head.state == State.RETRY:
        raise Conflict(f"workflow {flow.name}: it waits to try again at {head.run_at.isoformat(timespec='seconds')}")
    if head is not None and (head.state == State.RUNNING or head.attempt):
        raise Conflict(f"workflow {flow.name}: a run is active; wait until it has ended")
    mine = [one.schedule_id for one in flow.handlers.values() if one.schedule_id is not None]
    found = [schedules.lock(tx, org_id, one).schedule for one in mine]
    return [firing.run_now(tx, one, one.input, one.overlap, None, now) for one in found]


def pause(tx: Tx, org_id: str, key: str, reason: str, now: datetime) -> str:
    """Start nothing more. What runs finishes; what comes meanwhile waits."""
    flow = get(tx, org_id, key, hold=True)
    if flow.paused_at is None:
        tx.execute(update(workflows).where(w.id == flow.id).values(paused_at=now, pause_reason=reason, updated_at=now))
    return str(flow.id)


def resume(tx: Tx, org_id: str, key: str, now: datetime) -> str:
    """End a pause; or try again what failed."""
    flow = get(tx, org_id, key, hold=True)
    stuck = waits_for_person(tx, flow)
    if flow.paused_at is not None:
        tx.execute(update(workflows).where(w.id == flow.id).values(paused_at=None, pause_reason=None, updated_at=now))
        if stuck is not None and stuck.parked_reason == PAUSED:
            queue.resume(tx, stuck.id, now)
        return str(flow.id)
    if stuck is not None and stuck.parked_reason == RECONCILIATION:
        raise Conflict(f"workflow {flow.name}: nobody knows whether its mutation happened; resolve that")
    if stuck is None and not held(flow):
        raise Conflict(f"workflow {flow.name}: it is neither paused nor stuck")
    go_on(tx, flow, stuck, now)
    return str(flow.id)


def skip(tx: Tx, org_id: str, key: str, event_id: str, now: datetime) -> str:
    """A person decided that a pending event is not handled; nor is what came of it, and of nothing else, and waits."""
    flow = get(tx, org_id, key, hold=True)
    others = causes.alias()
    shared = select(literal(1)).where(others.c.event_id == causes.c.event_id, others.c.input_id != event_id).exists()
    derived = tx.execute(select(causes.c.event_id).where(causes.c.input_id == event_id, ~shared)).scalars()
    mine = and_(e.workflow_id == flow.id, is_listed(tx, e.id, "ids"))
    stmt = select(e.id, e.status).where(mine).order_by(e.id).with_for_update()
    found = {one.id: one.status for one in tx.execute(stmt, {"ids": listed(tx, [event_id, *derived])})}
    if event_id not in found:
        raise NotFound(f"workflow {flow.name}: it has no event {event_id}")
    if EventStatus.RESERVED in found.values():
        raise Conflict(f"event {event_id}: a run has taken it; wait until that has ended, or resolve it")
    waiting = [one for one, status in found.items() if status == EventStatus.PENDING]
    if not waiting:
        raise Conflict(f"event {event_id}: it is {found[event_id]} already, and nothing that came of it waits")
    skipped = update(events).where(is_listed(tx, e.id, "ids")).values(status=EventStatus.SKIPPED.value, updated_at=now)
    tx.execute(skipped, {"ids": listed(tx, waiting)})
    return event_id


def resolve(tx: Tx, org_id: str, key: str, how: Resolution, result: Any, by: str, now: datetime) -> str:
    """What a person decided about the run that waits for one."""
    flow = get(tx, org_id, key, hold=True)
    stuck = waits_for_person(tx, flow)
    run_id = stuck.last_run_id if stuck is not None else next(iter(held(flow).values()), None)
    run = tx.execute(select(workflow_runs).where(r.id == run_id)).one_or_none()
    if run is None or (stuck is not None and stuck.parked_reason == PAUSED):
        raise Conflict(f"workflow {flow.name}: nothing in it waits for a person")
    effect = open_effect(tx, run.id)
    uncertain = how in (Resolution.APPLIED, Resolution.NOT_APPLIED)
    if uncertain and effect is None:
        raise Conflict(f"workflow {flow.name}: it has no mutation of which nobody knows; {how.value} says nothing")
    if how in (Resolution.APPROVE, Resolution.REJECT) and effect is not None:
        raise Conflict(f"workflow {flow.name}: say whether its mutation was applied, not_applied, or skip it")
    if how is Resolution.SKIP and run.phase in (Phase.EXECUTING, Phase.PREPARING):
        raise Conflict(f"workflow {flow.name}: the run has taken no events yet; there is nothing to skip")
    if how is Resolution.SKIP and run.mutation_outcome == Outcome.APPLIED:
        raise Conflict(f"workflow {flow.name}: its mutation was applied; the run can only go on")
    match how:
        case Resolution.APPLIED:
            decide(tx, run, effect, EffectStatus.APPLIED, Outcome.APPLIED, by, now, result)
        case Resolution.NOT_APPLIED:
            decide(tx, run, effect, EffectStatus.FAILED, Outcome.FAILED, by, now)
        case Resolution.SKIP:
            decide(tx, run, effect, EffectStatus.FAILED, Outcome.SKIPPED, by, now)
            skip_events(tx, run, now)
        case Resolution.TRY_AGAIN if effect is not None:
            move_effect(tx, effect.id, EffectStatus.NEEDS_RECONCILE, now, reconcile_attempts=0)
        case Resolution.REJECT:
            skip_events(tx, run, now)
            if run.phase == Phase.PREPARING and run.handler_id in flow.handlers:
                skip_oldest(tx, run, flow.handlers[run.handler_id].subscribe, now)
            drop(tx, flow, stuck, run, now)
            return str(flow.id)
        case _:  # approve, or try again what needs nothing but that
            pass
    go_on(tx, flow, stuck, now)
    return str(flow.id)


def decide(
    tx: Tx,
    run: Any,
    effect: Any | None,
    status: EffectStatus,
    outcome: Outcome,
    by: str,
    now: datetime,
    result: Any = None,
) -> None:
    if effect is not None:
        move_effect(tx, effect.id, status, now, result=result, resolved_by=by)
    known = {"mutation_outcome": outcome.value, "mutation_result": result, "updated_at": now}
    phase = Phase.MUTATED if may_move(Phase(run.phase), Phase.MUTATED) else Phase(run.phase)
    tx.execute(update(workflow_runs).where(r.id == run.id).values(known | {"phase": phase.value}))


def skip_events(tx: Tx, run: Any, now: datetime) -> None:
    mine = and_(taken_by(run.workflow_id, run.id), e.status == EventStatus.RESERVED)
    tx.execute(update(events).where(mine).values(status=EventStatus.SKIPPED.value, updated_at=now))


def skip_oldest(tx: Tx, run: Any, topics: Iterable[str], now: datetime) -> None:
    """Skip the oldest event that a failed `prepare` could see: it had reserved none, and most likely failed on it."""
    mine = and_(e.workflow_id == run.workflow_id, e.topic.in_(list(topics)), is_pending())
    stmt = select(e.id).where(mine, e.updated_at <= run.created_at).order_by(e.id).limit(1)
    first = tx.execute(stmt).scalar_one_or_none()
    if first is not None:
        tx.execute(update(events).where(e.id == first).values(status=EventStatus.SKIPPED.value, updated_at=now))


def drop(tx: Tx, flow: Flow, stuck: Any | None, run: Any, now: datetime) -> None:
    """A person rejected the run: it has failed, and the workflow goes on without it."""
    if stuck is None:
        note(tx, flow.handlers[run.handler_id], held_run_id=None)
    else:
        lock_keys(tx, [stuck.serial_key])
        queue.withdraw(tx, j.id == stuck.id, Status.FAILED, "logic", now)
        notify(tx, "ready")
    handler = flow.handlers.get(run.handler_id)
    if (
        handler is not None
        and handler.type == HandlerKind.CONSUMER
        and oldest(tx, flow.id, handler.subscribe) is not None
    ):
        note(tx, handler, dirty=True)  # the run had cleared the flag when it began
    arm(tx, flow, now)


def waits_for_person(tx: Tx, flow: Flow) -> Any | None:
    """The job that stands first in line and waits: for a person, or to ask again what became of a mutation."""
    head = queue.head_of(tx, serial_key_of_target(WORKFLOW, flow.org_id, flow.name))
    if head is None or (head.state == State.PARKED and head.parked_reason == queue.UNROUTABLE):
        return None
    backs_off = head.state == State.RETRY and open_effect(tx, head.last_run_id) is not None
    return head if head.state == State.PARKED or backs_off else None


def held(flow: Flow) -> dict[str, str]:
    """The handlers that were put aside, with the run that failed."""
    return {one.name: one.held_run_id for one in flow.handlers.values() if one.held_run_id is not None}


def go_on(tx: Tx, flow: Flow, stuck: Any | None, now: datetime) -> None:
    """Another attempt at what waits, at once, with all its tries."""
    if stuck is not None:
        tx.execute(update(jobs).where(j.id == stuck.id).values(tries=0, crashes=0))
        if stuck.state == State.PARKED:
            queue.resume(tx, stuck.id, now)
        else:
            tx.execute(update(jobs).where(j.id == stuck.id, j.state == State.RETRY).values(run_at=now))
            notify(tx, "later")
        return
    for name, run_id in held(flow).items():
        run = ledger.get(tx, flow.org_id, run_id)
        again = NewJob(
            flow.org_id, WORKFLOW, flow.name, {"handler": name}, now, "retry", route=route_of(flow),
            serial_key=serial_key_of_target(WORKFLOW, flow.org_id, flow.name), priority=CONSUMERS_FIRST,
            last_run_id=run_id,
            attempt=0 if run is None else ledger.last_attempt(tx, run.job_id),
        )  # fmt: skip
        queue.enqueue(tx, [again], now)
        note(tx, flow.handlers[name], held_run_id=None)


# what should not be, and what is over


def orphans(tx: Tx, limit: int = 20) -> list[Any]:
    """Reserved events whose run is neither under way nor waiting. There should be none; they are reported, and a person
    decides: what nobody understands is not done again."""
    runs_now = select(literal(1)).where(j.run_id == e.reserved_by).exists()
    attempt = attempts.join(jobs, and_(j.id == attempts.c.job_id, j.last_run_id == attempts.c.id))
    waits_again = select(literal(1)).select_from(attempt).where(attempts.c.id == e.reserved_by).exists()
    aside = select(literal(1)).where(h.workflow_id == e.workflow_id, h.held_run_id == e.reserved_by).exists()
    mine = and_(is_one_of("reserved", "skipped"), e.status == EventStatus.RESERVED, ~runs_now, ~waits_again, ~aside)
    return list(tx.execute(select(e.workflow_id, e.id, e.topic, e.reserved_by).where(mine).limit(limit)))


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Forget the oldest events that are done; returns how many. An input is kept as long as what goes back to it."""
    kept = select(literal(1)).where(causes.c.input_id == e.id).exists()
    old = select(e.id).where(is_one_of("consumed", "skipped"), e.updated_at < before, ~kept)
    ids = tx.execute(old.order_by(e.updated_at).limit(limit)).scalars().all()
    for gone in (
        delete(causes).where(is_listed(tx, causes.c.event_id, "ids")),
        delete(events).where(is_listed(tx, e.id, "ids")),
    ):
        tx.execute(gone, {"ids": listed(tx, ids)})
    return len(ids)
