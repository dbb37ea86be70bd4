"""Routes of agents. The key identifies the host: no path and no body can name another."""

from collections.abc import Callable, Coroutine
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rota.access.api.people import NO_STORE
from rota.engine.audit_log import AuditEntry
from rota.frame.http.auth import Unauthenticated, address_of, guess_bucket, key_text
from rota.frame.http.contract import answer
from rota.frame.http.guessing import FailedAttempts
from rota.frame.http.models import OpenBodyRoute
from rota.kinds.hosts.api import models
from rota.kinds.hosts.dispatch import Dispatcher
from rota.kinds.hosts.hand_out import PollRequest
from rota.kinds.hosts.results import Report
from rota.kinds.hosts.store import hosts
from rota.kinds.hosts.store.records import HostRow

NO_KEY = "missing or outdated key of a host; `rota agent pair` gets the first"


async def host_of(request: Request) -> HostRow:
    """Return the host of the agent's key. Raises Unauthenticated for a missing, wrong or replaced key."""
    text = key_text(request) or ""
    host = await dispatcher(request).find_host(text) if text.isprintable() else None
    if host is None:
        if text.startswith("rota_agent_"):
            count_failure(request, "agent key")
        raise Unauthenticated(NO_KEY)
    return host


class AgentRoute(OpenBodyRoute):
    """Route whose body is read only for agents with the key of a host."""

    async def authenticate(self, request: Request) -> None:
        request.state.host = await host_of(request)

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except hosts.KeyReplaced as error:
                raise Unauthenticated(error.message) from error

        return handle


def authenticated_host(request: Request) -> HostRow:
    """Return the host that `AgentRoute` has identified."""
    host: HostRow = request.state.host
    return host


Agent = Annotated[HostRow, Depends(authenticated_host)]
pairing = APIRouter(prefix="/api/agent", tags=["agent"], route_class=OpenBodyRoute)
router = APIRouter(prefix="/api/agent", tags=["agent"], route_class=AgentRoute)


@pairing.post("/pair", status_code=201, response_model=models.Paired)
async def pair(request: Request, body: models.PairBody) -> Response:
    """Create a host: `{token, name}` → `{host_id, name, agent_key}`, once per token."""
    engine = request.app.state.engine
    token = await engine.db.read(hosts.find_token, body.token)
    if token is None:
        count_failure(request, "pairing")
        raise Unauthenticated("unknown pairing token")
    act = AuditEntry(token.org_id, token.created_by, "hosts", "pair", address=address_of(request))
    host_id, host_name, key = await engine.audited_as(act).db.tx(hosts.pair, token, body.name, engine.clock.now())
    return answer({"host_id": host_id, "name": host_name, "agent_key": key}, 201, NO_STORE)


@router.post("/register", response_model=models.AgentSession)
async def register(request: Request, host: Agent, body: models.RegisterBody) -> Response:
    """Start a session of an agent: `{version, pid, room, job_types, journal}` → its session. The journal has the state
    of each open claim: running, ended, never (begun), or unknown."""
    facts = {"version": body.version, "pid": body.pid, "room": body.room, "job_types": body.job_types}
    journal = {(claim.job_id, claim.fence): claim.state for claim in body.journal}
    return answer(await dispatcher(request).register(host, facts, journal))


@router.post("/poll", response_model=models.Orders)
async def poll(request: Request, host: Agent, body: models.PollBody) -> Response:
    """Long poll and heartbeat: `{session, room, known, stopping, metrics?, wait_seconds?}` → `{jobs, cancel}`."""
    state = request.app.state
    state.streams += 1  # wake-ups of this process reach the loop while a stream is open
    known, stopping = frozenset(body.known), frozenset(body.stopping)
    asked = PollRequest(host, body.session, body.room, known, stopping, body.metrics)
    try:
        return answer(await dispatcher(request).poll(asked, body.wait_seconds or 0.0, request.is_disconnected))
    finally:
        state.streams -= 1


@router.post("/progress", response_model=models.Progress)
async def progress(request: Request, host: Agent, body: models.ProgressBody) -> Response:
    """Append log lines of a run: `{job_id, fence, lines: [[stream, text]]}`."""
    await dispatcher(request).report(Report(host, body.job_id, body.fence, body.lines or [], None))
    return answer({"known": True})


@router.post("/result", response_model=models.Reported)
async def report_result(request: Request, host: Agent, body: models.ResultBody) -> Response:
    """Report how a run ended: `{job_id, fence, status: success|failed|canceled, outcome?, error?, duration_ms?,
    ended_ms_ago?, lines?}`. Idempotent; a different result of the same claim gets 409."""
    result = {
        "status": body.status,
        "outcome": body.outcome,
        "error": None if body.error is None else body.error.model_dump(),
        "duration_ms": body.duration_ms or 0,
        "ended_ms_ago": body.ended_ms_ago or 0,
    }
    repeated = await dispatcher(request).report(Report(host, body.job_id, body.fence, body.lines or [], result))
    return answer({"repeated": repeated})


# helpers


def dispatcher(request: Request) -> Dispatcher:
    """Return the dispatcher of this application, which its first use creates."""
    state = request.app.state
    if not hasattr(state, "dispatcher"):
        state.dispatcher = Dispatcher(state.engine, lambda: state.closing)
    agents: Dispatcher = state.dispatcher
    return agents


def count_failure(request: Request, secret: str) -> None:
    """Count a wrong key or token. Raises when an address has sent too many."""
    failures: FailedAttempts = request.app.state.failures
    failures.count(request.app.state.engine.clock.now(), guess_bucket(request, secret))
