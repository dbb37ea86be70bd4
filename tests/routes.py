"""Share analysed routes between applications.

FastAPI analyses the routes of a router again for each application that includes it: for ours that takes 0.2 s of CPU,
more than most tests of the API. The analysis depends on route, prefix and dependencies, not on the application, as long
as no test uses `dependency_overrides`.
"""

from typing import Any

from fastapi import routing

_analysed: dict[tuple[int, str, tuple[Any, ...]], Any] = {}


def share_analysed_routes() -> None:
    """Cache what FastAPI finds out about included routes, for all applications of this process."""
    context_type = routing._EffectiveRouteContext
    analyse = context_type.from_api_route

    def analyse_once(*, original_route: routing.APIRoute, include_context: Any) -> Any:
        key = (id(original_route), include_context.prefix, tuple(include_context.dependencies))
        if key not in _analysed:  # the context refers to the route, so the id stays its own
            _analysed[key] = analyse(original_route=original_route, include_context=include_context)
        return _analysed[key]

    context_type.from_api_route = staticmethod(analyse_once)  # type: ignore[method-assign]
