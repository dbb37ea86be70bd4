"""A rehearsal before the first slot: the whole road of a job, in transactions that are taken back.

Statements are built, compiled and prepared when they are first used, which takes far longer than running them; so the
first slots after a start would be late. One job, a few and a crowd have statements of their own, and each connection
prepares them for itself.
"""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

from rota.core import parse
from rota.core.model import Attempt, Due, Ended, Lease, new_id
from rota.core.plan import plan
from rota.core.states import Status
from rota.engine.engine import Engine
from rota.engine.scheduler import read_view
from rota.store import accounts, jobs, schedules
from rota.store.dialect import CROWD, Tx

ROUTE = "rehearsal"  # nobody announces it
AT_ONCE = 4  # connections: whoever looks, whoever fires, whoever claims, whoever writes down


class TakenBack(Exception):
    """Ends the rehearsal; nothing of it remains."""


async def rehearse(engine: Engine, org: str) -> None:
    org_id = await engine.db.read(accounts.org_by_slug, org)
    if org_id is None:
        return
    for count in (1, 2, CROWD):
        steps = [engine.db.tx(run_through, engine, org_id, count, engine.clock.now()) for _ in range(AT_ONCE)]
        for ended in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, TakenBack):
                raise ended


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
    due = [Due(one, schedules.clock_row(one, began)["next_slot"], 0, None, None) for one in made]
    worker = new_id()
    read_view(tx, [kind], began)
    lease = Lease(worker, [ROUTE], None, 1, now)  # the others are claimed
    fired = schedules.fire(tx, [(one, plan(one, now, timedelta(hours=1))) for one in due], now, lease)
    found = jobs.lanes(tx, [ROUTE])
    for lane in found:
        jobs.claim_sole(tx, lane, worker=worker, routes=[], room=1)
    taken = jobs.claim(tx, found, worker=worker, routes=[ROUTE], room=count, turn=0)
    attempts = [Attempt(job, new_id(), 1, now) for job in [*fired.taken, *taken]]
    jobs.mark_started(tx, attempts)
    jobs.finish(tx, [Ended(one.job, Status.SUCCESS, None, now, one.run_id, 1, now) for one in attempts], None, now)
    raise TakenBack
