"""The executor of pipelines on an engine that is reached by Ibis. The engine keeps the tables: a run builds its rows
beside its table and replaces it atomically, so that readers never see a part and a failed run changes nothing.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import ibis

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, LogicError, Unavailable, WorkError
from rota.engine.runner import Busy
from rota.kinds.pipelines.duckdb_copy import copied_to_duckdb
from rota.kinds.pipelines.executor import Materialisation, MaterialisationResult, SlugOf
from rota.kinds.pipelines.fences import Fence
from rota.kinds.pipelines.increments import Increment
from rota.kinds.pipelines.selects import read_select, tables_of, with_tables
from rota.kinds.pipelines.tables import PipelineTables
from rota.kinds.pipelines.threaded import PREVIEW_SECONDS, ThreadedExecutor, plain

T = TypeVar("T")

IDENTIFIER_BYTES = 63  # of PostgreSQL; other engines allow more
Preview = tuple[list[dict[str, str]], list[list[object]]]


class Place(NamedTuple):
    """A table of the engine."""

    schema: str  # empty: a temporary view of a session
    name: str


class Session(Protocol):
    """A connection for one run or preview. Its methods block; only `cancel` is called beside another."""

    backend: Any  # of Ibis

    def begin(self, place: Place, fence: Fence) -> None:
        """Prepare to write a table. Raises LeaseLost if a later run writes it, where the engine can know."""
        ...

    def locate(self, place: Place) -> Place | None:
        """Return where queries of this session find a table; None if it does not exist."""
        ...

    def build(self, path: str, place: Place, sql: str, increment: Increment | None) -> int:
        """Write the rows of a query where no reader sees them; returns their count."""
        ...

    def commit(self) -> None:
        """Make what was built the table, atomically. Raises LeaseLost as `begin` does."""
        ...

    def first_rows(self, sql: str, limit: int, seconds: float) -> tuple[list[dict[str, str]], list[tuple[object, ...]]]:
        """Return the columns and first rows of a query. Cannot write."""
        ...

    def cancel(self) -> None:
        """Interrupt the statement that runs."""
        ...

    def close(self) -> None:
        """Close the connection; what was not committed is gone."""
        ...


class Warehouse(Protocol):
    """An engine."""

    dialect: str  # of sqlglot
    errors: tuple[type[Exception], ...]  # of wrong SQL

    def place_of(self, slug: str, path: str) -> Place:
        """Return the table of a pipeline."""
        ...

    def open(self, run_id: str) -> Session:
        """Connect. Raises TransientError if the engine is out of reach, Conflict if it refuses."""
        ...


class IbisExecutor(ThreadedExecutor):
    """An Executor with so many slots on an engine."""

    def __init__(self, warehouse: Warehouse, slots: int, slug_of: SlugOf) -> None:
        super().__init__(slots, "rota-ibis")
        self.warehouse, self.slug_of = warehouse, slug_of
        self.verified = False
        self.preview_errors: tuple[type[Exception], ...] = (*warehouse.errors, WorkError, TimeoutError)

    async def submit(self, order: Materialisation) -> MaterialisationResult:
        if self.capacity() <= 0:
            raise Busy(f"all {self.slots} slots of the pipeline executor are in use")
        self.running[order.run_id] = None
        began = stopwatch()
        try:
            slug = await self.slug_of(order.org_id)
            session = await self.open(order.run_id)
            self.running[order.run_id] = session
            try:
                place = self.warehouse.place_of(slug, order.path)
                await self.run(session, partial(session.begin, place, Fence(order.org_id, order.fence)))
                places = await self.run(session, partial(self.located, session, slug, order.reads))
                write = partial(self.write, session, order, place, places)
                if isinstance(order.work, str):
                    rows: int | None = await write(order.work)
                else:
                    rows = await order.work(IbisConnection(session, places), write)
                self.running[order.run_id] = None
                if rows is not None:
                    await self.to_the_end(session.commit)
            finally:
                await self.to_the_end(session.close)
            self.log(order, f"{order.path}: {rows} rows in {stopwatch() - began:.2f} s")
            return MaterialisationResult(rows, stopwatch() - began)
        finally:
            del self.running[order.run_id]

    async def cancel(self, run_id: str) -> None:
        session: Session | None = self.running.get(run_id)
        if session is not None:
            await self.in_thread(session.cancel)

    async def write(
        self, session: Session, order: Materialisation, place: Place, places: Mapping[str, Place], result: object
    ) -> int:
        """Build the table of a query, or of the table that a function returned; returns its row count."""
        if isinstance(result, str):
            sql = with_tables(read_select(result, self.warehouse.dialect), places.__getitem__, self.warehouse.dialect)
        else:
            sql = await self.run(session, partial(compiled, session, result))
        return await self.run(session, partial(session.build, order.path, place, sql, order.increment))

    def check(self, sql: str) -> list[str]:
        query = read_select(sql, self.warehouse.dialect)
        with_tables(query, lambda path: ("pipeline", path), self.warehouse.dialect)
        return tables_of(query)

    async def verify(self) -> None:
        if not self.verified:
            try:
                session = await self.open("verify")
            except WorkError as error:
                raise Unavailable(error.message) from error
            await self.to_the_end(session.close)
            self.verified = True

    async def preview(self, org_id: str, sql: str, limit: int) -> Preview:
        async with self.previews.place(org_id):
            return await self.first_rows(await self.slug_of(org_id), sql, limit)

    async def first_rows(self, slug: str, sql: str, limit: int) -> Preview:
        dialect = self.warehouse.dialect
        query = read_select(sql, dialect)
        paths = tables_of(query)
        with_tables(query, partial(self.warehouse.place_of, slug), dialect)  # refuses wrong SQL before it connects
        try:
            session = await self.open("preview")
            try:

                def select() -> tuple[list[dict[str, str]], list[tuple[object, ...]]]:
                    places = self.located(session, slug, paths)
                    statement = with_tables(query, places.__getitem__, dialect)
                    return session.first_rows(statement, limit, PREVIEW_SECONDS)

                async with asyncio.timeout(PREVIEW_SECONDS):
                    columns, rows = await self.run(session, select)
            finally:
                await self.to_the_end(session.close)
        except self.preview_errors as error:
            timed_out = isinstance(error, TimeoutError)
            reason = f"took longer than {PREVIEW_SECONDS:g} s" if timed_out else f"fails: {error}"
            raise Invalid("sql", sql, reason) from error
        return columns, [[plain(value) for value in row] for row in rows]

    def located(self, session: Session, slug: str, paths: Iterable[str]) -> dict[str, Place]:
        """Return where a session finds the tables of paths. Raises WorkError for a table that does not exist yet."""
        places = {}
        for path in paths:
            place = session.locate(self.warehouse.place_of(slug, path))
            if place is None:
                raise WorkError(f"pipeline {path!r} has no table yet; run it first")
            places[path] = place
        return places

    async def open(self, run_id: str) -> Session:
        """Open a session; if canceled, close it."""
        opened = asyncio.ensure_future(self.in_thread(self.warehouse.open, run_id))
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            while not opened.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([opened])
            if opened.exception() is None:
                await self.to_the_end(opened.result().close)
            raise

    async def run(self, session: Session, call: Callable[[], T]) -> T:
        """Make a call in a thread; when canceled, interrupt its statement until it has ended."""
        return await self.interruptible(call, partial(self.in_thread, session.cancel))

    async def close(self) -> None:
        """Sessions are closed with their runs: nothing is kept."""


class IbisConnection:
    """The Connection of a function."""

    def __init__(self, session: Session, places: Mapping[str, Place]) -> None:
        self.session, self.places = session, places

    def pipeline_tables(self) -> PipelineTables:
        backend = self.session.backend
        return PipelineTables(
            backend,
            {
                path: partial(backend.table, place.name, database=place.schema or None)
                for path, place in self.places.items()
            },
        )

    def duckdb_connection(self) -> Any:
        tables = self.pipeline_tables()
        return copied_to_duckdb({path: tables.backend.to_pyarrow_batches(table) for path, table in tables.items()})


def compiled(session: Session, result: Any) -> str:
    """Return the SQL of the table that a function returned. Raises LogicError for anything else."""
    if not isinstance(result, ibis.Table):
        if hasattr(result, "to_arrow_table"):  # a relation of DuckDB
            result = result.to_arrow_table()
        try:
            result = ibis.memtable(result)
        except Exception as error:
            expected = "an Ibis table, a relation, a data frame or None"
            raise LogicError(f"a pipeline must return {expected}; it returned {type(result)}") from error
    session.backend._run_pre_execute_hooks(result)  # creates temporary tables of rows that are in memory
    return str(session.backend.compile(result))


def place_of(slug: str, path: str) -> Place:
    """Return the table of a pipeline: of the org `default` in the schema `namespace_layer`, of another in
    `org.namespace_layer`."""
    namespace, layer, name = path.split("/")
    schema = f"{namespace}_{layer}"  # unique: a layer has no underscore
    return Place(shortened(schema if slug == "default" else f"{slug}.{schema}"), name)


def shortened(identifier: str) -> str:
    """Return an identifier that the engine does not cut: a long one ends with a hash of it."""
    if len(identifier) <= IDENTIFIER_BYTES:
        return identifier
    digest = hashlib.sha256(identifier.encode()).hexdigest()[:12]
    return f"{identifier[: IDENTIFIER_BYTES - 13]}.{digest}"
