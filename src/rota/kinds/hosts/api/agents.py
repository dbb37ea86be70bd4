"""Routes of agents. The key identifies the host: no path and no body can name another."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from rota.access.api.people import NO_STORE
from rota.core import parse
from rota.core.errors import Invalid
from rota.engine.audit_log import AuditEntry
from rota.frame.http.auth import Unauthenticated, address_of, guess_bucket, key_text
from rota.frame.http.contract import answer, read_body
from rota.frame.http.guessing import FailedAttempts
from rota.kinds.hosts.dispatch import Dispatch, PollHub
from rota.kinds.hosts.job_types import read_types
from rota.kinds.hosts.store import hosts

router = APIRouter(prefix="/api/agent", tags=["agent"])

MAX_WAIT_SECONDS = 60.0  # of a long poll
MAX_LINES = 5000  # of one request
METRICS_BYTES = 4096  # JSON of the metrics of a host
CLAIM_STATES = ["running", "ended", "never", "unknown"]


async def host_of(request: Request) -> Any:
    """Return the host of the agent's key. Raises Unauthenticated for a missing, wrong or replaced key."""
    app, text = request.app, key_text(request) or ""
    host = await app.state.db.read(hosts.find_by_key, text) if text.isprintable() else None
    if host is None:
        if text.startswith("rota_agent_"):
            count_failure(request, "agent key")
        raise Unauthenticated("missing or outdated key of a host; `rota agent pair` gets the first")
    return host


Agent = Annotated[Any, Depends(host_of)]


@router.post("/pair", status_code=201)
async def pair(request: Request) -> Response:
    """Create a host: `{token, name}` → `{host_id, name, agent_key}`, once per token."""
    engine = request.app.state.engine
    form = parse.Form(await read_body(request), frozenset({"token", "name"}))
    token = form.need("token", lambda value, field: parse.text(value, field, 200)) or ""
    name = form.need("name", parse.name) or ""
    form.done()
    pairing = await engine.db.read(hosts.find_token, token)
    if pairing is None:
        count_failure(request, "pairing")
        raise Unauthenticated("unknown pairing token")
    act = AuditEntry(pairing.org_id, pairing.created_by, "hosts", "pair", address=address_of(request))
    host_id, host_name, key = await engine.audited_as(act).db.tx(hosts.pair, pairing, name, engine.clock.now())
    return answer({"host_id": host_id, "name": host_name, "agent_key": key}, 201, NO_STORE)


@router.post("/register")
async def register(request: Request, host: Agent) -> Response:
    """Start a session of an agent: `{version, pid, room, job_types, journal}` → its session. The journal has the state
    of each open claim: running, ended, never (begun), or unknown."""
    form = parse.Form(await read_body(request), frozenset({"version", "pid", "room", "job_types", "journal"}))
    facts = {
        "version": form.need("version", lambda value, field: parse.text(value, field, 40)),
        "pid": form.need("pid", number),
        "room": form.need("room", lambda value, field: parse.whole(value, field, 1, 64)),
        "job_types": form.need("job_types", read_types),
    }
    journal = form.need("journal", read_journal)
    form.done()
    return answer(await dispatch(request, host).register(facts, journal or {}))


@router.post("/poll")
async def poll(request: Request, host: Agent) -> Response:
    """Long poll and heartbeat: `{session, room, known, stopping, metrics?, wait_seconds?}` → `{jobs, cancel}`."""
    fields = frozenset({"session", "room", "known", "stopping", "metrics", "wait_seconds"})
    form = parse.Form(await read_body(request), fields)
    session = form.need("session", parse.ulid) or ""
    room = form.need("room", lambda value, field: parse.whole(value, field, 0, 64)) or 0
    claims, stopping = form.need("known", parse_texts) or [], form.need("stopping", parse_texts) or []
    metrics = form.take("metrics", read_metrics, None)
    seconds = form.take("wait_seconds", read_seconds, 0.0) or 0.0
    form.done()
    state = request.app.state
    state.streams += 1  # wake-ups of this process reach the loop while a stream is open
    try:
        return answer(
            await dispatch(request, host).poll(
                session, room, claims, stopping, metrics, hub_of(request), seconds, lambda: disconnected(request)
            )
        )
    finally:
        state.streams -= 1


@router.post("/progress")
async def progress(request: Request, host: Agent) -> Response:
    """Append log lines of a run: `{job_id, fence, lines: [[stream, text]]}`."""
    form = parse.Form(await read_body(request), frozenset({"job_id", "fence", "lines"}))
    job_id, fence, lines = read_claim(form)
    form.done()
    await dispatch(request, host).progress(job_id, fence, lines)
    return answer({"known": True})


@router.post("/result")
async def result(request: Request, host: Agent) -> Response:
    """Report how a run ended: `{job_id, fence, status: success|failed|canceled, outcome?, error?, duration_ms?,
    ended_ms_ago?, lines?}`. Idempotent; a different result of the same claim gets 409."""
    fields = ("job_id", "fence", "status", "outcome", "error", "duration_ms", "ended_ms_ago", "lines")
    form = parse.Form(await read_body(request), frozenset(fields))
    job_id, fence, lines = read_claim(form)
    statuses = ["success", "failed", "canceled"]
    report = {
        "status": form.need("status", lambda value, field: parse.one_of(value, field, statuses)),
        "outcome": form.take("outcome", parse.payload, None),
        "error": form.take("error", read_error, None),
        "duration_ms": form.take("duration_ms", number, 0),
        "ended_ms_ago": form.take("ended_ms_ago", number, 0),
    }
    form.done()
    return answer({"repeated": await dispatch(request, host).report(job_id, fence, report, lines)})


# helpers


def dispatch(request: Request, host: Any) -> Dispatch:
    return Dispatch(request.app.state.engine, host)


def hub_of(request: Request) -> PollHub:
    state = request.app.state
    if not hasattr(state, "hub"):
        state.hub = PollHub(state.engine)
    hub: PollHub = state.hub
    return hub


async def disconnected(request: Request) -> bool:
    """Whether the client has disconnected, or this server is about to stop."""
    return request.app.state.closing or await request.is_disconnected()


def count_failure(request: Request, secret: str) -> None:
    """Count a wrong key or token. Raises when an address has sent too many."""
    failures: FailedAttempts = request.app.state.failures
    failures.count(request.app.state.engine.clock.now(), guess_bucket(request, secret))


def read_claim(form: parse.Form) -> tuple[str, int, list[Any]]:
    job_id, fence = form.need("job_id", parse.ulid) or "", form.need("fence", number) or 0
    return job_id, fence, form.take("lines", read_lines, []) or []


def number(value: Any, field: str) -> int:
    return parse.whole(value, field, 0, 2**53)


def read_seconds(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT_SECONDS:
        raise Invalid(field, value, f"is not a number of seconds from 0 to {MAX_WAIT_SECONDS:g}")
    return float(value)


def parse_texts(value: Any, field: str) -> list[str]:
    if not isinstance(value, list) or len(value) > 1000:
        raise Invalid(field, value, "is not a list of at most 1000 texts")
    return [parse.text(text, field, 100) for text in value]


def read_lines(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_LINES:
        raise Invalid(field, type(value).__name__, f"is not a list of at most {MAX_LINES} lines")
    for line in value:
        if not isinstance(line, list) or len(line) != 2 or line[0] not in ("stdout", "stderr", "system"):
            raise Invalid(field, line, "is not a line like [stdout, text]")
        parse.text(line[1], field, 100_000)
    return value


def read_error(value: Any, field: str) -> dict[str, Any]:
    names = ("code", "type", "message", "traceback")
    form = parse.Form(value if isinstance(value, dict) else {field: value}, frozenset(names))
    error = {name: form.take(name, lambda text, field: parse.text(text, field, 100_000), None) for name in names}
    form.done()
    return error


def read_metrics(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(orjson.dumps(value)) > METRICS_BYTES:
        raise Invalid(field, type(value).__name__, f"is not an object of at most {METRICS_BYTES} bytes of JSON")
    return value


def read_journal(value: Any, field: str) -> dict[tuple[str, int], str]:
    """Return the states of `[{job_id, fence, state}]` by job and fence. Raises Invalid."""
    if not isinstance(value, list) or len(value) > 1000:
        raise Invalid(field, value, "is not a list of at most 1000 claims")
    states = {}
    for entry in value:
        form = parse.Form(
            entry if isinstance(entry, dict) else {"claim": entry}, frozenset({"job_id", "fence", "state"})
        )
        claim = form.need("job_id", parse.ulid) or "", form.need("fence", number) or 0
        states[claim] = form.need("state", lambda value, field: parse.one_of(value, field, CLAIM_STATES)) or ""
        form.done()
    return states
