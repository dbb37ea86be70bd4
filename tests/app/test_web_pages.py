"""The dashboard's pages and forms, over HTTP and without script, on both databases."""

import asyncio
import html
import json
import re
import shlex
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import typer.main

from rota.app.api import streams
from rota.app.cli import app as cli
from rota.app.web.week_load import count_week
from rota.core.states import Status
from rota.engine.worker import Worker
from rota.frame.web import charts
from rota.frame.web.pages import Preferences, TimeFormat
from rota.reports import overview
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports
from rota.reports.audit import list_audit
from rota.testing import register_worker
from tests.access.test_web_login import ADA, CREDENTIALS, browser, csrf_of, link, log_in, on_sqlite, submit
from tests.app.forms import Forms, done, fill, form_on, words
from tests.app.harness import NINE, Api
from tests.app.live_api import LiveApi
from tests.kinds.hosts.agents import make_server, pair_agent

LISTS = (
    *(
        "/",
        "/timeline",
        "/timeline?span=week",
        "/grid",
        "/grid?of=pipelines",
        "/schedules",
        "/schedules/new",
        "/runs",
        "/tasks",
        "/graphs",
        "/grants",
    ),
    *("/queues", "/alarms", "/settings", "/system", "/audit"),
)
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\u202e\u2066\"'&{{7*7}}"


@pytest.fixture
async def web(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(api) as client:
        yield client


@pytest.fixture
async def admin(api: Api, web: httpx.AsyncClient) -> httpx.AsyncClient:
    """Somebody who may do everything, with a schedule to do it to."""
    await log_in(api, web)
    await api.schedule("nightly", tags=["night"])
    return web


async def audit(api: Api, action: str) -> dict[str, Any]:
    entry: dict[str, Any] = (await api.get("/audit", action=action))["items"][0]
    return entry


# pages


async def test_every_page_answers_users_who_may_see_it(api: Api, admin: httpx.AsyncClient) -> None:
    schedule = await api.get("/schedules/nightly")
    await api.job()
    (begun,) = await api.start()
    own = (
        *LISTS,
        f"/schedules/{schedule['id']}",
        f"/schedules/{schedule['id']}/edit",
        f"/runs/{begun.run_id}",
        "/tasks/hello",
    )
    for path in own:
        shown = await admin.get(path)
        assert shown.status_code == 200, (path, words(shown.text))
        assert not re.search(r"<style|style=|onclick|javascript:", shown.text), path
        assert re.findall(r'<script(?! src="/static/)', shown.text) == [], path
        assert len(shown.content) < 200_000, path
    for place in ("Timeline", "Schedules", "Runs", "Tasks", "Graphs", "Grants &amp; billing", "Settings", "Audit"):
        assert f"<span>{place}</span>" in (await admin.get("/")).text
    await api.call("POST", "/users", ADA)
    async with browser(api) as viewer:
        await submit(viewer, **CREDENTIALS)
        for path in own:
            shown = await viewer.get(path)
            assert shown.status_code == (403 if path == "/audit" else 200), path
            posts = {form.action for form in Forms(shown.text).found if form.method == "post"}
            changing = {
                "/schedules/new",
                f"/schedules/{schedule['id']}/edit",
            }  # what they cannot save they may still try out
            assert posts - changing <= {"/logout", "/preferences", "/users/me/$password", "/sessions/$end"}, path
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    async with browser(api) as other:
        await other.get(await link(api, headers={"authorization": f"Bearer {theirs['admin_key']}"}))
        for path in own:
            shown = await other.get(path)
            assert shown.status_code == (200 if path in LISTS else 404), path
            assert "nightly" not in shown.text, path
        assert "can be read" not in (await other.get("/system")).text  # the doctor knows all orgs
        assert (await other.get(f"/runs/{begun.run_id}/log.txt")).status_code == 404
        live = await other.get(f"/live/runs/{begun.run_id}/logs")
        assert live.status_code == 404


async def test_lists_are_found_by_the_address_and_paged(api: Api, admin: httpx.AsyncClient) -> None:
    for number in range(51):
        await api.schedule(f"job-{number:02}", tags=["many"])
    await api.call("POST", "/schedules/job-03/$pause", {"reason": "x"})
    page = await admin.get("/schedules")
    assert "52" in words(page.text)[:60]
    more = html.unescape(re.search(r'rel="next" href="([^"]+)"', page.text)[1])  # type: ignore[index]
    second = words((await admin.get(more)).text)
    assert "nightly" in second
    assert "job-01" not in second
    for query, shown, hidden in (
        ("name=B-0", "job-04", "job-14"), ("tag=night", "nightly", "job-04"), ("paused=true", "job-03", "job-04"),
        ("sort=-name", "nightly", "job-00"), ("condition=broken", "No schedule matches the filters", "job-04"),
    ):  # fmt: skip
        text = words((await admin.get(f"/schedules?{query}")).text)
        assert shown in text, query
        assert hidden not in text, query
    assert (await admin.get("/schedules?cursor=x")).status_code == 422
    assert (await admin.get("/runs?status=odd")).status_code == 422
    assert (await admin.get("/runs?since=2026-05-04T08:00")).status_code == 200
    assert "no entry matches" in words((await admin.get("/audit?action=none.such")).text).lower()


async def test_a_schedule_shows_its_past_and_its_future(api: Api, admin: httpx.AsyncClient) -> None:
    schedule = await api.get("/schedules/nightly")
    for status in (Status.SUCCESS, Status.FAILED):
        await api.job()
        begun = await api.start()
        await api.clock.advance(timedelta(seconds=7))
        await api.end(begun, status, "logic" if status is Status.FAILED else None)
    await api.call("PATCH", "/schedules/nightly", {"cron_expression": "0 3 * * *", "timezone": "Europe/Oslo"})
    text = words((await admin.get(f"/schedules/{schedule['id']}")).text)
    assert "Next 20" in text
    assert "2026-05-05 01:00:00 UTC" in text
    assert "the last 0 slots" not in text
    assert "revision 2: every day at 03:00 (Europe/Oslo)" in text
    assert "cron_expression 0 12 * * * 0 3 * * *" in text  # the diff
    assert "the task raised an error" in text
    await admin.post("/preferences", data={"csrf_token": csrf_of(await admin.get("/")), "time": "schedule"})
    assert "2026-05-05 03:00:00 CEST" in words((await admin.get(f"/schedules/{schedule['id']}")).text)
    week = await admin.get("/timeline?span=week&day=2026-10-24")
    assert "the clock changes in Europe/Oslo" in week.text
    await api.call("PUT", "/freeze", {"reason": "holidays", "until": "2026-05-06T00:00:00Z"})
    assert 'class="freeze"' in (await admin.get("/timeline?span=week")).text
    assert "holidays" in words((await admin.get("/")).text)


async def test_the_page_of_a_run_shows_everything(api: Api, admin: httpx.AsyncClient) -> None:
    job_id = await api.job()
    waiting = words((await admin.get(f"/runs/{job_id}")).text)
    assert "pending" in waiting
    assert "The run has not started" in waiting
    (begun,) = await api.start()
    lines = "INSERT INTO logs (run_id, at, stream, text) SELECT :run, queued_at, 'stdout', :text FROM jobs"
    for text in ("first line", "second <b>line</b>"):
        await api.execute(lines, run=begun.run_id, text=text)
    shown = await admin.get(f"/runs/{begun.run_id}")
    assert f'data-follow="/live/runs/{begun.run_id}/logs' in shown.text
    assert "second &lt;b&gt;line" in shown.text
    page_text = words((await admin.get(f"/runs/{begun.run_id}?q=FIRST&only=on")).text)
    assert "first line" in page_text
    assert "second" not in page_text
    whole = await admin.get(f"/runs/{begun.run_id}/log.txt")
    assert whole.headers["content-disposition"] == f'attachment; filename="{begun.run_id}.log"'
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert [line.split(" ", 2)[2] for line in whole.text.splitlines()] == ["first line", "second <b>line</b>"]
    stopped = await fill(admin, f"/runs/{begun.run_id}", f"/runs/{begun.run_id}/$cancel", audit_reason="wrong day")
    text = await done(admin, stopped)
    assert "Cancellation requested" in text
    assert "Cancelling" in text
    assert "killed if still running 2026-05-04 09:00:10 UTC" in text
    assert (await audit(api, "runs.cancel"))["after"]["because"] == "wrong day"
    await api.end([begun], Status.CANCELED, "operator")
    ended = words((await admin.get(f"/runs/{begun.run_id}")).text)
    assert "attempts over" not in ended  # that is the text alternative of the chart
    assert "A user asked for it" in ended
    again = await fill(admin, f"/runs/{begun.run_id}", f"/runs/{begun.run_id}/$retry")
    assert again.headers["location"] == f"/runs/{(await audit(api, 'runs.retry'))['after']['result']}"
    assert (await admin.get(again.headers["location"])).status_code == 200
    artifact = await admin.get(f"/files/{begun.run_id}")
    assert artifact.headers["content-disposition"].startswith("attachment")
    assert artifact.json()["task"]["name"] == "hello"


# forms


async def test_everything_that_can_be_done_to_a_schedule_is_done_by_forms(api: Api, admin: httpx.AsyncClient) -> None:
    schedule = await api.get("/schedules/nightly")
    path = f"/schedules/{schedule['id']}"
    text = await done(admin, await fill(admin, path, f"{path}/$pause", reason="räumen", until="2026-05-04T12:30"))
    assert "nightly paused" in text
    paused = await api.get("/schedules/nightly")
    assert (paused["pause_reason"], paused["paused_until"]) == ("räumen", "2026-05-04T12:30:00+00:00")
    assert "nightly resumed" in await done(admin, await fill(admin, path, f"{path}/$resume", gap="once"))
    assert not (await api.get("/schedules/nightly"))["paused"]
    await done(admin, await fill(admin, path, f"{path}/$skip-next", reason="holiday"))
    assert (await api.get("/schedules/nightly"))["next_slot"] == "2026-05-05T12:00:00+00:00"
    ran = await fill(admin, path, f"{path}/$run", input='{"name": "Ada"}')
    assert ran.headers["location"].startswith("/runs/")
    assert '"name": "Ada"' in words((await admin.get(ran.headers["location"])).text)
    wrong = await fill(admin, path, f"{path}/$run", input='{"name": ')
    assert (wrong.status_code, "is not JSON" in wrong.text) == (422, True)
    wrong = await fill(admin, path, f"{path}/$run", input='{"unknown": 1}')
    assert wrong.status_code == 422
    off = await fill(admin, path, path, "PATCH", audit_reason="not needed")
    assert "nightly is disabled" in await done(admin, off)
    assert (await audit(api, "schedules.edit"))["after"]["because"] == "not needed"
    assert not (await api.get("/schedules/nightly"))["enabled"]
    assert "nightly is enabled" in await done(admin, await fill(admin, path, path, "PATCH"))
    gone = await fill(admin, path, path, "DELETE", audit_reason="обновление")
    assert gone.headers["location"] == "/schedules"
    assert "nightly was deleted" in await done(admin, gone)
    line = await audit(api, "schedules.delete")
    assert (line["after"]["because"], line["user_name"]) == ("обновление", "system")
    assert (await admin.get(path)).status_code == 404


async def test_a_backfill_is_rehearsed_before_it_is_done(api: Api, admin: httpx.AsyncClient) -> None:
    path = f"/schedules/{(await api.get('/schedules/nightly'))['id']}"
    await api.clock.advance(timedelta(days=3))
    await api.execute("UPDATE clocks SET next_slot = next_slot")  # nothing fired: the past has no rows
    span = {"from_": "2026-05-01T00:00", "to": "2026-05-04T00:00"}
    shown = await fill(admin, path, path, "GET", **span)
    assert shown.status_code == 200
    assert "3 slots would run" in words(shown.text)
    assert await api.count("jobs") == 0
    form = form_on(shown.text, f"{path}/$backfill")
    assert "3 slots will run" in await done(admin, await admin.post(form.action, data=form.fields))
    assert await api.count("jobs") == 3
    assert "No slot in this range is left to run" in words((await fill(admin, path, path, "GET", **span)).text)
    refused = await fill(admin, path, path, "GET", from_="2026-05-04T00:00", to="2026-05-01T00:00")
    assert "lies before" in words(refused.text)
    assert "is not a whole number" in words((await fill(admin, path, path, "GET", **span, limit="x")).text)


async def test_all_that_match_are_paused_resumed_and_deleted_together(api: Api, admin: httpx.AsyncClient) -> None:
    for name in ("a-1", "a-2", "b-1"):
        await api.schedule(name)
    search = "/schedules?name=a-"
    assert "2 schedules paused" in await done(admin, await fill(admin, search, "/schedules/$pause", reason="x"))
    assert not (await api.get("/schedules/b-1"))["paused"]
    assert "2 schedules resumed" in await done(admin, await fill(admin, search, "/schedules/$resume"))
    text = await done(admin, await fill(admin, search, "/schedules/$delete", audit_reason="tidy"))
    assert "2 schedules deleted" in text
    assert [schedule["name"] for schedule in (await api.get("/schedules"))["items"]] == ["b-1", "nightly"]
    assert (await audit(api, "schedules.delete"))["after"] == {"count": 2, "because": "tidy"}
    none = await fill(admin, "/schedules?paused=false", "/schedules/$resume")
    assert "0 schedules resumed" in await done(admin, none)


async def test_a_schedule_of_a_program_names_it_before_an_edit_is_refused(api: Api, admin: httpx.AsyncClient) -> None:
    path = f"/schedules/{(await api.get('/schedules/nightly'))['id']}"
    assert "Managed by" not in (await admin.get(path)).text
    await api.execute("UPDATE schedules SET source = 'code:shop'")
    for page in (path, f"{path}/edit"):
        assert "Managed by program shop : change its fields there" in words((await admin.get(page)).text)
    refused = await fill(admin, f"{path}/edit", f"{path}/edit", cron_expression="0 5 * * *")
    assert "is managed by program 'shop'" in words(refused.text)


async def test_the_editor_shows_the_impact_of_an_edit_before_it_is_saved(api: Api, admin: httpx.AsyncClient) -> None:
    stored = await api.get("/schedules/nightly")
    edit = f"/schedules/{stored['id']}/edit"
    assert "If you save this" not in (await admin.get(edit)).text
    page = await fill(admin, edit, edit, cron_expression="0 13 * * *", preview="1")
    assert "30 slots become 30: 0 added, 0 removed, 30 moved. Changed: cron_expression" in words(page.text)
    live = await admin.post("/schedules/preview", data=form_on(page.text, edit).fields)  # as the script sends it
    assert "If you save this" in words(live.text)
    assert await api.get("/schedules/nightly") == stored


async def test_a_schedule_is_made_and_edited_with_a_preview(api: Api, admin: httpx.AsyncClient) -> None:
    new = "/schedules/new"
    shown = await fill(admin, new, new, target="hello", cron_expression="*/7 9 * * *", preview="1")
    assert shown.status_code == 200
    text = words(shown.text)
    assert "Every day at minutes 0, 7, 14" in text
    assert "*/7 does not divide the hour" in text
    assert "Mon 2026-05-04 09:07:00 UTC, in 7m" in text
    assert "input.name" in form_on(shown.text, new).fields  # the task's own parameters, from its schema
    assert await api.count("schedules") == 1
    either = await fill(admin, new, new, target="hello", cron_expression="0 9 13 * 5", preview="1")
    assert "A day of the month OR a day of the week is enough" in words(either.text)
    change = await fill(
        admin,
        new,
        new,
        target="hello",
        cron_expression="30 2 * * *",
        timezone="Europe/Oslo",
        starts_at="2026-10-24T00:00",
        preview="1",
    )
    assert "happens twice on this day" in words(change.text)
    never = await fill(admin, new, new, target="hello", cron_expression="0 0 31 2 *", preview="1")
    assert "names a day that no month has" in words(never.text)
    form = form_on(shown.text, new)
    made = await admin.post(new, data={**form.fields, "name": "seven", "input.name": "Ada"})
    assert "seven is created" in await done(admin, made)
    stored = await api.get("/schedules/seven")
    assert (stored["input"], stored["cron_expression"]) == ({"name": "Ada"}, "*/7 9 * * *")
    edit = f"/schedules/{stored['id']}/edit"
    saved = await fill(
        admin,
        edit,
        edit,
        schedule_type="interval",
        interval="5m",
        retry__max_retries="3",
        tags="a, b",
        timeout_seconds="30",
        window_start="08:00",
        window_end="18:00",
    )
    assert "seven is saved: every 5 minutes" in await done(admin, saved)
    stored = await api.get("/schedules/seven")
    assert (stored["interval_seconds"], stored["tags"], stored["retry"]["max_retries"]) == (300, ["a", "b"], 3)
    assert stored["input"] == {"name": "Ada"}
    anchor = stored["anchor"]
    await done(admin, await fill(admin, edit, edit, description="every five"))
    assert (await api.get("/schedules/seven"))["anchor"] == anchor
    shown = await admin.get(edit)
    await api.call("PATCH", "/schedules/seven", {"priority": 5})
    late = await admin.post(edit, data={**form_on(shown.text, edit).fields, "priority": "9"})
    assert late.status_code == 412
    assert form_on(late.text, edit).fields["priority"] == "9"  # what was typed is not lost
    wrong = await fill(admin, edit, edit, timezone="Mars/Base", max_runs="many", name=" x ")
    assert wrong.status_code == 422
    assert words(wrong.text).count("must be an IANA time zone") >= 1
    assert 'value="many"' in wrong.text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"schedule_type": "interval", "interval": "90s"}, {"interval_seconds": 90}),
        (
            {"schedule_type": "once", "run_at": "2026-06-01T09:00", "timezone": "Europe/Oslo"},
            {"run_at": "2026-06-01T07:00:00+00:00"},
        ),
        ({"schedule_type": "cron", "cron_expression": "@daily", "enabled": "false"}, {"enabled": False}),
        (
            {"kind": "graph", "target": "python:echo", "cron_expression": "0 1 * * *", "input": '{"say": "hi"}'},
            {"kind": "graph", "input": {"say": "hi"}},
        ),
    ],
)
@on_sqlite
async def test_every_type_of_timing_and_kind_of_target_is_made_by_the_form(
    api: Api, admin: httpx.AsyncClient, fields: dict[str, str], expected: dict[str, Any]
) -> None:
    made = await fill(admin, "/schedules/new", "/schedules/new", **{"name": "made", "target": "hello", **fields})
    await done(admin, made)
    assert (await api.get("/schedules/made")).items() >= expected.items()


async def test_tasks_graphs_and_grants_have_their_forms(api: Api, admin: httpx.AsyncClient) -> None:
    made = await fill(admin, "/tasks", "/tasks", name="df", command="df -h", parameters="")
    task = await api.get("/tasks/df")
    assert made.headers["location"] == f"/tasks/{task['id']}"
    path = made.headers["location"]
    shown = await admin.get(path)
    edit = next(form for form in Forms(shown.text).found if "command" in form.fields)
    assert "df is saved" in await done(admin, await admin.post(path, data={**edit.fields, "command": "df -i"}))
    assert (await api.get("/tasks/df"))["command"] == "df -i"
    ran = await fill(
        admin, "/tasks/hello", f"/tasks/{(await api.get('/tasks/hello'))['id']}/$execute", input__name="Bob"
    )
    assert '"name": "Bob"' in words((await admin.get(ran.headers["location"])).text)
    assert "df was deleted" in await done(admin, await fill(admin, path, path, "DELETE", audit_reason="gone"))
    poem = await fill(admin, "/graphs", "/graphs/python%3Aecho/$run", input='{"say": "hi"}')
    assert "python:echo" in words((await admin.get(poem.headers["location"])).text)
    await done(
        admin,
        await fill(
            admin,
            "/grants",
            "/grants",
            scopes="graph:execute:python:echo\ntask:execute:hello",
            budget__total="500",
            expires_at="2026-05-20T00:00",
        ),
    )
    grant = next(grant for grant in (await api.get("/grants"))["items"] if grant["budget"])
    assert (grant["scopes"][1], grant["budget"]["total"]) == ("task:execute:hello", 500)
    wide = await fill(admin, "/grants", "/grants", scopes="graph:execute:*")
    assert (wide.status_code, "consent" in wide.text) == (422, True)
    assert (await fill(admin, "/grants", "/grants", scopes="graph:execute:*", consent="true")).status_code == 303
    await api.schedule("under", grant_id=grant["id"])
    assert "Lapses within 30 days" in words((await admin.get("/grants")).text)
    revoked = await fill(admin, "/grants", f"/grants/{grant['id']}/$revoke", audit_reason="leak")
    assert "Grant revoked" in await done(admin, revoked)
    assert (await api.get(f"/grants/{grant['id']}"))["revoked_at"]
    assert (await audit(api, "grants.revoke"))["after"]["because"] == "leak"
    await done(admin, await fill(admin, "/grants", "/billing/credits", amount_credits="5000", reference="inv-1"))
    assert (await api.get("/billing/account"))["balance_credits"] == 5000
    assert "5 000" in words((await admin.get("/grants")).text)


async def test_queues_people_keys_and_the_freeze_have_their_forms(api: Api, admin: httpx.AsyncClient) -> None:
    await api.job()
    changed = await fill(
        admin, "/queues", "/queues/default", "PUT", max_running="3", paused="true", audit_reason="slow down"
    )
    assert "default changed" in await done(admin, changed)
    assert (await api.get("/queues/default")).items() >= {"max_running": 3, "paused": True}.items()
    frozen = await fill(admin, "/settings", "/freeze", "PUT", reason="release", until="2026-05-05T00:00")
    assert "Frozen" in await done(admin, frozen)
    assert (await api.get("/freeze"))["until"] == "2026-05-05T00:00:00+00:00"
    assert "Freeze ended" in await done(admin, await fill(admin, "/", "/freeze", "DELETE"))
    added = await fill(admin, "/settings", "/users", email="ada@example.org", password="long enough", role="viewer")
    assert "User ada@example.org created" in await done(admin, added)
    (ada,) = (await api.get("/users"))["items"]
    path = f"/users/{ada['id']}"
    await done(admin, await fill(admin, "/settings", path, "PATCH", role="operator"))
    assert (await api.get(path))["role"] == "operator"
    made = await fill(admin, "/settings", "/api-keys", name="deploy", scopes="schedules, runs:read", role="operator")
    assert made.status_code == 200  # shown once, on the answer itself: an address or a cookie would keep it
    secret = re.search(r"rota_[\w-]{30,}", made.text)[0]  # type: ignore[index]
    key = next(api_key for api_key in (await api.get("/api-keys"))["items"] if api_key["name"] == "deploy")
    assert key["scopes"] == ["runs:read", "schedules"]
    assert secret not in (await admin.get("/settings")).text
    headers = {"authorization": f"Bearer {secret}"}
    assert (await api.call("GET", "/schedules", headers=headers)).status_code == 200
    await done(admin, await fill(admin, "/settings", f"/api-keys/{key['id']}", "DELETE", audit_reason="rotated"))
    assert (await api.call("GET", "/schedules", headers=headers)).status_code == 401
    assert "deleted" in await done(admin, await fill(admin, "/settings", path, "DELETE", audit_reason="left"))


# who may, and who asks


async def test_a_form_needs_its_token_and_the_role_that_the_api_demands(api: Api, admin: httpx.AsyncClient) -> None:
    schedule = await api.get("/schedules/nightly")
    path = f"/schedules/{schedule['id']}"
    forms = [
        form
        for page in (*LISTS, path, f"{path}/edit", "/tasks/hello")
        for form in Forms((await admin.get(page)).text).found
        if form.method == "post"
    ]
    assert len({form.action for form in forms}) >= 20
    for form in forms:
        for wrong in ({}, {"csrf_token": "0" * 64}):
            fields = {name: text for name, text in form.fields.items() if name != "csrf_token"}
            refused = await admin.post(form.action, data={**fields, **wrong})
            assert refused.status_code == 403, form.action
    assert await api.get("/schedules/nightly") == schedule
    await api.call("POST", "/users", ADA)
    async with browser(api) as viewer:
        await submit(viewer, **CREDENTIALS)
        theirs = csrf_of(await viewer.get("/"))
        for form in forms:
            if form.action in ("/logout", "/preferences", "/sessions/$end"):  # of every user
                continue
            refused = await viewer.post(form.action, data={**form.fields, "csrf_token": theirs})
            assert refused.status_code in (403, 422), (form.action, refused.status_code)
            if refused.status_code == 403:
                assert "this needs the role" in words(refused.text).lower(), form.action
    assert await api.get("/schedules/nightly") == schedule


@on_sqlite
async def test_what_a_key_may_not_do_its_session_may_not(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("nightly")
    body = {"name": "narrow", "role": "operator", "scopes": ["schedules:read", "login-links"]}
    key = (await api.call("POST", "/api-keys", body)).json()["key"]
    await web.get(await link(api, headers={"authorization": f"Bearer {key}"}))
    shown = await web.get("/schedules")
    assert shown.status_code == 200
    token = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', shown.text)[1]  # type: ignore[index]
    refused = await web.post("/schedules/nightly/$pause", data={"csrf_token": token, "reason": "x"})
    assert refused.status_code == 403
    assert "this needs the scope schedules" in words(refused.text).lower()
    assert (await web.get("/runs")).status_code == 403
    assert (await web.get("/live/events")).status_code == 403


@on_sqlite
def test_what_a_page_follows_ends_with_the_session(clean_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.2)
    monkeypatch.setattr(streams, "AUTHORIZATION_SECONDS", 0.2)
    with LiveApi(clean_url) as live, httpx.Client(base_url=live.url, timeout=20) as web:
        body = {"name": "short", "role": "viewer"}
        made = httpx.post(f"{live.url}/api/v1/api-keys", json=body, headers=live.headers, timeout=60).json()
        headers = {"authorization": f"Bearer {made['key']}"}
        web.get(httpx.post(f"{live.url}/api/v1/login-links", headers=headers, timeout=60).json()["url"])
        with web.stream("GET", "/live/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 2000"
            assert ": still here" in lines
            httpx.delete(f"{live.url}/api/v1/api-keys/{made['id']}", headers=live.headers)
            assert len(list(lines)) < 50  # the rest, to the end
        assert web.get("/live/events").headers["location"].startswith("/login")


@on_sqlite
async def test_forms_lead_only_to_pages_of_this_site_and_take_no_strange_methods(
    api: Api, admin: httpx.AsyncClient
) -> None:
    token = csrf_of(await admin.get("/"))
    for then in ("//evil.org", "https://evil.org", "javascript:alert(1)"):
        sent = {"csrf_token": token, "reason": "x", "then": then}
        assert (await admin.post("/schedules/nightly/$pause", data=sent)).headers["location"] == "/"
    strange = await admin.post("/schedules/nightly", data={"csrf_token": token, "form_method": "TRACE"})
    assert strange.status_code == 405
    assert (await admin.post("/nowhere", data={"csrf_token": token})).status_code == 404
    for path in ("/nowhere", "/live/schedules", "/live/api-keys", "/files/x/y"):  # the cookie opens pages, not the API
        assert (await admin.get(path)).status_code == 404, path
    async with browser(api) as stranger:
        for path in ("/live/events", "/live/runs/x/logs", "/files/x"):
            assert (await stranger.get(path)).headers["location"].startswith("/login")


@on_sqlite
async def test_colours_and_times_are_chosen_without_script(api: Api, admin: httpx.AsyncClient) -> None:
    token = csrf_of(await admin.get("/"))
    chosen = await admin.post(
        "/preferences", data={"csrf_token": token, "theme": "dark", "time": "Asia/Tokyo", "then": "/runs"}
    )
    assert chosen.headers["location"] == "/runs"
    shown = await admin.get("/")
    assert 'data-theme="dark"' in shown.text
    assert "2026-05-04 18:00:00 JST" in shown.text
    odd = await admin.post("/preferences", data={"csrf_token": token, "time": "Mars/Base"})
    assert odd.status_code == 422
    admin.cookies.set("rota_theme", "<script>")
    admin.cookies.set("rota_time", "%3Cscript%3E")
    admin.cookies.set("rota_flash", "%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in (await admin.get("/")).text


async def test_density_and_columns_of_lists_are_chosen_and_kept(api: Api, admin: httpx.AsyncClient) -> None:
    await api.job()
    await api.start()
    token = csrf_of(await admin.get("/"))
    assert "data-density" not in (await admin.get("/runs")).text
    await admin.post("/preferences", data={"csrf_token": token, "density": "comfortable"})
    assert 'data-density="comfortable"' in (await admin.get("/runs")).text
    assert "<th>Reason</th>" in (await admin.get("/runs")).text
    chosen = {"csrf_token": token, "list": "runs", "column.worker": "on", "column.input": "on", "then": "/runs"}
    await admin.post("/preferences", data=chosen)
    headings = re.findall(r"<th[^>]*>(?:<input[^>]*> )?([^<]*)</th>", (await admin.get("/runs")).text)
    assert headings == ["Target", "Worker", "Input"]
    assert "<th>When</th>" in (await admin.get("/schedules")).text  # each list has its own choice
    await admin.post("/preferences", data={"csrf_token": token, "list": "runs"})
    assert "<th>Reason</th>" in (await admin.get("/runs")).text  # none chosen: the usual ones
    admin.cookies.set("rota_columns_runs", "<script>.worker")
    headings = re.findall(r"<th[^>]*>(?:<input[^>]*> )?([^<]*)</th>", (await admin.get("/runs")).text)
    assert headings == ["Target", "Worker"]


# what others wrote


async def test_nothing_that_others_wrote_is_taken_for_markup(api: Api, admin: httpx.AsyncClient) -> None:
    word = "w" * 10_000
    evil = EVIL.replace("\u202e", "").replace("\u2066", "").replace("/", "|")  # as far as names may go
    schedule = await api.schedule(
        evil, description=f"{EVIL} {word}"[:1000], tags=[evil[:150]], input={"name": f"{EVIL} {word}"}
    )
    await api.call("POST", "/tasks", {"name": f"{evil} task", "command": f"echo {EVIL} {word}"})
    task = await api.get("/tasks")
    await api.call("POST", "/users", {**ADA, "name": evil})
    await api.call("POST", "/api-keys", {"name": evil, "role": "viewer"})
    await api.call("POST", "/grants", {"scopes": [f"task:execute:{evil}".replace("*", "")]})
    await api.call("POST", "/schedules/nightly/$pause", {"reason": EVIL})
    await api.call("PUT", "/freeze", {"reason": EVIL})
    await api.call("POST", "/billing/credits", {"amount_credits": 5, "reference": evil})
    answer = await api.call("POST", f"/schedules/{schedule['id']}/$run", {})
    (begun,) = await api.start()
    await api.execute(
        "INSERT INTO logs (run_id, at, stream, text) SELECT :run, queued_at, 'stderr', :text FROM jobs",
        run=begun.run_id,
        text=f"{EVIL} {word}",
    )
    await api.end([begun], Status.FAILED, "logic")
    error = {"type": EVIL, "message": f"{EVIL} {word}", "traceback": f"{EVIL}\n{word}"}
    await api.execute(
        "UPDATE runs SET error = :error, outcome = :outcome, target_name = :name",
        error=json.dumps(error),
        outcome=json.dumps({"said": f"{EVIL} {word}"}),
        name=evil,
    )
    assert answer.status_code == 202
    tasks = [f"/tasks/{item['id']}" for item in task["items"]]
    pages = (
        *LISTS,
        f"/schedules/{schedule['id']}",
        f"/schedules/{schedule['id']}/edit",
        f"/runs/{begun.run_id}",
        *tasks,
    )
    seen = 0
    for path in pages:
        shown = await admin.get(path)
        assert shown.status_code == 200, path
        assert "<script>alert" not in shown.text, path
        assert "<img src=x" not in shown.text, path
        assert len(shown.content) < 200_000, (path, len(shown.content))
        seen += "&lt;script&gt;alert" in shown.text
    assert seen >= 12


@on_sqlite
async def test_each_command_that_a_page_shows_is_there(api: Api, admin: httpx.AsyncClient) -> None:
    path = f"/schedules/{(await api.get('/schedules/nightly'))['id']}"
    await api.job()
    (begun,) = await api.start()
    shown = ""
    for page in (*LISTS, path, f"{path}/edit", "/tasks/hello", f"/runs/{begun.run_id}", "/schedules?name=none"):
        shown += (await admin.get(page)).text
    commands = {html.unescape(match) for match in re.findall(r"<code>(rota [^<]+)</code>", shown)}
    assert len(commands) >= 15
    root = typer.main.get_command(cli)
    for command in commands:
        place: Any = root
        words_ = shlex.split(command)[1:]
        while words_ and hasattr(place, "commands"):
            place = place.commands[words_.pop(0)]
        known = {option for param in place.params for option in param.opts + param.secondary_opts}
        assert {word for word in words_ if word.startswith("--")} <= known, command
    routes = set(api.app.openapi()["paths"])
    for path_ in {html.unescape(match) for match in re.findall(r"/api/v1(/[^ <]+) ", shown)}:
        shape = re.sub(r"/[0-9A-HJKMNP-TV-Z]{26}|/python%3Aecho|/default", "/{}", path_)
        assert any(re.sub(r"\{\w+\}", "{}", route) == f"/api/v1{shape}" for route in routes), path_


# what pages ask of the store


async def test_the_parts_of_pages_are_read_in_bounds(api: Api) -> None:
    schedule = await api.schedule("nightly")
    for _ in range(3):
        await api.job()
        await api.end(await api.start())
    assert await api.db.read(overview.lateness, api.org_id) == []  # runs by agent have no slot to be late for
    assert await api.db.read(overview.last_durations, [schedule["id"]]) == {schedule["id"]: 0.0}
    assert await api.db.read(slot_reports.strips, [schedule["id"]]) == {schedule["id"]: []}
    timings, limited, last_id = await api.db.read(schedule_reports.timings, api.org_id, "", 10)
    assert (list(timings.values()), limited, last_id) == ([1], [], None)
    line = (await api.db.read(list_audit, api.org_id, resource="schedules", resource_id=schedule["id"]))[0][-1]
    assert line["action"] == "schedules.create"
    assert await api.db.read(overview.late, api.org_id, ["task"], NINE + timedelta(days=1))
    assert await api.db.read(slot_reports.missed, api.org_id, NINE, 5) == []


async def test_the_load_of_the_week_begins_with_a_whole_hour(api: Api, admin: httpx.AsyncClient) -> None:
    for number in range(12):
        await api.schedule(f"each hour {number}", cron_expression=f"{5 * number} * * * *")
    api.clock.set(NINE + timedelta(minutes=25))
    await api.schedule("ends soon", cron_expression="* * * * *", max_runs=100)
    await api.schedule("paused", cron_expression="* * * * *")
    await api.call("POST", "/schedules/paused/$pause", {"reason": "not counted"})
    page = await until_counted(admin)
    assert "2,089 slots of 14 active schedules, 12 to 72 an hour" in page
    load = await count_week(api.db, api.org_id, api.clock.now())
    assert load.start == NINE + timedelta(hours=1)
    assert sum(load.hours) == 2089


async def until_counted(admin: httpx.AsyncClient) -> str:
    """Return the text of the timeline when it shows the load of the week."""
    async with asyncio.timeout(20):
        while "being counted" in (page := words((await admin.get("/timeline")).text)):
            pass
    return page


def test_the_colours_of_the_week_begin_at_zero() -> None:
    drawn = charts.heat([100, 99, 50, 1, 0, *[90] * 19], NINE, TimeFormat(Preferences("", "UTC"), NINE))
    levels = re.findall(r'class="heat([0-5])"', str(drawn))
    assert levels[:6] == ["5", "5", "3", "1", "0", "5"]


async def test_the_audit_log_names_and_links_what_was_changed(api: Api, admin: httpx.AsyncClient) -> None:
    schedule = await api.get("/schedules/nightly")
    await api.call("POST", "/schedules/nightly/$pause", {"reason": "night off"})
    text = (await admin.get("/audit?action=schedules.pause")).text
    assert f'<a href="/schedules/{schedule["id"]}">nightly</a>' in text
    assert (await audit(api, "schedules.pause"))["resource_name"] == "nightly"


async def test_viewers_are_not_offered_the_audit_log(api: Api, admin: httpx.AsyncClient) -> None:
    await api.call("POST", "/users", ADA)
    async with browser(api) as client:
        await submit(client, **CREDENTIALS)
        assert 'href="/audit"' not in (await client.get("/")).text
        text = (await client.get("/tasks/hello")).text
        assert "Changes" not in text
        assert "schedules.create" not in (await client.get("/schedules/nightly")).text
    assert 'href="/audit"' in (await admin.get("/")).text
    assert "Changes" in (await admin.get("/tasks/hello")).text


@on_sqlite
async def test_pages_show_nothing_that_the_scopes_of_a_key_keep_from_the_api(api: Api, web: httpx.AsyncClient) -> None:
    agent = await pair_agent(api)
    await agent.register({"restart": {"read_only": False, "schema": {}}})
    server = await make_server(api, agent, "canary-server", labels={"role": "web"})
    order = {"job_type": "restart", "payload": {}}
    job = (await api.call("POST", "/host-jobs", {"server_instance_id": server, **order})).json()["job_id"]
    batch = (await api.call("POST", "/batches", {"labels": {"role": "web"}, **order})).json()["batch_id"]
    await api.db.tx(register_worker, Worker(api.engine), api.engine)
    schedule = (await api.schedule("canary-schedule"))["id"]
    run = (await api.call("POST", "/schedules/canary-schedule/$run", {})).json()["job_id"]
    hidden = {
        f"/hosts/{agent.host_id}": ["canary-server", job],
        "/hosts": [batch],
        "/tasks/hello": ["canary-schedule", run],
        f"/schedules/{schedule}": [f"/runs/{run}"],
        "/schedules/new": ["canary-server", '"hello"'],
        "/queues": ["Last heartbeat"],
    }
    await log_in(api, web)
    for path, texts in hidden.items():
        text = (await web.get(path)).text
        assert [expected for expected in texts if expected not in text] == [], path  # an unrestricted reader sees it
    for path, texts in hidden.items():
        scopes = [f"{path.split('/')[1]}:read", "login-links"]
        made = await api.call("POST", "/api-keys", {"name": "narrow", "role": "viewer", "scopes": scopes})
        key = made.json()["key"]
        async with browser(api) as client:
            await client.get(await link(api, headers={"authorization": f"Bearer {key}"}))
            answer = await client.get(path)
            assert answer.status_code == 200, path
            assert [text for text in texts if text in answer.text] == [], path


async def test_a_page_that_is_not_found_keeps_the_navigation(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/no/such/page")
    assert answer.status_code == 404
    assert "page /no/such/page not found" in words(answer.text).lower()
    assert 'href="/schedules"' in answer.text


async def test_the_list_of_runs_of_a_new_installation_asks_for_no_filter(admin: httpx.AsyncClient) -> None:
    assert "No runs yet" in (await admin.get("/runs")).text
    assert "No run matches the filters" in (await admin.get("/runs?status=failed")).text


async def test_the_first_page_lists_failing_schedules_until_they_are_acknowledged(
    api: Api, admin: httpx.AsyncClient
) -> None:
    await api.job()
    (begun,) = await api.start()
    await api.end([begun], Status.FAILED, "logic")
    assert "Failing 1: the newest job" in words((await admin.get("/")).text)
    await fill(admin, "/", f"/runs/{begun.run_id}/$acknowledge", note="disk is ordered")
    text = words((await admin.get("/")).text)
    assert "the newest job" not in text
    assert "Failing, acknowledged 1" in text
    assert "Acknowledged by" in text
    assert "disk is ordered" in text


async def test_the_first_page_lists_hosts_that_are_offline_until_they_are_back(
    api: Api, admin: httpx.AsyncClient
) -> None:
    await pair_agent(api, "paired", up=False)  # its agent never ran: not offline, but new
    alpha = await pair_agent(api)
    assert "offline" not in attention(await admin.get("/"))
    await api.clock.advance(timedelta(minutes=5))
    await api.db.tx(register_worker, Worker(api.engine), api.engine)
    text = attention(await admin.get("/"))
    assert "Offline hosts alpha offline last heartbeat 5m ago" in text
    assert "paired" not in text
    assert f'href="/hosts/{alpha.host_id}"' in (await admin.get("/")).text
    assert "1 host offline" in words((await admin.get("/")).text)
    await alpha.register()
    assert "offline" not in attention(await admin.get("/"))
    assert "All healthy" in words((await admin.get("/")).text)


def attention(answer: httpx.Response) -> str:
    """The part of the first page that lists what needs attention; empty if the page has no such part."""
    return words("".join(re.findall(r'<div id="attention" data-live>\s*<section.*?</section>', answer.text, re.DOTALL)))
