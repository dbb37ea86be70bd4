"""Drawings in a real browser: zoom survives live updates, the timeline zooms to a second, the grid by arrow keys."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.live_server import LiveServer


def range_of(page: Page) -> tuple[str, str]:
    query = parse_qs(urlsplit(page.url).query)
    return query["from"][0], query["to"][0]


def test_a_drawing_keeps_zoom_and_focus_when_a_run_ends(page: Page, live_server: LiveServer) -> None:
    page.goto("/pipelines")
    box = page.locator("#drawing svg.network a", has_text="orders").first
    width = "getComputedStyle(document.querySelector('#drawing svg.network')).width"
    before = float(page.evaluate(width).removesuffix("px"))
    page.get_by_role("button", name="Zoom in").click()
    zoomed = page.evaluate(width)
    assert float(zoomed.removesuffix("px")) == pytest.approx(before * 1.25, abs=1)
    box.focus()
    page.evaluate("document.querySelector('#drawing').dataset.old = 'yes'")
    live_server.call("POST", "/pipelines/sales/bronze/orders/$run")
    expect(page.locator("#drawing[data-old]")).to_have_count(0)  # it was replaced
    expect(box).to_be_focused()
    expect(page.locator("#drawing .lighting .lit").first).to_be_attached()  # with the arrows of the box
    expect(page.locator("#drawing svg.network")).to_have_css("width", zoomed)
    expect(box).to_contain_text(re.compile(r"success · .* · 900 rows|running|pending"))


def test_the_timeline_is_enlarged_by_the_mouse_and_the_grid_read_by_keys(page: Page, live_server: LiveServer) -> None:
    live_server.schedule("gantt", "tick")
    for _ in range(2):
        live_server.run("gantt")
    live_server.until("/runs?schedule_id=gantt&status=success", lambda runs: len(runs["items"]) == 2)
    page.goto("/timeline?name=gantt&span=minute")
    row = page.locator(".chart.lane").first.bounding_box()
    assert row is not None
    middle = row["y"] + row["height"] / 2
    page.mouse.move(row["x"] + row["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(row["x"] + row["width"] * 0.75, middle, steps=3)
    page.mouse.up()
    page.wait_for_url(re.compile("from="))
    expect(page.locator("[data-gantt]")).to_have_attribute("data-from", re.compile(r"\d{13}"))
    expect(page.locator("#zoom a[aria-current]")).to_have_count(0)  # 30 seconds have no name
    cells = page.locator(".grid td a")
    page.goto("/grid?task=tick")
    cells.last.focus()
    page.keyboard.press("ArrowLeft")
    expect(cells.nth(cells.count() - 2)).to_be_focused()
    assert page.locator(".grid td a[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("gantt")


def test_the_timeline_is_zoomed_and_the_grid_opened_without_script(plain: Page, live_server: LiveServer) -> None:
    live_server.schedule("still", "tick")
    run = live_server.run("still")
    live_server.until(f"/runs/{run}", lambda record: record["finished_at"])
    plain.goto("/timeline?name=still&span=hour")
    plain.locator(".timeaxis a").first.click()
    start, end = range_of(plain)
    assert start < end
    plain.get_by_role("link", name="Zoom in").click()
    assert range_of(plain) != (start, end)
    plain.goto("/timeline?name=still&span=minute")
    expect(plain.locator(".chart.lane a").last).to_have_attribute("href", f"/runs/{run}")
    plain.goto("/grid?task=tick")
    plain.locator(".grid td a").last.click()
    expect(plain.locator("h1")).to_be_visible()
    plain.goto("/pipelines")
    expect(plain.locator("#drawing .tools")).to_be_hidden()
    expect(plain.locator("#drawing svg.network a").first).to_be_visible()
