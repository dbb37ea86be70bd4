"""One reader of the event feed per org, shared by all its streams.

A feed polls while streams follow it and passes each new change to all of them. A stream that does not keep up is
closed: its client reconnects with `Last-Event-ID` and misses nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import NamedTuple

import orjson
import structlog

from rota.core.clock import real_sleep
from rota.core.errors import Unavailable
from rota.db.paging import Record
from rota.engine.commands import Engine
from rota.reports import event_feed

FEED_POLL_SECONDS = 0.5  # between reads without a wake-up
MIN_READ_INTERVAL_SECONDS = 0.1
MAX_BATCHES_BEHIND = 100  # unsent batches of a stream before it is closed
IDLE_SECONDS = 5.0  # after which a stream without changes checks whether it may go on; hundreds may be idle

Key = tuple[str, str]

log = structlog.get_logger("rota.api")


class Change(NamedTuple):
    type: str
    at: datetime
    key: Key
    data: bytes  # as JSON


class Follower:
    """Queue of batches that a stream has yet to send."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[list[Change]] = asyncio.Queue()
        self.ended = False

    def add(self, batch: list[Change]) -> None:
        if self.batches.qsize() >= MAX_BATCHES_BEHIND:
            self.ended = True
        elif not self.ended:
            self.batches.put_nowait(batch)

    def end(self) -> None:
        """Close the stream, also if it waits for a batch."""
        self.ended = True
        self.batches.put_nowait([])

    async def next(self) -> list[Change] | None:
        """Return the next batch, an empty one after IDLE_SECONDS without changes, None if the feed is closed."""
        batch: list[Change] = []
        if not self.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    batch = await self.batches.get()
        return batch or (None if self.ended else [])


class Feed:
    """Reads the changes of one org while it has followers, until the server stops (`closing`)."""

    def __init__(self, engine: Engine, org_id: str, closing: Callable[[], bool]) -> None:
        self.engine, self.org_id, self.closing = engine, org_id, closing
        self.followers: set[Follower] = set()
        self.primed = asyncio.Event()  # changes before the start are known
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        try:
            await self.poll()
        except Unavailable:
            pass  # the streams end, and their clients reconnect
        except Exception:
            log.exception("reading changes failed", org_id=self.org_id)
        finally:
            self.primed.set()
            for follower in self.followers:
                follower.end()

    async def poll(self) -> None:
        clock, wake = self.engine.clock, self.engine.wake
        since = clock.now() - event_feed.OVERLAP
        known = {change.key: change.at async for page in pages(self.engine, self.org_id, since) for change in page}
        self.primed.set()
        while not self.closing():
            changed, started_at, fresh_count = (
                wake.changed,
                clock.now(),
                0,
            )  # taken before the read: a wake-up during it is not missed
            async for page in pages(self.engine, self.org_id, since):
                fresh = [change for change in page if change.key not in known]
                known.update((change.key, change.at) for change in fresh)
                fresh_count += len(fresh)
                for follower in self.followers if fresh else ():
                    follower.add(fresh)
            since = max(since, started_at - event_feed.OVERLAP)
            known = {key: at for key, at in known.items() if at >= since}
            await real_sleep(MIN_READ_INTERVAL_SECONDS)
            if not fresh_count:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FEED_POLL_SECONDS):
                        await changed.wait()


class Feeds:
    """The feeds of a server, by org."""

    def __init__(self, engine: Engine, closing: Callable[[], bool]) -> None:
        self.engine, self.closing = engine, closing
        self.by_org: dict[str, Feed] = {}

    @contextlib.asynccontextmanager
    async def follow(self, org_id: str) -> AsyncIterator[Follower]:
        """Yield a follower of the org's feed: its batches have all changes committed from now on."""
        feed = self.by_org.get(org_id)
        if feed is None or feed.task.done():
            feed = self.by_org[org_id] = Feed(self.engine, org_id, self.closing)
        follower = Follower()
        feed.followers.add(follower)
        try:
            await feed.primed.wait()
            yield follower
        finally:
            feed.followers.discard(follower)
            if not feed.followers:
                feed.task.cancel()
                if self.by_org.get(org_id) is feed:
                    del self.by_org[org_id]


async def pages(engine: Engine, org_id: str, since: datetime) -> AsyncIterator[list[Change]]:
    """Yield the changes in an org since a time, oldest first, page by page."""
    rows, more = await read_page(engine, org_id, since)
    yield [change_of(row) for row in rows]
    while more:
        rows, more = await read_page(engine, org_id, rows[-1]["at"], rows[-1]["id"])
        yield [change_of(row) for row in rows]


async def read_page(engine: Engine, org_id: str, at: datetime, key: str = "") -> tuple[list[Record], bool]:
    """Read a page, shielded from cancellation: a canceled read would cost the pool its connection."""
    return await asyncio.shield(asyncio.ensure_future(engine.db.read(event_feed.since, org_id, at, key)))


def change_of(row: Record) -> Change:
    """Build a change; the revision in its key distinguishes two changes of one schedule."""
    key = row["type"], f"{row['id']}:{row.get('revision', '')}"
    return Change(row["type"], row["at"], key, orjson.dumps(row))
