"""The dashboard: pages and forms that work without scripts.

A page is a module with its routes, its entries in the navigation and a template. Forms call the API: see `actions`.
"""

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from rota.access.web import audit, login, oidc
from rota.app.web import (
    artifacts,
    calendars,
    editor,
    freezes,
    grid,
    now,
    queues,
    run_compare,
    run_logs,
    run_retry,
    runs,
    schedules,
    search,
    settings,
    simulation,
    system,
    timeline,
)
from rota.app.web.week_load import WeekLoads
from rota.billing import web as billing_web
from rota.core.errors import RotaError
from rota.db.connection import Database
from rota.engine.commands import Engine
from rota.frame.web import actions, pages
from rota.frame.web.sessions import check_csrf
from rota.kinds.alarms import web as alarms_web
from rota.kinds.graphs import web as graphs_web
from rota.kinds.hosts import web as hosts_web
from rota.kinds.pipelines import web as pipelines_web
from rota.kinds.tasks import web as tasks_web
from rota.kinds.workflows import web as workflows_web

MODULES = (
    *(now, timeline, grid, editor, schedules, runs, tasks_web, workflows_web, pipelines_web, graphs_web, billing_web),
    *(hosts_web, alarms_web, queues, calendars, freezes, simulation, settings, audit, system, search),
)


def create_web(engine: Engine, db: Database, api: FastAPI, trace_url: str = "") -> FastAPI:
    """Return the dashboard application. Failed logins are counted together with those of the API."""
    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_csrf)],
        telemetry={"tracing": False},  # the API application creates the spans
    )
    app.state.engine, app.state.db, app.state.api, app.state.failures = engine, db, api, api.state.failures
    app.state.replica, app.state.loads = api.state.replica, WeekLoads()
    app.state.exposure, app.state.authentication = api.state.exposure, api.state.authentication
    app.state.login, app.state.provider = api.state.login, oidc.make_provider(api.state.login.oidc)
    app.state.places, app.state.trace_url = [place for module in MODULES for place in module.NAVIGATION], trace_url
    for kind in (RotaError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, pages.on_error)
    app.add_middleware(pages.PageMiddleware)
    app.mount("/static", StaticFiles(directory=pages.STATIC))
    for module in (
        login,
        oidc,
        run_compare,
        run_logs,
        run_retry,
        artifacts,
        *MODULES,
        actions,
    ):  # `actions` is last: it handles all remaining forms
        app.include_router(module.router)
    return app
