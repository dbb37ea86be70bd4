"""Attacks from one org on another, and on the installation."""

import asyncio
from typing import Any

import pytest

from rota.core.ids import new_id
from rota.engine import workers
from rota.engine.worker import Worker
from rota.kinds.tasks.runner import TaskRunner
from tests.app.harness import Api


class Org:
    """Another org of the installation, and its admin."""

    def __init__(self, api: Api, org_id: str, key: str) -> None:
        self.api, self.id = api, org_id
        self.headers = {"authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        return await self.api.call(method, path, body, headers=self.headers)


@pytest.fixture
async def acme(api: Api) -> Org:
    made = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    return Org(api, made["id"], made["admin_key"])


async def run_ready(api: Api) -> None:
    """Run what is ready, and record how it ended."""
    worker = Worker(api.engine)
    await worker.register()
    await worker.prefetch.claim()
    if running := [run.task for run in worker.active.values() if run.task is not None]:
        await asyncio.wait(running)
        await asyncio.sleep(0)  # their callbacks
    while worker.completer.results:
        await worker.completer.flush()


COMMAND = {"name": "steal", "command": "cat /etc/hostname"}


async def test_an_orgs_admin_stores_no_command_unless_the_installation_allows_it(api: Api, acme: Org) -> None:
    refused = await acme.call("POST", "/tasks", COMMAND)
    assert refused.status_code == 403
    assert "rota org set acme --shell" in refused.json()["detail"]
    assert (await acme.call("PATCH", "/orgs/acme", {"shell": True})).status_code == 403
    assert (await acme.call("POST", "/api-keys", {"name": "x", "role": "admin", "scopes": ["shell"]})).is_success
    assert (await acme.call("POST", "/tasks", COMMAND)).status_code == 403

    allowed = await api.call("PATCH", "/orgs/acme", {"shell": True})
    assert (allowed.status_code, allowed.json()["shell"], allowed.json()["max_running"]) == (200, True, None)
    made = (await acme.call("POST", "/tasks", COMMAND)).json()
    assert made["command"] == COMMAND["command"]
    assert (await api.call("PATCH", "/orgs/acme", {"shell": False})).json()["shell"] is False
    assert (await acme.call("PATCH", "/tasks/steal", {"command": "true"})).status_code == 403
    assert (await acme.call("PUT", "/tasks/steal", {"command": "true"})).status_code == 403
    assert (await acme.call("PATCH", "/tasks/steal", {"enabled": False})).status_code == 200


async def test_rights_and_limits_of_an_org_are_changed_by_name(api: Api, acme: Org) -> None:
    changed = await api.call("PATCH", "/orgs/acme", {"max_running": 3})
    assert (changed.json()["shell"], changed.json()["max_running"]) == (False, 3)
    unchanged = await api.call("PATCH", "/orgs/acme", {})
    assert unchanged.json() == changed.json()
    assert (await api.call("PATCH", "/orgs/acme", {"max_running": None})).json()["max_running"] is None
    assert (await api.call("PATCH", "/orgs/nowhere", {"shell": True})).status_code == 404
    for wrong in ({"shell": "yes"}, {"max_running": 0}, {"slug": "other"}):
        assert (await api.call("PATCH", "/orgs/acme", wrong)).status_code == 422
    lines = [line for line in (await api.get("/audit", resource="orgs"))["items"] if line["action"] == "orgs.edit"]
    assert lines[-1]["after"] == {"max_running": 3}
    orgs = {org["slug"]: org["shell"] for org in (await api.get("/orgs"))["items"]}
    assert orgs == {"default": True, "acme": False}
    assert acme.id


async def test_a_command_of_an_org_that_lost_the_right_is_skipped(api: Api, acme: Org) -> None:
    await api.call("PATCH", "/orgs/acme", {"shell": True})
    made = (await acme.call("POST", "/tasks", {"name": "hi", "command": "echo hi"})).json()
    await acme.call("POST", f"/tasks/{made['id']}/$execute")
    await run_ready(api)
    await acme.call("POST", f"/tasks/{made['id']}/$execute")
    await api.call("PATCH", "/orgs/acme", {"shell": False})
    await run_ready(api)

    skipped, ran = (await acme.call("GET", "/runs")).json()["items"]
    assert (ran["status"], ran["outcome"]["stdout"]) == ("success", "hi\n")
    assert (skipped["status"], skipped["reason"]) == ("skipped", "no_shell")
    assert "rota org set acme --shell" in skipped["error"]["message"]
    why = (await acme.call("GET", f"/runs/{skipped['id']}/$why")).json()["sentences"]
    assert any("may not run stored commands" in sentence for sentence in why)


async def test_functions_of_another_org_cannot_be_called_by_any_way(api: Api, acme: Org) -> None:
    """The program of org `default` declares `hello`; org acme has to guess its name."""
    python = {"name": "payroll", "task_type": "python", "command": "hello"}
    assert (await acme.call("POST", "/tasks", python)).status_code == 422
    hidden = await acme.call("POST", "/tasks", {**python, "enabled": False})
    assert hidden.status_code == 201  # a row that waits for a program of its org
    assert (await acme.call("GET", "/tasks/payroll/$schema")).status_code == 404
    assert (await acme.call("PATCH", "/tasks/payroll", {"enabled": True})).status_code == 422
    await api.execute("UPDATE tasks SET enabled = true WHERE name = 'payroll'")
    assert (await acme.call("POST", "/tasks/payroll/$execute")).status_code == 400
    schedule = {"name": "s", "target": "payroll", "cron_expression": "0 12 * * *", "input": {"name": "x"}}
    assert (await acme.call("POST", "/schedules", schedule)).status_code == 201
    await acme.call("POST", "/schedules/s/$run")
    await run_ready(api)
    (waiting,) = (await acme.call("GET", "/runs")).json()["items"]
    assert (waiting["status"], waiting["outcome"]) == ("pending", None)  # for a worker with a program of org acme
    assert (await api.call("POST", "/tasks", {**python, "name": "own"})).status_code == 201


async def test_a_worker_of_another_org_does_not_make_its_functions_known_here(api: Api, acme: Org) -> None:
    now = api.clock.now()
    routes = ["row:acme:theirs", "task:acme:theirs"]
    await api.db.tx(
        lambda tx: workers.register(
            tx,
            worker=new_id(),
            pid=1,
            version="1",
            concurrency=1,
            kinds=["task"],
            routes=routes,
            queues=None,
            lease=api.engine.settings.lease,
            now=now,
        )
    )
    python = {"name": "x", "task_type": "python", "command": "theirs"}
    assert (await api.call("POST", "/tasks", python)).status_code == 422
    assert (await acme.call("POST", "/tasks", python)).status_code == 201


async def test_a_worker_learns_of_an_org_that_may_run_commands_while_it_runs(api: Api, acme: Org) -> None:
    runner = api.engine.runners["task"]
    assert isinstance(runner, TaskRunner)
    worker = Worker(api.engine)
    await worker.register()
    assert "shell:acme" not in worker.registration.routes
    await api.call("PATCH", "/orgs/acme", {"shell": True})
    await worker.learn_changes()
    assert "shell:acme" in worker.registration.routes
    assert "shell:acme" in await api.db.read(workers.live_routes, api.clock.now())
    assert acme.id


async def test_only_the_installation_gives_credits_where_there_are_several_orgs(api: Api, acme: Org) -> None:
    body = {"amount_credits": 10**12, "reference": "myself"}
    assert (await acme.call("POST", "/billing/credits", body)).status_code == 403
    account = (await acme.call("GET", "/billing/account")).json()
    assert account["balance_credits"] == 0
    answer = await api.call("POST", "/billing/credits", {**body, "account_id": account["id"]})
    assert answer.status_code == 201
    assert (await acme.call("GET", "/billing/account")).json()["balance_credits"] == 10**12
    assert (await api.get("/billing/account"))["balance_credits"] == 0


async def test_an_org_sees_of_workers_only_how_many_of_its_own_jobs_run(api: Api, acme: Org) -> None:
    await api.schedule("nightly")
    await api.job()
    worker = Worker(api.engine)
    await worker.register()
    await api.start(worker.id)
    viewer = await api.call("POST", "/api-keys", {"name": "v", "role": "viewer"})
    theirs = {"authorization": f"Bearer {viewer.json()['key']}"}

    def shown(answer: Any) -> tuple[Any, ...]:
        (row,) = answer.json()["items"]
        return row["running"], row["host"] is not None, row["pid"] is not None

    assert shown(await api.call("GET", "/workers")) == (1, True, True)
    assert shown(await api.call("GET", "/workers", headers=theirs)) == (1, True, True)
    assert shown(await acme.call("GET", "/workers")) == (0, False, False)
