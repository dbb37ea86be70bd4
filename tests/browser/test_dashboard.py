"""The dashboard in a real browser: with script it is live, without it the same forms do the same."""

import itertools
import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.hostile_app import EVIL, HOSTILE, create_hostile_data
from tests.browser.live_server import LiveServer, chrome, running_server
from tests.browser.reader import violations

if chrome() is None:
    reason = "no Chromium here (as root, `make test` installs Debian's): the dashboard is not tested in a browser"
    pytest.skip(reason, allow_module_level=True)

SIZES = ({"width": 1300, "height": 900}, {"width": 390, "height": 844})
numbers = itertools.count(1)


def test_the_api_docs_work_under_the_strict_policy_without_internet(page: Page, live_server: LiveServer) -> None:
    elsewhere: list[str] = []
    page.on(
        "request", lambda request: None if request.url.startswith(live_server.url) else elsewhere.append(request.url)
    )
    page.goto("/docs")
    page.locator(".opblock-summary-control").first.click(no_wait_after=True)  # Swagger UI only changes the fragment
    expect(page.get_by_role("button", name="Try it out")).to_be_visible()
    assert [url for url in elsewhere if not url.startswith("data:")] == []


def test_the_first_login_is_by_the_link_that_the_server_printed(browser: Browser, live_server: LiveServer) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(live_server.url)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(live_server.link)
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    expect(page.locator(".who")).to_contain_text("system")
    again = browser.new_context().new_page()
    again.goto(live_server.link)
    expect(again.locator("main")).to_contain_text("This link was already used")
    context.close()
    again.context.close()


def test_a_schedule_is_made_with_a_live_preview_and_is_seen_firing(page: Page, live_server: LiveServer) -> None:
    page.goto("/schedules/new")
    page.locator(".editor [name=name]").fill("ticks")
    page.locator("[name=target]").fill("tick")
    page.locator("[name=cron_expression]").fill("*/7 * * * *")
    expect(page.locator("#preview")).to_contain_text("does not divide the hour")
    page.get_by_text("Interval", exact=True).click()
    page.locator("[name=interval]").fill("2s")
    expect(page.locator("#preview")).to_contain_text("Every 2 seconds")
    assert live_server.call("GET", "/schedules?name=ticks")["items"] == []
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".flash")).to_contain_text("ticks is created: every 2 seconds")
    page.evaluate("window.kept = true")
    expect(page.locator("#strip rect.success").nth(1)).to_be_attached()
    expect(page.locator("#runs .badge.success").first).to_be_visible()
    assert page.evaluate("window.kept"), "the page was loaded anew: it is not live"
    page.locator("summary", has_text="Pause").click()
    page.locator("form[action$='$pause'] [name=reason]").fill("seen enough")
    page.locator("form[action$='$pause'] button").click()
    expect(page.locator(".banner")).to_contain_text("seen enough")
    assert live_server.call("GET", "/schedules/ticks")["pause_reason"] == "seen enough"


def test_a_run_is_started_with_other_input_read_live_searched_and_canceled(page: Page, live_server: LiveServer) -> None:
    schedule = live_server.schedule("talks", "talk", input={"word": "chapter"})
    page.goto(f"/schedules/{schedule['id']}")
    page.locator("summary", has_text="Run now").click()
    page.locator("form[action$='$run'] [name=input]").fill('{"word": "verse"}')
    page.locator("form[action$='$run'] button.primary").click()
    expect(page.locator("h1")).to_contain_text("talks")
    expect(page.locator("#log p", has_text="verse 5")).to_be_visible()
    expect(page.locator("#log p", has_text="verse 15")).to_be_visible()  # it grows while the page is open
    assert page.locator("#log p", has_text=re.compile(r"verse 5$")).count() == 1
    page.locator("[data-log-search]").fill("verse 7")
    expect(page.locator("#log mark").first).to_have_text("verse 7")
    page.locator("[name=only]").check()
    expect(page.locator("#log p", has_text=re.compile(r"verse 6$"))).to_have_count(0)
    expect(page.locator("#log p", has_text=re.compile(r"verse 7$"))).to_be_visible()
    page.locator("summary", has_text="Cancel").click()
    page.locator("[name=audit_reason]").fill("it talks too much")
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator(".flash")).to_contain_text("Cancellation requested")
    expect(page.locator("#status .badge")).to_have_text("canceled")
    lines = live_server.call("GET", "/audit?action=runs.cancel")["items"]
    assert lines[0]["after"]["because"] == "it talks too much"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download", exact=True).click()
    assert "verse 5\n" in download.value.path().read_text()


def test_a_backfill_is_rehearsed_and_done(page: Page, live_server: LiveServer) -> None:
    schedule = live_server.schedule("past", "tick", interval="1d")
    backfill(page, live_server, schedule["id"])


def backfill(page: Page, live_server: LiveServer, schedule_id: str) -> None:
    now = datetime.now(UTC)
    page.goto(f"/schedules/{schedule_id}")
    page.locator("summary", has_text="Backfill").click()
    page.locator("[name=from]").fill(f"{now - timedelta(days=5):%Y-%m-%dT%H:%M}")
    page.locator("[name=to]").fill(f"{now:%Y-%m-%dT%H:%M}")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".act[open]")).to_contain_text(re.compile(r"\d slots would run|No slot in this range"))
    run = page.get_by_role("button", name=re.compile(r"Run \d slots"))
    if run.count():
        count = int(re.search(r"\d+", run.inner_text())[0])  # type: ignore[index]
        assert live_server.call("GET", f"/schedules/{schedule_id}")["run_count"] == 0
        run.click()
        expect(page.locator(".flash")).to_contain_text(f"{count} slots will run")


def test_a_grant_is_revoked(page: Page, live_server: LiveServer) -> None:
    live_server.schedule("poems", "python:poet", kind="graph", interval="1h")
    revoke(page, live_server, "poems")


def revoke(page: Page, live_server: LiveServer, name: str) -> None:
    grant = live_server.call("GET", f"/schedules/{name}")["grant_id"]
    page.goto("/grants")
    row = page.locator(f"[id='{grant}']")
    row.get_by_text("Revoke").first.click()
    row.locator("[name=audit_reason]").fill("no more poems")
    row.get_by_role("button", name="Revoke").last.click()
    expect(page.locator(".flash")).to_contain_text("revoked")
    assert live_server.call("GET", f"/grants/{grant}")["revoked_at"]


def test_without_script_the_same_forms_do_the_same(plain: Page, live_server: LiveServer) -> None:
    plain.goto("/schedules/new")
    plain.locator(".editor [name=name]").fill("plain")
    plain.locator("[name=target]").fill("talk")
    plain.get_by_text("Interval", exact=True).click()
    plain.locator("[name=interval]").fill("1d")
    plain.get_by_role("button", name="Preview").click()
    expect(plain.locator("#preview")).to_contain_text("Every day")
    expect(plain.get_by_label(re.compile("^lines"))).to_be_visible()  # a form of the task's own parameters
    plain.locator("[name='input.word']").fill("psalm")
    plain.get_by_role("button", name="Create").click()
    expect(plain.locator(".flash")).to_contain_text("plain is created")
    schedule = live_server.call("GET", "/schedules/plain")
    assert schedule["input"] == {"word": "psalm"}
    plain.locator("summary", has_text="Run now").click()
    plain.locator("form[action$='$run'] button.primary").click()
    for _ in range(50):  # the reader's own hand loads it anew
        if plain.locator("#log p", has_text="psalm 3").count():
            break
        plain.wait_for_timeout(200)
        plain.reload()
    expect(plain.locator("#log p", has_text="psalm 3").first).to_be_visible()
    plain.locator("summary", has_text="Cancel").click()
    plain.locator("[name=audit_reason]").fill("enough")
    plain.get_by_role("button", name="Cancel run").click()
    expect(plain.locator(".flash")).to_contain_text("Cancellation requested")
    live_server.until("/runs?schedule_id=plain", lambda runs: runs["items"][0]["status"] == "canceled")
    plain.goto(f"/schedules/{schedule['id']}")
    plain.locator("summary", has_text="Pause").click()
    plain.locator("form[action$='$pause'] [name=reason]").fill("by hand")
    plain.locator("form[action$='$pause'] button").click()
    expect(plain.locator(".banner")).to_contain_text("by hand")
    backfill(plain, live_server, live_server.schedule("plain-past", "tick", interval="1d")["id"])
    live_server.schedule("plain-poem", "python:poet", kind="graph", interval="1h")
    revoke(plain, live_server, "plain-poem")
    plain.locator(".who summary").click()
    plain.get_by_role("button", name="dark").click()
    expect(plain.locator("html[data-theme=dark]")).to_be_attached()


def test_a_list_follows_what_is_typed_and_keys_lead_everywhere(page: Page, live_server: LiveServer) -> None:
    for name in ("apple", "apricot", "banana"):
        live_server.schedule(name, "tick")
    page.goto("/schedules")
    page.keyboard.press("/")
    page.keyboard.type("ap")
    expect(page.locator("#list tbody")).not_to_contain_text("banana")
    expect(page.locator("#list tbody")).to_contain_text("apricot")
    expect(page).to_have_url(re.compile(r"name=ap"))
    expect(page.locator("#bulk [name='filter.name']").first).to_have_value("ap")  # what is done to all follows, too
    page.locator("h1").click()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("[data-row].chosen")).to_contain_text("apricot")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("apple")
    page.wait_for_load_state()  # its script listens then
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    for key, title in (("s", "Schedules"), ("r", "Runs"), ("t", "Timeline"), ("n", "Now")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)
        page.wait_for_load_state()


def test_nothing_is_followed_while_the_tab_is_hidden(page: Page) -> None:
    with page.expect_request("**/live/events*"):
        page.goto("/")
    with page.expect_event("requestfailed", lambda request: "/live/events" in request.url):
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    with page.expect_request("**/live/events*"):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")


def test_times_are_shown_as_the_reader_wants(browser: Browser, live_server: LiveServer) -> None:
    schedule = live_server.schedule(
        "zoned", "tick", interval=None, cron_expression="0 9 * * *", timezone="America/New_York"
    )
    context = browser.new_context(base_url=live_server.url, timezone_id="Asia/Tokyo")
    page = context.new_page()
    page.goto(live_server.call("POST", "/login-links")["url"])
    for button, zone in (("local zone", "JST"), (re.compile("schedule.s zone"), "E[SD]T"), ("UTC", "UTC")):
        page.goto(f"/schedules/{schedule['id']}")
        page.locator(".who summary").click()
        page.get_by_role("button", name=button).click()
        expect(page.locator("#next li").first).to_contain_text(re.compile(zone))
    context.close()


# every page


@pytest.fixture(scope="module")
def hostile(live_server: LiveServer) -> Iterator[list[str]]:
    """Hostile text in every field that users can write, and the pages that show it."""
    evil_name = EVIL.replace("/", "")  # names have no slash
    name = f"{evil_name} {next(numbers)}"
    live_server.call("POST", "/tasks", {"name": f"{name} task", "command": f"echo {HOSTILE}; exit 3"})
    bad = live_server.schedule(name, "fails", input={"message": HOSTILE}, description=HOSTILE[:900], tags=[EVIL])
    failed = live_server.run(bad["id"])
    task = next(task for task in live_server.call("GET", "/tasks")["items"] if task["name"].startswith(evil_name))
    shell = live_server.call("POST", f"/tasks/{task['id']}/$execute")["job_id"]
    live_server.schedule(f"{'n' * 190} {next(numbers)}", "talk", input={"word": HOSTILE})
    live_server.call("POST", "/grants", {"scopes": [f"task:execute:{'s' * 190}"]})
    live_server.call("POST", "/api-keys", {"name": evil_name, "role": "viewer"})
    user = {"email": f"{'e' * 60}@example.org", "name": evil_name, "password": "long enough", "role": "viewer"}
    live_server.call("POST", "/users", user)
    live_server.call("PUT", "/freeze", {"reason": HOSTILE[:900]})
    live_server.call("POST", f"/schedules/{bad['id']}/$pause", {"reason": HOSTILE[:900]})
    live_server.until(f"/runs/{failed}", lambda run: run["finished_at"])
    live_server.until(f"/jobs/{shell}", lambda state: state["finished_at"])
    yield [
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
        ),
        *("/grants", "/queues", "/settings", "/audit", "/system?examine=true", f"/schedules/{bad['id']}"),
        *(f"/schedules/{bad['id']}/edit", f"/runs/{failed}", f"/runs/{shell}", f"/tasks/{task['id']}", "/nowhere"),
        *create_hostile_data(live_server),
    ]
    live_server.call("DELETE", "/freeze")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_page_can_be_used_by_everybody_and_runs_nothing_of_others(
    browser: Browser, live_server: LiveServer, hostile: list[str], colours: str
) -> None:
    context = browser.new_context(base_url=live_server.url, color_scheme=colours)  # type: ignore[arg-type]
    page, complaints, wrong = context.new_page(), [], []
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None)
    page.goto("/login")
    wrong += [f"/login: {violation}" for violation in violations(page)]
    page.goto(live_server.call("POST", "/login-links")["url"])
    for path in hostile:
        for size in SIZES:
            page.set_viewport_size(size)  # type: ignore[arg-type]
            shown = page.goto(path)
            assert shown is not None
            assert shown.status == (404 if path == "/nowhere" else 200), path
            over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if over > 0:
                wrong.append(f"{path} overflows by {over} at {size['width']}")
        page.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = one.className !== 'menu who' })"
        )
        wrong += [f"{path}: {violation}" for violation in violations(page)]
    context.close()
    assert not wrong, "\n".join(wrong)
    assert not complaints


def test_everything_is_found_and_opened_by_keyboard(page: Page, live_server: LiveServer) -> None:
    schedule = live_server.schedule("palette-one", "tick")
    live_server.schedule("palette-two", "tick")
    page.goto("/audit")
    page.keyboard.press("Control+k")
    page.keyboard.type("palette-")
    options = page.locator("#palette [role=option]")
    expect(options.nth(1)).to_contain_text("palette-two")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/schedules/{schedule['id']}$"))
    page.wait_for_load_state()
    page.keyboard.press("/")
    page.keyboard.type("simulate")
    expect(options.filter(has_text="Simulate a time range")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()


def test_fifty_runs_fit_on_two_screens_and_columns_are_chosen(page: Page, live_server: LiveServer) -> None:
    live_server.schedule("dense", "tick")
    for _ in range(50):
        live_server.call("POST", "/schedules/dense/$run", {"overlap": "allow"})
    live_server.until("/runs?target=tick&status=success&limit=50", lambda runs: len(runs["items"]) == 50)
    page.goto("/runs?target=tick")
    expect(page.locator("[data-row]")).to_have_count(50)
    assert page.evaluate("document.querySelector('#list').getBoundingClientRect().bottom + scrollY") <= 2 * 900
    page.locator(".columns-menu summary").click()
    page.locator("input[name='column.worker']").check()
    page.locator(".columns-menu button").click()
    expect(page.locator("th", has_text="Worker")).to_be_visible()


def test_rows_are_selected_with_shift_and_retried_together(page: Page, live_server: LiveServer) -> None:
    for number in range(4):
        live_server.schedule(f"broken-{number}", "fails", tags=["broken"])
        live_server.call("POST", f"/schedules/broken-{number}/$run")
    live_server.until("/runs?tag=broken&status=failed", lambda runs: len(runs["items"]) == 4)
    page.goto("/runs?tag=broken&status=failed")
    boxes = page.locator("[data-pick]")
    boxes.nth(0).click()
    boxes.nth(2).click(modifiers=["Shift"])
    expect(page.locator("[data-picked-count]")).to_have_text("3 selected")
    boxes.nth(1).click()
    expect(page.locator("[data-picked-count]")).to_have_text("2 selected")
    page.locator("#picked summary", has_text="Retry selected").click()
    page.locator("#picked .act[open] button.primary").click()
    expect(page.locator(".flash")).to_have_text("2 runs are retried.")
    live_server.until("/runs?tag=broken&status=failed", lambda runs: len(runs["items"]) == 6)


def test_a_live_page_keeps_the_marked_row_and_the_selected_text(page: Page, live_server: LiveServer) -> None:
    live_server.schedule("steady", "tick")
    first = live_server.run("steady")
    live_server.until(f"/runs/{first}", lambda run: run["finished_at"])
    page.goto("/runs?target=tick")
    page.keyboard.press("j")
    marked = page.locator("[data-row].chosen a").first
    link = marked.get_attribute("href")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('[data-row] td'))")
    text = page.evaluate("String(getSelection())")
    assert text.strip()
    newer = live_server.run("steady")
    expect(page.locator("#news")).to_have_text("1 new run")  # announced, not inserted under the pointer
    last = live_server.run("steady")
    expect(page.locator("#news")).to_have_text("2 new runs")
    assert page.evaluate("String(getSelection())") == text
    assert page.locator(f"[data-row] a[href$='{newer}']").count() == 0
    page.keyboard.press(".")
    expect(page.locator(f"[data-row] a[href$='{last}']").first).to_be_attached()
    expect(page.locator("#news")).to_have_count(0)
    assert page.evaluate("String(getSelection())") == text
    assert marked.get_attribute("href") == link
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(re.escape(str(link)) + "$"))


def test_a_page_says_that_its_server_is_away_until_it_is_back(browser: Browser, live_server: LiveServer) -> None:
    context = browser.new_context(base_url=live_server.url)  # its own: the console names each request that failed
    page = context.new_page()
    page.goto(live_server.call("POST", "/login-links")["url"])
    gone = re.compile(r"/live/events|/health/live")
    page.route(gone, lambda route: route.abort())
    page.goto("/runs")
    expect(page.locator(".banner.away")).to_contain_text("The server is not reachable")
    page.unroute(gone)
    expect(page.locator(".banner.away")).to_have_count(0)
    context.close()


def test_a_page_that_was_live_says_that_its_server_was_killed(browser: Browser, tmp_path: Path) -> None:
    with running_server(tmp_path) as own:
        context = browser.new_context(base_url=own.url)
        page = context.new_page()
        page.goto(own.call("POST", "/login-links")["url"])
        with page.expect_response(re.compile("/live/events")):
            page.goto("/")
        os.kill(json.loads((tmp_path / "server.json").read_text())["pid"], signal.SIGKILL)
        expect(page.locator(".banner.away")).to_contain_text("The server is not reachable", timeout=20_000)
        context.close()


def test_code_in_a_block_is_as_large_as_the_block(page: Page) -> None:
    page.goto("/runs")
    sizes = page.evaluate("""() => {
        const block = document.createElement("pre"), code = block.appendChild(document.createElement("code"));
        document.querySelector("main").append(block);
        return [block, code].map((element) => parseFloat(getComputedStyle(element).fontSize));
    }""")
    assert sizes[0] == sizes[1] > 12
