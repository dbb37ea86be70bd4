"""Reports are read from a real streaming replica; what must be current is not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from rota import Rota
from rota.app.settings import Settings
from rota.app.site import MountedSite
from rota.core.clock import stopwatch
from rota.core.errors import Invalid
from rota.db.migrate import migrate
from rota.db.replica import Replica
from tests.acceptance.cluster import until
from tests.postgres import (
    PostgresServer,
    _execute,
    create_database,
    database_name,
    drop_database,
    own_server,
    own_standby,
)

LOST = "reports replica cannot be used; reading from the primary until it can"
BACK = "reports replica is used again"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with own_server() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with own_standby(primary) as server:
        yield server


@pytest.fixture(scope="module")
def template(primary: PostgresServer) -> str:
    url = create_database(primary.url)
    migrate(url)
    return database_name(url)


@pytest.fixture
def database(primary: PostgresServer, standby: PostgresServer, template: str) -> Iterator[str]:
    """A migrated database on the primary."""
    url = create_database(primary.url, template=template)
    yield url
    drop_database(primary.url, url)


@dataclass
class Site:
    """A server with a replica; requests of two users."""

    client: httpx.AsyncClient
    replica: Replica
    standby: PostgresServer
    admin: str
    other: str

    async def call(self, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.client.request(method, f"/api/v1{path}", json=body, headers=headers)

    async def queues(self, key: str) -> list[str]:
        """The names in the list of queues, all of which are paused."""
        answer = await self.call(key, "GET", "/queues")
        assert answer.status_code == 200, answer.text
        return [queue["name"] for queue in answer.json()["items"]]

    async def pause(self, name: str) -> None:
        answer = await self.call(self.admin, "PATCH", f"/queues/{name}", {"paused": True})
        assert answer.status_code == 200, answer.text

    async def system_page(self) -> str:
        """Log in by a link, as on the server's own machine; return the System page."""
        link = (await self.call(self.admin, "POST", "/login-links")).json()["url"]
        page = await self.client.get(f"/login?{urlsplit(link).query}", follow_redirects=True)
        assert page.status_code == 200, page.text
        return (await self.client.get("/system")).text

    def replay(self, action: str) -> None:
        _execute(self.standby.url, f"SELECT pg_wal_replay_{action}()")

    async def caught_up(self) -> None:
        """Wait until the replica has what is committed now."""
        since = stopwatch()
        await until(lambda: self.replica._caught_up_to > since, 30, "the replica catches up")


def on(server: PostgresServer, url: str) -> str:
    """The URL of the same database on another server."""
    return urlsplit(url)._replace(netloc=urlsplit(server.url).netloc).geturl()


@asynccontextmanager
async def open_site(url: str, standby: PostgresServer, place: Path, **settings: Any) -> AsyncIterator[Site]:
    site = MountedSite(Rota(), database_url=url, reports_url=on(standby, url), data_dir=place, **settings)
    async with site.lifespan():
        transport = httpx.ASGITransport(site, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert site._site is not None
            replica = site._site.state.replica
            made = Site(client, replica, standby, (place / "admin.key").read_text().strip(), "")
            account = {"name": "other", "role": "viewer"}
            user_id = (await made.call(made.admin, "POST", "/service-accounts", account)).json()["id"]
            key = await made.call(made.admin, "POST", "/api-keys", {"name": "k", "role": "viewer", "user_id": user_id})
            made.other = key.json()["key"] if key.status_code == 201 else pytest.fail(key.text)
            await made.caught_up()
            yield made


async def test_lists_are_read_from_the_replica_and_own_writes_are_seen(
    database: str, standby: PostgresServer, tmp_path: Path
) -> None:
    async with open_site(database, standby, tmp_path) as site:
        site.replay("pause")
        try:
            await site.pause("slow")
            assert await site.queues(site.other) == [], "the replica does not have it yet"
            assert await site.queues(site.admin) == ["slow"], "who wrote it sees it"
            single = await site.call(site.other, "GET", "/queues/slow")
            assert single.json()["paused"] is True, "a single resource is current"
            page = await site.call(site.other, "GET", "/status")
            await until(lambda: (site.replica.lag_seconds or 0) > 0, 30, "the lag is measured")
        finally:
            site.replay("resume")
        await site.caught_up()
        assert await site.queues(site.other) == ["slow"]
        system = await site.system_page()
        assert "Lists and reports are read from it." in system
        assert page.json()["reports_replica"]["problem"] is None
        assert site.replica.fallbacks == 0


async def test_a_revoked_key_is_refused_at_once(database: str, standby: PostgresServer, tmp_path: Path) -> None:
    async with open_site(database, standby, tmp_path) as site:
        keys = (await site.call(site.admin, "GET", "/api-keys")).json()["items"]
        (key_id,) = [key["id"] for key in keys if key["name"] == "k"]
        site.replay("pause")
        try:
            assert (await site.call(site.admin, "DELETE", f"/api-keys/{key_id}")).status_code == 204
            assert (await site.call(site.other, "GET", "/queues")).status_code == 401
        finally:
            site.replay("resume")


async def test_a_replica_that_is_too_far_behind_is_not_used(
    database: str, standby: PostgresServer, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        async with open_site(database, standby, tmp_path, reports_max_lag_seconds=1) as site:
            site.replay("pause")
            try:
                await site.pause("slow")
                await until(lambda: site.replica.problem is not None, 30, "it is too far behind")
                assert await site.queues(site.other) == ["slow"]
            finally:
                site.replay("resume")
            problem = site.replica.problem
            await until(lambda: site.replica.problem is None, 30, "it is used again")
    assert problem is not None
    assert "s behind, more than 1 s" in problem
    events = [entry["event"] for entry in logs if "replica" in entry["event"]]
    assert events == [LOST, BACK] * (len(events) // 2)  # on a busy machine it falls behind more than once
    assert events


async def test_reports_go_to_the_primary_while_the_replica_is_away(
    database: str, standby: PostgresServer, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        async with open_site(database, standby, tmp_path) as site:
            await site.pause("slow")
            await site.caught_up()
            standby.stop("immediate")
            try:
                answers = await asyncio.gather(*(site.queues(site.other) for _ in range(20)))
                assert answers == [["slow"]] * 20
                status = (await site.call(site.admin, "GET", "/status")).json()["reports_replica"]
                metrics = (await site.client.get("/metrics")).text
            finally:
                standby.start()
            await until(lambda: site.replica.problem is None, 30, "it is used again")
            lines = (await site.client.get("/metrics")).text.splitlines()
            assert await site.queues(site.other) == ["slow"]
    assert status["fallbacks"] == 20
    assert status["problem"]
    assert "rota_reports_replica_up 0.0" in metrics.splitlines()
    assert 'rota_reports_fallbacks_total{worker="servers"} 20.0' in metrics.splitlines()
    assert "rota_reports_replica_up 1.0" in lines
    replica_lines = [entry["event"] for entry in logs if "replica" in entry["event"] or "database" in entry["event"]]
    assert replica_lines == [LOST, BACK] * max(1, len(replica_lines) // 2)  # one that starts may refuse once more


async def test_a_server_starts_without_its_replica(database: str, standby: PostgresServer, tmp_path: Path) -> None:
    standby.stop()
    try:
        site = MountedSite(Rota(), database_url=database, reports_url=on(standby, database), data_dir=tmp_path)
        async with site.lifespan():
            assert site._site is not None
            replica: Replica = site._site.state.replica
            problem = replica.problem
            standby.start()
            await until(lambda: replica.problem is None, 30, "it is used")
    finally:
        if standby._process is None:
            standby.start()
    assert problem is not None
    assert "connection refused" in problem


async def test_a_url_that_is_no_replica_of_the_database_is_refused(
    database: str, primary: PostgresServer, standby: PostgresServer, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, match="names a server that is not a standby"):
        async with MountedSite(Rota(), database_url=database, reports_url=database, data_dir=tmp_path).lifespan():
            pass
    with pytest.raises(Invalid, match="goes to database 'postgres'"):
        async with MountedSite(Rota(), database_url=database, reports_url=standby.url, data_dir=tmp_path).lifespan():
            pass


def test_a_sqlite_file_has_no_replica() -> None:
    with pytest.raises(Invalid, match="a sqlite file has no replica"):
        Settings.load(reports_url="postgresql://replica/rota")
    with pytest.raises(Invalid, match="reports_url: 'mysql' is not supported"):
        Settings.load(database_url="postgresql://primary/rota", reports_url="mysql://user:secret@replica/rota")
