"""`make screenshots`: the pictures of the dashboard that the docs show, of a real server that has worked for a while.

Now, a schedule, a run and a workflow, each in light and dark, on a wide screen and on a phone.
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.browser.live_server import LiveServer, running_browser, running_server

SIZES: dict[str, Any] = {"wide": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}
DAYS = 75


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, running_server(Path(home)) as live_server, running_browser() as browser:
        pages = busy(live_server)
        for colours in ("light", "dark"):
            for size in SIZES:
                shoot(browser, live_server, pages, folder, colours, size)


def busy(live_server: LiveServer) -> dict[str, str]:
    """Schedules with a past; the pages to show."""
    for name, target, more in (
        ("ping", "tick", {"interval": "5s", "tags": ["ops"]}),
        ("disk", "disk", {"interval": "1m", "tags": ["ops"]}),
        ("import-orders", "import_orders", {"input": {"day": "yesterday"}, "tags": ["shop"], **cron("15 6 * * *")}),
        (
            "sync-crm",
            "fails",
            {"input": {"message": "the CRM refused the token: 401"}, "tags": ["shop"], **cron("0 5 * * *")},
        ),
        ("invoices", "tick", {"tags": ["shop"], **cron("0 7 1 * *")}),
        ("morning-poem", "python:poet", {"kind": "graph", **cron("30 7 * * 1-5")}),
        ("nightly-report", "talk", {"input": {"word": "reading page"}, "tags": ["reports"], **cron("0 2 * * *")}),
    ):
        live_server.schedule(name, target, **{"interval": None, "timezone": "Europe/Oslo", **more})
    now = datetime.now(UTC)
    span = {"from": (now - timedelta(days=DAYS)).isoformat(), "to": now.isoformat(), "limit": 100}
    fired = live_server.call("POST", "/schedules/import-orders/$backfill", span)["count"]
    live_server.until(
        "/schedules/import-orders/slots?limit=200",
        lambda page: sum(slot["verdict"] == "ran" for slot in page["items"]) >= fired,
        180,
    )
    live_server.call("POST", "/schedules/invoices/$pause", {"reason": "new tax rules: waiting for the accountant"})
    live_server.run("sync-crm")
    letter = {"message_id": "lost-7", "title": "Invoice 7, the new printer", "payload": {"amount": 480}}
    live_server.call("POST", "/workflows/pay-invoices/topics/invoices/events", letter)
    live_server.until("/workflows/pay-invoices", lambda workflow: workflow["status"] == "needs_attention")
    running = live_server.run("nightly-report")
    live_server.until(f"/runs/{running}/logs", lambda log: len(log["items"]) >= 12)
    return {
        "now": "/",
        "schedule": f"/schedules/{live_server.call('GET', '/schedules/import-orders')['id']}",
        "run": f"/runs/{running}",
        "workflow": "/workflows/pay-invoices",
    }


def cron(expression: str) -> dict[str, str]:
    return {"cron_expression": expression}


def shoot(
    browser: Browser, live_server: LiveServer, pages: dict[str, str], folder: Path, colours: Any, size: str
) -> None:
    context = browser.new_context(base_url=live_server.url, color_scheme=colours, viewport=SIZES[size])
    page = context.new_page()
    page.goto(live_server.call("POST", "/login-links")["url"])
    for name, path in pages.items():
        page.goto(path)
        page.wait_for_load_state()
        page.screenshot(path=folder / f"{name}-{colours}-{size}.png")
    context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
