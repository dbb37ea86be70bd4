"""What truly differs between SQLite and PostgreSQL, each with its reason. No other module asks which database it is."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import ARRAY, BigInteger, Connection, FromClause, String, Table, Text, bindparam, column, func, select
from sqlalchemy import text as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from rota.store.tables import EPOCH, fences

Tx = Connection

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


def rows(tx: Tx, columns: Mapping[str, TypeEngine[Any]], records: Sequence[Sequence[Any]], name: str) -> FromClause:
    """A batch of records as a table, so that one statement handles them all: arrays here, one JSON text there."""
    if on_sqlite(tx):
        bind = [kind.dialect_impl(tx.dialect).bind_processor(tx.dialect) for kind in columns.values()]
        plain = [[fix(item) if fix else item for fix, item in zip(bind, record, strict=True)] for record in records]
        each = func.json_each(bindparam(f"{name}_rows", orjson.dumps(plain).decode(), Text)).table_valued("value")
        fields = [
            func.json_extract(each.c.value, f"$[{position}]", type_=kind).label(field)
            for position, (field, kind) in enumerate(columns.items())
        ]
        return select(*fields).subquery(name)
    arrays = [
        bindparam(f"{name}_{field}", [record[position] for record in records], ARRAY(widened(kind), dimensions=1))
        for position, (field, kind) in enumerate(columns.items())
    ]
    named = [column(field, widened(kind)) for field, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*named, name=name).render_derived()


def widened(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """A cast to varchar(n) would cut a text in silence; the column itself refuses one that is too long."""
    return Text() if isinstance(kind, String) else kind


def insert_rows(tx: Tx, table: Table, records: Sequence[Mapping[str, Any]]) -> None:
    """Insert a batch in one statement; all records have the same keys."""
    if not records:
        return
    names = list(records[0])
    source = rows(tx, {name: table.c[name].type for name in names}, [tuple(r.values()) for r in records], "new")
    tx.execute(table.insert().from_select(names, select(*(source.c[name] for name in names))))


def upsert(tx: Tx, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """An INSERT that knows ON CONFLICT; the two dialects spell it alike, but as two classes."""
    return sqlite.insert(table) if on_sqlite(tx) else postgresql.insert(table)


def insert_new(tx: Tx, table: Table, records: Sequence[Mapping[str, Any]], returning: Iterable[str]) -> list[Any]:
    """Insert those records that meet no conflict, and tell which: row counts of skipped INSERTs differ by driver."""
    if not records:
        return []
    names = list(records[0])
    source = rows(tx, {name: table.c[name].type for name in names}, [tuple(r.values()) for r in records], "new")
    # SQLite cannot tell ON CONFLICT from a join's ON without a WHERE
    stmt = upsert(tx, table).from_select(names, select(*(source.c[name] for name in names)).where(sql("true")))
    return list(tx.execute(stmt.on_conflict_do_nothing().returning(*(table.c[name] for name in returning))))


def lock_keys(tx: Tx, keys: Iterable[str]) -> None:
    """Take the advisory locks of these keys, in one order for everybody. SQLite has one writer: nothing to do."""
    ordered = sorted(set(keys))
    if not ordered or on_sqlite(tx):
        return
    tx.execute(
        sql(
            "SELECT count(pg_advisory_xact_lock(k)) FROM "
            "(SELECT DISTINCT hashtextextended(key, 0) AS k FROM unnest(CAST(:keys AS text[])) AS key ORDER BY k) AS o"
        ),
        {"keys": ordered},
    )


def fenced(tx: Tx, picked: FromClause) -> FromClause:
    """The picked ids with fresh fence numbers. SQLite has no sequences: a counter row, under the one write lock."""
    if not on_sqlite(tx):
        return select(picked.c.id, fences.next_value().label("fence")).subquery("taken")
    ids = list(tx.execute(select(picked.c.id)).scalars())
    last = 0
    if ids:
        bump = sql("UPDATE counters SET value = value + :n WHERE name = 'fences' RETURNING value")
        last = tx.execute(bump, {"n": len(ids)}).scalar_one()
    numbered = [(one, last - len(ids) + 1 + position) for position, one in enumerate(ids)]
    return rows(tx, {"id": Text(), "fence": BigInteger()}, numbered, "taken")


def notify(tx: Tx, what: str) -> None:
    """Wake other processes once this transaction commits. SQLite's processes watch the file's version instead."""
    if not on_sqlite(tx):
        tx.execute(sql("SELECT pg_notify(:channel, :what)"), {"channel": CHANNEL, "what": what})
