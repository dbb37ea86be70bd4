"""Catch-ups over HTTP, on the command line and on the dashboard."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rota.core.catch_up import CatchUpLimits
from tests.access.test_web_login import browser, log_in
from tests.app.command_line import caller, read, running_server
from tests.app.forms import done, fill, words
from tests.app.harness import Api

NIGHT = {"from": "2026-05-04T01:00:00Z", "to": "2026-05-04T05:00:00Z"}


@pytest.fixture
async def limited(api: Api) -> Api:
    """An installation in which more than three slots need an approval, with a schedule that is due every hour."""
    api.engine.settings = replace(api.engine.settings, catch_up=CatchUpLimits(slots=3))
    await api.schedule("hourly", cron_expression="0 * * * *")
    return api


async def held(api: Api) -> str:
    answer = await api.call("POST", "/schedules/hourly/$backfill", NIGHT)
    assert answer.status_code == 200, answer.text
    assert answer.json()["slots"] == []
    return str(answer.json()["catch_up"]["id"])


async def test_a_request_beyond_the_limit_waits_and_no_operator_gets_around_it(limited: Api) -> None:
    keys: dict[str, str] = {}
    for name, scopes in (("plain", []), ("other", ["approve:finance"]), ("right", ["approve:catch-up"])):
        made = await limited.call("POST", "/api-keys", {"name": name, "role": "operator", "scopes": scopes})
        keys[name] = made.json()["key"]

    async def ask(key: str, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {keys[key]}"}
        answer = await limited.client.request(method, f"/api/v1{path}", json=body, headers=headers)
        return answer.status_code, answer.json()

    dry = await ask("plain", "/schedules/hourly/$backfill", {**NIGHT, "dry_run": True})
    assert dry[1]["plan"]["waits_for"] == ["5 slots, more than 3"]
    assert (await limited.get("/catch-ups"))["items"] == []
    status, asked = await ask("plain", "/schedules/hourly/$backfill", {**NIGHT, "reprocess": True})
    assert (status, asked["count"], asked["catch_up"]["status"]) == (200, 0, "open")
    path = f"/catch-ups/{asked['catch_up']['id']}"
    for slots in ({"from": "2026-05-04T01:00:00Z", "to": "2026-05-04T02:00:00Z"}, NIGHT):
        assert (await ask("plain", "/schedules/hourly/$backfill", slots))[1]["count"] == 0
    assert (await ask("plain", "/schedules/hourly", {"misfire": "all", "catch_up_limit": 1000}, "PATCH"))[0] == 200
    for key in ("plain", "other"):
        for verb in ("$approve", "$reject"):
            status, refused = await ask(key, f"{path}/{verb}", {})
            assert (status, "approve:catch-up" in refused["detail"]) == (403, True)
    assert await limited.count("jobs") == 0
    for body in ({"gap": "some"}, {"limit": 0}, {"limit": 1001}, {"spread_hours": 0}, {"gap": "once", "limit": 1}):
        assert (await ask("right", f"{path}/$approve", body))[0] == 422, body
    assert await limited.count("jobs") == 0
    approval = {"limit": 2, "spread_hours": 4, "comment": "only two"}
    for _ in range(2):  # the second changes nothing
        status, approved = await ask("right", f"{path}/$approve", approval)
        assert (status, approved["status"], approved["fired"]) == (200, "approved", 2)
    assert (await ask("right", f"{path}/$reject", {}))[0] == 409
    assert await limited.count("jobs") == 2
    entries = (await limited.get("/audit", action="catch-ups.approve"))["items"]
    assert entries[-1]["after"]["fired"] == 2
    assert (await limited.get("/catch-ups", status="approved", schedule="hourly"))["items"][0]["limit"] == 2


async def test_what_a_resume_takes_is_shown_before(limited: Api) -> None:
    await limited.call("POST", "/schedules/hourly/$pause")
    limited.clock.set(limited.clock.now().replace(hour=14, minute=30))
    options = await limited.get("/schedules/hourly/$catch-up")
    assert [options[gap]["count"] for gap in ("skip", "once", "all")] == [0, 1, 5]
    assert options["all"]["waits_for"] == ["5 slots, more than 3"]
    assert (await limited.get("/schedules/hourly/$catch-up", limit=2))["all"]["waits_for"] == []
    bad = await limited.call("GET", "/schedules/hourly/$catch-up", params={"spread_hours": 721})
    assert bad.status_code == 422
    resumed = (await limited.call("POST", "/schedules/hourly/$resume", {"gap": "all"})).json()
    assert (resumed["paused"], resumed["catch_up"]["count"], resumed["catch_up"]["source"]) == (False, 5, "resume")
    why = await limited.get("/slots/$why", schedule="hourly", slot="2026-05-04T11:00:00Z")
    assert "waits for an approval" in why["sentences"][0]
    alone = await limited.schedule("alone")
    assert (await limited.get(f"/schedules/{alone['id']}/$catch-up"))["all"]["count"] == 0


async def test_people_decide_on_the_start_page_and_the_page_of_the_schedule(limited: Api) -> None:
    first = await held(limited)
    async with browser(limited) as web:
        await log_in(limited, web)
        for page in ("/", "/schedules/hourly"):
            text = words((await web.get(page)).text)
            assert "5 slots, more than 3" in text, page
            assert "requested as a backfill" in text, page
        await done(web, await fill(web, "/", f"/catch-ups/{first}/$reject", comment="of no use"))
        assert (await limited.get(f"/catch-ups/{first}"))["comment"] == "of no use"
        second = await held(limited)
        path = f"/catch-ups/{second}/$approve"
        await done(web, await fill(web, "/schedules/hourly", path, gap="all", limit="4", spread_hours="1.5"))
        assert "Catch-up waiting" not in words((await web.get("/schedules/hourly")).text)
    decided = await limited.get(f"/catch-ups/{second}")
    assert (decided["fired"], decided["spread_seconds"], decided["limit"]) == (4, 5400, 4)


def test_the_command_line_shows_and_decides(tmp_path: Path) -> None:
    with running_server(tmp_path, ROTA_CATCH_UP_SLOTS="2"):
        rota = caller(tmp_path)
        read(rota("-o", "json", "schedule", "add", "tick", "--task", "hello", "--every", "1h"))
        night = ("schedule", "backfill", "tick", "--from", "6h", "--to", "now")
        dry = rota(*night, "--dry-run")
        assert "would wait for an approval: " in dry.stderr
        asked = rota(*night)
        assert "slots, more than 2" in asked.stderr
        assert asked.stdout == ""
        (waiting,) = read(rota("-o", "json", "catch-up", "list", "--status", "open"))["items"]
        assert waiting["schedule"] == "tick"
        assert waiting["id"] in rota("catch-up", "list").stdout
        assert "more than 2" in rota("catch-up", "show", waiting["id"]).stdout
        refused = rota("catch-up", "approve", waiting["id"], "--gap", "some")
        assert refused.returncode != 0
        assert "gap" in refused.stderr
        approved = read(rota("-o", "json", "catch-up", "approve", waiting["id"], "--limit", "2", "--spread-hours", "1"))
        assert (approved["status"], approved["fired"]) == ("approved", 2)
        assert rota("catch-up", "reject", waiting["id"]).returncode != 0
        read(rota("-o", "json", "schedule", "pause", "tick", "--reason", "x"))
        assert read(rota("-o", "json", "catch-up", "plan", "tick"))["all"]["count"] == 0
        assert "waits for an approval" in rota("catch-up", "plan", "tick").stdout.lower()
