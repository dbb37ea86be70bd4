"""`app.asgi()`: how the site starts and stops, as a whole application and below a path of another one."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import rota
from rota import Rota
from rota.app.site import MountedSite, inner_scope, with_prefix


def program() -> Rota:
    app = Rota()

    @app.task
    def hello(name: str = "you") -> str:
        return f"hello {name}"

    return app


@pytest.fixture
def settings(migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", migrated_url)
    monkeypatch.setenv("ROTA_DATA_DIR", str(tmp_path / "data"))


def client_of(site: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://127.0.0.1")


async def ended_job(client: httpx.AsyncClient, job_id: str, headers: dict[str, str]) -> Any:
    """Follow a job by its event stream until it ends; return it."""
    async with asyncio.timeout(20), client.stream("GET", f"/api/v1/jobs/{job_id}/$stream", headers=headers) as stream:
        async for _ in stream.aiter_lines():
            pass
    return (await client.get(f"/api/v1/jobs/{job_id}", headers=headers)).json()


@pytest.mark.usefixtures("settings")
async def test_the_first_request_starts_a_site_without_a_worker(tmp_path: Path) -> None:
    site, outer = program().asgi(), FastAPI()
    outer.mount("/rota", site)
    async with client_of(outer) as client:
        answers = await asyncio.gather(*(client.get("/rota/health/live") for _ in range(5)))
        assert {answer.status_code for answer in answers} == {200}
        assert (await client.get("/rota/")).headers["location"] == "/rota/login"
        assert (await client.get("/rota/static/rota.css")).status_code == 200
        key = (tmp_path / "data" / "admin.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        tasks = (await client.get("/rota/api/v1/tasks", headers=headers)).json()["items"]
        assert [task["name"] for task in tasks] == ["hello"]
        missing = await client.get("/rota/api/v1/unknown", headers=headers)
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    await site.close()
    await site.close()  # a no-op


@pytest.mark.usefixtures("settings")
async def test_a_site_with_a_worker_needs_a_lifespan_and_runs_jobs_inside(tmp_path: Path) -> None:
    app = program()
    app.schedule("nightly", "hello", cron="0 2 * * *")
    site = app.asgi(worker=True)
    async with client_of(site) as client:
        refused = await client.get("/health/live")
        assert (refused.status_code, refused.json()["code"]) == (503, "not_started")
        assert "lifespan=rota.mounted_lifespan(service)" in refused.json()["detail"]
        outer = FastAPI(lifespan=rota.mounted_lifespan(site))
        async with outer.router.lifespan_context(outer):
            job_id = await app.enqueue("hello", name="Ada")
            headers = {"authorization": f"Bearer {(tmp_path / 'data' / 'admin.key').read_text().strip()}"}
            job = await ended_job(client, job_id, headers)
            assert job["status"] == "success"
            (schedule,) = (await client.get("/api/v1/schedules", headers=headers)).json()["items"]
            assert (schedule["name"], schedule["source_ref"]) == ("nightly", "test_mounting")
        assert (await client.get("/health/live")).status_code == 503  # stopped


@pytest.mark.usefixtures("settings")
async def test_a_server_can_run_it_as_its_whole_application() -> None:
    site = program().asgi()
    sent, received = asyncio.Queue[Any](), asyncio.Queue[Any]()
    running = asyncio.create_task(site({"type": "lifespan"}, received.get, sent.put))
    received.put_nowait({"type": "lifespan.startup"})
    assert await asyncio.wait_for(sent.get(), 20) == {"type": "lifespan.startup.complete"}
    async with client_of(site) as client:
        assert (await client.get("/openapi.json")).json().get("servers") is None
        login = await client.get("/login")
        assert "path=/;" in login.headers["set-cookie"].lower()
    received.put_nowait({"type": "lifespan.shutdown"})
    assert await asyncio.wait_for(sent.get(), 20) == {"type": "lifespan.shutdown.complete"}
    await running


async def test_a_database_that_is_not_migrated_is_reported_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path
) -> None:
    monkeypatch.setenv("ROTA_DATA_DIR", str(tmp_path))
    site = program().asgi()
    async with client_of(site) as client:
        refused = await client.get("/health/live")
        assert (refused.status_code, "run `rota migrate`" in refused.json()["detail"]) == (503, True)
        from rota.db.migrate import migrate

        await asyncio.to_thread(migrate, f"sqlite:///{tmp_path / 'rota.db'}")
        assert (await client.get("/health/live")).status_code == 200
    await site.close()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    broken = Rota().asgi(database_url=f"sqlite:///{tmp_path / 'other' / 'rota.db'}")
    await broken({"type": "lifespan"}, lambda: asyncio.sleep(0, {"type": "lifespan.startup"}), sent.put)
    failed = sent.get_nowait()
    assert (failed["type"], "run `rota migrate`" in failed["message"]) == ("lifespan.startup.failed", True)


def test_the_prefix_is_removed_inside_and_added_outside() -> None:
    mounted = {"path": "/rota/runs", "root_path": "/rota", "type": "http"}
    inside = inner_scope(mounted, "/rota")
    assert (inside["path"], inside["root_path"]) == ("/runs", "")
    assert inner_scope({**mounted, "path": "/rota"}, "/rota")["path"] == "/"
    assert inner_scope({**mounted, "path": "/runs"}, "/rota")["path"] == "/runs"  # the server removed it already
    assert inner_scope({**mounted, "path": "/rotation"}, "/rota")["path"] == "/rotation"
    assert with_prefix(b"location", b"/login", "/rota") == b"/rota/login"
    assert with_prefix(b"location", b"https://elsewhere/", "/rota") == b"https://elsewhere/"
    assert with_prefix(b"location", b"//elsewhere/", "/rota") == b"//elsewhere/"
    cookie = b"rota_session=x; HttpOnly; Path=/; SameSite=lax"
    assert with_prefix(b"set-cookie", cookie, "/rota") == b"rota_session=x; HttpOnly; Path=/rota; SameSite=lax"
    assert isinstance(Rota().asgi(), MountedSite)
