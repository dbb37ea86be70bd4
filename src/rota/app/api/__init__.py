"""The REST API under `/api/v1`."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Lifespan

from rota.access.api import passwords, people, service_accounts, sessions
from rota.access.authentication import StoredCredentials
from rota.access.login_settings import LoginSettings
from rota.app.api import (
    artifacts,
    calendars,
    catch_ups,
    files,
    freezes,
    jobs,
    metrics,
    run_selections,
    runs,
    saved_views,
    schedules,
    signals,
    simulation,
    streams,
    system,
)
from rota.app.api.browser_guard import BrowserGuard
from rota.app.api.docs import add_docs
from rota.app.api.feeds import Feeds
from rota.app.api.openapi import describe
from rota.app.health import Problems, Readiness
from rota.billing.api import billing, grants
from rota.core.errors import RotaError
from rota.db.connection import Database
from rota.db.replica import Replica
from rota.engine.commands import Engine
from rota.frame.http import contract
from rota.frame.http.auth import record_caller
from rota.frame.http.compression import Compression
from rota.frame.http.direct import DirectRoutes, direct_routes
from rota.frame.http.exposure import Exposure
from rota.frame.http.guessing import FailedAttempts
from rota.frame.http.idempotency import Idempotency
from rota.frame.http.reports import RecordedWrites
from rota.kinds.alarms import api as alarms_api
from rota.kinds.graphs.api import graphs, internal
from rota.kinds.hosts.api import agents, hosts
from rota.kinds.pipelines.api import pipelines, webhooks
from rota.kinds.tasks import api as tasks_api
from rota.kinds.workflows import api as workflows_api

ROUTE_MODULES = (
    *(
        schedules,
        catch_ups,
        calendars,
        freezes,
        simulation,
        files,
        run_selections,
        runs,
        saved_views,
        jobs,
        signals,
        streams,
        tasks_api,
    ),
    *(artifacts, grants, billing, graphs, pipelines, workflows_api, hosts, alarms_api, system, passwords, people),
    *(service_accounts, sessions),
)
NO_EXPOSURE = Exposure()  # neither a public URL nor a proxy is configured
DEFAULT_LOGIN = LoginSettings()  # passwords and links
ALL_ROUTERS = tuple(module.router for module in ROUTE_MODULES)


def create_api(
    engine: Engine,
    db: Database,
    *,
    routers: Sequence[APIRouter] = ALL_ROUTERS,
    loops: Callable[[], Problems] | None = None,
    service_token: str = "",
    exposure: Exposure = NO_EXPOSURE,
    login: LoginSettings = DEFAULT_LOGIN,
    title: str = "Rota",
    lifespan: Lifespan[FastAPI] | None = None,
    guarded_hosts: Collection[str] | None = None,
    replica: Replica | None = None,
) -> FastAPI:
    """Create the API of an engine. Reports are read from `replica`, if there is one. `loops` returns the problems of
    this process, if it has a scheduler and worker. `guarded_hosts` are the names of a server that checks Host and
    Origin; None if it does not."""
    app = FastAPI(
        title=title,
        version="1",
        description=__doc__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry={
            "exclude": lambda scope: scope["path"].startswith("/login")
        },  # their queries have tokens and codes, which must not reach traces
    )
    app.state.engine, app.state.db, app.state.replica = engine, db, replica
    app.state.login = login
    app.state.authentication = StoredCredentials(db, engine.wake, login.session_limits)
    app.state.readiness = Readiness(db, engine.clock, loops)
    app.state.failures, app.state.service_token = FailedAttempts(), service_token
    app.add_exception_handler(RotaError, contract.on_rota_error)
    app.add_exception_handler(HTTPException, contract.on_http_error)
    app.add_exception_handler(RequestValidationError, contract.on_bad_parameter)
    app.state.exposure = exposure
    app.state.closing, app.state.streams = False, 0  # whether streams must end; number of open streams
    app.state.feeds = Feeds(engine, lambda: bool(app.state.closing))
    app.state.open_streams = Counter[str]()  # by key or user
    app.add_middleware(DirectRoutes, routes=direct_routes(routers, "/api/v1"))
    app.add_middleware(Idempotency)
    if replica is not None:
        app.add_middleware(RecordedWrites, replica=replica)
    app.add_middleware(Compression)
    if guarded_hosts is not None:
        app.add_middleware(BrowserGuard, hosts=guarded_hosts)
    app.add_middleware(contract.RequestMiddleware)
    add_docs(app)
    app.include_router(system.health)
    app.include_router(metrics.router)
    app.include_router(internal.router)
    app.include_router(webhooks.router)
    app.include_router(signals.receiving)
    app.include_router(agents.pairing)
    app.include_router(agents.router)
    app.state.anyone = None  # the caller of requests without a key, if they are allowed
    for router in routers:
        app.include_router(
            router,
            prefix="/api/v1",
            dependencies=[Depends(record_caller), Depends(contract.check_query)],
        )
    describe(app)
    return app
