"""Script workflows over the API and in the dashboard."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.repair import RepairRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.testing import World, register_worker
from tests.access.test_web_login import browser, log_in
from tests.app.forms import done, fill
from tests.app.harness import Api
from tests.kinds.workflows.inbox import Sheets
from tests.kinds.workflows.letters import RENAMED, SCRIPT, repairer

ASKS = SCRIPT.replace('connectors=["sheets', 'repair="ask", connectors=["sheets')
RIGHT = RENAMED.replace('connectors=["sheets', 'repair="ask", connectors=["sheets')


@pytest.fixture
async def rota(api: Api, tmp_path: Path) -> AsyncIterator[World]:
    """A worker that repairs, behind the API."""
    connectors = Connectors()
    connectors.add("sheets", Sheets())
    flows = WorkflowRunner({}, connectors, api.db, sandbox=Sandbox(spare=0), repairs=True)
    repairs = RepairRunner(flows.scripts, repairer(tmp_path, ASKS, RIGHT))
    api.engine.runners.update({"workflow": flows, "repair": repairs})  # type: ignore[attr-defined]
    worker = Worker(api.engine)
    await api.db.tx(register_worker, worker, api.engine)
    yield World(api.engine, api.clock, worker, Scheduler(api.engine), api.org_id)
    await flows.close()


async def test_a_file_becomes_a_workflow_and_the_next_its_next_version(api: Api, rota: World) -> None:
    made = await api.call("POST", "/workflows", {"name": "letters", "script": SCRIPT})
    assert (made.status_code, made.json()["version"]) == (201, "1.0")
    assert made.headers["location"] == f"/api/v1/workflows/{made.json()['id']}"
    assert (await api.call("POST", "/workflows", {"script": SCRIPT})).status_code == 409
    again = await api.call("PUT", "/workflows/letters", {"script": RENAMED})
    assert (again.status_code, again.json()["version"]) == (200, "2.0")
    checked = (await api.call("POST", "/workflows/$check", {"script": SCRIPT})).json()
    assert (checked["name"], checked["connectors"], checked["repair"]) == ("letters", ["sheets.append"], "auto")
    page = await api.get("/workflows/letters/versions")
    assert [(version["version"], version["live"]) for version in page["items"]] == [("2.0", True), ("1.0", False)]
    first = await api.get("/workflows/letters/versions", limit=1)
    rest = await api.get("/workflows/letters/versions", limit=1, cursor=first["next_cursor"])
    assert [version["version"] for version in rest["items"]] == ["1.0"]
    version = await api.get("/workflows/letters/versions/2.0")
    assert version["source"] == RENAMED
    assert version["diff"].startswith("--- 1.0\n+++ 2.0\n")
    back = await api.call("POST", "/workflows/letters/$rollback", {"version": "1.0"})
    assert back.json()["version"] == "3.0"
    assert (await api.call("DELETE", "/workflows/letters")).status_code == 204
    assert (await api.call("GET", "/workflows/letters")).status_code == 404
    actions = [entry["action"] for entry in (await api.get("/audit"))["items"]]
    assert actions[:4] == ["workflows.delete", "workflows.rollback", "workflows.edit", "workflows.create"]


async def test_a_bad_script_is_refused_with_line_and_reason(api: Api, rota: World) -> None:
    for script, why in {
        "flow = Workflow()": "script: 'flow = Workflow()' cannot be loaded: name 'Workflow' is not defined (line 1)",
        "x = 1\ndef (": "script: 'def (' cannot be loaded: invalid syntax (line 2)",
    }.items():
        answer = await api.call("POST", "/workflows", {"script": script})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "script")
        assert why in answer.text
    assert (await api.get("/workflows"))["items"] == []


async def test_a_person_accepts_or_rejects_a_repair(api: Api, rota: World) -> None:
    await api.call("POST", "/workflows", {"script": ASKS})
    await rota.publish("letters", "mail", message_id="1", payload={"title": "Hello"})
    await rota.drain()
    seen = await api.get("/workflows/letters")
    assert (seen["status"], "version 1.1 would repair it" in seen["issue"]) == ("needs_attention", True)
    answer = await api.call("POST", "/workflows/letters/versions/1.1/$reject", {"reason": "it changes nothing"})
    assert "being repaired" in answer.json()["issue"]
    await rota.drain()
    answer = await api.call("POST", "/workflows/letters/versions/1.2/$accept")
    assert answer.json()["version"] == "1.2"
    await rota.drain()
    assert (await api.get("/workflows/letters"))["issue"] is None
    items = (await api.get("/workflows/letters/versions", repairs=True))["items"]
    assert [(proposal["version"], proposal["outcome"], proposal["why"]) for proposal in items] == [
        ("1.2", "accepted", None),
        ("1.1", "rejected", "it changes nothing"),
    ]
    runs = (await api.get("/workflows/letters/runs"))["items"]
    assert {run["target_version"] for run in runs} == {"1.0", "1.2"}


async def test_the_page_shows_versions_and_accepts_decisions(api: Api, rota: World) -> None:
    async with browser(api) as web:
        await log_in(api, web)
        made = (await api.call("POST", "/workflows", {"script": ASKS})).json()["id"]
        page, path = "/workflows/letters", f"/workflows/{made}"
        await rota.publish("letters", "mail", message_id="1", payload={"title": "Hello"})
        await rota.drain()
        assert "1.1 was rejected" in await done(web, await fill(web, page, f"{path}/versions/1.1/$reject", reason="no"))
        await rota.drain()
        assert "+            data=[event.payload.get(&#34;subject&#34;)" in (await web.get(page)).text
        assert "1.2 is live" in await done(web, await fill(web, page, f"{path}/versions/1.2/$accept"))
        await rota.drain()
        assert (await api.get("/workflows/letters"))["version"] == "1.2"
        await done(web, await fill(web, page, f"{path}/$rollback", version="1.0"))
        assert (await api.get("/workflows/letters"))["version"] == "2.0"
