"""Server-sent events: what is new in the database, after a wake-up or half a second later.

`Last-Event-ID` takes up where a client left off: it misses nothing. What lies up to five seconds before that point may
come again, because transactions do not commit in the order of their moments; ids tell what is known already.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rota.app.api.feeds import BREATH, POLL, pages
from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import Invalid, NotFound, Refused, Unavailable
from rota.core.states import Status
from rota.db.column_types import EPOCH
from rota.db.connection import P, R, Step
from rota.engine import event_feed, run_reports
from rota.frame.http.auth import Caller, Role, TooManyStreams, Viewer, authenticate, resource_of
from rota.frame.http.contract import engine_of

HEARTBEAT = 15.0  # seconds without an event after which a comment is sent
CHECK_EVERY = 15.0  # seconds between checks that the caller may still read
STREAMS_PER_KEY = 20  # open streams of a key, or of a user who is logged in, on one server
TICK = timedelta(microseconds=1)
OPEN = (Status.PENDING, Status.RUNNING)

Event = tuple[str, str, Any]  # its name, its id, its data
Looks = AsyncGenerator[list[Event], None]

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
    return EventStream(request, caller, follow_changes(request, caller.org_id, position, resumed=given is not None))


@router.get("/jobs/{job_id}/$stream", tags=["jobs"])
async def job_stream(request: Request, caller: Viewer, job_id: str) -> StreamingResponse:
    """Each status that a job comes to; ends with the last one."""
    if not await engine_of(request).db.read(event_feed.job_steps, caller.org_id, job_id):
        raise NotFound(f"job {job_id!r} not found")
    return EventStream(request, caller, follow_job(request, caller.org_id, job_id))


async def log_stream(request: Request, caller: Caller, run_id: str, after: int) -> StreamingResponse:
    """The lines of a run's log as they are written; ends with the run."""
    db = engine_of(request).db
    await db.read(run_reports.run, caller.org_id, run_id)
    last = last_event_id(request)
    start = after if last is None else await db.read(event_feed.log_start, run_id, last)
    return EventStream(request, caller, follow_logs(request, caller.org_id, run_id, start))


async def follow_changes(request: Request, org_id: str, position: datetime, *, resumed: bool) -> Looks:
    """An event's id is how far the stream is, never less than before: a change that was committed late has the id of
    a later one."""
    engine, feeds = request.app.state.engine, request.app.state.feeds
    known: set[tuple[str, str]] = set()  # sent, and perhaps in the feed too
    async with feeds.follow(org_id) as follower:
        yield [("open", str((position - EPOCH) // TICK), b"{}")]
        if resumed:
            recent = engine.clock.now() - event_feed.OVERLAP
            async for page in pages(engine, org_id, position - event_feed.OVERLAP):
                position = max([position, *(change.at for change in page)])
                yield [(change.type, str((position - EPOCH) // TICK), change.data) for change in page]
                known |= {change.key for change in page if change.at >= recent}
        while (batch := await follower.next()) is not None:
            fresh = [change for change in batch if change.key not in known]
            position = max([position, *(change.at for change in fresh)])
            yield [(change.type, str((position - EPOCH) // TICK), change.data) for change in fresh]


async def follow_job(request: Request, org_id: str, job_id: str) -> Looks:
    last = request.headers.get("last-event-id")
    async for _ in turns(request):
        steps = await ask(request, event_feed.job_steps, org_id, job_id)
        named = [("status", f"{one['attempt']}.{one['status']}", one) for one in steps]
        ids = [one[1] for one in named]
        yield (fresh := named[ids.index(last) + 1 :] if last in ids else named)
        last = fresh[-1][1] if fresh else last
        if steps[-1]["status"] not in OPEN:
            return


async def follow_logs(request: Request, org_id: str, run_id: str, start: int) -> Looks:
    known: dict[int, float] = {}  # lines told, and when
    over = False
    async for _ in turns(request):
        run = await ask(request, run_reports.run, org_id, run_id)
        cursor: str | None = str(start)
        while cursor is not None:
            lines, cursor = await ask(request, run_reports.run_logs, org_id, run_id, after=int(cursor))
            yield [("log", str(line["id"]), line) for line in lines if line["id"] not in known]
            known.update((line["id"], stopwatch()) for line in lines if line["id"] not in known)
        if over:  # seen twice: the last lines may be written just after the end
            yield [("end", str(max(known, default=start)), {"run_id": run_id, "status": run["status"]})]
            return
        over = run["finished_at"] is not None
        old = stopwatch() - event_feed.OVERLAP.total_seconds()
        start = max((one for one, at in known.items() if at < old), default=start)
        known = {one: at for one, at in known.items() if one > start}


async def turns(request: Request) -> AsyncIterator[None]:
    """When to read again: after a wake-up, or half a second later."""
    while True:
        changed = engine_of(request).wake.changed  # before the read: what happens during it is not missed
        yield
        await real_sleep(BREATH)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                await changed.wait()


class EventStream(StreamingResponse):
    """A stream that counts as one of its caller's until it ends. Raises TooManyStreams if they have too many."""

    def __init__(self, request: Request, caller: Caller, looks: Looks) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(frames(request, caller, looks), media_type="text/event-stream", headers=headers)
        self.owner, self.open_streams = caller.key_id or caller.user_id, request.app.state.open_streams
        if self.open_streams[self.owner] >= STREAMS_PER_KEY:
            raise TooManyStreams(
                f"this key or user has {STREAMS_PER_KEY} open event streams on this server, the most it may have; "
                "close one, or share one stream"
            )
        self.open_streams[self.owner] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.open_streams[self.owner] -= 1
            if not self.open_streams[self.owner]:
                del self.open_streams[self.owner]


async def frames(request: Request, caller: Caller, looks: Looks) -> AsyncIterator[bytes]:
    """The stream's bytes, until it is over, the server closes or the caller may no longer read it."""
    state = request.app.state
    sent = checked = stopwatch()
    state.streams += 1
    try:
        yield b"retry: 2000\n\n"
        async for events in looks:
            if stopwatch() - checked > CHECK_EVERY:  # whatever the traffic
                await check_again(request, caller)
                checked = stopwatch()
            if events:
                yield b"".join(wire(*event) for event in events)
                sent = stopwatch()
            elif stopwatch() - sent > HEARTBEAT:
                yield b": still here\n\n"
                sent = stopwatch()
            if state.closing:
                return
    except (NotFound, Refused, Unavailable):
        return  # gone, no longer allowed; or the database is away, and the client will come back
    finally:
        state.streams -= 1
        with contextlib.suppress(RuntimeError):  # it is running: this is its own end
            await looks.aclose()


async def check_again(request: Request, before: Caller) -> None:
    """Raises Refused if the key or login is no longer valid, or may no longer read this."""
    caller = await authenticate(request)
    caller.check(Role.VIEWER, resource_of(request))
    if caller.org_id != before.org_id:
        raise Refused("the caller is in another org now")


def last_event_id(request: Request) -> int | None:
    given = request.headers.get("last-event-id")
    if given is None or given == "":
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise Invalid("Last-Event-ID", given, "is not an id of this stream")
    return int(given)


def wire(name: str, key: str, data: Any) -> bytes:
    text = data if isinstance(data, bytes) else orjson.dumps(data)
    return f"id: {key}\nevent: {name}\ndata: ".encode() + text + b"\n\n"


async def ask(request: Request, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """A read that is not torn when the client goes: a torn one costs the pool its connection."""
    return await asyncio.shield(asyncio.ensure_future(engine_of(request).db.read(step, *args, **kwargs)))
