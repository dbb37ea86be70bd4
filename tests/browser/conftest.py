"""One server for all tests of this folder, one browser per file, one window per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser import hostile_app
from tests.browser.live_server import LiveServer, chrome, running_browser, running_server
from tests.browser.reader import Reader

collect_ignore = (
    [] if chrome() else ["test_drawings.py", "test_durable_pages.py", "test_kind_pages.py"]
)  # test_dashboard.py reports it
expect.set_options(timeout=60_000)  # a busy machine is slow, not wrong


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server"), Path(hostile_app.__file__)) as server:
        yield server


@pytest.fixture(scope="module")  # not longer: while it is open, no other event loop can run in this thread
def browser() -> Iterator[Browser]:
    with running_browser() as chromium:
        yield chromium


@pytest.fixture
def page(browser: Browser, live_server: LiveServer) -> Iterator[Page]:
    """Somebody who is logged in, with script. What a page complains about fails the test."""
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1300, "height": 900})
    context.set_default_timeout(60_000)
    yield from watched(context, live_server)


@pytest.fixture
def plain(browser: Browser, live_server: LiveServer) -> Iterator[Page]:
    """The same without script."""
    context = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    context.set_default_timeout(60_000)
    yield from watched(context, live_server)


@pytest.fixture(params=["page", "plain"])
def reader(request: pytest.FixtureRequest) -> Reader:
    return Reader(request.getfixturevalue(request.param), request.param == "page")


def watched(context: BrowserContext, live_server: LiveServer) -> Iterator[Page]:
    new_page, complaints = context.new_page(), []
    new_page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    new_page.on("pageerror", lambda error: complaints.append(str(error)))
    new_page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    new_page.goto(live_server.call("POST", "/login-links")["url"])
    yield new_page
    context.close()
    wanted = ("status of 4", "Blocked script execution")  # refusals are answers, too; previews of artifacts run nothing
    unexpected = [complaint for complaint in complaints if not any(part in complaint for part in wanted)]
    assert not unexpected, unexpected
