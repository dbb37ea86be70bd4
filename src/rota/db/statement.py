"""Hot statements: literal SQL, run by the driver without SQLAlchemy's work per execution and per value.

A text names its parameters `:name`. A statement about many rows reads them from the table `batch`, which is put in
front of the text as a CTE: `unnest` of one array per column on PostgreSQL, `VALUES` on SQLite. So the text does not
change with the batch, and each database plans and prepares it once. `Statement.text` returns what the driver gets,
to be pasted into EXPLAIN.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import orjson
from sqlalchemy import ColumnElement, Dialect, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import await_only

from rota.core.errors import DataRefused
from rota.db.column_types import Instant, ticks_of
from rota.db.dialect import CHANNEL, Tx, notify, on_sqlite

if TYPE_CHECKING:
    import sqlite3

Columns = Mapping[str, ColumnElement[object]]
Processor = Callable[[Any], object] | None  # converts a value of a column to or from the driver; None: not needed
Row = Sequence[object]
Listener = Callable[[str, Sequence[object]], None]

SQLITE_BATCH_ROWS = 512  # rows of one VALUES list; larger batches are split
SQLITE_PARAMETERS = 32_000  # SQLite's limit is 32,766
PARAMETER = re.compile(r"(?<!:):([a-z_]\w*)")
LIST = re.compile(r"\{list:(\w+)\}")
BATCH_COLUMN = re.compile(r"\bbatch\.(\w+)")
NO_COLUMNS: Columns = MappingProxyType({})

statement_listeners: list[Listener] = []  # called before each statement that bypasses SQLAlchemy's events; for tests


class Statement:
    """A hot statement. `text` is for both databases, or for PostgreSQL if there are texts for SQLite.

    `batch` declares the columns of its rows and `returns` the columns of its result, both by name and with a column
    that has the type. In the text, `{returns}` stands for the latter, and `IN ({list:name})` tests for the items of a
    list, which is one parameter.

    On SQLite a statement may need several texts, which run in order. One that names columns of the batch as parameters
    runs once per row. One that may return many rows returns them as a JSON array named `json_rows`: the driver
    releases the GIL for each row that it reads, and may wait 5 ms to get it back while the event loop is busy.
    """

    def __init__(
        self,
        summary: str,
        text: str,
        sqlite: str | tuple[str, ...] | None = None,
        *,
        batch: Columns = NO_COLUMNS,
        returns: Columns = NO_COLUMNS,
    ) -> None:
        self.summary, self.batch, self.returns = summary, batch, returns
        listed = ", ".join(str(column) for column in returns.values())
        texts = (sqlite,) if isinstance(sqlite, str) else sqlite or (text,)
        json_list, array = r"SELECT value FROM json_each(:\1)", r"SELECT unnest(:\1::text[])"
        self._sqlite = [LIST.sub(json_list, each.strip().replace("{returns}", listed)) for each in texts]
        self._postgresql, self._names = self._postgresql_text(
            LIST.sub(array, text.strip().replace("{returns}", listed))
        )
        self._sqlite_texts: dict[tuple[str, int], tuple[str, list[str]]] = {}

    def run(self, tx: Tx, /, rows: Sequence[Sequence[object]] | None = None, **params: object) -> list[tuple[Any, ...]]:
        """Run for these rows; returns rows with the columns of `returns`. A no-op for an empty list of rows."""
        columns = None if rows is None else list(zip(*rows, strict=True))
        return list(zip(*self.columns(tx, columns, **params).values(), strict=True))

    def columns(
        self, tx: Tx, /, batch: Sequence[Sequence[object]] | None = None, **params: object
    ) -> dict[str, Sequence[Any]]:
        """Run for rows that are passed column by column; returns the result column by column, by name."""
        if batch is not None and not (batch and batch[0]):
            return dict.fromkeys(self.returns, ())
        try:
            execute = self._on_sqlite if on_sqlite(tx) else self._on_postgresql
            rows = execute(tx, list(self._bound(tx.dialect, batch or ())), params)
        except TypeError as error:  # half a surrogate pair, or a number beyond 64 bits
            raise DataRefused(f"a value cannot be stored: {error}") from error
        if not self.returns:
            return {}
        read = result_processors(tx.dialect, tuple(self.returns.values()))
        values: Iterable[Sequence[object]] = zip(*rows, strict=True) if rows else repeat(())
        return {
            name: column if process is None or column.count(None) == len(column) else list(map(process, column))
            for name, process, column in zip(self.returns, read, values, strict=bool(rows))
        }

    def text(self, dialect_name: str, rows: int = 1) -> list[str]:
        """Return the texts as the driver gets them; on SQLite for a batch of so many rows."""
        if dialect_name != "sqlite":
            return [self._postgresql]
        return [self._sqlite_text(text, batch_size(rows))[0] for text in self._sqlite]

    def _bound(self, dialect: Dialect, batch: Sequence[Sequence[object]]) -> Iterable[Sequence[object]]:
        """Return the columns of a batch as values of the driver."""
        for values, process in zip(batch, bind_processors(dialect, tuple(self.batch.values())), strict=bool(batch)):
            if process is None:
                yield values
            elif all(map(is_, values, repeat(values[0]))):  # the same object: equal ones may differ, as 1 and True do
                yield (process(values[0]),) * len(values)
            else:
                yield list(map(process, values))

    def _on_postgresql(self, tx: Tx, batch: Sequence[Sequence[object]], params: Mapping[str, object]) -> list[Row]:
        arrays = dict(zip(self.batch, map(array_text, batch), strict=bool(batch)))
        values = tuple(arrays[name] if name in arrays else params[name] for name in self._names)
        if tx.get_execution_options().get("isolation_level") == "AUTOCOMMIT":  # no transaction to begin first
            return fetch_by_driver(tx, self._postgresql, values)
        result = tx.exec_driver_sql(self._postgresql, values)
        if not result.returns_rows:
            return []
        rows = list(result.cursor.fetchall())  # fetched already, as asyncpg's own records
        result.close()
        return rows

    def _on_sqlite(self, tx: Tx, batch: Sequence[Sequence[object]], params: Mapping[str, object]) -> list[Row]:
        bound = {name: sqlite_value(value) for name, value in params.items()}
        step = min(SQLITE_BATCH_ROWS, SQLITE_PARAMETERS // max(1, len(self.batch)))
        count = len(batch[0]) if batch else 0
        rows: list[Row] = []
        for start in range(0, count or 1, step):
            part = {name: values[start : start + step] for name, values in zip(self.batch, batch, strict=bool(batch))}
            for text in self._sqlite:
                rows += self._run_sqlite_text(tx, text, part, bound)
        return rows

    def _run_sqlite_text(
        self, tx: Tx, text: str, batch: Mapping[str, Sequence[object]], params: Mapping[str, object]
    ) -> list[Row]:
        names = self._batch_names(text)
        if not names and any(name in self.batch for name in PARAMETER.findall(text)):
            sql, order = self._sqlite_text(text, 0)
            each = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
            return [row for values in each for row in run_driver(tx, sql, [({**params, **values})[n] for n in order])]
        size = batch_size(len(next(iter(batch.values())))) if names else 0
        sql, order = self._sqlite_text(text, size)
        values = list(chain.from_iterable(zip(*(batch[name] for name in names), strict=True)))
        values += [None] * (size * len(names) - len(values))  # rows of NULL, which match nothing
        return run_driver(tx, sql, [*values, *(params[name] for name in order)])

    def _sqlite_text(self, text: str, size: int) -> tuple[str, list[str]]:
        """Return the text for a batch of `size` rows, and the names of its parameters after those of the batch."""
        if (text, size) not in self._sqlite_texts:
            names = self._batch_names(text)
            sql = PARAMETER.sub("?", text)
            if names:
                row = f"({', '.join('?' * len(names))})"
                sql = with_batch(f"batch ({', '.join(names)}) AS (VALUES {', '.join([row] * size)})", sql)
            self._sqlite_texts[text, size] = sql, PARAMETER.findall(text)
        return self._sqlite_texts[text, size]

    def _postgresql_text(self, text: str) -> tuple[str, list[str]]:
        """Return the text with numbered parameters, and their names in order."""
        if self.batch:
            arrays = [f":{name}::text::{array_type(column.type)}[]" for name, column in self.batch.items()]
            fields = [
                f"TIMESTAMPTZ 'epoch' + {name} * INTERVAL '1 microsecond' AS {name}"
                if isinstance(column.type, Instant)
                else name
                for name, column in self.batch.items()
            ]
            source = f"unnest({', '.join(arrays)}) AS t ({', '.join(self.batch)})"
            text = with_batch(f"batch AS (SELECT {', '.join(fields)} FROM {source})", text)
        names = list(dict.fromkeys(PARAMETER.findall(text)))
        return PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text), names

    def _batch_names(self, text: str) -> list[str]:
        """Return the columns of the batch that a text reads."""
        used = set(BATCH_COLUMN.findall(text))
        return [name for name in self.batch if name in used]


def with_batch(cte: str, text: str) -> str:
    """Put a CTE in front of a text that may have others."""
    return f"WITH {cte}, {text.removeprefix('WITH ')}" if text.startswith("WITH ") else f"WITH {cte} {text}"


def batch_size(rows: int) -> int:
    """Return the number of rows in the text for a batch: the next power of two, so that there are few texts."""
    return 1 << max(0, rows - 1).bit_length()


def fetch_by_driver(tx: Tx, sql: str, values: Sequence[object]) -> list[Row]:
    """Run a text on asyncpg's own connection, in autocommit; saves 0.1 ms. A connection that the server has closed is
    replaced before, one whose protocol state is unknown after an error is not used again."""
    for listener in statement_listeners:
        listener(sql, values)
    driver: asyncpg.Connection = tx.connection.driver_connection
    if driver.is_closed():
        tx.invalidate()
        driver = tx.connection.driver_connection
    try:
        rows: list[Row] = await_only(driver.fetch(sql, *values))
        return rows
    except BaseException as error:
        if not isinstance(error, asyncpg.PostgresError) or driver.is_closed():
            tx.invalidate()
        raise


def run_driver(tx: Tx, sql: str, values: Sequence[object]) -> list[Row]:
    """Run a text on SQLite's own connection."""
    for listener in statement_listeners:
        listener(sql, values)
    driver = cast("sqlite3.Connection", tx.connection.dbapi_connection)
    cursor = driver.execute(sql, values)
    rows = cursor.fetchall()
    if cursor.description and cursor.description[0][0] == "json_rows":
        rows = orjson.loads(rows[0][0])
    return rows


def sqlite_value(value: object) -> object:
    """Return a parameter as SQLite's driver takes it: a list as a JSON array."""
    if isinstance(value, datetime):
        return ticks_of(value)
    return orjson.dumps(list(value)).decode() if isinstance(value, list | tuple | set | frozenset) else value


@functools.cache
def bind_processors(dialect: Dialect, columns: tuple[ColumnElement[object], ...]) -> list[Processor]:
    return [column.type.dialect_impl(dialect).bind_processor(dialect) for column in columns]


@functools.cache
def result_processors(dialect: Dialect, columns: tuple[ColumnElement[object], ...]) -> list[Processor]:
    return [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]


def array_type(kind: TypeEngine[object]) -> str:
    """Return the PostgreSQL type of a batch's column. Text instead of varchar(n): a cast to that cuts in silence, while
    the column refuses a text that is too long. Timestamps are sent as microseconds, which both sides read four times
    as fast; they are exact until the year 2255."""
    if isinstance(kind, Instant):
        return "bigint"
    name = kind.compile(dialect=postgresql.dialect()).lower()  # type: ignore[no-untyped-call]
    return "text" if name.startswith("varchar") else name


def array_text(items: Sequence[Any]) -> str:
    """Return a PostgreSQL array literal. Binding the items themselves costs asyncpg three times as much, because it
    looks for nested arrays."""
    nulls = items.count(None)
    if nulls == len(items):
        return "{" + ",".join(["NULL"] * nulls) + "}"
    if nulls:
        return "{" + ",".join(["NULL" if item is None else array_text([item])[1:-1] for item in items]) + "}"
    if isinstance(items[0], bytes):
        return '{"' + '","'.join(f"\\\\x{item.hex()}" for item in items) + '"}'
    if not isinstance(items[0], str):
        return "{" + ",".join(map(str, map(ticks_of, items) if isinstance(items[0], datetime) else items)) + "}"
    joined = "\0".join(items)
    if joined.count("\0") != len(items) - 1:
        raise DataRefused("a value cannot be stored: a text has a NUL")
    return '{"' + joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


def insert_rows(tx: Tx, table: Table, rows: Sequence[Mapping[str, object]], notified: str | None = None) -> None:
    """Insert rows with the same keys in one statement, which also notifies other processes of a topic."""
    if notified is not None and on_sqlite(tx):
        notify(tx, notified)
        notified = None
    if rows:
        params = {} if notified is None else {"channel": CHANNEL, "topic": notified}
        batch = list(zip(*(row.values() for row in rows), strict=True))
        insertion(table, tuple(rows[0]), None, notified is not None).columns(tx, batch, **params)


def insert_new(
    tx: Tx, table: Table, rows: Sequence[Mapping[str, object]], returning: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Insert the rows that do not conflict; return these columns of them: row counts of skipped inserts differ by
    driver."""
    if not rows:
        return []
    columns = dict(zip(rows[0], zip(*(row.values() for row in rows), strict=True), strict=True))
    return insert_columns(tx, table, columns, returning)


def insert_columns(
    tx: Tx, table: Table, columns: Mapping[str, Sequence[object]], returning: Sequence[str]
) -> list[tuple[Any, ...]]:
    """The same as `insert_new`, for rows that are passed column by column."""
    result = insertion(table, tuple(columns), tuple(returning), False).columns(tx, list(columns.values()))
    return list(zip(*result.values(), strict=True))


@functools.cache
def insertion(table: Table, names: tuple[str, ...], returning: tuple[str, ...] | None, notifies: bool) -> Statement:
    """Return the statement that inserts rows with these columns."""
    listed, source = ", ".join(names), ", ".join(f"batch.{name}" for name in names)
    first = table.primary_key.columns.keys()[0]
    if first not in names:  # numbered by the database
        first = next(name for name in names if not table.c[name].nullable)
    text = f"INSERT INTO {table.name} ({listed}) SELECT {source} FROM batch WHERE batch.{first} IS NOT NULL"
    back = {name: table.c[name] for name in returning or ()}
    if returning is not None:
        text += f" ON CONFLICT DO NOTHING RETURNING {', '.join(returning)}"
    if notifies:
        text = f"WITH added AS ({text} RETURNING 1) SELECT pg_notify(:channel, :topic) FROM added LIMIT 1"
    return Statement(f"Insert rows into {table.name}.", text, batch={n: table.c[n] for n in names}, returns=back)
