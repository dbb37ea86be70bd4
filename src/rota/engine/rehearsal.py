"""A rehearsal before the first slot: the whole road of a job once, in a transaction that is taken back.

Statements are built, compiled and prepared when they are first used, which takes far longer than running them; so the
first slot after a start would be late.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from rota.core import parse
from rota.core.model import Attempt, Due, Ended, new_id
from rota.core.plan import plan
from rota.core.states import Status
from rota.engine.engine import Engine
from rota.store import accounts, jobs, schedules
from rota.store.dialect import Tx

ROUTE = "rehearsal"  # nobody announces it


class TakenBack(Exception):
    """Ends the rehearsal; nothing of it remains."""


async def rehearse(engine: Engine, org: str) -> None:
    org_id = await engine.db.read(accounts.org_by_slug, org)
    if org_id is None:
        return
    try:
        await engine.db.tx(run_through, engine, org_id, engine.clock.now())
    except TakenBack:
        return


def run_through(tx: Tx, engine: Engine, org_id: str, now: datetime) -> None:
    """Fire a schedule, claim its job, mark it, finish it."""
    kind = next(iter(engine.runners))
    body = {"name": f"{ROUTE} {new_id()}", "kind": kind, "target": ROUTE, "interval": "1m"}
    made = parse.parse_schedule(
        body, org_id=org_id, defaults=engine.defaults, now=now - timedelta(minutes=2), source=ROUTE, by=None
    )
    made = replace(made, route=ROUTE, queue=ROUTE)
    schedules.insert(tx, [made], made.created_at)
    due = Due(made, schedules.clock_row(made, made.created_at)["next_slot"], 0, None, None)
    schedules.fire(tx, [(due, plan(due, now, timedelta(hours=1)))], now)
    found = jobs.lanes(tx, [ROUTE])
    for job in jobs.claim(tx, found, worker=new_id(), routes=[ROUTE], room=1, turn=0):
        attempt = Attempt(job, new_id(), 1, now)
        jobs.mark_started(tx, [attempt])
        jobs.finish(tx, [Ended(job, Status.SUCCESS, None, now, attempt.run_id, 1, now)], None, now)
    raise TakenBack
