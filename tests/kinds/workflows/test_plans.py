"""Pending events are read in the order of their index, whatever statistics PostgreSQL has of the events.

Connections keep their plans, and after a backlog the statistics are those of a time when most events were pending.
"""

import asyncio

import asyncpg
import pytest

from rota.db.postgres import SERVER_SETTINGS, SINGLE_STATEMENT_SETTINGS
from rota.db.statement import Statement
from rota.kinds.workflows.store.single_statements import COMMIT_AND_BEGIN_NEXT
from rota.kinds.workflows.store.statements import END_OF_HANDLER, PENDING_EVENTS
from tests.postgres import create_database, drop_database

FILL = """
SET session_replication_role = replica;
INSERT INTO events (id, workflow_id, topic, message_id, status, source, attempt, created_at, updated_at)
SELECT 'E' || lpad(n::text, 25, '0'), 'W' || lpad('1', 25, '0'), 'in', n::text,
       CASE WHEN n > {consumed} THEN 'pending' ELSE 'consumed' END, 'api', 1, now(), now()
FROM generate_series(1, 12000) AS n"""
STATES = {
    "empty": (),
    "all pending, without statistics": (FILL.format(consumed=0),),
    "all pending": (FILL.format(consumed=0), "ANALYZE events"),
    "most were pending at the last ANALYZE": (
        FILL.format(consumed=0),
        "ANALYZE events",
        "UPDATE events SET status = 'consumed' WHERE message_id::int < 9000",
    ),
    "most consumed": (FILL.format(consumed=11_900), "ANALYZE events"),
}


@pytest.mark.parametrize("state", STATES)
def test_postgresql_reads_pending_events_by_their_index(postgres_url: str, postgres_template: str, state: str) -> None:
    url = create_database(postgres_url, template=postgres_template)
    try:
        plans = asyncio.run(plans_of(url, STATES[state]))
    finally:
        drop_database(postgres_url, url)
    for plan in plans:
        reads = [line for line in plan.splitlines() if " on events" in line and "Update" not in line]
        by_id = [line for line in reads if "pk_events" in line]
        assert len(reads) > len(by_id), plan
        assert all("ix_events_pending" in line for line in reads if line not in by_id), plan
        for line in by_id:  # of the events that the run takes
            assert "Index Cond: ((id)::text = " in plan.split(line, 1)[1].split("->", 1)[0], plan
        assert "Sort" not in plan, plan


async def plans_of(url: str, steps: tuple[str, ...]) -> list[str]:
    """Return the plans of the statements that read pending events, in the sessions that run them."""
    connection = await asyncpg.connect(url)
    for step in steps:
        await connection.execute(step)
    await connection.close()
    plans = [await plan_of(url, SINGLE_STATEMENT_SETTINGS, COMMIT_AND_BEGIN_NEXT)]
    if steps[1:] or not steps:  # without statistics of a large table, other sessions may sort, until the first ANALYZE
        texts = (COMMIT_AND_BEGIN_NEXT, PENDING_EVENTS, END_OF_HANDLER)
        plans += [await plan_of(url, SERVER_SETTINGS, statement) for statement in texts]
    return plans


async def plan_of(url: str, settings: dict[str, str], statement: Statement) -> str:
    (text,) = statement.text("postgresql")
    connection = await asyncpg.connect(url, server_settings=settings)
    try:
        count = len((await connection.prepare(text)).get_parameters())
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE explained AS {text}")
        lines = await connection.fetch(f"EXPLAIN EXECUTE explained ({', '.join(['NULL'] * count)})")
        return "\n".join(line[0] for line in lines)
    finally:
        await connection.close()
