"""Downloads of artifacts over real connections: ranges, checksums, broken connections, an object store that is away."""

import asyncio
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from rota import ArtifactManager
from rota.client import AsyncClient, Client, Damaged, NotFound, ServerError
from rota.core.clock import SystemClock
from rota.db.connection import open_database
from rota.db.wake import Wake
from rota.engine import object_store
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings, ObjectStoreSettings
from tests.app.command_line import run
from tests.app.live_api import LiveApi
from tests.app.tcp_proxy import TcpProxy
from tests.object_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, ObjectServer

LARGE = os.urandom(9 << 20)  # more than an upload's part and a read's part
SMALL = bytes(range(256))


@dataclass
class Downloads:
    """A live API with an artifact that is an object, and one that is in the database."""

    live: LiveApi
    server: ObjectServer
    large: str
    small: str

    @property
    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"{self.live.url}/api/v1/artifacts", headers=self.live.headers, timeout=60)

    def get(self, artifact_id: str, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.get(f"/{artifact_id}/$content", headers=sent)


@pytest.fixture(scope="module")
def object_server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


@pytest.fixture
def downloads(migrated_url: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Downloads]:
    for name, value in (("ACCESS_KEY_ID", ACCESS_KEY), ("SECRET_ACCESS_KEY", SECRET_KEY), ("REGION", REGION)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(object_store, "QUICK_SECONDS", 1.0)
    if object_server.process is None:
        object_server.start()
    objects = ObjectStoreSettings(object_server.url, object_server.endpoint, inline_bytes=1000, keep=timedelta(0))
    settings = EngineSettings(objects=objects)

    async def save(org_id: str) -> list[str]:
        db = open_database(migrated_url)
        try:
            manager = ArtifactManager(Engine(db, SystemClock(), Wake(), {}, settings), org_id)
            return [await manager.save(content, content_type="text/html") for content in (LARGE, SMALL)]
        finally:
            await db.close()

    with LiveApi(migrated_url, settings=settings) as live:
        yield Downloads(live, object_server, *asyncio.run(save(live.org_id)))


def test_a_content_is_downloaded_whole_or_in_ranges(downloads: Downloads) -> None:
    for artifact_id, content in ((downloads.large, LARGE), (downloads.small, SMALL)):
        whole = downloads.get(artifact_id)
        assert (whole.status_code, whole.content == content) == (200, True)
        assert whole.headers["content-type"].startswith("text/html")
        assert whole.headers["content-disposition"].startswith("attachment")
        size, etag = len(content), whole.headers["etag"]
        for asked, start, end in (
            ("bytes=0-0", 0, 1),
            ("bytes=100-", 100, size),
            ("bytes=-7", size - 7, size),
            (f"bytes=5-{size + 99}", 5, size),
            (f"bytes={size - 200}-{size - 2}", size - 200, size - 1),
        ):
            part = downloads.get(artifact_id, range=asked, if_range=etag)
            assert (part.status_code, part.content == content[start:end]) == (206, True), asked
            assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        beyond = downloads.get(artifact_id, range=f"bytes={size}-")
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
        for asked in ("bytes=0-1,4-5", "lines=0-1", "bytes=-", "bytes=9-2"):
            assert len(downloads.get(artifact_id, range=asked).content) == size, asked
        assert len(downloads.get(artifact_id, range="bytes=0-0", if_range='"another"').content) == size
    record = downloads.client.get(f"/{downloads.large}").json()
    assert (record["size"], record["data"]) == (len(LARGE), None)
    assert record["sha256"] == hashlib.sha256(LARGE).hexdigest()


def test_a_download_goes_on_where_its_connection_broke(downloads: Downloads) -> None:
    class Cutting(io.BytesIO):
        def write(self, part: Any) -> int:
            if proxy.cuts < 2 and self.tell() > (3 << 20) * (proxy.cuts + 1):
                proxy.cut()
            return super().write(part)

    with TcpProxy(downloads.live.url) as proxy, Client(proxy.url, downloads.live.key) as client:
        file = Cutting()
        assert client.download_artifact(downloads.large, file) == len(LARGE)
        assert (proxy.cuts, file.getvalue() == LARGE) == (2, True)

    async def in_async_code() -> None:
        async with AsyncClient(proxy.url, downloads.live.key) as client:
            file = Cutting()
            assert await client.download_artifact(downloads.large, file) == len(LARGE)
            assert (proxy.cuts, file.getvalue() == LARGE) == (2, True)
            with pytest.raises(NotFound):
                await client.download_artifact("none", file)

    with TcpProxy(downloads.live.url) as proxy:
        asyncio.run(in_async_code())


def test_a_store_that_is_away_is_503_with_its_url(downloads: Downloads) -> None:
    downloads.server.stop()
    answer = downloads.get(downloads.large)
    assert (answer.status_code, answer.json()["code"]) == (503, "object_store_unavailable")
    assert f"object store {downloads.server.url} is not available" in answer.json()["detail"]
    assert SECRET_KEY not in answer.text
    assert downloads.get(downloads.small).content == SMALL
    with Client(downloads.live.url, downloads.live.key, tries=1) as client, pytest.raises(ServerError):
        client.download_artifact(downloads.large, io.BytesIO())


def test_a_content_that_changed_in_the_store_is_not_delivered_whole(downloads: Downloads, tmp_path: Path) -> None:
    (key,) = [key for key in downloads.server.stored_keys() if key.endswith(downloads.large)]
    downloads.server.client().put_object(Bucket=BUCKET, Key=key, Body=LARGE[:-1] + b"!")
    with pytest.raises(httpx.RemoteProtocolError):
        downloads.get(downloads.large)
    with Client(downloads.live.url, downloads.live.key) as client, pytest.raises(Damaged):
        client.download_artifact(downloads.large, io.BytesIO())
    folder = tmp_path / "empty"
    folder.mkdir()
    out = ("artifact", "get", downloads.large, "--out", "file")
    ended = run(folder, "--server", downloads.live.url, "--key", downloads.live.key, *out)
    assert ended.returncode == 1
    assert "differs from the checksum" in ended.stderr
    assert list(folder.iterdir()) == []


def test_the_command_line_downloads_to_a_file_and_to_a_pipe(downloads: Downloads, tmp_path: Path) -> None:
    server = ("--server", downloads.live.url, "--key", downloads.live.key)
    folder = tmp_path / "empty"
    folder.mkdir()
    ended = run(folder, *server, "artifact", "get", downloads.large, "-O", "file.bin")
    assert (ended.returncode, ended.stderr) == (0, f"file.bin: {len(LARGE)} bytes\n")
    assert [path.name for path in folder.iterdir()] == ["file.bin"]
    assert (folder / "file.bin").read_bytes() == LARGE
    ended = run(tmp_path, *server, "artifact", "get", downloads.small, "-O", "no/such/file")
    assert ended.returncode == 2
