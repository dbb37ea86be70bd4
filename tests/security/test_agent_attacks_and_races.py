"""Twenty requests at once with one token have one effect, and an agent gains nothing by forged or repeated messages."""

import asyncio
from typing import Any

import pytest

from rota.agent import Order, Refused
from rota.kinds.hosts.agent.job_types import Allowed
from tests.access.test_access import make_account
from tests.access.test_web_login import browser, link
from tests.app.harness import Api
from tests.kinds.hosts.agents import TYPES, make_server, pair_agent, run_job

AT_ONCE = 20


async def test_one_pairing_token_pairs_one_host(api: Api) -> None:
    token = (await api.call("POST", "/pairing-tokens", {})).json()["token"]
    bodies = [{"token": token, "name": f"host-{number}"} for number in range(AT_ONCE)]
    answers = await asyncio.gather(*(api.client.post("/api/agent/pair", json=body) for body in bodies))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 201
    assert set(statuses[1:]) <= {401, 409, 429}
    assert await api.count("hosts") == 1


async def test_one_login_link_begins_one_session(api: Api) -> None:
    url = await link(api)
    browsers = [browser(api) for _ in range(AT_ONCE)]
    answers = await asyncio.gather(*(web.get(url) for web in browsers))
    assert sorted(answer.status_code for answer in answers) == [303] + [403] * (AT_ONCE - 1)
    assert await api.count("login_sessions") == 1
    for web in browsers:
        await web.aclose()


async def test_one_idempotency_key_stores_one_thing(api: Api) -> None:
    body = {"name": "nightly", "target": "hello", "cron_expression": "0 12 * * *"}
    headers = {"idempotency-key": "one"}
    answers = await asyncio.gather(*(api.call("POST", "/schedules", body, headers=headers) for _ in range(AT_ONCE)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await api.count("schedules") == 1


async def test_forged_and_repeated_messages_of_an_agent_have_no_effect(api: Api) -> None:
    agent, neighbour = await pair_agent(api, "alpha"), await pair_agent(api, "beta")
    job = await run_job(api, await make_server(api, agent))
    (order,) = await agent.claim()
    fence = order["fence"]
    wrong_fences: list[Any] = [fence + 1, fence - 1, -1, 2**63, 2**70, True, str(fence), None, [fence], 1.5]
    for forged in wrong_fences:
        for verb, more in (("result", {"status": "success"}), ("progress", {"lines": [["stdout", "forged"]]})):
            answer = await agent.ask(verb, {"job_id": job, "fence": forged, **more})
            assert 400 <= answer.status_code < 500, (verb, forged, answer.text)
    for job_id in ("' OR '1'='1", "x" * 26, "", None, [job], job.lower()):
        answer = await agent.ask("result", {"job_id": job_id, "fence": fence, "status": "success"})
        assert 400 <= answer.status_code < 500, (job_id, answer.text)
    for status in ("queued", "running", "skipped", "", None, 7):
        answer = await agent.ask("result", {"job_id": job, "fence": fence, "status": status})
        assert answer.status_code == 422, (status, answer.text)

    old = agent.session
    facts = {"version": "1", "pid": 7, "room": 8, "job_types": TYPES}
    journal = [{"job_id": job, "fence": fence, "state": "running"}]
    stolen = await neighbour.ask("register", {**facts, "journal": journal})
    assert stolen.status_code == 200
    neighbour.session = stolen.json()["session"]
    for known in ([f"{job}.{fence}"], [f"{job}.{fence + 1}"]):
        body = {"session": neighbour.session, "room": 8, "known": known, "stopping": known}
        seen = await neighbour.ask("poll", body)
        assert seen.status_code == 200
        assert seen.json()["jobs"] == []
    for session in (agent.session, "x", "0" * 26):
        body = {"session": session, "room": 8, "known": [], "stopping": []}
        assert 400 <= (await neighbour.ask("poll", body)).status_code < 500
    assert (await api.get(f"/host-jobs/{job}"))["status"] == "running"

    await agent.register(**{f"{job}_{fence}": "running"})
    replayed = await agent.ask("poll", {"session": old, "room": 8, "known": [], "stopping": []})
    assert replayed.json()["code"] == "session_over"
    assert (await agent.report(order)).json() == {"repeated": False}
    assert (await agent.report(order)).json() == {"repeated": True}
    assert (await agent.report(order, "failed", error={"message": "no"})).status_code == 409
    for key in (
        "",
        "x",
        agent.key[:-1],
        f"{agent.key}x",
        agent.key.swapcase(),
        neighbour.key.rpartition("_")[0] + "_" + agent.key.rpartition("_")[2],
        api.key,
    ):
        answer = await agent.ask("result", {"job_id": job, "fence": fence, "status": "failed"}, key=key)
        assert answer.status_code == 401, key
    assert (await api.get(f"/host-jobs/{job}"))["status"] == "success"


async def test_an_operator_adds_no_virtual_key_to_the_account_of_another(api: Api) -> None:
    account = await make_account(api, "ada")
    made = (await api.call("POST", "/api-keys", {"name": "o", "role": "operator"})).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    body = {"label": "x", "account_id": account}
    assert (await api.call("POST", "/billing/virtual-keys", body, headers=headers)).status_code == 403
    grant = {"scopes": ["task:execute:hello"], "billing_account_id": account}
    assert (await api.call("POST", "/grants", grant, headers=headers)).status_code in (403, 404, 422)
    assert await api.count("grants") == 0


def test_an_agent_calls_no_function_and_reads_no_address_beside_its_lists() -> None:
    allowed = Allowed(python=["platform:*"], http=["127.0.0.1"])

    def order(job_type: str, **payload: Any) -> Order:
        return Order("J", "R", 1, 7, job_type, payload, {"id": "S", "name": "web", "type": "x", "config": {}})

    for name in ("os:system", "subprocess:run", "builtins:exec", "os:popen", " platform:system", "Platform:system"):
        with pytest.raises(Refused):
            allowed.run_python(order("python", entry_point=name, args={}))
    for url in (
        "file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1/", "http://127.0.0.1\r\nX: y/", "//127.0.0.1/",
        "http://127.0.0.1@169.254.169.254/", "http://127.0.0.1#@10.0.0.1/x y\r\nHost: z",
    ):  # fmt: skip
        with pytest.raises(Refused):
            allowed.http_check(order("http_check", url=url))
