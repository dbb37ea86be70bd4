"""An application with Rota below `/rota`, as `uvicorn tests.browser.mounted_app:web` serves it."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

import rota
from tests.browser.demo_app import app

site = app.asgi(worker=True)
events: list[str] = []


@contextlib.asynccontextmanager
async def own_lifespan(_: FastAPI) -> AsyncIterator[None]:
    events.append("started")
    yield


web = FastAPI(lifespan=rota.mounted_lifespan(site, own_lifespan))


@web.get("/")
async def home() -> dict[str, list[str]]:
    return {"events": events}


web.mount("/rota", site)
