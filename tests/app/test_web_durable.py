"""Pages of durable tasks, over HTTP and without script, on both databases."""

import contextlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from rota import Retry, RunContext
from rota.engine import jobs
from rota.reports import steps as step_reports
from tests.access.test_web_login import ADA, CREDENTIALS, browser, log_in, submit
from tests.app.forms import fill, form_on, words
from tests.app.harness import Api
from tests.app.test_api_durable import run, work


@pytest.fixture
async def admin(api: Api) -> Any:
    async with browser(api) as client:
        await log_in(api, client)
        yield client


async def shown(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def rows_of(page: str) -> list[str]:
    """Return the text of each row of the timeline."""
    table = re.search(r'<table class="list steps">(.*?)</table>', page, re.S)
    return [words(row).strip() for row in re.findall(r"<tr.*?</tr>", table[1], re.S)] if table else []


def unsure() -> None:
    raise TimeoutError("the bank did not answer")


def wrong() -> None:
    raise ValueError("<b>minus</b> three")


async def test_steps_are_a_timeline_that_is_a_table(api: Api, admin: httpx.AsyncClient) -> None:
    tries: list[int] = []

    def flaky() -> None:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("not yet")

    async def timeline_order(ctx: RunContext) -> object:
        await ctx.step("reserve", flaky, retry=Retry(3, 0))
        with contextlib.suppress(ValueError):
            await ctx.step("discount", wrong)
        await ctx.sleep("1h")
        return await ctx.effect("charge", unsure)

    job = await run(api, timeline_order)
    page = await shown(admin, f"/runs/{job['id']}")
    heading, *rows = rows_of(page)
    assert "0 ms" in heading
    assert [row.split(" ")[0] for row in rows] == ["reserve", "discount", "sleep"]
    assert "2 tries" in rows[0]
    assert "failed" in rows[1]
    assert "&lt;b&gt;minus&lt;/b&gt; three" in page
    assert "waiting" in rows[2]
    assert page.count('aria-current="step"') == 1
    assert f'data-follow="/live/runs/{job["run_ids"][0]}/logs' in page  # a suspended run goes on with the same log
    await api.clock.advance(timedelta(hours=1, seconds=1))
    await wake(api)
    page = await shown(admin, f"/runs/{job['id']}")
    assert "its outcome is unknown" in rows_of(page)[-1]
    assert 'href="#effect-' in page
    assert "Did charge happen?" in words(page)


async def test_a_job_with_many_steps_has_a_page_of_limited_size(api: Api, admin: httpx.AsyncClient) -> None:
    limit = step_reports.STEPS_SHOWN_MAX

    async def timeline_rows(ctx: RunContext) -> object:
        for number in range(limit + 50):
            await ctx.step(f"row-{number}", int)
        return None

    job = await run(api, timeline_rows)
    page = await shown(admin, f"/runs/{job['id']}")
    rows = rows_of(page)[1:]
    assert len(rows) == limit
    assert rows[-1].startswith(f"row-{limit + 49} ")
    assert f"{limit + 50} steps; the last {limit} and those that have not ended" in words(page)
    assert len(page) < 300_000


async def wake(api: Api) -> None:
    """Make due what is due by now, and run it."""
    await api.db.tx(jobs.release_due, api.clock.now())
    await work(api)


async def test_an_approval_is_decided_on_now_and_the_run_is_retried_from_a_step(
    api: Api, admin: httpx.AsyncClient
) -> None:
    async def timeline_payment(ctx: RunContext) -> object:
        await ctx.step("read", int)
        decision = await ctx.approval("operator", title="Pay 3 €")
        await ctx.step("write", wrong if decision.approved else int)
        return None

    job = await run(api, timeline_payment)
    path = f"/runs/{job['id']}"
    page = words(await shown(admin, "/"))
    assert "Waiting for approval" in page
    assert "Pay 3 €" in page
    await api.call("POST", "/users", ADA)
    async with browser(api) as viewer:
        await submit(viewer, **CREDENTIALS)
        for place in ("/", path):
            assert f"{path}/$approve" not in await shown(viewer, place)
    await fill(admin, "/", f"{path}/$approve", comment="good customer")
    await work(api)
    assert "Waiting for approval" not in words(await shown(admin, "/"))
    rows = rows_of(await shown(admin, path))
    assert re.search("approved by .*: good customer", rows[2])
    (run_id,) = job["run_ids"]
    form = form_on(await shown(admin, path), f"/runs/{run_id}/$retry")
    assert form.fields["from_step"] == "write"  # the step that failed
    again = await fill(admin, path, f"/runs/{run_id}/$retry")
    await work(api)
    kept = rows_of(await shown(admin, again.headers["location"]))
    assert [row.split(" ")[0] for row in kept[1:]] == ["read", "approval", "write"]


async def test_parents_children_and_jobs_before_and_after_are_linked(api: Api, admin: httpx.AsyncClient) -> None:
    async def timeline_parent(ctx: RunContext) -> object:
        return await ctx.call("hello")

    job = await run(api, timeline_parent)
    (child,) = job["children"]
    for one_end, other_end in ((job["id"], child), (child, job["id"])):
        assert f'href="/runs/{other_end}"' in await shown(admin, f"/runs/{one_end}")
    after = await api.call("POST", "/jobs", {"target": "hello", "after": [job["id"]]})
    last = after.json()["job_id"]
    await work(api)
    for one_end, other_end in ((job["id"], last), (last, job["id"])):
        page = await shown(admin, f"/runs/{one_end}")
        assert re.search(rf'<a href="/runs/{other_end}"[^>]*><use [^>]*class="box job success"', page)


async def test_a_schedule_warns_in_the_week_before_a_clock_change(api: Api, admin: httpx.AsyncClient) -> None:
    made = await api.schedule("night", cron_expression="30 2 * * *", timezone="Europe/Oslo")
    warning = "On 2026-10-25 the clock goes from 03:00 to 02:00; 02:30 happens twice"
    for day, warned in ((17, False), (19, True), (25, False)):
        api.clock.set(datetime(2026, 10, day, 12, tzinfo=UTC))
        await log_in(api, admin)
        assert (warning in words(await shown(admin, f"/schedules/{made['id']}"))) == warned, day
