"""Durable tasks: recorded steps, replay, waits that leave the worker."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from rota import LogicError, Retry, Rota, RunContext, TransientError
from rota.core.states import Status
from rota.core.steps import StepFailed
from rota.engine import finishing
from rota.reports import jobs as job_reports
from rota.testing import world
from tests.kinds.tasks.durable import Calls, enqueue, last_run, recorded

FAST = Retry(3, 1)


async def test_a_later_attempt_returns_recorded_results_without_a_call(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    failures = [TransientError("later")]

    @app.task
    async def order(ctx: RunContext, item: str) -> list[Any]:
        first = await ctx.step("reserve", calls.function("reserve"), item)
        second = await ctx.step("charge", calls.function("charge"), item)
        if failures:
            raise failures.pop()
        return [first, second]

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order", item="book")
        await rota.advance(minutes=1)
        assert calls == ["reserve", "charge"]
        run = await last_run(rota, job_id)
        assert (run["status"], run["outcome"], run["attempt"]) == (Status.SUCCESS, ["reserve", "charge"], 2)
        assert await recorded(rota, job_id) == [("reserve", "done"), ("charge", "done")]


async def test_a_sync_task_has_the_same_steps_without_await(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    failures = [TransientError("later")]

    async def doubled(number: int) -> int:
        return 2 * number

    @app.task
    def order(ctx: RunContext) -> list[Any]:
        first = ctx.step("reserve", calls.function("reserve"))
        second = ctx.step("double", doubled, 21)
        ctx.sleep("1d")
        if failures:
            raise failures.pop()
        return [first, second]

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.drain()
        assert (await last_run(rota, job_id))["status"] == Status.PAUSED
        await rota.advance(days=2)
        run = await last_run(rota, job_id)
        assert (run["status"], run["outcome"], calls) == (Status.SUCCESS, ["reserve", 42], ["reserve"])


async def test_a_sleeping_run_leaves_its_worker_and_goes_on_as_the_same_run(clean_url: str) -> None:
    app, calls = Rota(), Calls()

    @app.task
    async def reminder(ctx: RunContext) -> str:
        await ctx.step("before", calls.function("before"))
        await ctx.sleep("3d")
        await ctx.step("after", calls.function("after"))
        return "done"

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "reminder")
        await rota.drain()
        assert not rota.worker.active
        asleep = await last_run(rota, job_id)
        assert (asleep["status"], asleep["reason"], calls) == (Status.PAUSED, "sleep", ["before"])
        await rota.advance(days=2)
        assert calls == ["before"]
        await rota.advance(days=2)
        runs = await rota.runs(job_id=job_id)
        assert [(run["id"], run["status"], run["attempt"]) for run in runs] == [(asleep["id"], Status.SUCCESS, 1)]
        assert runs[0]["finished_at"] - runs[0]["started_at"] == timedelta(days=3)
        assert calls == ["before", "after"]
        assert await recorded(rota, job_id) == [("before", "done"), ("sleep", "done"), ("after", "done")]


async def test_a_step_is_tried_again_by_its_own_policy(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    flaky = calls.function("flaky", ValueError("1"), ValueError("2"))

    @app.task
    async def task(ctx: RunContext) -> object:
        return await ctx.step("flaky", flaky, retry=Retry(2, 60_000))

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.drain()
        run = await last_run(rota, job_id)
        assert (run["status"], run["reason"], len(calls)) == (Status.PAUSED, "retry", 1)
        await rota.advance(minutes=1)
        assert len(calls) == 2
        await rota.advance(minutes=1)
        run = await last_run(rota, job_id)
        assert (run["status"], run["outcome"], run["attempt"]) == (Status.SUCCESS, "flaky", 1)


async def test_the_error_of_a_step_has_the_same_class_in_every_attempt(clean_url: str) -> None:
    app, caught = Rota(), []
    calls = Calls()
    decline = calls.function("decline", ValueError("declined"))

    @app.task
    async def task(ctx: RunContext) -> str:
        try:
            await ctx.step("charge", decline)
        except ValueError as error:
            caught.append(f"{isinstance(error, StepFailed)} {error}")
        await ctx.sleep("1h")
        return "refunded"

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.advance(hours=2)
        assert (await last_run(rota, job_id))["outcome"] == "refunded"
        assert (caught, calls) == (["True declined"] * 2, ["decline"])


async def test_a_failed_step_that_ended_its_attempt_is_called_again_by_the_next(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    flaky = calls.function("flaky", TransientError("busy"))

    @app.task(retry=Retry(2, 60_000))
    async def task(ctx: RunContext) -> object:
        await ctx.step("first", calls.function("first"))
        return await ctx.step("flaky", flaky)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.advance(minutes=2)
        runs = await rota.runs(job_id=job_id)
        assert [run["status"] for run in runs] == [Status.PAUSED, Status.SUCCESS]
        assert runs[0]["error"]["type"] == "TransientError"
        assert calls == ["first", "flaky", "flaky"]


async def test_concurrent_steps_are_replayed_in_any_order(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    failures = [TransientError("later")]

    @app.task
    async def task(ctx: RunContext) -> object:
        results = await asyncio.gather(*(ctx.step(f"part-{n}", calls.function(f"part-{n}")) for n in range(20)))
        if failures:
            raise failures.pop()
        return len(results)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.advance(minutes=1)
        assert (await last_run(rota, job_id))["outcome"] == 20
        assert sorted(calls) == sorted(f"part-{n}" for n in range(20))


async def test_branches_that_wait_beside_steps_all_go_on(clean_url: str) -> None:
    app, calls = Rota(), Calls()

    async def branch(ctx: RunContext, number: int) -> int:
        await ctx.step(f"begin-{number}", calls.function(f"begin-{number}"))
        await ctx.sleep(timedelta(hours=number), name=f"sleep-{number}")
        await ctx.step(f"end-{number}", calls.function(f"end-{number}"))
        return number

    @app.task
    async def task(ctx: RunContext) -> object:
        return await asyncio.gather(*(branch(ctx, number) for number in (1, 2, 3)))

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.advance(hours=4)
        assert (await last_run(rota, job_id))["outcome"] == [1, 2, 3]
        assert sorted(calls) == sorted(f"{part}-{number}" for part in ("begin", "end") for number in (1, 2, 3))


async def test_a_changed_task_fails_with_both_names_and_what_to_do(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    names = ["charge"]

    @app.task
    async def order(ctx: RunContext) -> None:
        await ctx.step(names[0], calls.function(names[0]))
        await ctx.sleep("1h")

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.drain()
        names[0] = "pay"
        await rota.advance(hours=2)
        run = await last_run(rota, job_id)
        assert (run["status"], run["reason"], calls) == (Status.FAILED, "logic", ["charge"])
        assert "step 'pay' where step 'charge' is recorded" in run["error"]["message"]
        assert f"rota run retry {run['id']} --from STEP" in run["error"]["message"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("not_json", "step 'set': its result is not JSON"),
        ("not_a_number", "step 'mean': its result is not JSON: it has a number that is NaN or infinite"),
        ("too_large", "step 'large': its result has"),
        ("twice", "step 'same' is called twice in this run"),
        ("nested", "step 'inner' is called inside step 'outer'"),
        ("past", "must be longer than 0 and at most 366 days"),
        ("far", "must be longer than 0 and at most 366 days"),
        ("wrong", "must be a span such as 30s"),
    ],
)
async def test_misuse_is_a_clear_and_final_error(clean_url: str, task: str, message: str) -> None:
    app = Rota()

    @app.task
    async def not_json(ctx: RunContext) -> None:
        await ctx.step("set", lambda: {1, 2})

    @app.task
    async def not_a_number(ctx: RunContext) -> None:
        await ctx.step("mean", lambda: {"means": [1.5, None, float("nan")]})

    @app.task
    async def too_large(ctx: RunContext) -> None:
        await ctx.step("large", lambda: "x" * 2_000_000)

    @app.task
    async def twice(ctx: RunContext) -> None:
        await ctx.step("same", lambda: 1)
        with contextlib.suppress(LogicError):  # the run fails all the same
            await ctx.step("same", lambda: 2)

    @app.task
    async def nested(ctx: RunContext) -> None:
        async def outer() -> None:
            await ctx.step("inner", lambda: 1)

        await ctx.step("outer", outer)

    @app.task
    async def past(ctx: RunContext) -> None:
        await ctx.sleep(timedelta(seconds=-1))

    @app.task
    async def far(ctx: RunContext) -> None:
        await ctx.sleep(timedelta(days=367))

    @app.task
    async def wrong(ctx: RunContext) -> None:
        await ctx.sleep("soon")

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, task)
        await rota.advance(minutes=1)
        (run,) = await rota.runs(job_id=job_id)
        assert (run["status"], run["reason"]) == (Status.FAILED, "logic")
        assert message in run["error"]["message"]
        assert {name for name, _ in await recorded(rota, job_id)} <= {"same", "outer"}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_step_that_exceeds_its_timeout_is_stopped(clean_url: str, kind: str) -> None:
    app = Rota()

    def spin() -> None:
        while True:
            pass

    @app.task
    async def task(ctx: RunContext) -> str:
        try:
            if kind == "sync":
                await ctx.step("slow", spin, timeout=timedelta(milliseconds=50))
            else:
                await ctx.step("slow", asyncio.sleep, 60, timeout=timedelta(milliseconds=50))
        except TimeoutError as error:
            return str(error)
        return "not stopped"

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.drain()
        assert (await last_run(rota, job_id))["outcome"] == "step 'slow' still running after 0.05 s"
        assert await recorded(rota, job_id) == [("slow", "failed")]


async def test_a_plain_task_and_a_fresh_step_read_no_steps(clean_url: str) -> None:
    from rota.db.crash_points import at_each_statement

    app, calls = Rota(), Calls()

    @app.task
    async def plain(ctx: RunContext) -> None: ...

    @app.task
    async def one(ctx: RunContext) -> None:
        await ctx.step("only", calls.function("only"))

    async with world(app, database_url=clean_url) as rota:
        counts = {}
        for name in ("plain", "one"):
            await enqueue(rota, name)
            texts: list[str] = []
            with at_each_statement(texts.append):
                await rota.drain()
            counts[name] = [text for text in texts if "steps" in text]
        assert counts["plain"] == []
        assert all("INSERT INTO steps" in text or "json_rows" in text for text in counts["one"])
        assert sum("INSERT INTO steps" in text for text in counts["one"]) == 1


async def test_a_canceled_sleeper_is_recorded_as_its_run(clean_url: str) -> None:
    app = Rota()

    @app.task
    async def sleeper(ctx: RunContext) -> None:
        await ctx.sleep("1d")

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "sleeper")
        await rota.drain()
        asleep = await last_run(rota, job_id)
        await rota.engine.cancel(rota.org_id, asleep["id"])
        (run,) = await rota.runs(job_id=job_id)
        assert (run["id"], run["status"], run["started_at"]) == (asleep["id"], Status.CANCELED, asleep["started_at"])


async def test_a_worker_that_lost_its_lease_records_no_step(clean_url: str) -> None:
    app, calls = Rota(), Calls()
    taken = asyncio.Event()

    @app.task
    async def task(ctx: RunContext) -> None:
        await ctx.step("first", calls.function("first"))
        if not taken.is_set():
            await ctx.engine.db.tx(finishing.rescue, ctx.worker, ctx.engine.clock.now())
            taken.set()
        await ctx.step("second", calls.function("second"))

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.drain()
        assert calls == ["first", "second", "second"]
        runs = await rota.runs(job_id=job_id)
        assert [run["status"] for run in runs] == [Status.LOST, Status.SUCCESS]


async def test_a_job_shows_what_it_waits_for(clean_url: str) -> None:
    app = Rota()

    @app.task
    async def sleeper(ctx: RunContext) -> None:
        await ctx.sleep("1d")

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "sleeper")
        await rota.drain()
        job = await rota.engine.db.read(job_reports.job, rota.org_id, job_id)
        assert job["status"] == Status.PAUSED
