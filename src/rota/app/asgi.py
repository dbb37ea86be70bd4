"""ASGI application with API and dashboard: the dashboard gets the requests that the API has no route for."""

from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from rota.app.api import create_api
from rota.app.web import create_web
from rota.db.connection import Database
from rota.engine.commands import Engine


def create_site(engine: Engine, db: Database, *, trace_url: str = "", **options: Any) -> FastAPI:
    """Create the API with the dashboard as its fallback; `options` as in `create_api`."""
    api = create_api(engine, db, **options)
    not_found, web = api.router.default, create_web(engine, db, api, trace_url)

    async def fallback(scope: Scope, receive: Receive, send: Send) -> None:
        page = scope["type"] == "http" and not scope["path"].startswith("/api/")
        await (web if page else not_found)(scope, receive, send)

    api.router.default = fallback
    return api
