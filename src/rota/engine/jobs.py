"""The queue: enqueue, due, claim, mark, finish, hand back, rescue, cancel. Whole batches, one statement each.

A job of a serial key is inserted `blocked` and promoted when its key has no head; whatever takes a head away
promotes the next in the same transaction, under the key's advisory lock. So claim reads only `ready` rows and can
neither violate the index of heads nor wade through rows that must wait.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from rota.core.errors import Conflict, LeaseLost
from rota.core.fair_shares import Lane, divide_claims, rotate
from rota.core.ids import new_id
from rota.core.model import SERIAL_ROUTE_PREFIX, Attempt, AttemptResult, FinishResult, Job, Lease, NewJob
from rota.core.policy import QUARANTINE_CRASHES, RECONCILIATION, Terms
from rota.core.states import HEADS, Move, State, Status, state_after, states_before
from rota.db.dialect import (
    Batch,
    Given,
    Tx,
    changed_rows,
    columns_of,
    draw_fence,
    hot,
    insert_rows,
    is_listed,
    listed,
    lock_keys,
    next_fence,
    notify,
    on_sqlite,
    once,
    records_of,
    upsert,
)
from rota.db.tables import jobs, orgs, queues
from rota.db.tables import runs as ledger
from rota.engine import runs

LANES_PER_CLAIM = 48
UNROUTABLE = "unroutable"
CHUNK = 500  # rows of one step that is not on the hot path

c = jobs.c
FIELDS = (
    c.id, c.org_id, c.kind, c.target, c.route, c.payload, c.queue, c.serial_key, c.schedule_id, c.slot, c.trigger,
    c.attempt, c.tries, c.crashes, c.rescues, c.fence, c.queued_at, c.run_at, c.last_run_id, c.trace, c.terms,
)  # fmt: skip
TERMS = len(FIELDS) - 1


# Asked in a way that no index serves: PostgreSQL knows little of a table that changes so fast, and would rather look at
# everything that runs than for each job of a batch by its id. That took 300 ms for a batch of 500; now it takes 10.
RUNS = c.state.concat(literal_column("''")) == literal_column("'running'")


def enqueue(tx: Tx, new: Sequence[NewJob], now: datetime, key_mode: str = "reject") -> list[str]:
    """Make promises, in the caller's transaction; returns the ids of the jobs that stand for them. One statement, if
    none of them has a key.

    A job whose `job_key` is taken by a living job is refused (`reject`), left to that job (`preserve`), or takes its
    place if that one never started (`replace`).
    """
    lock_keys(tx, serial_keys(new) | {f"job:{job.org_id}:{job.job_key}" for job in new if job.job_key})
    ids, new = settle_keys(tx, new, key_mode, now)
    add(tx, new, now)
    return ids


def add(
    tx: Tx, new: Sequence[NewJob], now: datetime, free: Collection[str] = (), lease: Lease | None = None,
    promoting: bool = True,
) -> list[Job]:  # fmt: skip
    """Put jobs into the queue. The caller holds the locks of their serial keys and knows that their job keys are free.
    Serial keys of which it knows that no job has them get their head at once, if only one of these jobs asks for it.
    A caller that is about to take the heads away lets that promote. Returns those that could start now and are taken by
    the one who has the lease."""
    if not new:
        return []
    asking = Counter(job.serial_key for job in new)
    heads = {key for key in free if asking[key] == 1}
    rows = {job.id: row_of(job, now, job.serial_key in heads) for job in new}
    taken: list[Job] = []
    if lease is not None:
        free_now = {None, *heads}
        fit = (job for job in new if job.run_at <= lease.until and job.serial_key in free_now and lease.accepts(job))
        first = list(islice(within(lease.org_room, fit), lease.room + lease.prefetch))
        fence = draw_fence(tx) if first else 0
        taken = [held_from_start(job, now, fence) for job in first]
        leased = lease_values(Move.LEASE, lease.worker, fence)
        for job in first:
            rows[job.id] |= leased
    due_now = any(job.run_at <= now for job in new)
    tells = len(taken) < len(new) and (promoting or not due_now)
    insert_rows(tx, jobs, list(rows.values()), ("ready" if due_now else "later") if tells else None)
    if promoting:
        promote(tx, serial_keys(new) - heads)
    return taken


def due(tx: Tx, now: datetime, limit: int = CHUNK) -> int:
    """Let jobs whose moment has come into the queue; returns how many."""
    waiting = and_(is_in(c.state, states_before(Move.DUE)), c.run_at <= now)
    # a backing-off job is the head of its key already: only a later one of a key has to ask who is the head
    keyed = and_(waiting, is_in(c.state, [State.LATER]), c.serial_key.is_not(None))
    keys = set(tx.execute(select(c.serial_key).where(keyed).limit(limit)).scalars())
    moved = 0
    if keys:
        lock_keys(tx, keys)
        stmt = update(jobs).where(keyed, c.serial_key.in_(keys)).values(state=state_after(Move.WAIT))
        moved += tx.execute(stmt).rowcount
        promote(tx, keys)
    free = and_(waiting, or_(is_in(c.state, [State.RETRY]), c.serial_key.is_(None)))
    # a CTE: a subquery may be read anew for each row, and then takes more rows than its limit
    chosen = select(c.id).where(free).order_by(c.run_at).limit(limit).with_for_update(skip_locked=True).cte("chosen")
    stmt = update(jobs).where(c.id.in_(select(chosen.c.id))).values(state=state_after(Move.DUE)).returning(c.id)
    moved += len(tx.execute(stmt).all())  # SQLite's driver counts no rows of a statement that begins with WITH
    if moved:
        notify(tx, "ready")
    return moved


def next_due(tx: Tx) -> datetime | None:
    """When the next waiting job comes due."""
    return tx.execute(first_waiting(tx)).scalar()


@once
def first_waiting(_: Tx) -> Select[Any]:
    return select(func.min(c.run_at)).where(is_in(c.state, states_before(Move.DUE)))


def within(org_room: Callable[[str], int | None] | None, new: Iterable[NewJob]) -> Iterator[NewJob]:
    """The first jobs of each org that it has room for."""
    counts: Counter[str] = Counter()
    for job in new:
        room = None if org_room is None else org_room(job.org_id)
        if room is None or counts[job.org_id] < room:
            counts[job.org_id] += 1
            yield job


def lanes(
    tx: Tx, only: Collection[str] | None = None, after: Lane | None = None, orgs: Collection[str] | None = None
) -> list[Lane]:
    """Where ready work lies: (org, queue) with its limits, from behind `after` on and then from the beginning, so that
    many lanes all get their turn. Steps from lane to lane, however long they are. `only` has names of queues, `orgs`
    ids."""
    found = lanes_behind(tx, only, after, orgs)
    if after is not None and len(found) < LANES_PER_CLAIM:
        seen = {(lane.org_id, lane.queue) for lane in found}
        found += [lane for lane in lanes_behind(tx, only, None, orgs) if (lane.org_id, lane.queue) not in seen]
    return found[:LANES_PER_CLAIM]


def lanes_behind(tx: Tx, only: Collection[str] | None, after: Lane | None, orgs: Collection[str] | None) -> list[Lane]:
    given: dict[str, Any] = {"org": after.org_id, "queue": after.queue} if after else {"org": "", "queue": ""}
    if only is not None:
        given["only"] = list(only)
    if orgs is not None:
        given["orgs"] = list(orgs)
    result = []
    for org_id, queue, queue_limit, org_limit in tx.execute(next_lanes(tx, only is not None, orgs is not None), given):
        limited = [limit for limit in (queue_limit, org_limit) if limit is not None]
        result.append(Lane(org_id, queue, min(limited, default=None)))
    return result


@once
def next_lanes(_: Tx, chosen: bool, chosen_orgs: bool) -> Select[Any]:
    """Step from lane to lane, from behind one on; all queues and orgs, or only chosen ones."""
    found = select(*lane_behind(bindparam("org", type_=c.org_id.type), bindparam("queue", type_=c.queue.type))).cte(
        "found", recursive=True
    )
    found = found.union_all(select(*lane_behind(found.c.org_id, found.c.queue)).where(found.c.org_id.is_not(None)))
    pauses = queues.alias("pauses")  # a scalar subquery, because a join would not keep the order that the limit needs
    paused_at = select(pauses.c.paused_at).where(pauses.c.org_id == found.c.org_id, pauses.c.name == found.c.queue)
    open_lanes = [found.c.org_id.is_not(None), paused_at.scalar_subquery().is_(None)]
    if chosen:
        open_lanes.append(found.c.queue.in_(bindparam("only", expanding=True)))
    if chosen_orgs:
        open_lanes.append(found.c.org_id.in_(bindparam("orgs", expanding=True)))
    some = select(found.c.org_id, found.c.queue).where(*open_lanes).limit(LANES_PER_CLAIM).subquery("some")
    of_queue = and_(queues.c.org_id == some.c.org_id, queues.c.name == some.c.queue)
    return (
        select(some.c.org_id, some.c.queue, queues.c.max_running, orgs.c.max_running)
        .select_from(some.outerjoin(queues, of_queue).outerjoin(orgs, orgs.c.id == some.c.org_id))
        .order_by(some.c.org_id, some.c.queue)
    )


def lane_behind(org: ColumnElement[str], queue: ColumnElement[str]) -> tuple[ColumnElement[str], ColumnElement[str]]:
    """The org and queue of the first lane behind one: the next queue of the same org, else the first of the next org.
    Each is one step in the index. To compare both columns at once would be shorter, but SQLite then reads all of the
    lane that it stands in."""
    ready = is_in(c.state, [State.READY])
    same = select(func.min(c.queue)).where(ready, c.org_id == org, c.queue > queue).scalar_subquery()
    others = select(c.org_id, c.queue).where(ready, c.org_id > org).order_by(c.org_id, c.queue).limit(1)
    next_org, first = (others.with_only_columns(column).scalar_subquery() for column in (c.org_id, c.queue))
    return case((same.is_not(None), org), else_=next_org).label("org_id"), func.coalesce(same, first).label("queue")


def claim(
    tx: Tx, found: Sequence[Lane], *, worker: str, routes: Collection[str], room: int, turn: int,
    org_room: Mapping[str, int] = MappingProxyType({}),
) -> list[Job]:  # fmt: skip
    """Take up to `room` ready jobs of these lanes for a worker, fairly across orgs, most urgent first in a lane; of an
    org at most its `org_room`. Without limits to count against it is one statement on PostgreSQL."""
    given = divide_claims(capped(tx, found, turn), room, turn, org_room)
    return take(tx, given, worker, routes) if given else []


def claim_sole(tx: Tx, lane: Lane, *, worker: str, routes: Collection[str], room: int) -> list[Job]:
    """The same in one statement for a lane that was without limit and all there was, without looking again what there
    is: nothing is taken if that has changed."""
    return take(tx, [(lane, room)], worker, routes, sole=True)


def take(
    tx: Tx, given: Sequence[tuple[Lane, int]], worker: str, routes: Collection[str], sole: bool = False
) -> list[Job]:
    values: dict[str, Any] = {"worker": worker, "routes": listed(tx, routes)}
    for position, (lane, count) in enumerate(given):
        values |= {f"org{position}": lane.org_id, f"queue{position}": lane.queue, f"count{position}": count}
    taken = taking(tx, Given(values, (len(given), sole)))
    if on_sqlite(tx):
        taken = orjson.loads(taken_now(tx, Given(values))[0][0])
    if not taken:  # a claim without jobs writes nothing: a write wakes the other processes
        return []
    if on_sqlite(tx):
        draw_fence(tx)
    taken.sort(key=OLDEST)  # RETURNING has no order
    taken.sort(key=PRIORITY, reverse=True)
    *fields, terms, _ = columns_of(tx, TAKEN, taken)
    return list(map(Job, *fields, map(Terms.load, terms)))


@hot
def taking(tx: Tx, count: int, sole: bool) -> Any:
    """Make the most urgent ready jobs of so many lanes, each up to its share, a worker's own."""
    picks = [
        select(c.id)
        .where(
            is_in(c.state, states_before(Move.CLAIM)),
            c.org_id == bindparam(f"org{position}"),
            c.queue == bindparam(f"queue{position}"),
            is_listed(tx, c.route, "routes"),
            *(is_all_there_is() if sole else ()),
        )
        .order_by(c.priority.desc(), c.run_at, c.id)
        .limit(bindparam(f"count{position}", type_=Integer))
        .with_for_update(skip_locked=True)
        .subquery()
        for position in range(count)
    ]
    # a CTE is read once; a subquery may be read once per row of a join, and then takes more rows than its limit
    taken = union_all(*(select(pick.c.id) for pick in picks)).cte("taken")
    leased = lease_values(Move.CLAIM, bindparam("worker"), next_fence(tx))
    stmt = update(jobs).where(c.id == taken.c.id, is_in(c.state, states_before(Move.CLAIM))).values(leased)
    return stmt if on_sqlite(tx) else stmt.returning(*TAKEN)


def is_all_there_is() -> Iterator[ColumnElement[bool]]:
    """Whether the first lane has no limit, is not paused, and has no other beside it."""
    org, queue, other = bindparam("org0", type_=Text), bindparam("queue0", type_=Text), jobs.alias("other").c
    # four looks, because PostgreSQL wades through all that was just taken when it compares (org, queue) as one
    for beside in (other.org_id < org, other.org_id > org, other.queue < queue, other.queue > queue):
        same_org = [other.org_id == org] if beside.left is other.queue else []
        yield ~exists(select(literal(1)).where(is_in(other.state, [State.READY]), beside, *same_org))
    yield from is_unlimited(org, queue)


def is_unlimited(org: ColumnElement[str], queue: ColumnElement[str]) -> Iterator[ColumnElement[bool]]:
    limited = or_(queues.c.paused_at.is_not(None), queues.c.max_running.is_not(None))
    yield ~exists(select(literal(1)).where(queues.c.org_id == org, queues.c.name == queue, limited))
    yield ~exists(select(literal(1)).where(orgs.c.id == org, orgs.c.max_running.is_not(None)))


@hot
def taken_now(tx: Tx) -> Any:
    """What was just taken, as one JSON text: for each row that it reads, SQLite's driver lets other threads in."""
    mine = and_(c.lease_owner == bindparam("worker"), is_in(c.state, [State.RUNNING]), c.fence == next_fence(tx))
    return select(func.json_group_array(func.json_array(*TAKEN))).where(mine)


TAKEN = (*FIELDS, c.priority)
POSITION = {one.name: position for position, one in enumerate(TAKEN)}
OLDEST, PRIORITY = itemgetter(POSITION["run_at"], POSITION["id"]), itemgetter(POSITION["priority"])


def capped(tx: Tx, found: Sequence[Lane], turn: int) -> Sequence[Lane]:
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
    caps: dict[Lane, int | None] = {}
    for lane in rotate(list(found), turn):  # what an org has left goes to another of its queues each time
        key = (lane.org_id, lane.queue)
        own = queue_limit.get(key)
        room = [own - running.get(key, 0)] if own is not None else []
        if lane.org_id in left:
            room.append(left[lane.org_id])
        cap = max(0, min(room)) if room else None
        if cap is not None and lane.org_id in left:
            left[lane.org_id] -= cap  # the org's next lane has only what this one leaves
        caps[lane] = cap
    return [replace(lane, cap=caps[lane]) for lane in found]


def mark_started(tx: Tx, attempts: Sequence[Attempt]) -> set[str]:
    """Write down that these attempts have begun; returns the run ids of those whose lease still held."""
    begun = [
        (attempt.job.id, attempt.job.fence, attempt.run_id, attempt.number, attempt.started_at) for attempt in attempts
    ]
    return {run_id for (run_id,) in marking(tx, BEGUN.given(tx, begun))}


BEGUN = Batch("begun", id=c.id.type, fence=c.fence.type, run_id=c.run_id.type, n=c.attempt.type, at=c.started_at.type)


@hot
def marking(tx: Tx, alike: tuple[str, ...]) -> Any:
    begun = BEGUN.table(tx, alike)
    values = {"run_id": begun.c.run_id, "attempt": begun.c.n, "started_at": begun.c.at}
    return update(jobs).where(held(begun.c.id, begun.c.fence)).values(values).returning(c.run_id)


def finish(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None = None) -> FinishResult:
    """Write the runs that ended and take their jobs out of the queue, or to where they wait for the next attempt."""
    staying = [result for result in ended if result.move]
    final = [result for result in ended if not result.move] if staying else ended
    keys = {result.job.serial_key for result in ended if result.job.serial_key}
    lock_keys(tx, keys)
    moved, unwanted = move_on(tx, staying)
    runs.append(tx, [result for result in staying if result.run_id in moved and not result.not_started], worker, now)
    kept = leave(tx, final, worker, now) | moved
    promoted = promote(tx, keys)
    for job_id, by in unwanted.items():  # canceled while its attempt failed by itself: there is no next
        withdraw(tx, c.id == job_id, Status.CANCELED, by, max(result.finished_at for result in ended))
    ready = bool(promoted or unwanted) or any(result.move in (Move.HAND_BACK, Move.RESCUE) for result in staying)
    if ready:
        notify(tx, "ready")
    return FinishResult(kept, ready)


def pass_on(tx: Tx, ended: AttemptResult, worker: str, now: datetime, follows: bool) -> tuple[bool, Job | None]:
    """Write a run that ended and take its job out of the queue: whether its lease still held; and the next job of its
    line, if the worker follows the line and takes it at once."""
    assert ended.job.serial_key is not None
    lock_keys(tx, [ended.job.serial_key])
    if not leave(tx, [ended], worker, now):
        return False, None
    if not promote(tx, [ended.job.serial_key]):
        return True, None
    taken = take_next(tx, ended.job, worker) if follows else None
    if taken is None:
        notify(tx, "ready")
    return True, taken


def take_next(tx: Tx, job: Job, worker: str) -> Job | None:
    """Make the job that is ready behind another of its line a worker's own, without the way through a claim: if the
    same workers can run it, and no limit or pause of its queue or org has a say."""
    given = {"key": job.serial_key, "route": job.route, "org0": job.org_id, "queue0": job.queue, "worker": worker}
    found = taking_next(tx, Given(given))
    if found and on_sqlite(tx):
        draw_fence(tx)
    return job_of(records_of(tx, FIELDS, found)[0]) if found else None


@hot
def taking_next(tx: Tx) -> Any:
    org, queue = bindparam("org0", type_=Text), bindparam("queue0", type_=Text)
    mine = and_(
        c.serial_key == bindparam("key", type_=Text), is_in(c.state, HEADS), is_in(c.state, states_before(Move.CLAIM)),
        c.route == bindparam("route", type_=Text), c.org_id == org, c.queue == queue, *is_unlimited(org, queue),
    )  # fmt: skip
    leased = lease_values(Move.CLAIM, bindparam("worker", type_=Text), next_fence(tx))
    return update(jobs).where(mine).values(leased).returning(*FIELDS)


def is_plain(ended: Iterable[AttemptResult]) -> bool:
    """Whether `finish` is one statement on PostgreSQL: nothing waits behind these jobs, and no schedule counts them."""
    return not any(result.move or result.job.serial_key or result.job.schedule_id for result in ended)


def leave(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None) -> set[str]:
    """The jobs whose work is over go from the queue into the ledger; the run ids of those that held."""
    if not ended:
        return set()
    given = ENDED.given(
        tx, [(result.job.id, result.job.fence, *runs.result_values(result, worker, now)) for result in ended]
    )
    recorded = recording(tx, given)
    if on_sqlite(tx):
        if changed_rows(tx) == len(ended):
            kept = {result.run_id for result in ended}
        else:
            kept = {run_id for (run_id,) in holding(tx, given)}
        leaving(tx, given)
    else:
        kept = {run_id for (run_id,) in recorded}
    runs.update_stats(tx, [result for result in ended if result.job.schedule_id and result.run_id in kept])
    return kept


ENDED = Batch(
    "ended", job=c.id.type, of_fence=c.fence.type, **{name: ledger.c[name].type for name in runs.RESULT_COLUMNS}
)


@hot
def recording(tx: Tx, alike: tuple[str, ...]) -> Any:
    """Write the runs of jobs that are held, from what the jobs say themselves and what is told about the end. With it
    the jobs go: in the same statement where a database can do that, else in the next. SQLite's driver lets other
    threads in for each row that it gives back, so there it gives none."""
    ended = ENDED.table(tx, alike)
    names = (*runs.OF_JOB, *runs.RESULT_COLUMNS)
    fields = [runs.OF_JOB[name].label(name) for name in runs.OF_JOB] + [ended.c[name] for name in runs.RESULT_COLUMNS]
    ours = held(ended.c.job, ended.c.of_fence)
    if on_sqlite(tx):
        return insert(ledger).from_select(names, select(*fields).where(ours))
    gone = select(delete(jobs).where(ours).returning(*fields).cte())
    return insert(ledger).from_select(names, gone).returning(ledger.c.id)


@hot
def holding(tx: Tx, alike: tuple[str, ...]) -> Any:
    """Which of the jobs are held: seldom asked."""
    ended = ENDED.table(tx, alike)
    return select(ended.c.id).where(held(ended.c.job, ended.c.of_fence))


@hot
def leaving(tx: Tx, alike: tuple[str, ...]) -> Any:
    ended = ENDED.table(tx, alike)
    return delete(jobs).where(tuple_(c.id, c.fence).in_(select(ended.c.job, ended.c.of_fence)), RUNS)


def move_on(tx: Tx, ended: Sequence[AttemptResult]) -> tuple[set[str], dict[str, str]]:
    """The jobs whose attempt ended but whose work did not: run ids of those that held; job ids of those that somebody
    wants canceled, with who it was."""
    if not ended:
        return set(), {}
    records = [
        (
            result.job.id, result.job.fence, state_after(result.move).value, result.run_at or result.job.run_at,
            result.job.last_run_id if result.not_started else result.run_id,
            result.job.attempt if result.not_started else result.number,
            result.job.tries + (result.counts and result.status is not Status.CRASHED),
            result.job.crashes + (result.counts and result.status is Status.CRASHED),
            result.reason if result.move is Move.PARK else None,
        )
        for result in ended
        if result.move is not None
    ]  # fmt: skip
    found = moving(tx, MOVED.given(tx, records))
    canceled = {job_id: reason or "" for job_id, requested_at, reason in found if requested_at is not None}
    held = {job_id for job_id, _, _ in found}
    return {result.run_id for result in ended if result.job.id in held}, canceled


MOVED = Batch(
    "moved", id=c.id.type, fence=c.fence.type, state=c.state.type, run_at=c.run_at.type, run_id=c.run_id.type,
    n=c.attempt.type, tries=c.tries.type, crashes=c.crashes.type, why=c.parked_reason.type,
)  # fmt: skip


@hot
def moving(tx: Tx, alike: tuple[str, ...]) -> Any:
    moved = MOVED.table(tx, alike)
    return (
        update(jobs)
        .where(held(moved.c.id, moved.c.fence))
        .values(
            state=moved.c.state, run_at=moved.c.run_at, last_run_id=moved.c.run_id, attempt=moved.c.n,
            tries=moved.c.tries, crashes=moved.c.crashes, parked_reason=moved.c.why, run_id=None, started_at=None,
            lease_owner=None,
        )
        .returning(c.id, c.cancel_requested_at, c.cancel_reason)
    )  # fmt: skip


def set_aside(tx: Tx, job: Job, how: Move, solo_key: str, reason: str | None = None) -> None:
    """Put back a job that its worker holds but did not begin: until a person acts, or behind another of its serial key.
    A newer one may take its place again, unless that one waits already. The caller holds the lock of the key."""
    newer = tx.execute(select(c.id).where(c.solo_key == solo_key)).first()
    solo = {} if newer is not None or job.attempt else {"solo_key": solo_key}
    values = {"state": state_after(how), "parked_reason": reason, "lease_owner": None, **solo}
    if not tx.execute(update(jobs).where(c.id == job.id, c.fence == job.fence, RUNS).values(values)).rowcount:
        raise LeaseLost(f"job {job.id}: it is not ours any more")
    promote(tx, [job.serial_key] if job.serial_key else [])
    notify(tx, "ready")


def head_of(tx: Tx, serial_key: str) -> Any | None:
    """The job that is first in its line, whatever it waits for."""
    return tx.execute(select(jobs).where(c.serial_key == serial_key, is_in(c.state, HEADS))).one_or_none()


def hand_back(tx: Tx, worker: str, which: Collection[str] | None, but: Collection[str] = ()) -> int:
    """Return jobs that never started: the given ones, or all that this worker owns but for those it knows of. It may
    own more than it knows when the answer to a claim was lost."""
    stmt = update(jobs).where(
        c.lease_owner == worker, is_in(c.state, states_before(Move.HAND_BACK)), c.run_id.is_(None)
    )
    stmt = stmt.where(c.id.in_(which)) if which is not None else stmt.where(c.id.not_in(but))
    moved: int = tx.execute(stmt.values(state=state_after(Move.HAND_BACK), lease_owner=None)).rowcount
    if moved:
        notify(tx, "ready")
    return moved


def rescue(
    tx: Tx, worker: str, now: datetime, limit: int = CHUNK, evidence: bool = True
) -> tuple[int, bool, list[AttemptResult]]:
    """Move jobs of a dead worker back to ready: attempts known to have begun become `crashed` runs. Returns how many
    jobs it moved, whether there are more, and those runs. Without `evidence` the death counts against no job."""
    held_by_worker = and_(c.lease_owner == worker, is_in(c.state, [State.RUNNING]))
    stmt = select(c.id, c.serial_key).where(held_by_worker).order_by(c.id).limit(limit)
    keys = {row.id: row.serial_key for row in tx.execute(stmt)}
    lock_keys(tx, {key for key in keys.values() if key})
    # read again, locked: a start or a result may have been recorded while this waited for the keys
    full = select(*FIELDS, c.run_id, c.started_at, c.cancel_requested_at, c.cancel_reason)
    rows = list(tx.execute(full.where(held_by_worker, c.id.in_(keys)).order_by(c.id).with_for_update()))
    culprit = culprit_of(rows) if evidence and len(keys) < limit else None
    ended = [crash_of(row, now, row.id == culprit) for row in rows if row.run_id is not None]
    final = [result for result in ended if result.final]
    moved, _ = move_on(tx, [result for result in ended if not result.final])
    runs.append(tx, [result for result in ended if result.run_id in moved], worker, now)
    kept = leave(tx, final, worker, now) | moved
    crashed = [result for result in ended if result.run_id in kept]
    unstarted = [row.id for row in rows if row.run_id is None]
    ready = {"state": state_after(Move.RESCUE), "lease_owner": None}
    tx.execute(update(jobs).where(c.id.in_(unstarted), held_by_worker).values(ready))
    present = [row.id for row in rows if row.id != culprit]
    tx.execute(update(jobs).where(c.id.in_(present)).values(rescues=c.rescues + 1))
    promote(tx, {result.job.serial_key for result in final if result.job.serial_key})
    if rows:
        notify(tx, "ready")
    return len(rows), len(keys) == limit, crashed


def culprit_of(rows: Sequence[Any]) -> str | None:
    """The job that the death of its worker is evidence against: the only one that the worker held, or the only one that
    ran apart from its like because three workers had died with it. None if others may be the cause."""
    suspects = rows if len(rows) == 1 else [row for row in rows if job_of(row).alone]
    begun = [row.id for row in suspects if row.run_id is not None]
    return begun[0] if len(begun) == 1 else None


def crash_of(row: Any, now: datetime, counts: bool) -> AttemptResult:
    """What a run ends as whose worker died under it; a crash that counts may be the last one."""
    job = job_of(row)
    error = {"code": "crash", "type": "WorkerLost", "message": "the worker that ran this died", "traceback": None}
    ended = AttemptResult(
        job, Status.CRASHED, None, now, row.run_id, row.attempt, row.started_at, error, move=Move.RESCUE, run_at=now,
        counts=counts,
    )  # fmt: skip
    if job.route.startswith(
        SERIAL_ROUTE_PREFIX
    ):  # UNKNOWN_IS_NOT_FAILED: the agent that had it must report the outcome
        return replace(ended, status=Status.PAUSED, reason=RECONCILIATION, move=Move.PARK, counts=False)
    if row.cancel_requested_at is not None:
        return replace(ended, status=Status.CANCELED, reason=row.cancel_reason, move=None)
    if counts and job.crashes + 1 >= QUARANTINE_CRASHES:
        park = Move.PARK if job.parks_on_failure else None
        return replace(ended, status=Status.FAILED, reason="quarantined", counts=False, move=park)
    return ended


def request_cancel(tx: Tx, ids: Collection[str], reason: str, now: datetime) -> None:
    """Ask the workers that hold these jobs to stop them."""
    stmt = update(jobs).where(c.id.in_(ids), is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_(None))
    if tx.execute(stmt.values(cancel_requested_at=now, cancel_reason=reason)).rowcount:
        notify(tx, "cancel")


def cancels(tx: Tx, worker: str) -> dict[str, str]:
    """Return the jobs of a worker with a cancel request, and the reason."""
    return {job_id: reason or "" for job_id, reason in tx.execute(canceled_of(tx), {"worker": worker})}


@once
def canceled_of(_: Tx) -> Select[Any]:
    mine = and_(c.lease_owner == bindparam("worker"), is_in(c.state, [State.RUNNING]))
    return select(c.id, c.cancel_reason).where(mine, c.cancel_requested_at.is_not(None))


def withdraw(
    tx: Tx, where: ColumnElement[bool], status: Status, reason: str | None, now: datetime, promoting: bool = True
) -> list[tuple[str, datetime | None]]:
    """Take jobs that no worker holds out of the queue, each with a run row that says why. The caller holds the locks
    of their serial keys; one that adds a job in their place lets that promote. Returns (schedule, slot) of each."""
    waiting = [state for state in State if state is not State.RUNNING]
    stmt = delete(jobs).where(where, is_in(c.state, waiting)).returning(*FIELDS)
    gone = [job_of(row) for row in tx.execute(stmt)]
    ended = [AttemptResult(job, status, reason, now, new_id(), job.attempt + 1) for job in gone]
    runs.append(tx, ended, None)
    if promoting:
        promote(tx, {job.serial_key for job in gone if job.serial_key})
    return [(job.schedule_id, job.slot) for job in gone if job.schedule_id]


def find(tx: Tx, org_id: str, key: str) -> Any | None:
    """A living job of an org, by its id or by the id of its current run."""
    for column in (c.id, c.run_id):
        found = tx.execute(select(jobs).where(column == key, c.org_id == org_id)).one_or_none()
        if found is not None:
            return found
    return None


def payload_of(tx: Tx, job_id: str) -> Any:
    """The input of a living job."""
    return tx.execute(select(c.payload).where(c.id == job_id)).scalar()


def is_unwanted(tx: Tx, job_id: str) -> bool:
    """Whether a cancel of the job was requested."""
    return tx.execute(select(c.id).where(c.id == job_id, c.cancel_requested_at.is_not(None))).first() is not None


def keys_of(tx: Tx, ids: Collection[str]) -> set[str]:
    """The serial keys of living jobs."""
    return set(tx.execute(select(c.serial_key).where(c.id.in_(ids), c.serial_key.is_not(None))).scalars())


def lock(tx: Tx, job_id: str) -> None:
    """Keep a job as it is until the transaction ends."""
    tx.execute(select(c.id).where(c.id == job_id).with_for_update())


def of_schedules(tx: Tx, schedule_ids: Collection[str]) -> dict[str, list[Any]]:
    """Every job of these schedules, in any state."""
    found: dict[str, list[Any]] = {}
    for row in tx.execute(living(tx), {"schedules": listed(tx, schedule_ids)}) if schedule_ids else ():
        found.setdefault(row.schedule_id, []).append(row)
    return found


@once
def living(tx: Tx) -> Select[Any]:
    fields = (c.id, c.schedule_id, c.state, c.solo_key, c.slot, c.serial_key, c.trigger)
    return select(*fields).where(is_listed(tx, c.schedule_id, "schedules")).order_by(c.run_at, c.id)


def park_unroutable(tx: Tx, routes: Collection[str], before: datetime) -> int:
    """Put aside ready jobs that no live worker can run, so that claims do not wade through them."""
    stmt = update(jobs).where(is_in(c.state, states_before(Move.STRAND)), c.route.not_in(routes), c.queued_at < before)
    return tx.execute(stmt.values(state=state_after(Move.STRAND), parked_reason=UNROUTABLE)).rowcount


def route(tx: Tx, routes: Collection[str]) -> int:
    """A worker came up that can run these: what was put aside for want of one is ready again."""
    stmt = update(jobs).where(
        is_in(c.state, states_before(Move.RESUME)), c.parked_reason == UNROUTABLE, c.route.in_(routes)
    )
    return tx.execute(stmt.values(state=state_after(Move.RESUME), parked_reason=None)).rowcount


def resume(tx: Tx, job_id: str, now: datetime) -> bool:
    """Let a parked job try again."""
    stmt = update(jobs).where(c.id == job_id, is_in(c.state, states_before(Move.RESUME)))
    moved = bool(tx.execute(stmt.values(state=state_after(Move.RESUME), run_at=now, parked_reason=None)).rowcount)
    if moved:
        notify(tx, "ready")
    return moved


def adopt(tx: Tx, job_id: str, fence: int, worker: str | None, now: datetime) -> bool:
    """Give a parked job back to the agent that has it in hand, as the same claim: its fence stays. The attempt that was
    recorded as paused is over; this is the next one."""
    mine = and_(c.id == job_id, c.fence == fence, is_in(c.state, states_before(Move.ADOPT)))
    begun = {"parked_reason": None, "run_id": new_id(), "attempt": c.attempt + 1, "started_at": now}
    leased = lease_values(Move.ADOPT, worker, fence)
    return bool(tx.execute(update(jobs).where(mine).values(**leased, **begun)).rowcount)


def set_queue(tx: Tx, org_id: str, name: str, max_running: int | None, paused: bool, now: datetime) -> str:
    """Limit or pause a queue; one that stays paused keeps since when."""
    values = {"org_id": org_id, "name": name, "max_running": max_running, "paused_at": now if paused else None}
    since = func.coalesce(queues.c.paused_at, literal(now, queues.c.paused_at.type)) if paused else None
    stmt = upsert(tx, queues).values(values)
    stmt = stmt.on_conflict_do_update(
        index_elements=["org_id", "name"], set_={"max_running": max_running, "paused_at": since}
    )
    tx.execute(stmt)
    notify(tx, "ready")
    return name


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
    return len(promoting(tx, WANTED.given(tx, [(key,) for key in wanted])))


WANTED = Batch("wanted", key=c.serial_key.type)


@hot
def promoting(tx: Tx, alike: tuple[str, ...]) -> Any:
    key = WANTED.table(tx, alike)
    head, waiting = jobs.alias("head"), jobs.alias("waiting")
    first = (
        select(waiting.c.id)
        .where(waiting.c.serial_key == key.c.key, is_in(waiting.c.state, states_before(Move.PROMOTE)))
        .order_by(waiting.c.priority.desc(), waiting.c.run_at, waiting.c.id)
        .limit(1)
        .correlate(key)
        .scalar_subquery()
    )
    heads = select(literal(1)).select_from(head).where(head.c.serial_key == key.c.key, is_in(head.c.state, HEADS))
    chosen = select(first).select_from(key).where(~exists(heads.correlate(key)))
    return update(jobs).where(c.id.in_(chosen)).values(state=state_after(Move.PROMOTE)).returning(c.id)


def is_in(state: ColumnElement[str], among: Iterable[State]) -> ColumnElement[bool]:
    """A test of the state with its values in the statement's text: a partial index serves no parameter."""
    values: list[ColumnElement[str]] = [literal_column(f"'{state_value.value}'") for state_value in among]
    return state == values[0] if len(values) == 1 else state.in_(values)


def lease_values(move: Move, worker: Any, fence: Any) -> dict[str, Any]:
    """The columns that every statement sets by which a job becomes running: its lease. The move is CLAIM, LEASE or
    ADOPT."""
    return {"state": state_after(move).value, "lease_owner": worker, "fence": fence, "solo_key": None}


def held(job_id: ColumnElement[str], fence: ColumnElement[int]) -> ColumnElement[bool]:
    """NO_MOVE_WITHOUT_THE_LEASE: the guard of every write about a running job. What is the same for a whole batch is
    said as if it depended on its rows: else PostgreSQL expects to find one such job, looks through the batch for it,
    and does so for each of the five hundred that there are."""
    fence, running = (case((job_id.is_not(None), value)) for value in (fence, literal_column("'running'")))
    return and_(c.id == job_id, c.fence == fence, c.state == running)


def settle_keys(tx: Tx, new: Sequence[NewJob], key_mode: str, now: datetime) -> tuple[list[str], list[NewJob]]:
    """Which of the new jobs are really new, given the living jobs that hold their keys."""
    keyed = {(job.org_id, job.job_key) for job in new if job.job_key}
    if not keyed:
        return [job.id for job in new], list(new)
    stmt = select(c.id, c.org_id, c.job_key, c.state, c.attempt, c.serial_key)
    stmt = stmt.where(tuple_(c.org_id, c.job_key).in_(keyed)).order_by(c.id).with_for_update()
    taken = {(row.org_id, row.job_key): row for row in tx.execute(stmt)}
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
            lock_keys(tx, [row.serial_key] if row.serial_key else [])
            withdraw(tx, c.id == row.id, Status.SKIPPED, "superseded", now)
        ids.append(job.id)
        kept.append(job)
    return ids, kept


def serial_keys(new: Iterable[NewJob]) -> set[str]:
    return {job.serial_key for job in new if job.serial_key}


def row_of(job: NewJob, now: datetime, head: bool) -> dict[str, Any]:
    at_once = Move.WAIT if job.serial_key and not head else Move.ENQUEUE
    move = Move.DELAY if job.run_at > now else at_once
    return {
        "id": job.id, "org_id": job.org_id, "kind": job.kind, "target": job.target, "route": job.route or job.kind,
        "payload": job.payload, "queue": job.queue, "serial_key": job.serial_key, "solo_key": job.solo_key,
        "job_key": job.job_key, "priority": job.priority, "queued_at": now, "run_at": job.run_at,
        "state": state_after(move).value, "schedule_id": job.schedule_id, "slot": job.slot, "trigger": job.trigger,
        "attempt": job.attempt, "tries": 0, "crashes": 0, "rescues": 0,
        "last_run_id": job.last_run_id, "lease_owner": None, "fence": 0, "terms": job.terms.dump(), "trace": job.trace,
    }  # fmt: skip


def held_from_start(new: NewJob, now: datetime, fence: int) -> Job:
    return Job(
        new.id, new.org_id, new.kind, new.target, new.route, new.payload, new.queue, new.serial_key, new.schedule_id,
        new.slot, new.trigger, new.attempt, 0, 0, 0, fence, now, new.run_at, new.last_run_id, new.trace, new.terms,
    )  # fmt: skip


def job_of(fields: Sequence[Any]) -> Job:
    return Job(*fields[:TERMS], Terms.load(fields[TERMS]))  # type: ignore[call-arg]
