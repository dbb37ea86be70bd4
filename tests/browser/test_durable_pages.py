"""Pages of durable tasks, alarms and freeze windows in a real browser, with script and without."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.hostile_app import EVIL, NAME, create_hostile_waits
from tests.browser.live_server import LiveServer
from tests.browser.reader import Reader, violations

versions = (f"1.{number}" for number in itertools.count(1))


def begin_release(live_server: LiveServer, version: str) -> str:
    """Enqueue a release; return its job's id when it waits for the approval."""
    job_id = live_server.call("POST", "/jobs", {"target": "release", "input": {"version": version}})["job_id"]
    live_server.until(f"/jobs/{job_id}", lambda job: job["status"] == "paused")
    return str(job_id)


def signal(live_server: LiveServer, topic: str, version: str) -> None:
    live_server.call("POST", "/signals", {"topic": topic, "key": version})


def waits_for(live_server: LiveServer, job_id: str, topic: str) -> None:
    live_server.until(f"/jobs/{job_id}", lambda job: (job["waiting"] or {}).get("topic") == topic)


def decide(page: Page, section: str, title: str, verb: str, comment: str) -> None:
    """Open the form of a decision, fill in the comment and send it."""
    form = page.locator(section).filter(has_text=title).locator("details.act").filter(has_text=verb).first
    form.locator("summary").first.click()
    form.locator("[name=comment]").fill(comment)
    form.get_by_role("button", name=verb, exact=True).last.click()


def test_an_approval_appears_on_now_and_is_approved_there(reader: Reader, live_server: LiveServer) -> None:
    page, version = reader.page, next(versions)
    page.goto("/")
    job_id = begin_release(live_server, version)
    reader.sees("#approvals li", f"Release {version}")
    decide(page, "#approvals li", f"Release {version}", "Approve", "tests are green")
    expect(page.locator(".flash")).to_contain_text("Approved")
    reader.sees("#signals li", f"tested, key {version}")
    expect(page.locator("#approvals")).not_to_contain_text(f"Release {version}")
    page.locator("#signals li").filter(has_text=f"key {version}").get_by_role("link").first.click()
    reader.sees("#steps tr", "approved by system")
    expect(page.locator("#steps tr.current")).to_contain_text("for tested")
    for topic in ("tested", "published"):
        signal(live_server, topic, version)
    reader.sees("#status", "success")
    reader.sees("#steps tr", "note published")
    entries = live_server.call("GET", "/audit?action=runs.approve")["items"]
    assert job_id in [entry["resource_id"] for entry in entries]


def test_a_rejected_run_is_retried_from_the_approval(reader: Reader, live_server: LiveServer) -> None:
    page, version = reader.page, next(versions)
    page.goto(f"/runs/{begin_release(live_server, version)}")
    decide(page, "#decisions section", f"Release {version}", "Reject", "not on a <b>Friday</b>")
    expect(page.locator(".flash")).to_contain_text("Rejected")
    reader.sees("#status", "failed")
    reader.sees("#error", "rejected: not on a <b>Friday</b>")
    reader.sees("#steps tr", ": not on a <b>Friday</b>")
    expect(page.locator("#decisions section")).to_have_count(0)
    page.locator("#acts summary", has_text="Retry").first.click()
    chosen = page.get_by_label("From step")
    steps = [option.strip() for option in chosen.locator("option").all_inner_texts()]
    assert steps == ["the beginning", "build", "mirror (failed)", "approval operator"]
    chosen.select_option("approval operator")
    page.get_by_role("button", name="Retry", exact=True).last.click()
    expect(page.locator(".flash")).to_contain_text("Retry requested")
    reader.sees("#decisions section", f"Release {version}")
    reader.sees("#steps tbody tr", "recorded by an earlier run")
    kept = page.locator("#steps tbody tr").filter(has_text="recorded by an earlier run")
    expect(kept.locator(".main").first).to_have_text("build")


def test_the_timeline_is_live_and_keeps_what_the_reader_uses(page: Page, live_server: LiveServer) -> None:
    version = next(versions)
    job_id = begin_release(live_server, version)
    page.set_viewport_size({"width": 1300, "height": 500})
    page.goto(f"/runs/{job_id}")
    page.evaluate("window.kept = true; scrollTo(0, 200)")
    rows, details = page.locator("#steps tbody tr"), page.locator("#steps details")
    details.locator("summary").click()
    expect(details.locator("pre")).to_contain_text(f"the mirror refused {version}")
    assert page.evaluate("scrollY") > 0
    with page.expect_response(re.compile(f"/runs/{job_id}$")):
        live_server.call("POST", f"/runs/{job_id}/$approve")
    waits_for(live_server, job_id, "tested")
    expect(page.locator("#decisions")).to_contain_text("Waits for the signal tested")  # other parts are replaced
    expect(rows.filter(has_text="for tested")).to_have_class("current")
    expect(details).to_have_attribute("open", "")
    page.evaluate("document.activeElement.blur()")
    assert page.evaluate("scrollY") > 0

    page.evaluate("getSelection().selectAllChildren(document.querySelector('#steps tbody td'))")
    text = page.evaluate("String(getSelection())")
    signal(live_server, "tested", version)
    expect(page.locator("#decisions")).to_contain_text("Waits for the signal published")
    expect(rows.filter(has_text="note tested")).to_be_visible()
    assert page.evaluate("String(getSelection())") == text
    signal(live_server, "published", version)
    expect(page.locator("#status .badge")).to_have_text("success")
    expect(page.locator("#facts")).not_to_contain_text("not yet")
    expect(rows.filter(has_text="note published")).to_be_visible()
    assert page.evaluate("scrollY") > 0
    assert page.evaluate("window.kept"), "the page was loaded again"


# hostile names, and accessibility


@pytest.fixture(scope="module")
def hostile_pages(live_server: LiveServer) -> Iterator[dict[str, str]]:
    pages = create_hostile_waits(live_server)
    yield pages
    live_server.call("DELETE", pages["freeze window"])


def test_hostile_names_are_shown_as_text(reader: Reader, hostile_pages: dict[str, str]) -> None:
    name, page = NAME[:150], reader.page
    for title, place, text in (
        ("run", "#steps", EVIL),
        ("run", "#decisions", EVIL),
        ("now", "#approvals", EVIL),
        ("now", "#alarms", name),
        ("alarms", "#events", name),
        ("alarms", "#alarms", name),
        ("freeze windows", "#freeze-windows", name),
        ("freeze window", "h1", name),
        ("calendar", "h1", name),
        ("calendar", ".history", "calendars.create"),
        ("runs", "#list", "alarmed"),
    ):
        if not page.url.endswith(hostile_pages[title]):
            page.goto(hostile_pages[title])
        expect(page.locator(place).first).to_contain_text(text)
        assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_pages_have_no_accessibility_violations(
    browser: Browser, live_server: LiveServer, hostile_pages: dict[str, str], colours: Any
) -> None:
    context = browser.new_context(base_url=live_server.url, color_scheme=colours)
    page, wrong = context.new_page(), []
    page.goto(live_server.call("POST", "/login-links")["url"])
    for title, path in hostile_pages.items():
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(path)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            wrong += [f"{title} overflows by {over} at {width}"] if over > 0 else []
        page.evaluate("for (const part of document.querySelectorAll('main details')) part.open = true")
        wrong += [f"{title}: {violation}" for violation in violations(page)]
    context.close()
    assert not wrong, "\n".join(wrong)
