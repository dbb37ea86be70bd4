"""Batches: one job on many servers, so many at a time, with a worker that sees to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from tests.app.harness import Api
from tests.kinds.hosts.agents import FakeAgent, make_server, pair_agent
from tests.kinds.hosts.test_api import at


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[Worker]:
    """A worker of this installation, as it runs in its process."""
    worker = Worker(api.engine)
    running = asyncio.ensure_future(worker.run())
    try:
        yield worker
    finally:
        worker.abandon()
        await asyncio.wait([running])


async def eventually(api: Api, batch: str, **wanted: Any) -> Any:
    """Wait until a batch has these values."""
    for _ in range(200):
        current = await api.get(f"/batches/{batch}")
        if all(current[name] == value for name, value in wanted.items()):
            return current
        await asyncio.sleep(0.05)
    raise AssertionError(f"{wanted}, but {current}")


async def soon(agent: FakeAgent) -> Any:
    """The one job that comes for a host."""
    for _ in range(100):
        if orders := await agent.claim():
            return orders[0]
        await asyncio.sleep(0.05)
    raise AssertionError("no job came")


async def make_three(api: Api) -> tuple[list[FakeAgent], list[str]]:
    agents = [await pair_agent(api, name) for name in ("a", "b", "c")]
    return agents, [await make_server(api, agent, f"web-{n}", labels={"role": "web"}) for n, agent in enumerate(agents)]


async def start(api: Api, **more: Any) -> str:
    answer = await api.call("POST", "/batches", {"labels": {"role": "web"}, "job_type": "restart", **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["batch_id"])


async def test_a_wave_goes_from_server_to_server_so_many_at_a_time(api: Api) -> None:
    agents, servers = await make_three(api)
    await make_server(api, agents[0], "other", labels={"role": "db"})
    async with working(api):
        batch = await start(api, max_parallel=2)
        first, second = await soon(agents[0]), await soon(agents[1])
        state = await eventually(api, batch, running=2)
        assert await agents[2].claim() == []
        assert (state["total"], state["waiting"], state["status"]) == (3, 1, "running")
        await agents[0].report(first)
        await agents[2].report(await soon(agents[2]))
        await agents[1].report(second)
        state = await eventually(api, batch, status="completed")
    assert [member["server_instance_id"] for member in state["members"]] == servers
    assert {member["status"] for member in state["members"]} == {"success"}
    job = await api.get(f"/host-jobs/{batch}")
    assert job["status"] == "success"
    assert (await api.get("/batches"))["items"][0]["succeeded"] == 3


async def test_a_batch_without_matching_servers_is_rejected_and_a_schedule_waits_for_servers(api: Api) -> None:
    await make_three(api)
    answer = await api.call("POST", "/batches", {"labels": {"role": "cache"}, "job_type": "restart"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "labels")
    assert "match no server" in answer.json()["detail"]
    assert (await api.get("/batches"))["items"] == []
    body = {"name": "later", "kind": "host_job", "target": "labels:role=cache", "interval": "1h"}
    assert (await api.call("POST", "/schedules", {**body, "input": {"job_type": "restart"}})).status_code == 201


async def test_a_batch_stops_on_the_first_failure_and_lists_skipped_members(api: Api) -> None:
    agents, _ = await make_three(api)
    async with working(api):
        batch = await start(api, max_parallel=1, stop_on_failure=True)
        order = await soon(agents[0])
        await agents[0].report(order, "failed", error={"message": "no"})
        state = await eventually(api, batch, status="completed_with_failures")
    assert [member["status"] for member in state["members"]] == ["failed", "skipped", "skipped"]
    assert (state["failed"], state["skipped"]) == (1, 2)
    assert (await api.get(f"/host-jobs/{batch}"))["error"]["message"].startswith("3 of 3 servers: web-0 failed")


async def test_canceling_a_batch_withdraws_waiting_jobs_and_cancels_running_ones(api: Api) -> None:
    agents, _ = await make_three(api)
    async with working(api) as worker:
        batch = await start(api)
        order = await soon(agents[0])
        assert (await api.call("POST", f"/batches/{batch}/$cancel")).status_code == 202
        worker.cancellation.cancel({batch: "operator"})
        state = await eventually(api, batch, status="canceled", canceled=2)
        assert (await agents[0].poll())["cancel"] == [order["job_id"]]
        await agents[0].report(order, "canceled")
        state = await eventually(api, batch, canceled=3)
    assert {member["status"] for member in state["members"]} == {"canceled"}
    waits = await start(api)  # with no worker up nothing of it begins
    await api.call("POST", f"/batches/{waits}/$cancel")
    assert (await api.get(f"/batches/{waits}"))["status"] == "canceled"


async def test_another_worker_continues_a_batch(api: Api) -> None:
    agents, _ = await make_three(api)
    async with working(api) as first:
        batch = await start(api, max_parallel=1)
        order = await soon(agents[0])
        await first.drain(api.engine.settings.cancel_grace * 0)
    await agents[0].report(order)
    async with working(api):
        for agent in agents[1:]:
            await agent.report(await soon(agent))
        state = await eventually(api, batch, status="completed")
    assert state["succeeded"] == 3
    assert len((await api.get("/host-jobs"))["items"]) == 4  # three servers, and the batch


async def test_a_schedule_with_labels_makes_one_job_per_slot_with_a_member_per_server(api: Api) -> None:
    agents, servers = await make_three(api)
    fields = {"kind": "host_job", "target": "labels:role=web", "input": {"job_type": "restart"}}
    retry = {"max_retries": 1, "backoff_ms": 0}
    made = await api.schedule("wave", **fields, cron_expression="*/10 * * * *", retry=retry)
    async with working(api):
        await at(api, 10)
        api.engine.wake.signal("ready")
        seen: list[str] = []
        for _ in range(200):
            for agent in agents:
                for order in await agent.claim():
                    seen.append(order["server"]["name"])
                    failed = order["server"]["name"] == "web-1" and order["attempt"] == 1
                    await agent.report(order, "failed" if failed else "success")
            await Scheduler(api.engine).step()
            if (await api.get("/schedules/wave"))["last_run_status"]:
                break
            await asyncio.sleep(0.05)
    assert sorted(seen) == ["web-0", "web-1", "web-1", "web-2"]  # each server has its own retries
    schedule = await api.get("/schedules/wave")
    assert (schedule["last_run_status"], schedule["run_count"], schedule["failure_count"]) == ("success", 1, 0)
    (slot,) = (await api.get(f"/schedules/{made['id']}/slots"))["items"]
    run = await api.get(f"/runs/{slot['run_id']}")
    assert run["outcome"]["succeeded"] == 3
    batch = await api.get(f"/batches/{run['job_id']}")
    assert [member["server_instance_id"] for member in batch["members"]] == servers
