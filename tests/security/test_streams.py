"""Event streams: they end with the right to read them, and no number of them is dear."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from rota.app.api import feeds, streams
from rota.db.connection import Database, open_database
from rota.db.tables import api_keys
from rota.reports import event_feed
from tests.app.live_api import LiveApi
from tests.app.test_streams import until

SOON = 30  # seconds that anything may take


@pytest.fixture
def live(clean_url: str) -> Iterator[LiveApi]:
    with LiveApi(clean_url) as live:
        yield live


@pytest.fixture
async def db(live: LiveApi) -> AsyncIterator[Database]:
    db = open_database(live.database_url)
    yield db
    await db.close()


@pytest.fixture
async def client(live: LiveApi) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"{live.url}/api/v1", headers=live.headers, timeout=SOON, limits=limits
    ) as client:
        yield client


async def make_key(client: httpx.AsyncClient, **fields: Any) -> tuple[str, dict[str, str]]:
    made = (await client.post("/api-keys", json={"name": "reader", "role": "viewer", **fields})).json()
    return made["id"], {"authorization": f"Bearer {made['key']}"}


async def keep_busy(client: httpx.AsyncClient, stop: asyncio.Event) -> None:
    """Change something all the time, so that every stream of the org has traffic."""
    number = 0
    while not stop.is_set():
        number += 1
        await client.patch("/queues/busy", json={"max_running": number % 9 + 1})
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("lost", ["revoked", "scope"])
async def test_a_busy_stream_ends_when_its_key_may_no_longer_read_it(
    client: httpx.AsyncClient, db: Database, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(streams, "AUTHORIZATION_SECONDS", 0.5)
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 1000.0)
    key_id, headers = await make_key(client)
    stop = asyncio.Event()
    busy = asyncio.ensure_future(keep_busy(client, stop))
    try:
        async with asyncio.timeout(SOON), client.stream("GET", "/events", headers=headers) as stream:
            lines, events = stream.aiter_lines(), 0
            async for line in lines:
                events += line.startswith("event: queue.changed")
                if events == 3:
                    break
            values = {"revoked_at": datetime.now(UTC)} if lost == "revoked" else {"scopes": ["tasks"]}
            await db.tx(lambda tx: tx.execute(api_keys.update().where(api_keys.c.id == key_id).values(values)))
            async for _ in lines:
                pass  # the server ends it, though there is always something to send
    finally:
        stop.set()
        await busy


async def test_many_streams_of_an_org_have_one_reader(
    live: LiveApi, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    read = event_feed.since

    def counted(*args: Any, **kwargs: Any) -> Any:
        reads["changes"] += 1
        return read(*args, **kwargs)

    monkeypatch.setattr(event_feed, "since", counted)
    keys = [(await make_key(client, name=f"reader {number}"))[1] for number in range(5)]
    async with asyncio.timeout(SOON), AsyncExitStack() as stack:
        opened = []
        for headers in keys * 20:
            stream = await stack.enter_async_context(client.stream("GET", "/events", headers=headers))
            lines = stream.aiter_lines()
            while not (await anext(lines)).startswith("event: open"):
                pass
            opened.append(lines)
        assert live.app.state.streams == 100
        reads.clear()
        started = asyncio.get_running_loop().time()
        await client.patch("/queues/slow", json={"max_running": 5})
        for lines in opened:
            while not (await anext(lines)).startswith("event: queue.changed"):
                pass
        seconds = asyncio.get_running_loop().time() - started
        assert 1 <= reads["changes"] <= 2 + seconds / feeds.MIN_READ_INTERVAL_SECONDS
    await until(lambda: not live.app.state.streams and not live.app.state.feeds.by_org)


async def test_a_key_has_at_most_twenty_streams(live: LiveApi, client: httpx.AsyncClient) -> None:
    _, headers = await make_key(client)
    async with asyncio.timeout(SOON), AsyncExitStack() as stack:
        for _ in range(streams.STREAMS_PER_KEY):
            stream = await stack.enter_async_context(client.stream("GET", "/events", headers=headers))
            assert stream.status_code == 200
        refused = await client.get("/events", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        other = await stack.enter_async_context(client.stream("GET", "/events"))  # by another key
        assert other.status_code == 200
    await until(lambda: not live.app.state.open_streams)
    async with client.stream("GET", "/events", headers=headers) as stream:
        assert stream.status_code == 200


async def test_a_follower_that_does_not_read_is_ended_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "IDLE_SECONDS", 0.1)
    slow, quick = feeds.Follower(), feeds.Follower()
    change = feeds.Change("run.ended", datetime.now(UTC), ("run.ended", "1:"), b"{}")
    for _ in range(feeds.MAX_BATCHES_BEHIND + 1):
        slow.add([change])
        quick.add([change])
        assert await quick.next() == [change]
    assert slow.batches.qsize() == feeds.MAX_BATCHES_BEHIND
    for _ in range(feeds.MAX_BATCHES_BEHIND):
        slow.batches.get_nowait()
    assert await slow.next() is None
    assert await quick.next() == []
