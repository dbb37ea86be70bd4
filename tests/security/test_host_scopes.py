"""Commands and functions on hosts need the scope `host-shell`, by every route that orders them."""

from typing import Any

from rota.access.store import accounts
from tests.app.harness import NINE, Api
from tests.kinds.hosts.agents import make_server, pair_agent

TYPES = {name: {"read_only": False, "schema": {}} for name in ("shell", "python", "restart")}
SHELL = {"job_type": "shell", "payload": {"command": "id"}}
PYTHON = {"job_type": "python", "payload": {"entry_point": "os:getcwd"}}
PLAIN = {"job_type": "restart"}


async def operator(api: Api, *scopes: str) -> dict[str, str]:
    key = await api.db.tx(accounts.create_key, api.org_id, f"of {scopes}", "operator", NINE, scopes=list(scopes))
    return {"authorization": f"Bearer {key}"}


async def make_web(api: Api) -> str:
    agent = await pair_agent(api)
    await agent.register(TYPES)
    return await make_server(api, agent, labels={"role": "web"})


async def test_an_operator_orders_no_command_on_a_host_by_any_route(api: Api) -> None:
    server = await make_web(api)
    timing = {"kind": "host_job", "target": server, "interval": "1h"}
    shell = await api.schedule("shell", **timing, cron_expression=None, schedule_type=None, input=SHELL)
    plain = await api.schedule("plain", **timing, cron_expression=None, schedule_type=None, input=PLAIN)
    other = await make_server(api, await pair_agent(api, "beta"), "other")
    await api.schedule("task", input={"name": "x"})

    async def ask(headers: dict[str, str], method: str, path: str, body: Any) -> int:
        return (await api.call(method, path, body, headers=headers)).status_code

    unscoped = await operator(api)
    for order in (SHELL, PYTHON):
        for method, path, body in [
            ("POST", "/host-jobs", {"server_instance_id": server, **order}),
            ("POST", "/jobs", {"kind": "host_job", "target": server, "input": order}),
            ("POST", "/batches", {"labels": {"role": "web"}, **order}),
            ("POST", "/schedules", {"name": "s", **timing, "input": order}),
            ("POST", "/schedules/$bulk", {"items": [{"name": "s", **timing, "input": order}]}),
            ("PATCH", f"/schedules/{plain['id']}", {"input": order}),
            ("PUT", "/schedules/plain", {"name": "plain", **timing, "input": order}),
            ("POST", "/schedules/plain/$run", {"input": order}),
        ]:
            refused = await api.call(method, path, body, headers=unscoped)
            assert (refused.status_code, "host-shell" in refused.json()["detail"]) == (403, True), (method, path)
    assert await ask(unscoped, "PATCH", "/schedules/shell", {"target": other}) in (403, 422)
    assert await ask(unscoped, "PATCH", "/schedules/shell", {"interval": "2h", "input": SHELL}) == 200  # as it was
    assert await ask(unscoped, "POST", f"/schedules/{shell['id']}/$run", {}) == 202
    assert await ask(unscoped, "POST", "/schedules/task/$run", {"input": {"name": "shell"}}) == 202
    for scope in ("host-shell", "shell"):
        headers = await operator(api, scope)
        for order in (SHELL, PYTHON):
            assert await ask(headers, "POST", "/host-jobs", {"server_instance_id": server, **order}) == 202
            assert await ask(headers, "PATCH", f"/schedules/{plain['id']}", {"input": order}) == 200
        assert await ask(headers, "PATCH", "/schedules/plain", {"input": PLAIN}) == 200
    values: tuple[Any, ...] = ([], {}, 7, None, ["shell"])
    for wrong in values:
        assert await ask(unscoped, "POST", "/host-jobs", {"server_instance_id": server, "job_type": wrong}) == 422


async def test_host_shell_adds_and_does_not_narrow(api: Api) -> None:
    made = await api.call("POST", "/api-keys", {"name": "k", "role": "operator", "scopes": ["host-shell"]})
    assert made.status_code == 201, made.text
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 200
    task = {"name": "t", "command": "true"}
    assert (await api.call("POST", "/tasks", task, headers=headers)).status_code == 403
