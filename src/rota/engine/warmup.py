"""A rehearsal before the first slot: the whole road of a job, in transactions that are taken back.

Statements are built, compiled and prepared when they are first used, which takes far longer than running them; so the
first slots after a start would be late. One job, a few and a crowd have statements of their own, and each connection
prepares them for itself.
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

ROUTE = "rehearsal"  # nobody announces it
AT_ONCE = 4  # connections: whoever looks, whoever fires, whoever claims, whoever writes down


class TakenBack(Exception):
    """Ends the rehearsal; nothing of it remains."""

    def __init__(self, ended: Sequence[AttemptResult]) -> None:
        self.ended = ended


async def warm_up(engine: Engine, org: str) -> None:
    org_id = await engine.db.read(orgs.org_by_slug, org)
    if org_id is None:
        return
    abreast = min(AT_ONCE, engine.db.writers)
    for count in (1, 2, CROWD):
        steps = [engine.db.tx(run_through, engine, org_id, count, engine.clock.now()) for _ in range(abreast)]
        over: Sequence[AttemptResult] = ()
        for told in await asyncio.gather(*steps, return_exceptions=True):
            if not isinstance(told, TakenBack):
                raise told if isinstance(told, BaseException) else AssertionError("a rehearsal went on")
            over = told.ended
        await asyncio.gather(*(go_straight(engine, org_id, over) for _ in range(min(2, abreast))))


async def go_straight(engine: Engine, org_id: str, over: Sequence[AttemptResult]) -> None:
    """What claims and finishes outside any transaction, about jobs that do not exist."""
    lane, now = Lane(org_id, ROUTE, None), engine.clock.now()
    await engine.db.statement(jobs.claim_sole, lane, worker=new_id(), routes=[ROUTE], room=1)
    await engine.db.statement(jobs.claim, [lane], worker=new_id(), routes=[ROUTE], room=1, turn=0)
    plain = [replace(one, job=replace(one.job, serial_key=None, schedule_id=None)) for one in over]
    await engine.db.statement(jobs.finish, plain, None, now)


def run_through(tx: Tx, engine: Engine, org_id: str, count: int, now: datetime) -> None:
    """Look, fire schedules, claim their jobs, mark them, finish them."""
    kind = next(iter(engine.runners))
    began = now - timedelta(minutes=2)
    body = {"kind": kind, "target": ROUTE, "interval": "1m"}
    made = [
        replace(
            parse.parse_schedule(
                {**body, "name": f"{ROUTE} {new_id()}"}, org_id=org_id, defaults=engine.defaults, now=began,
                source=ROUTE, by=None,
            ),
            route=ROUTE,
            queue=ROUTE,
        )
        for _ in range(count)
    ]  # fmt: skip
    schedules.insert(tx, made, began)
    due = [DueSchedule(one, schedule_rows.clock_row(one, began)["next_slot"], 0, None, None) for one in made]
    worker = new_id()
    read_due(tx, [kind], began)
    lease = Lease(worker, [ROUTE], None, 1, 0, now)  # the others are claimed
    fired = firing.fire(tx, [(one, plan(one, now, timedelta(hours=1))) for one in due], now, lease)
    found = jobs.lanes(tx, [ROUTE])
    for lane in found:
        jobs.claim_sole(tx, lane, worker=worker, routes=[], room=1)
    taken = jobs.claim(tx, found, worker=worker, routes=[ROUTE], room=count, turn=0)
    attempts = [Attempt(job, new_id(), 1, now) for job in [*fired.leased_jobs, *taken]]
    jobs.mark_started(tx, attempts)
    ended = [AttemptResult(one.job, Status.SUCCESS, None, now, one.run_id, 1, now) for one in attempts]
    jobs.finish(tx, ended, None, now)
    raise TakenBack(ended)
