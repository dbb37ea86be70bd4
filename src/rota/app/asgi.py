"""One address for both: the API where it has a route, the dashboard everywhere else."""

from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from rota.app.api import create_api
from rota.app.web import create_web
from rota.db.connection import Database
from rota.engine.commands import Engine


def create_site(engine: Engine, db: Database, *, trace_url: str = "", **more: Any) -> FastAPI:
    """The API, with the dashboard behind it; see `create_api`."""
    api = create_api(engine, db, **more)
    unknown, web = api.router.default, create_web(engine, db, api, trace_url)

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        page = scope["type"] == "http" and not scope["path"].startswith("/api/")
        await (web if page else unknown)(scope, receive, send)

    api.router.default = elsewhere
    return api
