"""The search from every page: things by name or id, pages and actions; nothing that the caller may not read."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.access.test_web_login import ADA, CREDENTIALS, browser, link, log_in, submit
from tests.app.harness import Api


@pytest.fixture
async def admin(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that is logged in as an admin."""
    async with browser(api) as client:
        await log_in(api, client)
        await api.schedule("nightly", tags=["night"])
        yield client


async def results(client: httpx.AsyncClient, text: str) -> list[tuple[str, str, str]]:
    page = await client.get("/search", params={"q": text, "part": "1"})
    assert page.status_code == 200
    assert "<html" not in page.text
    pattern = r'<a href="([^"]*)" tabindex="-1"><span class="hint">([^<]*)</span> ([^<]*)</a>'
    return [(type, name, href) for href, type, name in re.findall(pattern, page.text)]


async def test_things_are_found_by_a_part_of_their_name(api: Api, admin: httpx.AsyncClient) -> None:
    schedule = await api.schedule("invoices-oslo")
    await api.schedule("old-invoices")
    await api.call("POST", "/calendars", {"name": "invoice days", "dates": ["2026-05-17"]})
    names = [(type, name) for type, name, _ in await results(admin, "INVOICE")]
    assert names[:2] == [("schedule", "invoices-oslo"), ("schedule", "old-invoices")]
    assert ("calendar", "invoice days") in names
    links = {name: href for _, name, href in await results(admin, "invoice")}
    assert links["invoices-oslo"] == f"/schedules/{schedule['id']}"
    for href in links.values():
        assert (await admin.get(href)).status_code == 200, href
    assert ("page", "Runs", "/runs") in await results(admin, "run")
    assert ("action", "New schedule", "/schedules/new") in await results(admin, "new sch")
    assert not [type for type, _, _ in await results(admin, "100%_") if type == "schedule"]  # no pattern


async def test_a_run_is_found_by_its_id_and_by_that_of_its_job(api: Api, admin: httpx.AsyncClient) -> None:
    job = await api.job()
    (begun,) = await api.start()
    for key in (begun.run_id, begun.run_id.lower(), job):
        type, _, href = (await results(admin, key))[0]
        assert (type, (await admin.get(href)).status_code) == ("run", 200), key
    await api.end([begun])
    assert (await results(admin, begun.run_id))[0][2] == f"/runs/{begun.run_id}"


async def test_the_search_shows_only_what_the_caller_may_read(api: Api, admin: httpx.AsyncClient) -> None:
    await api.schedule("secret-plan")
    await api.call("POST", "/users", ADA)
    async with browser(api) as viewer:
        await submit(viewer, **CREDENTIALS)
        assert ("schedule", "secret-plan") in [(type, name) for type, name, _ in await results(viewer, "secret")]
        assert not [type for type, _, _ in await results(viewer, "new") if type == "action"]
        assert not [name for _, name, _ in await results(viewer, "audit") if name == "Audit"]
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    async with browser(api) as other:
        await other.get(await link(api, headers={"authorization": f"Bearer {theirs['admin_key']}"}))
        assert not [name for _, name, _ in await results(other, "secret-plan") if name == "secret-plan"]


@pytest.mark.parametrize("text", ["", "<script>alert(1)</script>", "'; --", "w" * 300, "\0", "%"])
async def test_any_text_is_answered(api: Api, admin: httpx.AsyncClient, text: str) -> None:
    page = await admin.get("/search", params={"q": text})
    assert page.status_code == 200
    assert "<script>alert" not in page.text
