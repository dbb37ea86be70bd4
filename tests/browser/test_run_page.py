"""Log viewer, previews, comparison and live lists in a real browser."""

import re

import pytest
from playwright.sync_api import CDPSession, Page, expect

from tests.browser.live_server import LiveServer
from tests.browser.reader import Reader

SCRIPT_SECONDS = 0.1  # of the processor, for an update of a page of 10,000 rows on an idle machine
BUSY = 4  # times slower where other tests share its cores and caches

VISIBLE = """() => {
    const box = document.querySelector("#log").getBoundingClientRect();
    return [...document.querySelectorAll("#log p")].filter((line) => {
        const place = line.getBoundingClientRect();
        return place.bottom > box.top && place.top < box.bottom;
    }).map((line) => Number(line.id.slice(1)));
}"""


def chatter(live_server: LiveServer) -> str:
    """Run a task that writes 3,000 lines; return the id of its run."""
    job = live_server.call("POST", "/jobs", {"target": "chatter"})["job_id"]
    return str(live_server.until(f"/jobs/{job}", lambda job: job["finished_at"])["run_ids"][-1])


def test_a_long_log_is_scrolled_searched_filtered_and_linked(page: Page, live_server: LiveServer) -> None:
    run = chatter(live_server)
    page.goto(f"/runs/{run}/log#L1500")
    expect(page.locator("#L1500")).to_have_class(re.compile("shown"))
    assert 1500 in page.evaluate(VISIBLE)
    page.evaluate("document.querySelector('#log').scrollTop = 0")
    expect(page.locator("#L1")).to_be_in_viewport()
    page.evaluate("{ const log = document.querySelector('#log'); log.scrollTop = log.scrollHeight }")
    expect(page.locator("#L3000")).to_be_in_viewport()
    assert page.locator("#log p").count() <= 1000
    assert page.locator("#log b").count() == 0  # its text is not HTML
    expect(page.locator("#L3000 .ansi-fg-2")).to_have_text("green")

    page.locator("[data-log-search]").fill("page 77")
    expect(page.locator("[data-log-count]")).to_have_text(re.compile(r"1 of \d+"))
    page.locator("[data-log-search]").press("Enter")
    expect(page.locator("[data-log-count]")).to_have_text(re.compile(r"2 of \d+"))
    expect(page.locator(".shown mark")).to_be_in_viewport()
    page.locator("[data-log-search]").fill("")
    page.locator("[name=level]").select_option("error")
    expect(page.locator("#log p")).to_have_count(3)
    expect(page.locator("#L2000")).to_have_class(re.compile("error"))
    page.locator("#L2000 .number").click()
    expect(page).to_have_url(re.compile(r"\?line=2000#L2000$"))
    page.reload()
    expect(page.locator("#L2000")).to_be_in_viewport()


def test_without_script_a_log_has_pages_and_artifacts_have_previews(reader: Reader, live_server: LiveServer) -> None:
    run, page = chatter(live_server), reader.page
    page.goto(f"/runs/{run}")
    expect(page.locator("#L3000")).to_be_visible()
    if not reader.script:
        page.locator("a[rel=prev]", has_text="Earlier").click()
        expect(page.locator("#log p").first).to_have_attribute("id", "L2001")
        page.locator("[name=q]").last.fill("page 77")
        page.locator("[data-log-submit]").click()
        expect(page.locator("#log mark").first).to_have_text("page 77")
    frames = page.locator("#artifacts iframe")
    expect(frames).to_have_count(2)
    for number in range(2):
        frames.nth(number).scroll_into_view_if_needed()
        assert frames.nth(number).get_attribute("sandbox") == ""
    expect(page.frame_locator("#artifacts iframe >> nth=1").locator("h1")).to_have_text("Report")
    expect(page.frame_locator("#artifacts iframe >> nth=0").locator("td").first).to_have_text("<b>Oslo</b>")
    assert page.title() != "evil"


def test_two_selected_runs_are_compared(page: Page, live_server: LiveServer) -> None:
    for word in ("one", "two"):
        job = live_server.call("POST", "/jobs", {"target": "fails", "input": {"message": word}})["job_id"]
        live_server.until(f"/jobs/{job}", lambda job: job["finished_at"])
    page.goto("/runs?target=fails")
    page.locator("[data-pick]").nth(0).click()
    expect(page.locator("[data-compare]")).to_be_hidden()
    page.locator("[data-pick]").nth(1).click()
    page.locator("[data-compare]").click()
    row = page.locator("tr.differs", has=page.locator("td", has_text=re.compile("^message$"))).first
    expect(row).to_contain_text("one")
    expect(row).to_contain_text("two")


@pytest.mark.long
def test_a_page_of_ten_thousand_rows_is_updated_fast(page: Page, live_server: LiveServer) -> None:
    live_server.schedule("one of many", "tick")
    live_server.run("one of many")
    page.goto("/runs?target=tick")
    expect(page.locator("[data-row]").first).to_be_visible()
    page.evaluate("""() => {
        stream?.close();
        const many = (root, changed) => {
            const body = root.querySelector("#list tbody"), row = body.querySelector("[data-row]");
            const rows = Array.from({ length: 10_000 }, (_, number) => {
                const copy = row.cloneNode(true);
                copy.querySelector("a").setAttribute("href", "/runs/" + number);
                copy.dataset.row = number;
                if (number % 100 === changed) copy.querySelector(".badge").textContent = "changed";
                return copy;
            });
            body.replaceChildren(...rows);
        };
        const next = document.implementation.createHTMLDocument();
        next.documentElement.innerHTML = document.documentElement.innerHTML;
        many(document, -1);
        many(next, 7);
        window.next = next;
    }""")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = processor_seconds(devtools)
    page.evaluate("updatePage(window.next); updated()")
    took = processor_seconds(devtools) - before
    expect(page.locator("[data-row] .badge", has_text="changed")).to_have_count(100)
    print(f"{took * 1000:.0f} ms of script for 10,000 rows")
    assert took < BUSY * SCRIPT_SECONDS


def processor_seconds(devtools: CDPSession) -> float:
    """Return the seconds of the processor that the page has used so far, without those for layout and style."""
    metrics = {metric["name"]: metric["value"] for metric in devtools.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"] - metrics["LayoutDuration"] - metrics["RecalcStyleDuration"])
