"""The queue: enqueue, due, claim, mark, finish, hand back, rescue, cancel. Whole batches, one statement each.

A job of a serial key is inserted `blocked` and promoted when its key has no head; whatever takes a head away
promotes the next in the same transaction, under the key's advisory lock. So claim reads only `ready` rows and can
neither violate the index of heads nor wade through rows that must wait.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    delete,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.sql.expression import FromClause

from rota.core.errors import Conflict
from rota.core.model import Attempt, Ended, Job, NewJob, new_id
from rota.core.policy import QUARANTINE, Lane, Terms, shares
from rota.core.states import HEADS, Move, State, Status, sources, target
from rota.store import runs
from rota.store.dialect import Tx, fenced, insert_rows, lock_keys, notify, rows
from rota.store.tables import jobs, orgs, queues

LANES_PER_CLAIM = 48
UNROUTABLE = "unroutable"
CHUNK = 500  # rows of one step that is not on the hot path

c = jobs.c
FIELDS = (
    c.id, c.org_id, c.kind, c.target, c.route, c.payload, c.queue, c.serial_key, c.schedule_id, c.slot, c.trigger,
    c.attempt, c.tries, c.crashes, c.rescues, c.fence, c.queued_at, c.run_at, c.terms, c.last_run_id, c.trace_id,
)  # fmt: skip


def enqueue(tx: Tx, new: Sequence[NewJob], now: datetime, key_mode: str = "reject") -> list[str]:
    """Make promises, in the caller's transaction; returns the ids of the jobs that stand for them.

    A job whose `job_key` is taken by a living job is refused (`reject`), left to that job (`preserve`), or takes its
    place if that one never started (`replace`).
    """
    lock_keys(tx, serial_keys(new) | {f"job:{job.org_id}:{job.job_key}" for job in new if job.job_key})
    ids, new = settle_keys(tx, new, key_mode)
    add(tx, new, now)
    return ids


def add(tx: Tx, new: Sequence[NewJob], now: datetime) -> None:
    """Put jobs into the queue. The caller holds the locks of their serial keys and knows that their keys are free."""
    if not new:
        return
    insert_rows(tx, jobs, [row_of(job, now) for job in new])
    promote(tx, serial_keys(new))
    notify(tx, "ready" if any(job.run_at <= now for job in new) else "later")


def due(tx: Tx, now: datetime, limit: int = CHUNK) -> int:
    """Let jobs whose moment has come into the queue; returns how many."""
    waiting = and_(is_in(c.state, sources(Move.DUE)), c.run_at <= now)
    # a backing-off job is the head of its key already: only a later one of a key has to ask who is the head
    keyed = and_(waiting, is_in(c.state, [State.LATER]), c.serial_key.is_not(None))
    keys = set(tx.execute(select(c.serial_key).where(keyed).limit(limit)).scalars())
    moved = 0
    if keys:
        lock_keys(tx, keys)
        stmt = update(jobs).where(keyed, c.serial_key.in_(keys)).values(state=target(Move.WAIT))
        moved += tx.execute(stmt).rowcount
        promote(tx, keys)
    free = and_(waiting, or_(is_in(c.state, [State.RETRY]), c.serial_key.is_(None)))
    chosen = select(c.id).where(free).order_by(c.run_at).limit(limit).with_for_update(skip_locked=True)
    moved += tx.execute(update(jobs).where(c.id.in_(chosen)).values(state=target(Move.DUE))).rowcount
    if moved:
        notify(tx, "ready")
    return moved


def next_due(tx: Tx) -> datetime | None:
    """When the next waiting job comes due."""
    return tx.execute(select(func.min(c.run_at)).where(is_in(c.state, sources(Move.DUE)))).scalar()


def lanes(tx: Tx, only: Collection[str] | None = None) -> list[Lane]:
    """Where ready work lies: each (org, queue) with its limits. Steps from lane to lane, however long they are."""
    ready = is_in(c.state, [State.READY])
    first = select(c.org_id, c.queue).where(ready).order_by(c.org_id, c.queue).limit(1).subquery()
    found = select(first.c.org_id, first.c.queue).cte("found", recursive=True)
    after = (  # the first lane behind the one at hand
        select(c.org_id, c.queue)
        .where(ready, tuple_(c.org_id, c.queue) > tuple_(found.c.org_id, found.c.queue))
        .order_by(c.org_id, c.queue)
        .limit(1)
    )
    step = select(
        after.with_only_columns(c.org_id).scalar_subquery(), after.with_only_columns(c.queue).scalar_subquery()
    ).where(found.c.org_id.is_not(None))
    found = found.union_all(step)
    stmt = (
        select(found.c.org_id, found.c.queue, queues.c.max_running, queues.c.paused_at, orgs.c.max_running)
        .select_from(
            found.outerjoin(queues, and_(queues.c.org_id == found.c.org_id, queues.c.name == found.c.queue)).outerjoin(
                orgs, orgs.c.id == found.c.org_id
            )
        )
        .where(found.c.org_id.is_not(None))
        .limit(LANES_PER_CLAIM)
    )
    result = []
    for org_id, queue, queue_limit, paused_at, org_limit in tx.execute(stmt):
        if paused_at is None and (only is None or queue in only):
            limited = [limit for limit in (queue_limit, org_limit) if limit is not None]
            result.append(Lane(org_id, queue, min(limited, default=None)))
    return result


def claim(tx: Tx, found: Sequence[Lane], *, worker: str, routes: Collection[str], room: int, turn: int) -> list[Job]:
    """Take up to `room` ready jobs of these lanes for a worker, fairly across orgs, most urgent first in a lane."""
    given = shares(capped(tx, found), room, turn)
    if not given:
        return []
    picks = [
        select(c.id)
        .where(is_in(c.state, sources(Move.CLAIM)), c.org_id == lane.org_id, c.queue == lane.queue, c.route.in_(routes))
        .order_by(c.priority.desc(), c.run_at, c.id)
        .limit(count)
        .with_for_update(skip_locked=True)
        .subquery()
        for lane, count in given
    ]
    taken = fenced(tx, union_all(*(select(pick.c.id) for pick in picks)).subquery("picked"))
    stmt = (
        update(jobs)
        .where(c.id == taken.c.id, is_in(c.state, sources(Move.CLAIM)))
        .values(state=target(Move.CLAIM), lease_owner=worker, fence=taken.c.fence, solo_key=None)
        .returning(*FIELDS, c.priority)
    )
    taken_rows = sorted(tx.execute(stmt), key=lambda row: (-row.priority, row.run_at, row.id))  # RETURNING has no order
    return [job_of(row) for row in taken_rows]


def capped(tx: Tx, found: Sequence[Lane]) -> Sequence[Lane]:
    """The lanes with what their limits leave. Limited orgs lock their own row while they count; others lock nothing."""
    limited = sorted({lane.org_id for lane in found if lane.cap is not None})
    if not limited:
        return found
    lock = select(orgs.c.id, orgs.c.max_running).where(orgs.c.id.in_(limited)).order_by(orgs.c.id)
    org_limit = {row.id: row.max_running for row in tx.execute(lock.with_for_update(key_share=True))}
    limits = select(queues.c.org_id, queues.c.name, queues.c.max_running).where(queues.c.org_id.in_(limited))
    queue_limit = {(row.org_id, row.name): row.max_running for row in tx.execute(limits)}
    counted = select(c.org_id, c.queue, func.count()).where(is_in(c.state, [State.RUNNING]), c.org_id.in_(limited))
    running = {(org, queue): count for org, queue, count in tx.execute(counted.group_by(c.org_id, c.queue))}
    left = {
        org: limit - sum(count for (owner, _), count in running.items() if owner == org)
        for org, limit in org_limit.items()
        if limit is not None
    }
    result = []
    for lane in found:
        key = (lane.org_id, lane.queue)
        own = queue_limit.get(key)
        room = [own - running.get(key, 0)] if own is not None else []
        if lane.org_id in left:
            room.append(left[lane.org_id])
        cap = max(0, min(room)) if room else None
        if cap is not None and lane.org_id in left:
            left[lane.org_id] -= cap  # the org's next lane has only what this one leaves
        result.append(Lane(lane.org_id, lane.queue, cap))
    return result


def mark_started(tx: Tx, attempts: Sequence[Attempt]) -> set[str]:
    """Write down that these attempts have begun; returns the run ids of those whose lease still held."""
    begun = rows(
        tx,
        {"id": c.id.type, "fence": c.fence.type, "run_id": c.run_id.type, "n": c.attempt.type, "at": c.started_at.type},
        [(one.job.id, one.job.fence, one.run_id, one.number, one.started_at) for one in attempts],
        "begun",
    )
    stmt = (
        update(jobs)
        .where(held(begun))
        .values(run_id=begun.c.run_id, attempt=begun.c.n, started_at=begun.c.at)
        .returning(c.run_id)
    )
    return set(tx.execute(stmt).scalars())


def finish(tx: Tx, ended: Sequence[Ended], worker: str | None) -> set[str]:
    """Write the runs that ended and take their jobs out of the queue, or to where they wait for the next attempt.

    Returns the run ids of those whose lease still held; nothing is written about the others.
    """
    final = [one for one in ended if one.final]
    keys = {one.job.serial_key for one in final if one.job.serial_key}
    lock_keys(tx, keys)
    moved, unwanted = move_on(tx, [one for one in ended if not one.final])
    kept = leave(tx, final) | moved
    runs.append(tx, [one for one in ended if one.run_id in kept], worker)
    promoted = promote(tx, keys)
    if unwanted:  # somebody cancelled it while its attempt failed by itself: there is no next attempt
        withdraw(tx, c.id.in_(unwanted), Status.CANCELED, "canceled", max(one.finished_at for one in ended))
    if promoted or any(one.move is Move.HAND_BACK for one in ended):
        notify(tx, "ready")
    return kept


def leave(tx: Tx, ended: Sequence[Ended]) -> set[str]:
    if not ended:
        return set()
    gone = rows(tx, {"id": c.id.type, "fence": c.fence.type}, [(one.job.id, one.job.fence) for one in ended], "gone")
    stmt = delete(jobs).where(
        tuple_(c.id, c.fence).in_(select(gone.c.id, gone.c.fence)), is_in(c.state, [State.RUNNING])
    )
    left = set(tx.execute(stmt.returning(c.id)).scalars())
    return {one.run_id for one in ended if one.job.id in left}


def move_on(tx: Tx, ended: Sequence[Ended]) -> tuple[set[str], set[str]]:
    """The jobs whose attempt ended but whose work did not: run ids of those that held, job ids of those canceled."""
    if not ended:
        return set(), set()
    moved = rows(
        tx,
        {
            "id": c.id.type, "fence": c.fence.type, "state": c.state.type, "run_at": c.run_at.type,
            "run_id": c.run_id.type, "n": c.attempt.type, "tries": c.tries.type,
            "crashes": c.crashes.type, "why": c.parked_reason.type,
        },
        [
            (
                one.job.id, one.job.fence, target(one.move).value, one.run_at or one.job.run_at,
                one.run_id, one.number, one.job.tries + one.counts,
                one.job.crashes + (one.status is Status.CRASHED), one.reason if one.move is Move.PARK else None,
            )
            for one in ended
            if one.move is not None
        ],
        "moved",
    )  # fmt: skip
    stmt = (
        update(jobs)
        .where(held(moved))
        .values(
            state=moved.c.state, run_at=moved.c.run_at, last_run_id=moved.c.run_id, attempt=moved.c.n,
            tries=moved.c.tries, crashes=moved.c.crashes, parked_reason=moved.c.why, run_id=None, started_at=None,
            lease_owner=None,
        )
        .returning(c.id, c.last_run_id, c.cancel_requested_at)
    )  # fmt: skip
    found = list(tx.execute(stmt))
    return {row.last_run_id for row in found}, {row.id for row in found if row.cancel_requested_at is not None}


def hand_back(tx: Tx, worker: str, which: Collection[str] | None, but: Collection[str] = ()) -> int:
    """Return jobs that never started: the given ones, or all that this worker owns but for those it knows of. It may
    own more than it knows when the answer to a claim was lost."""
    stmt = update(jobs).where(c.lease_owner == worker, is_in(c.state, sources(Move.HAND_BACK)), c.run_id.is_(None))
    stmt = stmt.where(c.id.in_(which)) if which is not None else stmt.where(c.id.not_in(but))
    moved: int = tx.execute(stmt.values(state=target(Move.HAND_BACK), lease_owner=None)).rowcount
    if moved:
        notify(tx, "ready")
    return moved


def rescue(tx: Tx, worker: str, now: datetime, limit: int = CHUNK) -> tuple[int, bool]:
    """Take jobs from a dead worker: attempts known to have begun become `crashed` runs. Says whether there is more."""
    stmt = (
        select(*FIELDS, c.run_id, c.started_at, c.cancel_requested_at, c.cancel_reason)
        .where(c.lease_owner == worker, is_in(c.state, [State.RUNNING]))
        .order_by(c.id)
        .limit(limit)
    )
    found = list(tx.execute(stmt))
    lock_keys(tx, {row.serial_key for row in found if row.serial_key})
    ended = [crash_of(row, now) for row in found if row.run_id is not None]
    leaving = [one for one in ended if one.final]
    kept = leave(tx, leaving) | move_on(tx, [one for one in ended if not one.final])[0]
    runs.append(tx, [one for one in ended if one.run_id in kept], worker)
    unstarted = [row.id for row in found if row.run_id is None]
    tx.execute(
        update(jobs)
        .where(c.id.in_(unstarted), c.lease_owner == worker, is_in(c.state, sources(Move.RESCUE)))
        .values(state=target(Move.RESCUE), lease_owner=None, rescues=c.rescues + 1)
    )
    promote(tx, {one.job.serial_key for one in leaving if one.job.serial_key})
    if found:
        notify(tx, "ready")
    return len(found), len(found) == limit


def crash_of(row: Any, now: datetime) -> Ended:
    """What a run ends as whose worker died under it."""
    job = job_of(row)
    last = job.crashes + 1 >= QUARANTINE
    error = {"code": "crash", "type": "WorkerLost", "message": "the worker that ran this died", "traceback": None}
    ended = Ended(
        job, Status.CRASHED, None, now, row.run_id, row.attempt, row.started_at, error, move=Move.RESCUE, run_at=now
    )
    if row.cancel_requested_at is not None:
        return replace(ended, status=Status.CANCELED, reason=row.cancel_reason, move=None)
    if last:
        return replace(ended, status=Status.FAILED, reason="quarantined", move=None)
    return ended


def request_cancel(tx: Tx, ids: Collection[str], reason: str, now: datetime) -> None:
    """Ask the workers that hold these jobs to stop them."""
    stmt = update(jobs).where(c.id.in_(ids), is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_(None))
    if tx.execute(stmt.values(cancel_requested_at=now, cancel_reason=reason)).rowcount:
        notify(tx, "cancel")


def cancels(tx: Tx, worker: str) -> dict[str, str]:
    """The jobs of a worker that somebody wants stopped, with the reason."""
    stmt = select(c.id, c.cancel_reason).where(
        c.lease_owner == worker, is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_not(None)
    )
    return {job_id: reason or "" for job_id, reason in tx.execute(stmt)}


def withdraw(
    tx: Tx, where: ColumnElement[bool], status: Status, reason: str | None, now: datetime
) -> list[tuple[str, datetime | None]]:
    """Take jobs that no worker holds out of the queue, each with a run row that says why. The caller holds the locks
    of their serial keys. Returns (schedule, slot) of each."""
    waiting = [state for state in State if state is not State.RUNNING]
    stmt = delete(jobs).where(where, is_in(c.state, waiting)).returning(*FIELDS)
    gone = [job_of(row) for row in tx.execute(stmt)]
    ended = [Ended(job, status, reason, now, new_id(), job.attempt + 1) for job in gone]
    runs.append(tx, ended, None)
    promote(tx, {job.serial_key for job in gone if job.serial_key})
    return [(job.schedule_id, job.slot) for job in gone if job.schedule_id]


def find(tx: Tx, org_id: str, key: str) -> Any | None:
    """A living job of an org, by its id or by the id of its current run."""
    for column in (c.id, c.run_id):
        found = tx.execute(select(jobs).where(column == key, c.org_id == org_id)).one_or_none()
        if found is not None:
            return found
    return None


def of_schedules(tx: Tx, schedule_ids: Collection[str]) -> dict[str, list[Any]]:
    """Every job of these schedules, in any state."""
    found: dict[str, list[Any]] = {}
    stmt = select(c.id, c.schedule_id, c.state, c.solo_key, c.slot, c.serial_key).where(c.schedule_id.in_(schedule_ids))
    for row in tx.execute(stmt.order_by(c.run_at, c.id)):
        found.setdefault(row.schedule_id, []).append(row)
    return found


def park_unroutable(tx: Tx, routes: Collection[str], before: datetime) -> int:
    """Put aside ready jobs that no live worker can run, so that claims do not wade through them."""
    stmt = update(jobs).where(is_in(c.state, sources(Move.STRAND)), c.route.not_in(routes), c.queued_at < before)
    return tx.execute(stmt.values(state=target(Move.STRAND), parked_reason=UNROUTABLE)).rowcount


def route(tx: Tx, routes: Collection[str]) -> int:
    """A worker came up that can run these: what was put aside for want of one is ready again."""
    stmt = update(jobs).where(is_in(c.state, sources(Move.RESUME)), c.parked_reason == UNROUTABLE, c.route.in_(routes))
    return tx.execute(stmt.values(state=target(Move.RESUME), parked_reason=None)).rowcount


def resume(tx: Tx, job_id: str, now: datetime) -> bool:
    """Let a parked job try again."""
    stmt = update(jobs).where(c.id == job_id, is_in(c.state, sources(Move.RESUME)))
    moved = bool(tx.execute(stmt.values(state=target(Move.RESUME), run_at=now, parked_reason=None)).rowcount)
    if moved:
        notify(tx, "ready")
    return moved


def headless(tx: Tx, limit: int = CHUNK) -> list[str]:
    """Serial keys with blocked jobs and no head: there should be none, the reconciler looks all the same."""
    head, waiting = jobs.alias("head"), jobs.alias("waiting")
    has_head = exists(select(literal(1)).where(head.c.serial_key == waiting.c.serial_key, is_in(head.c.state, HEADS)))
    stmt = select(waiting.c.serial_key).distinct().where(is_in(waiting.c.state, [State.BLOCKED]), ~has_head)
    return list(tx.execute(stmt.limit(limit)).scalars())


def mend(tx: Tx, keys: Collection[str]) -> int:
    lock_keys(tx, keys)
    return promote(tx, keys)


def promote(tx: Tx, keys: Iterable[str]) -> int:
    """Make the first blocked job of each key without a head its head. The caller holds the locks of the keys."""
    wanted = sorted(set(keys))
    if not wanted:
        return 0
    key = rows(tx, {"key": c.serial_key.type}, [(one,) for one in wanted], "wanted")
    head, waiting = jobs.alias("head"), jobs.alias("waiting")
    first = (
        select(waiting.c.id)
        .where(waiting.c.serial_key == key.c.key, is_in(waiting.c.state, sources(Move.PROMOTE)))
        .order_by(waiting.c.priority.desc(), waiting.c.run_at, waiting.c.id)
        .limit(1)
        .correlate(key)
        .scalar_subquery()
    )
    no_head = ~exists(
        select(literal(1))
        .select_from(head)
        .where(head.c.serial_key == key.c.key, is_in(head.c.state, HEADS))
        .correlate(key)
    )
    chosen = select(first).select_from(key).where(no_head)
    stmt = update(jobs).where(c.id.in_(chosen)).values(state=target(Move.PROMOTE))
    return tx.execute(stmt).rowcount


def is_in(state: ColumnElement[str], among: Iterable[State]) -> ColumnElement[bool]:
    """A test of the state with its values in the statement's text: a partial index serves no parameter."""
    values: list[ColumnElement[str]] = [literal_column(f"'{one.value}'") for one in among]
    return state == values[0] if len(values) == 1 else state.in_(values)


def held(by: FromClause) -> ColumnElement[bool]:
    """NO_MOVE_WITHOUT_THE_LEASE: the guard of every write about a running job."""
    return and_(c.id == by.c.id, c.fence == by.c.fence, is_in(c.state, [State.RUNNING]))


def settle_keys(tx: Tx, new: Sequence[NewJob], key_mode: str) -> tuple[list[str], list[NewJob]]:
    """Which of the new jobs are really new, given the living jobs that hold their keys."""
    keyed = {(job.org_id, job.job_key) for job in new if job.job_key}
    if not keyed:
        return [job.id for job in new], list(new)
    stmt = select(c.id, c.org_id, c.job_key, c.state, c.attempt, c.serial_key)
    taken = {(row.org_id, row.job_key): row for row in tx.execute(stmt.where(tuple_(c.org_id, c.job_key).in_(keyed)))}
    ids: list[str] = []
    kept: list[NewJob] = []
    for job in new:
        row = taken.get((job.org_id, job.job_key or ""))
        if row is not None and key_mode == "reject":
            raise Conflict(f"job {row.id} already has the key {job.job_key}")
        if row is not None and (key_mode == "preserve" or row.state == State.RUNNING or row.attempt):
            ids.append(row.id)
            continue
        if row is not None:
            tx.execute(delete(jobs).where(c.id == row.id))
        ids.append(job.id)
        kept.append(job)
    return ids, kept


def serial_keys(new: Iterable[NewJob]) -> set[str]:
    return {job.serial_key for job in new if job.serial_key}


def row_of(job: NewJob, now: datetime) -> dict[str, Any]:
    head_first = State.BLOCKED if job.serial_key else State.READY
    state = State.LATER if job.run_at > now else head_first
    return {
        "id": job.id, "org_id": job.org_id, "kind": job.kind, "target": job.target, "route": job.route or job.kind,
        "payload": job.payload, "queue": job.queue, "serial_key": job.serial_key, "solo_key": job.solo_key,
        "job_key": job.job_key, "priority": job.priority, "queued_at": now, "run_at": job.run_at, "state": state.value,
        "schedule_id": job.schedule_id, "slot": job.slot, "trigger": job.trigger, "attempt": job.attempt, "tries": 0,
        "crashes": 0, "rescues": 0, "last_run_id": job.last_run_id, "fence": 0, "terms": job.terms.dump(),
        "trace_id": job.trace_id,
    }  # fmt: skip


def job_of(row: Any) -> Job:
    return Job(
        row.id, row.org_id, row.kind, row.target, row.route, row.payload, row.queue, row.serial_key, row.schedule_id,
        row.slot, row.trigger, row.attempt, row.tries, row.crashes, row.rescues, row.fence, row.queued_at, row.run_at,
        Terms.load(row.terms), row.last_run_id, row.trace_id,
    )  # fmt: skip
