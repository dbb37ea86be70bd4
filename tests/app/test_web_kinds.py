"""The dashboard's pages for workflows, pipelines and hosts, over HTTP and without script, on both databases."""

import html
import re
import shlex
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import typer.main

from rota import AuthError, Unsure
from rota.app.cli import app as cli
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.workflows.manager import deploy_all
from rota.kinds.workflows.rules import Resolution
from rota.kinds.workflows.runner import WorkflowRunner
from rota.testing import World, register_worker
from tests.access.test_web_login import ADA, CREDENTIALS, browser, csrf_of, log_in, submit
from tests.app.forms import Forms, done, fill, form_on, words
from tests.app.harness import Api
from tests.kinds.hosts.agents import FakeAgent, make_server, pair_agent, run_job
from tests.kinds.pipelines.test_api import ORDERS, TOTALS
from tests.kinds.workflows.inbox import Inbox, make_inbox

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\u202e\u2066\"'&{{7*7}}"
NAME = "<img src=x onerror=alert(1)>\"'&{{7*7}}"  # a name is printable
LABEL = "<script>alert(1)</script>"
TOTALS_PATH = "/pipelines/sales/silver/daily_totals"


@pytest.fixture
async def web(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(api) as client:
        await log_in(api, client)
        yield client


async def flows(api: Api, **options: Any) -> tuple[World, Inbox]:
    """The inbox workflow, in the engine behind the API."""
    inbox = make_inbox(**options)
    program = inbox.app
    runner = WorkflowRunner(program.workflows, program.connectors, api.db, program.org)
    api.engine.runners[runner.kind] = runner  # type: ignore[index]
    await deploy_all(api.engine, program.org, "test.py", program.workflows)
    worker = Worker(api.engine)
    await api.db.tx(register_worker, worker, api.engine)
    return World(api.engine, api.clock, worker, Scheduler(api.engine), api.org_id), inbox


async def create_pipelines(api: Api) -> None:
    for body in (ORDERS, TOTALS):
        assert (await api.call("POST", "/pipelines", body)).status_code == 201


async def because(api: Api, action: str) -> str:
    entry: dict[str, Any] = (await api.get("/audit", action=action))["items"][0]
    return str(entry["after"]["because"])


async def lost(api: Api) -> tuple[FakeAgent, str, str]:
    """A host whose agent began a job and lost it: its server, and the job."""
    agent = await pair_agent(api)
    server = await make_server(api, agent, labels={"role": "web"}, config={"password": "hunter2", "port": 80})
    job_id = await run_job(api, server)
    (job,) = await agent.claim()
    await agent.register(**{f"{job['job_id']}_{job['fence']}": "unknown"})
    assert (await api.get(f"/host-jobs/{job_id}"))["waits_for"] == "reconciliation"
    return agent, server, job_id


# what all of them share


async def test_without_data_pages_teach_the_one_command(api: Api, web: httpx.AsyncClient) -> None:
    for path, command in (
        ("/workflows", "rota up examples/workflows.py"), ("/pipelines", "rota up examples/pipelines.py"),
        ("/hosts", "rota agent pair --server http://rota --token …"),
    ):  # fmt: skip
        shown = await web.get(path)
        assert shown.status_code == 200
        assert command in words(shown.text)
        assert f'href="{path}" data-go=' in shown.text
    assert "No pipeline matches" in words((await web.get("/pipelines?namespace=none")).text)
    for path in ("/workflows/none", "/pipelines/a/bronze/none", "/hosts/none", "/batches/none"):
        assert (await web.get(path)).status_code == 404, path


async def all_pages(api: Api) -> list[str]:
    rota, _ = await flows(api)
    await rota.drain()
    await create_pipelines(api)
    _, server, _ = await lost(api)
    batch = (await api.call("POST", "/batches", {"labels": {"role": "web"}, "job_type": "look"})).json()["batch_id"]
    host = (await api.get("/hosts"))["items"][0]["id"]
    flow = (await api.get("/workflows"))["items"][0]["id"]
    assert server
    own = [f"/workflows/{flow}", "/workflows/inbox", TOTALS_PATH, f"/hosts/{host}", "/hosts/alpha", f"/batches/{batch}"]
    return ["/workflows", "/pipelines", "/hosts", *own]


async def test_viewers_see_everything_and_can_do_nothing(api: Api, web: httpx.AsyncClient) -> None:
    paths = await all_pages(api)
    for path in paths:
        shown = await web.get(path)
        assert shown.status_code == 200, (path, words(shown.text))
        assert not re.search(r"<style|style=|onclick|javascript:", shown.text), path
        assert len(shown.content) < 200_000
    await api.call("POST", "/users", ADA)
    async with browser(api) as viewer:
        await submit(viewer, **CREDENTIALS)
        for path in paths:
            shown = await viewer.get(path)
            assert shown.status_code == 200, path
            posts = {form.action for form in Forms(shown.text).found if form.method == "post"}
            assert posts <= {"/logout", "/preferences"}, path
        token = {"csrf_token": csrf_of(await viewer.get("/hosts"))}
        for path in (
            "/workflows/inbox/$run", "/workflows/inbox/$resolve", f"{TOTALS_PATH}/$run", f"{TOTALS_PATH}/$preview",
            f"{TOTALS_PATH}/$validate", f"{TOTALS_PATH}/triggers", "/pairing-tokens", "/batches", "/host-jobs",
        ):  # fmt: skip
            assert (await viewer.post(path, data={**token, "resolution": "skip"})).status_code == 403, path
            assert (await viewer.post(path, data={"resolution": "skip"})).status_code == 403, path
    for path in ("/workflows/inbox/$pause", f"{TOTALS_PATH}/$preview", "/pairing-tokens"):
        wrong = await web.post(path, data={"csrf_token": "0" * 64})
        assert (wrong.status_code, "form" in wrong.text) == (403, True), path
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    async with browser(api) as other:
        answer = await api.call("POST", "/login-links", headers={"authorization": f"Bearer {theirs['admin_key']}"})
        await other.get(answer.json()["url"])
        for path in paths:
            shown = await other.get(path)
            assert shown.status_code == (200 if path in ("/workflows", "/pipelines", "/hosts") else 404), path
            if shown.status_code == 200:
                assert not re.search("inbox|daily_totals|alpha", shown.text), path


async def test_each_action_shows_a_command_and_a_request_that_exist(api: Api, web: httpx.AsyncClient) -> None:
    shown = "".join([(await web.get(path)).text for path in await all_pages(api)])
    commands = {html.unescape(match) for match in re.findall(r"<code>(rota [^<]+)</code>", shown)}
    assert len(commands) >= 20
    for command in commands:
        place: Any = typer.main.get_command(cli)
        arguments = shlex.split(command)[1:]
        while arguments and hasattr(place, "commands"):
            place = place.commands[arguments.pop(0)]
        known = {option for param in place.params for option in param.opts + param.secondary_opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= known, command
    routes = {re.sub(r"\{\w+\}", "[^/]+", route) for route in api.app.openapi()["paths"]}
    for path in {html.unescape(match) for match in re.findall(r"(/api/v1/[^ ?<]+)[ ?]", shown)}:
        assert any(re.fullmatch(route.replace("$", r"\$"), path) for route in routes), path


async def test_hostile_words_are_text(api: Api, web: httpx.AsyncClient) -> None:
    rota, inbox = await flows(api)
    await rota.drain()
    huge = "W" * 10_000
    for number, text in enumerate((EVIL, huge)):
        body = {"message_id": f"m{number}", "title": text[:200], "payload": text}
        answer = await api.call("POST", "/workflows/inbox/topics/mail/events", body)
        assert answer.status_code == 201, answer.text
    inbox.trouble["prepare"] = [AuthError(EVIL + huge)]
    await rota.drain()
    await api.call("POST", "/workflows/inbox/$pause", {"reason": EVIL})
    evil_sql = {**ORDERS, "sql": f"SELECT '{EVIL.replace(chr(39), chr(39) * 2)}' AS id", "description": EVIL}
    assert (await api.call("POST", "/pipelines", evil_sql)).status_code == 201
    agent = await pair_agent(api, NAME)
    await agent.register({NAME: {"read_only": True, "schema": {"properties": {NAME: {}}}}})
    server = await make_server(api, agent, NAME, type=NAME, labels={LABEL: EVIL.replace("=", "")}, config={"a": EVIL})
    await api.clock.advance(timedelta(seconds=30))
    await agent.poll(metrics={NAME: EVIL, "load": [EVIL], "long": huge[:2000]})
    await run_job(api, server, NAME, payload={})
    labels = {"labels": {LABEL: EVIL.replace("=", "")}, "job_type": NAME}
    batch = (await api.call("POST", "/batches", labels)).json()["batch_id"]
    for path in ("/workflows", "/workflows/inbox", "/pipelines", "/pipelines/sales/bronze/orders", "/hosts",
                 f"/hosts/{agent.host_id}", f"/batches/{batch}"):  # fmt: skip
        shown = await web.get(path)
        assert shown.status_code == 200, (path, words(shown.text)[:500])
        assert re.findall(r'<script(?! src="/static/)', shown.text) == [], path
        assert "<img src=x" not in shown.text, path
        assert "49" not in re.sub(r"[0-9A-Z]{26}|\d\d:\d\d|[0-9a-f]{64}|d=\"[^\"]*\"", "", words(shown.text)), path
    form = form_on((await web.get("/pipelines/sales/bronze/orders")).text, "/pipelines/sales/bronze/orders", "PUT")
    shown = await web.post("/pipelines/sales/bronze/orders/$preview", data=form.fields)
    assert shown.status_code == 200
    assert "&lt;script&gt;alert" in shown.text
    assert re.findall(r'<script(?! src="/static/)', shown.text) == []


# workflows


async def test_the_page_of_a_workflow_shows_status_inputs_and_outputs(api: Api, web: httpx.AsyncClient) -> None:
    rota, inbox = await flows(api)
    await rota.drain()
    inbox.mail.append("a")
    await rota.advance(minutes=5)
    listed = words((await web.get("/workflows")).text)
    assert "inbox Idle none checks every 5 minutes in 5m 0 pending" in listed
    shown = await web.get("/workflows/inbox")
    text = words(shown.text)
    assert "row for a" in text
    assert "published 1 mail" in text
    assert "sheets.append" in text
    assert "All inputs are done" in text
    drawn = shown.text.partition('class="chart network"')[2].partition("</svg><ul")[0]
    assert re.findall(r'class="heading">(\w+)<', drawn) == ["Producers", "Topics", "Consumers", "Topics", "Consumers"]
    assert re.findall(r'class="name">(\w+)<', drawn) == ["poll", "mail", "AddRow", "rows", "Notify"]
    assert drawn.count("data-e=") == 4
    assert "success · " in drawn
    assert '<details class="card fold">' in shown.text
    assert "committed" in text.partition("Details")[2]
    await api.call("POST", "/workflows/inbox/$pause", {"reason": "räumen"})
    await api.call("POST", "/workflows/inbox/topics/mail/events", {"message_id": "old", "title": "from May"})
    await api.clock.advance(timedelta(days=8))
    await log_in(api, web)  # an idle session ends after a week
    text = words((await web.get("/workflows/inbox")).text)
    assert "Stopped" in text
    assert "räumen" in text
    assert "from May stale" in text
    assert "1 pending" in text
    assert "1 input is pending for longer than a week" in words((await web.get("/workflows")).text)


async def test_a_workflow_is_run_paused_resumed_and_given_events_by_forms(api: Api, web: httpx.AsyncClient) -> None:
    rota, inbox = await flows(api)
    await rota.drain()
    path = f"/workflows/{(await api.get('/workflows'))['items'][0]['id']}"
    inbox.calls.clear()
    assert "inbox is queued" in await done(web, await fill(web, path, f"{path}/$run"))
    await rota.drain()
    assert inbox.count("poll") == 1
    assert "Paused" in await done(web, await fill(web, path, f"{path}/$pause", reason="räumen"))
    events = f"{path}/topics/mail/events"
    sent = await fill(web, path, events, message_id="7", payload='"seven"', title="Seven")
    assert "The event is in mail: created" in await done(web, sent)
    assert "Seven" in await done(web, await fill(web, path, events, message_id="7", payload='"seven"', title="Seven"))
    await rota.drain()
    assert inbox.sheets.rows == []
    assert "inbox continues" in await done(web, await fill(web, path, f"{path}/$resume"))
    await rota.drain()
    assert inbox.sheets.rows == ["seven"]
    assert f"{path}/$resume" not in (await web.get(path)).text


async def test_many_events_are_published_with_one_request(api: Api) -> None:
    rota, inbox = await flows(api)
    await rota.drain()
    path = "/workflows/inbox/topics/mail/events/$bulk"
    items = [{"message_id": name, "payload": name, "title": name.upper()} for name in ("a", "b")]
    answer = await api.call("POST", path, {"items": [*items, {"message_id": "a", "payload": "last"}]})
    assert answer.status_code == 201
    published = answer.json()["items"]
    assert [event["result"] for event in published] == ["created"] * 3
    assert published[0]["id"] == published[2]["id"] != published[1]["id"]
    await rota.drain()
    assert sorted(inbox.sheets.rows) == ["b", "last"]
    answer = await api.call("POST", path, {"items": [*items, {"message_id": "c"}]})
    assert [event["result"] for event in answer.json()["items"]] == ["kept", "kept", "created"]
    bodies: list[dict[str, list[dict[str, str]]]] = [
        {"items": []},
        {"items": [{"message_id": "d"}, {"message_id": ""}]},
        {"items": [{}] * 1001},
    ]
    for wrong in bodies:
        assert (await api.call("POST", path, wrong)).status_code == 422
    assert (await api.call("POST", path.replace("mail", "mails"), {"items": items})).status_code == 404


async def test_inputs_are_stale_when_they_wait_for_a_week(api: Api, web: httpx.AsyncClient) -> None:
    """Also one whose event is done, while something that came of it waits; not one that is done."""
    rota, inbox = await flows(api)
    await rota.drain()
    inbox.mail = ["done"]
    await rota.advance(minutes=5)
    inbox.trouble["notify"] = [AuthError("reconnect")]
    begun = rota.clock.now()
    await rota.publish("inbox", "mail", message_id="derived", payload="derived")
    await rota.advance(minutes=1)
    await rota.publish("inbox", "mail", message_id="own", payload="own")
    warnings = []
    for after in (timedelta(days=7) - timedelta(seconds=1), timedelta(days=7), timedelta(days=7, minutes=1)):
        api.clock.set(begun + after)
        await log_in(api, web)  # an idle session ends after a week
        shown = await api.get("/workflows/inbox")
        stale = [event["message_id"] for event in (await api.get("/workflows/inbox/inputs"))["items"] if event["stale"]]
        words_of = re.search(
            r"(\d+ inputs? (?:is|are) pending) for longer than a week", words((await web.get("/workflows")).text)
        )
        warnings.append((shown["stale_inputs"], shown["attention"], stale, words_of and words_of[1]))
    assert warnings == [
        (0, 1, [], None),
        (1, 2, ["derived"], "1 input is pending"),
        (2, 3, ["own", "derived"], "2 inputs are pending"),
    ]
    assert "2 for longer than a week" in words((await web.get("/workflows/inbox")).text)
    await api.call("POST", "/workflows/inbox/$resume")
    await rota.drain()
    assert (await api.get("/workflows/inbox"))["stale_inputs"] == 0


async def test_an_input_is_skipped_by_its_form(api: Api, web: httpx.AsyncClient) -> None:
    rota, inbox = await flows(api)
    await rota.drain()
    await api.call("POST", "/workflows/inbox/$pause", {"reason": "look"})
    for name in ("a", "b"):
        await api.call("POST", "/workflows/inbox/topics/mail/events", {"message_id": name, "payload": name})
    path = f"/workflows/{(await api.get('/workflows'))['items'][0]['id']}"
    second, first = [entry["id"] for entry in (await api.get("/workflows/inbox/events"))["items"]]
    form = await fill(web, path, f"{path}/events/{first}/$skip", audit_reason="spam")
    assert "a is skipped" in await done(web, form)
    assert await because(api, "workflows.skip") == "spam"
    (line,) = (await api.get("/audit", action="workflows.skip"))["items"]
    assert (line["resource_id"], line["after"]["result"]) == (path.rpartition("/")[2], first)
    refused = await api.call("POST", f"{path}/events/{first}/$skip")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        f"event {first} is already skipped, and no event derived from it is pending",
    )
    assert f"{path}/events/{first}/$skip" not in (await web.get(path)).text
    assert f"{path}/events/{second}/$skip" in (await web.get(path)).text
    await api.call("POST", "/workflows/inbox/$resume")
    await rota.drain()
    assert inbox.sheets.rows == ["b"]


async def unsure(inbox: Inbox) -> None:
    inbox.sheets.breaks = [ConnectionError("gone")]
    inbox.sheets.answers = [Unsure() for _ in range(6)]


async def refused_access(inbox: Inbox) -> None:
    inbox.trouble["prepare"] = [AuthError("the key is old")]


async def broken_prepare(inbox: Inbox) -> None:
    inbox.trouble["prepare"] = [ValueError("a bug")]


async def broken_mutate(inbox: Inbox) -> None:
    inbox.trouble["mutate"] = [ValueError("a bug")]


async def broken_next(inbox: Inbox) -> None:
    inbox.trouble["next"] = [ValueError("a bug")]


@pytest.mark.parametrize(
    ("trouble", "offered"),
    [
        (unsure, ["applied", "not_applied", "skip", "try_again"]),
        (refused_access, ["approve", "reject"]),
        (broken_prepare, ["try_again", "reject"]),
        (broken_mutate, ["try_again", "reject", "skip"]),
        (broken_next, ["try_again", "reject"]),
    ],
)
@pytest.mark.parametrize("isolate", [False, True])
async def test_a_stuck_workflow_offers_only_what_makes_sense(
    api: Api, web: httpx.AsyncClient, trouble: Any, offered: list[str], isolate: bool
) -> None:
    rota, inbox = await flows(api, isolate=isolate)
    await rota.drain()
    await trouble(inbox)
    await api.call("POST", "/workflows/inbox/topics/mail/events", {"message_id": "1", "payload": "a"})
    await rota.advance(hours=1)
    path = f"/workflows/{(await api.get('/workflows'))['items'][0]['id']}"
    shown = await web.get(path)
    assert "Needs attention" in words(shown.text)
    assert re.findall(r'name="resolution" value="(\w+)"', shown.text) == offered
    for how in offered:
        (sentence,) = re.findall(rf'value="{how}" required> <span><b>[^<]+</b> <small>([^<]+)</small>', shown.text)
        assert html.unescape(sentence).endswith(".")
    assert (f"{path}/$resume" in shown.text) == (trouble is not unsure)
    if trouble is unsure:  # what is not offered would be refused
        for how in {resolution.value for resolution in Resolution} - set(offered):
            assert (await api.call("POST", f"{path}/$resolve", {"resolution": how})).status_code == 409
    form = form_on(shown.text, f"{path}/$resolve")
    assert form.required == {"resolution", "audit_reason"}
    chosen = {**form.fields, "resolution": offered[0], "audit_reason": "I looked"}
    assert "inbox continues" in await done(web, await web.post(form.action, data=chosen))
    assert await because(api, "workflows.resolve") == "I looked"
    await rota.drain()
    text = words((await web.get(path)).text)
    assert "Idle" in text
    assert "Resolve" not in text
    assert inbox.sheets.rows == ["a"]


# pipelines


async def test_pipelines_are_drawn_by_layer_and_listed_with_their_last_run(api: Api, web: httpx.AsyncClient) -> None:
    await create_pipelines(api)
    schedule = {"kind": "pipeline", "target": "sales/bronze/orders", "cron_expression": "0 12 * * *", "name": "noon"}
    assert (await api.call("POST", "/schedules", schedule)).status_code == 201
    await api.call("POST", "/pipelines/sales/bronze/orders/$run")
    shown = await web.get("/pipelines")
    drawn = shown.text.partition('class="chart network"')[2].partition("</svg><ul")[0]
    assert re.findall(r'class="heading">(\w+)<', drawn) == ["Bronze", "Silver"]
    assert re.findall(r'<a href="([^"]+)"', drawn) == ["/pipelines/sales/bronze/orders", TOTALS_PATH]
    assert drawn.count('class="arrow reads"') == 1
    assert "sales/bronze/orders SQL, version 1 pending" in words(shown.text)
    assert "every day at 12:00 (UTC)" in words(shown.text)
    worker = Worker(api.engine)
    await api.db.tx(register_worker, worker, api.engine)
    await World(api.engine, api.clock, worker, Scheduler(api.engine), api.org_id).drain()
    text = words((await web.get("/pipelines")).text)
    assert re.search(r"orders SQL, version 1 success\s+\S+ ago 3 rows ", text), text
    assert "3 rows" in words((await web.get("/pipelines/sales/bronze/orders")).text)
    only = words((await web.get("/pipelines?layer=silver")).text)
    assert "sales/silver/daily_totals" in only
    assert "sales/bronze/orders" not in only


async def test_a_pipeline_is_made_tried_saved_run_and_deleted_by_forms(api: Api, web: httpx.AsyncClient) -> None:
    new = {"namespace": "shop", "layer": "bronze", "name": "days", "sql": "SELECT range AS day\nFROM range(60)"}
    path = "/pipelines/shop/bronze/days"
    made = await fill(web, "/pipelines", "/pipelines", "POST", **new)
    assert made.headers["location"] == path
    assert "shop/bronze/days is created" in await done(web, made)
    form = form_on((await web.get(path)).text, path, "PUT")
    assert form.fields["sql"].strip() == new["sql"]
    preview = await web.post(f"{path}/$preview", data=form.fields)
    assert "The first 50 rows" in words(preview.text)
    assert preview.text.count("<tr>") == 51
    draft = {**form.fields, "sql": "SELECT 7 AS seven, NULL AS nothing"}
    text = words((await web.post(f"{path}/$preview", data=draft)).text)
    assert "seven INTEGER" in text
    assert "SELECT 7 AS seven" in text  # the draft stays
    valid = await web.post(f"{path}/$validate", data=draft)
    assert "Valid: it can run now. Its columns: seven INTEGER" in words(valid.text)
    wrong = await web.post(f"{path}/$validate", data={**draft, "sql": "SELECT * FROM shop.gold.none"})
    assert "is read, but is not a pipeline" in words(wrong.text)
    bad = await web.post(f"{path}/$preview", data={**draft, "sql": "SELEC"})
    assert (bad.status_code, "SELEC" in words(bad.text)) == (422, True)
    assert (await api.get(path))["version"] == 1
    saved = await web.post(path, data={**draft, "max_runs": "5", "max_age_days": "9", "description": "Tage"})
    assert "shop/bronze/days is saved" in await done(web, saved)
    now = await api.get(path)
    assert (now["version"], now["max_runs"], now["max_age_days"], now["description"]) == (2, 5, 9, "Tage")
    text = words((await web.get(path)).text)
    assert "version 2" in text
    assert "FROM range(60)" in text.partition("Versions")[2]
    ran = await fill(web, path, f"{path}/$run")
    assert ran.headers["location"].startswith("/runs/")
    gone = await fill(web, path, path, "DELETE", audit_reason="not needed")
    assert "shop/bronze/days was deleted" in await done(web, gone)
    assert await because(api, "pipelines.delete") == "not needed"


async def test_triggers_are_added_switched_and_deleted_by_forms(api: Api, web: httpx.AsyncClient) -> None:
    await create_pipelines(api)
    add, path = f"{TOTALS_PATH}/triggers", TOTALS_PATH
    forms = {form.fields["type"]: form for form in Forms((await web.get(path)).text).found if form.action == add}
    assert forms.keys() == {"pipeline_success", "cron_dependency", "webhook"}
    after = {**forms["pipeline_success"].fields, "upstream": "sales/bronze/orders", "cooldown_seconds": "60"}
    assert "After sales/bronze/orders" in await done(web, await web.post(add, data=after))
    at = {**forms["cron_dependency"].fields, "cron_expression": "0 6 * * *", "upstreams": "sales/bronze/orders\n"}
    assert "At 0 6 * * *, once sales/bronze/orders have succeeded again" in await done(
        web, await web.post(add, data=at)
    )
    text = words((await web.post(add, data=forms["webhook"].fields)).text)
    token = re.search(r"curl -X POST http://rota/api/v1/webhooks -H 'X-Webhook-Token: (\S{43})'", text)[1]  # type: ignore[index]
    answer = await httpx.AsyncClient(transport=httpx.ASGITransport(api.app)).post(
        "http://rota/api/v1/webhooks", headers={"x-webhook-token": token}
    )
    assert answer.status_code == 202
    assert token not in (await web.get(path)).text
    triggers = (await api.get(add))["items"]
    assert [(trigger["type"], trigger["cooldown_seconds"]) for trigger in triggers] == [
        ("pipeline_success", 60),
        ("cron_dependency", 0),
        ("webhook", 0),
    ]
    trigger_path = f"{add}/{triggers[0]['id']}"
    assert "The trigger is disabled" in await done(web, await fill(web, path, trigger_path, "PATCH"))
    assert "The trigger is enabled" in await done(web, await fill(web, path, trigger_path, "PATCH"))
    gone = await fill(web, path, trigger_path, "DELETE", audit_reason="not needed")
    assert "The trigger was deleted" in await done(web, gone)
    assert len((await api.get(add))["items"]) == 2


# hosts


async def test_a_host_is_paired_by_the_command_that_is_shown_once(api: Api, web: httpx.AsyncClient) -> None:
    page_text = words((await fill(web, "/hosts", "/pairing-tokens", ttl_seconds="3600")).text)
    token = re.search(r"rota agent pair --server http://rota --token (rota_pair_\S+)", page_text)[1]  # type: ignore[index]
    made = (await api.client.post("/api/agent/pair", json={"token": token, "name": "alpha"})).json()
    assert "alpha unknown not connected yet" in words((await web.get("/hosts")).text)
    agent = FakeAgent(api, made["host_id"], made["agent_key"])
    await agent.register()
    await api.clock.advance(timedelta(seconds=30))  # it is not written down each time
    await agent.poll(metrics={"load": [0.5, 0.25], "disk_free_bytes": 5_000_000_000, "cpus": 4})
    assert "alpha online" in words((await web.get("/hosts")).text)
    path = f"/hosts/{agent.host_id}"
    text = words((await web.get(path)).text)
    for part in ("0.5, 0.25", "5.0 GB", "restart", "look read-only"):
        assert part in text, part
    edited = await fill(web, path, path, "PATCH", name="beta", labels="env=prod, zone=north")
    assert "env=prod" in await done(web, edited)
    assert (await api.get(path))["labels"] == {"env": "prod", "zone": "north"}
    wrong = await fill(web, path, path, "PATCH", labels="prod")
    assert wrong.status_code == 422
    rotated = words((await fill(web, path, f"{path}/$rotate-key", audit_reason="it leaked")).text)
    key = re.search(r"rota agent key --key (rota_agent_\S+)", rotated)[1]  # type: ignore[index]
    assert (await agent.ask("poll", {})).status_code == 401
    agent.key = key
    await agent.register()
    assert await because(api, "hosts.rotate-key") == "it leaked"
    await api.clock.advance(timedelta(hours=2))
    away = words((await web.get("/hosts")).text)
    assert "offline since 2h" in away
    assert "Its agent is not connected" in words((await web.get(path)).text)
    gone = await fill(web, path, path, "DELETE", audit_reason="sold")
    assert "beta was deleted" in await done(web, gone)
    assert await because(api, "hosts.delete") == "sold"


async def test_servers_and_their_jobs_are_steered_by_forms(api: Api, web: httpx.AsyncClient) -> None:
    agent = await pair_agent(api)
    path = f"/hosts/{agent.host_id}"
    assert "None yet" in words((await web.get(path)).text)
    config = '{"password": "hunter2", "port": 80}'
    added = await fill(web, path, "/server-instances", name="web", labels="role=web", config=config)
    assert "web is created" in await done(web, added)
    (server,) = (await api.get("/server-instances"))["items"]
    assert (server["labels"], server["type"], server["config"]["port"]) == ({"role": "web"}, "server", 80)
    assert "hunter2" not in (await web.get(path)).text
    payload = '{"token": "hunter2"}'
    asked = await fill(web, path, "/host-jobs", job_type="restart", payload=payload, timeout_seconds="5")
    job_id = asked.headers["location"].removeprefix("/runs/")
    assert "restart pending on web" in words((await web.get(path)).text)
    (job,) = await agent.claim()
    assert "restart" in words((await web.get("/hosts")).text)
    assert "restart running on web" in words((await web.get(path)).text)
    stopped = await fill(web, path, f"/host-jobs/{job_id}/$cancel", audit_reason="wrong one")
    assert "Cancellation requested" in await done(web, stopped)
    assert "hunter2" not in (await web.get(f"/runs/{job_id}")).text
    await agent.report(job, "canceled")
    assert "restart canceled on web" in words((await web.get(path)).text)
    assert "hunter2" not in (await web.get(f"/runs/{job_id}")).text
    refused = await fill(web, path, path, "DELETE", audit_reason="x")
    assert (refused.status_code, "has server instances" in refused.text) == (409, True)
    removed = await fill(web, path, f"/server-instances/{server['id']}", "DELETE", audit_reason="old")
    assert "web was removed" in await done(web, removed)


@pytest.mark.parametrize(("resolution", "status"), [("applied", "success"), ("not_applied", "pending")])
async def test_a_job_with_an_unknown_outcome_waits_for_a_resolution(
    api: Api, web: httpx.AsyncClient, resolution: str, status: str
) -> None:
    agent, _, job_id = await lost(api)
    for page in ("/hosts", f"/hosts/{agent.host_id}"):
        shown = await web.get(page)
        assert "Did it happen?" in words(shown.text)
        assert "hunter2" not in shown.text
        forms = [form for form in Forms(shown.text).found if form.action == f"/host-jobs/{job_id}/$resolve"]
        assert [form.fields["resolution"] for form in forms] == ["applied", "not_applied"]
        assert all(form.required == {"audit_reason"} for form in forms)
    (form,) = [form for form in forms if form.fields["resolution"] == resolution]
    await done(web, await web.post(form.action, data={**form.fields, "audit_reason": "I looked"}))
    host_job = await api.get(f"/host-jobs/{job_id}")
    assert (host_job["status"], host_job["waits_for"]) == (status, None)
    assert "Did it happen?" not in words((await web.get("/hosts")).text)


async def test_a_batch_is_started_by_labels_watched_and_canceled(api: Api, web: httpx.AsyncClient) -> None:
    agent = await pair_agent(api)
    for name in ("one", "two", "three"):
        await make_server(api, agent, name, labels={"role": "web"})
    fields = {"labels": "role=web", "job_type": "look", "payload": "{}", "max_parallel": "2", "stop_on_failure": "true"}
    form = form_on((await web.get("/hosts")).text, "/batches")
    begun = await web.post("/batches", data={**form.fields, **fields})
    path = begun.headers["location"]
    assert "look on 3 servers" in await done(web, begun)
    shown = await web.get(path)
    assert 'max="3" value="0"' in shown.text
    assert "one waiting" in words(shown.text)
    assert "0 of 3" in words((await web.get("/hosts")).text)
    assert "Cancellation requested" in await done(web, await fill(web, path, f"{path}/$cancel", audit_reason="no"))
    assert await because(api, "batches.cancel") == "no"
    assert "canceled" in words((await web.get("/hosts")).text)
    wrong = await web.post("/batches", data={**form.fields, **fields, "labels": "web"})
    assert wrong.status_code == 422
