"""Direct routes answer as FastAPI would."""

from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from rota.app.api import ALL_ROUTERS
from rota.frame.http.direct import DirectRoutes, direct_routes
from tests.access.test_people import key_of
from tests.app.harness import Api

PATHS = sorted(direct_routes(ALL_ROUTERS, "/api/v1"))
QUERIES = [
    "", "limit=1", "limit=0", "limit=x", "limit=1&limit=2", "nothing=1", "cursor=%00", "cursor=x",
    "cursor=" + "x" * 1001,
    "status=running", "status=none", "since=2026-05-04T09:00:00Z", "since=2026-05-04T09:00:00%2B00:00", "since=today",
    "tag=a%20b", "tag=", "enabled=yes", "enabled=2", "sort=-id", "sort=size", "name=%25", "limit", "%ff=1", "name=%ff",
]  # fmt: skip


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switches direct routes off."""

    async def pass_on(self: DirectRoutes, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def switch() -> None:
        monkeypatch.setattr(DirectRoutes, "__call__", pass_on)

    return switch


async def test_direct_routes_answer_as_fastapi_does(api: Api, ordinary: Any) -> None:
    await api.schedule("nightly", tags=["a b"])
    await api.job()
    _, narrow = await key_of(api, role="viewer", scopes=["tasks"])
    _, viewer = await key_of(api, role="viewer")
    callers: list[dict[str, str]] = [
        {},
        viewer,
        narrow,
        {"authorization": "Bearer rota_unknown"},
        {"authorization": ""},
    ]
    for caller in callers[:3]:
        await answer(api, "/tasks", "", caller)  # records the use of the key, which a list shows
    calls: list[tuple[str, str, dict[str, str]]] = [
        (path, query, {}) for path in ("/schedules", "/runs", "/audit") for query in QUERIES
    ]
    calls += [(path.removeprefix("/api/v1"), "", caller) for path in PATHS for caller in callers]
    answers = [await answer(api, *call) for call in calls]
    assert {200, 401, 403, 422} <= {status for status, *_ in answers}
    ordinary()
    api.app.state.failures.seen.clear()
    for call, direct in zip(calls, answers, strict=True):
        assert direct == await answer(api, *call), call
        api.app.state.failures.seen.clear()


async def answer(api: Api, path: str, query: str, headers: dict[str, str]) -> tuple[int, dict[str, str], Any]:
    request_id = {"x-request-id": "same"}
    response = await api.client.get(f"/api/v1{path}?{query}", headers={**headers, **request_id})
    api.app.state.failures.seen.clear()
    return response.status_code, dict(response.headers), response.json()


async def test_a_direct_route_is_not_solved_by_fastapi(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.get("/runs")  # records the use of the key

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("FastAPI solved the dependencies of a direct route")

    monkeypatch.setattr("fastapi.routing.solve_dependencies", never)
    for path in PATHS:
        assert (await api.client.get(path)).status_code in (200, 404), path


def test_lists_of_runs_and_schedules_are_direct() -> None:
    assert {"/api/v1/runs", "/api/v1/schedules", "/api/v1/jobs"} <= set(PATHS)
    assert not any("{" in path for path in PATHS)
