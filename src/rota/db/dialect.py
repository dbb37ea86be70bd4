"""What truly differs between SQLite and PostgreSQL, each with its reason. No other module asks which database it is."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from operator import is_
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import asyncpg
import orjson
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    String,
    Table,
    Text,
    any_,
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
from sqlalchemy.util import await_only

from rota.core.errors import DataRefused
from rota.db.column_types import EPOCH, Instant, ticks_of
from rota.db.tables import counters, fences

Tx = Connection
P = ParamSpec("P")
S = TypeVar("S")

CHANNEL = "rota"
SHAPES = 8  # of a batch's statement
CROWD = 20  # records that are worth a shape of their own


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

    What is alike in all records is bound once beside it; of the run rows of a batch only a few columns are not.
    """

    def __init__(self, name: str, /, **columns: TypeEngine[Any]) -> None:
        self.name, self.columns = name, columns
        self._shapes: list[set[str]] = []

    def table(self, tx: Tx, alike: tuple[str, ...]) -> FromClause:
        """How it stands in a hot statement."""
        same = [bindparam(f"{self.name}_{field}", type_=widened(self.columns[field])).label(field) for field in alike]
        varying = {field: widened(kind) for field, kind in self.columns.items() if field not in alike}
        if not varying:
            return select(*same).subquery(self.name)
        if on_sqlite(tx):
            each = func.json_each(bindparam(f"{self.name}_rows", type_=Text)).table_valued("value")
            fields = [
                func.json_extract(each.c.value, f"$[{position}]", type_=kind).label(field)
                for position, (field, kind) in enumerate(varying.items())
            ]
            return select(*fields, *same).subquery(self.name)
        sent = {field: BigInteger() if isinstance(kind, Instant) else kind for field, kind in varying.items()}
        arrays = [array(f"{self.name}_{field}", kind) for field, kind in sent.items()]
        rows = func.unnest(*arrays).table_valued(*(column(*one) for one in sent.items()), name=f"{self.name}_rows")
        chosen = [
            moment(one).label(one.name) if isinstance(varying[one.name], Instant) else one
            for one in rows.render_derived().c
        ]
        return select(*chosen, *same).subquery(self.name)

    def given(self, tx: Tx, records: Sequence[Sequence[Any]]) -> "Given":
        """A batch as the driver takes it."""
        return self.filled(tx, zip(*records, strict=True))

    def filled(self, tx: Tx, given: Iterable[Sequence[Any]]) -> "Given":
        """The same column by column: most columns need nothing done."""
        fixed = zip(self._fixes(tx.dialect).items(), given, strict=True)
        try:
            columns = {field: mapped(fix, values) if fix else values for (field, fix), values in fixed}
            same = {field for field, values in columns.items() if values.count(values[0]) == len(values)}
            alike = self._known_shape(same, len(next(iter(columns.values()))))
            values: dict[str, Any] = {f"{self.name}_{field}": columns.pop(field)[0] for field in alike}
            if columns and on_sqlite(tx):
                values[f"{self.name}_rows"] = orjson.dumps(list(zip(*columns.values(), strict=True))).decode()
            else:
                values |= {f"{self.name}_{field}": array_text(items) for field, items in columns.items()}
        except TypeError as error:  # half a surrogate pair, or a number beyond 64 bits
            raise DataRefused(f"a value cannot be stored: {error}") from error
        return Given(values, (alike,))

    def _known_shape(self, same: set[str], count: int) -> tuple[str, ...]:
        """The columns to bind once: all of a single record, none of a few. Each choice is a statement to compile and
        to prepare, so only crowds are worth learning some more; they take the best that fits them."""
        if count < CROWD:
            return tuple(self.columns) if count == 1 else ()
        if len(same) == len(self.columns):
            same.discard(next(iter(self.columns)))  # something must tell how many there are
        if same not in self._shapes and len(self._shapes) < SHAPES:
            self._shapes.append(same)
        best = max((known for known in self._shapes if known <= same), key=len, default=set[str]())
        return tuple(field for field in self.columns if field in best)

    @functools.cache  # noqa: B019  batches live as long as the program
    def _fixes(self, dialect: Dialect) -> dict[str, Callable[[Any], Any] | None]:
        """What has to be done to the values of each column on their way to the driver."""
        return {field: kind.dialect_impl(dialect).bind_processor(dialect) for field, kind in self.columns.items()}


def mapped(fix: Callable[[Any], Any], values: Sequence[Any]) -> Sequence[Any]:
    """The values, done; where all are one object, that is done once. (Equal ones may differ: JSON's 1 and true.)"""
    first = values[0]
    if all(map(is_, values, repeat(first))):
        return (fix(first),) * len(values)
    return tuple(map(fix, values))


class Given(NamedTuple):
    """The parameters of a hot statement, as the driver takes them, and what of them decides its text."""

    values: Mapping[str, Any]
    shape: tuple[Any, ...] = ()


def hot(build: Callable[..., Any]) -> Callable[[Tx, Given], list[Any]]:
    """A statement of the hot road: built and compiled once per database and shape, then only run. What SQLAlchemy does
    per execution and per value costs more than the database's own work."""
    made: dict[tuple[Any, ...], tuple[str, list[str], dict[str, Any]]] = {}

    def run(tx: Tx, given: Given) -> list[Any]:
        key = (on_sqlite(tx), given.shape)
        if key not in made:
            compiled = build(tx, *given.shape).compile(dialect=tx.dialect)
            made[key] = compiled.string, compiled.positiontup, compiled.params
        text, order, fixed = made[key]
        values = {**fixed, **given.values}
        return run_text(tx, text, [values[name] for name in order])

    return run


class RawConnection:
    """A driver's own connection to PostgreSQL, for steps that are one hot statement: SQLAlchemy's way to the driver
    costs half a millisecond of processor time, as much as fifty jobs cost in a batch."""

    def __init__(self, dialect: Dialect, connection: "asyncpg.Connection[Any]") -> None:
        self.dialect, self.connection = dialect, connection

    def fetch(self, text: str, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = await_only(self.connection.fetch(text, *values))
        return found


watchers: list[Callable[[str, Sequence[Any]], None]] = []  # told what goes past SQLAlchemy's own events; for tests


def run_text(tx: Tx, text: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run a text as the driver takes it, by the shortest way to it."""
    if isinstance(tx, RawConnection) or on_sqlite(tx):
        for watch in watchers:
            watch(text, values)
    if isinstance(tx, RawConnection):
        return tx.fetch(text, values)
    if on_sqlite(tx):
        driver: Any = tx.connection.dbapi_connection
        return list(driver.execute(text, values).fetchall())
    found = tx.exec_driver_sql(text, tuple(values))
    if not found.returns_rows:
        return []
    rows = list(found.cursor.fetchall())  # they are here already, as asyncpg's own records
    found.close()
    return rows


def records_of(tx: Tx, columns: Sequence[ColumnElement[Any]], rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The rows of a hot statement, as what their columns hold."""
    return list(zip(*columns_of(tx, columns, rows), strict=True))


def columns_of(tx: Tx, columns: Sequence[ColumnElement[Any]], rows: Sequence[Sequence[Any]]) -> list[Iterable[Any]]:
    """The same column by column, which again is the shorter way."""
    return [
        map(fix, values) if fix and values.count(None) < len(values) else values
        for fix, values in zip(readings(tx.dialect, tuple(columns)), zip(*rows, strict=True), strict=bool(rows))
    ]


@functools.cache
def readings(dialect: Dialect, columns: tuple[ColumnElement[Any], ...]) -> list[Callable[[Any], Any] | None]:
    """What has to be done to the values of each column on their way from the driver."""
    return [one.type.dialect_impl(dialect).result_processor(dialect, None) for one in columns]


def changed_rows(tx: Tx) -> int:
    """How many rows SQLite's last INSERT, UPDATE or DELETE touched."""
    return int(run_text(tx, "SELECT changes()")[0][0])


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


@hot
def insertion(
    tx: Tx, alike: tuple[str, ...], table: Table, back: tuple[str, ...] | None, what: str | None, *names: str
) -> Any:
    """INSERT of a batch; if it is to give something back, of those records that meet no conflict. On PostgreSQL it may
    say something as well."""
    source = batch_of(table, names).table(tx, alike)
    chosen = select(*(source.c[name] for name in names))
    if what is not None:
        added = table.insert().from_select(names, chosen).returning(literal_column("1").label("one")).cte("added")
        return select(func.pg_notify(CHANNEL, what)).select_from(added).limit(1)
    if back is None:
        return table.insert().from_select(names, chosen)
    # SQLite cannot tell ON CONFLICT from a join's ON without a WHERE
    stmt = upsert(tx, table).from_select(names, chosen.where(sql("true"))).on_conflict_do_nothing()
    return stmt.returning(*(table.c[name] for name in back))


def insert_rows(tx: Tx, table: Table, records: Sequence[Mapping[str, Any]], what: str | None = None) -> None:
    """Insert a batch in one statement, which also wakes other processes if there is something to say; all records have
    the same keys."""
    if what is not None and on_sqlite(tx):
        notify(tx, what)
        what = None
    if records:
        insertion(tx, new_rows(tx, table, columns_in(records), None, what))


def new_rows(
    tx: Tx, table: Table, columns: Mapping[str, Sequence[Any]], back: tuple[str, ...] | None, what: str | None = None
) -> Given:
    values, shape = batch_of(table, tuple(columns)).filled(tx, columns.values())
    return Given(values, (*shape, table, back, what, *columns))


def columns_in(records: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    return dict(zip(records[0], zip(*(record.values() for record in records), strict=True), strict=True))


def update_row(tx: Tx, table: Table, key: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Change the row that has these values; False if there is none."""
    fixes = processors(tx.dialect, table)
    given = [(f"old_{name}", fixes[name], value) for name, value in key.items()]
    given += [(f"new_{name}", fixes[name], value) for name, value in changes.items()]
    values = {name: value if fix is None or value is None else fix(value) for name, fix, value in given}
    return bool(changing(tx, Given(values, (table, tuple(key), tuple(changes)))))


@hot
def changing(_: Tx, table: Table, key: tuple[str, ...], names: tuple[str, ...]) -> Any:
    mine = [table.c[name] == bindparam(f"old_{name}", type_=table.c[name].type) for name in key]
    values = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
    return table.update().where(*mine).values(values).returning(table.c[key[0]])


@functools.cache
def processors(dialect: Dialect, table: Table) -> dict[str, Callable[[Any], Any] | None]:
    """What has to be done to the values of a table's columns on their way to the driver."""
    return {one.name: one.type.dialect_impl(dialect).bind_processor(dialect) for one in table.c}


def is_listed(tx: Tx, field: ColumnElement[str], name: str) -> ColumnElement[bool]:
    """Whether a column's value is in a list of any length, bound as one parameter of this name."""
    if on_sqlite(tx):
        return field.in_(select(func.json_each(bindparam(name, type_=Text)).table_valued("value").c.value))
    return field == any_(array(name, Text()))


def listed(tx: Tx, items: Iterable[str]) -> Any:
    """The list as its parameter."""
    return orjson.dumps(list(items)).decode() if on_sqlite(tx) else array_text(list(items))


def array(name: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """A PostgreSQL array that is bound as its text."""
    return cast(bindparam(name, type_=Text), ARRAY(kind, dimensions=1))


def array_text(items: Sequence[Any]) -> str:
    """An array as PostgreSQL writes it. To bind the items themselves costs its driver three times as much: it asks of
    each whether it is an array too."""
    if not items or None in items:
        return "{" + ",".join(["NULL" if one is None else array_text([one])[1:-1] for one in items]) + "}"
    if isinstance(items[0], bytes):
        raise DataRefused("a value cannot be stored: bytes are stored one by one")
    if not isinstance(items[0], str):
        return "{" + ",".join(map(str, map(ticks_of, items) if isinstance(items[0], datetime) else items)) + "}"
    whole = "\0".join(items)  # no text has a NUL
    if whole.count("\0") != len(items) - 1:
        raise DataRefused("a value cannot be stored: a text has a NUL")
    return '{"' + whole.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


def moment(ticks: ColumnElement[int]) -> ColumnElement[datetime]:
    """A moment that came as microseconds, in a quarter of the time that both sides take for its text. Exact to the
    microsecond until the year 2255, then to a few of them."""
    return literal_column("TIMESTAMPTZ 'epoch'", Instant()) + ticks * literal_column("INTERVAL '1 microsecond'")


def upsert(tx: Tx, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """An INSERT that knows ON CONFLICT; the two dialects spell it alike, but as two classes."""
    return sqlite.insert(table) if on_sqlite(tx) else postgresql.insert(table)


def insert_new(tx: Tx, table: Table, records: Sequence[Mapping[str, Any]], returning: Sequence[str]) -> list[Any]:
    """Insert those records that meet no conflict, and tell which: row counts of skipped INSERTs differ by driver."""
    return insert_columns(tx, table, columns_in(records), returning) if records else []


def insert_columns(tx: Tx, table: Table, columns: Mapping[str, Sequence[Any]], returning: Sequence[str]) -> list[Any]:
    """The same for records that stand column by column: a thousand of them need no thousand dicts."""
    found = insertion(tx, new_rows(tx, table, columns, tuple(returning)))
    return records_of(tx, [table.c[name] for name in returning], found)


LOCK_KEYS = (
    "SELECT count(pg_advisory_xact_lock(k)) FROM "
    "(SELECT DISTINCT hashtextextended(key, 0) AS k FROM unnest($1::text[]) AS key ORDER BY k) AS ordered"
)
DRAW_FENCE = "UPDATE counters SET value = value + 1 WHERE name = 'fences' RETURNING value"
NOTIFY = "SELECT pg_notify($1, $2)"
NOTIFIED_TOPICS = "says"  # under which a transaction on SQLite has its words


def lock_keys(tx: Tx, keys: Iterable[str]) -> None:
    """Take the advisory locks of these keys, in one order for everybody. SQLite has one writer: nothing to do."""
    ordered = sorted(set(keys))
    if ordered and not on_sqlite(tx):
        run_text(tx, LOCK_KEYS, [ordered])


def next_fence(tx: Tx) -> ColumnElement[int]:
    """A fresh fence number, one for all that a statement takes: no two of those have one serial key. SQLite has no
    sequences: a counter row, under the one write lock, to be drawn when it was used."""
    number = select(counters.c.value + 1).where(counters.c.name == literal_column("'fences'"))
    return (number if on_sqlite(tx) else select(fences.next_value())).scalar_subquery()


def draw_fence(tx: Tx) -> int:
    """A fresh fence number at once."""
    return int(run_text(tx, DRAW_FENCE if on_sqlite(tx) else "SELECT nextval('fences')")[0][0])


def notify(tx: Tx, what: str) -> None:
    """Wake other processes once this transaction commits."""
    if on_sqlite(tx):
        tx.info.setdefault(NOTIFIED_TOPICS, set()).add(what)
    else:
        run_text(tx, NOTIFY, [CHANNEL, what])
