"""Warm-up before the first slot: runs the statements of a job's whole path, in transactions that are rolled back.

Statements are compiled and prepared on first use, on each connection, which takes far longer than running them: the
first slots after a start would be late.
"""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

from rota.core import schedule_form
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, DueSchedule, LeaseOffer, NewJob
from rota.core.plan import plan
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.engine import claiming, finishing, firing, jobs, orgs, schedule_rows, schedules
from rota.engine.commands import Engine
from rota.engine.scheduler import read_due

WARM_UP_ROUTE = "warm-up"  # no worker registers it
WARM_UP_CONNECTIONS = 4  # for polling, firing, claiming and completing at once


class RolledBack(Exception):
    """Ends a warm-up transaction, so that it is rolled back."""


async def warm_up(engine: Engine, org: str) -> None:
    """Prepare the statements of firing, claiming and finishing jobs on the connections that use them."""
    org_id = await engine.db.read(orgs.org_by_slug, org)
    if org_id is None:
        return
    connections = min(WARM_UP_CONNECTIONS, engine.db.writers)
    steps = [engine.db.tx(run_job_path, engine, org_id, engine.clock.now()) for _ in range(connections)]
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, RolledBack):
            raise outcome
    await asyncio.gather(*(run_single_statements(engine, org_id) for _ in range(min(2, connections))))


async def run_single_statements(engine: Engine, org_id: str) -> None:
    """Claim, mark as started and finish outside a transaction, where there is nothing to claim or finish."""
    lane, now, worker = Lane(org_id, WARM_UP_ROUTE, None), engine.clock.now(), new_id()
    await engine.db.statement(claiming.claim_sole(lane, worker=worker, routes=[WARM_UP_ROUTE], room=1))
    new = NewJob(org_id, WARM_UP_ROUTE, WARM_UP_ROUTE, None, now, WARM_UP_ROUTE)
    attempt = Attempt(jobs.leased_job(new, now, 0), new_id(), 1, now)
    await engine.db.statement(finishing.mark_started_statement([attempt]))
    ended = AttemptResult(attempt.job, Status.SUCCESS, None, now, attempt.run_id, 1, now)
    await engine.db.statement(finishing.finish_plain([ended], worker, now))


def run_job_path(tx: Tx, engine: Engine, org_id: str, now: datetime) -> None:
    """Poll, fire two schedules, claim their jobs, mark them started, finish them; then raise RolledBack."""
    kind = next(iter(engine.runners))
    began = now - timedelta(minutes=2)
    body = {"kind": kind, "target": WARM_UP_ROUTE, "interval": "1m"}
    new = [
        replace(
            schedule_form.parse_schedule(
                {**body, "name": f"{WARM_UP_ROUTE} {new_id()}"},
                org_id=org_id,
                defaults=engine.defaults,
                now=began,
                source=WARM_UP_ROUTE,
                by=None,
            ),
            route=WARM_UP_ROUTE,
            queue=WARM_UP_ROUTE,
        )
        for _ in range(2)
    ]
    schedules.insert(tx, new, began)
    due = [
        DueSchedule(schedule, schedule_rows.clock_row(schedule, began)["next_slot"], 0, None, None) for schedule in new
    ]
    worker = new_id()
    read_due(tx, [kind], began)
    lease = LeaseOffer(worker, [WARM_UP_ROUTE], None, 1, 0, now)  # the other job is claimed
    planned = [(due_schedule, plan(due_schedule, now, timedelta(hours=1))) for due_schedule in due]
    fired = firing.fire(tx, planned, now, lease)
    lanes = claiming.lanes(tx, [WARM_UP_ROUTE])
    claimed = claiming.claim(tx, lanes, worker=worker, routes=[WARM_UP_ROUTE], room=1, turn=0)
    attempts = [Attempt(job, new_id(), 1, now) for job in [*fired.leased_jobs, *claimed]]
    finishing.mark_started(tx, attempts)
    ended = [AttemptResult(attempt.job, Status.SUCCESS, None, now, attempt.run_id, 1, now) for attempt in attempts]
    finishing.finish(tx, ended, None, now)
    raise RolledBack
