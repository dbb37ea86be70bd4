"""An API that listens on its own port, for tests with real connections: streams and fuzzing."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from rota.access.store import accounts
from rota.app.asgi import create_site
from rota.app.assembly import EXTENSIONS
from rota.app.connections import HEAD_BYTES, Connection
from rota.core.clock import SystemClock
from rota.db.connection import open_database
from rota.db.wake import Wake
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import Runners
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
from tests.app.harness import echo

NO_SETTINGS = EngineSettings()


class LiveApi:
    """`with LiveApi(url) as live`: the server runs in a thread, on its own event loop, as in production."""

    def __init__(self, database_url: str, port: int = 0, settings: EngineSettings = NO_SETTINGS) -> None:
        self.database_url, self.settings = database_url, settings
        self.sock = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.org_id = self.key = ""
        self.app: FastAPI
        self.server: uvicorn.Server
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True)

    async def serve(self) -> None:
        db = open_database(self.database_url)
        clock, registry = SystemClock(), TaskRegistry.of_program()
        registry.register_function("hello", lambda name="you", day="": f"hello {name} {day}")
        graphs = GraphRegistry()
        graphs.add("echo", echo, "python")
        runners: Runners = {
            "task": TaskRunner(registry, db),
            "graph": GraphRunner(graphs, db, clock),
            "pipeline": PipelineRunner(PipelineRegistry(), db, executor_here(Path("no-such-warehouse"), 4)),
            "host_job": HostRunner(db, clock),
            "workflow": WorkflowRunner({}, Connectors(), db, sandbox=Sandbox(spare=1)),
        }
        engine = Engine(db, clock, Wake(), runners, self.settings, extensions=EXTENSIONS)
        self.org_id, key = await db.tx(accounts.ensure_default_org, clock.now())
        self.key = key or ""
        await db.tx(tasks_store.sync, self.org_id, task_rows(registry, Injector(), None), clock.now())
        self.app = create_site(engine, db)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=2,
            http=Connection,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self.server = uvicorn.Server(config)
        self.ready.set()
        await self.server.serve(sockets=[self.sock])
        await db.close()

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.ready.wait(30)
        return self

    def __exit__(self, *_: Any) -> None:
        self.app.state.closing = True
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}
