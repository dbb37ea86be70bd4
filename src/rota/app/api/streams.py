"""Server-sent events: a stream looks at what is stored, tells what is new, then waits for a hint or a moment.

`Last-Event-ID` takes up where a client left off: it misses nothing. What lies up to five seconds before that point may
come again, because transactions do not commit in the order of their moments; ids tell what is known already.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from rota.app.api.manners import engine_of
from rota.app.auth import Viewer, authenticate
from rota.core.clock import pause, stopwatch
from rota.core.errors import Invalid, NotFound, Refused, Unavailable
from rota.core.states import Status
from rota.store import changes, reports
from rota.store.database import P, R, Step
from rota.store.tables import EPOCH

POLL = 0.5  # seconds between looks when nobody hints
BREATH = 0.1  # and at the least
HEARTBEAT = 15.0
TICK = timedelta(microseconds=1)
OPEN = (Status.PENDING, Status.RUNNING)

Event = tuple[str, str, Any]  # its name, its id, its data
Looks = AsyncIterator[list[Event]]

router = APIRouter()


@router.get("/events", tags=["events"])
async def events(request: Request, caller: Viewer) -> StreamingResponse:
    """What changes in the org, as it happens: runs started and ended, schedules created, changed and deleted, workers
    up and down, the freeze, queues that are paused or limited, and workflows that stopped because Rota itself failed.
    Runs of less than a tenth of a second are told when they end.

    After `Last-Event-ID` nothing is missed; what happened up to five seconds before it may come again, with the same
    `type` and `data.id` (and `revision`)."""
    given = last_event_id(request)
    now = engine_of(request).clock.now()
    try:
        position = now if given is None else min(now, EPOCH + given * TICK)
    except OverflowError as error:
        raise Invalid("Last-Event-ID", given, "is not an id of this stream") from error
    return stream(request, follow_changes(request, caller.org_id, position, resumed=given is not None))


@router.get("/jobs/{job_id}/$stream", tags=["jobs"])
async def job_stream(request: Request, caller: Viewer, job_id: str) -> StreamingResponse:
    """Each status that a job comes to; ends with the last one."""
    if not await engine_of(request).db.read(changes.job_steps, caller.org_id, job_id):
        raise NotFound(f"job {job_id}: there is none")
    return stream(request, follow_job(request, caller.org_id, job_id))


async def log_stream(request: Request, org_id: str, run_id: str, after: int) -> StreamingResponse:
    """The lines of a run's log as they are written; ends with the run."""
    db = engine_of(request).db
    await db.read(reports.run, org_id, run_id)
    last = last_event_id(request)
    start = after if last is None else await db.read(changes.log_start, run_id, last)
    return stream(request, follow_logs(request, org_id, run_id, start))


async def follow_changes(request: Request, org_id: str, position: datetime, *, resumed: bool) -> Looks:
    """An event's id is how far the stream is, never less than before: a change that was committed late has a later
    moment's id."""
    clock = engine_of(request).clock
    since = position - changes.OVERLAP
    known: dict[tuple[str, str], datetime] = {}
    if not resumed:  # what is there already is not news
        known = {key_of(one): one["at"] for one in (await ask(request, changes.since, org_id, since))[0]}
    yield [("open", str((position - EPOCH) // TICK), {})]
    while True:
        looked_at = clock.now()
        found, more = await ask(request, changes.since, org_id, since)
        while True:
            fresh = [one for one in found if key_of(one) not in known]
            position = max([position, *(one["at"] for one in fresh)])
            yield [(one["type"], str((position - EPOCH) // TICK), one) for one in fresh]
            known.update((key_of(one), one["at"]) for one in fresh)
            if not more:
                break
            found, more = await ask(request, changes.since, org_id, found[-1]["at"], found[-1]["id"])
        since = max(since, looked_at - changes.OVERLAP)
        known = {key: at for key, at in known.items() if at >= since}


async def follow_job(request: Request, org_id: str, job_id: str) -> Looks:
    last = request.headers.get("last-event-id")
    while True:
        steps = await ask(request, changes.job_steps, org_id, job_id)
        named = [("status", f"{one['attempt']}.{one['status']}", one) for one in steps]
        ids = [one[1] for one in named]
        yield (fresh := named[ids.index(last) + 1 :] if last in ids else named)
        last = fresh[-1][1] if fresh else last
        if steps[-1]["status"] not in OPEN:
            return


async def follow_logs(request: Request, org_id: str, run_id: str, start: int) -> Looks:
    known: dict[int, float] = {}  # lines told, and when
    over = False
    while True:
        run = await ask(request, reports.run, org_id, run_id)
        cursor: str | None = str(start)
        while cursor is not None:
            lines, cursor = await ask(request, reports.run_logs, org_id, run_id, after=int(cursor))
            yield [("log", str(line["id"]), line) for line in lines if line["id"] not in known]
            known.update((line["id"], stopwatch()) for line in lines if line["id"] not in known)
        if over:  # seen twice: the last lines may be written just after the end
            yield [("end", str(max(known, default=start)), {"run_id": run_id, "status": run["status"]})]
            return
        over = run["finished_at"] is not None
        old = stopwatch() - changes.OVERLAP.total_seconds()
        start = max((one for one, at in known.items() if at < old), default=start)
        known = {one: at for one, at in known.items() if one > start}


def stream(request: Request, looks: Looks) -> StreamingResponse:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(tell(request, looks), media_type="text/event-stream", headers=headers)


async def tell(request: Request, looks: Looks) -> AsyncIterator[bytes]:
    """The stream's bytes, until it is over, the server closes or the caller's key is revoked."""
    state, said = request.app.state, stopwatch()
    wake = state.engine.wake
    state.streams += 1
    try:
        yield b"retry: 2000\n\n"
        while True:
            changed = wake.changed  # asked before the look: what happens meanwhile is not missed
            found = await anext(looks)
            if found:
                yield b"".join(wire(*one) for one in found)
                said = stopwatch()
            if state.closing:
                return
            if stopwatch() - said > HEARTBEAT:
                await authenticate(request)
                yield b": still here\n\n"
                said = stopwatch()
            await pause(BREATH)
            if not found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await changed.wait()
    except (StopAsyncIteration, NotFound, Refused, Unavailable):
        return  # over, gone, no longer allowed; or the database is away, and the client will come back
    finally:
        state.streams -= 1


def last_event_id(request: Request) -> int | None:
    given = request.headers.get("last-event-id")
    if given is None or given == "":
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise Invalid("Last-Event-ID", given, "is not an id of this stream")
    return int(given)


def wire(name: str, key: str, data: Any) -> bytes:
    return f"id: {key}\nevent: {name}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"


async def ask(request: Request, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """A read that is not torn when the client goes: a torn one costs the pool its connection."""
    return await asyncio.shield(asyncio.ensure_future(engine_of(request).db.read(step, *args, **kwargs)))


def key_of(one: dict[str, Any]) -> tuple[str, str]:
    """A thing may change again: a schedule's changes differ by their revision."""
    return one["type"], f"{one['id']}:{one.get('revision', '')}"
