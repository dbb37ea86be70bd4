"""One reader of changes per org, whatever the number of streams that follow it.

A feed reads while streams follow it and hands each new change to all of them. A stream that does not keep up is ended:
its client comes back with `Last-Event-ID` and misses nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple

import orjson
import structlog

from rota.core.clock import real_sleep
from rota.core.errors import Unavailable
from rota.engine import event_feed
from rota.engine.commands import Engine

POLL = 0.5  # seconds between reads without a wake-up
BREATH = 0.1  # seconds between reads at the least
BATCHES_BEHIND = 100  # batches that a stream may be behind before it is ended

Key = tuple[str, str]

log = structlog.get_logger("rota.api")


class Change(NamedTuple):
    type: str
    at: datetime
    key: Key
    data: bytes  # as JSON


class Follower:
    """A stream's place in a feed: the batches it has yet to send."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[list[Change]] = asyncio.Queue()
        self.ended = False

    def add(self, batch: list[Change]) -> None:
        if self.batches.qsize() >= BATCHES_BEHIND:
            self.ended = True
        elif not self.ended:
            self.batches.put_nowait(batch)

    async def next(self) -> list[Change] | None:
        """The next batch, an empty one after half a second without changes, or None if the feed ended for this
        stream."""
        batch: list[Change] = []
        if not self.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    batch = await self.batches.get()
        return batch or (None if self.ended else [])


class Feed:
    """The changes of one org, from the first follower to the last."""

    def __init__(self, engine: Engine, org_id: str) -> None:
        self.engine, self.org_id = engine, org_id
        self.followers: set[Follower] = set()
        self.primed = asyncio.Event()  # what was there before is known
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        try:
            await self.read_on()
        except Unavailable:
            pass  # the streams end, and their clients come back
        except Exception:
            log.exception("reading changes failed", org_id=self.org_id)
        finally:
            self.primed.set()
            for follower in self.followers:
                follower.ended = True

    async def read_on(self) -> None:
        clock, wake = self.engine.clock, self.engine.wake
        since = clock.now() - event_feed.OVERLAP
        known = {change.key: change.at async for page in pages(self.engine, self.org_id, since) for change in page}
        self.primed.set()
        while True:
            changed, started_at, fresh_count = wake.changed, clock.now(), 0  # a wake-up during the read is not missed
            async for page in pages(self.engine, self.org_id, since):
                fresh = [change for change in page if change.key not in known]
                known.update((change.key, change.at) for change in fresh)
                fresh_count += len(fresh)
                for follower in self.followers if fresh else ():
                    follower.add(fresh)
            since = max(since, started_at - event_feed.OVERLAP)
            known = {key: at for key, at in known.items() if at >= since}
            await real_sleep(BREATH)
            if not fresh_count:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await changed.wait()


class Feeds:
    """The feeds of a server, by org."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.by_org: dict[str, Feed] = {}

    @contextlib.asynccontextmanager
    async def follow(self, org_id: str) -> AsyncIterator[Follower]:
        """A place in the org's feed. What is committed from now on comes in its batches."""
        feed = self.by_org.get(org_id)
        if feed is None or feed.task.done():
            feed = self.by_org[org_id] = Feed(self.engine, org_id)
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
    """What changed in an org since a time, oldest first."""
    rows, more = await whole(engine, org_id, since)
    yield [change_of(row) for row in rows]
    while more:
        rows, more = await whole(engine, org_id, rows[-1]["at"], rows[-1]["id"])
        yield [change_of(row) for row in rows]


async def whole(engine: Engine, org_id: str, *behind: Any) -> tuple[list[dict[str, Any]], bool]:
    """A read that is not torn when its reader is cancelled: a torn one costs the pool its connection."""
    return await asyncio.shield(asyncio.ensure_future(engine.db.read(event_feed.since, org_id, *behind)))


def change_of(row: dict[str, Any]) -> Change:
    """A thing may change again: a schedule's changes differ by their revision."""
    key = row["type"], f"{row['id']}:{row.get('revision', '')}"
    return Change(row["type"], row["at"], key, orjson.dumps(row))
