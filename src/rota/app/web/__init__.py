"""The dashboard: pages and forms that work without script, for people who are logged in.

A page is a module here, with its routes and its places in the navigation, and a template. What its forms do is done by
the API: see `actions`.
"""

from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from rota.app.web import (
    actions,
    audit,
    authority,
    editor,
    hosts,
    login,
    now,
    pages,
    pipelines,
    queues,
    runs,
    schedules,
    settings,
    system,
    tasks,
    timeline,
    workflows,
)
from rota.app.web.sessions import check_csrf
from rota.core.errors import RotaError
from rota.engine.engine import Engine
from rota.store.database import Database

MODULES = (
    now, timeline, editor, schedules, runs, tasks, workflows, pipelines, authority, hosts, queues, settings, audit,
    system,
)  # fmt: skip


def create_web(engine: Engine, db: Database, api: FastAPI, trace_url: str = "") -> FastAPI:
    """The dashboard over an engine and the API that its forms ask. Whoever guesses here and there is counted once."""
    app = FastAPI(
        openapi_url=None, redirect_slashes=False, dependencies=[Depends(check_csrf)],
        telemetry={"tracing": False},  # the API in front of it has the spans
    )  # fmt: skip
    app.state.engine, app.state.db, app.state.api, app.state.failures = engine, db, api, api.state.failures
    app.state.exposure = api.state.exposure
    app.state.places, app.state.trace_url = [place for module in MODULES for place in module.PLACES], trace_url
    for kind in (RotaError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, pages.on_error)
    app.add_middleware(pages.Frame)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    for module in (login, *MODULES, actions):  # the last one takes every form that no other does
        app.include_router(module.router)
    return app
