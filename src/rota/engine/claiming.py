"""Claim ready jobs: by lane, fairly across orgs, within the limits of orgs and queues."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import func, select

from rota.core.fair_shares import Lane, divide_claims, rotate
from rota.core.model import Job
from rota.core.policy import Terms
from rota.core.states import State
from rota.db.dialect import Tx
from rota.db.statement import BoundStatement
from rota.db.tables import jobs, orgs, queues
from rota.engine import statements
from rota.engine.job_states import is_in

LANES_PER_CLAIM = 48


def lanes(
    tx: Tx,
    only_queues: Collection[str] | None = None,
    after: Lane | None = None,
    only_orgs: Collection[str] | None = None,
) -> list[Lane]:
    """Return up to LANES_PER_CLAIM lanes with ready jobs, of all queues and orgs or only of these: those after `after`
    and then those from the beginning, so that each of many lanes gets its turn."""
    later = lanes_after(tx, only_queues, after, only_orgs)
    if after is not None and len(later) < LANES_PER_CLAIM:
        seen = {(lane.org_id, lane.queue) for lane in later}
        first = lanes_after(tx, only_queues, None, only_orgs)
        later += [lane for lane in first if (lane.org_id, lane.queue) not in seen]
    return later[:LANES_PER_CLAIM]


def lanes_after(
    tx: Tx, only_queues: Collection[str] | None, after: Lane | None, only_orgs: Collection[str] | None
) -> list[Lane]:
    rows = statements.LANES.run(
        tx,
        org_id=after.org_id if after else "",
        queue=after.queue if after else "",
        any_queue=only_queues is None,
        queues=list(only_queues or ()),
        any_org=only_orgs is None,
        org_ids=list(only_orgs or ()),
        count=LANES_PER_CLAIM,
    )
    return [
        Lane(org_id, queue, min((limit for limit in (queue_limit, org_limit) if limit is not None), default=None))
        for org_id, queue, queue_limit, org_limit in rows
    ]


def claim(
    tx: Tx,
    ready_lanes: Sequence[Lane],
    *,
    worker: str,
    routes: Collection[str],
    room: int,
    turn: int,
    org_room: Mapping[str, int] = MappingProxyType({}),
) -> list[Job]:
    """Lease up to `room` ready jobs of these lanes to a worker, fairly across orgs, most urgent first in a lane; of an
    org at most its `org_room`. Where no limits have to be counted, `lease_from` is enough."""
    shares = divide_claims(within_limits(tx, ready_lanes, turn), room, turn, org_room)
    return lease_from(shares, worker, routes)(tx)


def claim_sole(lane: Lane, *, worker: str, routes: Collection[str], room: int) -> BoundStatement[list[Job]]:
    """Return the statement that leases up to `room` jobs of a lane, if it has no limit and no other lane has ready
    jobs; else none. Saves reading the lanes first."""
    return lease_from([(lane, room)], worker, routes, sole=True)


def claim_next(tx: Tx, job: Job, worker: str) -> Job | None:
    """Lease the next job with the serial key of a job that ended, without a claim by lane; None if there is none, if it
    has another route or queue, or if limits have to be counted."""
    columns = statements.CLAIM_NEXT.columns(
        tx, worker=worker, serial_key=job.serial_key, route=job.route, org_id=job.org_id, queue=job.queue
    )
    return next(iter(jobs_from(columns)), None)


def lease_from(
    shares: Sequence[tuple[Lane, int]], worker: str, routes: Collection[str], sole: bool = False
) -> BoundStatement[list[Job]]:
    """Return the statement that leases jobs of lanes, each up to its share."""
    batch = list(zip(*((lane.org_id, lane.queue, count) for lane, count in shares), strict=True))
    return statements.CLAIM.bound(by_urgency, batch, worker=worker, routes=list(routes), sole=sole)


def by_urgency(columns: Mapping[str, Sequence[Any]]) -> list[Job]:
    """Return claimed jobs, most urgent first: RETURNING has no order."""
    rows = zip(columns["priority"], jobs_from(columns), strict=True)
    return [job for _, job in sorted(rows, key=lambda row: (-row[0], row[1].run_at, row[1].id))]


def jobs_from(columns: Mapping[str, Sequence[Any]]) -> Iterable[Job]:
    """Return jobs from columns by name."""
    *names, terms = statements.JOB
    assert terms == "terms", "the last field of Job is loaded from JSON"
    return map(Job, *(columns[name] for name in names), map(Terms.load, columns[terms]))


def within_limits(tx: Tx, ready_lanes: Sequence[Lane], turn: int) -> Sequence[Lane]:
    """Return the lanes with the room that their limits leave. Orgs with limits are locked while this counts."""
    limited = sorted({lane.org_id for lane in ready_lanes if lane.cap is not None})
    if not limited:
        return ready_lanes
    c = jobs.c
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
    for lane in rotate(list(ready_lanes), turn):  # what an org has left goes to another of its queues each time
        key = (lane.org_id, lane.queue)
        own = queue_limit.get(key)
        room = [own - running.get(key, 0)] if own is not None else []
        if lane.org_id in left:
            room.append(left[lane.org_id])
        cap = max(0, min(room)) if room else None
        if cap is not None and lane.org_id in left:
            left[lane.org_id] -= cap  # the org's next lane has only what this one leaves
        caps[lane] = cap
    return [replace(lane, cap=caps[lane]) for lane in ready_lanes]
