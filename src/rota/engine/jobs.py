"""Jobs in the queue: enqueue, become due, cancel, park, resume, read. Whole batches, one statement each.

Claims are in `claiming.py`, results in `finishing.py`, the order of serial keys in `serial_keys.py`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, literal, or_, select, tuple_, update

from rota.core.errors import Conflict
from rota.core.flow import Rate, parse_rate
from rota.core.ids import new_id
from rota.core.model import AttemptResult, Job, LeaseOffer, NewJob
from rota.core.policy import Terms
from rota.core.states import Move, State, Status, Verdict, state_after, states_before
from rota.db.dialect import Tx, draw_fence, lock_keys, notify, upsert
from rota.db.statement import BoundStatement, insert_rows, insertion_of
from rota.db.tables import jobs, queues
from rota.engine import children, dependencies, runs, slots, statements
from rota.engine.job_states import is_in, lease_values
from rota.engine.places import free_places
from rota.engine.records import JobRow
from rota.engine.serial_keys import promote

UNROUTABLE = "unroutable"
VERSION = "version"  # reason of a parked job: no live worker has the version of the code that began it
DUE_BATCH_ROWS = 500

c = jobs.c
JOB_COLUMNS = tuple(statements.JOB.values())
# of a new job, as text: `Enum.value` took a tenth of enqueuing in bulk
NEW_STATES = {move: state_after(move).value for move in (Move.ENQUEUE, Move.DELAY, Move.WAIT)}
UNLEASED_STATES = [state for state in State if state is not State.RUNNING]
NEXT_DUE = select(func.min(c.run_at)).where(is_in(c.state, states_before(Move.DUE)))
CANCEL_REQUESTS = select(c.id, c.cancel_reason).where(
    c.lease_owner == bindparam("worker"), is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_not(None)
)


def enqueue(tx: Tx, new: Sequence[NewJob], now: datetime, key_mode: str = "reject") -> list[str]:
    """Insert jobs in the caller's transaction; returns their ids.

    If a job in the queue has the same `job_key`, `reject` raises Conflict, `preserve` returns the id of that job, and
    `replace` replaces it if it never started.
    """
    lock_keys(tx, serial_keys(new) | {f"job:{job.org_id}:{job.job_key}" for job in new if job.job_key})
    ids, new = settle_keys(tx, new, key_mode, now)
    add(tx, new, now)
    return ids


def enqueue_keyless(new: Sequence[NewJob], now: datetime) -> BoundStatement[list[str]]:
    """Return the statement that does the same for jobs without a serial key and without a job key, at least one."""
    rows = [row_of(job, now, False) for job in new]
    due_now = any(job.run_at <= now for job in new)
    return insertion_of(jobs, rows, [job.id for job in new], "ready" if due_now else "later")


def add(
    tx: Tx,
    new: Sequence[NewJob],
    now: datetime,
    free_keys: Collection[str] = (),
    lease: LeaseOffer | None = None,
    promoting: bool = True,
) -> list[Job]:
    """Insert jobs; returns those that were leased to the worker of `lease`. The caller holds the
    locks of their serial keys and knows that their job keys are free. `free_keys` are serial keys without jobs: a
    single new job with one becomes its head at once. With `promoting` False the caller promotes the next heads."""
    if not new:
        return []
    jobs_per_key = Counter(job.serial_key for job in new)
    heads = {key for key in free_keys if jobs_per_key[key] == 1}
    rows = {job.id: row_of(job, now, job.serial_key in heads) for job in new}
    leased: list[Job] = []
    if lease is not None:
        startable = (
            job
            for job in new
            if job.run_at <= lease.until and (job.serial_key is None or job.serial_key in heads) and lease.accepts(job)
        )
        first = list(islice(within_org_room(lease.org_room, startable), lease.room + lease.prefetch))
        fence = draw_fence(tx) if first else 0
        leased = [leased_job(job, now, fence) for job in first]
        for job in first:
            rows[job.id] |= lease_values(Move.LEASE, lease.worker, fence)
    due_now = any(job.run_at <= now for job in new)
    notifies = len(leased) < len(new) and (promoting or not due_now)
    insert_rows(tx, jobs, list(rows.values()), ("ready" if due_now else "later") if notifies else None)
    if promoting:
        promote(tx, serial_keys(new) - heads)
    return leased


def release_due(tx: Tx, now: datetime, limit: int = DUE_BATCH_ROWS) -> int:
    """Make jobs ready whose `run_at` has passed; returns their number. Those that waited for other jobs are decided
    about first."""
    while never := dependencies.decide_due(tx, now, limit):  # those that waited for these are due then
        for schedule_id, slot in withdraw(tx, c.id.in_(never), Status.SKIPPED, dependencies.DEPENDENCY, now):
            slots.decide_slot(tx, schedule_id, slot, Verdict.SKIPPED, dependencies.DEPENDENCY, None)
    waiting = and_(is_in(c.state, states_before(Move.DUE)), c.run_at <= now, ~dependencies.undecided(c.id))
    # a job in state retry or waiting is the head of its key; one in state later may find another head
    keyed = and_(waiting, is_in(c.state, [State.LATER]), c.serial_key.is_not(None))
    keys = set(tx.execute(select(c.serial_key).where(keyed).limit(limit)).scalars())
    moved = 0
    if keys:
        lock_keys(tx, keys)
        stmt = update(jobs).where(keyed, c.serial_key.in_(keys)).values(state=state_after(Move.WAIT))
        moved += tx.execute(stmt).rowcount
        promote(tx, keys)
    free = and_(waiting, or_(is_in(c.state, [State.RETRY, State.WAITING]), c.serial_key.is_(None)))
    # a CTE: a subquery may be evaluated for each row, and then exceeds its limit
    chosen = select(c.id).where(free).order_by(c.run_at).limit(limit).with_for_update(skip_locked=True).cte("chosen")
    stmt = update(jobs).where(c.id.in_(select(chosen.c.id))).values(state=state_after(Move.DUE), parked_reason=None)
    stmt = stmt.returning(c.id)
    moved += len(tx.execute(stmt).all())  # SQLite's driver counts no rows of a statement that begins with WITH
    if moved:
        notify(tx, "ready")
    return moved


def next_due(tx: Tx) -> datetime | None:
    """Return when the next waiting job is due."""
    return tx.execute(NEXT_DUE).scalar()


def within_org_room(org_room: Callable[[str], int | None] | None, new: Iterable[NewJob]) -> Iterator[NewJob]:
    """Yield the first jobs of each org, up to its room."""
    counts: Counter[str] = Counter()
    for job in new:
        room = None if org_room is None else org_room(job.org_id)
        if room is None or counts[job.org_id] < room:
            counts[job.org_id] += 1
            yield job


def request_cancel(tx: Tx, ids: Collection[str], reason: str, now: datetime) -> None:
    """Ask the workers of these jobs to stop them."""
    stmt = update(jobs).where(c.id.in_(ids), is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_(None))
    if tx.execute(stmt.values(cancel_requested_at=now, cancel_reason=reason)).rowcount:
        notify(tx, "cancel")


def cancel_requests(tx: Tx, worker: str) -> dict[str, str]:
    """Return the jobs of a worker with a cancel request, and its reason."""
    return {row.id: row.cancel_reason or "" for row in tx.execute(CANCEL_REQUESTS, {"worker": worker})}


def withdraw(
    tx: Tx, where: ColumnElement[bool], status: Status, reason: str | None, now: datetime, promoting: bool = True
) -> list[tuple[str, datetime | None]]:
    """Delete jobs that no worker has leased and append a run with the reason for each; returns (schedule id, slot) of
    each. The caller holds the locks of their serial keys. With `promoting` False the caller promotes the
    next heads."""
    stmt = delete(jobs).where(where, is_in(c.state, UNLEASED_STATES)).returning(*JOB_COLUMNS, c.followed)
    rows = list(tx.execute(stmt))
    gone = [job_of(row) for row in rows]
    runs.append(tx, [withdrawn_attempt(job, status, reason, now) for job in gone], None)
    children.deliver_ended(tx, [row.id for row in rows if row.followed], now)
    if promoting:
        promote(tx, {job.serial_key for job in gone if job.serial_key})
    free_places(tx, {job.place_key for job in gone if job.place_key}, now)
    return [(job.schedule_id, job.slot) for job in gone if job.schedule_id]


def withdrawn_attempt(job: Job, status: Status, reason: str | None, now: datetime) -> AttemptResult:
    """Return the last attempt of a job that leaves the queue while no worker has it: the run that was suspended, or one
    that never started."""
    if job.waiting is None:
        return AttemptResult(job, status, reason, now, new_id(), job.attempt + 1)
    started_at = datetime.fromisoformat(job.waiting["started_at"])
    return AttemptResult(job, status, reason, now, job.waiting["run_id"], job.attempt + 1, started_at)


def find(tx: Tx, org_id: str, key: str) -> JobRow | None:
    """Return a job of an org by its id or by the id of its current run."""
    for column in (c.id, c.run_id):
        row = tx.execute(select(jobs).where(column == key, c.org_id == org_id)).one_or_none()
        if row is not None:
            return JobRow(**row._asdict())
    return None


def payload_of(tx: Tx, job_id: str) -> object:
    """Return the input of a job."""
    return tx.execute(select(c.payload).where(c.id == job_id)).scalar()


def is_cancel_requested(tx: Tx, job_id: str) -> bool:
    """Return whether a cancel of the job was requested."""
    return tx.execute(select(c.id).where(c.id == job_id, c.cancel_requested_at.is_not(None))).first() is not None


def lock(tx: Tx, job_id: str) -> None:
    """Lock the row of a job until the transaction ends."""
    tx.execute(select(c.id).where(c.id == job_id).with_for_update())


class QueuedJob(NamedTuple):
    """A job of a schedule, in any state."""

    id: str
    schedule_id: str
    state: str
    solo_key: str | None
    slot: datetime | None
    serial_key: str | None
    trigger: str


def of_schedules(tx: Tx, schedule_ids: Collection[str]) -> dict[str, list[QueuedJob]]:
    """Return the jobs of schedules, in any state, by schedule."""
    by_schedule: dict[str, list[QueuedJob]] = {}
    for row in statements.JOBS_OF_SCHEDULES.run(tx, [(schedule_id,) for schedule_id in schedule_ids]):
        job = QueuedJob(**dict(zip(statements.JOBS_OF_SCHEDULES.returns, row, strict=True)))
        by_schedule.setdefault(job.schedule_id, []).append(job)
    return by_schedule


def park_unroutable(tx: Tx, routes: Collection[str], before: datetime) -> int:
    """Park ready jobs that no live worker can run, so that claims do not read them again and again."""
    stmt = update(jobs).where(is_in(c.state, [State.READY]), c.route.not_in(routes), c.queued_at < before)
    values = {"state": state_after(Move.STRAND), "parked_reason": UNROUTABLE, "place_key": None}
    return tx.execute(stmt.values(values)).rowcount


def resume_routes(tx: Tx, routes: Collection[str]) -> int:
    """Resume the jobs that no worker could run, because one with these routes started."""
    stmt = update(jobs).where(
        is_in(c.state, states_before(Move.RESUME)), c.parked_reason.in_((UNROUTABLE, VERSION)), c.route.in_(routes)
    )
    return tx.execute(stmt.values(state=state_after(Move.RESUME), parked_reason=None)).rowcount


def resume(tx: Tx, job_id: str, now: datetime) -> bool:
    """Make a parked job ready; returns whether it was parked."""
    stmt = update(jobs).where(c.id == job_id, is_in(c.state, states_before(Move.RESUME)))
    moved = bool(tx.execute(stmt.values(state=state_after(Move.RESUME), run_at=now, parked_reason=None)).rowcount)
    if moved:
        notify(tx, "ready")
    return moved


def adopt(tx: Tx, job_id: str, fence: int, worker: str | None, now: datetime) -> bool:
    """Lease a parked job again to the agent that still runs it, with the same fence. The attempt that was recorded as
    paused is over; this is the next one."""
    own = and_(c.id == job_id, c.fence == fence, is_in(c.state, states_before(Move.ADOPT)))
    begun = {"parked_reason": None, "run_id": new_id(), "attempt": c.attempt + 1, "started_at": now}
    leased = lease_values(Move.ADOPT, worker, fence)
    return bool(tx.execute(update(jobs).where(own).values(**leased, **begun)).rowcount)


def set_queue(
    tx: Tx, org_id: str, name: str, max_running: int | None, paused: bool, now: datetime, rate: Rate | None = None
) -> str:
    """Set the limits and the pause of a queue; a queue that stays paused keeps its `paused_at`."""
    limits = {
        "max_running": max_running,
        "rate": None if rate is None else str(rate),
        "burst": None if rate is None else rate.burst,
    }
    values = {"org_id": org_id, "name": name, "paused_at": now if paused else None, **limits}
    since = func.coalesce(queues.c.paused_at, literal(now, queues.c.paused_at.type)) if paused else None
    stmt = upsert(tx, queues).values(values)
    stmt = stmt.on_conflict_do_update(index_elements=["org_id", "name"], set_={"paused_at": since, **limits})
    tx.execute(stmt)
    notify(tx, "ready")
    notify(tx, "tasks")  # workers read the rates of queues again
    return name


def rated_queues(tx: Tx) -> dict[tuple[str, str], Rate]:
    """Return the rates of queues that have one, by org and name."""
    q = queues.c
    rows = tx.execute(select(q.org_id, q.name, q.rate, q.burst).where(q.rate.is_not(None)))
    return {(row.org_id, row.name): parse_rate(row.rate, burst=row.burst or 1) for row in rows}


def settle_keys(tx: Tx, new: Sequence[NewJob], key_mode: str, now: datetime) -> tuple[list[str], list[NewJob]]:
    """Return the ids of the jobs, and the jobs to insert: those whose key no job in the queue has."""
    keyed = {(job.org_id, job.job_key) for job in new if job.job_key}
    if not keyed:
        return [job.id for job in new], list(new)
    stmt = select(c.id, c.org_id, c.job_key, c.state, c.attempt, c.serial_key, c.waiting)
    stmt = stmt.where(tuple_(c.org_id, c.job_key).in_(keyed)).order_by(c.id).with_for_update()
    holders = {(row.org_id, row.job_key): row for row in tx.execute(stmt)}
    ids: list[str] = []
    kept: list[NewJob] = []
    for job in new:
        row = holders.get((job.org_id, job.job_key or ""))
        if row is not None and key_mode == "reject":
            raise Conflict(f"job {row.id} already has the key {job.job_key}")
        begun = row is not None and (row.state == State.RUNNING or row.attempt or row.waiting is not None)
        if row is not None and (key_mode == "preserve" or begun):
            ids.append(row.id)
            continue
        if row is not None:
            lock_keys(tx, [row.serial_key] if row.serial_key else [])
            withdraw(tx, c.id == row.id, Status.SKIPPED, "superseded", now)
        ids.append(job.id)
        kept.append(job)
    return ids, kept


def serial_keys(new: Iterable[NewJob]) -> set[str]:
    return {job.serial_key for job in new if job.serial_key}


def row_of(job: NewJob, now: datetime, head: bool) -> dict[str, object]:
    at_once = Move.WAIT if job.serial_key and not head else Move.ENQUEUE
    move = Move.DELAY if job.run_at > now else at_once
    return {
        "id": job.id, "org_id": job.org_id, "kind": job.kind, "target": job.target, "route": job.route or job.kind,
        "payload": job.payload, "queue": job.queue, "serial_key": job.serial_key, "solo_key": job.solo_key,
        "job_key": job.job_key, "priority": job.priority, "queued_at": now, "run_at": job.run_at,
        "state": NEW_STATES[move], "schedule_id": job.schedule_id, "slot": job.slot, "trigger": job.trigger,
        "attempt": job.attempt, "tries": 0, "crashes": 0, "rescues": 0,
        "last_run_id": job.last_run_id, "lease_owner": None, "fence": 0, "terms": job.terms.dump(), "trace": job.trace,
        "parent_id": job.parent_id, "followed": job.followed,
    }  # fmt: skip


def leased_job(new: NewJob, now: datetime, fence: int) -> Job:
    """Return a new job as a worker that leased it has it."""
    return Job(
        id=new.id,
        org_id=new.org_id,
        kind=new.kind,
        target=new.target,
        route=new.route,
        payload=new.payload,
        queue=new.queue,
        serial_key=new.serial_key,
        schedule_id=new.schedule_id,
        slot=new.slot,
        trigger=new.trigger,
        attempt=new.attempt,
        tries=0,
        crashes=0,
        rescues=0,
        fence=fence,
        queued_at=now,
        run_at=new.run_at,
        last_run_id=new.last_run_id,
        trace=new.trace,
        parent_id=new.parent_id,
        waiting=None,
        reserved_at=None,
        place_key=None,
        terms=new.terms,
    )


def job_of(row: object) -> Job:
    """Return the job of a row that has JOB_COLUMNS."""
    columns = {name: getattr(row, name) for name in statements.JOB}
    return Job(**{**columns, "terms": Terms.load(columns["terms"])})
