"""`ServiceBuilder`: builds a FastAPI application with an engine inside, to be served by any ASGI server."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import structlog
from fastapi import APIRouter, FastAPI, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from rota.access.api.people import router as people
from rota.app.api import artifacts as artifact_routes
from rota.app.api import create_api
from rota.app.api import jobs as job_routes
from rota.app.api import runs as run_routes
from rota.app.api import schedules as schedule_routes
from rota.app.api import system as system_routes
from rota.app.api.streams import router as streams
from rota.app.application import Rota
from rota.app.assembly import make_engine
from rota.app.mounting import StartedGuard
from rota.app.node import Node, declared_tasks, set_up_installation, sync_clock
from rota.app.reports_replica import followed, open_replica
from rota.app.settings import Settings
from rota.app.signals import Shutdown
from rota.db.connection import open_database
from rota.db.migrate import migrate
from rota.db.user_session import Database
from rota.db.wake import Wake
from rota.engine import orgs, workers
from rota.engine.commands import Engine
from rota.engine.runner import capture_output
from rota.engine.supervision import start_supervised
from rota.frame.http.auth import Caller, Role
from rota.frame.http.contract import answer
from rota.kinds.pipelines.manager import declare as declare_pipelines
from rota.kinds.tasks import api as task_routes
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.manager import TaskManager
from rota.user_code.services import ArtifactManager, JobScheduler

Hook = Callable[[FastAPI], object]

HEALTHY, UNHEALTHY = "healthy", "unhealthy"

log = structlog.get_logger("rota.service")


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    display_name: str
    version: str = "1.0.0"
    summary: str = ""


@dataclass(frozen=True, slots=True)
class CrudPermissions:
    """Operations on tasks that the API allows; others are answered with 405."""

    create: bool = True
    read: bool = True
    update: bool = True
    delete: bool = True

    def allow(self, route: BaseRoute, path: str) -> bool:
        """Return whether a CRUD route of tasks or their schedules is allowed; other operations always are."""
        methods: set[str] = getattr(route, "methods", None) or set()
        allowed = {
            "POST": self.create,
            "GET": self.read,
            "PUT": self.update,
            "PATCH": self.update,
            "DELETE": self.delete,
        }
        operation = "$" in path and "/$schedule" not in path  # `$execute` changes no row
        return operation or all(allowed.get(method, True) for method in methods)


@dataclass(frozen=True, slots=True)
class ArtifactHierarchy:
    """Names of the levels of artifacts."""

    name: str
    level_labels: Mapping[int, str] = field(default_factory=lambda: {0: "execution"})


class ServiceBuilder:
    """Builds an application:

    app = ServiceBuilder(info=ServiceInfo(display_name="Reports")).with_health().with_tasks().build()

    Scheduler and worker run inside it, on any number of its processes. A `program` brings its tasks and schedules.
    Without `with_auth` every request acts as an admin: keep it on loopback, or behind a proxy that authenticates. It
    then refuses Host headers that are not its own (`ROTA_ALLOWED_HOSTS`) and writes from pages of other sites.

    In another application: `FastAPI(lifespan=rota.mounted_lifespan(service))`, then `.mount("/rota", service)`.
    """

    def __init__(self, info: ServiceInfo, database_url: str | None = None, program: Rota | None = None) -> None:
        self.info, self.database_url, self.program = info, database_url, program or Rota()
        self.declares = program is not None  # without a program, functions run only if a task row names them
        self.routers: list[APIRouter] = []
        self.checks: dict[str, Callable[[], object]] | None = None
        self.concurrency: int | None = None
        self.auth = self.validate_tasks = False
        self.startup_hooks: list[Hook] = []
        self.shutdown_hooks: list[Hook] = []
        self.extra_routers: list[APIRouter] = []

    def with_health(self, checks: Mapping[str, Callable[[], object]] | None = None) -> Self:
        """Add `/health`: checks the database and runs `checks`, which raise or return False to report a failure."""
        self.checks = dict(checks or {})
        return self

    def with_artifacts(self, hierarchy: ArtifactHierarchy | None = None) -> Self:
        if hierarchy is not None:
            self.program.injector.labels = hierarchy.level_labels
        self.routers.append(artifact_routes.router)
        return self

    def with_jobs(self, max_concurrency: int | None = None) -> Self:
        """Add routes of jobs and runs; limit concurrent runs."""
        self.concurrency = max_concurrency
        self.routers += [run_routes.router, job_routes.router, streams]
        return self

    def with_tasks(self, permissions: CrudPermissions | None = None, *, validate_on_startup: bool = False) -> Self:
        """Add routes of tasks; `validate_on_startup` disables those whose function is gone."""
        crud = permissions or CrudPermissions()
        self.validate_tasks = validate_on_startup
        self.routers.append(restricted(task_routes.router, crud.allow))
        return self

    def with_schedules(self) -> Self:
        """Add routes of schedules, slots, queues and workers."""
        self.routers += [schedule_routes.router, system_routes.router]
        return self

    def with_auth(self) -> Self:
        """Require an API key. The first one is in `admin.key` of the data directory."""
        self.auth = True
        self.routers.append(people)
        return self

    def include_router(self, router: APIRouter) -> Self:
        self.extra_routers.append(router)
        return self

    def on_startup(self, hook: Hook) -> Self:
        """Call `hook` with the application before work begins, in the order of registration."""
        self.startup_hooks.append(hook)
        return self

    def on_shutdown(self, hook: Hook) -> Self:
        self.shutdown_hooks.append(hook)
        return self

    def build(self) -> FastAPI:
        """Create the application; its lifespan migrates the database and runs scheduler and worker."""
        settings = Settings.load(database_url=self.database_url, concurrency=self.concurrency)
        node = Node(settings, self.program, None)
        db, clock = open_database(settings.database_url), node.clock
        engine = make_engine(settings, self.program, None, db, clock, Wake(), node.metrics)

        replica = open_replica(settings, db, node.metrics)

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            capture_output()
            await asyncio.to_thread(migrate, settings.database_url)
            self.program.use(engine)
            org_id = await set_up_installation(engine, settings)
            if self.declares:
                name = self.info.display_name
                await declare_pipelines(engine, self.program.org, self.program.pipelines)
                program, rows = self.program, declared_tasks(self.program, name)
                await declare(engine, program.org, name, rows, program.schedules, program.schedule_places)
            system = await db.tx(orgs.system_user, org_id, clock.now())
            if not self.auth:
                app.state.anyone = Caller(org_id, system, None, Role.ADMIN, frozenset(), instance_admin=False)
            app.state.tasks = TaskManager(engine, org_id, system)
            app.state.jobs = JobScheduler(engine, org_id)
            app.state.artifacts = ArtifactManager(engine, org_id)
            app.state.database = Database(settings.database_url)
            app.state.started = True
            try:
                for hook in self.startup_hooks:
                    await call_hook(hook, app)
                if self.validate_tasks:
                    await validate_and_disable_orphaned_tasks(app)
                async with followed(replica), running_worker(app, node, engine):
                    yield
                for hook in self.shutdown_hooks:
                    await call_hook(hook, app)
            finally:
                app.state.started = False
                await app.state.database.close()
                await db.close()

        app = create_api(
            engine,
            db,
            routers=self.routers,
            loops=node.problems,
            replica=replica,
            title=self.info.display_name,
            lifespan=lifespan,
            guarded_hosts=settings.guarded_hosts(not self.auth),
        )
        app.state.started = False
        app.add_middleware(StartedGuard)
        app.version = self.info.version
        for router in self.extra_routers:
            app.include_router(router)
        if self.checks is not None:
            add_health(app, self.checks)
        return app


@contextlib.asynccontextmanager
async def running_worker(app: FastAPI, node: Node, engine: Engine) -> AsyncIterator[None]:
    """Run scheduler and worker inside the block; drain them at its end."""
    shutdown = Shutdown()
    loops = [
        start_supervised("worker", lambda: node.work(engine, shutdown)),
        start_supervised("clock", lambda: sync_clock(engine.db, node.clock)),
    ]
    try:
        yield
    finally:
        app.state.closing = True
        shutdown.drain.set()
        loops[1].cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def validate_and_disable_orphaned_tasks(app: FastAPI) -> int:
    """Disable the tasks whose function is gone; return their number."""
    manager: TaskManager | None = getattr(app.state, "tasks", None)
    return 0 if manager is None else await manager.disable_orphans()


def restricted(router: APIRouter, allow: Callable[[BaseRoute, str], bool]) -> APIRouter:
    """Return a copy of the router whose disallowed routes answer 405."""
    copy = APIRouter()
    for route in router.routes:
        if allow(route, path := getattr(route, "path", "")):
            copy.routes.append(route)
        else:
            methods = sorted(getattr(route, "methods", None) or ())
            copy.add_api_route(path, not_allowed, methods=methods, include_in_schema=False)
    return copy


async def not_allowed() -> Response:
    raise HTTPException(405, "operation disabled in this service (CrudPermissions)")


def add_health(app: FastAPI, checks: Mapping[str, Callable[[], object]]) -> None:
    async def database() -> None:
        await app.state.db.read(workers.measure)

    @app.get("/health", tags=["health"])
    async def health() -> Response:
        """Run all checks; 503 if one raises or returns False."""
        results = {name: await run_check(name, check) for name, check in {"database": database, **checks}.items()}
        status = HEALTHY if all(result["state"] == HEALTHY for result in results.values()) else UNHEALTHY
        return answer({"status": status, "checks": results}, 200 if status == HEALTHY else 503)


async def run_check(name: str, check: Callable[[], object]) -> dict[str, str | None]:
    try:
        healthy = await call_hook(check) is not False
        return {"state": HEALTHY if healthy else UNHEALTHY, "message": None}
    except Exception as error:
        log.warning("health check failed", check=name, error=str(error))
        return {"state": UNHEALTHY, "message": f"{type(error).__name__}: {error}"}


async def call_hook(hook: Callable[..., object], *args: object) -> object:
    result = hook(*args)
    return await result if inspect.isawaitable(result) else result
