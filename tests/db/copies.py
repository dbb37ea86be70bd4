"""Databases with a row of every kind, for tests that copy them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, select

from rota.db import rows
from rota.db.blocking import reading, run_blocking, writing
from rota.db.dialect import Tx, draw_fence
from rota.db.rows import Progress
from rota.db.schema import revisions
from rota.db.tables import logs, metadata, slots
from tests.db.test_migrations import insert_row, value_of

TEXT = "naïve text\n\t\"'\\ 中 \x7f"


CHECKED = {"catch_ups": {"status": "open"}}  # values of a row with few, which a constraint ties together


@contextmanager
def no_bar(_: int) -> Iterator[Progress]:
    yield lambda _: None


def fill(url: str, lines: int = 5) -> None:
    """Store a row with all values and one with few in every table, many log lines, and some fences."""

    def step(tx: Tx) -> None:
        for table in metadata.sorted_tables:
            if table.name not in ("counters", "logs"):
                whole = {column.name: value_of(column, 1) for column in table.columns}
                insert_row(tx, table, 1, **whole)
                insert_row(tx, table, 2, **CHECKED.get(table.name, {}))
        at = datetime(2026, 5, 4, 9, 0, 0, 123456, tzinfo=UTC)
        entries = [{"run_id": f"{n % 3}id", "at": at, "stream": "stdout", "text": f"{n} {TEXT}"} for n in range(lines)]
        tx.execute(insert(logs), entries)
        tx.execute(
            insert(slots), [{"schedule_id": name, "slot": at, "attempts": 0} for name in ("a-b", "B_a", "Ab", "é", "ä")]
        )
        for _ in range(7):
            draw_fence(tx)

    in_transaction(url, step)


def in_transaction(url: str, step: Any) -> Any:
    def run() -> Any:
        with writing(url) as tx:
            return step(tx)

    return run_blocking(run)


def sums(url: str) -> dict[str, tuple[int, str]]:
    """Return number and hash of the rows of every table."""

    def run() -> dict[str, tuple[int, str]]:
        with reading(url) as tx:
            tables = rows.tables_of(tx, revisions()[-1])
            results = {table.name: rows.sum_of(tx, table, lambda _: None) for table in tables}
        return {name: (result.rows, result.hash) for name, result in results.items()}

    return run_blocking(run)


def next_log_line(url: str) -> int:
    """Store a log line; returns its number."""

    def step(tx: Tx) -> int:
        at = datetime(2026, 5, 4, tzinfo=UTC)
        tx.execute(insert(logs).values(run_id="new", at=at, stream="stdout", text=""))
        return int(tx.execute(select(func.max(logs.c.id))).scalar_one())

    return int(in_transaction(url, step))
