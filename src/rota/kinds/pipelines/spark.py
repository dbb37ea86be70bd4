"""Spark as the engine of pipelines: of this process, with files as tables, or that of a Spark Connect server, with the
tables of its catalog. Each run has a Spark session of its own. It writes the rows of a table where no reader sees
them, and then makes them the table in one step (`spark_tables.py`).
"""

import contextlib
import hashlib
import os
import re
import socket
import threading
import warnings
from collections.abc import Iterator
from importlib import import_module
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from rota.core.errors import Conflict, LogicError, TransientError
from rota.db.private_files import make_private_dir
from rota.kinds.pipelines.executor import SPARK_HERE
from rota.kinds.pipelines.fences import Fence
from rota.kinds.pipelines.ibis_executor import Place
from rota.kinds.pipelines.increments import Increment, check_columns
from rota.kinds.pipelines.previews import shortened_values
from rota.kinds.pipelines.spark_tables import CatalogTables, FileTables, quoted, text

CONNECT_SECONDS = 10
CONNECT_RETRIES = 4  # of a call whose answer was lost; the client's default waits for ten minutes
CONNECT_PORT = 15002
UNFIT = re.compile(r"[^a-z0-9_]")  # what names in Spark cannot have
# SQL cannot read the environment as ${env:NAME}, nor files as parquet.`PATH`; wrong values are errors, not NULL.
SESSION_SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.network.timeout": "1h",  # driver and executor are one process: a slow machine is no lost one
    "spark.scheduler.mode": "FAIR",  # a small run does not wait for a large one
    "spark.sql.catalogImplementation": "in-memory",
    **SESSION_SETTINGS,
}
# Other queries read the old files of their tables until they end; those that take longer than two runs are repeated.
REPEATABLE = (
    "FAILED_READ_FILE",
    "PATH_NOT_FOUND",
    "StatusCode.UNAVAILABLE",
    "RETRIES_EXCEEDED",
    "INVALID_HANDLE",
    "SPARK_JOB_CANCELLED",
)


class Spark:
    """A Warehouse in Spark."""

    dialect = "spark"
    errors: tuple[type[Exception], ...] = (PySparkException, Py4JError)

    def __init__(self, url: str, place: Path) -> None:
        self.url, self.place = url, place.absolute() / "spark"
        self.master = local.group(1) if (local := SPARK_HERE.fullmatch(url)) else None
        getLogger("SQLQueryContextLogger").setLevel(CRITICAL)  # it logs wrong SQL, which is reported

    def place_of(self, slug: str, path: str) -> Place:
        """Return the table of a pipeline, by names that Spark allows."""
        namespace, layer, name = path.split("/")
        schema = f"{namespace}_{layer}" if slug == "default" else f"{slug}.{namespace}_{layer}"
        return Place(fit(schema), fit(name))

    def open(self, run_id: str) -> "SparkRun":  # noqa: ARG002
        with readable():
            if self.master is not None:
                session = local_session(self.master, self.place)
                return SparkRun(session, FileTables(session, self.place), keep=True)
            session = self.remote_session()
            for name, value in SESSION_SETTINGS.items():
                session.conf.set(name, value)
            return SparkRun(session, CatalogTables(session), keep=False)

    def remote_session(self) -> Any:
        """Open a session of a Spark Connect server. Raises TransientError if it is out of reach, Conflict if it refuses
        or the URL is wrong."""
        parts = urlsplit(self.url)
        address = (parts.hostname or "", parts.port or CONNECT_PORT)
        named = f"Spark Connect {address[0]}:{address[1]}"
        try:
            socket.create_connection(address, CONNECT_SECONDS).close()
        except OSError as error:
            raise TransientError(f"{named} of pipelines is out of reach: {error}") from error
        sql, retries = import_module("pyspark.sql"), import_module("pyspark.sql.connect.client.retries")
        try:
            session = sql.SparkSession.builder.remote(self.url).create()
            session.client.set_retry_policies([retries.DefaultPolicy(max_retries=CONNECT_RETRIES)])
            session.version  # noqa: B018  (the first call)
        except PySparkException as error:
            if any(reason in str(error) for reason in REPEATABLE):
                raise TransientError(f"{named} of pipelines is out of reach: {first_line(error)}") from error
            raise Conflict(f"{named} refuses pipelines: {first_line(error)}; check ROTA_PIPELINES_URL") from error
        return session


class SparkRun:
    """A Session of one run or preview."""

    def __init__(self, session: Any, tables: FileTables | CatalogTables, keep: bool) -> None:
        self.session, self.tables, self.keep = session, tables, keep
        self.backend = import_module("rota.kinds.pipelines.spark_backend").backend_of(session)
        self.written: tuple[Place, str] | None = None  # the table and its new version
        self.fence: Fence | None = None

    def begin(self, place: Place, fence: Fence) -> None:
        self.fence = fence
        with readable():
            self.tables.begin(place, fence)

    def locate(self, place: Place) -> Place | None:
        with readable():
            return self.tables.locate(place)

    def build(self, path: str, place: Place, query: str, increment: Increment | None) -> int:
        with readable():
            old = None if increment is None else self.tables.locate(place)
            if increment is not None:
                query = increment.new_rows(query, text(old) if old else None, quoted)
            version, rows = self.tables.write(place, self.session.sql(query))
            count = self.count(f"SELECT count(*) FROM {text(rows)}")
            if increment is not None and (wrong_keys := increment.wrong_keys(text(rows), quoted)):
                increment.check_keys(self.count(wrong_keys))
            if increment is not None and old is not None:
                version, _ = self.tables.write(place, self.changed(path, increment, old, rows))
            self.written = place, version
            return count

    def changed(self, path: str, increment: Increment, old: Place, rows: Place) -> Any:
        """Return the rows of a table after its change."""
        kept, new = self.session.sql(f"SELECT * FROM {text(old)}"), self.session.sql(f"SELECT * FROM {text(rows)}")
        check_columns(path, kept.columns, new.columns)
        if (replaced := increment.replaced_rows(text(rows), quoted)) is not None:
            kept = self.session.sql(f"SELECT * FROM {text(old)} AS old_rows WHERE ({replaced}) IS NOT TRUE")
        casts = [new[quoted(field.name)].cast(field.dataType).alias(field.name) for field in kept.schema.fields]
        return kept.unionAll(new.select(*casts))

    def count(self, query: str) -> int:
        return int(self.session.sql(query).collect()[0][0])

    def commit(self) -> None:
        if self.written is not None:
            assert self.fence is not None
            with readable():
                self.tables.publish(*self.written, self.fence)

    def first_rows(
        self,
        query: str,
        limit: int,
        seconds: float,  # noqa: ARG002  (the caller interrupts it)
    ) -> tuple[list[dict[str, str]], list[tuple[object, ...]]]:
        with readable():
            rows = self.session.sql(f"SELECT * FROM (\n{query}\n) AS preview LIMIT {limit}")
            columns = [{"name": field.name, "type": field.dataType.simpleString()} for field in rows.schema.fields]
            names = [f"c{number}" for number in range(len(columns))]
            types = [column["type"] for column in columns]
            short = rows.toDF(*names).selectExpr(*shortened_values(names, types, "STRING"))
            return columns, [tuple(row) for row in short.collect()]

    def cancel(self) -> None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):  # it is repeated until the query has ended
            self.session.interruptAll()

    def close(self) -> None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self.tables.close()
            if not self.keep:
                self.session.stop()


lock = threading.Lock()
root: Any = None  # the first Spark session of this process; those of runs share its JVM


def local_session(master: str, place: Path) -> Any:
    """Return a new session of the Spark of this process, which is started if it does not run. Raises Conflict if it
    cannot start."""
    global root
    with lock:
        if root is None or not runs(root):
            root = start(master, place)
        return root.newSession()


def runs(session: Any) -> bool:
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, AttributeError, OSError):  # its JVM has died
        return False


def start(master: str, place: Path) -> Any:
    """Start Spark, with a JVM that ends with this process."""
    sql, context = import_module("pyspark.sql"), import_module("pyspark").SparkContext
    if root is not None:  # pyspark keeps what has died
        context._active_spark_context = context._gateway = context._jvm = None
        sql.SparkSession._instantiatedSession = None
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch = place / ".scratch"
    make_private_dir(scratch)
    builder = sql.SparkSession.builder.master(master).appName("rota pipelines")
    for name, value in LOCAL_SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch)).config("spark.sql.warehouse.dir", str(scratch))
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise Conflict(f"Spark could not start: {first_line(error)}; it needs Java 17 or newer (JAVA_HOME)") from error


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Raise TransientError for a Spark that was lost, LogicError with the cause for an error of Java."""
    try:
        yield
    except Py4JJavaError as error:
        message = root_cause(error)
        if any(reason in message for reason in REPEATABLE):
            raise TransientError(f"Spark ended the query: {message}") from error
        raise LogicError(f"Spark: {message}") from error
    except PySparkException as error:
        if any(reason in str(error) for reason in REPEATABLE):
            raise TransientError(f"Spark ended the query: {first_line(error)}") from error
        raise
    except (Py4JError, ConnectionError, EOFError) as error:
        raise TransientError(f"Spark was lost: {error or type(error).__name__}") from error


def root_cause(error: Any) -> str:
    """Return the first line of the innermost Java exception."""
    try:
        cause = error.java_exception
        while (inner := cause.getCause()) is not None:
            cause = inner
        return first_line(cause.getMessage() or cause.toString())
    except (Py4JError, OSError):
        return first_line(error)


def first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]


def fit(name: str) -> str:
    """Return a name that Spark allows; one that is changed ends with a hash, so that different names stay different."""
    if not UNFIT.search(name):
        return name
    return f"{UNFIT.sub('_', name)}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
