"""A worker that ends a run starts the next run of its workflow in the same transaction, if nothing prevents it."""

from typing import Any

import pytest
from sqlalchemy import select

from rota import Prepare, Rota, Workflow
from rota.core.errors import Unavailable
from rota.db.tables import jobs
from rota.engine import claiming
from rota.testing import world
from tests.kinds.workflows.inbox import make_inbox
from tests.kinds.workflows.test_runs import rows, statuses


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each claim took."""
    took: list[int] = []
    lease_from = claiming.lease_from

    def counted(*args: Any, **named: Any) -> Any:
        claimed = lease_from(*args, **named)
        took.append(len(claimed))
        return claimed

    monkeypatch.setattr(claiming, "lease_from", counted)
    return took


def taker() -> Rota:
    app, flow = Rota(), Workflow("take", topics=["in"])

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare(reservations={"in": [event.id for event in await ctx.peek("in", limit=1)]})

    app.workflow(flow)
    return app


@pytest.mark.parametrize(("concurrency", "limit", "claimed"), [(2, None, 1), (1, None, 5), (2, 5, 5)])
async def test_many_events_are_taken_with_one_claim_unless_others_wait_or_a_limit_has_a_say(
    clean_url: str, monkeypatch: pytest.MonkeyPatch, concurrency: int, limit: int | None, claimed: int
) -> None:
    async with world(taker(), database_url=clean_url, concurrency=concurrency) as rota:
        await rota.drain()
        if limit is not None:
            await rota.engine.set_queue(rota.org_id, "default", max_running=limit, paused=False)
        for number in range(5):
            await rota.publish("take", "in", message_id=str(number))
        took = counting(monkeypatch)
        await rota.drain()
        assert set(await statuses(rota)) == {f"in {number} consumed" for number in range(5)}
        assert sum(took) == claimed
        assert await rows(rota, select(jobs)) == []


async def test_a_pause_of_the_queue_or_of_the_workflow_ends_it(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()

        async def stop() -> None:
            await rota.engine.set_queue(rota.org_id, "default", max_running=None, paused=True)

        inbox.during = lambda step: stop() if step == "prepare" else None
        for name in ("a", "b"):
            await rota.publish("inbox", "mail", message_id=name, payload=name)
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        inbox.during = lambda step: rota.workflows.pause("inbox", "look") if step == "prepare" else None
        await rota.engine.set_queue(rota.org_id, "default", max_running=None, paused=False)
        await rota.drain()
        assert inbox.sheets.rows == ["a", "b"]
        assert inbox.notified == []
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.notified == ["a", "b"]


async def test_a_commit_whose_answer_was_lost_still_reports_the_run_it_started(
    clean_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        for number in range(3):
            await rota.publish("take", "in", message_id=str(number))
        tx = rota.engine.db.tx
        lost: list[Any] = []

        async def lossy(step: Any, *args: Any, **named: Any) -> Any:
            result = await tx(step, *args, **named)
            if step.__name__ == "commit" and not lost:
                lost.append(result)
                raise Unavailable("the answer was lost")
            return result

        monkeypatch.setattr(rota.engine.db, "tx", lossy)
        await rota.drain()
        assert lost[0] is not None  # it had begun the next one
        assert set(await statuses(rota)) == {f"in {number} consumed" for number in range(3)}
        assert {run["status"] for run in await rota.runs()} == {"success"}
        assert await rows(rota, select(jobs)) == []
