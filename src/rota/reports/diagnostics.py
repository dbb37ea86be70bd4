"""Measurements of the health of an installation for `rota doctor`."""

import asyncio
import contextlib
from datetime import datetime, timedelta

from sqlalchemy import and_, or_, select
from sqlalchemy import text as sql

from rota.core.clock import stopwatch
from rota.core.states import Condition
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx, notify, on_sqlite, upsert
from rota.db.tables import clocks, counters, orgs, schedules
from rota.db.wake import Wake

OVERDUE_AFTER = timedelta(minutes=2)

s, k = schedules.c, clocks.c


def version(tx: Tx) -> str:
    return str(tx.execute(sql("SELECT sqlite_version()" if on_sqlite(tx) else "SHOW server_version")).scalar_one())


def unplanned(tx: Tx, now: datetime, limit: int = 100) -> list[str]:
    """Return enabled schedules without a planned slot; the reconciler repairs them within five minutes."""
    frozen = and_(orgs.c.frozen_at.is_not(None), or_(orgs.c.frozen_until.is_(None), orgs.c.frozen_until > now))
    unpaused = or_(s.paused_at.is_(None), s.paused_until <= now)
    wanted = and_(s.enabled, s.deleted_at.is_(None), s.condition == Condition.OK, unpaused, ~frozen)
    held = select(k.schedule_id).where(
        k.next_run_at.is_(None)
    )  # few rows: the planners of both databases read them first
    stmt = select(s.name).select_from(schedules.join(orgs, orgs.c.id == s.org_id)).where(s.id.in_(held), wanted)
    return list(tx.execute(stmt.order_by(s.name).limit(limit)).scalars())


def overdue(tx: Tx, now: datetime, limit: int = 100) -> list[str]:
    """Return schedules that are overdue and did not fire."""
    joined = clocks.join(schedules, s.id == k.schedule_id)
    stmt = select(s.name).select_from(joined).where(k.next_run_at < now - OVERDUE_AFTER, s.deleted_at.is_(None))
    return list(tx.execute(stmt.order_by(k.next_run_at).limit(limit)).scalars())


def broken(tx: Tx, limit: int = 100) -> list[str]:
    stmt = select(s.name).where(s.condition == Condition.BROKEN, s.deleted_at.is_(None))
    return list(tx.execute(stmt.order_by(s.name).limit(limit)).scalars())


async def wake_up(db: Database, patience: float = 3.0) -> float | None:
    """Send a notification and wait for it, as two processes would; returns the seconds it took, None if it did not
    arrive."""
    wake, other = Wake(), open_database(db.url)
    listening = asyncio.ensure_future(wake.listen(db))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await wake.changed.wait()  # set when the listener is connected
        heard, start = wake.changed, stopwatch()
        await other.tx(poke)
        try:
            async with asyncio.timeout(patience):
                await heard.wait()
        except TimeoutError:
            return None
        return stopwatch() - start
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await other.close()


def poke(tx: Tx) -> None:
    count(tx, "doctor")
    notify(tx, "doctor")


def write_probe(tx: Tx) -> None:
    """Write a row; raises the error with which the database refuses writes."""
    count(tx, "write probe")


def count(tx: Tx, name: str) -> None:
    stmt = upsert(tx, counters).values(name=name, value=0)
    tx.execute(stmt.on_conflict_do_update(index_elements=["name"], set_={"value": counters.c.value + 1}))
