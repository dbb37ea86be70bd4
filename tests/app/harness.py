"""An API over a fresh database of either kind, with one shell task and one function to schedule."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import argon2
import httpx
import pytest
from argon2 import PasswordHasher
from fastapi import FastAPI
from sqlalchemy import text as sql

from rota.access.store import accounts
from rota.app.asgi import create_site
from rota.app.assembly import EXTENSIONS
from rota.core.clock import ManualClock
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job
from rota.core.states import Status
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.db.wake import Wake
from rota.engine import claiming, finishing
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import Runners
from rota.graphs import GraphRequest, LlmCaller, TextDelta, UsageReport
from rota.kinds.alarms.runner import AlarmRunner
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.graphs.registry import GraphRegistry
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.hosts.runner import HostRunner
from rota.kinds.pipelines.executor import executor_here
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.kinds.pipelines.runner import PipelineRunner
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.registry import TaskRegistry, task_rows
from rota.kinds.tasks.runner import TaskRunner
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.user_code.injection import Injector
from tests.routes import share_analysed_routes

share_analysed_routes()

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
SERVICE_TOKEN = "service-token-of-the-tests"
WORKER = "01WORKER000000000000000000"


async def echo(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
    """Say it again."""
    yield TextDelta(str(request.input.get("say", "")))
    yield UsageReport("one", "tiny", 1, 1, "0.001")


@dataclass
class Api:
    """What a test needs: a client with the admin's key, and what stands behind the API."""

    client: httpx.AsyncClient
    app: FastAPI
    engine: Engine
    db: Database
    clock: ManualClock
    org_id: str
    key: str

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None:
            more["json"] = body
        return await self.client.request(method, f"/api/v1{path}", **more)

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.call("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def schedule(self, name: str, **fields: Any) -> Any:
        body = {"name": name, "target": "hello", "schedule_type": "cron", "cron_expression": "0 12 * * *", **fields}
        answer = await self.call("POST", "/schedules", {key: value for key, value in body.items() if value is not None})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def job(self, name: str = "nightly") -> str:
        answer = await self.call("POST", f"/schedules/{name}/$run", {"overlap": "allow"})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    async def claim(self, worker: str = WORKER) -> list[Job]:
        """Take everything that is ready, as a worker would."""

        def step(tx: Tx) -> list[Job]:
            return claiming.claim(
                tx, claiming.lanes(tx), worker=worker, routes=["task:default:hello"], room=100, turn=0
            )

        return await self.db.tx(step)

    async def start(self, worker: str = WORKER) -> list[Attempt]:
        """Take what is ready, and write down that it has begun."""
        claimed = await self.claim(worker)
        begun = [Attempt(job, new_id(), job.attempt + 1, self.clock.now()) for job in claimed]
        await self.db.tx(finishing.mark_started, begun)
        return begun

    async def end(self, begun: list[Attempt], status: Status = Status.SUCCESS, reason: str | None = None) -> None:
        now = self.clock.now()
        ended = [
            AttemptResult(attempt.job, status, reason, now, attempt.run_id, attempt.number, attempt.started_at)
            for attempt in begun
        ]
        await self.db.tx(finishing.finish, ended, WORKER)

    async def count(self, table: str) -> int:
        return await self.db.read(lambda tx: int(tx.execute(sql(f"SELECT count(*) FROM {table}")).scalar_one()))

    async def execute(self, statement: str, **values: Any) -> None:
        def step(tx: Tx) -> None:
            tx.execute(sql(statement), values)

        await self.db.tx(step)


@pytest.fixture
def cheap_password_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hash passwords with the least work that argon2 allows."""
    accounts.dummy_password_hash.cache_clear()
    monkeypatch.setattr(argon2, "PasswordHasher", partial(PasswordHasher, time_cost=1, memory_cost=8, parallelism=1))
    yield
    accounts.dummy_password_hash.cache_clear()


@pytest.fixture
async def api(clean_url: str, cheap_password_hashes: None, tmp_path: Path) -> AsyncIterator[Api]:
    db = open_database(clean_url)
    clock = ManualClock(NINE)
    registry = TaskRegistry.of_program()
    registry.register_function("hello", lambda name="you": f"hello {name}")
    graphs = GraphRegistry()
    graphs.add("echo", echo, "python", version="1")
    runners: Runners = {
        "task": TaskRunner(registry, db),
        "graph": GraphRunner(graphs, db, clock),
        "pipeline": PipelineRunner(PipelineRegistry(), db, executor_here(tmp_path / "warehouse", 4)),
        "host_job": HostRunner(db, clock),
        "alarm": AlarmRunner(db, AlarmSettings()),
        "workflow": (flows := WorkflowRunner({}, Connectors(), db, sandbox=Sandbox(spare=0))),
    }
    engine = Engine(db, clock, Wake(), runners, EngineSettings(), extensions=EXTENSIONS)
    org_id, key = await db.tx(accounts.ensure_default_org, NINE)
    assert key is not None
    await db.tx(tasks_store.sync, org_id, task_rows(registry, Injector(), None), NINE)
    app = create_site(engine, db, service_token=SERVICE_TOKEN)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://rota", headers=headers) as client:
        yield Api(client, app, engine, db, clock, org_id, key)
    await flows.close()
    await db.close()
