"""What the agent of one host sends harms neither the other hosts of its org nor the database."""

from typing import Any

from rota.kinds.hosts.store.sessions import ENDED_SESSIONS_KEPT
from tests.app.harness import Api
from tests.kinds.hosts.agents import TYPES, FakeAgent, make_server, pair_agent, run_job
from tests.kinds.hosts.test_batches import eventually, soon, working

BAD_SCHEMAS: list[Any] = [
    {"properties": 5}, {"properties": {"command": 7}}, {"properties": []}, {"required": 5}, {"required": [{}]},
    {"required": "command"}, {"required": {"command": 1}}, [], "text", 7, None, {"title": "x" * 20_000},
]  # fmt: skip


async def register(agent: FakeAgent, types: Any) -> int:
    facts = {"version": "1", "pid": 7, "room": 8, "job_types": types, "journal": []}
    return (await agent.ask("register", facts)).status_code


async def test_an_agent_with_an_unusable_schema_is_refused(api: Api) -> None:
    agent = await pair_agent(api)
    for schema in BAD_SCHEMAS:
        assert await register(agent, {"restart": {"read_only": False, "schema": schema}}) == 422, schema
    assert await register(agent, {"restart": {"read_only": "no", "schema": {}}}) == 422
    assert await register(agent, {f"t{n}": {"read_only": True, "schema": {}} for n in range(201)}) == 422
    large = {"read_only": True, "schema": {"title": "x" * 15_000}}
    assert await register(agent, {f"t{n}": large for n in range(20)}) == 422
    assert await register(agent, TYPES) == 200


async def test_a_stored_schema_that_cannot_be_used_fails_its_own_host_alone(api: Api) -> None:
    good, rogue = await pair_agent(api, "good"), await pair_agent(api, "rogue")
    web = await make_server(api, good, "web-good", labels={"role": "web"})
    bad = await make_server(api, rogue, "web-rogue", labels={"role": "web"})
    for stored in ('{"restart": {"read_only": false, "schema": {"properties": {"a": 7}, "required": 5}}}', "{}"):
        await api.execute("UPDATE hosts SET job_types = :types WHERE name = 'rogue'", types=stored)
        alone = await api.call("POST", "/host-jobs", {"server_instance_id": bad, "job_type": "restart"})
        assert (alone.status_code, "host rogue" in alone.json()["detail"]) == (422, True)
        plan = {"kind": "host_job", "target": "labels:role=web", "interval": "1h", "input": {"job_type": "restart"}}
        assert (await api.call("POST", "/schedules", plan)).status_code == 201
        async with working(api):
            made = await api.call("POST", "/batches", {"labels": {"role": "web"}, "job_type": "restart"})
            assert made.status_code == 202, made.text
            await good.report(await soon(good))
            batch = await eventually(api, made.json()["batch_id"], status="completed_with_failures")
        members = {member["server_instance_id"]: member["status"] for member in batch["members"]}
        assert members == {web: "success", bad: "failed"}
    unknown = await api.call("POST", "/batches", {"labels": {"role": "web"}, "job_type": "reboot"})
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (422, "job_type")


async def test_the_log_of_a_run_on_a_host_is_limited(api: Api) -> None:
    agent = await pair_agent(api)
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    claim = {"job_id": job, "fence": order["fence"]}
    for _ in range(3):
        lines = [["stdout", "x" * 90_000]] * 40
        assert (await agent.ask("progress", {**claim, "lines": lines})).status_code == 200
    assert (await agent.ask("progress", {**claim, "lines": [["stdout", ""]] * 5000})).status_code == 200
    await agent.report(order, lines=[["stdout", "the end"]])
    size = await api.db.read(
        lambda tx: tx.exec_driver_sql("SELECT count(*), sum(length(text)), max(text) FROM logs").one()
    )
    assert size[0] < 2000  # empty lines count too
    assert 900_000 < size[1] <= 1024 * 1024
    assert size[2] == "… the rest is left out …"


async def test_an_agent_that_registers_again_and_again_leaves_few_rows(api: Api) -> None:
    agent = await pair_agent(api)
    for _ in range(ENDED_SESSIONS_KEPT + 5):
        await agent.register()
    assert await api.count("workers") == ENDED_SESSIONS_KEPT + 1
    large = {"session": agent.session, "room": 1, "known": [], "stopping": [], "metrics": {"a": "x" * 5000}}
    assert (await agent.ask("poll", large)).status_code == 422
    assert (await agent.ask("poll", {**large, "metrics": [1]})).status_code == 422
