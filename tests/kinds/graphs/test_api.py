"""Graphs over HTTP: listed, run, scheduled; and the internal endpoint, which runs them for workers remote_worker."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from rota.db.tables import charge_receipts, logs, runs
from rota.db.wake import Wake
from rota.engine import orgs, workers
from rota.engine.commands import Engine
from rota.engine.tracing import Tracing
from rota.engine.worker import Worker
from rota.graphs import GraphError, GraphRequest, LlmCaller, TextDelta, UsageReport
from rota.kinds.graphs import remote as remote_module
from rota.kinds.graphs.manager import GraphManager
from rota.kinds.graphs.registry import GraphRegistry
from rota.kinds.graphs.remote import Remote
from rota.kinds.graphs.runner import GraphRunner
from tests.acceptance.cluster import until
from tests.app.harness import NINE, SERVICE_TOKEN, Api
from tests.spans import SpanRecorder, trace_id

TOKEN = {"authorization": f"Bearer {SERVICE_TOKEN}"}
RUN = "/api/internal/graphs/python:echo:run"
ULID = "01KQRS3Z5T8M0A2N6Y4V7W9XCD"


async def grant(api: Api, *scopes: str, **fields: Any) -> str:
    body = {"scopes": list(scopes) or ["graph:execute:python:*"], **fields}
    answer = await api.call("POST", "/grants", body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def order(api: Api, key: str | None = "k", headers: Any = None, path: str = RUN, **body: Any) -> httpx.Response:
    all_headers = {**TOKEN, **({"idempotency-key": key} if key is not None else {}), **(headers or {})}
    return await api.client.post(path, json=body, headers=all_headers)


async def rows(api: Api, stmt: Any) -> list[Any]:
    return await api.db.read(lambda tx: list(tx.execute(stmt)))


async def said(api: Api) -> bool:
    return bool(await rows(api, select(logs)))


def registry(api: Api) -> GraphRegistry:
    runner = api.engine.runners["graph"]
    assert isinstance(runner, GraphRunner)
    return runner.registry


# people


async def test_graphs_are_listed_and_run(api: Api) -> None:
    (echo,) = (await api.get("/graphs"))["items"]
    assert echo == {
        "id": "python:echo",
        "provider": "python",
        "name": "echo",
        "version": "1",
        "description": "Say it again.",
        "live": False,
    }
    answer = await api.call("POST", "/graphs/python:echo/$run", {"input": {"say": "hi"}})
    assert answer.status_code == 202
    (minted,) = (await api.get("/grants"))["items"]
    assert minted["scopes"] == ["graph:execute:python:echo"]
    assert minted["expires_at"] is not None
    job = await api.get(f"/jobs/{answer.json()['job_id']}")
    assert (job["kind"], job["target"], job["status"]) == ("graph", "python:echo", "pending")


@pytest.mark.parametrize(
    ("graph", "body", "status", "message"),
    [
        ("echo", {}, 404, "not found"),
        ("unknown:echo", {}, 404, "not found"),
        ("python:unknown", {}, 404, "not found"),
        ("python:echo", {"input": [1]}, 422, "not an object"),
        ("python:echo", {"input": "x"}, 422, "not an object"),
        ("python:echo", {"grant_id": "x"}, 422, "not a ULID"),
        ("python:echo", {"grant_id": ULID}, 422, "grant_not_found"),
        ("python:echo", {"more": 1}, 422, "unknown field"),
    ],
)
async def test_a_wrong_run_is_refused(api: Api, graph: str, body: Any, status: int, message: str) -> None:
    answer = await api.call("POST", f"/graphs/{graph}/$run", body)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert await api.count("jobs") == await api.count("grants") == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"scopes": ["graph:execute"]}, "not a scope"),
        ({"scopes": ["graph:execute:poet"]}, "not a scope"),
        ({"scopes": ["graph:run:python:poet"]}, "not a scope"),
        ({"scopes": ["graph:execute:*"]}, "consent"),
        ({"scopes": ["graph:execute:python:a"], "expires_at": "2020-01-01T00:00:00Z"}, "not in the future"),
        ({"scopes": ["graph:execute:python:a"], "budget": {"total": -1}}, "budget.total"),
        ({"scopes": ["graph:execute:python:a"], "budget": {"per_day": 2**70}}, "budget.per_day"),
    ],
)
async def test_a_wrong_grant_is_refused(api: Api, body: Any, message: str) -> None:
    answer = await api.call("POST", "/grants", body)
    assert (answer.status_code, message in answer.text) == (422, True), answer.text


async def test_a_schedule_of_a_graph_mints_its_grant_and_its_deletion_revokes_it(api: Api) -> None:
    weekdays = {"cron_expression": "0 9 * * 1-5", "timezone": "Europe/Oslo"}
    made = await api.schedule("poem", kind="graph", target="python:echo", **weekdays)
    assert (made["misfire"], made["overlap"]) == ("skip", "queue_one")
    minted = await api.get(f"/grants/{made['grant_id']}")
    assert (minted["scopes"], minted["schedules"]) == (["graph:execute:python:echo"], ["poem"])
    again = {"name": "poem", "kind": "graph", "target": "python:echo", **weekdays}
    assert (await api.call("POST", "/schedules", again)).status_code == 409
    assert await api.count("grants") == 1  # both or neither
    assert (await api.call("DELETE", "/schedules/poem")).status_code == 204
    assert (await api.get(f"/grants/{made['grant_id']}"))["revoked_at"] is not None


# the internal endpoint


async def test_a_service_runs_a_graph_and_gets_the_same_answer_again(api: Api) -> None:
    held = await grant(api)
    first = await order(api, grant_id=held, input={"say": "hi"}, run_id=ULID)
    assert first.status_code == 200, first.text
    body = first.json()
    assert (body["ok"], body["run_id"], len(body["trace_id"])) == (True, ULID, 32)
    assert "error_code" not in body
    again = await order(api, grant_id=held, input={"say": "hi"}, run_id=ULID)
    assert (again.status_code, again.json(), again.headers["idempotency-replayed"]) == (200, body, "true")
    assert len(await rows(api, select(charge_receipts))) == 1
    assert [(line.run_id, line.stream, line.text) for line in await rows(api, select(logs))] == [(ULID, "text", "hi")]
    (kept,) = (await api.get("/artifacts", run_id=ULID))["items"]
    assert (await api.get(f"/artifacts/{kept['id']}"))["data"] == "hi"


async def test_a_failure_is_an_answer_and_is_replayed(api: Api) -> None:
    times = []

    async def broken(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        times.append(request.run_id)
        yield TextDelta("so")
        raise GraphError("rate_limit", "slow down")

    path = f"/api/internal/graphs/{registry(api).add('broken', broken, 'python').id}:run"
    held = await grant(api)
    for _ in range(2):
        answer = await order(api, grant_id=held, path=path)
        assert (answer.status_code, answer.json()["ok"], answer.json()["error_code"]) == (200, False, "rate_limit")
    assert len(times) == 1


async def test_the_endpoint_refuses_in_this_order(api: Api) -> None:
    held = await grant(api)
    good: dict[str, Any] = {"grant_id": held, "input": {}}
    no_graph = "/api/internal/graphs/echo:run"
    for headers in (
        {"authorization": ""}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {api.key}"},
        {"authorization": f"Bearer {SERVICE_TOKEN}" + "x" * 600}, {"authorization": "Bearer " + "x" * 300},
    ):  # fmt: skip
        assert (await order(api, None, headers, no_graph)).status_code == 401
    assert (await order(api, None, path=no_graph)).status_code == 404
    assert (await order(api, None, path="/api/internal/graphs/python:unknown:run")).status_code == 404
    for key in (None, "k" * 10_000, "with blank"):
        assert (await order(api, key, more=1)).status_code == 400
    for body in ({}, {**good, "input": [1]}, {**good, "grant_id": "x"}, {**good, "run_id": "x"}, {**good, "more": 1}):
        assert (await order(api, **body)).status_code == 400, body
    assert await api.count("idempotency_keys") == 0
    assert (await order(api, **good)).status_code == 200
    other = await grant(api)
    for body in ({**good, "input": {"say": "x"}}, {**good, "grant_id": other}):
        assert (await order(api, **body)).status_code == 422, body
    remote_worker = await grant(api, "graph:execute:python:other")
    await api.call("POST", f"/grants/{other}/$revoke")
    brief = await grant(api, expires_at=(NINE + timedelta(minutes=1)).isoformat())
    api.clock.set(NINE + timedelta(minutes=2))
    for number, (bad, code) in enumerate(
        ((ULID, "grant_not_found"), (other, "grant_revoked"), (brief, "grant_expired"), (remote_worker, "grant_scope"))
    ):
        answer = await order(api, f"bad-{number}", grant_id=bad)
        assert (answer.status_code, answer.json()["code"]) == (403, code)
    assert await api.count("idempotency_keys") == 1  # what did not run is not remembered


async def test_the_endpoint_reads_a_body_after_token_graph_and_key(api: Api) -> None:
    headers = {**TOKEN, "idempotency-key": "k", "content-type": "application/json"}
    for path, change, status in (
        (RUN, {"authorization": "Bearer wrong"}, 401),
        ("/api/internal/graphs/python:unknown:run", {}, 404),
        (RUN, {"idempotency-key": "with blank"}, 400),
        (RUN, {}, 400),
        (RUN, {"content-type": "text/plain"}, 415),
    ):
        answer = await api.client.post(path, content=b"{oops", headers={**headers, **change})
        assert answer.status_code == status, answer.text
        assert ("is not JSON" in answer.text) is (change == {} and path == RUN)


async def test_a_second_request_meets_the_first_while_it_runs(api: Api) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()

    async def slow(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("wait ")
        reached.set()
        await gate.wait()

    path = f"/api/internal/graphs/{registry(api).add('slow', slow, 'python').id}:run"
    held = await grant(api)
    first = asyncio.ensure_future(order(api, grant_id=held, path=path, run_id=ULID))
    await reached.wait()
    second = await order(api, grant_id=held, path=path)
    assert (second.status_code, second.json()["run_id"]) == (409, ULID)
    await until(lambda: said(api), 5, "what it says is seen while it runs")
    gate.set()
    assert (await first).json()["ok"] is True


async def test_a_dead_servers_key_is_free_again_when_its_lease_has_run_out(api: Api) -> None:
    held = await grant(api)
    assert (await order(api, grant_id=held)).status_code == 200
    dead = "UPDATE idempotency_keys SET state = 'running', status = NULL, body = NULL"
    await api.execute(dead)
    assert (await order(api, grant_id=held)).status_code == 409
    api.clock.set(NINE + timedelta(minutes=5))
    assert (await order(api, grant_id=held)).json()["ok"] is True


async def test_a_server_without_a_token_is_closed(api: Api) -> None:
    api.app.state.service_token = ""
    assert (await order(api, grant_id=ULID, headers={"authorization": "Bearer "})).status_code == 401


# a worker that has no graphs itself


class CountingTransport(httpx.ASGITransport):
    """Transport to the endpoint; sets an event when that has answered 409 twice."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.busy, self.count = asyncio.Event(), 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        self.count += answer.status_code == 409
        if self.count >= 2:
            self.busy.set()
        return answer


class RemoteGraphWorker:
    """A worker that calls the endpoint of the API's process to run graphs."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.recorder = CountingTransport(api.app)
        self.remote = Remote("http://rota", SERVICE_TOKEN, transport=self.recorder)
        runner = GraphRunner(GraphRegistry(), api.db, api.clock, remote=self.remote)
        self.engine = Engine(api.db, api.clock, Wake(), {"graph": runner}, api.engine.settings)
        self.worker = Worker(self.engine)

    async def start(self) -> None:
        await self.remote.learn()
        await self.worker.learn()

        def step(tx: Any) -> None:
            workers.register(
                tx,
                worker=self.worker.id,
                pid=1,
                version="x",
                concurrency=5,
                kinds=["graph"],
                routes=self.worker.registration.routes,
                queues=None,
                lease=timedelta(minutes=10),
                now=self.api.clock.now(),
            )

        await self.api.db.tx(step)

    async def work(self) -> list[Any]:
        """Take what is ready, and wait until it has ended."""
        self.worker.registration.refresh_routes()
        await self.worker.prefetch.claim()
        while self.worker.active:
            await asyncio.wait(
                [active_run.task for active_run in self.worker.active.values() if active_run.task is not None]
            )
            await asyncio.sleep(0)
        while self.worker.completer.results:
            await self.worker.completer.flush()
        return await rows(self.api, select(runs).order_by(runs.c.finished_at, runs.c.id))

    async def run(self, graph_id: str, graph_input: Any, grant_id: str) -> str:
        user = await self.api.db.tx(orgs.system_user, self.api.org_id, NINE)
        return await GraphManager(self.api.engine, self.api.org_id).run(graph_id, graph_input, grant_id, user)


@pytest.fixture
async def remote_worker(api: Api, monkeypatch: pytest.MonkeyPatch) -> RemoteGraphWorker:
    monkeypatch.setattr(remote_module, "RETRY_SECONDS", 0.02)
    remote = RemoteGraphWorker(api)
    await remote.start()
    return remote


async def test_a_worker_runs_graphs_through_the_endpoint(api: Api, remote_worker: RemoteGraphWorker) -> None:
    assert [(graph["id"], graph["live"]) for graph in (await api.get("/graphs"))["items"]] == [("python:echo", True)]
    await remote_worker.run("python:echo", {"say": "hi"}, await grant(api))
    (run,) = await remote_worker.work()
    assert (run.status, run.outcome["content"]) == ("success", "hi")
    assert run.usage == {"units": 1, "input_tokens": 1, "output_tokens": 1, "cost_usd": "0.001", "credits": 20_000}
    (receipt,) = await rows(api, select(charge_receipts))
    assert (receipt.run_id, receipt.attempt) == (run.id, 1)
    assert [line["text"] for line in (await api.get(f"/runs/{run.id}/logs"))["items"]] == ["hi"]


async def test_a_trace_continues_in_the_other_service(api: Api, remote_worker: RemoteGraphWorker) -> None:
    recorder = SpanRecorder()
    for engine in (api.engine, remote_worker.engine):
        engine.tracing = Tracing(recorder.provider.get_tracer("rota"))
    await remote_worker.run("python:echo", {}, await grant(api))
    (run,) = await remote_worker.work()
    assert recorder.chain("graph python:echo")[:3] == ["graph python:echo", "run python:echo", "claim python:echo"]
    assert {trace_id(span) for span in recorder.spans} == {run.trace_id}


async def test_a_worker_that_meets_409_waits_and_takes_the_outcome(api: Api, remote_worker: RemoteGraphWorker) -> None:
    """The first worker died; its run continues in the other service, and nothing runs or is charged twice."""
    gate, reached, times = asyncio.Event(), asyncio.Event(), []

    async def slow(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        times.append(request.run_id)
        yield UsageReport("one", None, 1, 1, "0.001")
        reached.set()
        await gate.wait()
        yield TextDelta("late")

    graph = registry(api).add("slow", slow, "python").id
    await remote_worker.remote.learn()
    held = await grant(api)
    job = await remote_worker.run(graph, {}, held)
    path = f"/api/internal/graphs/{graph}:run"
    before = asyncio.ensure_future(order(api, f"{job}:0", grant_id=held, input={}, run_id=ULID, path=path))
    await reached.wait()
    working = asyncio.ensure_future(remote_worker.work())
    await remote_worker.recorder.busy.wait()
    assert not working.done()
    gate.set()
    (run,) = await working
    assert (await before).status_code == 200
    assert (run.status, run.outcome["content"], times) == ("success", "late", [ULID])
    assert len(await rows(api, select(charge_receipts))) == 1


async def test_what_the_endpoint_refuses_and_what_fails_there_become_runs(
    api: Api, remote_worker: RemoteGraphWorker
) -> None:
    async def broken(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("so")
        raise GraphError(str(request.input["code"]))

    graph = registry(api).add("broken", broken, "python").id
    await remote_worker.remote.learn()
    expected = {
        "rate_limit": ("paused", "transient"),
        "invalid_request": ("failed", "logic"),
        "internal": ("failed", "internal"),
        "timeout": ("failed", "timeout"),
        "aborted": ("canceled", "aborted"),
    }
    held = await grant(api)
    for code in expected:
        await remote_worker.run(graph, {"code": code}, held)
    await remote_worker.run("python:echo", {}, spent := await grant(api, budget={"total": 1}))
    for run in await remote_worker.work():
        if run.target == graph:
            assert (run.status, run.reason) == expected[run.input["code"]]
        else:
            assert (run.status, run.reason) == ("failed", "budget")
    account, rich = (await api.get(f"/grants/{spent}"))["billing_account_id"], await grant(api)
    for used, loss, wanted in (
        (spent, None, ("skipped", "budget", "budget")),
        (rich, f"/billing/accounts/{account}/$close", ("skipped", "budget", "billing_account_closed")),
        (held, f"/grants/{held}/$revoke", ("skipped", "grant_revoked", None)),
    ):
        job = await remote_worker.run("python:echo", {}, used)
        if loss is not None:
            assert (await api.call("POST", loss)).status_code == 200
        (run,) = [ended for ended in await remote_worker.work() if ended.job_id == job]
        assert (run.status, run.reason, (run.error or {}).get("code")) == wanted
    refused = await order(api, grant_id=rich)
    assert (refused.status_code, refused.json()["code"]) == (403, "billing_account_closed")
    await api.call("POST", f"/billing/accounts/{account}/$reopen")
    assert (await order(api, grant_id=rich)).json()["ok"] is True  # what did not run is not remembered


async def test_a_cancelled_run_is_stopped_over_there(api: Api, remote_worker: RemoteGraphWorker) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        try:
            yield TextDelta("on ")
            reached.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    graph = registry(api).add("endless", endless, "python").id
    await remote_worker.remote.learn()
    job = await remote_worker.run(graph, {}, await grant(api))
    working = asyncio.ensure_future(remote_worker.work())
    await reached.wait()
    assert (await api.call("POST", f"/jobs/{job}/$cancel")).status_code == 202
    remote_worker.worker.cancellation.cancel({job: "operator"})
    (run,) = await working
    assert (run.status, run.reason) == ("canceled", "operator")
    await asyncio.wait_for(ended.wait(), 5)
