"""Pipelines on DuckDB. A table is a Parquet file, replaced as a whole: readers keep what they have opened, no process
waits for another, and a run that fails leaves the table as it was.

Each run has a database of its own, in memory, that can reach the files it reads, the one it writes, and nothing else.
"""

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, LogicError, WorkError
from rota.core.ids import new_id
from rota.db.private_files import make_private_dir
from rota.engine.org_limit import OrgLimit
from rota.engine.runner import Busy
from rota.kinds.pipelines.executor import Order, Written
from rota.kinds.pipelines.registry import path_of

T = TypeVar("T")

PREVIEW_SECONDS = 30.0
PREVIEWS, PREVIEWS_PER_ORG = 2, 1  # at once
AGAIN = 0.1  # seconds between two interrupts: one that comes before its statement is lost


class DuckDB:
    def __init__(self, place: Path, slots: int) -> None:
        self.place, self.slots = place.absolute(), slots
        self.running: dict[str, duckdb.DuckDBPyConnection | None] = {}
        self.said: dict[str, list[str]] = {}
        self.threads = ThreadPoolExecutor(slots + PREVIEWS, "rota-duckdb")  # previews do not wait for runs
        self.previews = OrgLimit(PREVIEWS, PREVIEWS_PER_ORG)

    def capacity(self) -> int:
        return self.slots - len(self.running)

    async def submit(self, order: Order) -> Written:
        if self.capacity() <= 0:
            raise Busy(f"all {self.slots} places for pipelines are taken")
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
                await put_in_place(draft, table)
            self.say(order, f"{order.path}: {rows} rows in {stopwatch() - began:.2f} s")
            return Written(rows, stopwatch() - began)
        finally:
            del self.running[order.run_id]
            draft.unlink(missing_ok=True)

    async def cancel(self, run_id: str) -> None:
        con = self.running.get(run_id)
        if con is not None:
            con.interrupt()

    def logs(self, run_id: str) -> list[str]:
        return self.said.pop(run_id, [])

    def say(self, order: Order, line: str) -> None:
        self.said.setdefault(order.run_id, []).append(line)

    async def write(self, con: duckdb.DuckDBPyConnection, draft: Path, result: Any) -> int:
        """Make the table of a query, or of what a function returned: a relation, or nothing."""
        if result is None:
            return 0
        if isinstance(result, str):
            copy = f"COPY ({query(result)}) TO {quoted(draft)} (FORMAT parquet, USE_TMP_FILE false)"
            found = await self.run(con, lambda: con.execute(copy).fetchone())
            return int(found[0]) if found else 0
        if not isinstance(result, duckdb.DuckDBPyRelation):
            raise LogicError(f"a pipeline returns a relation, like con.sql(…), or nothing, but not {type(result)}")
        relation = result
        await self.run(con, lambda: relation.write_parquet(str(draft)))
        found = await self.run(con, lambda: con.execute(f"SELECT count(*) FROM {parquet(draft)}").fetchone())
        return int(found[0]) if found else 0

    def check(self, sql: str) -> list[str]:
        try:
            with duckdb.connect(config=LOCKED) as con:
                kinds = [one.type for one in con.extract_statements(sql)]
                if kinds != [duckdb.StatementType.SELECT]:
                    right = "is not one SELECT: a pipeline reads tables, and what it selects becomes its own"
                    raise Invalid("sql", sql, right)
                con.extract_statements(f"SELECT * FROM ({query(sql)})")  # nothing stands behind its end
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

    async def preview(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[Any]]]:
        async with self.previews.place(org_id):
            return await self.look(org_id, sql, limit)

    async def look(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[Any]]]:
        reads = self.check(sql)
        try:
            with await asyncio.to_thread(self.database, org_id, reads) as con:

                def look() -> tuple[list[dict[str, str]], list[list[Any]]]:
                    found = con.execute(f"SELECT * FROM ({query(sql)}) LIMIT {limit}")
                    columns = [{"name": one[0], "type": str(one[1])} for one in found.description]
                    return columns, [[plain(value) for value in row] for row in found.fetchall()]

                async with asyncio.timeout(PREVIEW_SECONDS):
                    return await self.run(con, look)
        except (duckdb.Error, WorkError, TimeoutError) as error:
            why = f"took longer than {PREVIEW_SECONDS:g} s" if isinstance(error, TimeoutError) else f"fails: {error}"
            raise Invalid("sql", sql, why) from error

    def database(self, org_id: str, reads: Sequence[str], draft: Path | None = None) -> duckdb.DuckDBPyConnection:
        """A database with the tables that are read, and the door locked behind them."""
        files = {path: self.file(org_id, path) for path in reads}
        missing = [path for path, file in files.items() if not file.exists()]
        if missing:
            raise WorkError(f"{missing[0]} has no table yet: it must succeed once before it is read")
        spill = self.place / ".spill" / new_id()  # of its own: what it spills there is gone when it is closed
        make_private_dir(spill.parent)
        room: dict[str, Any] = {
            "memory_limit": f"{max(1, 80 // (self.slots + PREVIEWS))}%",
            "temp_directory": str(spill),
        }
        con = duckdb.connect(config=room)
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
        """Run a statement in a thread; cancelled, it is interrupted until it has ended."""
        future = asyncio.get_running_loop().run_in_executor(self.threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                con.interrupt()
                with contextlib.suppress(asyncio.CancelledError):  # once is enough
                    await asyncio.wait([future], timeout=AGAIN)
            future.exception()  # seen: it is what was asked for
            raise

    def file(self, org_id: str, path: str) -> Path:
        return self.place / org_id / f"{path}.parquet"


LOCKED: dict[str, Any] = {  # the last one keeps the others as they are
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}


async def put_in_place(draft: Path, table: Path) -> None:
    """What the ledger calls a success survives a power cut. Whoever cancels now comes too late."""

    def move() -> None:
        draft.chmod(0o600)
        synced(draft)
        draft.replace(table)
        synced(table.parent)  # else the name may point to the old table again

    moving = asyncio.ensure_future(asyncio.to_thread(move))
    while not moving.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([moving])
    moving.result()


def synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def tables(tree: Any) -> Iterator[str]:
    """The paths of the tables in a query's syntax tree; names that the query gives itself are none."""
    ctes = [one["cte_map"] for one in walk(tree) if one.get("cte_map")]
    own = {str(cte["key"]).lower() for found in ctes for cte in found.get("map", [])}
    for one in walk(tree):
        if one.get("type") == "BASE_TABLE":
            parts = [one["catalog_name"], one["schema_name"], one["table_name"]]
            if parts[:2] == ["", ""] and parts[2].lower() in own:
                continue
            try:
                yield path_of(*(part.lower() for part in parts))
            except Invalid as error:
                told = ".".join(part for part in parts if part)
                raise Invalid("sql", told, "is not the table of a pipeline, namespace.layer.name") from error


def walk(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a syntax tree, each before those inside it; without recursion, since a query can nest deeply."""
    rest = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            yield node
            rest.extend(reversed(node.values()))
        elif isinstance(node, list):
            rest.extend(reversed(node))


def query(sql: str) -> str:
    """A query as it stands inside another statement: without its end, and with comments closed."""
    return sql.rstrip().rstrip(";") + "\n"


def quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def named(part: str) -> str:
    return f'"{part}"'


def parquet(file: Path) -> str:
    return f"read_parquet({quoted(file)})"


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has not is told as text."""
    if isinstance(value, bool | str | float | None) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return str(value)
