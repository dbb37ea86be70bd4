"""Hosts over HTTP: pairing, keys, what is handed out to whom, how it ends, and what happens when an agent is lost."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.engine.maintenance import Maintenance
from rota.engine.scheduler import Scheduler
from rota.frame.http.limits import MAX_BODY_BYTES
from tests.app.harness import NINE, Api
from tests.kinds.hosts.agents import make_server, pair_agent, run_job

LOST = timedelta(seconds=91)  # longer than an agent's lease


async def history(api: Api, job_id: str) -> list[str]:
    runs = (await api.get("/runs", job_id=job_id))["items"]
    ended = sorted((run for run in runs if run["id"]), key=lambda run: run["attempt"])
    return [f"{run['attempt']} {run['status']}" + (f": {run['reason']}" if run["reason"] else "") for run in ended]


# pairing and keys


async def test_a_pairing_token_is_shown_once_and_works_once(api: Api) -> None:
    made = (await api.call("POST", "/pairing-tokens", {"ttl_seconds": 60})).json()
    assert made["token"].startswith("rota_pair_")
    body = {"token": made["token"], "name": "alpha"}
    first = await api.client.post("/api/agent/pair", json=body)
    assert first.status_code == 201
    assert first.headers["cache-control"] == "no-store"
    again = await api.client.post("/api/agent/pair", json={**body, "name": "beta"})
    assert again.status_code == 409
    (host,) = (await api.get("/hosts"))["items"]
    assert (host["id"], host["name"], host["status"], host["key_version"]) == (
        first.json()["host_id"],
        "alpha",
        "unknown",
        1,
    )
    stored = await api.db.read(lambda tx: str(tx.exec_driver_sql("SELECT * FROM pairing_tokens").all()))
    stored += await api.db.read(lambda tx: str(tx.exec_driver_sql("SELECT * FROM hosts").all()))
    stored += await api.db.read(lambda tx: str(tx.exec_driver_sql("SELECT * FROM audit_log").all()))
    assert made["token"] not in stored
    assert first.json()["agent_key"] not in stored
    (line,) = (await api.get("/audit", action="hosts.pair"))["items"]
    assert line["resource_id"] == host["id"]


async def test_a_pairing_token_ends_after_its_time_and_guesses_are_counted(api: Api) -> None:
    for wrong in (59, 86_401, "900"):
        assert (await api.call("POST", "/pairing-tokens", {"ttl_seconds": wrong})).status_code == 422
    token = (await api.call("POST", "/pairing-tokens")).json()["token"]
    await api.clock.advance(timedelta(minutes=15))
    late = await api.client.post("/api/agent/pair", json={"token": token, "name": "late"})
    assert late.status_code == 409
    guesses = [await api.client.post("/api/agent/pair", json={"token": f"x{n}", "name": "x"}) for n in range(21)]
    assert [answer.status_code for answer in guesses] == [401] * 20 + [429]
    assert (await api.get("/hosts"))["items"] == []


async def test_rotating_a_key_kills_the_old_one_at_once(api: Api) -> None:
    agent = await pair_agent(api)
    old = agent.key
    answer = await api.call("POST", f"/hosts/{agent.host_id}/$rotate-key")
    assert answer.status_code == 200
    agent.key = answer.json()["agent_key"]
    assert (await agent.ask("poll", {}, key=old)).status_code == 401
    await agent.register()
    assert (await agent.poll()) == {"jobs": [], "cancel": []}
    assert (await api.get(f"/hosts/{agent.host_id}"))["key_version"] == 2


async def test_a_user_key_opens_nothing_for_agents_and_an_agent_key_nothing_for_users(api: Api) -> None:
    agent = await pair_agent(api)
    for verb in ("register", "poll", "progress", "result"):
        assert (await agent.ask(verb, {}, key=api.key)).status_code == 401
    answer = await api.client.get("/api/v1/hosts", headers={"authorization": f"Bearer {agent.key}"})
    assert answer.status_code == 401


async def test_the_body_of_an_agent_is_read_after_its_key_is_checked_and_has_limits(api: Api) -> None:
    agent = await pair_agent(api)
    deep = b'{"metrics": ' + b"[" * 200 + b"]" * 200 + b"}"
    for verb in ("register", "poll", "progress", "result"):
        for kind, content, status in (
            ("text/plain", b"x", 415),
            ("application/json", b"[]", 422),
            ("application/json", deep, 422),
            ("application/json", b" " * (MAX_BODY_BYTES + 1), 413),
        ):
            for key, expected in ((agent.key, status), ("rota_wrong", 401)):
                headers = {"authorization": f"Bearer {key}", "content-type": kind}
                answer = await api.client.post(f"/api/agent/{verb}", content=content, headers=headers)
                assert answer.status_code == expected, (verb, kind, key, answer.text)


@pytest.mark.parametrize(
    ("verb", "changes", "field"),
    [
        ("register", {"room": 65}, "room"),
        ("register", {"journal": [{"job_id": "0" * 26, "fence": 1, "state": "x"}]}, "journal[0].state"),
        ("register", {"job_types": {"x": {"read_only": 1, "schema": {}}}}, "job_types.x.read_only"),
        ("poll", {"session": "x"}, "session"),
        ("poll", {"known": ["x" * 101]}, "known"),
        ("poll", {"wait_seconds": 61}, "wait_seconds"),
        ("poll", {"colour": 1}, "colour"),
        ("result", {"lines": [["stdin", "x"]]}, "lines"),
        ("result", {"lines": [["stdout", "x"]] * 5001}, "lines"),
        ("result", {"error": {"reason": "x"}}, "error.reason"),
        ("result", {"fence": -1}, "fence"),
        ("result", {"ended_ms_ago": 2**53}, "ended_ms_ago"),
        ("result", {"duration_ms": 2**53}, "duration_ms"),
    ],
)
async def test_a_wrong_field_of_an_agent_is_named(api: Api, verb: str, changes: dict[str, Any], field: str) -> None:
    agent = await pair_agent(api)
    bodies: dict[str, dict[str, Any]] = {
        "register": {"version": "1", "pid": 7, "room": 8, "job_types": {}, "journal": []},
        "poll": {"session": agent.session, "room": 8, "known": [], "stopping": []},
        "result": {"job_id": "0" * 26, "fence": 1, "status": "success"},
    }
    refused = await agent.ask(verb, {**bodies[verb], **changes})
    assert refused.status_code == 422, refused.text
    assert [error["field"] for error in refused.json()["errors"]] == [field]


async def test_a_host_is_online_while_its_agent_speaks_and_offline_after(api: Api) -> None:
    agent = await pair_agent(api)
    await api.clock.advance(timedelta(seconds=30))
    await agent.poll(metrics={"load": 0.5})
    host = await api.get("/hosts/alpha")
    assert (host["status"], host["metrics"], host["agent_version"]) == ("online", {"load": 0.5}, "1")
    await api.clock.advance(LOST)
    assert (await api.get("/hosts/alpha"))["status"] == "offline"
    assert (await api.get("/workers"))["items"] == []  # an agent is its org's alone


async def test_a_host_stays_while_there_are_servers_on_it_and_a_server_while_something_is_for_it(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    assert (await api.call("DELETE", f"/hosts/{agent.host_id}")).status_code == 409
    job = await run_job(api, server)
    assert (await api.call("DELETE", f"/server-instances/{server}")).status_code == 409
    await api.call("POST", f"/host-jobs/{job}/$cancel")
    made = await plan(api, server)
    assert (await api.call("DELETE", f"/server-instances/{server}")).status_code == 409
    await api.call("DELETE", f"/schedules/{made['id']}")
    assert (await api.call("DELETE", f"/server-instances/{server}")).status_code == 204
    assert (await api.call("DELETE", f"/hosts/{agent.host_id}")).status_code == 204
    assert (await agent.ask("poll", {})).status_code == 401


# handing out


async def test_one_job_that_changes_something_at_a_time_and_others_that_only_look_beside_it(api: Api) -> None:
    agent = await pair_agent(api)
    servers = [await make_server(api, agent, name) for name in ("a", "b")]
    changes = [await run_job(api, server) for server in servers]
    looks = [await run_job(api, servers[0], "look") for _ in range(3)]
    took = await agent.claim(room=2)
    assert sorted(order["job_id"] for order in took) == sorted([changes[0], *looks[:2]])
    assert await agent.claim(room=0) == []
    assert [order["job_id"] for order in await agent.claim(room=5)] == [looks[2]]
    (first,) = [order for order in took if order["job_id"] == changes[0]]
    await agent.report(first)
    assert [order["job_id"] for order in await agent.claim(room=0)] == [changes[1]]


async def test_jobs_of_a_lost_poll_answer_are_dispatched_again(api: Api) -> None:
    agent = await pair_agent(api)
    await run_job(api, await make_server(api, agent))
    (first,) = (await agent.poll())["jobs"]  # and it was not journaled
    (again,) = await agent.claim()
    assert again == first
    assert await agent.claim() == []


async def test_a_result_may_come_twice_but_not_another_one(api: Api) -> None:
    agent = await pair_agent(api)
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    lines = [["stdout", "hello"], ["stderr", "oh"]]
    assert (await agent.ask("progress", {"job_id": job, "fence": order["fence"], "lines": lines})).status_code == 200
    await api.clock.advance(timedelta(seconds=5))
    report: Any = {"outcome": {"exit_code": 0}, "duration_ms": 2000, "ended_ms_ago": 1000}
    first = await agent.report(order, **report)
    assert (first.status_code, first.json()) == (200, {"repeated": False})
    assert (await agent.report(order, **report)).json() == {"repeated": True}
    other = await agent.report(order, "failed", error={"message": "no"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    late = await agent.ask("progress", {"job_id": job, "fence": order["fence"], "lines": lines})
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
    run = await api.get(f"/runs/{order['run_id']}")
    assert (run["status"], run["outcome"]) == ("success", {"exit_code": 0})
    assert (run["started_at"], run["finished_at"]) == ("2026-05-04T09:00:02+00:00", "2026-05-04T09:00:04+00:00")
    text = [line["text"] for line in (await api.get(f"/runs/{order['run_id']}/logs"))["items"]]
    assert text == ["hello", "oh"]


async def test_a_waiting_poll_is_answered_as_soon_as_there_is_something(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    waiting = asyncio.ensure_future(agent.poll(wait_seconds=30))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    job = await run_job(api, server)
    (order,) = (await asyncio.wait_for(waiting, 5))["jobs"]
    assert order["job_id"] == job
    agent.known = [f"{job}.{order['fence']}"]
    waiting = asyncio.ensure_future(agent.poll(wait_seconds=30))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await api.call("POST", f"/host-jobs/{job}/$cancel")
    assert (await asyncio.wait_for(waiting, 5))["cancel"] == [job]
    agent.stopping = [job]
    assert await agent.poll() == {"jobs": [], "cancel": []}
    await agent.report(order, "canceled")
    assert await history(api, job) == ["1 canceled: operator"]


async def test_what_a_run_said_while_the_server_was_away_is_kept(api: Api) -> None:
    agent = await pair_agent(api)
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    claim = {"job_id": job, "fence": order["fence"]}
    await agent.register(**{f"{job}_{order['fence']}": "unknown"})  # it is lost, and asked about
    answer = await agent.ask("progress", {**claim, "lines": [["stdout", "all the while"]]})
    assert answer.status_code == 200, answer.text
    old = await agent.ask("progress", {**claim, "fence": order["fence"] - 1, "lines": [["stdout", "another"]]})
    assert old.status_code == 409
    assert (await agent.report(order)).status_code == 200
    lines = (await api.get(f"/runs/{order['run_id']}/logs"))["items"]
    assert [line["text"] for line in lines] == ["all the while"]
    assert (await api.get(f"/jobs/{job}"))["status"] == "success"


async def test_what_the_work_returned_wins_over_a_cancel_that_came_too_late(api: Api) -> None:
    agent = await pair_agent(api)
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    await api.call("POST", f"/host-jobs/{job}/$cancel")
    await agent.report(order)
    assert await history(api, job) == ["1 success"]


async def test_retries_wait_for_their_moment(api: Api) -> None:
    """The source's retries never happened, and a delayed job was handed out at once."""
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    for kind, waits in (("fixed", [4, 4]), ("exponential", [4, 8])):
        retry = {"max_retries": 2, "backoff_ms": 4000, "backoff_type": kind}
        job = await run_job(api, server, retry=retry)
        scheduler = Scheduler(api.engine)
        for seconds in waits:
            (order,) = await agent.claim()
            await agent.report(order, "failed", error={"message": "no"})
            await api.clock.advance(timedelta(seconds=seconds) - timedelta(milliseconds=1))
            await scheduler.step()
            assert await agent.claim() == []
            await api.clock.advance(timedelta(milliseconds=1))
            await scheduler.step()
        (order,) = await agent.claim()
        assert order["attempt"] == 3
        await agent.report(order, "failed", error={"message": "no", "code": "timeout"})
        assert await history(api, job) == ["1 failed: logic", "2 failed: logic", "3 failed: timeout"]
        assert await agent.claim() == []


async def test_a_paused_queue_and_a_limited_one_hold_for_hosts_too(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    await api.call("PUT", "/queues/default", {"paused": True})
    jobs = [await run_job(api, server, "look") for _ in range(3)]
    assert await agent.claim() == []
    await api.call("PUT", "/queues/default", {"max_running": 2})
    assert sorted(order["job_id"] for order in await agent.claim()) == jobs[:2]
    assert await agent.claim() == []


# an agent that is lost


async def lose(api: Api) -> None:
    await api.clock.advance(LOST)
    await Maintenance(api.engine).rescue_dead_workers()


@pytest.mark.parametrize(
    ("answer", "then", "ledger"),
    [
        ("running", "result", ["1 paused: reconciliation", "2 success"]),
        ("ended", "result", ["1 paused: reconciliation", "2 success"]),
        ("never", "again", ["1 paused: reconciliation", "2 success"]),
        (None, "again", ["1 paused: reconciliation", "2 success"]),
        ("unknown", "applied", ["1 paused: reconciliation", "2 success: resolved"]),
        ("unknown", "not_applied", ["1 paused: reconciliation", "2 success"]),
    ],
)
async def test_a_lost_agent_is_asked_before_what_it_may_have_changed_is_tried_again(
    api: Api, answer: str | None, then: str, ledger: list[str]
) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    job, behind = await run_job(api, server), await run_job(api, server)
    (order,) = await agent.claim()
    await lose(api)
    assert await history(api, job) == ["1 paused: reconciliation"]
    host_job = await api.get(f"/host-jobs/{job}")
    assert (host_job["status"], host_job["waits_for"]) == ("pending", "reconciliation")
    assert server not in (await api.get(f"/runs/{job}/$why"))["sentences"][0]  # its name, not its id
    over = await agent.ask("poll", {"session": agent.session, "room": 8, "known": [], "stopping": []})
    assert (over.status_code, over.json()["code"]) == (409, "session_over")

    await agent.register(**({f"{job}_{order['fence']}": answer} if answer else {}))
    again = await agent.claim()
    if then == "again":
        assert [order["job_id"] for order in again] == [job]
        assert again[0]["fence"] > order["fence"]
        assert (await agent.report(order)).status_code == 409  # the claim from before is over
        order = again[0]
    else:
        assert again == []  # and nothing else may change this host until then
    if then in ("applied", "not_applied"):
        answered = await api.call("POST", f"/host-jobs/{job}/$resolve", {"resolution": then})
        assert answered.status_code == 202
        if then == "not_applied":
            (order,) = await agent.claim()
    if then != "applied":
        reply = await agent.report(order)
        assert (reply.status_code, reply.json()) == (200, {"repeated": False})
        assert (await agent.report(order)).json() == {"repeated": True}
    assert await history(api, job) == ledger
    assert [order["job_id"] for order in await agent.claim()] == [behind]


async def test_an_agent_that_registers_again_at_once_reconciles_at_once(api: Api) -> None:
    agent = await pair_agent(api)
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    old = agent.session
    await agent.register(**{f"{job}_{order['fence']}": "running"})
    agent.session, new = old, agent.session
    over = await agent.ask("poll", {"session": old, "room": 8, "known": [], "stopping": []})
    assert over.json()["code"] == "session_over"
    agent.session = new
    assert await agent.claim() == []
    await api.call("POST", f"/host-jobs/{job}/$cancel")  # the agent owns it again and can cancel it
    assert (await agent.poll())["cancel"] == [job]
    await agent.report(order, "canceled")
    assert await history(api, job) == ["1 canceled: operator"]


async def test_what_only_looks_is_simply_tried_again(api: Api) -> None:
    agent = await pair_agent(api)
    job = await run_job(api, await make_server(api, agent), "look")
    (order,) = await agent.claim()
    await lose(api)
    assert await history(api, job) == ["1 crashed"]
    await agent.register()
    (again,) = await agent.claim()
    assert (await agent.report(order)).json()["code"] == "lease_lost"
    await agent.report(again)
    assert await history(api, job) == ["1 crashed", "2 success"]


async def test_a_job_for_an_agent_that_is_away_waits_and_is_there_when_it_comes(api: Api) -> None:
    agent = await pair_agent(api, up=False)
    job = await run_job(api, await make_server(api, agent), "shell", payload={"command": "true"})
    await api.clock.advance(timedelta(minutes=10))
    await Maintenance(api.engine).reconcile()
    await agent.register({"shell": {"read_only": False, "schema": {}}})
    assert [order["job_id"] for order in await agent.claim()] == [job]


async def test_why_names_the_host_that_a_job_waits_for(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    await api.clock.advance(LOST)
    job = await run_job(api, server)
    sentences = (await api.get(f"/runs/{job}/$why"))["sentences"]
    assert [text for text in sentences if "Host alpha is offline since 2026-05-04T09:00:00+00:00" in text], sentences
    assert not [text for text in sentences if "No live worker" in text]


# tenancy and secrets


async def test_an_agent_sees_takes_and_reports_nothing_of_another_host_or_org(api: Api) -> None:
    ours = await pair_agent(api)
    server = await make_server(api, ours)
    job = await run_job(api, server)
    root = {"authorization": f"Bearer {api.key}"}
    other_key = (await api.call("POST", "/orgs", {"name": "Other", "slug": "other"}, headers=root)).json()["admin_key"]
    api.client.headers["authorization"] = f"Bearer {other_key}"
    theirs = await pair_agent(api, "alpha")
    stolen = await api.call("POST", "/server-instances", {"host_id": ours.host_id, "name": "x"})
    assert stolen.status_code == 404
    foreign = await api.call("POST", "/host-jobs", {"server_instance_id": server, "job_type": "restart"})
    assert foreign.status_code == 404
    body = {
        "name": "x",
        "kind": "host_job",
        "target": server,
        "input": {"job_type": "restart"},
        "cron_expression": "* * * * *",
    }
    assert (await api.call("POST", "/schedules", body)).status_code == 422
    assert (await api.get("/hosts"))["items"][0]["id"] == theirs.host_id
    assert await theirs.claim() == []
    over = await theirs.ask("poll", {"session": ours.session, "room": 8, "known": [], "stopping": []})
    assert over.json()["code"] == "session_over"  # a session is its host's alone
    api.client.headers["authorization"] = f"Bearer {api.key}"
    neighbour = await pair_agent(api, "beta")
    (order,) = await ours.claim()
    for agent in (theirs, neighbour):
        assert (await agent.report(order)).status_code == 404
        said = await agent.ask("progress", {"job_id": job, "fence": order["fence"], "lines": []})
        assert said.status_code == 409
        await agent.register(**{f"{job}_{order['fence']}": "running"})
        assert await agent.claim() == []
    await ours.report(order)
    assert (await theirs.report(order)).status_code == 404
    forged = ours.key.replace(ours.host_id, theirs.host_id)
    assert (await ours.ask("poll", {}, key=forged)).status_code == 401
    assert await history(api, job) == ["1 success"]


async def test_secrets_reach_only_the_agent(api: Api) -> None:
    agent = await pair_agent(api)
    config = {"port": 27015, "rcon_password": "canary-1"}
    server = await make_server(api, agent, config=config)
    payload = {"token": "canary-2", "command": "curl -H 'Authorization: Bearer canary-3'"}
    await agent.register({"restart": {"read_only": False, "schema": {}}})
    job = await run_job(api, server, payload=payload)
    made = await plan(api, server, input={"job_type": "restart", "payload": payload})
    (order,) = await agent.claim()
    assert order["payload"] == payload
    assert order["server"]["config"] == config
    lines = [["stdout", "using password=canary-4"]]
    error = {"message": "rejected token: canary-5"}
    await agent.report(order, "failed", lines=lines, error=error, outcome={"api_key": "canary-6"})
    seen = ""
    for path in (
        "/hosts", "/server-instances", f"/server-instances/{server}", "/host-jobs", f"/host-jobs/{job}",
        "/jobs", "/runs",
        f"/runs/{order['run_id']}", f"/runs/{order['run_id']}/logs", "/schedules", f"/schedules/{made['id']}", "/audit",
        f"/runs/{order['run_id']}/$why", "/batches",
    ):  # fmt: skip
        seen += (await api.call("GET", path)).text
    assert "canary" not in seen
    shown = (await api.get(f"/schedules/{made['id']}"))["input"]
    back = await api.call("PATCH", f"/schedules/{made['id']}", {"input": shown})
    assert back.status_code == 422  # what is shown is not the secret, and must not take its place


# schedules


async def plan(api: Api, server: str, **more: Any) -> Any:
    fields = {"kind": "host_job", "target": server, "input": {"job_type": "restart"}, "cron_expression": "*/10 * * * *"}
    return await api.schedule(f"plan-{server}", **{**fields, **more})


async def slots(api: Api, schedule: Any) -> list[str]:
    slots = (await api.get(f"/schedules/{schedule['id']}/slots"))["items"]
    return [
        f"{slot['slot'][11:16]} {slot['verdict']}" + (f": {slot['reason']}" if slot["reason"] else "") for slot in slots
    ][::-1]


async def at(api: Api, minutes: int) -> None:
    api.clock.set(NINE + timedelta(minutes=minutes))
    await Scheduler(api.engine).step()


async def test_a_schedule_has_the_final_outcome_and_counts_each_failure_once(api: Api) -> None:
    agent = await pair_agent(api)
    made = await plan(api, await make_server(api, agent), retry={"max_retries": 1, "backoff_ms": 1000})

    async def counters() -> tuple[Any, ...]:
        schedule = await api.get(f"/schedules/{made['id']}")
        return schedule["last_run_status"], schedule["run_count"], schedule["failure_count"], schedule["skipped_count"]

    await at(api, 10)
    (order,) = await agent.claim()
    await at(api, 20)  # the host is busy
    assert await counters() == ("skipped", 1, 0, 1)
    await agent.report(order, "failed")
    await api.clock.advance(timedelta(seconds=1))
    await Scheduler(api.engine).step()
    (order,) = await agent.claim()
    await agent.report(order, "failed")
    assert await counters() == ("failed", 1, 1, 1)  # one failure, of two attempts
    await at(api, 30)
    (order,) = await agent.claim()
    await agent.report(order)
    assert await counters() == ("success", 2, 1, 1)
    await api.call("POST", f"/schedules/{made['id']}/$skip-next", {"reason": "match tonight"})
    assert await counters() == ("skipped", 2, 1, 2)
    schedule = await api.get(f"/schedules/{made['id']}")
    assert (schedule["last_job_id"], schedule["last_run_at"]) == (order["job_id"], "2026-05-04T09:30:00+00:00")
    assert schedule["next_run_at"] == "2026-05-04T09:50:00+00:00"
    assert await slots(api, made) == ["09:10 ran: logic", "09:20 skipped: busy", "09:30 ran", "09:40 skipped: operator"]
    await at(api, 50)
    (job,) = (await api.get("/jobs", status="pending"))["items"]
    assert (await api.call("POST", f"/jobs/{job['id']}/$cancel")).status_code == 202
    assert await counters() == ("skipped", 3, 1, 2)


async def test_while_the_agent_is_away_the_job_waits_and_further_slots_are_skipped(api: Api) -> None:
    agent = await pair_agent(api, up=False)
    made = await plan(api, await make_server(api, agent), input={"job_type": "shell", "payload": {"command": "true"}})
    for minutes in (10, 20, 30):
        await at(api, minutes)
    assert await slots(api, made) == ["09:10 None", "09:20 skipped: busy", "09:30 skipped: busy"]
    await agent.register({"shell": {"read_only": False, "schema": {}}})
    (order,) = await agent.claim()
    await agent.report(order)
    assert (await slots(api, made))[0] == "09:10 ran"
    audit = await api.get("/slots/$audit")
    assert audit["ok"], audit


async def test_a_job_that_could_not_start_inside_its_window_is_skipped_and_retries_wait_for_the_next(api: Api) -> None:
    agent = await pair_agent(api, up=False)
    shell = {"job_type": "shell", "payload": {"command": "true"}}
    window = {"window_start": "09:00", "window_end": "09:30", "retry": {"max_retries": 1, "backoff_ms": 60_000}}
    made = await plan(api, await make_server(api, agent), input=shell, cron_expression="10 9 * * *", **window)
    await at(api, 10)
    api.clock.set(NINE + timedelta(minutes=31))
    await agent.register({"shell": {"read_only": False, "schema": {}}})
    assert await agent.claim() == []
    assert await slots(api, made) == ["09:10 skipped: window"]
    await at(api, 24 * 60 + 10)
    (order,) = await agent.claim()
    api.clock.set(NINE + timedelta(days=1, minutes=29, seconds=30))
    await agent.report(order, "failed")
    run = (await api.get("/runs", job_id=order["job_id"]))["items"][0]
    assert (run["status"], run["attempt"]) == ("pending", 2)
    run_at = await api.db.read(lambda tx: tx.exec_driver_sql("SELECT run_at FROM jobs").scalar())
    assert "2026-05-06" in str(run_at) or run_at == 1778058000_000000, run_at


@pytest.mark.parametrize(
    ("now", "cron", "window", "zone", "coming"),
    [  # Oslo is two hours ahead of UTC in summer, one in winter
        ("2026-05-04T09:00Z", "0 3 * * *", "02:00-06:00", "Europe/Oslo", ["05-05 01:00", "05-06 01:00"]),
        ("2026-05-04T09:00Z", "0 23,1,3,12 * * *", "22:00-04:00", "UTC", ["05-04 23:00", "05-05 01:00", "05-05 03:00"]),
        ("2026-05-04T23:30Z", "0 * * * *", "22:00-04:00", "UTC", ["05-05 00:00", "05-05 01:00"]),  # inside the night
        ("2026-05-04T09:00Z", "0 12 * * *", "22:00-04:00", "UTC", ["05-04 22:00", "05-05 22:00"]),  # never meets it
        ("2026-05-04T09:00Z", "0 4 * * *", "22:00-04:00", "UTC", ["05-05 22:00", "05-06 22:00"]),  # the end is outside
        ("2026-03-28T12:00Z", "30 2 * * *", "22:00-04:00", "Europe/Oslo", ["03-29 01:00", "03-30 00:30"]),  # no 02:30
        (
            "2026-10-24T12:00Z",
            "30 2 * * *",
            "22:00-04:00",
            "Europe/Oslo",
            ["10-25 00:30", "10-26 01:30"],
        ),  # two of them
    ],
)
async def test_slots_of_a_host_lie_in_its_window_on_every_night(
    api: Api, now: str, cron: str, window: str, zone: str, coming: list[str]
) -> None:
    api.clock.set(datetime.fromisoformat(now))
    server = await make_server(api, await pair_agent(api))
    start, _, end = window.partition("-")
    made = await plan(api, server, cron_expression=cron, timezone=zone, window_start=start, window_end=end)
    assert made["next_run_at"] == f"2026-{coming[0].replace(' ', 'T')}:00+00:00"
    slots = (await api.get(f"/schedules/{made['id']}/$next", count=len(coming)))["slots"]
    assert [datetime.fromisoformat(slot["at"]).astimezone(UTC).strftime("%m-%d %H:%M") for slot in slots] == coming


async def test_a_grant_must_name_the_job_type_when_the_job_is_made_and_hold_when_it_is_handed_out(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    grant = (await api.call("POST", "/grants", {"scopes": ["host_job:dispatch:look"]})).json()["id"]
    good = await plan(api, server, grant_id=grant, input={"job_type": "look"})
    other = {"input": {"job_type": "restart"}}
    path = f"/schedules/{good['id']}"
    for method, where in (("PATCH", path), ("POST", f"{path}/$run")):
        refused = await api.call(method, where, other)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "grant_id")
        assert "grant_scope" in refused.json()["detail"]
    await at(api, 10)
    (order,) = await agent.claim()
    await agent.report(order)
    await at(api, 20)
    await api.call("POST", f"/grants/{grant}/$revoke")
    assert await agent.claim() == []
    assert await slots(api, good) == ["09:10 ran", "09:20 skipped: grant_revoked"]


async def test_a_job_that_its_host_cannot_do_is_refused(api: Api) -> None:
    agent = await pair_agent(api)
    server = await make_server(api, agent)
    unknown = await api.call("POST", "/host-jobs", {"server_instance_id": server, "job_type": "reboot"})
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (422, "job_type")
    types = {"backup": {"read_only": False, "schema": {"properties": {"to": {"type": "string"}}, "required": ["to"]}}}
    await agent.register(types)
    for payload, field in (({}, "payload.to"), ({"to": 7}, "payload.to"), ({"to": "x", "by": "y"}, "payload.by")):
        wrong = await api.call(
            "POST", "/host-jobs", {"server_instance_id": server, "job_type": "backup", "payload": payload}
        )
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, field)
    await run_job(api, server, "backup", payload={"to": "/var/backups"})


async def test_hosts_and_servers_are_known_by_their_names(api: Api) -> None:
    agent = await pair_agent(api, "alpha")
    made = await api.call("POST", "/server-instances", {"host_id": "alpha", "name": "web-1"})
    assert (made.status_code, made.json()["host_id"]) == (201, agent.host_id)
    server = made.json()["id"]
    job = await run_job(api, "web-1")
    assert (await api.get(f"/host-jobs/{job}"))["server_instance_id"] == server
    assert [item["id"] for item in (await api.get("/host-jobs", server_instance_id="web-1"))["items"]] == [job]
    assert [item["id"] for item in (await api.get("/server-instances", host_id="alpha"))["items"]] == [server]
    batch = await api.call("POST", "/batches", {"server_instance_ids": ["web-1", server], "job_type": "restart"})
    assert (await api.get(f"/batches/{batch.json()['batch_id']}"))["target"] == f"servers:{server}"
    body = {"name": "s", "kind": "host_job", "target": "web-1", "interval": "1h", "input": {"job_type": "restart"}}
    assert (await api.call("POST", "/schedules", body)).json()["target"] == server
    for method in ("PUT", "PATCH"):
        edited = await api.call(method, "/schedules/s", body)
        assert (edited.status_code, edited.json()["target"]) == (200, server), edited.text
    once = {"kind": "host_job", "target": "web-1", "input": {"job_type": "restart"}}
    assert (await api.call("POST", "/jobs", once)).status_code == 202
    assert (await api.call("PATCH", "/server-instances/web-1", {"name": "web-2"})).json()["id"] == server
    assert (await api.get("/server-instances/web-2"))["id"] == server
    assert (await api.call("PATCH", "/hosts/alpha", {"labels": {"zone": "eu"}})).json()["labels"] == {"zone": "eu"}
    assert (await api.call("POST", "/hosts/alpha/$rotate-key")).json()["host_id"] == agent.host_id
    lines = (await api.get("/audit", resource="hosts"))["items"]
    assert {line["resource_id"] for line in lines} == {agent.host_id}


async def test_a_name_that_is_unknown_or_not_unique_is_refused_by_that_name(api: Api) -> None:
    for name in ("alpha", "beta"):
        await make_server(api, await pair_agent(api, name), "web")
    for key, status in (("web", 409), ("nothing", 404)):
        answer = await api.call("POST", "/host-jobs", {"server_instance_id": key, "job_type": "restart"})
        assert (answer.status_code, f"'{key}'" in answer.json()["detail"]) == (status, True)
        assert (await api.call("DELETE", f"/server-instances/{key}")).status_code == status
    missing = await api.call("POST", "/server-instances", {"host_id": "gamma", "name": "x"})
    assert (missing.status_code, missing.json()["detail"]) == (404, "host 'gamma' not found")


async def test_labels_and_types_of_servers_may_have_slashes(api: Api) -> None:
    labels = {"app.kubernetes.io/name": "web"}
    server = await make_server(api, await pair_agent(api), type="nginx/1.27", labels=labels)
    shown = await api.get(f"/server-instances/{server}")
    assert (shown["type"], shown["labels"]) == ("nginx/1.27", labels)
