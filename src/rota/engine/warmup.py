"""Warm-up before the first slot: runs the statements of a job's whole path, in transactions that are rolled back.

Statements are built, compiled and prepared on first use, which takes far longer than running them, so the first slots
after a start would be late. Batches of one, of a few and of many rows have different statements, and every connection
prepares its own.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rota.core import parse
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, DueSchedule, Lease
from rota.core.plan import plan
from rota.core.states import Status
from rota.db.dialect import CROWD, Tx
from rota.engine import firing, jobs, orgs, schedule_rows, schedules
from rota.engine.commands import Engine
from rota.engine.scheduler import read_due

WARM_UP_ROUTE = "warm-up"  # no worker registers it
WARM_UP_CONNECTIONS = 4  # for polling, firing, claiming and completing at once


class RolledBack(Exception):
    """Ends a warm-up transaction, so that it is rolled back."""

    def __init__(self, ended: Sequence[AttemptResult]) -> None:
        self.ended = ended


async def warm_up(engine: Engine, org: str) -> None:
    """Prepare the statements of firing, claiming and finishing jobs on the connections that use them."""
    org_id = await engine.db.read(orgs.org_by_slug, org)
    if org_id is None:
        return
    connections = min(WARM_UP_CONNECTIONS, engine.db.writers)
    for count in (1, 2, CROWD):
        steps = [engine.db.tx(run_job_path, engine, org_id, count, engine.clock.now()) for _ in range(connections)]
        results: Sequence[AttemptResult] = ()
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if not isinstance(outcome, RolledBack):
                raise (
                    outcome
                    if isinstance(outcome, BaseException)
                    else AssertionError("a warm-up transaction was not rolled back")
                )
            results = outcome.ended
        await asyncio.gather(*(run_statements(engine, org_id, results) for _ in range(min(2, connections))))


async def run_statements(engine: Engine, org_id: str, results: Sequence[AttemptResult]) -> None:
    """Claim and finish outside a transaction, with jobs that do not exist."""
    lane, now = Lane(org_id, WARM_UP_ROUTE, None), engine.clock.now()
    await engine.db.statement(jobs.claim_sole, lane, worker=new_id(), routes=[WARM_UP_ROUTE], room=1)
    await engine.db.statement(jobs.claim, [lane], worker=new_id(), routes=[WARM_UP_ROUTE], room=1, turn=0)
    plain = [replace(result, job=replace(result.job, serial_key=None, schedule_id=None)) for result in results]
    await engine.db.statement(jobs.finish, plain, None, now)


def run_job_path(tx: Tx, engine: Engine, org_id: str, count: int, now: datetime) -> None:
    """Poll, fire schedules, claim their jobs, mark them started, finish them; then raise RolledBack."""
    kind = next(iter(engine.runners))
    began = now - timedelta(minutes=2)
    body = {"kind": kind, "target": WARM_UP_ROUTE, "interval": "1m"}
    new = [
        replace(
            parse.parse_schedule(
                {**body, "name": f"{WARM_UP_ROUTE} {new_id()}"}, org_id=org_id, defaults=engine.defaults, now=began,
                source=WARM_UP_ROUTE, by=None,
            ),
            route=WARM_UP_ROUTE,
            queue=WARM_UP_ROUTE,
        )
        for _ in range(count)
    ]  # fmt: skip
    schedules.insert(tx, new, began)
    due = [
        DueSchedule(schedule, schedule_rows.clock_row(schedule, began)["next_slot"], 0, None, None) for schedule in new
    ]
    worker = new_id()
    read_due(tx, [kind], began)
    lease = Lease(worker, [WARM_UP_ROUTE], None, 1, 0, now)  # the others are claimed
    fired = firing.fire(
        tx, [(due_schedule, plan(due_schedule, now, timedelta(hours=1))) for due_schedule in due], now, lease
    )
    lanes = jobs.lanes(tx, [WARM_UP_ROUTE])
    for lane in lanes:
        jobs.claim_sole(tx, lane, worker=worker, routes=[], room=1)
    claimed = jobs.claim(tx, lanes, worker=worker, routes=[WARM_UP_ROUTE], room=count, turn=0)
    attempts = [Attempt(job, new_id(), 1, now) for job in [*fired.leased_jobs, *claimed]]
    jobs.mark_started(tx, attempts)
    ended = [AttemptResult(schedule.job, Status.SUCCESS, None, now, schedule.run_id, 1, now) for schedule in attempts]
    jobs.finish(tx, ended, None, now)
    raise RolledBack(ended)
