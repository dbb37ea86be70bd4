"""For services of our own: run a graph here, for a worker elsewhere. They show the service token.

An `Idempotency-Key` runs once: whoever asks again gets the outcome (also of a failure), 409 while it runs, and 422 with
another graph, input or grant. A key whose server died is free again when its lease runs out. An answer of 200 means
that the graph ran, `ok` says how it ended; any other status means that it did not run.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import orjson
import structlog
from fastapi import APIRouter, Depends, Request, Response
from starlette.exceptions import HTTPException

from rota.core import parse
from rota.core.clock import stopwatch
from rota.core.errors import Invalid, KeyInUse, NotFound, Refused
from rota.core.ids import new_id, trace_id_of, traceparent
from rota.core.policy import classify
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import jobs, orgs, runs
from rota.engine.commands import Engine
from rota.engine.runner import Canceled, RunLog, Skipped
from rota.frame.http import store as http_store
from rota.frame.http.auth import service
from rota.frame.http.contract import answer, problem, read_body, trace_of
from rota.frame.http.idempotency import KEY
from rota.frame.http.store import Kept, Ticket
from rota.kinds.graphs.execution import Execution, Order
from rota.kinds.graphs.port import Code
from rota.kinds.graphs.runner import GraphRunner

LOOK = 0.2  # seconds between writes of what a run says
KEY_LIMIT = 200

log = structlog.get_logger("rota.graphs")

router = APIRouter(prefix="/api/internal/graphs", tags=["internal"], dependencies=[Depends(service)])


class NotAdmitted(Refused):
    """The grant does not allow it, or nobody pays for it; `code` says why."""

    def __init__(self, skipped: Skipped) -> None:
        failure = skipped.failure
        super().__init__(failure.message if failure else f"the grant does not allow this run ({skipped.reason})")
        self.code = (failure and failure.code) or skipped.reason


@router.get("")
async def list_all(request: Request) -> Response:
    """The graphs that this server can run."""
    return answer({"items": [{"id": one} for one in sorted(graphs_of(request).registry.graphs)]})


@router.post("/{graph_id}:run")
async def run(request: Request, graph_id: str) -> Response:
    """`{grant_id, input, run_id?}` → `{ok, run_id, trace_id, error_code?}`."""
    engine, runner = request.app.state.engine, graphs_of(request)
    if graph_id not in runner.registry:
        raise NotFound(f"graph {graph_id!r} not found on this server")
    key = request.headers.get("idempotency-key", "")
    if not KEY.fullmatch(key) or len(key) > KEY_LIMIT:
        raise HTTPException(400, f"this needs an Idempotency-Key of 1 to {KEY_LIMIT} printable ASCII characters")
    try:
        order = read_order(await read_body(request, ["grant_id", "input", "run_id"]), graph_id, request)
    except Invalid as error:
        raise HTTPException(400, error.message) from error
    org_id = await engine.db.read(orgs.org_by_slug, runner.org)
    key = f"graphs {key}"  # keys of people have no blanks: nobody can take this one
    same = orjson.dumps([order.graph_id, order.input, order.grant_id], option=orjson.OPT_SORT_KEYS)
    what = (org_id, key, "run graph", sha256(same).hexdigest(), engine.clock.now(), {"run_id": order.run_id})
    try:
        found = await engine.db.tx(http_store.begin, *what)
    except KeyInUse as error:
        running = await engine.db.read(http_store.note, org_id, key)
        return problem(409, error.code, error.message, headers={"retry-after": "1"}, **running)
    if isinstance(found, Kept):
        return Response(found.body, found.status, {"idempotency-replayed": "true"}, "application/json")
    body = await Watch(engine, runner, org_id, order, found).run()
    return answer(body)


@dataclass(slots=True)
class Watch:
    """A run under way: its log is written, its key kept, and it is stopped when nobody wants it any more."""

    engine: Engine
    runner: GraphRunner
    org_id: str
    asked: Order
    ticket: Ticket
    lost: bool = False  # its key has gone to another server

    async def run(self) -> dict[str, Any]:
        db, job = self.engine.db, await self.engine.db.read(jobs.find, self.org_id, self.asked.run_id)
        order = ordered(self.asked, self.org_id, job)
        run_log = RunLog(order.run_id, self.engine.clock.now)
        executing = Execution(self.engine, self.runner.registry).run(order, run_log, lambda _: None)
        running = asyncio.ensure_future(executing)
        try:
            await self.tend(running, run_log, order, job)
            code = code_of(running, run_log)
        except NotAdmitted:
            await db.tx(http_store.let_go, self.ticket)
            raise
        except asyncio.CancelledError:  # this server stops; the worker will ask again, here or elsewhere
            running.cancel()
            await asyncio.wait([running])
            await db.tx(http_store.let_go, self.ticket)
            raise
        body = {"ok": code is None, "run_id": order.run_id, "trace_id": order.trace_id}
        body |= {} if code is None else {"error_code": code}
        lines = run_log.take(last=True)
        await retry_until_available(lambda: db.tx(self.end, lines, orjson.dumps(body)))
        return body

    async def tend(self, running: "asyncio.Future[Any]", run_log: RunLog, order: Order, job: Any) -> None:
        db, renewed, pressed = self.engine.db, stopwatch(), float("-inf")
        while not (await asyncio.wait([running], timeout=LOOK))[0]:
            if lines := run_log.take():
                await retry_until_available(partial(db.tx, runs.write_logs, lines))
            if stopwatch() - renewed > http_store.LEASE.total_seconds() / 4:
                renewed = stopwatch()
                await retry_until_available(self.renew)
            wanted = job is None or await retry_until_available(lambda: db.read(still_wanted, job))
            if (self.lost or not wanted) and stopwatch() - pressed > order.grace.total_seconds():
                pressed = stopwatch()
                order.canceled.set()
                running.cancel()
        if self.lost:
            raise KeyInUse("another server has taken this run over; ask again in a moment")

    async def renew(self) -> None:
        longer = await self.engine.db.tx(http_store.renew, self.ticket, self.engine.clock.now())
        self.ticket, self.lost = longer or self.ticket, longer is None

    def end(self, tx: Tx, lines: list[Any], body: bytes) -> None:
        runs.write_logs(tx, lines)
        http_store.keep(tx, self.ticket, 200, {}, body)


def still_wanted(tx: Tx, job: Any) -> bool:
    """Whether a worker waits for the run of a job, or another one will: it was not stopped, and has not failed."""
    now = jobs.find(tx, job.org_id, job.id)
    return now is not None and now.cancel_requested_at is None and now.tries == job.tries


def code_of(running: "asyncio.Future[Any]", run_log: RunLog) -> str | None:
    """Why a run failed, if it did."""
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


def read_order(body: dict[str, Any], graph_id: str, request: Request) -> Order:
    form = parse.Form(body, frozenset({"grant_id", "input", "run_id"}))
    grant_id = form.need("grant_id", parse.ulid) or ""
    given: Any = form.take("input", parse.payload, {})
    run_id = form.take("run_id", parse.ulid, None) or new_id()
    form.done()
    if not isinstance(given, dict):
        raise Invalid("input", given, "is not an object")
    trace = trace_of(request) or traceparent(trace_id_of(run_id))
    request_id = structlog.contextvars.get_contextvars().get("request_id") or run_id
    grace = request.app.state.engine.settings.cancel_grace
    return Order("", graph_id, given, grant_id, run_id, 1, trace, request_id, grace=grace)


def ordered(order: Order, org_id: str, job: Any) -> Order:
    """The order, with what is known of the job that it is for."""
    known = {} if job is None else {"attempt": job.attempt, "schedule_id": job.schedule_id}
    return replace(order, org_id=org_id, **known)


def graphs_of(request: Request) -> GraphRunner:
    found = request.app.state.engine.runners["graph"]
    assert isinstance(found, GraphRunner)
    return found
