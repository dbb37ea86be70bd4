"""Mounting a service in another application. Frameworks do not run the lifespan of mounted applications."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.frame.http.contract import problem

if TYPE_CHECKING:
    from rota.app.site import MountedSite

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

NOT_STARTED = (
    "this service was not started, so nothing fires or runs: the application that it is mounted in does not run its "
    "lifespan. Create that application with `lifespan=rota.mounted_lifespan(service)`"
)


def mounted_lifespan(service: "FastAPI | MountedSite", lifespan: Lifespan | None = None) -> Lifespan:
    """Return a lifespan for the application that `service`, of a ServiceBuilder or `app.asgi()`, is mounted in: it
    starts and stops the service, and runs the application's own `lifespan` inside."""
    own = service.router.lifespan_context if isinstance(service, FastAPI) else service.lifespan

    @contextlib.asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(own(service))
            yield None if lifespan is None else await stack.enter_async_context(lifespan(app))

    return run


class StartedGuard:
    """Answers 503 with the remedy until the service's lifespan has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["app"].state.started:
            await problem(503, "not_started", NOT_STARTED)(scope, receive, send)
        else:
            await self.app(scope, receive, send)
