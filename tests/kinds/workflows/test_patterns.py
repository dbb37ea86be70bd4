"""The five patterns of the examples on the movable clock. Each run of a consumer is one call of `prepare`."""

from pathlib import Path
from typing import Any

import pytest

from rota.app.application import Rota
from rota.app.programs import load_app
from rota.testing import MONDAY, World, world

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "workflows.py")


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of the examples with one of its workflows."""
    monkeypatch.chdir(tmp_path)

    def load(name: str) -> Rota:
        app = load_app(EXAMPLE)
        app.workflows = {name: app.workflows[name]}
        return app

    return load


async def calls(rota: World, name: str) -> int:
    """Return how often the consumer of a workflow ran since its deployment, without the first run."""
    runs = [run for run in await rota.runs(target=name) if run.get("handler_type") == "consumer"]
    assert all(run["status"] == "success" for run in runs)
    return len(runs) - 1


async def took(rota: World, name: str) -> list[int]:
    """How many events each run took, of those that took any."""
    done = [run["outcome"] or {} for run in await rota.runs(target=name)]
    return [outcome["taken"] for outcome in done if outcome.get("taken")]


async def test_one_after_the_other(clean_url: str, only: Any, tmp_path: Path) -> None:
    async with world(only("orders"), database_url=clean_url) as rota:
        await rota.advance(minutes=1)
        for number in range(3):
            await rota.publish("orders", "orders", message_id=str(number), payload={"total": number})
            await rota.drain()
        await rota.advance(hours=10)
        assert await calls(rota, "orders") == 3
        lines = (tmp_path / "orders.csv").read_text().splitlines()
        assert [line.split(",")[:2] for line in lines] == [["0", "0"], ["1", "1"], ["2", "2"]]


async def test_correlation(clean_url: str, only: Any) -> None:
    async with world(only("matching"), database_url=clean_url) as rota:
        await rota.advance(minutes=1)
        await rota.publish("matching", "paid", message_id="7")
        await rota.advance(hours=5)
        assert (await calls(rota, "matching"), await took(rota, "matching")) == (1, [])
        await rota.publish("matching", "packed", message_id="8")
        await rota.advance(hours=5)
        assert (await calls(rota, "matching"), await took(rota, "matching")) == (2, [])
        await rota.publish("matching", "packed", message_id="7")
        await rota.advance(hours=5)
        # the pair, and one more run because 8 still waits
        assert (await calls(rota, "matching"), await took(rota, "matching")) == (4, [2])


async def test_a_time_window(clean_url: str, only: Any) -> None:
    async with world(only("cooling"), database_url=clean_url) as rota:
        await rota.advance(minutes=1)
        await rota.publish("cooling", "signups", message_id="a")
        await rota.advance(minutes=30)
        await rota.publish("cooling", "signups", message_id="b")
        await rota.advance(minutes=29)
        assert (await calls(rota, "cooling"), await took(rota, "cooling")) == (2, [])
        await rota.advance(minutes=1)
        assert (await calls(rota, "cooling"), await took(rota, "cooling")) == (4, [1])  # and one run because b waits
        await rota.advance(minutes=30)
        assert (await calls(rota, "cooling"), await took(rota, "cooling")) == (5, [1, 1])
        await rota.advance(hours=10)
        assert await calls(rota, "cooling") == 5


async def test_a_batch_with_a_timeout(clean_url: str, only: Any) -> None:
    async with world(only("batches"), database_url=clean_url) as rota:
        await rota.advance(minutes=1)
        for number in range(10):
            await rota.publish("batches", "readings", message_id=f"full-{number}")
        await rota.drain()
        assert (await calls(rota, "batches"), await took(rota, "batches")) == (1, [10])
        for number in range(3):
            await rota.publish("batches", "readings", message_id=f"few-{number}")
            await rota.advance(minutes=1)
        assert (await calls(rota, "batches"), await took(rota, "batches")) == (4, [10])
        await rota.advance(minutes=56)
        assert await calls(rota, "batches") == 4
        await rota.advance(minutes=1)
        assert (await calls(rota, "batches"), await took(rota, "batches")) == (5, [10, 3])
        await rota.advance(hours=10)
        assert await calls(rota, "batches") == 5


async def test_a_daily_digest(clean_url: str, only: Any) -> None:
    async with world(only("digest"), database_url=clean_url, start=MONDAY.replace(hour=7)) as rota:
        await rota.advance(minutes=1)
        assert await calls(rota, "digest") == 0
        for number in range(3):
            await rota.publish("digest", "notes", message_id=str(number))
            await rota.advance(minutes=10)
        assert (await calls(rota, "digest"), await took(rota, "digest")) == (3, [])  # each wakes it: not yet
        await rota.advance(hours=2)
        assert (await calls(rota, "digest"), await took(rota, "digest")) == (4, [3])
        await rota.publish("digest", "notes", message_id="late")
        await rota.advance(hours=20)
        assert (await calls(rota, "digest"), await took(rota, "digest")) == (5, [3])
        await rota.advance(hours=4)
        assert (await calls(rota, "digest"), await took(rota, "digest")) == (6, [3, 1])
        await rota.advance(hours=72)
        assert await calls(rota, "digest") == 9  # once a day


async def test_a_feed_is_polled_and_read(clean_url: str, only: Any) -> None:
    async with world(only("feed"), database_url=clean_url) as rota:
        await rota.advance(hours=1)
        assert await calls(rota, "feed") == 14  # one for each run of a producer
        shown = await rota.workflow("feed")
        assert shown["schedule"] == "checks every day at 03:00 (Europe/Oslo) and every 5 minutes"
