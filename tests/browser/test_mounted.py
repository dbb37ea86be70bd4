"""The dashboard below a path of another application: a real uvicorn, a real browser."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from rota.core.process_groups import die_with_parent
from tests.browser.conftest import watched
from tests.browser.live_server import LiveServer, chrome

if chrome() is None:
    pytest.skip("no Chromium here", allow_module_level=True)

ROOT = Path(__file__).parents[2]


@contextmanager
def uvicorn(application: str, home: Path, prefix: str = "/rota") -> Iterator[LiveServer]:
    """Serve an application by uvicorn; its site is below `prefix`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    env |= {"ROTA_DATA_DIR": str(home), "ROTA_DRAIN_SECONDS": "0"}
    command = [sys.executable, "-m", "uvicorn", application, "--port", str(port)]
    log = home / "uvicorn.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=out, preexec_fn=die_with_parent)
    try:
        end = time.monotonic() + 60
        while "Uvicorn running" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        key = home / "admin.key"
        yield LiveServer(f"http://127.0.0.1:{port}{prefix}", key.read_text().strip() if key.exists() else "", link="")
    finally:
        process.terminate()
        process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with uvicorn("tests.browser.mounted_app:web", tmp_path_factory.mktemp("mounted")) as server:
        yield server


@pytest.fixture
def page(browser: Browser, mounted: LiveServer) -> Iterator[Page]:
    """A logged-in user. Requests outside of the prefix fail the test."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    context.set_default_timeout(60_000)
    outside: list[str] = []
    context.on("request", lambda request: None if request.url.startswith(mounted.url) else outside.append(request.url))
    yield from watched(context, mounted)
    assert outside == []


def test_pages_forms_and_live_updates_work_below_the_prefix(page: Page, mounted: LiveServer) -> None:
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    assert page.url == f"{mounted.url}/"
    page.get_by_role("link", name="Schedules").first.click()
    assert page.url == f"{mounted.url}/schedules"
    page.get_by_role("link", name="New schedule").click()
    page.locator(".editor [name=name]").fill("ticks")
    page.locator("[name=target]").fill("tick")
    page.locator("[name=cron_expression]").fill("*/7 * * * *")
    expect(page.locator("#preview")).to_contain_text("does not divide the hour")  # by the script
    page.get_by_text("Interval", exact=True).click()
    page.locator("[name=interval]").fill("1h")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="ticks")).to_be_visible()
    assert page.url.startswith(f"{mounted.url}/schedules/01")
    run = mounted.run("ticks")  # the page shows it without a reload: its event stream works
    expect(page.locator("#runs, main").first).to_contain_text("success")
    page.goto(f"{mounted.url}/runs/{run}")
    expect(page.locator("main")).to_contain_text("success")


def test_all_links_of_all_pages_stay_below_the_prefix(page: Page, mounted: LiveServer) -> None:
    seen, waiting = set[str](), [f"{mounted.url}/"]
    while waiting:
        address = waiting.pop()
        if address in seen or len(seen) > 60:
            continue
        seen.add(address)
        answer = page.request.get(address)
        assert answer.status == 200, address
        if "text/html" not in answer.headers["content-type"]:
            continue
        page.goto(address)
        addresses: list[str] = page.eval_on_selector_all(
            "a[href], form[action], link[href], script[src], img[src], [formaction]",
            "all => all.map(it => it.href?.baseVal ?? it.href ?? it.src ?? it.action).map(it => "
            "new URL(it, location.href).href)",
        )
        assert [link for link in addresses if not link.startswith(mounted.url)] == [], address
        links: list[str] = page.eval_on_selector_all(
            "a[href]:not([download])", "all => all.map(it => new URL(it.href.baseVal ?? it.href, location.href).href)"
        )
        waiting += [link.partition("#")[0] for link in links]
    assert len(seen) > 15, seen


def test_login_and_logout_and_their_cookies_are_below_the_prefix(page: Page, mounted: LiveServer) -> None:
    cookies = {cookie["name"]: cookie["path"] for cookie in page.context.cookies(mounted.url)}
    assert cookies["rota_session"] == "/rota"
    page.locator(".who summary").click()
    page.get_by_role("button", name="dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.locator(".who summary").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.url == f"{mounted.url}/login"
    page.goto(f"{mounted.url}/schedules?name=x")
    assert page.url == f"{mounted.url}/login?next=%2Fschedules%3Fname%3Dx"


def test_the_api_names_its_prefix(page: Page, mounted: LiveServer) -> None:
    assert read(f"{mounted.url}/openapi.json")["servers"] == [{"url": "/rota"}]
    assert read(mounted.url.removesuffix("/rota") + "/")["events"] == ["started"]  # the application's own lifespan ran
    assert read(f"{mounted.url}/health/ready")["status"] == "ok"
    asked = urllib.request.Request(
        f"{mounted.url}/api/v1/schedules",
        json.dumps({"name": "located", "target": "tick", "interval": "1h"}).encode(),
        {"authorization": f"Bearer {mounted.key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:
        made = json.loads(answer.read())
        assert answer.headers["location"] == f"/rota/api/v1/schedules/{made['id']}"
    page.goto(f"{mounted.url}/docs")
    page.locator(".opblock-summary-control").first.click(no_wait_after=True)
    expect(page.get_by_role("button", name="Try it out")).to_be_visible()
    expect(page.locator(".servers")).to_contain_text("/rota")


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.loads(answer.read())
