"""`rota.client` against real servers that fail and restart."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import client
from rota import client_routes as routes
from rota.client import AsyncClient, Client
from tests.app.command_line import run, running_server
from tests.app.live_api import LiveApi
from tests.app.tcp_proxy import TcpProxy
from tests.databases import copy_sqlite

HOURLY = {"target": "hello", "interval": "1h"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL and the key of a server that has a worker."""
    with running_server(tmp_path_factory.mktemp("client")) as home:
        url = json.loads((home / "data" / "server.json").read_text())["url"]
        yield url, (home / "data" / "admin.key").read_text().strip()


@pytest.fixture
def live(tmp_path: Path, sqlite_template: Path) -> Iterator[LiveApi]:
    copy_sqlite(sqlite_template, f"sqlite:///{tmp_path / 'rota.db'}")
    with LiveApi(f"sqlite:///{tmp_path / 'rota.db'}") as live:
        yield live


def test_a_program_walks_pages_and_waits(place: tuple[str, str]) -> None:
    with Client(*place) as rota:
        for number in range(5):
            rota.create_schedule(name=f"p{number}", tags=["pages"], **HOURLY)
        assert [schedule["name"] for schedule in rota.schedules(tag="pages", limit=2)] == [
            f"p{number}" for number in range(5)
        ]
        jobs = [rota.run_schedule(f"p{number}", input={"name": str(number)}) for number in range(3)]
        assert [rota.wait(job, 30)["status"] for job in jobs] == ["success"] * 3
        runs = {run["job_id"]: run for run in rota.runs(limit=1, kind="task")}
        assert [runs[job]["outcome"] for job in jobs] == ["0", "1", "2"]
        (line,) = rota.logs(str(runs[jobs[1]]["id"]))
        assert line["text"] == "hello 1"
        rota.create_schedule(name="broken", **{**HOURLY, "target": "fails"})
        failed = rota.wait(rota.run_schedule("broken"), 30)
        assert (failed["status"], (failed["error"] or {})["message"]) == ("failed", "it does")


def test_a_run_that_sleeps_is_waited_for(place: tuple[str, str], tmp_path: Path) -> None:
    with Client(*place) as rota:
        assert rota.wait(rota.add_job("sleeps"), 30)["status"] == "success"
    url, key = place
    answer = run(tmp_path, "task", "run", "sleeps", "--wait", ROTA_SERVER=url, ROTA_KEY=key)
    assert (answer.returncode, answer.stdout) == (0, "woke\n"), answer.stderr


async def test_an_asynchronous_program_walks_pages_and_waits(place: tuple[str, str]) -> None:
    async with AsyncClient(*place) as rota:
        for number in range(5):
            await rota.create_schedule(name=f"a{number}", tags=["async"], **HOURLY)
        assert len([schedule async for schedule in rota.schedules(tag="async", limit=2)]) == 5
        jobs = await asyncio.gather(*(rota.run_schedule(f"a{number}") for number in range(5)))
        assert {(await rota.wait(job, 30))["status"] for job in jobs} == {"success"}
        assert {job async for run in rota.runs(limit=2) if (job := run["job_id"]) in jobs} == set(jobs)


def test_any_route_can_be_called_with_types(live: LiveApi) -> None:
    with Client(live.url, live.key) as rota:
        rota.send(routes.put_queues_by_name({"max_running": 3}, name="a b"))
        rota.send(routes.put_queues_by_name({"max_running": 5}, name="other"))
        limits = {queue["name"]: queue["max_running"] for queue in rota.items(routes.get_queues(limit=1))}
        assert (limits["a b"], limits["other"]) == (3, 5)
        schedule = rota.send(routes.post_schedules({"name": "typed", "target": "hello", "interval": "1h"}))
        assert rota.send(routes.get_schedules_by_key(key=schedule["id"]))["name"] == "typed"
        with pytest.raises(client.Conflict):
            rota.send(routes.patch_schedules_by_key({"priority": 1}, key="typed"), if_match=9)
        with pytest.raises(TypeError, match=r"GET /schedules/\{key\} needs key"):
            routes.get_schedules_by_key()


async def test_any_route_can_be_awaited_with_types(live: LiveApi) -> None:
    async with AsyncClient(live.url, live.key) as rota:
        key = await rota.send(routes.post_api_keys({"name": "typed", "role": "viewer"}))
        names = [listed["name"] async for listed in rota.items(routes.get_api_keys(limit=1))]
        assert "typed" in names
        await rota.send(routes.delete_api_keys_by_key_id(key_id=key["id"]))
        revoked = await rota.send(routes.get_api_keys_by_key_id(key_id=key["id"]))
        assert revoked["revoked_at"] is not None


@pytest.mark.parametrize(
    ("call", "error", "code"),
    [
        (lambda rota: rota.schedule("unknown"), client.NotFound, "not_found"),
        (lambda rota: rota.create_schedule(name="x", **{**HOURLY, "interval": "x"}), client.BadRequest, "invalid"),
        (lambda rota: rota.create_schedule(name="taken", **HOURLY), client.Conflict, "conflict"),
        (lambda rota: rota.edit_schedule("taken", if_match=9, priority=1), client.Conflict, "stale_revision"),
        (
            lambda rota: Client(str(rota.http.base_url), "rota_wrong").job("x"),
            client.NotAuthenticated,
            "unauthenticated",
        ),
    ],
)
def test_refusals_are_errors_of_their_own(
    live: LiveApi, call: Callable[[Client], Any], error: type[client.ApiError], code: str
) -> None:
    with Client(live.url, live.key) as rota:
        rota.create_schedule(name="taken", **HOURLY)
        with pytest.raises(error) as raised:
            call(rota)
        assert raised.value.code == code
        viewer = rota.call("POST", "/api-keys", {"name": "v", "role": "viewer"})["key"]
    with Client(live.url, viewer) as rota, pytest.raises(client.Forbidden):
        rota.run_schedule("taken")


def test_a_lost_answer_costs_no_second_job(live: LiveApi) -> None:
    with TcpProxy(live.url) as proxy, Client(proxy.url, live.key) as rota:
        rota.create_schedule(name="once", **HOURLY)
        for _ in range(3):
            proxy.lose_answers(1)
            rota.run_schedule("once", overlap="allow")
        proxy.lose_answers(2)
        assert len(list(rota.runs(limit=1))) == 3
        assert proxy.cuts == 5
        proxy.lose_answers(1)
        with pytest.raises(client.Unreachable):
            rota.delete_schedule("once")  # a repeat could delete another one of this name


async def test_an_asynchronous_program_survives_a_cut(live: LiveApi) -> None:
    with TcpProxy(live.url) as proxy:
        async with AsyncClient(proxy.url, live.key) as rota:
            await rota.create_schedule(name="once", **HOURLY)
            proxy.lose_answers(1)
            await rota.run_schedule("once")
            proxy.lose_answers(1)
            assert len([run async for run in rota.runs(limit=1)]) == 1
            assert proxy.cuts == 2


def test_reads_wait_for_a_server_that_restarts(tmp_path: Path, sqlite_template: Path) -> None:
    copy_sqlite(sqlite_template, f"sqlite:///{tmp_path / 'rota.db'}")
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    with LiveApi(url) as first, Client(first.url, first.key, tries=10) as rota:
        rota.create_schedule(name="kept", **HOURLY)
        first.__exit__()
        with pytest.raises(client.Unreachable):
            Client(first.url, first.key, tries=1).schedule("kept")
        schedules: list[Any] = []
        asking = threading.Thread(target=lambda: schedules.append(rota.schedule("kept")))
        asking.start()
        with LiveApi(url, first.port):
            asking.join(30)
        assert [schedule["name"] for schedule in schedules] == ["kept"]
