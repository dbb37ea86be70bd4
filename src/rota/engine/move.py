"""Move an installation to another database: copy all rows in batches, compare both sides, mark the source, on which
no process starts then, and release the target.

Until the end the target's schema has the mark `incomplete`, so that no process starts on it. Each batch commits with
the key of its last row: a repeated move continues there.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import orjson
from sqlalchemy import Column, MetaData, String, Table, Text, insert, select, text
from sqlalchemy.util import await_only

from rota.core.clock import blocking_sleep
from rota.core.errors import Conflict, Unavailable
from rota.db import rows
from rota.db.backup import Bar
from rota.db.blocking import commit_part, is_open, locked, reading, run_blocking, users_of, writing
from rota.db.connection import open_database
from rota.db.dialect import Tx, database_now, last_fence, set_sequences, upsert
from rota.db.schema import INCOMPLETE, MOVED, MOVED_TABLE, VERSION_TABLE, check, revision_of, revisions
from rota.engine import workers
from rota.engine.slot_audit import audit_all

WAIT_SECONDS = 1.0  # between two looks for processes that still use the source

copied = Table(  # in the target, while it is incomplete
    "copied",
    MetaData(),
    Column("table_name", String(63), primary_key=True),
    Column("last_key", Text, nullable=False),
)


moved_to = Table(MOVED_TABLE, MetaData(), Column("url", Text, nullable=False))  # in the source, after the move


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of a move."""

    tables: int
    rows: int
    slots: int
    problems: list[str]  # of the slot audit; the same on both sides


def processes_on(url: str) -> list[str]:
    """Return the processes that use a database: live workers, and programs that are connected."""
    return run_blocking(processes_on_blocking, url)


def wait_until_unused(url: str) -> None:
    """Return when no process uses the database."""
    while processes_on(url):
        blocking_sleep(WAIT_SECONDS)


def move(source: str, target: str, bar: Bar) -> Moved:
    """Copy all rows to an empty database, or continue an interrupted copy, and compare both. No other process can write
    to the source before it returns, and none starts on it afterwards. Raises Conflict if a process uses the source, if
    the target is not empty, or if both differ."""
    if using := processes_on(source):
        raise Conflict(f"the database is in use by {', '.join(using)}; stop them, or wait for them with --wait")
    return run_blocking(move_blocking, source, target, bar)


def processes_on_blocking(url: str) -> list[str]:
    with reading(url) as tx:
        if (revision := revision_of(tx)) not in (revisions()[-1], MOVED + revisions()[-1]):
            raise Unavailable(check(tx) or f"the database has the newer schema {revision}; use that version of Rota")
        using = [*workers.live_names(tx, database_now(tx)), *users_of(tx)]
    return using or (["a process that has the file open"] if is_open(url) else [])


def move_blocking(source: str, target: str, bar: Bar) -> Moved:
    revision = revisions()[-1]
    with locked(source, lambda tx: [table.name for table in rows.tables_of(tx, revision)]) as reader:
        if using := workers.live_names(reader, database_now(reader)):
            raise Conflict(f"a worker has started: {', '.join(using)}")
        tables = rows.tables_of(reader, revision)
        with writing(target) as writer:
            if revision_of(reader) != revision and revision_of(writer) != INCOMPLETE + revision:
                raise Unavailable(check(reader) or "the schema of the source has changed")
            begin_copy(writer, revision)
            total = rows.count_rows(reader, tables)
            with bar(3 * total) as advance:
                targets = {table.name: table for table in rows.tables_of(writer, revision)}
                for table in tables:
                    advance(copy_table(reader, table, writer, targets[table.name], advance))
                for table in tables:
                    compare(reader, table, writer, targets[table.name], advance)
            set_sequences(writer, last_fence(reader) + rows.FENCES_SKIPPED)
            commit_part(writer)
            slots, problems = compare_audits(source, target, reader)
            mark_moved(reader, revision, target)
            commit_part(reader)
            end_copy(writer, revision)
    return Moved(len(tables), total, slots, problems)


def begin_copy(tx: Tx, revision: str) -> None:
    """Create the tables and mark them as incomplete, unless an interrupted copy of the same revision has done it."""
    if revision_of(tx) != INCOMPLETE + revision:
        rows.create_empty(tx, revision)
        copied.create(tx)
        set_revision(tx, INCOMPLETE + revision)
        commit_part(tx)


def end_copy(tx: Tx, revision: str) -> None:
    copied.drop(tx)
    set_revision(tx, revision)


def mark_moved(tx: Tx, revision: str, target: str) -> None:
    """Let no process start on the source any more. It is committed before the target is released, so that there is no
    time in which processes start on both; a move that is interrupted in between is repeated."""
    if revision_of(tx) == MOVED + revision:
        return
    moved_to.create(tx)
    tx.execute(insert(moved_to).values(url=without_credentials(target)))
    set_revision(tx, MOVED + revision)


def reopen(url: str) -> None:
    """Remove the mark of a database that an installation has moved from, so that processes start on it again."""

    def step() -> None:
        with writing(url) as tx:
            revision = revision_of(tx)
            if revision is not None and revision.startswith(MOVED):
                moved_to.drop(tx)
                set_revision(tx, revision.removeprefix(MOVED))

    run_blocking(step)


def without_credentials(url: str) -> str:
    """Return a database URL without user, password and options, which may have one."""
    if url.startswith("sqlite"):
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def set_revision(tx: Tx, revision: str) -> None:
    tx.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = :revision"), {"revision": revision})


def copy_table(reader: Tx, source: Table, writer: Tx, target: Table, advance: rows.Progress) -> int:
    """Copy the rows that are not copied yet; returns the number of those that were."""
    stmt = select(copied.c.last_key).where(copied.c.table_name == source.name)
    last_key = writer.execute(stmt).scalar_one_or_none()
    done = 0 if last_key is None else rows.count_rows(writer, [target])
    for page in rows.read_pages(reader, source, None if last_key is None else orjson.loads(last_key)):
        rows.write_lines(writer, target, page, advance)
        key = {"last_key": orjson.dumps(rows.key_of(source, page[-1])).decode()}
        mark = upsert(writer, copied).values(table_name=source.name, **key)
        writer.execute(mark.on_conflict_do_update(index_elements=[copied.c.table_name], set_=key))
        commit_part(writer)
    return done


def compare(reader: Tx, source: Table, writer: Tx, target: Table, advance: rows.Progress) -> None:
    """Raise Conflict if a table's number or hash of rows differs."""
    before, after = rows.sum_of(reader, source, advance), rows.sum_of(writer, target, advance)
    if before != after:
        raise Conflict(
            f"table {source.name} has {before.rows} rows in the source and {after.rows} in the target, and they "
            "differ: the source has changed since the move began. Start again with another, empty database"
        )


def compare_audits(source: str, target: str, tx: Tx) -> tuple[int, list[str]]:
    """Run the slot audit on both sides; returns the number of slots and its problems. Raises Conflict if the audits
    differ."""
    now = database_now(tx)
    reports = []
    for url in (source, target):
        db = open_database(url, pool=1)
        try:
            reports.append(await_only(audit_all(db, now)))
        finally:
            await_only(db.close())
    before, after = reports
    if before != after:
        raise Conflict(f"the slot audit differs: {before[1] or 'no problem'} in the source, {after[1]} in the target")
    return after
