"""`ServiceBuilder`: a web application of one's own with Rota inside, for those who start their server themselves."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

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
from rota.app.application import Rota, make_engine
from rota.app.mounting import StartedGuard
from rota.app.node import Node, declared_tasks, set_up_installation, sync_clock
from rota.app.settings import Settings
from rota.app.signals import Shutdown
from rota.db.connection import open_database
from rota.db.migrate import migrate
from rota.db.notify import Wake
from rota.db.user_session import Database
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

Hook = Callable[[FastAPI], Any]

HEALTHY, UNHEALTHY = "healthy", "unhealthy"

log = structlog.get_logger("rota.service")


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    display_name: str
    version: str = "1.0.0"
    summary: str = ""


@dataclass(frozen=True, slots=True)
class CrudPermissions:
    """What may be done to things over the API; what may not is answered with 405."""

    create: bool = True
    read: bool = True
    update: bool = True
    delete: bool = True

    def allow(self, route: BaseRoute, path: str) -> bool:
        """Whether a route of tasks or of their schedules is left in; other operations on tasks always are."""
        methods: set[str] = getattr(route, "methods", None) or set()
        granted = {
            "POST": self.create,
            "GET": self.read,
            "PUT": self.update,
            "PATCH": self.update,
            "DELETE": self.delete,
        }
        operation = "$" in path and "/$schedule" not in path  # `$execute` changes no row
        return operation or all(granted.get(method, True) for method in methods)


@dataclass(frozen=True, slots=True)
class ArtifactHierarchy:
    """What the levels of artifacts are called."""

    name: str
    level_labels: Mapping[int, str] = field(default_factory=lambda: {0: "execution"})


class ServiceBuilder:
    """Puts an application together:

    app = ServiceBuilder(info=ServiceInfo(display_name="Reports")).with_health().with_tasks().build()

    Scheduler and worker run inside it, on any number of its processes. A `program` brings its tasks and schedules.
    Without `with_auth` every request acts as an admin: keep it on loopback, or behind something that knows people. It
    then refuses Host headers that are not its own (`ROTA_ALLOWED_HOSTS`) and writes from pages of other sites.

    In another application: `FastAPI(lifespan=rota.mounted_lifespan(service))`, then `.mount("/rota", service)`.
    """

    def __init__(self, info: ServiceInfo, database_url: str | None = None, program: Rota | None = None) -> None:
        self.info, self.database_url, self.program = info, database_url, program or Rota()
        self.declares = program is not None  # without one, registered functions run only where a task row names them
        self.routers: list[APIRouter] = []
        self.checks: dict[str, Callable[[], Any]] | None = None
        self.concurrency: int | None = None
        self.auth = self.validating = False
        self.starting: list[Hook] = []
        self.stopping: list[Hook] = []
        self.extra: list[APIRouter] = []

    def with_health(self, checks: Mapping[str, Callable[[], Any]] | None = None) -> Self:
        """`/health`: the database, and checks of one's own that raise, or answer false, when something is wrong."""
        self.checks = dict(checks or {})
        return self

    def with_artifacts(self, hierarchy: ArtifactHierarchy | None = None) -> Self:
        if hierarchy is not None:
            self.program.injector.labels = hierarchy.level_labels
        self.routers.append(artifact_routes.router)
        return self

    def with_jobs(self, max_concurrency: int | None = None) -> Self:
        """Jobs and runs over the API, and how many may run at once."""
        self.concurrency = max_concurrency
        self.routers += [run_routes.router, job_routes.router, streams]
        return self

    def with_tasks(self, permissions: CrudPermissions | None = None, *, validate_on_startup: bool = False) -> Self:
        """Tasks over the API; `validate_on_startup` switches off those whose function is gone."""
        allowed = permissions or CrudPermissions()
        self.validating = validate_on_startup
        self.routers.append(chosen(task_routes.router, allowed.allow))
        return self

    def with_schedules(self) -> Self:
        """Schedules, slots, queues and workers over the API."""
        self.routers += [schedule_routes.router, system_routes.router]
        return self

    def with_auth(self) -> Self:
        """Only who has a key comes in. The first one is in `admin.key` of the data directory."""
        self.auth = True
        self.routers.append(people)
        return self

    def include_router(self, router: APIRouter) -> Self:
        self.extra.append(router)
        return self

    def on_startup(self, hook: Hook) -> Self:
        """Called with the application, in the order of these calls, before work begins."""
        self.starting.append(hook)
        return self

    def on_shutdown(self, hook: Hook) -> Self:
        self.stopping.append(hook)
        return self

    def build(self) -> FastAPI:
        given = {"database_url": self.database_url, "concurrency": self.concurrency}
        settings = Settings.load(**given)
        node = Node(settings, self.program, None)
        db, clock = open_database(settings.database_url), node.clock
        engine = make_engine(settings, self.program, None, db, clock, Wake(), node.metrics)

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
                for hook in self.starting:
                    await called(hook, app)
                if self.validating:
                    await validate_and_disable_orphaned_tasks(app)
                async with working(app, node, engine):
                    yield
                for hook in self.stopping:
                    await called(hook, app)
            finally:
                app.state.started = False
                await app.state.database.close()
                await db.close()

        app = create_api(
            engine, db, routers=self.routers, loops=node.problems, title=self.info.display_name, lifespan=lifespan,
            guarded_hosts=settings.guarded_hosts(not self.auth),
        )  # fmt: skip
        app.state.started = False
        app.add_middleware(StartedGuard)
        app.version = self.info.version
        for router in self.extra:
            app.include_router(router)
        if self.checks is not None:
            add_health(app, self.checks)
        return app


@contextlib.asynccontextmanager
async def working(app: FastAPI, node: Node, engine: Engine) -> AsyncIterator[None]:
    """Fire and run what is due meanwhile."""
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
    """Switch off the tasks whose function is gone; returns how many those were."""
    manager: TaskManager | None = getattr(app.state, "tasks", None)
    return 0 if manager is None else await manager.disable_orphans()


def chosen(router: APIRouter, allow: Callable[[BaseRoute, str], bool]) -> APIRouter:
    """The same router; routes that are not allowed answer 405."""
    some = APIRouter()
    for route in router.routes:
        if allow(route, path := getattr(route, "path", "")):
            some.routes.append(route)
        else:
            methods = sorted(getattr(route, "methods", None) or ())
            some.add_api_route(path, switched_off, methods=methods, include_in_schema=False)
    return some


async def switched_off() -> Response:
    raise HTTPException(405, "this service has switched this operation off (CrudPermissions)")


def add_health(app: FastAPI, checks: Mapping[str, Callable[[], Any]]) -> None:
    async def database() -> None:
        await app.state.db.read(workers.measure)

    @app.get("/health", tags=["health"])
    async def health() -> Response:
        """The worst of all checks; a check that raises or answers false is unhealthy."""
        found = {name: await outcome(name, check) for name, check in {"database": database, **checks}.items()}
        worst = HEALTHY if all(one["state"] == HEALTHY for one in found.values()) else UNHEALTHY
        return answer({"status": worst, "checks": found}, 200 if worst == HEALTHY else 503)


async def outcome(name: str, check: Callable[[], Any]) -> dict[str, str | None]:
    try:
        fine = await called(check) is not False
        return {"state": HEALTHY if fine else UNHEALTHY, "message": None}
    except Exception as error:
        log.warning("a health check failed", check=name, error=str(error))
        return {"state": UNHEALTHY, "message": f"{type(error).__name__}: {error}"}


async def called(hook: Callable[..., Any], *given: Any) -> Any:
    result = hook(*given)
    return await result if inspect.isawaitable(result) else result
