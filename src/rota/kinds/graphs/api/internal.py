"""Internal endpoint: runs a graph here for a worker of another service, which authenticates by the service token.

An `Idempotency-Key` runs once: a repeated request gets the outcome (also of a failure), 409 while it runs, and 422 with
another graph, input or grant. The key of a dead server is free again when its lease expires. Status 200 means that the
graph ran, and `ok` how it ended; any other status means that it did not run.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import orjson
import structlog
from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rota.core.clock import stopwatch
from rota.core.errors import Invalid, KeyInUse, NotFound, Refused, together
from rota.core.ids import new_id, trace_id_of, traceparent
from rota.core.policy import classify
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import jobs, orgs, runs
from rota.engine.commands import Engine
from rota.engine.runner import Canceled, RunLog, Skipped
from rota.frame.http import store as http_store
from rota.frame.http.auth import require_service_token
from rota.frame.http.contract import answer, invalid_values, problem, trace_of
from rota.frame.http.idempotency import KEY
from rota.frame.http.models import OpenBodyRoute
from rota.frame.http.store import KeyLease, StoredAnswer
from rota.kinds.graphs.api.models import GraphIds, GraphOrderBody, GraphOutcome
from rota.kinds.graphs.execution import Execution, GraphOrder, GraphResult
from rota.kinds.graphs.port import Code
from rota.kinds.graphs.runner import GraphRunner

LOG_WRITE_SECONDS = 0.2
KEY_CHARACTERS = 200

log = structlog.get_logger("rota.graphs")


class ServiceRoute(OpenBodyRoute):
    """Route whose body is read after the service token, the graph and the key were checked; 400 for a wrong body."""

    async def authenticate(self, request: Request) -> None:
        await require_service_token(request)
        graph_id, key = request.path_params["graph_id"], request.headers.get("idempotency-key", "")
        if graph_id not in graph_runner(request).registry:
            raise NotFound(f"graph {graph_id!r} not found on this server")
        if not KEY.fullmatch(key) or len(key) > KEY_CHARACTERS:
            raise HTTPException(
                400, f"this needs an Idempotency-Key of 1 to {KEY_CHARACTERS} printable ASCII characters"
            )

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RequestValidationError as error:
                raise HTTPException(400, together(invalid_values(request, error)).message) from error
            except Invalid as error:
                raise HTTPException(400, error.message) from error

        return handle


router = APIRouter(
    prefix="/api/internal/graphs",
    tags=["internal"],
    dependencies=[Depends(require_service_token)],
    route_class=ServiceRoute,
)


class NotAdmitted(Refused):
    """The grant does not allow the run, or its budget is used up; `code` is the reason."""

    def __init__(self, skipped: Skipped) -> None:
        failure = skipped.failure
        super().__init__(failure.message if failure else f"the grant does not allow this run ({skipped.reason})")
        self.code = (failure and failure.code) or skipped.reason


@router.get("", response_model=GraphIds)
async def list_all(request: Request) -> Response:
    """The graphs that this server can run."""
    return answer({"items": [{"id": graph_id} for graph_id in sorted(graph_runner(request).registry.graphs)]})


@router.post("/{graph_id}:run", response_model=GraphOutcome)
async def run(request: Request, graph_id: str, body: GraphOrderBody) -> Response:
    """`{grant_id, input, run_id?}` → `{ok, run_id, trace_id, error_code?}`."""
    engine, runner = request.app.state.engine, graph_runner(request)
    order = order_of(body, graph_id, request)
    org_id = await engine.db.read(orgs.org_by_slug, runner.org)
    # public keys have no blanks, so they cannot collide with this one
    key = f"graphs {request.headers['idempotency-key']}"
    fingerprint = orjson.dumps([order.graph_id, order.input, order.grant_id], option=orjson.OPT_SORT_KEYS)
    request_fields = (
        org_id,
        key,
        "run graph",
        sha256(fingerprint).hexdigest(),
        engine.clock.now(),
        {"run_id": order.run_id},
    )
    try:
        ticket = await engine.db.tx(http_store.begin, *request_fields)
    except KeyInUse as error:
        running = await engine.db.read(http_store.note_of, org_id, key)
        return problem(409, error.code, error.message, headers={"retry-after": "1"}, **running)
    if isinstance(ticket, StoredAnswer):
        return Response(ticket.body, ticket.status, {"idempotency-replayed": "true"}, "application/json")
    return answer(await SupervisedRun(engine, runner, org_id, order, ticket).run())


@dataclass(slots=True)
class SupervisedRun:
    """A running graph: writes its log, renews the lease of its key, and stops it when its job is canceled or gone."""

    engine: Engine
    runner: GraphRunner
    org_id: str
    requested: GraphOrder
    ticket: KeyLease
    lost: bool = False  # another server has the key

    async def run(self) -> dict[str, Any]:
        db, job = self.engine.db, await self.engine.db.read(jobs.find, self.org_id, self.requested.run_id)
        order = with_job(self.requested, self.org_id, job)
        run_log = RunLog(order.run_id, self.engine.clock.now)
        executing = Execution(self.engine, self.runner.registry).run(order, run_log, lambda _: None)
        running = asyncio.ensure_future(executing)
        try:
            await self.supervise(running, run_log, order, job)
            code = code_of(running, run_log)
        except NotAdmitted:
            await db.tx(http_store.release, self.ticket)
            raise
        except asyncio.CancelledError:  # this server stops; the worker retries, here or at another server
            running.cancel()
            await asyncio.wait([running])
            await db.tx(http_store.release, self.ticket)
            raise
        body = {"ok": code is None, "run_id": order.run_id, "trace_id": order.trace_id}
        body |= {} if code is None else {"error_code": code}
        lines = run_log.take(last=True)
        await retry_until_available(lambda: db.tx(self.end, lines, orjson.dumps(body)))
        return body

    async def supervise(
        self, running: "asyncio.Future[GraphResult]", run_log: RunLog, order: GraphOrder, job: Any
    ) -> None:
        db, renewed, canceled_at = self.engine.db, stopwatch(), float("-inf")
        while not (await asyncio.wait([running], timeout=LOG_WRITE_SECONDS))[0]:
            if lines := run_log.take():
                await retry_until_available(partial(db.tx, runs.write_logs, lines))
            if stopwatch() - renewed > http_store.KEY_LEASE.total_seconds() / 4:
                renewed = stopwatch()
                await retry_until_available(self.renew)
            wanted = job is None or await retry_until_available(lambda: db.read(is_wanted, job))
            if (self.lost or not wanted) and stopwatch() - canceled_at > order.grace.total_seconds():
                canceled_at = stopwatch()
                order.canceled.set()
                running.cancel()
        if self.lost:
            raise KeyInUse("another server has taken over this run; retry in a second")

    async def renew(self) -> None:
        renewed = await self.engine.db.tx(http_store.renew, self.ticket, self.engine.clock.now())
        self.ticket, self.lost = renewed or self.ticket, renewed is None

    def end(self, tx: Tx, lines: list[Any], body: bytes) -> None:
        runs.write_logs(tx, lines)
        http_store.store_answer(tx, self.ticket, 200, {}, body)


def is_wanted(tx: Tx, job: Any) -> bool:
    """Whether the job is neither canceled nor ended, and still in the same try."""
    current = jobs.find(tx, job.org_id, job.id)
    return current is not None and current.cancel_requested_at is None and current.tries == job.tries


def code_of(running: "asyncio.Future[GraphResult]", run_log: RunLog) -> str | None:
    """Return the error code of a run that failed, else None. Raises NotAdmitted if it did not begin."""
    error = asyncio.CancelledError() if running.cancelled() else running.exception()
    if error is None:
        return None
    if isinstance(error, asyncio.CancelledError | Canceled):
        return Code.ABORTED
    if isinstance(error, Skipped):
        raise NotAdmitted(error)
    failure = getattr(error, "failure", None) or classify(error)
    run_log.line("system", f"{failure.type}: {failure.message.removeprefix(f'{failure.type}: ')}")
    return str(failure.code or failure.failure_class.value)


def order_of(body: GraphOrderBody, graph_id: str, request: Request) -> GraphOrder:
    run_id = body.run_id or new_id()
    trace = trace_of(request) or traceparent(trace_id_of(run_id))
    request_id = structlog.contextvars.get_contextvars().get("request_id") or run_id
    grace = request.app.state.engine.settings.cancel_grace
    return GraphOrder("", graph_id, body.input or {}, body.grant_id, run_id, 1, trace, request_id, grace=grace)


def with_job(order: GraphOrder, org_id: str, job: Any) -> GraphOrder:
    """Return the order with its org, and the attempt and schedule of its job."""
    fields = {} if job is None else {"attempt": job.attempt, "schedule_id": job.schedule_id}
    return replace(order, org_id=org_id, **fields)


def graph_runner(request: Request) -> GraphRunner:
    runner = request.app.state.engine.runners["graph"]
    assert isinstance(runner, GraphRunner)
    return runner
