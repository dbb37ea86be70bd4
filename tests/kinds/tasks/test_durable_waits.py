"""Durable tasks that wait for signals, approvals and children, and effects with an unknown outcome."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rota import Applied, NotApplied, Prepare, Rota, RunContext, Unsure, Workflow, every
from rota.core.errors import Conflict, Invalid, NotFound, Refused
from rota.core.states import Status
from rota.core.steps import ChildFailed
from rota.db.tables import jobs, signals
from rota.engine import children
from rota.engine import signals as signal_store
from rota.engine.decisions import EffectResolution
from rota.engine.maintenance import Maintenance
from rota.engine.records import StepRow
from rota.testing import World, world
from tests.kinds.tasks.durable import Calls, enqueue, last_run, recorded
from tests.kinds.tasks.harness import TaskHarness


def waiter(app: Rota) -> None:
    @app.task
    async def invoice(ctx: RunContext, number: str) -> object:
        try:
            return await ctx.wait_for("invoice.paid", key=number, timeout="1h")
        except TimeoutError:
            return "timed out"


async def send(rota: World, number: str, payload: object = "paid", signal_id: str | None = None) -> bool:
    sent = await rota.engine.send_signal(rota.org_id, "invoice.paid", key=number, payload=payload, signal_id=signal_id)
    return sent.delivered


async def test_a_signal_completes_the_wait_and_the_run_goes_on(clean_url: str) -> None:
    app = Rota()
    waiter(app)
    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "invoice", number="7")
        await rota.drain()
        waiting = await last_run(rota, job_id)
        assert (waiting["status"], waiting["reason"]) == (Status.PAUSED, "signal")
        assert not await send(rota, "8")
        assert await send(rota, "7", {"amount": 3})
        await rota.drain()
        run = await last_run(rota, job_id)
        assert (run["id"], run["status"], run["outcome"]) == (waiting["id"], Status.SUCCESS, {"amount": 3})


async def test_a_signal_that_comes_first_is_kept(clean_url: str) -> None:
    app = Rota()
    waiter(app)
    async with world(app, database_url=clean_url) as rota:
        assert not await send(rota, "7", 1)
        assert not await send(rota, "7", 2)
        first, second = [await enqueue(rota, "invoice", number="7") for _ in range(2)]
        await rota.drain()
        outcomes = {(await last_run(rota, job_id))["outcome"] for job_id in (first, second)}
        assert outcomes == {1, 2}


async def test_a_signal_is_idempotent_by_its_id(clean_url: str) -> None:
    app = Rota()
    waiter(app)
    async with world(app, database_url=clean_url) as rota:
        ids = [await enqueue(rota, "invoice", number="7") for _ in range(2)]
        await rota.drain()
        assert await send(rota, "7", 1, "payment-1")
        assert await send(rota, "7", 1, "payment-1")
        with pytest.raises(Conflict, match="was sent before"):
            await send(rota, "7", 2, "payment-1")
        await rota.drain()
        statuses = [(await last_run(rota, job_id))["status"] for job_id in ids]
        assert sorted(statuses) == [Status.PAUSED, Status.SUCCESS]


async def test_a_wait_times_out(clean_url: str) -> None:
    app = Rota()
    waiter(app)
    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "invoice", number="7")
        await rota.advance(hours=2)
        assert (await last_run(rota, job_id))["outcome"] == "timed out"
        assert not await send(rota, "7")  # kept for another wait
        (kept,) = await rota.engine.db.read(lambda tx: list(tx.execute(select(signals))))
        assert kept.consumed_at is None


async def test_timeout_and_signal_in_one_instant_have_one_outcome(clean_url: str) -> None:
    app = Rota()
    waiter(app)
    async with world(app, database_url=clean_url) as rota:
        ids = [await enqueue(rota, "invoice", number=str(number)) for number in range(20)]
        await rota.drain()
        rota.clock.set(rota.clock.now() + timedelta(hours=1))
        delivered, _ = await asyncio.gather(
            asyncio.gather(*(send(rota, str(number)) for number in range(20))), rota.drain()
        )
        await rota.drain()
        outcomes = [(await last_run(rota, job_id))["outcome"] for job_id in ids]
        assert outcomes == ["paid" if each else "timed out" for each in delivered]


async def test_a_signal_between_registration_and_suspension_is_not_lost(
    clean_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Rota()
    registered, begun = asyncio.Event(), asyncio.Event()

    @app.task
    async def task(ctx: RunContext) -> object:
        async def other() -> None:
            await ctx.step("other", slow)

        async def slow() -> None:
            await registered.wait()
            await send(rota, "7")
            begun.set()

        result, _ = await asyncio.gather(ctx.wait_for("invoice.paid", key="7"), other())
        return result

    def register(*args: Any) -> StepRow:
        row = registering(*args)
        loop.call_soon_threadsafe(registered.set)
        return row

    registering, loop = signal_store.register, asyncio.get_running_loop()
    monkeypatch.setattr(signal_store, "register", register)
    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "task")
        await rota.drain()
        assert begun.is_set()
        assert (await last_run(rota, job_id))["outcome"] == "paid"


async def test_a_signal_with_wrong_fields_is_not_stored(clean_url: str) -> None:
    async with world(Rota(), database_url=clean_url) as rota:
        wrong: list[dict[str, Any]] = [
            {"topic": ""}, {"topic": "x" * 201}, {"topic": "t", "key": "\n"}, {"topic": "t", "payload": {1, 2}},
            {"topic": "t", "payload": "x" * 2_000_000}, {"topic": "t", "signal_id": 7},
        ]  # fmt: skip
        for fields in wrong:
            with pytest.raises(Invalid):
                await rota.engine.send_signal(rota.org_id, **fields)
        assert await rota.engine.db.read(lambda tx: list(tx.execute(select(signals)))) == []


def approver(app: Rota) -> None:
    @app.task
    def pay(ctx: RunContext) -> object:
        decision = ctx.approval("finance", title="Pay 3 €", timeout="1d")
        return [decision.approved, decision.by, decision.comment]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_person_decides_an_approval(clean_url: str, approved: bool) -> None:
    app = Rota()
    approver(app)
    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "pay")
        await rota.drain()
        run = await last_run(rota, job_id)
        assert (run["status"], run["reason"]) == (Status.PAUSED, "approval")
        decide = rota.engine.decide_approval
        with pytest.raises(Refused, match="approve:finance"):
            await decide(rota.org_id, run["id"], approved=True, by="eve", may=lambda who: False)
        with pytest.raises(NotFound):
            await decide("another org", run["id"], approved=True, by="eve", may=lambda who: True)
        by_finance: Any = {"approved": approved, "by": "ada", "comment": "ok", "may": lambda who: who == "finance"}
        await decide(rota.org_id, run["id"], **by_finance)
        with pytest.raises((Conflict, NotFound)):
            await decide(rota.org_id, run["id"], **by_finance)
        await rota.drain()
        assert (await last_run(rota, job_id))["outcome"] == [approved, "ada", "ok"]


async def test_an_approval_times_out(clean_url: str) -> None:
    app = Rota()
    approver(app)
    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "pay")
        await rota.advance(days=2)
        (run,) = await rota.runs(job_id=job_id)
        assert (run["status"], run["reason"]) == (Status.FAILED, "timeout")
        assert run["error"]["message"] == "no decision of 'finance' came within 1d"


# effects


@pytest.mark.parametrize("answer", [Applied("found"), NotApplied()])
async def test_an_effect_without_an_answer_is_reconciled(clean_url: str, answer: object) -> None:
    app, calls = Rota(), Calls()
    keys: list[str] = []
    pay = calls.function("pay", TimeoutError("no answer"))

    def charge(amount: int, idempotency_key: str) -> object:
        keys.append(idempotency_key)
        return pay()

    def find(idempotency_key: str, params: dict[str, Any]) -> object:
        assert (idempotency_key, params) == (keys[0], {"amount": 3})
        return answer

    @app.task
    async def order(ctx: RunContext) -> object:
        return await ctx.effect("pay", charge, 3, reconcile=find)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.advance(minutes=5)
        run = await last_run(rota, job_id)
        expected = ("found", 1) if isinstance(answer, Applied) else ("pay", 2)
        assert (run["outcome"], len(calls)) == expected
        assert set(keys) == {f"{job_id}:pay"}


@pytest.mark.parametrize("resolution", list(EffectResolution))
async def test_a_person_resolves_an_effect_with_an_unknown_outcome(
    clean_url: str, resolution: EffectResolution
) -> None:
    app, calls = Rota(), Calls()
    pay = calls.function("pay", TimeoutError("no answer"))

    @app.task
    async def order(ctx: RunContext) -> object:
        return await ctx.effect("pay", pay)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.advance(hours=24)
        run = await last_run(rota, job_id)
        assert (await rota.runs(job_id=job_id))[0]["reason"] == "reconciliation"
        assert len(calls) == 1
        first = (await rota.runs(job_id=job_id))[0]
        await rota.engine.resolve_effect(rota.org_id, first["id"], resolution, by="ada", result="by hand")
        await rota.drain()
        run = await last_run(rota, job_id)
        expected: dict[EffectResolution, tuple[object, int]] = {
            EffectResolution.APPLIED: ("by hand", 1),
            EffectResolution.NOT_APPLIED: ("pay", 2),
            EffectResolution.SKIP: (None, 1),
        }
        assert (run["status"], (run["outcome"], len(calls))) == (Status.SUCCESS, expected[resolution])


@pytest.mark.parametrize("unusable", [{1, 2}, float("inf"), "x" * 2_000_000], ids=["set", "infinite", "large"])
@pytest.mark.parametrize("reconciled", [True, False])
async def test_the_result_of_an_effect_that_cannot_be_recorded_is_not_lost(
    clean_url: str, unusable: object, reconciled: bool
) -> None:
    app, calls = Rota(), Calls()
    pay = calls.function("pay", result=unusable)

    @app.task
    async def order(ctx: RunContext) -> object:
        return await ctx.effect("pay", pay, reconcile=(lambda key, params: Applied("asked")) if reconciled else None)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.advance(minutes=5)
        if not reconciled:
            run = (await rota.runs(job_id=job_id))[0]  # the last one is that of the job, which waits
            assert (run["status"], run["reason"]) == (Status.PAUSED, "reconciliation")
            assert "the result of effect 'pay' " in run["error"]["message"]
            await rota.engine.resolve_effect(rota.org_id, job_id, EffectResolution.APPLIED, by="ada", result="by hand")
            await rota.drain()
        run = await last_run(rota, job_id)
        assert (run["status"], run["outcome"]) == (Status.SUCCESS, "asked" if reconciled else "by hand")
        assert len(calls) == 1


async def test_the_result_of_an_effect_is_the_same_in_every_attempt(clean_url: str) -> None:
    app, seen = Rota(), []

    @app.task
    async def order(ctx: RunContext) -> None:
        seen.append(await ctx.effect("pay", lambda: (1, 2)))
        await ctx.sleep("1h")

    async with world(app, database_url=clean_url) as rota:
        await enqueue(rota, "order")
        await rota.advance(hours=2)
        assert seen == [[1, 2], [1, 2]]


async def test_reconciling_is_repeated_with_backoff_until_a_person_must_decide(clean_url: str) -> None:
    app, asked = Rota(), []

    def find(key: str, params: object) -> Unsure:
        asked.append(key)
        return Unsure()

    @app.task
    async def order(ctx: RunContext) -> object:
        return await ctx.effect("pay", Calls().function("pay", ConnectionError("lost")), reconcile=find)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.advance(hours=24)
        assert len(asked) == 6
        assert await recorded(rota, job_id) == [("pay", "indeterminate")]


async def test_an_effect_that_surely_failed_raises_its_error(clean_url: str) -> None:
    from rota import LogicError

    app = Rota()

    @app.task
    async def order(ctx: RunContext) -> object:
        try:
            await ctx.effect("pay", Calls().function("pay", LogicError("no such card")))
        except LogicError as error:
            return str(error)
        return "paid"

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "order")
        await rota.drain()
        assert (await last_run(rota, job_id))["outcome"] == "no such card"


# children


def family(app: Rota) -> None:
    @app.task
    def double(number: int) -> int:
        if number < 0:
            raise ValueError(f"{number} is negative")
        return 2 * number


async def test_a_task_calls_another_and_gets_its_result(clean_url: str) -> None:
    app = Rota()
    family(app)

    @app.task
    async def parent(ctx: RunContext) -> object:
        first = await ctx.call("double", number=2)
        try:
            await ctx.call("double", number=-1)
        except ChildFailed as error:
            return [first, str(error), error.type]
        return "no error"

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "parent")
        await rota.drain()
        run = await last_run(rota, job_id)
        assert run["outcome"] == [4, "-1 is negative", "ValueError"]
        kids = [each for each in await rota.runs() if each["job_id"] != job_id]
        assert [each["trigger"] for each in kids] == [f"job:{job_id}"] * 2


async def test_fan_out_in_async_and_sync_tasks(clean_url: str) -> None:
    app = Rota()
    family(app)

    @app.task
    async def spawns(ctx: RunContext) -> object:
        handles = [ctx.spawn("double", number=number) for number in range(10)]
        return [await handle.result() for handle in handles]

    @app.task
    def blocks(ctx: RunContext) -> object:
        handles = [ctx.spawn("double", number=number) for number in range(10)]
        return [handle.result() for handle in handles]

    @app.task
    async def maps(ctx: RunContext) -> object:
        return await ctx.map("double", [{"number": number} for number in range(10)], at_most=3)

    @app.task
    def maps_blocking(ctx: RunContext) -> object:
        return ctx.map("double", [{"number": number} for number in range(10)], at_most=3)

    async with world(app, database_url=clean_url) as rota:
        for task in ("spawns", "blocks", "maps", "maps_blocking"):
            job_id = await enqueue(rota, task)
            await rota.drain()
            run = await last_run(rota, job_id)
            assert (run["status"], run["outcome"]) == (Status.SUCCESS, [2 * number for number in range(10)]), task
            kids = {each["job_id"] for each in await rota.runs() if each["trigger"] == f"job:{job_id}"}
            assert len(kids) == 10


async def test_cancel_goes_down_the_tree(clean_url: str) -> None:
    app = Rota()

    @app.task
    async def leaf(ctx: RunContext) -> None:
        await ctx.sleep("1d")

    @app.task
    async def middle(ctx: RunContext) -> None:
        await ctx.call("leaf")

    @app.task
    async def root(ctx: RunContext) -> None:
        await ctx.call("middle")

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "root")
        await rota.drain()
        await rota.engine.cancel(rota.org_id, job_id)
        await rota.drain()
        assert {run["status"] for run in await rota.runs()} == {Status.CANCELED}
        assert len(await rota.runs()) == 3


async def test_maintenance_delivers_the_end_of_a_child_that_a_dead_process_did_not(clean_url: str) -> None:
    app = Rota()
    family(app)

    @app.task
    async def parent(ctx: RunContext) -> object:
        return await ctx.call("double", number=2)

    async with world(app, database_url=clean_url) as rota:
        job_id = await enqueue(rota, "parent")
        await rota.worker.prefetch.claim()
        await rota.worker.cancellation.until_idle(10)
        await rota.worker.completer.flush()
        unfollowed = jobs.update().where(jobs.c.parent_id == job_id).values(followed=False)
        await rota.engine.db.tx(lambda tx: tx.execute(unfollowed).close())
        await rota.drain()
        assert (await last_run(rota, job_id))["status"] == Status.PAUSED
        assert len(await rota.engine.db.read(children.undelivered)) == 1
        await Maintenance(rota.engine, rota.worker.id).reconcile()
        await rota.drain()
        assert (await last_run(rota, job_id))["outcome"] == 4


async def test_a_run_in_a_process_of_its_own_waits_without_that_process(isolated_harness: TaskHarness) -> None:
    harness = isolated_harness
    run = await harness.run("waits")
    assert (run["status"], run["reason"]) == (Status.PAUSED, "signal")
    await harness.engine.send_signal(harness.org_id, "go", payload="on")
    await harness.work()
    ended = await harness.last_run(run["job_id"])
    first, second, payload = ended["outcome"]
    assert (ended["id"], ended["status"], payload) == (run["id"], Status.SUCCESS, "on")
    assert first != second  # the step was called by the first process only


async def test_a_map_is_replayed_when_its_last_child_has_ended_or_a_place_is_free(clean_url: str) -> None:
    app, replays = Rota(), Counter[int]()

    @app.task
    async def child(ctx: RunContext, number: int) -> int:
        await ctx.sleep(timedelta(minutes=number))  # so that no two end together
        return number

    @app.task
    async def total(ctx: RunContext, at_most: int) -> int:
        replays[at_most] += 1
        return sum(await ctx.map("child", [{"number": number} for number in range(1, 13)], at_most=at_most))

    async with world(app, database_url=clean_url) as rota:
        for at_most in (12, 4):
            job_id = await enqueue(rota, "total", at_most=at_most)
            await rota.advance(hours=2)
            assert (await last_run(rota, job_id))["outcome"] == 78
    assert replays == {12: 2, 4: 1 + 8 + 1}  # first, once per place that became free for an item, and the end


# events of workflows, and webhooks


async def test_an_event_of_a_workflow_wakes_a_run_that_waits_for_its_topic(clean_url: str) -> None:
    app = Rota()
    waiter(app)

    @app.task
    async def watch(ctx: RunContext) -> object:
        return await ctx.wait_for("invoice.paid")

    flow = Workflow("billing", topics=["invoice.paid", "invoice.booked"])

    @flow.producer(schedule=every("1h"), publishes=["invoice.paid"])
    async def book(ctx: Any, state: Any) -> None:
        await ctx.publish("invoice.paid", message_id="9", payload="by a producer")

    @flow.consumer(subscribe=["invoice.paid", "invoice.booked"])
    class Wait:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare()

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        assert await rota.publish("billing", "invoice.paid", message_id="7", payload="too early") == "created"
        keyed = await enqueue(rota, "invoice", number="7")
        produced = await enqueue(rota, "invoice", number="9")
        unkeyed = await enqueue(rota, "watch")
        await rota.drain()
        await rota.publish("billing", "invoice.booked", message_id="7", payload="another topic")
        assert await rota.publish("billing", "invoice.paid", message_id="7", payload="by key") == "replaced"
        assert await rota.publish("billing", "invoice.paid", message_id="7", payload="again") == "replaced"
        await rota.publish("billing", "invoice.paid", message_id="8", payload="by topic")
        await rota.workflows.run("billing")
        await rota.drain()
        outcomes = [(await last_run(rota, job_id))["outcome"] for job_id in (keyed, unkeyed, produced)]
        assert outcomes == ["by key", "by topic", "by a producer"]
        kept = await rota.engine.db.read(lambda tx: list(tx.execute(select(signals.c.consumed_at))))
        assert len(kept) == 3
        assert None not in [row.consumed_at for row in kept]  # an event without a wait is no signal
