"""Loops that fail are started again."""

import asyncio
from typing import Any

import pytest

from rota.engine import supervision
from rota.engine.supervision import start_supervised, supervise


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which takes any time."""
    made: list[float] = []

    async def real_sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(supervision, "real_sleep", real_sleep)
    return made


async def test_a_loop_that_fails_is_started_again_with_backoff(delays: list[float]) -> None:
    async def loop() -> None:
        if len(delays) < 7:
            raise RuntimeError("bug")

    await supervise("test", loop)
    assert delays == [1, 2, 4, 8, 16, 30, 30]


async def test_a_log_that_cannot_be_written_does_not_end_a_loop(
    delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exception(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervision.log, "exception", exception, raising=False)

    async def loop() -> None:
        if not delays:
            raise RuntimeError("bug")

    await supervise("test", loop)
    assert delays == [1]


async def test_a_supervised_loop_can_be_cancelled() -> None:
    task = start_supervised("test", asyncio.Event().wait)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
