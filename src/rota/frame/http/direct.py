"""Lists without FastAPI's work per request: matching routes twice and solving dependencies parameter by parameter take
longer than reading the page.

A GET request for a route without parameters in its path is answered here: the caller is authenticated, its role
checked and the sent query parameters validated by the route's own fields, then the route's function is called. Whatever
is not plain (an invalid or unknown parameter, tracing, a key whose use is to be recorded) goes the ordinary way, so
FastAPI gives the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.core.errors import RotaError
from rota.engine.commands import Engine
from rota.frame.http.auth import Role, authenticate, resource_of, route_path, use_is_recorded
from rota.frame.http.contract import is_plain_value, on_http_error, on_rota_error
from rota.frame.http.models import BodyRoute


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A route whose only dependencies are the request, the caller and query parameters."""

    route: BodyRoute
    role: Role
    caller_name: str
    request_name: str
    fields: Mapping[str, Any]  # FastAPI's fields of the query parameters, by alias
    defaults: Mapping[str, object]

    def parameters(self, query: bytes) -> dict[str, object] | None:
        """Return the query parameters; None if one is unknown, repeated or invalid."""
        values, sent = dict(self.defaults), set()
        for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            field = self.fields.get(name)
            if field is None or name in sent or not is_plain_value(text):
                return None
            sent.add(name)
            values[field.name], errors = field.validate(text, {}, loc=("query", name))
            if errors:
                return None
        return values

    async def respond(self, request: Request, values: dict[str, object]) -> Response | None:
        """Return the route's answer; None if the use of the caller's key must be recorded."""
        caller = await authenticate(request)
        if not use_is_recorded(request, caller):
            return None
        caller.check(self.role, resource_of(request))
        response: Response = await self.route.endpoint(
            **values, **{self.request_name: request, self.caller_name: caller}
        )
        return response


class DirectRoutes:
    """Middleware that answers direct routes by itself."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, DirectRoute]) -> None:
        self.app, self.routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.respond(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (self.app if response is None else response)(scope, receive, send)

    async def respond(self, scope: Scope) -> Response | None:
        """Return the answer of a direct route; None if the request goes the ordinary way."""
        direct = self.routes.get(route_path(scope))
        values = None if direct is None else direct.parameters(scope["query_string"])
        engine: Engine = scope["app"].state.engine
        if direct is None or values is None or engine.tracing is not None:
            return None
        scope["route"] = direct.route
        request = Request(scope)
        try:
            return await direct.respond(request, values)
        except RotaError as error:
            return await on_rota_error(request, error)
        except HTTPException as error:
            return await on_http_error(request, error)


def direct_routes(routers: Sequence[APIRouter], prefix: str) -> dict[str, DirectRoute]:
    """Return the direct routes of these routers by path."""
    lists: dict[str, DirectRoute] = {}
    for router in routers:
        reads = [route for route in router.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())]
        for route in reads:
            first = next(other for other in reads if other.path_regex.match(route.path))
            if first is route and isinstance(route, BodyRoute) and (direct := direct_route(route)) is not None:
                lists.setdefault(prefix + route.path, direct)
    return lists


def direct_route(route: BodyRoute) -> DirectRoute | None:
    """Return a route as a direct one; None if it needs more than a direct route gets."""
    needs = route.dependant
    others = (needs.path_params, needs.header_params, needs.cookie_params, needs.body_params, route.dependencies)
    role: Role | None = getattr(needs.dependencies[0].call, "role", None) if len(needs.dependencies) == 1 else None
    caller_name = needs.dependencies[0].name if role is not None else None
    if (
        any(others)
        or role is None
        or caller_name is None
        or needs.request_param_name is None
        or needs.background_tasks_param_name
    ):
        return None
    fields = {field.alias: field for field in needs.query_params}
    defaults = {field.name: field.get_default() for field in needs.query_params if not field.field_info.is_required()}
    if len(defaults) < len(fields):
        return None
    return DirectRoute(route, role, caller_name, needs.request_param_name, fields, defaults)
