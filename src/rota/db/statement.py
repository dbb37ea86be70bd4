"""Hot statements: literal SQL, run by the driver without SQLAlchemy's work per execution and per value.

A text names its parameters `:name`. A statement about many rows reads them from the table `batch`, which is put in
front of the text as a CTE: `unnest` of one array per column on PostgreSQL, `VALUES` on SQLite. So the text does not
change with the batch, and each database plans and prepares it once. `Statement.text` returns what the driver gets,
to be pasted into EXPLAIN.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, repeat
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import orjson
from sqlalchemy import ClauseElement, ColumnElement, CompoundSelect, Dialect, Select, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from rota.core.errors import DataRefused
from rota.db.column_types import Instant, ticks_of
from rota.db.dialect import CHANNEL, Tx, notify, on_sqlite, run_postgresql_text

if TYPE_CHECKING:
    import sqlite3

    import asyncpg

R = TypeVar("R")
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
    list, which is one parameter. With `notifies` it notifies other processes of the parameter `topic`, if it inserted
    a row. A statement whose batch has always one row is a `single_row`: on PostgreSQL the columns are parameters then,
    which saves an array per column and a join wherever the text reads the batch.

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
        notifies: bool = False,
        single_row: bool = False,
    ) -> None:
        self.summary, self.batch, self.returns, self.notifies = summary, batch, returns, notifies
        self.single_row = single_row
        listed = ", ".join(str(column) for column in returns.values())
        texts = (sqlite,) if isinstance(sqlite, str) else sqlite or (text,)
        json_list, array = r"SELECT value FROM json_each(:\1)", r"SELECT unnest(:\1::text[])"
        self._sqlite = [LIST.sub(json_list, each.strip().replace("{returns}", listed)) for each in texts]
        text = LIST.sub(array, text.strip().replace("{returns}", listed))
        if notifies:
            text = f"WITH added AS ({text} RETURNING 1) SELECT pg_notify('{CHANNEL}', :topic) FROM added LIMIT 1"
        self._postgresql, self._names = self._postgresql_text(text)
        self._sqlite_texts: dict[tuple[str, int], tuple[str, list[str]]] = {}
        self._processors: dict[str, list[Processor]] = {}  # of the result, by dialect

    def run(self, tx: Tx, /, rows: Sequence[Sequence[object]] | None = None, **params: object) -> list[tuple[Any, ...]]:
        """Run for these rows; returns rows with the columns of `returns`. A no-op for an empty list of rows."""
        columns = None if rows is None else list(zip(*rows, strict=True))
        return list(zip(*self.columns(tx, columns, **params).values(), strict=True))

    def columns(
        self, tx: Tx, /, batch: Sequence[Sequence[object]] | None = None, **params: object
    ) -> dict[str, Sequence[Any]]:
        """Run for rows that are passed column by column; returns the result column by column, by name."""
        if is_empty(batch):
            return self.decode(tx.dialect, ())
        try:
            execute = self._on_sqlite if on_sqlite(tx) else self._on_postgresql
            rows = execute(tx, batch, params)
        except TypeError as error:  # half a surrogate pair, or a number beyond 64 bits
            raise DataRefused(f"a value cannot be stored: {error}") from error
        return self.decode(tx.dialect, rows)

    def bound(
        self,
        read: Callable[[Mapping[str, Sequence[Any]]], R],
        batch: Sequence[Sequence[object]] | None = None,
        **params: object,
    ) -> "BoundStatement[R]":
        """Return the statement with its values; `read` makes its result from what `columns` returns. A parameter that
        is a function is called when the statement begins."""
        return BoundStatement(self, batch, params, read)

    def decode(self, dialect: Dialect, rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
        """Return rows of the driver column by column, by name."""
        if not self.returns or not rows:
            return dict.fromkeys(self.returns, ())
        read = self._result_processors(dialect)
        return {
            name: column if process is None or column.count(None) == len(column) else list(map(process, column))
            for name, process, column in zip(self.returns, read, zip(*rows, strict=True), strict=True)
        }

    def text(self, dialect_name: str, rows: int = 1) -> list[str]:
        """Return the texts as the driver gets them; on SQLite for a batch of so many rows."""
        if dialect_name != "sqlite":
            return [self._postgresql]
        return [self._sqlite_text(text, batch_size(rows))[0] for text in self._sqlite]

    def values(
        self, dialect: Dialect, batch: Sequence[Sequence[object]] | None, params: Mapping[str, object]
    ) -> tuple[object, ...]:
        """Return the values of the parameters on PostgreSQL, in their order."""
        columns = self._bound(dialect, batch or ())
        bound: Iterable[object] = (row[0] for row in columns) if self.single_row else map(array_text, columns)
        of_batch = dict(zip(self.batch, bound, strict=bool(batch)))
        return tuple([of_batch[name] if name in of_batch else now_of(params[name]) for name in self._names])

    def _bound(self, dialect: Dialect, batch: Sequence[Sequence[object]]) -> Iterable[Sequence[object]]:
        """Return the columns of a batch as values of the driver."""
        for values, process in zip(batch, bind_processors(dialect, tuple(self.batch.values())), strict=bool(batch)):
            if process is None:
                yield values
            elif all(map(is_, values, repeat(values[0]))):  # the same object: equal ones may differ, as 1 and True do
                yield (process(values[0]),) * len(values)
            else:
                yield list(map(process, values))

    def _result_processors(self, dialect: Dialect) -> list[Processor]:
        if dialect.name not in self._processors:
            types = [column.type.dialect_impl(dialect) for column in self.returns.values()]
            self._processors[dialect.name] = [kind.result_processor(dialect, None) for kind in types]
        return self._processors[dialect.name]

    def _on_postgresql(
        self, tx: Tx, batch: Sequence[Sequence[object]] | None, params: Mapping[str, object]
    ) -> list[Row]:
        result = run_postgresql_text(tx, self._postgresql, self.values(tx.dialect, batch, params))
        if not result.returns_rows:
            return []
        rows = list(result.cursor.fetchall())  # fetched already, as asyncpg's own records
        result.close()
        return rows

    def _on_sqlite(self, tx: Tx, batch: Sequence[Sequence[object]] | None, params: Mapping[str, object]) -> list[Row]:
        if self.notifies:
            notify(tx, str(params["topic"]))
        bound = {name: sqlite_value(now_of(value)) for name, value in params.items()}
        columns = dict(zip(self.batch, self._bound(tx.dialect, batch or ()), strict=bool(batch)))
        step = min(SQLITE_BATCH_ROWS, SQLITE_PARAMETERS // max(1, len(self.batch)))
        rows: list[Row] = []
        for start in range(0, len(batch[0]) if batch else 1, step):
            part = {name: values[start : start + step] for name, values in columns.items()}
            for text in self._sqlite:
                rows += self._run_sqlite_text(tx, text, part, bound)
        return rows

    def _run_sqlite_text(
        self, tx: Tx, text: str, batch: Mapping[str, Sequence[object]], params: Mapping[str, object]
    ) -> list[Row]:
        names = self._batch_names(text)
        if self.batch and not names and any(name in self.batch for name in PARAMETER.findall(text)):
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
        if self.batch and self.single_row:
            fields = [f"CAST(:{name} AS {value_type(column.type)}) AS {name}" for name, column in self.batch.items()]
            text = with_batch(f"batch AS NOT MATERIALIZED (SELECT {', '.join(fields)})", text)
        elif self.batch:
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
        used = set(BATCH_COLUMN.findall(text)) if self.batch else set()
        return [name for name in self.batch if name in used]


@dataclass(frozen=True, slots=True)
class BoundStatement(Generic[R]):
    """A statement with its values. It is a step; `Database.statement` runs it outside a transaction."""

    statement: Statement
    batch: Sequence[Sequence[object]] | None
    params: Mapping[str, object]
    read: Callable[[Mapping[str, Sequence[Any]]], R]

    def __call__(self, tx: Tx) -> R:
        return self.read(self.statement.columns(tx, self.batch, **self.params))

    async def fetch(self, driver: "asyncpg.Connection", dialect: Dialect) -> R:
        """Run it on a connection of asyncpg, in autocommit. Saves 0.3 ms of CPU where the process was idle."""
        statement = self.statement
        if is_empty(self.batch):
            return self.read(statement.decode(dialect, ()))
        try:
            values = statement.values(dialect, self.batch, self.params)
        except TypeError as error:  # half a surrogate pair, or a number beyond 64 bits
            raise DataRefused(f"a value cannot be stored: {error}") from error
        (sql,) = statement.text(dialect.name)
        for listener in statement_listeners:
            listener(sql, values)
        return self.read(statement.decode(dialect, await driver.fetch(sql, *values)))


def is_empty(batch: Sequence[Sequence[object]] | None) -> bool:
    """Return whether a batch has no rows; None is no batch."""
    return batch is not None and not (batch and batch[0])


def now_of(value: object) -> object:
    """Return a parameter, or what it returns now if it is a function."""
    return value() if callable(value) else value


def compiled(summary: str, query: Select[*tuple[Any, ...]] | CompoundSelect[*tuple[Any, ...]]) -> Statement:
    """Return a query of SQLAlchemy Core as a hot statement. All its values are named parameters or literals; a column
    `IN ({list:name})` is `column.in_([literal_column("{list:name}")])`. On SQLite it returns its rows as JSON."""
    returns = {str(column.name): column for column in query.selected_columns}
    names = ", ".join(f'"{name}"' for name in returns)
    rows = f"SELECT json_group_array(json_array({names})) AS json_rows FROM ({named_text(query, sqlite.dialect)})"
    return Statement(summary, named_text(query, postgresql.dialect), rows, returns=returns)


def named_text(query: ClauseElement, dialect: Callable[..., Dialect]) -> str:
    """Return the text of a query with named parameters. A number that SQLAlchemy adds (OFFSET 0) becomes a literal."""
    made = query.compile(dialect=dialect(paramstyle="named"))
    numbers = {name: str(value) for name, value in made.params.items() if value is not None}
    return PARAMETER.sub(lambda match: numbers.get(match[1], match[0]), str(made))


def with_batch(cte: str, text: str) -> str:
    """Put a CTE in front of a text that may have others."""
    return f"WITH {cte}, {text.removeprefix('WITH ')}" if text.startswith("WITH ") else f"WITH {cte} {text}"


def batch_size(rows: int) -> int:
    """Return the number of rows in the text for a batch: the next power of two, so that there are few texts."""
    return 1 << max(0, rows - 1).bit_length()


def run_driver(tx: Tx, sql: str, values: Sequence[object]) -> list[Row]:
    """Run a text on SQLite's own connection."""
    for listener in statement_listeners:
        listener(sql, values)
    driver = cast("sqlite3.Connection", tx.connection.dbapi_connection)
    cursor = driver.cursor()  # not `driver.execute`: SQLAlchemy's adapter of an async driver reads the rows only so
    cursor.execute(sql, values)
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


def array_type(kind: TypeEngine[object]) -> str:
    """Return the PostgreSQL type of the items of a batch's column. Timestamps are sent as microseconds, which both
    sides read four times as fast; they are exact until the year 2255."""
    return "bigint" if isinstance(kind, Instant) else value_type(kind)


def value_type(kind: TypeEngine[object]) -> str:
    """Return the PostgreSQL type of a value for a column. Text instead of varchar(n): a cast to that cuts in silence,
    while the column refuses a text that is too long."""
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
    if rows:
        insertion_of(table, rows, None, notified)(tx)


def insertion_of(
    table: Table, rows: Sequence[Mapping[str, object]], result: R, notified: str | None = None
) -> BoundStatement[R]:
    """Return the statement of `insert_rows` for at least one row; it returns `result`."""
    batch = list(zip(*(row.values() for row in rows), strict=True))
    params = {} if notified is None else {"topic": notified}
    return insertion(table, tuple(rows[0]), None, notified is not None).bound(lambda _: result, batch, **params)


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
    batch = {name: table.c[name] for name in names}
    return Statement(f"Insert rows into {table.name}.", text, batch=batch, returns=back, notifies=notifies)
