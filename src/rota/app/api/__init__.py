"""The REST API under `/api/v1`."""

from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rota.app.api import manners, runs, schedules, system, tasks
from rota.app.auth import authenticate
from rota.core.errors import RotaError
from rota.engine.engine import Engine
from rota.store.database import Database

PROBLEM = {
    "description": "refused, with the reason (RFC 9457)",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                    "request_id": {"type": "string"},
                    "errors": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {name: {"type": "string"} for name in ("field", "value", "message")},
                        },
                    },
                },
            }
        }
    },
}


def create_api(
    engine: Engine, db: Database, *, scheduler: Callable[[], str | None] | None = None, lifespan: Any = None
) -> FastAPI:
    """The API over an engine. `scheduler` says what is wrong with the scheduler of this process, where it has one."""
    app = FastAPI(title="Rota", version="1", description=__doc__, lifespan=lifespan, redirect_slashes=False)
    app.state.engine, app.state.db, app.state.scheduler = engine, db, scheduler
    app.add_exception_handler(RotaError, manners.on_rota_error)
    app.add_exception_handler(HTTPException, manners.on_http_error)
    app.add_exception_handler(RequestValidationError, manners.on_bad_parameter)
    app.add_middleware(manners.Guard)
    app.include_router(system.health)
    for module in (schedules, runs, tasks, system):
        app.include_router(
            module.router,
            prefix="/api/v1",
            dependencies=[Depends(authenticate), Depends(manners.check_query)],
            responses={422: PROBLEM, "4XX": PROBLEM},
        )
    return app
