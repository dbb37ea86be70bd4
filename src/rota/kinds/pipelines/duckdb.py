"""The DuckDB executor of pipelines. A table is a Parquet file, replaced atomically: readers keep the file that they
opened, no process waits for another, and a failed run leaves the table as it was.

Each run has an in-memory database of its own with access to the files that it reads and the one it writes, no others.
"""

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import duckdb

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, LogicError, WorkError
from rota.core.ids import new_id
from rota.db.paging import Record
from rota.db.private_files import make_private_dir
from rota.engine.org_limit import OrgLimit
from rota.engine.runner import Busy
from rota.kinds.pipelines.executor import Materialisation, MaterialisationResult
from rota.kinds.pipelines.registry import path_of

T = TypeVar("T")

PREVIEW_SECONDS = 30.0
MAX_PREVIEWS, MAX_PREVIEWS_PER_ORG = 2, 1  # concurrent
INTERRUPT_SECONDS = 0.1  # between interrupts: one that comes before its statement is lost


class DuckDB:
    """An Executor with so many slots; its files are in `place`, by org."""

    def __init__(self, place: Path, slots: int) -> None:
        self.place, self.slots = place.absolute(), slots
        self.running: dict[str, duckdb.DuckDBPyConnection | None] = {}
        self.log_lines: dict[str, list[str]] = {}
        self.threads = ThreadPoolExecutor(slots + MAX_PREVIEWS, "rota-duckdb")  # previews do not wait for runs
        self.previews = OrgLimit(MAX_PREVIEWS, MAX_PREVIEWS_PER_ORG)

    def capacity(self) -> int:
        return self.slots - len(self.running)

    async def submit(self, order: Materialisation) -> MaterialisationResult:
        if self.capacity() <= 0:
            raise Busy(f"all {self.slots} slots of the pipeline executor are in use")
        self.running[order.run_id] = None
        table = self.file(order.org_id, order.path)
        draft = table.with_name(f".{table.stem}.{order.run_id}")
        began = stopwatch()
        try:
            make_private_dir(draft.parent)
            with await asyncio.to_thread(self.database, order.org_id, order.reads, draft) as con:
                self.running[order.run_id] = con
                write = functools.partial(self.write, con, draft)
                rows = await (write(order.work) if isinstance(order.work, str) else order.work(con, write))
            if draft.exists():
                await replace_table(draft, table)
            self.log(order, f"{order.path}: {rows} rows in {stopwatch() - began:.2f} s")
            return MaterialisationResult(rows, stopwatch() - began)
        finally:
            del self.running[order.run_id]
            draft.unlink(missing_ok=True)

    async def cancel(self, run_id: str) -> None:
        con = self.running.get(run_id)
        if con is not None:
            con.interrupt()

    def logs(self, run_id: str) -> list[str]:
        return self.log_lines.pop(run_id, [])

    def log(self, order: Materialisation, line: str) -> None:
        self.log_lines.setdefault(order.run_id, []).append(line)

    async def write(self, con: duckdb.DuckDBPyConnection, draft: Path, result: object) -> int:
        """Write the rows of a query, or of the relation that a function returned; returns their count."""
        if result is None:
            return 0
        if isinstance(result, str):
            copy = f"COPY ({query(result)}) TO {quoted(draft)} (FORMAT parquet, USE_TMP_FILE false)"
            count = await self.run(con, lambda: con.execute(copy).fetchone())
            return int(count[0]) if count else 0
        if not isinstance(result, duckdb.DuckDBPyRelation):
            raise LogicError(f"a pipeline must return a relation like con.sql(…), or None; it returned {type(result)}")
        relation = result
        await self.run(con, lambda: relation.write_parquet(str(draft)))
        count = await self.run(con, lambda: con.execute(f"SELECT count(*) FROM {parquet(draft)}").fetchone())
        return int(count[0]) if count else 0

    def check(self, sql: str) -> list[str]:
        try:
            with duckdb.connect(config=LOCKED) as con:
                types = [statement.type for statement in con.extract_statements(sql)]
                if types != [duckdb.StatementType.SELECT]:
                    raise Invalid("sql", sql, "is not a single SELECT statement")
                con.extract_statements(f"SELECT * FROM ({query(sql)})")  # rejects text after its end
                (text,) = con.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0]
        except duckdb.Error as error:
            raise Invalid("sql", sql, f"is not SQL: {error}") from error
        try:
            tree = json.loads(text)
        except RecursionError as error:
            raise Invalid("sql", sql, "is nested too deeply") from error
        if tree["error"]:
            raise Invalid("sql", sql, f"is not SQL: {tree['error_message']}")
        return sorted(set(tables(tree)))

    async def preview(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[object]]]:
        async with self.previews.place(org_id):
            return await self.first_rows(org_id, sql, limit)

    async def first_rows(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[object]]]:
        reads = self.check(sql)
        try:
            with await asyncio.to_thread(self.database, org_id, reads) as con:

                def select() -> tuple[list[dict[str, str]], list[list[object]]]:
                    result = con.execute(f"SELECT * FROM ({query(sql)}) LIMIT {limit}")
                    columns = [{"name": column[0], "type": str(column[1])} for column in result.description]
                    return columns, [[plain(value) for value in row] for row in result.fetchall()]

                async with asyncio.timeout(PREVIEW_SECONDS):
                    return await self.run(con, select)
        except (duckdb.Error, WorkError, TimeoutError) as error:
            timed_out = isinstance(error, TimeoutError)
            reason = f"took longer than {PREVIEW_SECONDS:g} s" if timed_out else f"fails: {error}"
            raise Invalid("sql", sql, reason) from error

    def database(self, org_id: str, reads: Sequence[str], draft: Path | None = None) -> duckdb.DuckDBPyConnection:
        """Return a database with views of the tables that are read, and no other access. Raises WorkError for a table
        that does not exist yet."""
        files = {path: self.file(org_id, path) for path in reads}
        missing = [path for path, file in files.items() if not file.exists()]
        if missing:
            raise WorkError(f"pipeline {missing[0]!r} has no table yet; run it first")
        spill = self.place / ".spill" / new_id()  # per database: its files are deleted on close
        make_private_dir(spill.parent)
        limits: Config = {
            "memory_limit": f"{max(1, 80 // (self.slots + MAX_PREVIEWS))}%",
            "temp_directory": str(spill),
        }
        con = duckdb.connect(config=limits)
        con.execute("SET enable_progress_bar = false")  # it would write to the terminal
        allowed = [*files.values(), *([draft] if draft else [])]
        con.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
        for namespace in sorted({path.split("/")[0] for path in files}):
            con.execute(f"ATTACH ':memory:' AS {named(namespace)}")
        for path, file in files.items():
            namespace, layer, name = map(named, path.split("/"))
            con.execute(f"CREATE SCHEMA IF NOT EXISTS {namespace}.{layer}")
            con.execute(f"CREATE VIEW {namespace}.{layer}.{name} AS SELECT * FROM {parquet(file)}")
        for setting, value in LOCKED.items():
            con.execute(f"SET {setting} = {value}")
        return con

    async def run(self, con: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
        """Run a statement in a thread; when canceled, interrupt it until it has ended."""
        future = asyncio.get_running_loop().run_in_executor(self.threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                con.interrupt()
                with contextlib.suppress(asyncio.CancelledError):  # already canceled
                    await asyncio.wait([future], timeout=INTERRUPT_SECONDS)
            future.exception()  # retrieved, so that asyncio does not log it
            raise

    def file(self, org_id: str, path: str) -> Path:
        return self.place / org_id / f"{path}.parquet"


Config = dict[str, str | bool | int | float | list[str]]
LOCKED: Config = {  # the last one forbids to change the others
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}


async def replace_table(draft: Path, table: Path) -> None:
    """Rename the draft to the table, and fsync both: a success survives a power cut. Cancellation is ignored from
    here."""

    def move() -> None:
        draft.chmod(0o600)
        fsync(draft)
        draft.replace(table)
        fsync(table.parent)  # else a crash may bring the old table back

    moving = asyncio.ensure_future(asyncio.to_thread(move))
    while not moving.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([moving])
    moving.result()


def fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def tables(tree: object) -> Iterator[str]:
    """Yield the paths of the tables in a query's syntax tree, without its CTEs. Raises Invalid for other tables."""
    cte_maps = [node["cte_map"] for node in walk(tree) if node.get("cte_map")]
    ctes = {str(cte["key"]).lower() for cte_map in cte_maps for cte in cte_map.get("map", [])}
    for node in walk(tree):
        if node.get("type") == "BASE_TABLE":
            parts = [node["catalog_name"], node["schema_name"], node["table_name"]]
            if parts[:2] == ["", ""] and parts[2].lower() in ctes:
                continue
            try:
                yield path_of(*(part.lower() for part in parts))
            except Invalid as error:
                name = ".".join(part for part in parts if part)
                raise Invalid("sql", name, "is not the table of a pipeline, namespace.layer.name") from error


def walk(tree: object) -> Iterator[Record]:
    """Yield all objects of a syntax tree, parents first; iterative, since a query can nest deeply."""
    rest = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            yield node
            rest.extend(reversed(node.values()))
        elif isinstance(node, list):
            rest.extend(reversed(node))


def query(sql: str) -> str:
    """Return a query to be embedded in another statement: without `;`, and with a newline that ends a comment."""
    return sql.rstrip().rstrip(";") + "\n"


def quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def named(part: str) -> str:
    return f'"{part}"'


def parquet(file: Path) -> str:
    return f"read_parquet({quoted(file)})"


def plain(value: object) -> object:
    """Return a JSON value as it is, any other value as text."""
    if isinstance(value, bool | str | float | None) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return str(value)
