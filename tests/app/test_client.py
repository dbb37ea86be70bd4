"""The client for programs: against the real API, and against servers that fail."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rota import client
from rota.client import AsyncClient, Client
from tests.app.harness import Api

Answer = httpx.Response | type[httpx.TransportError]
CREATE = {"name": "nightly", "target": "hello", "cron_expression": "0 12 * * *"}


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays between tries; the client does not wait for them."""
    delays: list[float] = []
    monkeypatch.setattr(client, "blocking_sleep", delays.append)
    return delays


def answering(*answers: Answer) -> tuple[Client, list[httpx.Request]]:
    """A client whose server gives these answers in turn, and what it was asked."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = answers[len(seen) - 1]
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("broken")

    return Client("http://rota", "key", transport=httpx.MockTransport(handle)), seen


async def test_a_program_makes_runs_and_reads(api: Api) -> None:
    transport = httpx.ASGITransport(api.app)
    async with AsyncClient("http://rota", api.key, transport=transport) as rota:
        made = await rota.create_schedule(**CREATE)
        assert (await rota.schedule("nightly"))["id"] == made["id"]
        assert (await rota.edit_schedule("nightly", description="x"))["revision"] == 2
        assert (await rota.pause_schedule("nightly", "why"))["paused"]
        assert not (await rota.resume_schedule("nightly"))["paused"]
        job_id = await rota.run_schedule("nightly", input={"name": "Ada"})
        assert (await rota.job(job_id))["status"] == "pending"
        with pytest.raises(client.TimedOut):
            await rota.wait(job_id, seconds=0)
        (begun,) = await api.start()
        await api.end([begun])
        assert (await rota.wait(job_id))["status"] == "success"
        assert (await rota.run(begun.run_id))["attempt"] == 1
        assert [line async for line in rota.logs(begun.run_id)] == []
        await rota.cancel(await rota.retry(begun.run_id))
        for number in range(5):
            await rota.create_schedule(**{**CREATE, "name": f"n{number}"})
        assert [schedule["name"] async for schedule in rota.schedules(limit=2)] == [
            "n0",
            "n1",
            "n2",
            "n3",
            "n4",
            "nightly",
        ]
        await rota.delete_schedule("nightly")
        with pytest.raises(client.NotFound, match="nightly") as error:
            await rota.schedule("nightly")
        assert error.value.code == "not_found"
        with pytest.raises(client.BadRequest) as wrong:
            await rota.create_schedule(name="x")
        assert {error["field"] for error in wrong.value.problem["errors"]} == {"target", "schedule_type"}


def test_safe_calls_are_tried_again(naps: list[float]) -> None:
    busy = httpx.Response(503, headers={"retry-after": "2"})
    rota, seen = answering(httpx.ConnectError, busy, httpx.Response(200, json={"status": "success"}))
    assert rota.job("x")["status"] == "success"
    assert len(seen) == 3
    assert naps[1] == 2
    rota, seen = answering(httpx.ReadTimeout, httpx.Response(202, json={"job_id": "j"}))
    assert rota.run_schedule("nightly") == "j"
    assert len({request.headers["idempotency-key"] for request in seen}) == 1  # the same promise, not a second one


@pytest.mark.parametrize(
    ("call", "answers", "error"),
    [
        (lambda rota: rota.job("x"), [httpx.ConnectError] * 4, client.Unreachable),
        (lambda rota: rota.job("x"), [httpx.ReadTimeout] * 4, client.TimedOut),
        (lambda rota: rota.job("x"), [httpx.Response(500)], client.ServerError),
        (lambda rota: rota.delete_schedule("x"), [httpx.ConnectError], client.Unreachable),
        (lambda rota: rota.job("x"), [httpx.Response(429, headers={"retry-after": "3600"})], client.TooManyRequests),
        (lambda rota: rota.job("x"), [httpx.Response(404, text="<html>")], client.NotFound),
    ],
)
def test_what_does_not_help_is_not_repeated(
    naps: list[float], call: Callable[[Client], Any], answers: list[Answer], error: type[Exception]
) -> None:
    rota, seen = answering(*answers)
    with pytest.raises(error):
        call(rota)
    assert len(seen) == len(answers)
