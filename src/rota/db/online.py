"""Steps of migrations whose time grows with a table, so that workers continue while they run.

`migrate` on PostgreSQL commits each migration by itself and waits only a short time for a lock. These steps commit what
the migration has done so far, then work without a lock that workers wait for. A migration that uses them can be
interrupted between two statements and is repeated as a whole: its other statements must be idempotent
(`if_not_exists`). On SQLite, in a restore and in a printed script they are statements of the one transaction.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from alembic import op
from sqlalchemy import Column, TextClause, text

from rota.db.dialect import Tx

LIVE = "live"  # key of the attributes of Alembic's configuration: workers use this database
LOCK_TIMEOUT_MS = 400  # workers wait behind a migration that waits for a lock
BATCH_ROWS = 5000
IS_VALID = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


def is_live() -> bool:
    """Return whether this migration runs on a PostgreSQL database that workers use."""
    config = op.get_context().config
    return config is not None and config.attributes.get(LIVE) is True


def limit_lock_waits(tx: Tx, milliseconds: int = LOCK_TIMEOUT_MS) -> None:
    """Let statements of this connection fail if they wait longer for a lock. 0 is no limit. Commits."""
    tx.exec_driver_sql(f"SET lock_timeout = {milliseconds}")
    tx.commit()


def add_column(table: str, column: Column[Any]) -> None:
    """Add a column, unless an interrupted migration has done it. It must be nullable or have a constant default."""
    op.add_column(table, column, if_not_exists=True if is_live() else None)


def create_index(
    name: str, table: str, columns: Sequence[str | TextClause], *, unique: bool = False, where: str | None = None
) -> None:
    """Create an index on a table that may be large. One that an interrupted migration left incomplete is built anew."""
    condition = None if where is None else text(where)
    if not is_live():
        op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
        return
    with autocommit() as tx:
        valid = tx.execute(IS_VALID, {"name": name}).scalar()
        if valid is False:
            op.drop_index(name, table, postgresql_concurrently=True)
        if valid is not True:
            op.create_index(
                name, table, columns, unique=unique, postgresql_where=condition, postgresql_concurrently=True
            )


def execute_in_batches(statement: str, table: str) -> None:
    """Execute a statement for all rows of a table. It has the condition `{batch}`, for ranges of the table's `id`, each
    of which is committed, and must be idempotent."""
    if not is_live():
        op.execute(statement.format(batch="1 = 1"))
        return
    tx = op.get_bind()
    tx.commit()
    last_of_batch = text(f"SELECT max(id) FROM (SELECT id FROM {table} WHERE id > :after ORDER BY id LIMIT :rows) AS b")
    of_batch = text(statement.format(batch=f"{table}.id > :after AND {table}.id <= :last"))
    after = ""
    while (last := tx.execute(last_of_batch, {"after": after, "rows": BATCH_ROWS}).scalar()) is not None:
        tx.execute(of_batch, {"after": after, "last": last})
        tx.commit()
        after = last


@contextmanager
def autocommit() -> Iterator[Tx]:
    """Commit, then run statements outside transactions. They take no lock that workers wait for, so they may wait."""
    tx = op.get_bind()
    tx.commit()
    limit_lock_waits(tx, 0)
    tx.execution_options(isolation_level="AUTOCOMMIT")
    try:
        yield tx
    finally:
        tx.rollback()  # ends SQLAlchemy's transaction; the database has none
        tx.execution_options(isolation_level="READ COMMITTED")
        limit_lock_waits(tx)
