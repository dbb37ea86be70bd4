"""Statements that try to do more than read through the SQL connector, directly and from a script in the sandbox."""

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from rota import LogicError, PermissionDenied, Rota, TransientError
from rota.connectors import Sql
from rota.core.errors import Invalid
from rota.kinds.workflows.connectors import sql
from rota.testing import world
from tests.postgres import _execute as execute
from tests.postgres import create_database, drop_database

TABLES = """
    CREATE TABLE victims (name TEXT, idempotency_key TEXT UNIQUE);
    CREATE TABLE orders (name TEXT, idempotency_key TEXT UNIQUE);
    INSERT INTO victims VALUES ('ada', 'K0');
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(TABLES)
    connection.close()
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def admin_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL database with the shop's tables, as its superuser."""
    url = create_database(postgres_url)
    execute(url, TABLES + "CREATE SEQUENCE numbers")
    yield url
    drop_database(postgres_url, url)


@pytest.fixture
def reader_url(postgres_url: str, admin_url: str) -> Iterator[str]:
    """The same database, as a role that owns its tables and is nothing more."""
    role = f"rota_test_{secrets.token_hex(6)}"
    execute(admin_url, f"CREATE ROLE {role} LOGIN")
    execute(admin_url, "; ".join(f"ALTER TABLE {name} OWNER TO {role}" for name in ("victims", "orders")))
    execute(admin_url, f"GRANT ALL ON SEQUENCE numbers TO {role}; GRANT ALL ON SCHEMA public TO {role}")
    parts = urlsplit(admin_url)
    yield urlunsplit(parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}"))
    drop_database(postgres_url, admin_url)
    execute(postgres_url, f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE victims",
        "DELETE FROM victims",
        "DELETE FROM victims RETURNING name",
        "WITH x AS (SELECT 1) INSERT INTO victims SELECT 'eve', 'K9' RETURNING name",
        "REPLACE INTO victims VALUES ('eve', 'K0') RETURNING name",
        "UPDATE victims SET name = 'eve' RETURNING name",
        "CREATE TABLE more (a)",
        "CREATE TEMP TABLE more (a)",
        "VACUUM INTO '{folder}/copy.db'",
        "VACUUM",
        "ATTACH DATABASE '{folder}/other.db' AS other",
        "DETACH DATABASE main",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "BEGIN IMMEDIATE",
        "SAVEPOINT a",
        "SELECT load_extension('{folder}/x.so')",
        "SELECT writefile('{folder}/x', 'x')",
        "SELECT 1; DROP TABLE victims",
        "REINDEX",
        "ANALYZE",
    ],
)
async def test_a_query_of_sqlite_can_only_read(shop: Path, tmp_path: Path, statement: str) -> None:
    before = contents(tmp_path)
    connector = Sql(f"sqlite:///{shop}")
    with pytest.raises(LogicError):
        await connector.query(statement.replace("{folder}", str(tmp_path)))
    assert await connector.query("SELECT name FROM victims") == [{"name": "ada"}]
    assert contents(tmp_path) == before


async def test_reads_of_sqlite_still_work(shop: Path) -> None:
    connector = Sql(f"sqlite:///{shop}")
    assert await connector.query(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) "
        "SELECT max(i) AS most, upper(v.name) AS name FROM n, victims v WHERE v.name = :name",
        {"name": "ada"},
    ) == [{"most": 3, "name": "ADA"}]
    with sqlite3.connect(shop) as writer:  # a file in WAL mode, with another writer
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO victims VALUES ('bob', 'K1')")
        writer.commit()
        assert len(await connector.query("SELECT * FROM victims")) == 2
    writer.close()


POSTGRESQL_WRITES = [
    "DROP TABLE victims",
    "DELETE FROM victims RETURNING name",
    "WITH x AS (DELETE FROM victims RETURNING name) SELECT * FROM x",
    "SELECT setval('numbers', 7000)",
    "SELECT nextval('numbers')",
    "SELECT 1 AS a INTO more",
    "CREATE TEMP TABLE more AS SELECT 1",
    "COPY victims TO STDOUT",
    "COPY victims TO PROGRAM 'true'",
    "SELECT pg_read_file('/etc/passwd')",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "COMMIT",
    "SELECT 1; COMMIT; DROP TABLE victims",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "EXPLAIN ANALYZE DELETE FROM victims",
]


async def test_a_query_of_postgresql_can_only_read(reader_url: str) -> None:
    connector = Sql(reader_url)
    for statement in POSTGRESQL_WRITES:
        with pytest.raises(LogicError):
            await connector.query(statement)
    rows = await connector.query("SELECT name FROM victims WHERE name = :name", {"name": "ada"})
    assert rows == [{"name": "ada"}]
    assert await connector.query("SELECT last_value FROM numbers") == [{"last_value": 1}]


async def test_nothing_stays_on_a_connection_of_postgresql(reader_url: str) -> None:
    connector = Sql(reader_url)
    await connector.query("SELECT set_config('search_path', 'pg_temp', false), pg_advisory_lock(1)")
    assert await connector.query("SELECT name FROM victims") == [{"name": "ada"}]
    locks = "SELECT * FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 1 AND database = "
    assert await connector.query(locks + "(SELECT oid FROM pg_database WHERE datname = current_database())") == []


async def test_a_superuser_is_refused_for_queries_and_inserts(admin_url: str) -> None:
    connector = Sql(admin_url)
    with pytest.raises(PermissionDenied, match="superuser"):
        await connector.query("SELECT 1")
    with pytest.raises(PermissionDenied, match="superuser"):
        await connector.insert("orders", {"name": "a"}, idempotency_key="K")


async def test_a_role_that_may_read_files_of_the_server_is_refused(admin_url: str, reader_url: str) -> None:
    role = urlsplit(reader_url).username
    execute(admin_url, f"GRANT pg_read_server_files TO {role}")
    with pytest.raises(PermissionDenied, match="files of the server"):
        await Sql(reader_url).query("SELECT pg_read_file('/etc/passwd')")


async def test_the_database_of_rota_is_refused(clean_url: str, postgres_url: str, tmp_path: Path) -> None:
    url = clean_url
    role = f"rota_test_{secrets.token_hex(6)}"
    if clean_url.startswith("sqlite"):
        (tmp_path / "link.db").symlink_to(clean_url.removeprefix("sqlite:///"))
        url = f"sqlite:///{tmp_path / 'link.db'}"
    else:
        parts = urlsplit(clean_url)
        execute(clean_url, f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        url = urlunsplit(parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}"))
    with pytest.raises(PermissionDenied, match="Rota's own tables"):
        await Sql(url).query("SELECT key FROM signing_keys")
    if url.startswith("postgresql"):  # the least privilege is enough
        execute(clean_url, f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}")
        assert await Sql(url).query("SELECT 1 AS a") == [{"a": 1}]
        execute(clean_url, f"DROP ROLE {role}")


@pytest.mark.parametrize("url", ["mysql://localhost/shop", "sqlite://", "sqlite:///file:shop.db?uri=true"])
def test_other_databases_are_refused_when_they_are_declared(url: str) -> None:
    with pytest.raises(Invalid, match="url"):
        Sql(url)


async def test_a_query_has_limits(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Sql(f"sqlite:///{shop}")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    assert len(await connector.query(f"{endless} i FROM n")) == sql.QUERY_ROWS
    for statement in (f"{endless} hex(zeroblob(10000)) FROM n", "SELECT zeroblob(100000000)"):
        with pytest.raises(LogicError, match=r"more than 8 MiB|too big"):
            await connector.query(statement)
    monkeypatch.setattr(sql, "QUERY_SECONDS", 0.1)
    with pytest.raises(TransientError, match="took longer"):
        await connector.query(f"{endless} count(*) FROM n")


async def test_a_query_of_postgresql_has_limits(reader_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Sql(reader_url)
    assert len(await connector.query("SELECT * FROM generate_series(1, 5000)")) == sql.QUERY_ROWS
    with pytest.raises(LogicError, match="more than 8 MiB"):
        await connector.query("SELECT repeat('x', 100000) FROM generate_series(1, 200)")
    monkeypatch.setattr(sql, "QUERY_SECONDS", 0.5)
    with pytest.raises(TransientError, match=r"took longer|canceling statement"):
        await connector.query("SELECT pg_sleep(60)")


async def test_inserts_reach_only_the_tables_that_were_named(shop: Path) -> None:
    connector = Sql(f"sqlite:///{shop}", insert=["orders"])
    await connector.insert("orders", {"name": "a"}, idempotency_key="K1")
    with pytest.raises(PermissionDenied, match="victims is not among"):
        await connector.insert("victims", {"name": "a"}, idempotency_key="K2")


SCRIPT = """
from rota import Prepare, Workflow, every
flow = Workflow("thief", topics=["loot"], connectors=["shop.query"])

@flow.producer(schedule=every("5m"), publishes=["loot"])
async def steal(ctx, state):
    await ctx.call("shop.query", statement="ATTACH DATABASE 'rota.db' AS r")

@flow.consumer(subscribe=["loot"])
class Take:
    async def prepare(self, ctx, state):
        return Prepare(reservations={})
"""


async def test_a_script_gets_no_further_than_its_query(clean_url: str, shop: Path) -> None:
    app = Rota()
    app.connector("shop", Sql(f"sqlite:///{shop}"))
    async with world(app, database_url=clean_url) as rota:
        await rota.workflows.upload(None, SCRIPT, "ada")
        await rota.drain()
        runs = [run for run in await rota.runs(kind="workflow") if run.get("handler_id") == "steal"]
        assert [(run["status"], run["reason"]) for run in runs] == [("failed", "logic")]
        assert "not authorized" in (await rota.workflow("thief"))["issue"]
