"""The DuckDB executor of pipelines. A table is a Parquet file, replaced atomically: readers keep the file that they
opened, no process waits for another, and a failed run leaves the table as it was.

Each run has an in-memory database of its own with access to the files that it reads and the one it writes, no others.
A database that is locked to its files stays so, and is never used again. To open and close one takes longer than a
small query, so after a run its database is replaced in the background by a spare one for the next run.
"""

import asyncio
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import duckdb

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, LogicError, WorkError
from rota.core.ids import new_id
from rota.db.paging import Record
from rota.db.private_files import make_private_dir
from rota.engine.runner import Busy
from rota.kinds.pipelines.executor import Materialisation, MaterialisationResult
from rota.kinds.pipelines.fences import Fence, still_newest, take_over
from rota.kinds.pipelines.files import fsync
from rota.kinds.pipelines.increments import Increment, check_columns
from rota.kinds.pipelines.previews import shortened_values
from rota.kinds.pipelines.registry import path_of
from rota.kinds.pipelines.tables import PipelineTables
from rota.kinds.pipelines.threaded import MAX_PREVIEWS, PREVIEW_SECONDS, ThreadedExecutor, plain

T = TypeVar("T")


class DuckDB(ThreadedExecutor):
    """An Executor with so many slots; its files are in `place`, by org."""

    def __init__(self, place: Path, slots: int) -> None:
        super().__init__(slots, "rota-duckdb")
        self.place = place.absolute()
        self.spares: list[Future[duckdb.DuckDBPyConnection]] = []  # at most one; no query had it

    async def submit(self, order: Materialisation) -> MaterialisationResult:
        if self.capacity() <= 0:
            raise Busy(f"all {self.slots} slots of the pipeline executor are in use")
        self.running[order.run_id] = None
        table = self.file(order.org_id, order.path)
        draft = table.with_name(f".{table.stem}.{order.run_id}")
        began = stopwatch()
        try:
            make_private_dir(draft.parent)
            fence, fence_file = Fence(order.org_id, order.fence), table.with_name(f".{table.stem}.fence")
            await self.in_thread(take_over, fence_file, fence)
            old = table if order.increment is not None and table.exists() else None
            con = await self.in_thread(self.database, order.org_id, order.reads, draft, old)
            self.running[order.run_id] = con
            try:
                write = functools.partial(self.write, con, order, draft, old)
                if isinstance(order.work, str):
                    rows: int | None = await write(order.work)
                else:
                    rows = await order.work(DuckDBConnection(con, order.reads), write)
            except BaseException:
                await self.to_the_end(con.close)
                raise
            self.running[order.run_id] = None
            replace = functools.partial(replace_table, draft, table, fence_file, fence)
            last_calls = [replace] if draft.exists() else []
            if self.spares:
                last_calls.append(functools.partial(con.close))
            else:
                self.spares.append(self.threads.submit(self.reopen, con))
            await self.to_the_end(*last_calls)
            self.log(order, f"{order.path}: {rows} rows in {stopwatch() - began:.2f} s")
            return MaterialisationResult(rows, stopwatch() - began)
        finally:
            del self.running[order.run_id]
            draft.unlink(missing_ok=True)

    async def cancel(self, run_id: str) -> None:
        con = self.running.get(run_id)
        if con is not None:
            con.interrupt()

    async def write(
        self,
        con: duckdb.DuckDBPyConnection,
        order: Materialisation,
        draft: Path,
        old: Path | None,
        result: object,
    ) -> int:
        """Write the rows of a query, or of the relation that a function returned; returns their count."""
        if result is None:
            return 0
        if order.increment is not None:
            change = functools.partial(write_change, con, order.path, order.increment, draft, old, result)
            return await self.run(con, change)
        if isinstance(result, str):
            copy = f"COPY ({query(result)}) TO {quoted(draft)} (FORMAT parquet, USE_TMP_FILE false)"
            count = await self.run(con, lambda: con.execute(copy).fetchone())
            return int(count[0]) if count else 0
        relation = await self.run(con, lambda: relation_of(con, result))
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
            with await self.in_thread(self.database, org_id, reads) as con:

                def select() -> tuple[list[dict[str, str]], list[list[object]]]:
                    rows = con.sql(f"SELECT * FROM ({query(sql)}) LIMIT {limit}")
                    columns = [
                        {"name": name, "type": str(column_type)}
                        for name, column_type in zip(rows.columns, rows.types, strict=True)
                    ]
                    names = [f"c{number}" for number in range(len(columns))]
                    short = ", ".join(shortened_values(names, [column["type"] for column in columns], "VARCHAR"))
                    preview = f"(SELECT * FROM ({query(sql)}) LIMIT {limit}) AS preview({', '.join(names)})"
                    found = con.execute(f"SELECT {short} FROM {preview}").fetchall()
                    return columns, [[plain(value) for value in row] for row in found]

                async with asyncio.timeout(PREVIEW_SECONDS):
                    return await self.run(con, select)
        except (duckdb.Error, WorkError, TimeoutError) as error:
            timed_out = isinstance(error, TimeoutError)
            reason = f"took longer than {PREVIEW_SECONDS:g} s" if timed_out else f"fails: {error}"
            raise Invalid("sql", sql, reason) from error

    def database(
        self, org_id: str, reads: Sequence[str], draft: Path | None = None, old: Path | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Return a database with views of the tables that are read, and no other access. Raises WorkError for a table
        that does not exist yet."""
        files = {path: self.file(org_id, path) for path in reads}
        missing = [path for path, file in files.items() if not file.exists()]
        if missing:
            raise WorkError(f"pipeline {missing[0]!r} has no table yet; run it first")
        allowed = [*files.values(), *filter(None, (draft, old))]
        statements = [f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]"]
        for namespace in sorted({path.split("/")[0] for path in files}):
            statements.append(f"ATTACH ':memory:' AS {named(namespace)}")
        for path, file in files.items():
            namespace, layer, name = map(named, path.split("/"))
            statements.append(f"CREATE SCHEMA IF NOT EXISTS {namespace}.{layer}")
            statements.append(f"CREATE VIEW {namespace}.{layer}.{name} AS SELECT * FROM {parquet(file)}")
        statements += [f"SET {setting} = {value}" for setting, value in LOCK.items()]
        try:
            con = self.spares.pop().result()
        except (IndexError, duckdb.Error):  # no spare is left, or it could not be opened
            con = self.connect()
        try:
            con.execute("; ".join(statements))
        except BaseException:
            con.close()
            raise
        return con

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open a database that has its limits, but is not locked to files yet."""
        spill = self.place / ".spill" / new_id()  # per database: its files are deleted on close
        make_private_dir(spill.parent)
        memory_limit = f"{max(1, 80 // (self.slots + MAX_PREVIEWS))}%"
        con = duckdb.connect(config={"memory_limit": memory_limit, "temp_directory": str(spill), **NO_EXTENSIONS})
        con.execute("SET enable_progress_bar = false")  # it would write to the terminal
        return con

    def reopen(self, used: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        """Close the database of a run and open a spare one."""
        used.close()
        return self.connect()

    async def verify(self) -> None:
        """DuckDB needs no configuration."""

    async def close(self) -> None:
        while self.spares:
            spare = self.spares.pop()
            with contextlib.suppress(duckdb.Error):  # it could not be opened
                (await asyncio.wrap_future(spare)).close()

    async def run(self, con: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
        """Run a statement in a thread; when canceled, interrupt it until it has ended."""

        async def interrupt() -> None:
            con.interrupt()

        return await self.interruptible(call, interrupt)

    def file(self, org_id: str, path: str) -> Path:
        return self.place / org_id / f"{path}.parquet"


class DuckDBConnection:
    """The Connection of a function."""

    def __init__(self, con: duckdb.DuckDBPyConnection, reads: Sequence[str]) -> None:
        self.con, self.reads = con, reads

    def duckdb_connection(self) -> duckdb.DuckDBPyConnection:
        return self.con

    def pipeline_tables(self) -> PipelineTables:
        backend = import_module("rota.kinds.pipelines.duckdb_backend").backend_of(self.con)
        tables = {}
        for path in self.reads:
            namespace, layer, name = path.split("/")
            tables[path] = functools.partial(backend.table, name, database=(namespace, layer))
        return PipelineTables(backend, tables)


def write_change(
    con: duckdb.DuckDBPyConnection,
    path: str,
    increment: Increment,
    draft: Path,
    old: Path | None,
    result: object,
) -> int:
    """Write the table after a change, from its old file; returns the count of the new rows."""
    if isinstance(result, str):
        source = query(result)
    else:
        relation_of(con, result).create_view("rota_returned", replace=True)
        source = "SELECT * FROM rota_returned"
    new_rows = increment.new_rows(source, parquet(old) if old else None, named)
    (count,) = con.execute(f"CREATE TEMP TABLE rota_new_rows AS {new_rows}").fetchone() or (0,)
    if wrong_keys := increment.wrong_keys("rota_new_rows", named):
        increment.check_keys((con.execute(wrong_keys).fetchone() or (0,))[0])
    rows = "SELECT * FROM rota_new_rows"
    if old is not None:
        kept = con.sql(f"SELECT * FROM {parquet(old)}")
        types = dict(zip(kept.columns, kept.types, strict=True))
        check_columns(path, kept.columns, con.sql(rows).columns)
        replaced = increment.replaced_rows("rota_new_rows", named)
        unchanged = f"SELECT * FROM {parquet(old)} AS old_rows" + (
            f" WHERE ({replaced}) IS NOT TRUE" if replaced else ""
        )
        casts = ", ".join(
            f"CAST({named(name)} AS {column_type}) AS {named(name)}" for name, column_type in types.items()
        )
        rows = f"{unchanged} UNION ALL SELECT {casts} FROM rota_new_rows"
    con.execute(f"COPY ({rows}) TO {quoted(draft)} (FORMAT parquet, USE_TMP_FILE false)")
    return int(count)


def relation_of(con: duckdb.DuckDBPyConnection, result: object) -> duckdb.DuckDBPyRelation:
    """Return what a function returned as a relation: a relation as it is, an Ibis table by its rows. Raises LogicError
    for anything else."""
    if isinstance(result, duckdb.DuckDBPyRelation):
        return result
    if (ibis := sys.modules.get("ibis")) is not None and isinstance(result, ibis.Table):
        backend = import_module("rota.kinds.pipelines.duckdb_backend").backend_of(con)
        return con.from_arrow(backend.to_pyarrow(result))
    raise LogicError(
        f"a pipeline must return a relation like con.sql(…), an Ibis table or None; it returned {type(result)}"
    )


Config = dict[str, str | bool | int | float | list[str]]
NO_EXTENSIONS: Config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
LOCK: Config = {"enable_external_access": "false", "lock_configuration": "true"}  # the last one locks all settings
LOCKED: Config = {**NO_EXTENSIONS, **LOCK}


def replace_table(draft: Path, table: Path, fence_file: Path, fence: Fence) -> None:
    """Rename the draft to the table, and fsync both: a success survives a power cut. Raises LeaseLost if a later run
    has started."""
    draft.chmod(0o600)
    fsync(draft)
    with still_newest(fence_file, fence):
        draft.replace(table)
        fsync(table.parent)  # else a crash may bring the old table back


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
