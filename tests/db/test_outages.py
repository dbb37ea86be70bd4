"""A database that is lost and restored, or cannot be used at all."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from structlog.testing import capture_logs

from rota.core.errors import BrokenStatement, DatabaseMisconfigured, Unavailable
from rota.db.connection import Database, open_database
from rota.db.migrate import migrate
from rota.db.outages import plain_reason
from rota.db.retry import retry_until_available
from rota.db.statement import Statement
from rota.engine import workers

SELECT_ONE = Statement("", "SELECT 1").bound(lambda _: None)


@asynccontextmanager
async def forwarding(port: int, target: str) -> AsyncIterator[None]:
    """Let PostgreSQL answer on this port too."""
    there = urlsplit(target)
    copies: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65_536):
                writer.write(chunk)
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other, to_other = await asyncio.open_connection(there.hostname, there.port)
        copies.update(asyncio.ensure_future(way) for way in (copy(reader, to_other), copy(other, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    yield
    server.close()
    for way in copies:
        way.cancel()
    await asyncio.gather(*copies, return_exceptions=True)


async def test_an_outage_is_one_line_in_the_log_and_its_end_another(postgres_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    parts = urlsplit(postgres_url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}"))
    db, other = open_database(url), open_database(url)
    with capture_logs() as lines:
        for database in (db, other, db):
            with pytest.raises(Unavailable, match="connection refused"):
                await database.read(workers.measure)
        with pytest.raises(Unavailable):
            await db.statement(SELECT_ONE)
        async with forwarding(port, postgres_url):
            await db.read(workers.measure)
            await other.read(workers.measure)
            await db.close()
            await other.close()
    assert [line["event"] for line in lines] == ["database lost; trying again until it is back", "database is back"]
    assert lines[0]["reason"] == "the database is out of reach: connection refused"
    assert lines[1]["after_seconds"] >= 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "no answer in time"),
        (asyncpg.InternalClientError("unexpected connection_lost() call"), "the connection was lost"),
        (
            asyncpg.ConnectionDoesNotExistError("closed in the middle of operation"),
            "the connection was lost",
        ),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 5432, 0, 0)"), "connection refused"),
        (PermissionError(), "PermissionError"),
    ],
)
def test_reasons_have_plain_words(error: Exception, reason: str) -> None:
    assert plain_reason(error) == reason


async def test_a_database_that_does_not_exist_is_reported_at_once(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    url = urlunsplit(parts._replace(path="/no_such_database"))
    db = open_database(url)
    asked = []

    async def ask() -> object:
        asked.append(1)
        return await db.read(workers.measure)

    try:
        missing = pytest.raises(DatabaseMisconfigured, match=r"no_such_database.*does not exist; create it")
        with capture_logs() as lines, missing:
            await retry_until_available(ask, 20)
        assert [line["event"] for line in lines] == ["database cannot be used"]
        assert asked == [1]
        with pytest.raises(DatabaseMisconfigured, match="no_such_database"):
            await asyncio.to_thread(migrate, url)
    finally:
        await db.close()


def test_a_file_that_is_not_a_database_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    path.write_text("this is a letter to my grandmother " * 100)
    with pytest.raises(DatabaseMisconfigured, match="file is not a database; name another file"):
        migrate(f"sqlite:///{path}")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["SELECT no_such_column FROM jobs", "SELECT 1 FROM no_such_table", "SELEC 1"])
@pytest.mark.parametrize("single", [False, True])
async def test_a_statement_that_is_wrong_is_not_tried_again(db: Database, text: str, single: bool) -> None:
    tried = []

    async def run() -> None:
        tried.append(text)
        bound = Statement("", text).bound(lambda _: None)
        await (db.statement(bound) if single else db.tx(bound))

    wrong = pytest.raises(BrokenStatement, match=r"the database cannot run a statement of Rota: .*(no_such|SELEC)")
    with capture_logs() as lines, wrong:
        await retry_until_available(run)
    assert tried == [text]
    assert [line["event"] for line in lines] == ["a statement failed"]
    await retry_until_available(lambda: db.statement(SELECT_ONE))  # the connection still works
