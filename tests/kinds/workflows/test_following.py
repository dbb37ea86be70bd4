"""A worker that ends a run starts the next run of its workflow in the same transaction, if nothing prevents it."""

from typing import Any

import pytest
from sqlalchemy import select

from rota import Prepare, Rota, Workflow
from rota.core.errors import Unavailable
from rota.db.tables import jobs, runs
from rota.engine import claiming
from rota.engine.instruments import RUNS
from rota.engine.runner import RunLog
from rota.kinds.workflows import runner
from rota.kinds.workflows.store import single_statements, workflow_runs
from rota.kinds.workflows.store.records import NewEvent
from rota.testing import world
from tests.kinds.workflows.inbox import make_inbox
from tests.kinds.workflows.test_runs import rows, statuses


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each claim took."""
    took: list[int] = []
    by_urgency = claiming.by_urgency

    def counted(columns: Any) -> Any:
        claimed = by_urgency(columns)
        took.append(len(claimed))
        return claimed

    monkeypatch.setattr(claiming, "by_urgency", counted)
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


@pytest.mark.parametrize("logs", [False, True], ids=["one statement", "in a transaction, with log lines"])
async def test_metrics_count_each_run_of_a_backlog_once(
    clean_url: str, monkeypatch: pytest.MonkeyPatch, logs: bool
) -> None:
    if logs:
        monkeypatch.setattr(RunLog, "take", lambda log, last=False: [(log.run_id, log._now(), "log", "x")] * last)
    async with world(taker(), database_url=clean_url, concurrency=2) as rota:
        await rota.drain()
        for number in range(5):
            await rota.publish("take", "in", message_id=str(number))
        await rota.drain()
        recorded = len(await rows(rota, select(runs.c.id)))
        assert rota.engine.metrics.by_labels(RUNS) == {("workflow", "success"): recorded}
        assert recorded >= 5


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


@pytest.mark.parametrize("name", ["commit", "commit_and_begin_next"])
async def test_a_commit_whose_answer_was_lost_still_reports_the_run_it_started(
    clean_url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "commit":
        monkeypatch.setattr(runner, "may_repeat", lambda *_: False)
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        for number in range(3):
            await rota.publish("take", "in", message_id=str(number))
        execute = "tx" if name == "commit" else "statement"
        run_step = getattr(rota.engine.db, execute)
        lost: list[Any] = []

        async def lossy(step: Any, *args: Any, **named: Any) -> Any:
            result = await run_step(step, *args, **named)
            is_commit = getattr(step, "statement", step) in (
                workflow_runs.commit,
                single_statements.COMMIT_AND_BEGIN_NEXT,
            )
            if is_commit and not lost:
                lost.append(result)
                raise Unavailable("the answer was lost")
            return result

        monkeypatch.setattr(rota.engine.db, execute, lossy)
        await rota.drain()
        assert lost[0] is not None  # it had begun the next one
        assert set(await statuses(rota)) == {f"in {number} consumed" for number in range(3)}
        assert {run["status"] for run in await rota.runs()} == {"success"}
        assert await rows(rota, select(jobs)) == []


async def test_an_event_that_is_published_during_the_last_run_of_a_backlog_is_taken(clean_url: str) -> None:
    app, flow, seen = Rota(), Workflow("take", topics=["in"]), list[list[str]]()

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            events = await ctx.peek("in", limit=1)
            seen.append([event.message_id for event in events])
            if seen[-1] in (["1"], ["2"]):
                await rota.publish("take", "in", message_id=f"after {seen[-1][0]}")
            return Prepare(reservations={"in": [event.id for event in events]})

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.publish_many("take", [NewEvent("in", str(number), number) for number in range(3)])
        await rota.drain()
        assert seen == [[], ["0"], ["1"], ["2"], ["after 1"], ["after 2"]]
        assert await rows(rota, select(jobs)) == []


async def test_an_event_that_is_skipped_after_it_was_peeked_is_not_taken(clean_url: str) -> None:
    app, flow, seen = Rota(), Workflow("take", topics=["in"]), list[list[str]]()

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            events = await ctx.peek("in", limit=1)
            seen.append([event.message_id for event in events])
            if seen[-1] == ["1"]:
                await rota.workflows.skip("take", events[0].id)
            return Prepare(reservations={"in": [event.id for event in events]})

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.publish_many("take", [NewEvent("in", str(number), number) for number in range(3)])
        await rota.drain()
        assert set(await statuses(rota)) == {"in 0 consumed", "in 1 skipped", "in 2 consumed"}
        assert seen == [[], ["0"], ["1"], ["2"]]
        assert {run["status"] for run in await rota.runs()} == {"success"}
