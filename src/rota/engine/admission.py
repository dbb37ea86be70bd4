"""Admission of jobs whose start is limited: by the rate of their task or queue, and by the places of a key.

A worker asks for a batch of jobs that are about to start, in one transaction. A job that may not start goes back to the
queue at once, without a run. Beyond a rate it has its own start time (`reserved_at`), and starts then without asking
again; without a free place it waits until it is handed one (see `places.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, func, select, update

from rota.core.flow import START_TOLERANCE, Limits, PlaceLimit, RateLimit, instant_of, microseconds, start_times
from rota.core.model import Job
from rota.core.states import Move, State, Status, state_after
from rota.db.dialect import Tx, notify
from rota.db.tables import jobs, rate_limits
from rota.engine import flow_statements
from rota.engine.job_states import is_in
from rota.engine.jobs import withdraw
from rota.engine.places import hand_on_places, lock_places

PLACE_WAIT = timedelta(days=1)  # after which a job that waits for a place asks again, should none be handed on

c = jobs.c


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that is about to start, and its limits."""

    job: Job
    limits: Limits


@dataclass(frozen=True, slots=True)
class Delay:
    """When and for what a job that may not start now waits."""

    run_at: datetime
    reserved_at: datetime | None = None
    place: PlaceLimit | None = None


def admit(tx: Tx, asks: Sequence[Ask], now: datetime) -> set[str]:
    """Reserve the starts of jobs, the oldest first; returns the ids of those that may start now. The others are back in
    the queue, or no longer belong to this worker."""
    ordered = sorted(asks, key=lambda ask: (ask.job.queued_at, ask.job.id))
    delays: dict[str, Delay] = {}
    lost = take_places(tx, ordered, delays, now)
    ordered = [ask for ask in ordered if ask.job.id not in lost]
    reserve_starts(tx, [ask for ask in ordered if ask.job.id not in delays], delays, now)
    set_aside(tx, [ask.job for ask in ordered if ask.job.id in delays], delays, now)
    return {ask.job.id for ask in ordered if ask.job.id not in delays}


def take_places(tx: Tx, asks: Sequence[Ask], delays: dict[str, Delay], now: datetime) -> set[str]:
    """Give places to jobs that need one and have none, after the jobs that wait already; adds the delays of those that
    get none. Returns the ids of jobs that no longer belong to this worker."""
    wanted: dict[str, list[tuple[Job, PlaceLimit]]] = defaultdict(list)
    for ask in asks:
        if ask.limits.place is not None and ask.job.place_key != ask.limits.place.key:
            wanted[ask.limits.place.key].append((ask.job, ask.limits.place))
    if not wanted:
        return set()
    lock_places(tx, wanted)
    waiting = and_(c.place_wanted.in_(wanted), is_in(c.state, [State.RETRY]))
    crowded = select(c.place_wanted).distinct().where(waiting)
    for key in tx.execute(crowded).scalars().all():
        places = wanted[key][0][1].places  # as the program of this worker declares it now
        outdated = and_(c.place_wanted == key, c.place_limit != places)
        tx.execute(update(jobs).where(outdated).values(place_limit=places))
    hand_on_places(tx, wanted, now)
    full = set(tx.execute(crowded).scalars())
    held = select(c.place_key, func.count().label("count")).where(c.place_key.in_(wanted)).group_by(c.place_key)
    taken = Counter({row.place_key: row.count for row in tx.execute(held)})
    rows: list[tuple[str, int, str]] = []
    for key, candidates in wanted.items():
        for job, limit in candidates:
            if key not in full and taken[key] < limit.places:
                taken[key] += 1
                rows.append((job.id, job.fence, key))
            else:
                delays[job.id] = Delay(now + PLACE_WAIT, job.reserved_at, limit)
    kept = {job_id for (job_id,) in flow_statements.TAKE_PLACES.run(tx, rows)}
    return {job_id for job_id, _, _ in rows if job_id not in kept}


def reserve_starts(tx: Tx, asks: Sequence[Ask], delays: dict[str, Delay], now: datetime) -> None:
    """Reserve the starts of jobs in all their rates, with one statement; adds the delays of those that start later."""
    asking: dict[RateLimit, list[str]] = defaultdict(list)
    for ask in asks:
        if not holds_reservation(ask.job, now):
            for limit in ask.limits.rates:
                asking[limit].append(ask.job.id)
    now_us = microseconds(now)
    rows = [(limit.key, len(ids) * limit.rate.interval_us) for limit, ids in asking.items()]
    tats = dict(flow_statements.RESERVE_STARTS.run(tx, rows, now_us=now_us))
    starts: dict[str, int] = {}
    for limit, ids in asking.items():
        for job_id, start in zip(ids, start_times(tats[limit.key], limit.rate, len(ids), now_us), strict=True):
            starts[job_id] = max(start, starts.get(job_id, start))
    for job_id, start in starts.items():
        if start > now_us:
            delays[job_id] = Delay(instant_of(start), instant_of(start))


def holds_reservation(job: Job, now: datetime) -> bool:
    """Whether the start that was reserved for a job is now. A job that comes much later, because no worker was free or
    up, reserves again: else all that waited would start at once."""
    return job.reserved_at is not None and now <= job.reserved_at + START_TOLERANCE


def set_aside(tx: Tx, delayed: Sequence[Job], delays: dict[str, Delay], now: datetime) -> None:
    """Return jobs that this worker still owns to the queue; requests to cancel them take effect."""
    rows, state = [], state_after(Move.BACK_OFF)
    for job in delayed:
        delay = delays[job.id]
        key, places = (None, None) if delay.place is None else (delay.place.key, delay.place.places)
        rows.append((job.id, job.fence, state.value, delay.run_at, delay.reserved_at, key, places))
    for job_id, requested_at, reason in flow_statements.SET_ASIDE.run(tx, rows):
        if requested_at is not None:
            withdraw(tx, c.id == job_id, Status.CANCELED, reason, now)
    if rows:
        notify(tx, "later")


def prune_rates(tx: Tx, now: datetime, limit: int) -> int:
    """Delete rows of idle keys, whose TAT has passed: a key without a row is treated alike. Returns their number."""
    idle = select(rate_limits.c.key).where(rate_limits.c.tat_us < microseconds(now)).limit(limit)
    chosen = idle.with_for_update(skip_locked=True).cte("chosen")
    stmt = delete(rate_limits).where(rate_limits.c.key.in_(select(chosen.c.key))).returning(rate_limits.c.key)
    return len(tx.execute(stmt).all())
