"""Graphs through schedules, grants and the ledger: what the design they come from calls its invariants, by name."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import select, update

import rota
from rota.billing import store as billing_store
from rota.core.errors import AuthError, Conflict, Invalid, LogicError, NotFound, TransientError
from rota.core.policy import Billing, Terms
from rota.db.crash_points import at_each_statement
from rota.db.tables import artifacts, clocks, jobs, virtual_keys
from rota.db.tables import grants as table
from rota.engine import orgs
from rota.engine.maintenance import Maintenance
from rota.engine.worker.executor import Executor
from rota.graphs import GraphError, GraphRequest, LlmCaller, TextDelta, ToolCallResult, ToolCallStart, UsageReport
from rota.kinds.graphs.manager import GraphManager
from rota.kinds.graphs.port import code_of_error
from rota.kinds.graphs.registry import GraphRegistry
from tests.engine.harness import MINUTE, NINE, at
from tests.kinds.graphs.harness import Graphs, Open

SOURCE = Path(rota.__file__).parent


# the ten core invariants of the source


async def test_SCHEDULES_NEVER_BYPASS_EXECUTOR(graphs: Graphs) -> None:
    """Every slot goes through `run_graph` of the one port, and through nothing else."""
    passed: list[str] = []
    real = graphs.registry.run_graph

    def watched(request: GraphRequest) -> Any:
        passed.append(request.run_id)
        return real(request)

    graphs.registry.run_graph = watched  # type: ignore[method-assign]
    await graphs.schedule(input={"messages": [{"role": "user", "content": "spring"}]})
    await graphs.harness.run_until(at("9:30"))
    assert await graphs.harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran"]
    assert passed == [run.id for run in await graphs.runs()]
    assert graphs.asked[0].input == {"messages": [{"role": "user", "content": "spring"}]}


async def test_GRANT_NOT_SESSION(graphs: Graphs) -> None:
    """Without a login: the grant names owner and account, and is checked at the start and again in the executor."""
    await graphs.schedule()
    await graphs.harness.run_until(at("9:10"))
    (grant,) = await graphs.grants()
    (request,) = graphs.asked
    assert request.caller.user_id == grant.owner_id
    row = (await graphs.harness.rows(select(jobs.c.terms)))[:1]
    assert row == []  # the job is gone; while it lived it carried nothing but the grant's id
    graphs.harness.clock.set(at("9:20"))
    await graphs.harness.fire()
    (row,) = await graphs.harness.rows(select(jobs.c.terms))
    assert row.terms == {"grant_id": grant.id}
    await graphs.harness.work()


async def test_BILLING_VIA_GRANT(graphs: Graphs) -> None:
    """The grant names the account, the account its default key; each unit is charged to them with the markup."""
    schedule_id = await graphs.schedule()
    await graphs.harness.run_until(at("9:10"))
    (grant,), (run,) = await graphs.grants(), await graphs.runs()
    account = await graphs.account()
    (key,) = [row.id for row in await graphs.harness.rows(select(virtual_keys).where(virtual_keys.c.is_default))]
    caller = graphs.asked[0].caller
    assert (caller.billing_account_id, caller.virtual_key_id) == (grant.billing_account_id, key) == (account.id, key)
    first, second = await graphs.receipts()
    assert [first.source_reference, second.source_reference] == [f"{run.id}/1/first", f"{run.id}/1/second"]
    assert [first.charged_credits, second.charged_credits] == [20_000, 40_000]
    assert (first.grant_id, first.schedule_id, first.target) == (grant.id, schedule_id, "python:poet")
    assert (
        account.balance_credits == await graphs.harness.db.read(billing_store.balance_of_ledger, account.id) == -60_000
    )
    assert run.usage == {"units": 2, "input_tokens": 40, "output_tokens": 60, "cost_usd": "0.003", "credits": 60_000}


async def test_JOB_KEY_PER_SLOT(graphs: Graphs) -> None:
    """A slot has one job, even if it is fired repeatedly."""
    schedule_id = await graphs.schedule()
    graphs.harness.clock.set(at("9:10"))
    before = await graphs.harness.rows(select(clocks.c.next_slot, clocks.c.next_run_at))
    await graphs.harness.fire()
    again = update(clocks).where(clocks.c.schedule_id == schedule_id)
    await graphs.harness.write(again.values(next_slot=before[0][0], next_run_at=before[0][1]))
    await graphs.harness.fire()
    assert len(await graphs.harness.queue()) == 1
    await graphs.harness.work()
    assert len(graphs.asked) == 1


async def test_PRODUCER_ENQUEUES_NEXT(graphs: Graphs) -> None:
    """Whatever came of a slot, the next one is planned."""

    async def broken(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("so ")
        raise GraphError("invalid_request")

    await graphs.schedule(target=graphs.declare("broken", broken))
    await graphs.harness.run_until(at("9:20"))
    assert await graphs.harness.verdicts() == ["9:10 ran", "9:20 ran"]
    assert [run.status for run in await graphs.runs()] == ["failed", "failed"]
    assert await graphs.harness.planned() == ("9:30", "9:30")


async def test_QUEUE_SERIALIZES_SCHEDULE(graphs: Graphs) -> None:
    """A second slot waits while the first one runs."""
    gate, reached, inside = asyncio.Event(), asyncio.Event(), []

    async def slow(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        inside.append(request.run_id)
        reached.set()
        await gate.wait()
        yield TextDelta("done")

    await graphs.schedule(target=graphs.declare("slow", slow), overlap="queue_all")
    graphs.harness.clock.set(at("9:10"))
    await graphs.harness.fire()
    working = asyncio.ensure_future(graphs.harness.work())
    await reached.wait()
    graphs.harness.clock.set(at("9:20"))
    await graphs.harness.fire()
    assert sorted(row.state for row in await graphs.harness.queue()) == ["blocked", "running"]
    assert len(inside) == 1
    gate.set()
    await working
    await graphs.harness.work()
    assert len(inside) == 2


async def test_SKIP_MISSED_RUNS(graphs: Graphs) -> None:
    """Missed slots are not caught up on: that would cost money without consent."""
    await graphs.schedule()
    await graphs.harness.start_at(at("10:05"))
    assert await graphs.harness.verdicts() == ["9:10-10:00 x6 missed"]
    assert graphs.asked == []
    assert (await graphs.harness.planned())[0] == "10:10"


async def test_RECONCILER_GUARANTEES_CHAIN(graphs: Graphs) -> None:
    """A chain that broke is taken up again at the next future slot."""
    schedule_id = await graphs.schedule()
    await graphs.harness.write(
        update(clocks).where(clocks.c.schedule_id == schedule_id).values(next_run_at=None, next_slot=None)
    )
    await Maintenance(graphs.harness.engine, graphs.harness.worker.id, lambda: True).reconcile()
    await graphs.harness.run_until(at("9:10"))
    assert len(graphs.asked) == 1


async def test_GRANT_SCOPES_CONSTRAIN_GRAPHS(graphs: Graphs) -> None:
    """Exact, all of a provider's, or with consent all of them; anything else does not run."""
    for scope, fits in (
        ("graph:execute:python:poet", True), ("graph:execute:python:*", True), ("graph:execute:langgraph:*", False),
        ("graph:execute:python:other", False), ("task:execute:python:poet", False),
    ):  # fmt: skip
        grant = await graphs.grant(scope)
        if fits:
            await graphs.schedule(f"by {scope}", grant_id=grant)
        else:
            with pytest.raises(Invalid, match="grant_scope"):
                await graphs.schedule(f"by {scope}", grant_id=grant)
    with pytest.raises(Invalid, match="consent"):
        await graphs.grant("graph:execute:*")
    await graphs.schedule("by all", grant_id=await graphs.grant("graph:execute:*", consent=True))


async def test_RUN_LEDGER_FOR_GOVERNANCE(graphs: Graphs) -> None:
    """Each execution has its row, with what it ran, how it ended, its trace, its content and its cost."""
    await graphs.schedule(input={"say": "x"})
    await graphs.harness.run_until(at("9:10"))
    (run,) = await graphs.runs()
    assert (run.kind, run.target_name, run.target_version, run.status) == ("graph", "python:poet", "7", "success")
    assert run.input == {"say": "x"}
    assert run.outcome == {"content": "roses are red", "artifact_id": run.artifact_id}
    assert graphs.asked[0].caller.trace_id == run.trace_id
    assert len(run.trace_id) == 32
    (kept,) = await graphs.harness.rows(select(artifacts))
    assert (kept.id, kept.run_id, kept.content) == (run.artifact_id, run.id, b"roses are red")
    assert kept.content_type.startswith("text/plain")


# the four grant invariants


def test_SCOPE_FORMAT_CENTRALIZED_and_NO_SCOPE_PARSING_IN_WORKER() -> None:
    """Only `engine/grants.py` composes and parses scopes; other modules pass a kind and a target."""
    spelling = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(f'"{family}' in path.read_text() for family in ("graph:execute", "task:execute", "pipeline:run"))
    ]
    assert sorted(spelling) == ["billing/api/models.py"]  # in an example


async def test_VALIDATE_BEFORE_EXECUTE(graphs: Graphs) -> None:
    """A grant that is revoked while the start of a run is recorded is noticed."""
    held = await graphs.grant()
    await graphs.schedule(grant_id=held)
    real = Executor.record_start

    async def slow(self: Executor, run: Any) -> None:
        await real(self, run)
        await graphs.harness.engine.revoke_grant(graphs.harness.org_id, held)

    Executor.record_start = slow  # type: ignore[method-assign]
    try:
        await graphs.harness.run_until(at("9:10"))
    finally:
        Executor.record_start = real  # type: ignore[method-assign]
    assert await graphs.harness.verdicts() == ["9:10 skipped: grant_revoked"]
    assert graphs.asked == []


async def test_SKIP_ON_GRANT_FAILURE(graphs: Graphs) -> None:
    """Revoked, expired, narrowed, without an account: each has its own reason, and the next slot is planned."""
    await graphs.schedule("revoked", grant_id=(revoked := await graphs.grant()))
    await graphs.schedule("expired", grant_id=await graphs.grant(expires_at=NINE + MINUTE))
    await graphs.schedule("narrowed", grant_id=(narrowed := await graphs.grant()))
    await graphs.schedule("penniless", grant_id=await graphs.grant())
    graphs.harness.clock.set(at("9:10"))
    await graphs.harness.fire_elsewhere()
    await graphs.harness.engine.revoke_grant(graphs.harness.org_id, revoked)  # between enqueue and start
    other = {"scopes": ["graph:execute:python:other"]}
    await graphs.harness.write(update(table).where(table.c.id == narrowed).values(other))
    await graphs.harness.db.tx(billing_store.close, graphs.harness.org_id, (await graphs.account()).id, at("9:10"))
    await graphs.harness.work()
    expected = {
        name: [
            (run.status, run.reason, (run.error or {}).get("code"))
            for run in await graphs.runs()
            if run.schedule_id == schedule.id
        ]
        for name in ("revoked", "expired", "narrowed", "penniless")
        for schedule in [await graphs.harness.record(name)]
    }
    assert expected == {
        "revoked": [("skipped", "grant_revoked", None)],
        "expired": [("skipped", "grant_expired", None)],
        "narrowed": [("skipped", "grant_scope", None)],
        "penniless": [("skipped", "budget", "billing_account_closed")],
    }
    assert graphs.asked == []
    assert [(await graphs.harness.planned(name))[0] for name in expected] == ["9:20"] * 4
    (penniless,) = [run for run in await graphs.runs() if run.reason == "budget"]
    assert "because the account that pays for it is closed (billing_account_closed)" in await graphs.why(penniless)
    with pytest.raises(Conflict, match="it is closed"):
        await graphs.grant()
    await graphs.harness.db.tx(billing_store.close, graphs.harness.org_id, (await graphs.account()).id, None)
    await graphs.harness.run_until(at("9:20"))
    assert len(graphs.asked) == 1  # the run of the account that can pay again


async def test_a_grant_that_expires_in_mid_run_lets_the_run_finish(graphs: Graphs) -> None:
    async def long(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield UsageReport("one", None, 1, 1, 1)
        graphs.harness.clock.set(at("9:16"))
        yield UsageReport("two", None, 1, 1, 1)

    name = graphs.declare("long", long)
    held = await graphs.grant(f"graph:execute:{name}", expires_at=at("9:15"))
    await graphs.schedule(target=name, grant_id=held)
    await graphs.harness.run_until(at("9:20"))
    assert await graphs.harness.verdicts() == ["9:10 ran", "9:20 skipped: grant_expired"]
    assert len(await graphs.receipts()) == 2
    ran, skipped = await graphs.runs()
    assert (ran.status, ran.reason) == ("success", "grant_expired")  # the ledger records that it outlived its grant
    assert "success, though its grant had expired (grant_expired)" in await graphs.why(ran)
    assert "never started: skipped, because its grant had expired" in await graphs.why(skipped)


# how errors become runs


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GraphError("rate_limit"), ("paused", "transient", "rate_limit")),
        (GraphError("timeout"), ("failed", "timeout", "timeout")),
        (GraphError("invalid_request"), ("failed", "logic", "invalid_request")),
        (GraphError("not_found"), ("failed", "logic", "not_found")),
        (GraphError("internal"), ("failed", "internal", "internal")),
        (GraphError("insufficient_credits"), ("failed", "budget", "insufficient_credits")),
        (GraphError("aborted"), ("canceled", "aborted", None)),
        (asyncio.CancelledError(), ("canceled", "aborted", None)),
        (ZeroDivisionError("oops"), ("failed", "logic", "logic")),
        (ConnectionError("lost"), ("paused", "transient", "transient")),
        (TransientError("busy"), ("paused", "transient", "transient")),
        (LogicError("wrong"), ("failed", "logic", "logic")),
        (AuthError("key"), ("paused", "approval", "auth")),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_each_error_becomes_a_run(graphs: Graphs, error: BaseException, expected: tuple[str, ...]) -> None:
    async def broken(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield UsageReport("one", "tiny", 1, 1, "0.1")
        raise error

    await graphs.schedule(target=graphs.declare("broken", broken), cron=None, run_at=at("9:10").isoformat())
    await graphs.harness.run_until(at("9:10"))
    run = (await graphs.runs())[0]
    assert (run.status, run.reason, (run.error or {}).get("code")) == expected
    assert run.usage["units"] == len(await graphs.receipts()) == 1  # what it cost is charged all the same


async def test_a_graph_with_invalid_events_fails_alone(graphs: Graphs) -> None:
    nonsense = [
        [object()],
        [None],
        [TextDelta(7)],  # type: ignore[arg-type]
        ["text"],
        [UsageReport("u", None, -1)],
        [UsageReport("u", None, 0, 0, "-1")],
        [UsageReport("u", None, 0, 0, "NaN")],
        [UsageReport("u", None, 0, 0, "1e30")],
        [UsageReport("u", None, 0, 0, "dear")],
        [UsageReport("u" * 300)],
        [UsageReport("u", None, 2**80)],
        [rota.graphs.Done(), rota.graphs.Done()],
        [rota.graphs.Done(), TextDelta("more")],
        [rota.graphs.AssistantFinal("a"), rota.graphs.AssistantFinal("b")],
    ]
    for number, events in enumerate(nonsense):

        async def odd(request: GraphRequest, caller: LlmCaller, events: Any = events) -> AsyncIterator[object]:
            for event in events:
                yield event

        await graphs.schedule(
            f"odd {number}", graphs.declare(f"odd-{number}", odd), cron=None, run_at=at("9:10").isoformat()
        )
    await graphs.harness.run_until(at("9:10"))
    runs = await graphs.runs()
    assert len(runs) == len(nonsense)
    assert {(run.status, run.reason, run.error["code"]) for run in runs} == {("failed", "internal", "internal")}
    assert await graphs.receipts() == []


async def test_text_and_tools_are_logged_as_they_come_and_usage_never(graphs: Graphs) -> None:
    async def talker(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("one\n")
        yield TextDelta("two")
        yield ToolCallStart("c1", "look", {"api_key": "s3cret", "q": "x"})
        yield UsageReport("unit-77", "tiny", 1234, 5678, "0.5")
        yield ToolCallResult("c1", {"found": object()})
        yield TextDelta("three")

    await graphs.schedule(target=graphs.declare("talker", talker))
    await graphs.harness.run_until(at("9:10"))
    said = await graphs.said()
    assert [stream for stream, _ in said] == ["text", "tool", "tool", "text"]
    assert said[0] == ("text", "one\ntwo")
    assert orjson.loads(said[1][1]) == {
        "event": "tool_call_start",
        "id": "c1",
        "name": "look",
        "args": {"api_key": "***", "q": "x"},
    }
    assert said[3] == ("text", "three")
    assert not any(word in text for _, text in said for word in ("unit-77", "1234", "5678", "0.5"))
    assert (await graphs.runs())[0].outcome["content"] == "one\ntwothree"


# money


async def test_a_budget_stops_the_run_while_it_runs(graphs: Graphs) -> None:
    ended = []

    async def spender(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        try:
            for number in range(100):
                yield UsageReport(f"u{number}", None, 1, 1, "0.001")  # 20,000 credits
        finally:
            ended.append(request.canceled.is_set())

    name = graphs.declare("spender", spender)
    held = await graphs.grant(f"graph:execute:{name}", budget={"total": 50_000})
    await graphs.schedule(target=name, grant_id=held)
    await graphs.harness.run_until(at("9:20"))
    first, second = await graphs.runs()
    assert (first.status, first.reason, first.error["code"]) == ("failed", "budget", "budget")
    assert (second.status, second.reason, second.error["code"]) == ("skipped", "budget", "budget")
    assert ended == [True]
    assert sum(receipt.charged_credits for receipt in await graphs.receipts()) == 60_000
    assert first.usage["units"] == 3


async def test_fifty_runs_that_race_for_one_budget_overspend_by_one_unit_each_at_most(graphs: Graphs) -> None:
    started: set[str] = set()

    async def spender(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        for number in range(20):
            await asyncio.sleep(0)
            started.add(request.run_id)
            yield UsageReport(f"u{number}", None, 1, 1, "0.0001")  # 2,000 credits

    name = graphs.declare("spender", spender)
    held = await graphs.grant(f"graph:execute:{name}", budget={"total": 100_000})
    manager = GraphManager(graphs.harness.engine, graphs.harness.org_id)
    for _ in range(50):
        await manager.run(name, None, held, "unknown")
    await graphs.harness.work()
    runs = await graphs.runs()
    assert {(run.status, run.reason) for run in runs} <= {("failed", "budget"), ("skipped", "budget")}
    spent = sum(receipt.charged_credits for receipt in await graphs.receipts())
    assert 100_000 <= spent <= 100_000 + 2_000 * len(started)
    (grant,) = await graphs.grants()
    account = await graphs.account()
    assert grant.spent_total == spent == -account.balance_credits
    assert await graphs.harness.db.read(billing_store.balance_of_ledger, account.id) == -spent


async def test_without_credits_an_enforced_run_is_skipped_and_with_them_it_runs(opened: Open) -> None:
    graphs = await opened(billing=Billing.ENFORCE)
    await graphs.schedule()
    await graphs.harness.run_until(at("9:10"))
    await graphs.top_up(10_000_000)
    await graphs.harness.run_until(at("9:20"))
    refused, ran = await graphs.runs()
    assert (refused.status, refused.reason, refused.error["code"]) == ("skipped", "budget", "insufficient_credits")
    assert ran.status == "success"
    assert (await graphs.account()).balance_credits == 10_000_000 - 60_000


async def test_with_billing_off_nothing_is_charged(opened: Open) -> None:
    graphs = await opened(billing=Billing.OFF)
    await graphs.schedule()
    await graphs.harness.run_until(at("9:10"))
    assert await graphs.receipts() == []
    assert (await graphs.runs())[0].usage["credits"] == 0


async def test_the_markup_is_applied_once_and_rounded_up(opened: Open) -> None:
    async def cheap(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield UsageReport("u", None, 1, 1, "0.00000001")  # 0.1 credits
        yield UsageReport(None, None, 1, 1, None)

    graphs = await opened(markup=Decimal("1.5"))
    await graphs.schedule(target=graphs.declare("cheap", cheap))
    await graphs.harness.run_until(at("9:10"))
    assert [(receipt.unit, receipt.charged_credits) for receipt in await graphs.receipts()] == [
        ("u", 1),
        ("missing-2", 0),
    ]


async def test_a_run_that_is_cancelled_while_it_is_charged_is_charged(graphs: Graphs) -> None:
    reached = asyncio.Event()

    async def slow(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield UsageReport("one", None, 1, 1, 1)
        reached.set()
        await asyncio.sleep(60)
        yield UsageReport("two", None, 1, 1, 1)

    name = graphs.declare("slow", slow)
    job = await GraphManager(graphs.harness.engine, graphs.harness.org_id).run(
        name, None, await graphs.grant(f"graph:execute:{name}"), ""
    )
    working = asyncio.ensure_future(graphs.harness.work())
    await reached.wait()
    graphs.harness.worker.cancellation.cancel({job: "operator"})
    await working
    (run,) = await graphs.runs()
    assert (run.status, run.reason, run.usage["units"]) == ("canceled", "operator", 1)
    assert len(await graphs.receipts()) == 1


# schedules and grants


async def test_a_run_with_one_unit_needs_few_statements_and_a_commit_for_each_effect(graphs: Graphs) -> None:
    async def brief(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield UsageReport("call", "tiny", 10, 20, "0.001")

    graphs.declare("brief", brief)
    harness, grant_id = graphs.harness, await graphs.grant("graph:execute:python:brief")
    await harness.engine.enqueue(harness.org_id, "graph", "python:brief", [{}], terms=Terms(grant_id=grant_id))
    await harness.worker.prefetch.claim()
    texts: list[str] = []
    with at_each_statement(texts.append):
        await harness.wait_until_idle()
    await harness.work()
    assert [run.status for run in await graphs.runs()] == ["success"]
    statements = [text for text in texts if not text.startswith(("BEGIN", "COMMIT"))]
    if harness.db.survives_partition:  # PostgreSQL: start, grant, lock, charge, content, grant; all but one alone
        assert (len(statements), texts.count("COMMIT")) == (6, 1)
    else:  # the charge is five statements; start, charge and content are committed
        assert (len(statements), texts.count("COMMIT")) == (10, 3)


async def test_a_schedule_keeps_its_minted_grant_when_it_is_written_anew(graphs: Graphs) -> None:
    await graphs.schedule()
    body = {"name": "job", "kind": "graph", "target": "python:poet", "cron_expression": "*/10 * * * *"}
    await graphs.harness.engine.edit_schedule(graphs.harness.org_id, "job", body, whole=True)
    (minted,) = await graphs.grants()
    assert (await graphs.harness.record()).grant_id == minted.id
    await graphs.harness.engine.revoke_grant(graphs.harness.org_id, minted.id)
    await graphs.harness.engine.edit_schedule(graphs.harness.org_id, "job", {"grant_id": None})
    _, fresh = await graphs.grants()
    assert (await graphs.harness.record()).grant_id == fresh.id


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"target": "poet"}, "provider:name"),
        ({"target": "python:"}, "provider:name"),
        ({"target": ":poet"}, "provider:name"),
        ({"target": "python:po et"}, "provider:name"),
        ({"target": "python:*"}, "provider:name"),
        ({"target": "unknown:poet"}, "not a known graph"),
        ({"target": "python:unknown"}, "not a known graph"),
        ({"input": [1]}, "not an object"),
        ({"input": "text"}, "not an object"),
    ],
)
async def test_a_schedule_of_a_wrong_graph_is_refused_and_mints_nothing(
    graphs: Graphs, fields: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(Invalid, match=wrong):
        await graphs.schedule(**fields)
    assert await graphs.grants() == []


async def test_another_orgs_program_does_not_give_its_graphs_away(graphs: Graphs) -> None:
    other = await graphs.harness.add_org("other")
    body = {"name": "x", "kind": "graph", "target": "python:poet", "cron_expression": "* * * * *"}
    with pytest.raises(Invalid, match="not a known graph"):
        await graphs.harness.engine.create_schedules(other, [body])
    assert await GraphManager(graphs.harness.engine, other).list_all() == []
    owner = await graphs.harness.db.tx(orgs.system_user, other, NINE)
    held = await graphs.harness.engine.create_grant(other, owner, ["graph:execute:python:poet"])
    with pytest.raises(NotFound):  # a scope that names another org's graph opens nothing
        await GraphManager(graphs.harness.engine, other).run("python:poet", {}, held, owner)
    with pytest.raises(Invalid, match="grant_not_found"):  # and another org's grant is none
        await graphs.schedule(grant_id=held)
    (own,) = await GraphManager(graphs.harness.engine, graphs.harness.org_id).list_all()
    assert (own["id"], own["version"], own["description"], own["live"]) == (
        "python:poet",
        "7",
        "Write a line.",
        True,
    )


def test_what_is_no_graph_cannot_be_declared() -> None:
    registry = GraphRegistry()

    async def fine(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("x")

    registry.add("fine", fine, "python")
    for name, work, provider, wrong in (
        ("fine", fine, "python", "already declared"),
        ("other", fine, "unknown", "is not one of python, langgraph"),
        ("other", lambda: None, "python", "async generator"),
        ("other", fine, "langgraph", "compiled graph"),
        ("a b", fine, "python", "provider:name"),
    ):
        with pytest.raises(Invalid, match=wrong):
            registry.add(name, work, provider)
    with pytest.raises(Invalid, match="per million"):
        registry.add("priced", fine, "python", prices={"m": ("dear", 1)})


async def test_a_job_without_a_grant_does_not_run(graphs: Graphs) -> None:
    await graphs.harness.engine.enqueue(graphs.harness.org_id, "graph", "python:poet", [{}])
    await graphs.harness.work()
    (run,) = await graphs.runs()
    assert (run.status, run.reason) == ("skipped", "grant_not_found")


async def test_another_attempt_runs_under_the_same_grant(graphs: Graphs) -> None:
    async def broken(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        yield TextDelta("so")
        raise GraphError("internal")

    name = graphs.declare("broken", broken)
    held = await graphs.grant(f"graph:execute:{name}")
    await GraphManager(graphs.harness.engine, graphs.harness.org_id).run(name, {}, held, "")
    await graphs.harness.work()
    (first,) = await graphs.runs()
    await graphs.harness.engine.retry(graphs.harness.org_id, first.id)
    await graphs.harness.work()
    assert [(run.attempt, run.reason, run.grant_id) for run in await graphs.runs()] == [
        (1, "internal", held),
        (2, "internal", held),
    ]


async def test_a_graph_that_this_worker_lost_is_not_found(graphs: Graphs) -> None:
    await graphs.schedule()
    graphs.harness.scheduler.worker = None  # else the job begins with the fire
    graphs.harness.clock.set(at("9:10"))
    await graphs.harness.fire()
    routes = set(graphs.harness.engine.runners["graph"].routes())
    graphs.registry.graphs.clear()
    graphs.harness.engine.runners["graph"].routes = lambda: routes  # type: ignore[method-assign]
    await graphs.harness.work()
    (run,) = await graphs.runs()
    assert (run.status, run.reason, run.error["code"]) == ("failed", "logic", "not_found")


# the port


def with_traits(**traits: Any) -> Exception:
    error = Exception("x")
    for name, value in traits.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (asyncio.CancelledError(), "aborted"),
        (with_traits(code="timeout", status_code=429), "timeout"),  # its own code takes precedence
        (with_traits(code="E77", status_code=429), "rate_limit"),
        (with_traits(status=408), "timeout"),
        (with_traits(response=with_traits(status_code=429)), "rate_limit"),
        (with_traits(status_code=500), "internal"),
        (TimeoutError(), "internal"),
        (ValueError("429"), "internal"),  # never by its text
    ],
)
def test_errors_are_classified_in_one_order(error: BaseException, code: str) -> None:
    assert code_of_error(error) == code


async def test_a_graph_that_cleans_up_badly_or_not_at_all_does_not_keep_its_run(opened: Open) -> None:
    async def raising(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        try:
            yield UsageReport("one", None, 1, 1, 1)
        finally:
            raise ValueError("in its finally")

    async def hanging(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
        try:
            yield UsageReport("one", None, 1, 1, 1)
        finally:
            await asyncio.sleep(60)

    graphs = await opened(cancel_grace=timedelta(seconds=0.1))
    for name, body in (("raising", raising), ("hanging", hanging)):
        target = graphs.declare(name, body)
        held = await graphs.grant(f"graph:execute:{target}", budget={"total": 1})
        await graphs.schedule(name, target, grant_id=held, cron=None, run_at=at("9:10").isoformat())
    await graphs.harness.run_until(at("9:10"))
    assert [(run.status, run.reason) for run in await graphs.runs()] == [("failed", "budget")] * 2
