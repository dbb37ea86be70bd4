"""Wanted workers per queue, for autoscalers. The effort is bounded: at most LANES_READ lanes, of each at most
JOBS_COUNTED due jobs, and the durations of at most SCHEDULES_READ schedules and RUNS_READ runs of each org."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from sqlalchemy import and_, func, select

from rota.core.autoscaling import DueJobs, LaneLoad, places_by_queue, workers_for
from rota.core.fair_shares import Lane
from rota.core.flow import parse_rate
from rota.core.kinds import registered
from rota.core.states import State, Status, WorkerState
from rota.db.dialect import Query, Tx
from rota.db.paging import Record
from rota.db.tables import clocks, jobs, orgs, queues, runs, schedules, workers
from rota.engine.claiming import LANES_PER_CLAIM, lanes_after
from rota.engine.job_states import is_in
from rota.engine.orgs import slug_of
from rota.engine.workers import is_worker

WITHIN_SECONDS = 60  # in which due jobs should be done
AHEAD_SECONDS = 60  # what becomes due within it counts as due: a new worker takes as long to start
LANES_READ = 2 * LANES_PER_CLAIM
JOBS_COUNTED = 50_000  # of a lane
JOBS_SAMPLED = 1000  # of a lane, whose targets stand for all of its due jobs
UPCOMING_READ = 10_000  # jobs, and schedules of each kind, that become due
LIMITS_READ = 1000  # queues with limits
SCHEDULES_READ = 50  # whose usual duration is read from their own runs
SCHEDULE_RUNS = 20
RUNS_READ = 200  # of an org; the usual durations of other targets
ANY_SCHEDULE = "*"

j, k, s, r = jobs.c, clocks.c, schedules.c, runs.c

Target = tuple[str | None, str, str]  # schedule, kind and target of a job
LaneKey = tuple[str, str]  # org and queue


@dataclass(frozen=True, slots=True)
class Demand:
    """What is due in the lanes of an installation or of an org. `capped`: more is due than was counted."""

    lanes: Sequence[LaneLoad]
    org_limits: Mapping[str, int]
    workers: Sequence[tuple[int, Sequence[str] | None]]  # concurrency and queues of those that are alive
    capped: bool

    def places(self, within: timedelta) -> dict[str, float]:
        return places_by_queue(self.lanes, within, self.org_limits)

    def concurrency_for(self, served: Collection[str] | None, default: int) -> int:
        """Return the smallest concurrency of the workers that are alive and serve one of the queues, else `default`."""
        fits = [
            concurrency
            for concurrency, own in self.workers
            if own is None or served is None or not set(own).isdisjoint(served)
        ]
        return min(fits, default=default)


def org_seen_by(tx: Tx, org_id: str) -> str | None:
    """Return the org whose jobs callers of an org see; None (all) for org `default`, which runs the installation."""
    return None if slug_of(tx, org_id) == "default" else org_id


def wanted_workers(
    demand: Demand, default_concurrency: int, *, queue_names: Collection[str] | None = None,
    concurrency: int | None = None, within: timedelta = timedelta(seconds=WITHIN_SECONDS),
) -> Record:  # fmt: skip
    """Return the wanted workers of each queue, and of workers that serve all of these queues together."""
    places, loads = demand.places(within), defaultdict(list)
    for lane in demand.lanes:
        loads[lane.queue].append(lane)
    names = sorted(places) if queue_names is None else sorted(set(queue_names))

    def record(name: str) -> Record:
        own = concurrency or demand.concurrency_for([name], default_concurrency)
        needed = places.get(name, 0.0)
        return {
            "queue": name,
            "due": round(sum(lane.due_count for lane in loads[name])),
            "running": sum(lane.running for lane in loads[name]),
            "places": round(needed, 3),
            "concurrency": own,
            "wanted_workers": workers_for(needed, own),
        }

    together = concurrency or demand.concurrency_for(queue_names, default_concurrency)
    total = sum(places.get(name, 0.0) for name in names)
    return {
        "wanted_workers": workers_for(total, together),
        "places": round(total, 3),
        "concurrency": together,
        "capped": demand.capped,
        "queues": [record(name) for name in names],
    }


def demand(
    tx: Tx,
    kinds: Collection[str],
    now: datetime,
    org_id: str | None = None,
    ahead: timedelta = timedelta(seconds=AHEAD_SECONDS),
) -> Demand:
    """Read what is due until `ahead` from now, of one org or of all. `kinds` are those that have schedules."""
    elsewhere = [kind for kind, traits in registered().items() if traits.orders_hosts or traits.in_servers]
    ready: dict[LaneKey, Counter[Target]] = {}
    jobs_per_sample: dict[LaneKey, float] = {}
    lanes, capped = ready_lanes(tx, org_id)
    for lane in lanes:
        counted, sample = count_ready(tx, lane, elsewhere)
        capped |= counted > JOBS_COUNTED
        if sample:
            ready[lane.org_id, lane.queue] = sample
            jobs_per_sample[lane.org_id, lane.queue] = min(counted, JOBS_COUNTED) / sample.total()
    upcoming: dict[LaneKey, Counter[Target]] = {}
    for row in tx.execute(upcoming_jobs(now + ahead, org_id, elsewhere)):
        upcoming.setdefault((row.org_id, row.queue), Counter())[row.schedule_id, row.kind, row.target] += row.n
    for kind in sorted(set(kinds) - set(elsewhere)):
        for row in tx.execute(upcoming_slots(kind, now + ahead, org_id)):
            upcoming.setdefault((row.org_id, row.queue), Counter())[row.schedule_id, kind, row.target] += row.n
    running = {(row.org_id, row.queue): row.n for row in tx.execute(running_jobs(org_id, elsewhere))}
    usual = usual_seconds(tx, [*ready.items(), *upcoming.items()])
    limits = {(row.org_id, row.name): row for row in tx.execute(limits_of_queues(org_id))}

    def load(key: LaneKey) -> LaneLoad:
        due = [
            DueJobs(number * factor, usual[key[0], target])
            for targets, factor in ((ready.get(key), jobs_per_sample.get(key, 1.0)), (upcoming.get(key), 1.0))
            for target, number in (targets or {}).items()
        ]
        limit = limits.get(key)
        if limit is None:
            return LaneLoad(*key, running.get(key, 0), due)
        rate = None if limit.rate is None else parse_rate(limit.rate, burst=limit.burst or 1)
        return LaneLoad(*key, running.get(key, 0), due, limit.max_running, rate, limit.paused_at is not None)

    loads = [load(key) for key in sorted({*ready, *upcoming, *running})]
    limited = select(orgs.c.id, orgs.c.max_running).where(orgs.c.max_running.is_not(None))
    org_limits = {row.id: row.max_running for row in tx.execute(limited.limit(LIMITS_READ))}
    return Demand(loads, org_limits, alive_workers(tx, now), capped)


def ready_lanes(tx: Tx, org_id: str | None) -> tuple[list[Lane], bool]:
    """Return lanes that have ready jobs and are not paused, and whether there are more than are read."""
    lanes: list[Lane] = []
    only = None if org_id is None else [org_id]
    while len(lanes) < LANES_READ:
        step = lanes_after(tx, None, lanes[-1] if lanes else None, only)
        lanes += step
        if len(step) < LANES_PER_CLAIM:
            return lanes, False
    return lanes, True


def count_ready(tx: Tx, lane: Lane, elsewhere: Sequence[str]) -> tuple[int, Counter[Target]]:
    """Return how many jobs of a lane are ready, counted up to a bound, and the targets of the most urgent ones."""
    ready = and_(is_in(j.state, [State.READY]), j.org_id == lane.org_id, j.queue == lane.queue)
    ready = and_(ready, j.kind.not_in(elsewhere)) if elsewhere else ready
    counted = select(func.count()).select_from(select(j.id).where(ready).limit(JOBS_COUNTED + 1).subquery())
    number = tx.execute(counted).scalar_one()
    urgent = (j.priority.desc(), j.run_at, j.id)
    sample = select(j.schedule_id, j.kind, j.target).where(ready).order_by(*urgent).limit(JOBS_SAMPLED)
    return number, Counter((row.schedule_id, row.kind, row.target) for row in tx.execute(sample))


def upcoming_jobs(until: datetime, org_id: str | None, elsewhere: Sequence[str]) -> Query:
    due = select(j.org_id, j.queue, j.schedule_id, j.kind, j.target).where(
        is_in(j.state, [State.LATER, State.RETRY, State.WAITING]), j.run_at <= until
    )
    if org_id is not None:
        due = due.where(j.org_id == org_id)
    first = due.where(j.kind.not_in(elsewhere)).order_by(j.run_at).limit(UPCOMING_READ).subquery().c
    key = (first.org_id, first.queue, first.schedule_id, first.kind, first.target)
    return select(*key, func.count().label("n")).group_by(*key)


def upcoming_slots(kind: str, until: datetime, org_id: str | None) -> Query:
    """Schedules that are due: no worker has fired them yet."""
    due = select(k.org_id, k.schedule_id).where(k.kind == kind, k.next_run_at <= until)
    due = due if org_id is None else due.where(k.org_id == org_id)
    first = due.order_by(k.next_run_at).limit(UPCOMING_READ).subquery()
    key = (first.c.org_id, s.queue, first.c.schedule_id, s.target)
    stmt = select(*key, func.count().label("n")).select_from(first.join(schedules, s.id == first.c.schedule_id))
    return stmt.group_by(*key)


def running_jobs(org_id: str | None, elsewhere: Sequence[str]) -> Query:
    """Running jobs are as many as all workers have places."""
    stmt = select(j.org_id, j.queue, func.count().label("n")).where(is_in(j.state, [State.RUNNING]))
    stmt = stmt.where(j.kind.not_in(elsewhere)).group_by(j.org_id, j.queue)
    return stmt if org_id is None else stmt.where(j.org_id == org_id)


def limits_of_queues(org_id: str | None) -> Query:
    q = queues.c
    stmt = select(q.org_id, q.name, q.max_running, q.paused_at, q.rate, q.burst)
    return (stmt if org_id is None else stmt.where(q.org_id == org_id)).limit(LIMITS_READ)


def alive_workers(tx: Tx, now: datetime) -> list[tuple[int, Sequence[str] | None]]:
    w = workers.c
    alive = and_(w.state == WorkerState.ALIVE, w.lease_until >= now, w.host_id.is_(None))
    rows = tx.execute(select(w.concurrency, w.queues, w.kinds).where(alive))
    return [(row.concurrency, row.queues) for row in rows if is_worker(row.kinds)]


def usual_seconds(tx: Tx, targets: Iterable[tuple[LaneKey, Counter[Target]]]) -> dict[tuple[str, Target], float | None]:
    """Return the median duration of the last successes of each target, None for those without any. Those with most due
    jobs come first: the number of schedules that are looked up is bounded."""
    by_target: Counter[tuple[str, Target]] = Counter()
    for (org_id, _), counter in targets:
        for target, number in counter.items():
            by_target[org_id, target] += number
    of_orgs = {org_id: usual_of_org(tx, org_id) for org_id in {org_id for org_id, _ in by_target}}
    usual: dict[tuple[str, Target], float | None] = {}
    read = 0
    for (org_id, target), _ in by_target.most_common():
        schedule_id, kind, name = target
        seconds = None
        if schedule_id is not None and read < SCHEDULES_READ:
            read += 1
            seconds = usual_of_schedule(tx, schedule_id)
        of_org = of_orgs[org_id]
        alike = of_org.get(target, of_org.get((ANY_SCHEDULE, kind, name)))
        usual[org_id, target] = alike if seconds is None else seconds
    return usual


def usual_of_schedule(tx: Tx, schedule_id: str) -> float | None:
    newest = select(r.started_at, r.finished_at, r.status).where(r.schedule_id == schedule_id)
    rows = tx.execute(newest.order_by(r.recorded_at.desc(), r.id.desc()).limit(SCHEDULE_RUNS)).all()
    spans = [row.finished_at - row.started_at for row in rows if row.status == Status.SUCCESS and row.started_at]
    return median(span.total_seconds() for span in spans) if spans else None


def usual_of_org(tx: Tx, org_id: str) -> dict[Target, float]:
    """Return the median durations of an org's last runs, of each schedule and target and, under ANY_SCHEDULE, of each
    target."""
    columns = (r.schedule_id, r.kind, r.target, r.started_at, r.finished_at, r.status)
    newest = select(*columns).where(r.org_id == org_id).order_by(r.recorded_at.desc(), r.id.desc())
    spans: dict[Target, list[float]] = defaultdict(list)
    for row in tx.execute(newest.limit(RUNS_READ)):
        if row.status == Status.SUCCESS and row.started_at is not None:
            seconds = (row.finished_at - row.started_at).total_seconds()
            for schedule_id in (row.schedule_id, ANY_SCHEDULE):
                spans[schedule_id, row.kind, row.target].append(seconds)
    return {target: median(seconds) for target, seconds in spans.items()}
