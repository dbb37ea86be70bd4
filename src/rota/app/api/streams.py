"""Server-sent events: changes in the database, after a wake-up or the next poll.

`Last-Event-ID` resumes a stream without a gap. Events up to five seconds before that point may be sent again, because
transactions do not commit in the order of their timestamps; clients recognise them by their ids.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime, timedelta

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rota.app.api.feeds import FEED_POLL_SECONDS, MIN_READ_INTERVAL_SECONDS, pages
from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import Invalid, NotFound, Refused, Unavailable
from rota.core.states import Status
from rota.db.column_types import EPOCH
from rota.db.connection import P, R, Step
from rota.frame.http.auth import Caller, Role, TooManyStreams, Viewer, authenticate, resource_of
from rota.frame.http.contract import engine_of
from rota.reports import event_feed
from rota.reports import jobs as job_reports
from rota.reports import runs as run_reports
from rota.reports import steps as step_reports

KEEP_ALIVE_SECONDS = 15.0  # without an event, until a comment is sent
AUTHORIZATION_SECONDS = 15.0  # between checks that the caller may still read
STREAMS_PER_KEY = 20  # open streams of a key, or of a user who is logged in, on one server
TICK = timedelta(microseconds=1)
OPEN_STATUSES = (Status.PENDING, Status.RUNNING)

Event = tuple[str, str, object]  # name, id, data
EventBatches = AsyncGenerator[list[Event], None]

router = APIRouter()


@router.get("/events", tags=["events"])
async def events(request: Request, caller: Viewer) -> StreamingResponse:
    """Changes in the org as they happen: runs started and ended, schedules created, changed and deleted, workers
    up and down, approvals requested and decided, the freeze, queues that are paused or limited, and workflows that
    stopped because Rota itself failed.
    Runs shorter than 0.1 s are only sent when they end.

    After `Last-Event-ID` no event is missed; those up to five seconds before it may be sent again, with the same
    `type` and `data.id` (and `revision`)."""
    last_id = last_event_id(request)
    now = engine_of(request).clock.now()
    try:
        position = now if last_id is None else min(now, EPOCH + last_id * TICK)
    except OverflowError as error:
        raise Invalid("Last-Event-ID", last_id, "is not an id of this stream") from error
    return EventStream(request, caller, follow_changes(request, caller.org_id, position, resumed=last_id is not None))


@router.get("/jobs/{job_id}/$stream", tags=["jobs"])
async def job_stream(request: Request, caller: Viewer, job_id: str) -> StreamingResponse:
    """Statuses of a job as they change; ends with the final one."""
    if not await engine_of(request).db.read(job_reports.job_steps, caller.org_id, job_id):
        raise NotFound(f"job {job_id!r} not found")
    return EventStream(request, caller, follow_job(request, caller.org_id, job_id))


async def log_stream(request: Request, caller: Caller, run_id: str, after: int) -> StreamingResponse:
    """Stream the log lines of a run as they are written, and changes of its recorded steps; ends with the run."""
    db = engine_of(request).db
    await db.read(run_reports.run, caller.org_id, run_id)
    last = last_event_id(request)
    start = after if last is None else await db.read(event_feed.log_start, run_id, last)
    return EventStream(request, caller, follow_logs(request, caller.org_id, run_id, start))


async def follow_changes(request: Request, org_id: str, position: datetime, *, resumed: bool) -> EventBatches:
    """Yield changes. An event's id is the stream's position and never decreases: a change that was committed late gets
    the id of a later one."""
    engine, feeds = request.app.state.engine, request.app.state.feeds
    known: set[tuple[str, str]] = set()  # sent already; the feed may contain them again
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


async def follow_job(request: Request, org_id: str, job_id: str) -> EventBatches:
    last = request.headers.get("last-event-id")
    async for _ in poll_ticks(request):
        steps = await read_shielded(request, job_reports.job_steps, org_id, job_id)
        events: list[Event] = [("status", f"{step['attempt']}.{step['status']}", step) for step in steps]
        ids = [event_id for _, event_id, _ in events]
        yield (fresh := events[ids.index(last) + 1 :] if last in ids else events)
        last = fresh[-1][1] if fresh else last
        if steps[-1]["status"] not in OPEN_STATUSES:
            return


async def follow_logs(request: Request, org_id: str, run_id: str, start: int) -> EventBatches:
    known: dict[int, float] = {}  # ids of lines sent, and when
    ended, progress = False, None
    async for _ in poll_ticks(request):
        run = await read_shielded(request, run_reports.run, org_id, run_id)
        before, progress = progress, await read_shielded(request, step_reports.progress, run["job_id"])
        if progress != before:
            yield [("steps", str(max(known, default=start)), progress)]
        cursor: str | None = str(start)
        while cursor is not None:
            lines, cursor = await read_shielded(request, run_reports.run_logs, org_id, run_id, after=int(cursor))
            yield [("log", str(line["id"]), line) for line in lines if line["id"] not in known]
            known.update((line["id"], stopwatch()) for line in lines if line["id"] not in known)
        if ended:  # read once more: the last lines may be written just after the end
            yield [("end", str(max(known, default=start)), {"run_id": run_id, "status": run["status"]})]
            return
        ended = run["finished_at"] is not None
        old = stopwatch() - event_feed.OVERLAP.total_seconds()
        start = max((line_id for line_id, at in known.items() if at < old), default=start)
        known = {line_id: at for line_id, at in known.items() if line_id > start}


async def poll_ticks(request: Request) -> AsyncIterator[None]:
    """Yield when to read again: after a wake-up, or FEED_POLL_SECONDS later."""
    while True:
        changed = engine_of(request).wake.changed  # taken before the read: a wake-up during it is not missed
        yield
        await real_sleep(MIN_READ_INTERVAL_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FEED_POLL_SECONDS):
                await changed.wait()


class EventStream(StreamingResponse):
    """Response that counts as an open stream of its caller until it ends. Raises TooManyStreams at the limit."""

    def __init__(self, request: Request, caller: Caller, batches: EventBatches) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(frames(request, caller, batches), media_type="text/event-stream", headers=headers)
        self.owner, self.open_streams = caller.key_id or caller.user_id, request.app.state.open_streams
        if self.open_streams[self.owner] >= STREAMS_PER_KEY:
            raise TooManyStreams(
                f"this key or user already has {STREAMS_PER_KEY} open event streams on this server, the maximum; "
                "close one, or share one"
            )
        self.open_streams[self.owner] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.open_streams[self.owner] -= 1
            if not self.open_streams[self.owner]:
                del self.open_streams[self.owner]


async def frames(request: Request, caller: Caller, batches: EventBatches) -> AsyncIterator[bytes]:
    """Yield the stream's bytes until it ends, the server stops or the caller loses access."""
    state = request.app.state
    sent = checked = stopwatch()
    state.streams += 1
    try:
        yield b"retry: 2000\n\n"
        async for events in batches:
            if stopwatch() - checked > AUTHORIZATION_SECONDS:
                await recheck(request, caller)
                checked = stopwatch()
            if events:
                yield b"".join(encode(*event) for event in events)
                sent = stopwatch()
            elif stopwatch() - sent > KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                sent = stopwatch()
            if state.closing:
                return
    except (NotFound, Refused, Unavailable):
        return  # deleted, no longer allowed, or database unavailable: the client reconnects
    finally:
        state.streams -= 1
        with contextlib.suppress(RuntimeError):  # the generator itself is ending
            await batches.aclose()


async def recheck(request: Request, before: Caller) -> None:
    """Raise Refused if the key or login is no longer valid, or may no longer read this."""
    caller = await authenticate(request)
    caller.check(Role.VIEWER, resource_of(request))
    if caller.org_id != before.org_id:
        raise Refused("the caller has moved to another org")


def last_event_id(request: Request) -> int | None:
    text = request.headers.get("last-event-id")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Invalid("Last-Event-ID", text, "is not an id of this stream")
    return int(text)


def encode(name: str, key: str, data: object) -> bytes:
    text = data if isinstance(data, bytes) else orjson.dumps(data)
    return f"id: {key}\nevent: {name}\ndata: ".encode() + text + b"\n\n"


async def read_shielded(request: Request, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Read, shielded from the client's disconnect: a canceled read would cost the pool its connection."""
    return await asyncio.shield(asyncio.ensure_future(engine_of(request).db.read(step, *args, **kwargs)))
