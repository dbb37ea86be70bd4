"""Rows of all tables as lines that are the same on both databases, read and written in pages by primary key.

A line is a JSON array of a row's values, in the order of its columns' names: instants are microseconds since 1970,
bytes are base64. Tables are reflected, so that a database of an older schema can be read and written, too.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

import orjson
from sqlalchemy import Column, DateTime, LargeBinary, MetaData, Table, func, insert, literal, select, tuple_
from sqlalchemy import column as column_clause
from sqlalchemy import table as table_clause

from rota.core.errors import Conflict
from rota.db.blocking import check_interrupt
from rota.db.column_types import instant_of, ticks_of
from rota.db.dialect import Tx
from rota.db.migrate import lock_schema, rebuild, tables_at
from rota.db.schema import revision_of, revisions

PAGE_ROWS = 1000
PAGE_ROWS_BINARY = 20  # of tables with contents of artifacts, which may have megabytes each
NAMED_TABLES = 8  # in a message
FENCES_SKIPPED = 10**12  # a result of a worker of the former database must not meet a fence that is drawn again

Key = list[Any]  # the primary key of a row, as in its line
Progress = Callable[[int], None]  # is called with the number of rows that were handled


@dataclass(slots=True)
class TableSum:
    """Number and hash of rows. The hash is a sum of hashes of lines: databases do not sort texts alike."""

    rows: int = 0
    total: int = 0

    def add(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.rows += 1
            self.total = (self.total + int.from_bytes(sha256(line).digest())) % 2**256

    @property
    def hash(self) -> str:
        return f"{self.total:064x}"


def tables_of(tx: Tx, revision: str) -> list[Table]:
    """Return the tables of Rota in a database of this revision; those that others refer to come first."""
    metadata = MetaData()
    metadata.reflect(tx, only=sorted(tables_at(revision)))
    return metadata.sorted_tables


def columns_of(table: Table) -> list[Column[Any]]:
    return sorted(table.columns, key=lambda column: column.name)


def page_rows(table: Table) -> int:
    binary = any(isinstance(column.type, LargeBinary) for column in table.columns)
    return PAGE_ROWS_BINARY if binary else PAGE_ROWS


def read_pages(tx: Tx, table: Table, after: Key | None = None) -> Iterator[list[bytes]]:
    """Yield the lines of a table in pages, in the order of its primary key, from the row after `after` on."""
    key = list(table.primary_key.columns)
    rows = select(*columns_of(table)).order_by(*key).limit(page_rows(table))
    while True:
        check_interrupt()
        stmt = rows
        if after is not None:
            values = [literal(value_of(column, value), column.type) for column, value in zip(key, after, strict=True)]
            stmt = rows.where(tuple_(*key) > tuple_(*values))
        page = [line_of(tuple(row)) for row in tx.execute(stmt)]
        if page:
            yield page
            after = key_of(table, page[-1])
        if len(page) < page_rows(table):
            return


def write_lines(tx: Tx, table: Table, lines: Iterable[bytes], advance: Progress) -> None:
    """Insert lines in batches. Passes rows to the driver as tuples: parameters by name cost as much CPU time as the
    rest of the insert."""
    columns = columns_of(table)
    by_name = table_clause(table.name, *(column_clause(column.name, column.type) for column in columns))
    statement = str(insert(by_name).compile(dialect=tx.dialect, column_keys=[column.name for column in columns]))
    processors = [(index, process) for index, column in enumerate(columns) if (process := bind_processor(tx, column))]
    remaining = iter(lines)
    while batch := list(islice(remaining, page_rows(table))):
        rows = [orjson.loads(line) for line in batch]
        for row in rows:
            for index, process in processors:
                if row[index] is not None:
                    row[index] = process(row[index])
        check_interrupt()
        tx.exec_driver_sql(statement, [tuple(row) for row in rows])
        advance(len(rows))


def bind_processor(tx: Tx, column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return what makes a value of a line one that the driver accepts for this column, None if it is the same."""
    if isinstance(column.type, DateTime | LargeBinary):
        return partial(value_of, column)
    return column.type.dialect_impl(tx.dialect).bind_processor(tx.dialect)


def count_rows(tx: Tx, tables: Iterable[Table]) -> int:
    return sum(tx.execute(select(func.count()).select_from(table)).scalar_one() for table in tables)


def sum_of(tx: Tx, table: Table, advance: Progress) -> TableSum:
    """Read a table and return the number and hash of its rows."""
    result = TableSum()
    for page in read_pages(tx, table):
        result.add(page)
        advance(len(page))
    return result


def create_empty(tx: Tx, revision: str) -> None:
    """Create the tables of a revision. Raises Conflict unless the database has no rows of Rota."""
    lock_schema(tx)
    current = revision_of(tx)
    if current is not None and current not in revisions():
        raise Conflict(f"the database is not empty: it has tables of schema {current!r}; use an empty database")
    tables = [] if current is None else tables_of(tx, current)
    counts = sorted(((count_rows(tx, [table]), table.name) for table in tables), reverse=True)
    if filled := [f"{count} {name}" for count, name in counts if count]:
        more = f" and rows of {len(filled) - NAMED_TABLES} more tables" if len(filled) > NAMED_TABLES else ""
        raise Conflict(
            f"the database is not empty, it has {', '.join(filled[:NAMED_TABLES])}{more}; use an empty database"
        )
    rebuild(tx, revision)


def key_of(table: Table, line: bytes) -> Key:
    """Return the primary key in a line."""
    values = dict(zip((column.name for column in columns_of(table)), orjson.loads(line), strict=True))
    return [values[column.name] for column in table.primary_key.columns]


def line_of(row: tuple[object, ...]) -> bytes:
    return orjson.dumps(row, default=plain, option=orjson.OPT_PASSTHROUGH_DATETIME)


def plain(value: object) -> object:
    if isinstance(value, datetime):
        return ticks_of(value)
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


def value_of(column: Column[Any], value: Any) -> Any:
    """Return a value of a line as this database stores it. Instants have a type of their own on PostgreSQL only."""
    if value is None:
        return None
    if isinstance(column.type, DateTime):
        return instant_of(value)
    return base64.b64decode(value) if isinstance(column.type, LargeBinary) else value
