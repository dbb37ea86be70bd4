"""Versions of code: a durable run goes on under the version that began it, while a live worker has that version.

The route of a job with recorded steps names the version: `task:ORG:NAME/@VERSION`. Workers that have it serve this
route besides the one without a version. When a worker registers, stops or dies, `apply_rules` decides about jobs whose
version no live worker has any more, while one has another version: each goes on, begins again or is parked, as its
target declares.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, literal_column, or_, select, update

from rota.core.ids import new_id
from rota.core.model import AttemptResult
from rota.core.states import Move, State, Status, state_after, states_before
from rota.core.steps import OnNewVersion, StepType
from rota.db.dialect import ResultRow, Tx, is_listed, lock_keys, notify
from rota.db.tables import PINNED, jobs, signals, steps, workers
from rota.engine import runs
from rota.engine.job_states import is_in
from rota.engine.jobs import JOB_COLUMNS, UNROUTABLE, VERSION, job_of
from rota.engine.workers import live_routes

MARK = "/@"  # no name of a task has a slash
UNSAFE_TO_REPEAT = (StepType.EFFECT, StepType.CHILD)  # a second run would do again what they did outside the job
RESTART_BATCH_JOBS = 500

c, s = jobs.c, steps.c
IS_PINNED: ColumnElement[bool] = literal_column(PINNED)
UNDECIDED = states_before(Move.STRAND)
NO_WORKER = (VERSION, UNROUTABLE)  # reasons of parked jobs

RuleOf = Callable[[Tx, str, str, str], OnNewVersion]  # the rule of a target, by kind, org and target


def pinned(route: str, version: str) -> str:
    """Return the route of jobs that go on under a version."""
    return f"{base_of(route)}{MARK}{version}"


def base_of(route: str) -> str:
    """Return a route without its version."""
    return route.partition(MARK)[0]


def version_of(route: str) -> str | None:
    """Return the version that a route names."""
    return route.partition(MARK)[2] or None


def pin_rescued(tx: Tx, worker: str, rescued: Sequence[ResultRow]) -> None:
    """Pin jobs of a dead worker that have recorded steps to the version that this worker had."""
    served = tx.execute(select(workers.c.routes).where(workers.c.id == worker)).scalar() or []
    versions = {base_of(route): route for route in served if MARK in route}
    by_route: dict[str, list[str]] = {}
    for row in rescued:
        if row.route in versions:
            by_route.setdefault(row.route, []).append(row.id)
    for route, job_ids in by_route.items():
        begun = exists().where(s.job_id == c.id)
        tx.execute(update(jobs).where(is_listed(tx, c.id, job_ids), begun).values(route=versions[route]))


def apply_rules(tx: Tx, rule_of: RuleOf, now: datetime) -> int:
    """Decide about jobs whose version no live worker has, while a live worker has another version; returns their
    number. Registrations that change at the same time wait for each other here: one of them sees both changes."""
    lock_keys(tx, ["code versions"])
    waiting = or_(is_in(c.state, UNDECIDED), is_in(c.state, [State.PARKED]))
    pins = list(tx.execute(select(c.route, c.kind, c.org_id, c.target).distinct().where(IS_PINNED, waiting)))
    live = live_routes(tx, now) if pins else set()
    decided = 0
    for pin in pins:
        if pin.route in live or base_of(pin.route) not in live:
            continue
        of_pin = and_(IS_PINNED, c.route == pin.route, c.org_id == pin.org_id, c.target == pin.target)
        match rule_of(tx, pin.kind, pin.org_id, pin.target):
            case OnNewVersion.CONTINUE:
                decided += go_on(tx, of_pin, base_of(pin.route), now)
            case OnNewVersion.RESTART:
                decided += restart(tx, of_pin, now)
            case OnNewVersion.PARK:
                decided += park(tx, of_pin, now)
    if decided:
        notify(tx, "ready")
    return decided


def go_on(tx: Tx, of_pin: ColumnElement[bool], base: str, now: datetime) -> int:
    """Let jobs go on under any version; those that no worker could run become ready."""
    parked = and_(of_pin, is_in(c.state, states_before(Move.RESUME)))
    unrunnable = and_(parked, c.parked_reason.in_(NO_WORKER))
    ready = {"state": state_after(Move.RESUME), "parked_reason": None, "run_at": now, "route": base}
    resumed: int = tx.execute(update(jobs).where(unrunnable).values(ready)).rowcount
    rest = or_(parked, and_(of_pin, is_in(c.state, UNDECIDED)))
    return resumed + tx.execute(update(jobs).where(rest).values(route=base)).rowcount


def park(tx: Tx, of_pin: ColumnElement[bool], now: datetime) -> int:
    """Park jobs until a worker has their version or an operator lets them go on. A suspended run stays suspended."""
    unroutable = and_(of_pin, is_in(c.state, [State.PARKED]), c.parked_reason == UNROUTABLE)
    tx.execute(update(jobs).where(unroutable).values(parked_reason=VERSION))
    stranded = and_(of_pin, is_in(c.state, states_before(Move.STRAND)))
    values = {"state": state_after(Move.STRAND), "parked_reason": VERSION, "place_key": None, "run_at": now}
    return tx.execute(update(jobs).where(stranded).values(values)).rowcount


def restart(tx: Tx, of_pin: ColumnElement[bool], now: datetime) -> int:
    """Let jobs begin again, without what they recorded. Those that tried an effect or enqueued a child are parked."""
    unsafe = exists().where(s.job_id == c.id, s.type.in_([step_type.value for step_type in UNSAFE_TO_REPEAT]))
    decided = park(tx, and_(of_pin, unsafe), now)
    idle = or_(is_in(c.state, UNDECIDED), and_(is_in(c.state, [State.PARKED]), c.parked_reason.in_(NO_WORKER)))
    safe = select(*JOB_COLUMNS, c.state).where(of_pin, idle, ~unsafe).order_by(c.id).limit(RESTART_BATCH_JOBS)
    while rows := list(tx.execute(safe.with_for_update())):
        suspended = [suspended_run(row, now) for row in rows if row.waiting is not None]
        runs.append(tx, suspended, None, now)
        job_ids = [row.id for row in rows]
        of_jobs = is_listed(tx, c.id, job_ids)
        tx.execute(delete(steps).where(is_listed(tx, s.job_id, job_ids)))
        sent = and_(signals.c.org_id == rows[0].org_id, is_listed(tx, signals.c.consumed_by_job, job_ids))
        tx.execute(update(signals).where(sent).values(consumed_by_job=None, consumed_at=None))
        for result in suspended:
            begun = {"attempt": result.number, "last_run_id": result.run_id}
            tx.execute(update(jobs).where(c.id == result.job.id).values(begun))
        cleared = {"waiting": None, "run_id": None, "started_at": None, "route": base_of(rows[0].route)}
        tx.execute(update(jobs).where(of_jobs).values(cleared))
        wakes = and_(of_jobs, is_in(c.state, states_before(Move.WAKE)))
        tx.execute(update(jobs).where(wakes).values(state=state_after(Move.WAKE), run_at=now, parked_reason=None))
        resumes = and_(of_jobs, is_in(c.state, states_before(Move.RESUME)))
        tx.execute(update(jobs).where(resumes).values(state=state_after(Move.RESUME), run_at=now, parked_reason=None))
        decided += len(rows)
    return decided


def suspended_run(row: ResultRow, now: datetime) -> AttemptResult:
    """Return how a suspended run ended that begins again under another version."""
    job = job_of(row)
    assert job.waiting is not None
    started_at = datetime.fromisoformat(job.waiting["started_at"])
    run_id = job.waiting["run_id"] or new_id()
    return AttemptResult(job, Status.PAUSED, VERSION, now, run_id, job.attempt + 1, started_at, move=Move.WAKE)


def unpin(tx: Tx, job_id: str) -> None:
    """Let a job go on under any version, as an operator asked."""
    route = tx.execute(select(c.route).where(c.id == job_id, IS_PINNED)).scalar()
    if route is not None:
        tx.execute(update(jobs).where(c.id == job_id).values(route=base_of(route)))


def live_versions(live: Collection[str], route: str) -> list[str]:
    """Return the versions of a route's target that live workers have."""
    base = base_of(route)
    return sorted(version for other in live if base_of(other) == base and (version := version_of(other)) is not None)
