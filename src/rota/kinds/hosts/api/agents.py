"""What an agent asks of the server. Its host is the one of its key: no path and no body can name another."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from rota.access.api.people import SECRET
from rota.core import parse
from rota.core.errors import Invalid
from rota.engine.audit_log import AuditEntry
from rota.frame.http.auth import Unauthenticated, address_of, guesser, key_text
from rota.frame.http.contract import answer, read_body
from rota.frame.http.guessing import Failures
from rota.kinds.hosts.dispatch import Dispatch, Hub
from rota.kinds.hosts.job_types import read_types
from rota.kinds.hosts.store import hosts

router = APIRouter(prefix="/api/agent", tags=["agent"])

WAIT_MOST = 60.0  # seconds that a poll may wait
LINES_MOST = 5000
METRICS_BYTES = 4096  # JSON of the metrics of a host
STATES = ["running", "ended", "never", "unknown"]


async def host_of(request: Request) -> Any:
    """The host whose agent calls; an old key is as good as none."""
    app, text = request.app, key_text(request) or ""
    host = await app.state.db.read(hosts.find_by_key, text) if text.isprintable() else None
    if host is None:
        if text.startswith("rota_agent_"):
            count_failure(request, "agent key")
        raise Unauthenticated("this needs the newest key of a host: `rota agent pair` gets the first")
    return host


Agent = Annotated[Any, Depends(host_of)]


@router.post("/pair", status_code=201)
async def pair(request: Request) -> Response:
    """Make a host of this machine: `{token, name}` → `{host_id, name, agent_key}`, once per token."""
    engine = request.app.state.engine
    form = parse.Form(await read_body(request), frozenset({"token", "name"}))
    token = form.need("token", lambda value, field: parse.text(value, field, 200)) or ""
    name = form.need("name", parse.name) or ""
    form.done()
    found = await engine.db.read(hosts.find_token, token)
    if found is None:
        count_failure(request, "pairing")
        raise Unauthenticated("this pairing token is not known here")
    act = AuditEntry(found.org_id, found.created_by, "hosts", "pair", address=address_of(request))
    host_id, known_as, key = await engine.audited_as(act).db.tx(hosts.pair, found, name, engine.clock.now())
    return answer({"host_id": host_id, "name": known_as, "agent_key": key}, 201, SECRET)


@router.post("/register")
async def register(request: Request, host: Agent) -> Response:
    """An agent is up: `{version, pid, room, job_types, journal}` → its session. The journal says of each claim that was
    not settled how it stands: running, ended, never (begun), or unknown."""
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
    """What is new: `{session, room, known, stopping, metrics?, wait_seconds?}` → `{jobs, cancel}`. Waits for it, and is
    the heartbeat too."""
    known = frozenset({"session", "room", "known", "stopping", "metrics", "wait_seconds"})
    form = parse.Form(await read_body(request), known)
    session = form.need("session", parse.ulid) or ""
    room = form.need("room", lambda value, field: parse.whole(value, field, 0, 64)) or 0
    claims, stopping = form.need("known", parse_texts) or [], form.need("stopping", parse_texts) or []
    metrics = form.take("metrics", read_metrics, None)
    seconds = form.take("wait_seconds", read_seconds, 0.0) or 0.0
    form.done()
    state = request.app.state
    state.streams += 1  # let this loop hear what happens elsewhere in the process
    try:
        return answer(
            await dispatch(request, host).poll(
                session, room, claims, stopping, metrics, hub_of(request), seconds, lambda: left(request)
            )
        )
    finally:
        state.streams -= 1


@router.post("/progress")
async def progress(request: Request, host: Agent) -> Response:
    """What a run says while it goes on: `{job_id, fence, lines: [[stream, text]]}`."""
    form = parse.Form(await read_body(request), frozenset({"job_id", "fence", "lines"}))
    job_id, fence, lines = read_claim(form)
    form.done()
    await dispatch(request, host).progress(job_id, fence, lines)
    return answer({"known": True})


@router.post("/result")
async def result(request: Request, host: Agent) -> Response:
    """How a run ended: `{job_id, fence, status: success|failed|canceled, outcome?, error?, duration_ms?, ended_ms_ago?,
    lines?}`. The same may come again; another one is refused with 409."""
    fields = ("job_id", "fence", "status", "outcome", "error", "duration_ms", "ended_ms_ago", "lines")
    form = parse.Form(await read_body(request), frozenset(fields))
    job_id, fence, lines = read_claim(form)
    words = ["success", "failed", "canceled"]
    report = {
        "status": form.need("status", lambda value, field: parse.one_of(value, field, words)),
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


def hub_of(request: Request) -> Hub:
    state = request.app.state
    if not hasattr(state, "hub"):
        state.hub = Hub(state.engine)
    hub: Hub = state.hub
    return hub


async def left(request: Request) -> bool:
    """Whether nobody waits for the answer any more, or this server is about to stop."""
    return request.app.state.closing or await request.is_disconnected()


def count_failure(request: Request, what: str) -> None:
    """Guesses are counted, and refused when there are too many."""
    failures: Failures = request.app.state.failures
    failures.count(request.app.state.engine.clock.now(), guesser(request, what))


def read_claim(form: parse.Form) -> tuple[str, int, list[Any]]:
    job_id, fence = form.need("job_id", parse.ulid) or "", form.need("fence", number) or 0
    return job_id, fence, form.take("lines", read_lines, []) or []


def number(value: Any, field: str) -> int:
    return parse.whole(value, field, 0, 2**53)


def read_seconds(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= WAIT_MOST:
        raise Invalid(field, value, f"is not a number of seconds from 0 to {WAIT_MOST:g}")
    return float(value)


def parse_texts(value: Any, field: str) -> list[str]:
    if not isinstance(value, list) or len(value) > 1000:
        raise Invalid(field, value, "is not a list of at most 1000 texts")
    return [parse.text(one, field, 100) for one in value]


def read_lines(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > LINES_MOST:
        raise Invalid(field, type(value).__name__, f"is not a list of at most {LINES_MOST} lines")
    for one in value:
        if not isinstance(one, list) or len(one) != 2 or one[0] not in ("stdout", "stderr", "system"):
            raise Invalid(field, one, "is not a line like [stdout, text]")
        parse.text(one[1], field, 100_000)
    return value


def read_error(value: Any, field: str) -> dict[str, Any]:
    names = ("code", "type", "message", "traceback")
    form = parse.Form(value if isinstance(value, dict) else {field: value}, frozenset(names))
    found = {name: form.take(name, lambda one, field: parse.text(one, field, 100_000), None) for name in names}
    form.done()
    return found


def read_metrics(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(orjson.dumps(value)) > METRICS_BYTES:
        raise Invalid(field, type(value).__name__, f"is not an object of at most {METRICS_BYTES} bytes of JSON")
    return value


def read_journal(value: Any, field: str) -> dict[tuple[str, int], str]:
    """`[{job_id, fence, state}]`"""
    if not isinstance(value, list) or len(value) > 1000:
        raise Invalid(field, value, "is not a list of at most 1000 claims")
    found = {}
    for one in value:
        form = parse.Form(one if isinstance(one, dict) else {"claim": one}, frozenset({"job_id", "fence", "state"}))
        claim = form.need("job_id", parse.ulid) or "", form.need("fence", number) or 0
        found[claim] = form.need("state", lambda value, field: parse.one_of(value, field, STATES)) or ""
        form.done()
    return found
