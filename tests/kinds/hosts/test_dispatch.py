"""Work for many agents at once: how many statements it takes, and that each agent gets its own answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from rota.core.errors import LeaseLost, Unavailable
from rota.core.model import NewJob
from rota.core.policy import TRANSIENT_RETRY
from rota.core.states import Move, state_after, states_before
from rota.db.dialect import Tx
from rota.db.group_commit import GroupCommit
from rota.db.statement import statement_listeners
from rota.engine import jobs
from rota.engine.job_states import lease_values
from rota.kinds.hosts import results
from rota.kinds.hosts.dispatch import CHECK_SECONDS, Dispatcher
from rota.kinds.hosts.hand_out import PollRequest, hand_out
from rota.kinds.hosts.results import Report
from rota.kinds.hosts.store import hosts, sessions
from rota.kinds.hosts.store.records import HostRow
from rota.kinds.hosts.store.statements import START
from tests.app.harness import Api
from tests.kinds.hosts.agents import TYPES, FakeAgent, make_server, pair_agent, run_job

FEW, MANY = 2, 12


@contextmanager
def counted(api: Api) -> Iterator[list[str]]:
    """The statements that run inside the block."""
    texts: list[str] = []
    engine: Any = api.db._engine  # type: ignore[attr-defined]

    def by_sqlalchemy(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> None:
        texts.append(statement)

    def by_driver(statement: str, values: Sequence[object]) -> None:
        texts.append(statement)

    event.listen(engine, "before_cursor_execute", by_sqlalchemy)
    statement_listeners.append(by_driver)
    try:
        yield texts
    finally:
        event.remove(engine, "before_cursor_execute", by_sqlalchemy)
        statement_listeners.remove(by_driver)


def count_of(texts: Sequence[str]) -> int:
    """The number of statements, without those that begin a transaction."""
    return sum(not text.startswith("BEGIN") for text in texts)


async def fleet(api: Api, size: int) -> tuple[list[FakeAgent], list[str]]:
    """Agents with a server each."""
    agents = [await pair_agent(api, f"host-{number}") for number in range(size)]
    return agents, [await make_server(api, agent, f"web-{number}") for number, agent in enumerate(agents)]


async def wait_at(api: Api, agents: Sequence[FakeAgent], **more: Any) -> list[asyncio.Task[Any]]:
    """New long polls of agents, when they wait."""
    before = dict(dispatcher(api).polls) if hasattr(api.app.state, "dispatcher") else {}
    polls = [asyncio.ensure_future(agent.poll(wait_seconds=60, **more)) for agent in agents]

    def all_wait() -> bool:
        waiting = dispatcher(api).polls
        return all(waiting.get(agent.host_id) not in (None, before.get(agent.host_id)) for agent in agents)

    await until(lambda: all_wait() and idle(api))
    return polls


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def dispatcher(api: Api) -> Dispatcher:
    agents: Dispatcher = api.app.state.dispatcher
    return agents


def idle(api: Api) -> bool:
    agents = dispatcher(api)
    return agents.looked.is_set() and not agents.attention.is_set() and not agents.urgent


def host_row(api: Api, agent: FakeAgent) -> Awaitable[HostRow]:
    return api.db.read(hosts.get, api.org_id, agent.host_id)


# hand-out


@pytest.mark.parametrize("job_type", ["restart", "look"])
async def test_jobs_of_many_agents_are_handed_out_with_as_many_statements_as_those_of_few(
    api: Api, job_type: str
) -> None:
    agents, servers = await fleet(api, MANY)
    counts = []
    for size in (FEW, MANY):
        queued = [await run_job(api, server, job_type) for server in servers[:size]]
        polls = [
            PollRequest(await host_row(api, agent), agent.session, 8, frozenset(), frozenset(), None)
            for agent in agents[:size]
        ]
        with counted(api) as texts:
            answers = await hand_out_alone(api, polls)
        counts.append(count_of(texts))
        assert [order["job_id"] for poll in polls for order in answers[poll.host.id]["jobs"]] == queued
        for poll, agent in zip(polls, agents, strict=False):
            for order in answers[poll.host.id]["jobs"]:
                assert (await agent.report(order)).status_code == 200
    assert counts[0] == counts[1] <= 10


async def hand_out_alone(api: Api, polls: Sequence[PollRequest]) -> dict[str, Any]:
    ids = {poll.host.id for poll in polls}
    return await api.db.tx(hand_out, polls, ids, ids, timedelta(seconds=90), api.clock.now())


async def test_one_look_answers_all_polls_that_wait(api: Api) -> None:
    agents, servers = await fleet(api, MANY)
    polls = await wait_at(api, agents)
    with counted(api) as texts:
        await enqueue(api, servers)
        answers = await asyncio.wait_for(asyncio.gather(*polls), 20)
    assert [job["server"]["id"] for answer in answers for job in answer["jobs"]] == servers
    claims = [text for text in texts if "UPDATE jobs SET state = 'running'" in text]
    assert len(claims) == 1


async def enqueue(api: Api, servers: Sequence[str]) -> None:
    """Enqueue a read-only job for each server, in one transaction."""

    def step(tx: Tx) -> None:
        rows = hosts.servers_by_id(tx, servers)
        now = api.clock.now()
        new = [
            NewJob(api.org_id, hosts.KIND, server, {"job_type": "look"}, now, "manual",
                   route=hosts.routes_of(rows[server].host_id)[1])
            for server in servers
        ]  # fmt: skip
        jobs.enqueue(tx, new, now)

    await api.db.tx(step)
    api.engine.wake.signal("ready")


async def test_an_idle_poll_makes_no_statement(api: Api) -> None:
    agents, _ = await fleet(api, FEW)
    first, *_ = await wait_at(api, agents)
    with counted(api) as texts:
        for _ in range(3):
            again = asyncio.ensure_future(agents[1].poll(wait_seconds=1, metrics=None))
            await asyncio.sleep(0.05)
            await api.clock.advance(timedelta(seconds=1))
            assert await asyncio.wait_for(again, 5) == {"jobs": [], "cancel": []}
    assert texts == []
    assert not first.done()


async def test_the_heartbeats_of_all_that_wait_are_stored_together(api: Api) -> None:
    counts = []
    agents, _ = await fleet(api, MANY)
    await wait_at(api, agents)
    for size in (FEW, MANY):
        await wait_at(api, agents[:size])
        with counted(api) as texts:
            await api.clock.advance(timedelta(seconds=10))
            await until(lambda: not dispatcher(api).unchecked and idle(api))
        counts.append(count_of(texts))
        seen = [(await api.get(f"/hosts/{agent.host_id}"))["last_heartbeat_at"] for agent in agents[:size]]
        assert set(seen) == {api.clock.now().isoformat()}
    assert counts[0] == counts[1] <= 8


async def test_the_next_poll_of_an_agent_gets_the_job_and_the_earlier_one_nothing(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    (given_up,) = await wait_at(api, [agent])
    (current,) = await wait_at(api, [agent])
    assert await asyncio.wait_for(given_up, 5) == {"jobs": [], "cancel": []}
    job = await run_job(api, server)
    assert [order["job_id"] for order in (await asyncio.wait_for(current, 5))["jobs"]] == [job]


async def test_orders_of_a_lost_answer_are_sent_again_to_the_next_long_poll_at_once(api: Api) -> None:
    agent, other = await pair_agent(api), await pair_agent(api, "beta")
    server = await make_server(api, agent)
    await wait_at(api, [other])
    polls = await wait_at(api, [agent])
    job = await run_job(api, server)
    (first,) = (await asyncio.wait_for(polls[0], 5))["jobs"]
    (again,) = (await asyncio.wait_for(agent.poll(wait_seconds=60), 5))["jobs"]
    assert again == first
    assert again["job_id"] == job


async def test_no_job_is_claimed_for_a_client_that_has_disconnected(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    gone = asyncio.Event()

    async def disconnected() -> bool:
        return gone.is_set()

    await agent.poll()  # creates the dispatcher
    request = PollRequest(await host_row(api, agent), agent.session, 8, frozenset(), frozenset(), None)
    waiting = asyncio.ensure_future(dispatcher(api).poll(request, 60, disconnected))
    await until(lambda: bool(dispatcher(api).polls) and idle(api))
    gone.set()
    job = await run_job(api, server)
    assert await asyncio.wait_for(waiting, 5) == {"jobs": [], "cancel": []}
    assert (await api.get(f"/host-jobs/{job}"))["status"] == "pending"
    assert [order["job_id"] for order in await agent.claim()] == [job]


async def test_a_server_that_closes_answers_the_polls_that_wait(api: Api) -> None:
    agents, _ = await fleet(api, FEW)
    polls = await wait_at(api, agents)
    api.app.state.closing = True
    api.engine.wake.notify_followers()
    assert await asyncio.wait_for(asyncio.gather(*polls), 5) == [{"jobs": [], "cancel": []}] * FEW


async def test_a_queue_that_is_paused_does_not_hide_the_jobs_of_another(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    await run_job(api, server, "look")
    await api.execute("UPDATE jobs SET queue = 'slow', priority = 9")
    await api.call("PUT", "/queues/slow", {"paused": True})
    job = await run_job(api, server, "look")
    assert [order["job_id"] for order in await agent.claim(room=1)] == [job]


def test_the_statement_that_claims_for_agents_is_a_claim() -> None:
    (before,) = states_before(Move.CLAIM)
    updates = [START.text(name)[0] for name in ("postgresql", "sqlite")]
    for text in updates:
        assert f"SET state = '{state_after(Move.CLAIM)}'" in text
        assert f"jobs.state || '' = '{before}'" in text
        assert all(f"{column} = " in text for column in lease_values(Move.CLAIM, None, 0))


# keys


async def test_a_key_replaced_by_another_process_loses_access(api: Api) -> None:
    agent, other = await pair_agent(api), await pair_agent(api, "beta")
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    await wait_at(api, [other])
    polls = await wait_at(api, [agent])
    await api.db.tx(hosts.rotate_key, api.org_id, agent.host_id, api.clock.now())  # this process is not notified
    assert (await agent.report(order)).status_code == 401
    assert (await agent.ask("progress", {"job_id": job, "fence": order["fence"], "lines": []})).status_code == 401
    facts = {"version": "1", "pid": 7, "room": 8, "job_types": TYPES, "journal": []}
    assert (await agent.ask("register", facts)).status_code == 401
    with pytest.raises(AssertionError, match="session_over"):
        await asyncio.wait_for(polls[0], 5)
    assert (await api.get(f"/host-jobs/{job}"))["status"] == "running"


async def test_a_poll_with_a_replaced_key_ends_at_the_next_check(api: Api) -> None:
    agent, other = await pair_agent(api), await pair_agent(api, "beta")
    await wait_at(api, [agent, other])
    await api.db.tx(hosts.rotate_key, api.org_id, agent.host_id, api.clock.now())
    (waiting,) = await wait_at(api, [agent])
    assert not waiting.done()
    await api.clock.advance(timedelta(seconds=CHECK_SECONDS))
    with pytest.raises(AssertionError, match="session_over"):
        await asyncio.wait_for(waiting, 5)
    assert (await agent.ask("poll", {})).status_code == 401


# reports


async def claims_of(api: Api, size: int) -> list[tuple[HostRow, Any]]:
    agents, servers = await fleet(api, size)
    for server in servers:
        await run_job(api, server)
    return [(await host_row(api, agent), order) for agent in agents for order in await agent.claim()]


def success(host: HostRow, order: Any, fence: int | None = None) -> Report:
    result = {"status": "success", "outcome": None, "error": None, "duration_ms": 0, "ended_ms_ago": 0}
    lines = [["stdout", order["job_id"]]]
    return Report(host, order["job_id"], order["fence"] if fence is None else fence, lines, result)


async def test_of_a_batch_of_results_only_the_one_with_a_lost_lease_is_refused(api: Api) -> None:
    claims = await claims_of(api, 4)
    reports = [success(host, order) for host, order in claims]
    lost = success(*claims[2], fence=claims[2][1]["fence"] - 1)
    answers = await api.db.tx(results.record, [*reports[:2], lost, reports[3]], api.clock.now(), TRANSIENT_RETRY)
    assert [answer if isinstance(answer, bool) else type(answer) for answer in answers] == [
        False,
        False,
        LeaseLost,
        False,
    ]
    statuses = [(await api.get(f"/host-jobs/{order['job_id']}"))["status"] for _, order in claims]
    assert statuses == ["success", "success", "running", "success"]
    run = await api.get(f"/runs/{claims[0][1]['run_id']}")
    assert run["worker"] is not None
    assert [line["text"] for line in (await api.get(f"/runs/{run['id']}/logs"))["items"]] == [run["job_id"]]
    again = await api.db.tx(results.record, reports, api.clock.now(), TRANSIENT_RETRY)
    assert again == [True, True, False, True]


async def test_results_of_many_agents_are_recorded_with_as_many_statements_as_those_of_few(api: Api) -> None:
    claims = await claims_of(api, FEW + MANY)
    counts = []
    for part in (claims[:FEW], claims[FEW:]):
        reports = [success(host, order) for host, order in part]
        with counted(api) as texts:
            answers = await api.db.tx(results.record, reports, api.clock.now(), TRANSIENT_RETRY)
        assert answers == [False] * len(part)
        counts.append(count_of(texts))
    assert counts[0] == counts[1] <= 12


async def test_many_agents_register_with_as_many_statements_as_few(api: Api) -> None:
    claims = await claims_of(api, FEW + MANY)
    counts = []
    for part in (claims[:FEW], claims[FEW:]):
        agents = [
            sessions.Registration(
                host,
                {"version": "2", "pid": 7, "room": 8, "job_types": TYPES},
                {(order["job_id"], order["fence"]): "running"},
            )
            for host, order in part
        ]
        with counted(api) as texts:
            started = await api.db.tx(sessions.register, agents, timedelta(seconds=90), api.clock.now())
        assert set(started) == {host.id for host, _ in part}
        counts.append(count_of(texts))
    assert counts[0] == counts[1] <= 14
    assert len((await api.get("/runs", status="running"))["items"]) == FEW + MANY


# group commit


class Store:
    """Stores numbers; the first batch takes until `go` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()

    async def __call__(self, numbers: list[int]) -> list[int | Exception]:
        self.batches.append(numbers)
        await self.go.wait()
        if 13 in numbers:
            raise ValueError(13)
        if 99 in numbers:
            raise Unavailable("no database")
        return [KeyError(number) if number < 0 else number * 10 for number in numbers]


async def add_all(store: Store, numbers: Sequence[int]) -> list[Any]:
    group = GroupCommit(store, lambda number: number % 100)
    calls = [asyncio.ensure_future(group.add(numbers[0]))]
    await asyncio.sleep(0)
    calls += [asyncio.ensure_future(group.add(number)) for number in numbers[1:]]
    await asyncio.sleep(0.01)
    store.go.set()
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_items_that_come_while_a_batch_is_stored_are_the_next_batch() -> None:
    store = Store()
    assert await add_all(store, [1, 2, 3, 4]) == [10, 20, 30, 40]
    assert store.batches == [[1], [2, 3, 4]]


async def test_callers_that_go_on_at_once_share_their_next_batch_with_those_that_waited() -> None:
    store = Store()
    group = GroupCommit(store, lambda number: number)

    async def add_three(number: int) -> None:
        for each in range(3):
            await group.add(100 * each + number)

    calls = [asyncio.ensure_future(add_three(1))]
    await asyncio.sleep(0)
    calls += [asyncio.ensure_future(add_three(number)) for number in (2, 3)]
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(*calls)
    assert [sorted(batch) for batch in store.batches] == [[1], [2, 3, 101], [102, 103, 201], [202, 203]]


async def test_two_batches_are_stored_at_once_but_not_two_items_about_the_same_thing() -> None:
    store = Store()
    group = GroupCommit(store, lambda number: number % 100, parallel=2)
    calls = []
    for number in (1, 2, 101, 3):
        calls.append(asyncio.ensure_future(group.add(number)))
        await asyncio.sleep(0.01)
    assert store.batches == [[1], [2]]
    store.go.set()
    assert await asyncio.gather(*calls) == [10, 20, 1010, 30]
    assert sorted(map(sorted, store.batches[2:])) in ([[3], [101]], [[3, 101]])


async def test_each_item_gets_its_own_result_and_a_bad_one_fails_alone() -> None:
    store = Store()
    one, bad, two, refused, three = await add_all(store, [1, 13, 2, -3, 4])
    assert (one, two, three) == (10, 20, 40)
    assert isinstance(bad, ValueError)
    assert isinstance(refused, KeyError)


async def test_two_items_about_the_same_thing_are_stored_one_after_the_other() -> None:
    store = Store()
    assert await add_all(store, [1, 2, 102, 3]) == [10, 20, 1020, 30]
    assert store.batches == [[1], [2, 3], [102]]


async def test_all_of_a_batch_fail_without_the_database() -> None:
    store = Store()
    first, *others = await add_all(store, [1, 99, 2])
    assert first == 10
    assert [type(error) for error in others] == [Unavailable] * 2
    assert store.batches == [[1], [99, 2]]
