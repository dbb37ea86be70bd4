"""What truly differs between SQLite and PostgreSQL, each with its reason. No other module asks which database it is."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    String,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from rota.core.errors import DataRefused
from rota.store.tables import EPOCH

Tx = Connection
P = ParamSpec("P")
S = TypeVar("S")

CHANNEL = "rota"


def on_sqlite(tx: Tx) -> bool:
    return tx.dialect.name == "sqlite"


def database_now(tx: Tx) -> datetime:
    """The database's clock. SQLite has none of its own: it asks the machine that all its processes share."""
    if on_sqlite(tx):
        days = tx.execute(sql("SELECT julianday('now') - 2440587.5")).scalar_one()
        return EPOCH + timedelta(days=days)
    moment: datetime = tx.execute(sql("SELECT clock_timestamp()")).scalar_one()
    return moment.astimezone(UTC)


def day_of(tx: Tx, moment: ColumnElement[datetime]) -> ColumnElement[str]:
    """The day of a moment in UTC, as a text like 2026-05-04; SQLite keeps moments as microseconds."""
    if on_sqlite(tx):
        return func.date(cast(moment, BigInteger) // 1_000_000, "unixepoch", type_=Text)
    zone = literal_column("'UTC'", Text)  # no parameters: GROUP BY would not know the same expression again
    return func.to_char(func.timezone(zone, moment), literal_column("'YYYY-MM-DD'", Text), type_=Text)


class Batch:
    """A batch of records as a table, so that one statement handles them all: arrays here, one JSON text there.

    `table` stands in the statement, which is built once; `values` binds a batch to it.
    """

    def __init__(self, name: str, /, **columns: TypeEngine[Any]) -> None:
        self.name, self.columns = name, columns

    def table(self, tx: Tx) -> FromClause:
        if on_sqlite(tx):
            each = func.json_each(bindparam(f"{self.name}_rows", type_=Text)).table_valued("value")
            fields = [
                func.json_extract(each.c.value, f"$[{position}]", type_=kind).label(field)
                for position, (field, kind) in enumerate(self.columns.items())
            ]
            return select(*fields).subquery(self.name)
        arrays = [
            bindparam(f"{self.name}_{field}", type_=ARRAY(widened(kind), dimensions=1))
            for field, kind in self.columns.items()
        ]
        named = [column(field, widened(kind)) for field, kind in self.columns.items()]
        return func.unnest(*arrays).table_valued(*named, name=self.name).render_derived()

    def values(self, tx: Tx, records: Sequence[Sequence[Any]]) -> dict[str, Any]:
        if not on_sqlite(tx):
            arrays = zip(*records, strict=True) if records else [()] * len(self.columns)
            return {f"{self.name}_{field}": list(array) for field, array in zip(self.columns, arrays, strict=True)}
        try:
            return {f"{self.name}_rows": orjson.dumps(self.plain(tx, records)).decode()}
        except TypeError as error:  # half a surrogate pair, or a number beyond 64 bits
            raise DataRefused(f"a value cannot be stored: {error}") from error

    def plain(self, tx: Tx, records: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The records as SQLite's driver takes them. Column by column: most columns need nothing done."""
        if not records:
            return []
        bind = [kind.dialect_impl(tx.dialect).bind_processor(tx.dialect) for kind in self.columns.values()]
        if not records:
            return []
        columns = zip(bind, zip(*records, strict=True), strict=True)
        try:
            return list(zip(*(map(fix, column) if fix else column for fix, column in columns), strict=True))
        except TypeError as error:
            raise DataRefused(f"a value cannot be stored: {error}") from error


def once(build: Callable[Concatenate[Tx, P], S]) -> Callable[Concatenate[Tx, P], S]:
    """A statement that is built once per database and shape: building one costs more than running it."""
    made: dict[tuple[Any, ...], S] = {}

    def found(tx: Tx, /, *shape: P.args, **named: P.kwargs) -> S:
        key = (on_sqlite(tx), shape, *named.items())
        if key not in made:
            made[key] = build(tx, *shape, **named)
        return made[key]

    return found


def widened(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """A cast to varchar(n) would cut a text in silence; the column itself refuses one that is too long."""
    return Text() if isinstance(kind, String) else kind


@functools.cache
def batch_of(table: Table, names: tuple[str, ...]) -> Batch:
    return Batch("new", **{name: table.c[name].type for name in names})


@once
def insertion(tx: Tx, table: Table, names: tuple[str, ...], returning: tuple[str, ...] | None) -> Any:
    """INSERT of a batch; with `returning`, of those records that meet no conflict."""
    source = batch_of(table, names).table(tx)
    chosen = select(*(source.c[name] for name in names))
    if returning is None:
        return table.insert().from_select(names, chosen)
    # SQLite cannot tell ON CONFLICT from a join's ON without a WHERE
    stmt = upsert(tx, table).from_select(names, chosen.where(sql("true"))).on_conflict_do_nothing()
    return stmt.returning(*(table.c[name] for name in returning))


def insert_rows(tx: Tx, table: Table, records: Sequence[Mapping[str, Any]]) -> None:
    """Insert a batch in one statement; all records have the same keys."""
    if not records:
        return
    names = tuple(records[0])
    batch, values = batch_of(table, names), [tuple(record.values()) for record in records]
    if on_sqlite(tx):  # json_extract reads the whole text anew for each column of a wide row
        tx.exec_driver_sql(plain_insertion(table, names), batch.plain(tx, values))
    else:
        tx.execute(insertion(tx, table, names, None), batch.values(tx, values))


@functools.cache
def plain_insertion(table: Table, names: tuple[str, ...]) -> str:
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def upsert(tx: Tx, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """An INSERT that knows ON CONFLICT; the two dialects spell it alike, but as two classes."""
    return sqlite.insert(table) if on_sqlite(tx) else postgresql.insert(table)


def insert_new(tx: Tx, table: Table, records: Sequence[Mapping[str, Any]], returning: Sequence[str]) -> list[Any]:
    """Insert those records that meet no conflict, and tell which: row counts of skipped INSERTs differ by driver."""
    if not records:
        return []
    names = tuple(records[0])
    values = batch_of(table, names).values(tx, [tuple(record.values()) for record in records])
    return list(tx.execute(insertion(tx, table, names, tuple(returning)), values))


LOCK_KEYS = sql(
    "SELECT count(pg_advisory_xact_lock(k)) FROM "
    "(SELECT DISTINCT hashtextextended(key, 0) AS k FROM unnest(CAST(:keys AS text[])) AS key ORDER BY k) AS ordered"
)
DRAW_FENCES = sql("UPDATE counters SET value = value + :n WHERE name = 'fences' RETURNING value")
NOTIFY = sql("SELECT pg_notify(:channel, :what)")


def lock_keys(tx: Tx, keys: Iterable[str]) -> None:
    """Take the advisory locks of these keys, in one order for everybody. SQLite has one writer: nothing to do."""
    ordered = sorted(set(keys))
    if ordered and not on_sqlite(tx):
        tx.execute(LOCK_KEYS, {"keys": ordered})


def fence_numbers(tx: Tx, count: int) -> Iterable[int]:
    """Fresh fence numbers. SQLite has no sequences: a counter row, under the one write lock."""
    last: int = tx.execute(DRAW_FENCES, {"n": count}).scalar_one()
    return range(last - count + 1, last + 1)


def notify(tx: Tx, what: str) -> None:
    """Wake other processes once this transaction commits. SQLite's processes watch the file's version instead."""
    if not on_sqlite(tx):
        tx.execute(NOTIFY, {"channel": CHANNEL, "what": what})
