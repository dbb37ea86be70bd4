"""The dashboard: pages and forms that work without script, for people who are logged in."""

from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from rota.app.auth import Failures
from rota.app.web import login, now, pages
from rota.app.web.sessions import check_csrf
from rota.core.errors import RotaError
from rota.engine.engine import Engine
from rota.store.database import Database


def create_web(engine: Engine, db: Database, failures: Failures) -> FastAPI:
    """The dashboard over an engine. Whoever guesses at the API and here is counted once."""
    app = FastAPI(
        openapi_url=None, redirect_slashes=False, dependencies=[Depends(check_csrf)],
        telemetry={"tracing": False},  # the API in front of it has the spans
    )  # fmt: skip
    app.state.engine, app.state.db, app.state.failures = engine, db, failures
    for kind in (RotaError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, pages.on_error)
    app.add_middleware(pages.Frame)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    for module in (login, now):
        app.include_router(module.router)
    return app
