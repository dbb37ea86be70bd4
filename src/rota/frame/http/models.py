"""How routes use models of the wire: a route declares its body as a parameter and its answer as `response_model`.

`BodyRoute` reads bodies as `contract.read_json` does, before pydantic validates them. Answers are ready responses:
`response_model` only documents them.
"""

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Annotated, Any

from fastapi import Body, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model

from rota.core.wire import Answer, RequestBody
from rota.frame.http.auth import CALLER_SCOPE_KEY, authenticate
from rota.frame.http.contract import read_json

NextCursor = Annotated[str, Field(description="`cursor` of the next page")]


class OpenBodyRoute(APIRoute):
    """Route whose body is read with the limits of `read_json`. A subclass authenticates the request before."""

    async def authenticate(self, request: Request) -> None:
        """Identify who sends the request before its body is read. Raises Unauthenticated."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        optional = not self.body_field.field_info.is_required()

        async def handle(request: Request) -> Response:
            await self.authenticate(request)
            return await handler(JsonRequest(request, await read_json(request, optional=optional)))

        return handle


class BodyRoute(OpenBodyRoute):
    """Route whose body is read only for callers with an API key or a login session."""

    async def authenticate(self, request: Request) -> None:
        request.scope[CALLER_SCOPE_KEY] = await authenticate(request)


class JsonRequest(Request):
    """Request whose body was read and parsed before; an optional body that was not sent is None."""

    def __init__(self, request: Request, parsed: dict[str, object] | None) -> None:
        super().__init__(request.scope, request.receive)
        self.parsed = parsed

    async def body(self) -> bytes:
        return b"" if self.parsed is None else b"{}"  # FastAPI only looks whether there is one

    async def json(self) -> object:
        return self.parsed


class NoBody(RequestBody):
    """Body of a route that takes none, but refuses fields. The OpenAPI document leaves it out."""


NoFields = Annotated[NoBody, Body(default_factory=NoBody)]


@cache
def page_of(item: type[BaseModel]) -> type[BaseModel]:
    """Return the model of a page of a list: `SchedulePage` of `Schedule`."""
    fields: dict[str, Any] = {"items": (list[item], ...), "next_cursor": (NextCursor | None, ...)}  # type: ignore[valid-type]
    return create_model(f"{item.__name__}Page", __base__=Answer, **fields)
