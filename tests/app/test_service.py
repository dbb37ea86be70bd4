"""`ServiceBuilder`: a user's own service whose tasks are stored at start-up and really run."""

import asyncio
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from sqlalchemy import func, select

from rota import (
    ArtifactHierarchy,
    AsyncSession,
    CrudPermissions,
    Rota,
    ServiceBuilder,
    ServiceInfo,
    TaskIn,
    mounted_lifespan,
    tables,
    validate_and_disable_orphaned_tasks,
)
from rota.db.connection import open_database
from rota.db.dialect import Tx
from rota.db.tables import jobs
from tests.postgres import create_database, drop_database

IDS = {
    name: f"01K7T0000000000000000000{number:02}"
    for number, name in enumerate(("sum", "upper", "slow", "fail", "echo", "off", "count", "gone"), 1)
}
INFO = ServiceInfo(display_name="Reports", version="2.3.0")
HIERARCHY = ArtifactHierarchy(name="executions", level_labels={0: "execution", 1: "part"})


def program() -> Rota:
    app = Rota()

    @app.task
    async def calculate_sum(a: int, b: int) -> dict[str, Any]:
        print(f"adding {a} and {b}")
        return {"result": a + b, "operation": "sum"}

    @app.task
    def process_text(text: str) -> str:
        return text.upper()

    @app.task
    async def slow(seconds: float) -> dict[str, float]:
        await asyncio.sleep(seconds)
        return {"slept": seconds}

    @app.task
    async def failing_task(should_fail: bool = True) -> None:
        raise ValueError("This task was designed to fail")

    @app.task
    async def query_task_count(session: AsyncSession) -> dict[str, int]:
        result = await session.execute(select(func.count()).select_from(tables.tasks))
        return {"total_tasks": result.scalar_one()}

    return app


async def seed(app: FastAPI) -> None:
    for task in (
        TaskIn("calculate_sum", "python", {"a": 10, "b": 32}, id=IDS["sum"]),
        TaskIn("process_text", "python", {"text": "quiet"}, id=IDS["upper"]),
        TaskIn("slow", "python", {"seconds": 0.2}, id=IDS["slow"]),
        TaskIn("failing_task", "python", {"should_fail": True}, id=IDS["fail"]),
        TaskIn("echo 'Hello World'; echo careful >&2", id=IDS["echo"]),
        TaskIn("process_text", "python", {"text": "never"}, enabled=False, id=IDS["off"]),
        TaskIn("query_task_count", "python", {}, id=IDS["count"]),
        TaskIn("nobody_has_this", "python", id=IDS["gone"]),
    ):
        await app.state.tasks.save(task)


def build(url: str, permissions: CrudPermissions | None = None, **more: Any) -> ServiceBuilder:
    return (
        ServiceBuilder(INFO, database_url=url, program=program(), **more)
        .with_health()
        .with_artifacts(hierarchy=HIERARCHY)
        .with_jobs(max_concurrency=3)
        .with_tasks(permissions)
        .with_schedules()
        .on_startup(seed)
        .on_startup(validate_and_disable_orphaned_tasks)
    )


@pytest.fixture(autouse=True, scope="module")
def own_output() -> Iterator[None]:
    """A service captures the logging of its tasks; restore the loggers after these tests."""
    root, streams = logging.getLogger(), (sys.stdout, sys.stderr)
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.stdout, sys.stderr = streams


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DATA_DIR", str(tmp_path))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty database: a service makes its tables itself."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('service') / 'rota.db'}"
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    yield url
    drop_database(server, url)


class RunningService:
    """The service on its own port, as users start it."""

    def __init__(self, app: FastAPI) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
        self.thread = threading.Thread(target=lambda: self.server.run(sockets=[self.sock]), daemon=True)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.sock.getsockname()[1]}", timeout=30)

    def __enter__(self) -> Self:
        self.thread.start()
        wait_for(lambda: self.server.started or not self.thread.is_alive())
        assert self.server.started
        return self

    def __exit__(self, *_: Any) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.client.request(method, f"/api/v1{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def execute(self, name: str, body: Any = None) -> str:
        return str(self.ask("POST", f"/tasks/{IDS.get(name, name)}/$execute", body, 202)["job_id"])

    def ended(self, job_id: str) -> Any:
        """The job, once it has ended: polled, as users do."""
        wait_for(lambda: self.ask("GET", f"/jobs/{job_id}")["finished_at"])
        return self.ask("GET", f"/jobs/{job_id}")

    def result(self, name: str, body: Any = None) -> Any:
        job = self.ended(self.execute(name, body))
        return self.ask("GET", f"/artifacts/{job['artifact_id']}")["data"]


def wait_for(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def service(service_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROTA_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        with RunningService(build(service_url).build()) as served:
            yield served


# the requests of the source's collection


def test_health(service: RunningService) -> None:
    answer = service.client.get("/health")
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "healthy", "checks": {"database": {"state": "healthy", "message": None}}},
    )


def test_listing_tasks(service: RunningService) -> None:
    everything = service.ask("GET", "/tasks")["items"]
    assert {task["id"] for task in everything} >= {*IDS.values()}
    disabled = {task["id"] for task in service.ask("GET", "/tasks?enabled=false")["items"]}
    assert {IDS["off"], IDS["gone"]} <= disabled
    enabled = {task["id"] for task in service.ask("GET", "/tasks?enabled=true")["items"]}
    assert IDS["sum"] in enabled
    assert not enabled & disabled
    task = service.ask("GET", f"/tasks/{IDS['sum']}")
    assert (task["command"], task["parameters"]) == ("calculate_sum", {"a": 10, "b": 32})


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("sum", {"result": 42, "operation": "sum"}),
        ("upper", "QUIET"),
        ("slow", {"slept": 0.2}),
    ],
)
def test_executing_functions(service: RunningService, name: str, result: Any) -> None:
    data = service.result(name)
    assert (data["result"], data["error"]) == (result, None)
    assert (data["task"]["id"], data["task"]["task_type"]) == (IDS[name], "python")


def test_executing_a_function_that_fails(service: RunningService) -> None:
    job = service.ended(service.execute("fail"))
    assert job["status"] == "failed"
    data = service.ask("GET", f"/artifacts/{job['artifact_id']}")["data"]
    assert (data["error"]["type"], data["error"]["message"]) == ("ValueError", "This task was designed to fail")
    assert 'raise ValueError("This task was designed to fail")' in data["error"]["traceback"]


def test_executing_an_injected_function(service: RunningService) -> None:
    assert service.result("count")["result"]["total_tasks"] >= len(IDS)


def test_executing_a_command(service: RunningService) -> None:
    data = service.result("echo")
    assert (data["stdout"], data["stderr"], data["exit_code"]) == ("Hello World\n", "careful\n", 0)


def test_following_a_job(service: RunningService) -> None:
    job_id = service.execute("slow")
    assert service.ask("GET", f"/jobs/{job_id}")["status"] in ("pending", "running")
    with service.client.stream("GET", f"/api/v1/jobs/{job_id}/$stream") as stream:
        said = "".join(stream.iter_text())
    assert re.findall(r'"status":"(\w+)"', said)[-1] == "success"


def test_listing_jobs(service: RunningService) -> None:
    failed = service.ended(service.execute("fail"))["id"]
    fine = service.ended(service.execute("sum"))["id"]
    newest = [job["id"] for job in service.ask("GET", "/jobs?limit=2")["items"]]
    assert newest == [fine, failed]
    assert failed in [job["id"] for job in service.ask("GET", "/jobs?status=failed")["items"]]
    assert fine not in [job["id"] for job in service.ask("GET", "/jobs?status=failed")["items"]]


def test_making_changing_and_deleting_tasks(service: RunningService) -> None:
    python = {"command": "calculate_sum", "task_type": "python", "parameters": {"a": 1, "b": 2}}
    made = service.ask("POST", "/tasks", python, 201)
    shell = service.ask("POST", "/tasks", {"command": "exit 1"}, 201)
    off = service.ask("POST", "/tasks", {**python, "enabled": False}, 201)
    assert service.result(made["id"])["result"]["result"] == 3
    assert service.result(shell["id"])["exit_code"] == 1
    service.ask("POST", f"/tasks/{off['id']}/$execute", None, 400)
    service.ask("PUT", f"/tasks/{off['id']}", {**python, "enabled": True})
    assert service.result(off["id"])["result"]["result"] == 3
    service.ask("PUT", f"/tasks/{off['id']}", {**python, "enabled": False})
    service.ask("POST", f"/tasks/{off['id']}/$execute", None, 400)
    service.ask("PUT", f"/tasks/{made['id']}", {**python, "parameters": {"a": 100, "b": 200}})
    assert service.result(made["id"])["result"]["result"] == 300
    for task in (made, shell, off):
        service.ask("DELETE", f"/tasks/{task['id']}", status=204)
        service.ask("GET", f"/tasks/{task['id']}", status=404)


def test_what_cannot_be_executed(service: RunningService) -> None:
    for name in ("off", "gone"):
        answer = service.ask("POST", f"/tasks/{IDS[name]}/$execute", None, 400)
        assert answer["detail"] == f"Cannot execute disabled task {IDS[name]}"
    service.ask("POST", "/tasks/01K7T000000000000000000099/$execute", None, 400)
    service.ask("POST", "/tasks", {"task_type": "python"}, 422)


def test_a_crowd_of_jobs_runs_three_at_a_time_and_none_is_lost(service: RunningService) -> None:
    jobs = [service.execute(name) for name in ("sum", "upper", "echo") * 10]
    ended = [service.ended(job_id) for job_id in jobs]
    assert {run["status"] for run in ended} == {"success"}
    changes = [(result["started_at"], 1) for result in ended] + [(result["finished_at"], -1) for result in ended]
    at_once = most = 0
    for _, step in sorted(changes):
        at_once += step
        most = max(most, at_once)
    assert most <= 3


def test_a_scheduled_task_runs_in_its_time(service: RunningService) -> None:
    body = {"interval_seconds": 1, "max_runs": 1}
    made = service.ask("POST", f"/tasks/{IDS['sum']}/$schedule", body, 201)
    runs = f"/runs?schedule_id={made['id']}&status=success"
    wait_for(lambda: service.ask("GET", runs)["items"])
    (run,) = service.ask("GET", runs)["items"]
    assert (run["outcome"]["result"], run["slot"]) == (42, made["next_run_at"])


def test_the_openapi_document_lists_the_routes_that_exist(service: RunningService) -> None:
    document = service.client.get("/openapi.json").json()
    assert (document["info"]["title"], document["info"]["version"]) == ("Reports", "2.3.0")
    assert "/api/v1/tasks/{key}/$execute" in document["paths"]
    assert "/api/v1/users" not in document["paths"]


# other services


@asynccontextmanager
async def started(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


@pytest.fixture
def empty_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rota.db'}"


async def test_a_read_only_api_runs_tasks_and_changes_none(empty_url: str) -> None:
    allowed = CrudPermissions(create=False, read=True, update=False, delete=False)
    async with started(build(empty_url, allowed).build()) as client:
        task_path = f"/api/v1/tasks/{IDS['sum']}"
        scheduled = f"{task_path}/$schedules/nightly"
        off = [
            ("POST", "/api/v1/tasks"),
            ("PUT", task_path),
            ("PATCH", task_path),
            ("DELETE", task_path),
            ("POST", f"{task_path}/$schedule"),
        ]
        for method, path in (*off, ("PATCH", scheduled), ("DELETE", scheduled)):
            answer = await client.request(method, path, json={"command": "true"})
            assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert (await client.get("/api/v1/tasks")).status_code == 200
        assert (await client.get(task_path)).status_code == 200
        assert (await client.post(f"{task_path}/$execute")).status_code == 202


async def test_without_auth_every_caller_is_an_admin_and_with_auth_a_key_is_needed(
    empty_url: str, tmp_path: Path
) -> None:
    async with started(build(empty_url).build()) as client:
        assert (await client.post("/api/v1/tasks", json={"command": "true"})).status_code == 201
    key = (tmp_path / "admin.key").read_text().strip()
    async with started(build(empty_url).with_auth().build()) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/api/v1/tasks")).status_code == 401
        assert (await client.get("/api/v1/tasks", headers={"x-api-key": "rota_wrong"})).status_code == 401
        assert (await client.get("/api/v1/tasks", headers={"x-api-key": key})).status_code == 200


async def test_hooks_run_in_their_order_around_the_work(empty_url: str) -> None:
    messages: list[str] = []

    async def stored(app: FastAPI) -> int:
        return sum(task["source"] == "api" for task in await app.state.tasks.find_all())

    async def first(app: FastAPI) -> None:
        messages.append(f"first sees {await stored(app)} tasks")

    def second(app: FastAPI) -> None:
        messages.append("second")

    async def last(app: FastAPI) -> None:
        messages.append(f"last sees {await stored(app)} tasks")

    app = build(empty_url).on_startup(first).on_startup(second).on_shutdown(last).on_shutdown(second).build()
    assert messages == []
    async with started(app):
        assert messages == ["first sees 8 tasks", "second"]
    assert messages[2:] == ["last sees 8 tasks", "second"]


async def test_a_start_that_fails_leaves_nothing_open(empty_url: str) -> None:
    async def wrong(app: FastAPI) -> None:
        raise ValueError("no")

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="no"):
        async with started(build(empty_url).on_startup(wrong).build()):
            raise AssertionError
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in left if name.startswith("rota")]  # the event loop keeps its own threads


async def test_orphans_are_disabled_when_the_service_starts(empty_url: str) -> None:
    builder = ServiceBuilder(INFO, empty_url, program()).with_tasks(validate_on_startup=True).on_startup(seed)
    async with started(builder.build()) as client:
        assert (await client.get(f"/api/v1/tasks/{IDS['gone']}")).json()["enabled"] is False
        assert (await client.get(f"/api/v1/tasks/{IDS['sum']}")).json()["enabled"] is True
    assert await validate_and_disable_orphaned_tasks(FastAPI()) == 0


async def test_health_reports_the_worst_of_its_checks(empty_url: str) -> None:
    state = {"fine": True}

    async def flaky() -> bool:
        return state["fine"]

    def broken() -> None:
        if not state["fine"]:
            raise ConnectionError("the printer is on fire")

    builder = ServiceBuilder(INFO, empty_url).with_health({"flaky": flaky, "broken": broken})
    async with started(builder.build()) as client:
        assert (await client.get("/health")).json()["status"] == "healthy"
        state["fine"] = False
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()) == (
            503,
            {
                "status": "unhealthy",
                "checks": {
                    "database": {"state": "healthy", "message": None},
                    "flaky": {"state": "unhealthy", "message": None},
                    "broken": {"state": "unhealthy", "message": "ConnectionError: the printer is on fire"},
                },
            },
        )
        assert (await client.get("/api/v1/tasks")).status_code == 404  # it was not built with tasks


def test_schedules_and_history_survive_a_restart(service_url: str, tmp_path: Path) -> None:
    with RunningService(build(service_url).build()) as served:
        made = served.ask("POST", f"/tasks/{IDS['upper']}/$schedule", {"cron_expression": "0 2 * * *"}, 201)
        job = served.ended(served.execute("upper"))
    with RunningService(build(service_url).build()) as served:
        (kept,) = served.ask("GET", f"/tasks/{IDS['upper']}/$schedules")["items"]
        assert (kept["id"], kept["next_run_at"]) == (made["id"], made["next_run_at"])
        assert served.ask("GET", f"/jobs/{job['id']}") == job
        assert served.ask("GET", f"/artifacts/{job['artifact_id']}")["data"]["result"] == "QUIET"
        assert served.result("upper")["result"] == "QUIET"
        served.ask("DELETE", f"/tasks/{IDS['upper']}/$schedules/{kept['id']}", status=204)


async def test_routers_of_the_user_are_mounted_and_documented(empty_url: str) -> None:
    class Answer(BaseModel):
        text: str

    router = APIRouter()

    @router.get("/hello")
    async def hello() -> Answer:
        return Answer(text="hi")

    async with started(ServiceBuilder(INFO, empty_url).include_router(router).build()) as client:
        assert (await client.get("/hello")).json() == {"text": "hi"}
        document = (await client.get("/openapi.json")).json()
    schema = document["paths"]["/hello"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Answer"}
    assert document["components"]["schemas"]["Answer"]["properties"].keys() == {"text"}


async def test_what_a_function_prints_is_in_its_log(empty_url: str) -> None:
    app = build(empty_url).build()
    async with started(app) as client:
        job_id = (await client.post(f"/api/v1/tasks/{IDS['sum']}/$execute")).json()["job_id"]
        assert await app.state.jobs.wait(job_id, timeout=30) == "success"
        job = (await client.get(f"/api/v1/jobs/{job_id}")).json()
        lines = (await client.get(f"/api/v1/runs/{job['artifact_id']}/logs")).json()["items"]
    assert [(line["stream"], line["text"]) for line in lines] == [("stdout", "adding 10 and 32")]


async def test_a_service_that_was_mounted_without_its_lifespan_reports_that(tmp_path: Path) -> None:
    service = ServiceBuilder(INFO, database_url=f"sqlite:///{tmp_path}/rota.db").with_health().with_tasks().build()
    outer = FastAPI()
    outer.mount("/rota", service)
    async with (
        outer.router.lifespan_context(outer),
        httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://app") as client,
    ):
        for path in ("/rota/health", "/rota/api/v1/tasks", "/rota/health/ready"):
            answer = await client.get(path)
            assert answer.status_code == 503, path
            assert "rota.mounted_lifespan(service)" in answer.json()["detail"]


async def test_a_mounted_service_runs_with_the_lifespan_of_its_application(tmp_path: Path) -> None:
    url, events = f"sqlite:///{tmp_path}/rota.db", []
    service = ServiceBuilder(INFO, database_url=url, program=program()).with_health().with_tasks().with_jobs().build()

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        events.append(("up", app))
        yield
        events.append(("down", app))

    outer = FastAPI(lifespan=mounted_lifespan(service, own))
    outer.mount("/rota", service)
    async with (
        outer.router.lifespan_context(outer),
        httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://app") as client,
    ):
        assert (await client.get("/rota/health")).json()["status"] == "healthy"
        path, headers = "/rota/api/v1/tasks/calculate_sum/$execute", {"idempotency-key": "once"}
        made = [await client.post(path, json={"parameters": {"a": 1, "b": 2}}, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in made] == [202, 202]
        assert made[0].json() == made[1].json()
        deadline = time.monotonic() + 30
        while (job := (await client.get(f"/rota/api/v1/jobs/{made[0].json()['job_id']}")).json())[
            "status"
        ] != "success":
            assert time.monotonic() < deadline, job
            await asyncio.sleep(0.02)
    assert events == [("up", outer), ("down", outer)]
    assert not service.state.started


@pytest.mark.parametrize(
    ("drain_seconds", "released", "left"),
    [("60", True, [("success", None)]), ("1", False, [("canceled", "shutdown"), ("ready", None)])],
)
async def test_a_service_that_stops_waits_for_running_work(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, drain_seconds: str, released: bool, left: list[Any]
) -> None:
    monkeypatch.setenv("ROTA_DRAIN_SECONDS", drain_seconds)
    begun, release = asyncio.Event(), asyncio.Event()
    own = Rota()

    @own.task
    async def long() -> None:
        begun.set()
        await release.wait()

    app = ServiceBuilder(INFO, database_url=empty_url, program=own).with_tasks().with_jobs().build()
    lifespan = app.router.lifespan_context(app)
    await lifespan.__aenter__()
    await app.state.jobs.add_job("long")
    await asyncio.wait_for(begun.wait(), 30)
    stopping = asyncio.ensure_future(lifespan.__aexit__(None, None, None))
    done, _ = await asyncio.wait([stopping], timeout=0.5)
    assert not done
    if released:
        release.set()
    await asyncio.wait_for(stopping, 30)

    def read(tx: Tx) -> list[tuple[str, str | None]]:
        ended = select(tables.runs.c.status, tables.runs.c.reason)
        queued = select(jobs.c.state, jobs.c.lease_owner)
        return [(name, reason) for stmt in (ended, queued) for name, reason in tx.execute(stmt)]

    db = open_database(empty_url)
    assert await db.read(read) == left
    await db.close()
