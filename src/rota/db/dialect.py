"""What differs between SQLite and PostgreSQL, each with its reason. Other modules do not ask which database it is."""

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Float,
    Integer,
    Row,
    Select,
    Table,
    Text,
    any_,
    cast,
    func,
    literal,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects import postgresql, sqlite

from rota.db.column_types import EPOCH

Tx = Connection
ResultRow = Row[*tuple[object, ...]]  # read by column name
Query = Select[*tuple[object, ...]]

CHANNEL = "rota"
NOTIFIED_TOPICS = "notified_topics"  # key of `Tx.info`: the topics that a transaction on SQLite notifies
LOCK_KEYS = """
    SELECT count(pg_advisory_xact_lock(k))
    FROM (SELECT DISTINCT hashtextextended(key, 0) AS k FROM unnest($1::text[]) AS key ORDER BY k) AS ordered"""
NUMBERED_PARAMETER = re.compile(r"\$(\d+)")
SQLITE_FENCE = "UPDATE counters SET value = value + 1 WHERE name = 'fences' RETURNING value"


def on_sqlite(tx: Tx) -> bool:
    return tx.dialect.name == "sqlite"


def run_postgresql_text(tx: Tx, text: str, values: Sequence[object] = ()) -> CursorResult[Any]:
    """Run a text with the parameters `$1`, `$2`… . Only asyncpg, Rota's own driver, numbers them so: on a caller's
    connection of another driver they become `%(p1)s`."""
    if tx.dialect.paramstyle == "pyformat":
        named = {f"p{number}": value for number, value in enumerate(values, 1)}
        return tx.exec_driver_sql(pyformat_text(text), named)
    return tx.exec_driver_sql(text, tuple(values))


@functools.cache
def pyformat_text(text: str) -> str:
    return NUMBERED_PARAMETER.sub(r"%(p\1)s", text.replace("%", "%%"))


def database_now(tx: Tx) -> datetime:
    """Return the time of the database's clock. SQLite has none: it uses that of the machine."""
    if on_sqlite(tx):
        days = tx.execute(sql("SELECT julianday('now') - 2440587.5")).scalar_one()
        return EPOCH + timedelta(days=days)
    now: datetime = tx.execute(sql("SELECT clock_timestamp()")).scalar_one()
    return now.astimezone(UTC)


def day_of(tx: Tx, instant: ColumnElement[datetime]) -> ColumnElement[str]:
    """Return the UTC day of a timestamp as text, such as 2026-05-04. SQLite stores timestamps as microseconds."""
    if on_sqlite(tx):
        return func.date(cast(instant, BigInteger) // 1_000_000, "unixepoch", type_=Text)
    zone = literal_column("'UTC'", Text)  # no parameters: GROUP BY would not match the same expression again
    return func.to_char(func.timezone(zone, instant), literal_column("'YYYY-MM-DD'", Text), type_=Text)


def is_listed(tx: Tx, column: ColumnElement[str], items: Collection[str]) -> ColumnElement[bool]:
    """Return whether a column's value is in a list of any length. The list is one parameter, so that the statement is
    prepared once, and no limit of parameters holds."""
    if on_sqlite(tx):
        array = func.json_each(literal(orjson.dumps(list(items)).decode(), Text)).table_valued("value")
        return column.in_(select(array.c.value))
    return column == any_(literal(list(items), ARRAY(Text, dimensions=1)))


def escape_like(text: str) -> str:
    """Return a text for a pattern of `LIKE … ESCAPE '/'` that matches itself."""
    return text.replace("/", "//").replace("%", "/%").replace("_", "/_")


def contains(tx: Tx, column: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Return whether a text contains another. `LIKE` of SQLite would ignore case."""
    position = func.instr if on_sqlite(tx) else func.strpos
    return position(type_coerce(column, Text), part, type_=Integer) > literal_column("0")


def contains_any_case(column: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Return whether a text contains another, whatever the case of its letters; on SQLite those from A to Z."""
    return type_coerce(column, Text).ilike(f"%{escape_like(part)}%", escape="/")


def duration_between(tx: Tx, start: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the seconds between two timestamps. SQLite stores timestamps as microseconds."""
    if on_sqlite(tx):
        return (type_coerce(end, BigInteger) - type_coerce(start, BigInteger)) / literal_column("1000000.0", Float)
    return func.date_part(literal_column("'epoch'", Text), end - start, type_=Float)


def upsert(tx: Tx, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """Return an INSERT with ON CONFLICT, which is a class of its own in each of SQLAlchemy's dialects."""
    return sqlite.insert(table) if on_sqlite(tx) else postgresql.insert(table)


def lock_keys(tx: Tx, keys: Iterable[str]) -> None:
    """Lock keys until the transaction ends, always in the same order. A no-op on SQLite, which has one writer."""
    ordered = sorted(set(keys))
    if ordered and not on_sqlite(tx):
        run_postgresql_text(tx, LOCK_KEYS, (ordered,))


def draw_fence(tx: Tx) -> int:
    """Return a new fence. SQLite has no sequences: it is a counter's next value."""
    return int(tx.exec_driver_sql(SQLITE_FENCE if on_sqlite(tx) else "SELECT nextval('fences')").scalar_one())


def last_fence(tx: Tx) -> int:
    """Return the newest fence that was drawn."""
    stmt = "SELECT value FROM counters WHERE name = 'fences'" if on_sqlite(tx) else "SELECT last_value FROM fences"
    return int(tx.exec_driver_sql(stmt).scalar_one())


def set_sequences(tx: Tx, fence: int) -> None:
    """Set the newest fence; on PostgreSQL also the next number of a log line, which SQLite takes from its rows."""
    if on_sqlite(tx):
        tx.exec_driver_sql("UPDATE counters SET value = ? WHERE name = 'fences'", (fence,))
    else:
        tx.exec_driver_sql("SELECT setval('fences', $1)", (fence,))
        tx.exec_driver_sql(
            "SELECT setval(pg_get_serial_sequence('logs', 'id'), coalesce(max(id), 0) + 1, false) FROM logs"
        )


def notify(tx: Tx, topic: str) -> None:
    """Notify other processes of a topic when this transaction commits."""
    if on_sqlite(tx):
        tx.info.setdefault(NOTIFIED_TOPICS, set()).add(topic)
    else:
        run_postgresql_text(tx, "SELECT pg_notify($1, $2)", (CHANNEL, topic))
