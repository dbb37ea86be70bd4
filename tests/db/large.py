"""A long history of an installation, written by SQL, for tests and figures of commands that handle all rows."""

from sqlalchemy import text

from rota.db.dialect import Tx, on_sqlite

POSTGRESQL = {
    "NUMBERS": "generate_series(1, :count) AS n(i)",
    "DIGITS": "lpad(CAST(i AS text), 24, '0')",
    "AT": "now() - (2000000 - i) * interval '1 second'",
}
SQLITE = {
    "NUMBERS": "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) SELECT i FROM n)",
    "DIGITS": "printf('%024d', i)",
    "AT": "1790000000000000 + i * 1000000",  # microseconds
}
RUNS = """
    INSERT INTO runs (id, job_id, org_id, kind, target, route, input, target_name, trigger, attempt, status, outcome,
                      queued_at, started_at, finished_at, recorded_at, worker, fence)
    SELECT '0R' || DIGITS, '0J' || DIGITS, :org, 'task', 'work', 'task:default:work', :input, 'work',
           'manual', 1, CASE WHEN i % 50 = 0 THEN 'failed' ELSE 'success' END, :outcome, AT, AT, AT, AT, '0W', i
    FROM NUMBERS"""
SCHEDULES = """
    INSERT INTO schedules (id, org_id, name, description, tags, kind, target, route, timing, misfire, catch_up_limit,
                           overlap, priority, queue, enabled, condition, revision, source, created_at, updated_at)
    SELECT '0S' || DIGITS, :org, 'old-' || i, '', '["all","part-' || (i % 100) || '"]', 'task', 'work',
           'task:default:work', '{}', 'skip', 0, 'skip', 0, 'default', false, 'ok', 1, 'api', AT, AT
    FROM NUMBERS"""


def add_runs(tx: Tx, org_id: str, count: int) -> None:
    """Store runs that have ended, one per second, with small inputs and outcomes."""
    values = {"input": '{"day":"2026-05-04"}', "outcome": '{"rows":12345,"file":"daily.csv"}'}
    tx.execute(text(in_dialect(tx, RUNS)), {"org": org_id, "count": count, **values})


def add_schedules(tx: Tx, org_id: str, count: int) -> None:
    """Store disabled schedules with two tags each. They have no due time, and cannot be enabled."""
    tx.execute(text(in_dialect(tx, SCHEDULES)), {"org": org_id, "count": count})


def in_dialect(tx: Tx, statement: str) -> str:
    for word, expression in (SQLITE if on_sqlite(tx) else POSTGRESQL).items():
        statement = statement.replace(word, expression)
    return statement
