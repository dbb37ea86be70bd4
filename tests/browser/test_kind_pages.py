"""Workflows, pipelines and hosts in a real browser: with script pages follow by themselves, without it the reader loads
them anew, and the same forms do the same."""

import itertools
import shlex
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import expect

from rota.core.process_groups import die_with_parent
from tests.browser.live_server import LiveServer
from tests.browser.reader import Reader

numbers = itertools.count(1)


def test_a_workflow_that_does_not_know_what_happened_is_resolved(reader: Reader, live_server: LiveServer) -> None:
    page, name = reader.page, f"lost-{next(numbers)}"
    page.goto("/workflows")
    page.get_by_role("link", name="pay-invoices").click()
    reader.sees("#status", "Idle")
    expect(page.locator("svg.network")).to_contain_text("read_mailbox")
    reader.act("Publish to invoices", "Publish", message_id=name, title=f"Invoice {name}", payload='{"amount": 5}')
    expect(page.locator(".flash")).to_contain_text("The event is in invoices: created")
    reader.sees("#status", "Needs attention")
    reader.sees("#outputs li", "indeterminate")
    expect(page.locator("#issue")).to_contain_text("The call bank.pay got no answer")
    page.goto("/")
    expect(page.locator("#attention")).to_contain_text("pay-invoices")
    page.goto("/workflows/pay-invoices")
    page.locator("summary", has_text="Resolve").first.click()
    page.get_by_label("Applied", exact=False).first.check()
    page.locator("form[action$='$resolve'] [name=audit_reason]").fill("the bank's site shows it")
    page.locator("form[action$='$resolve'] button").click()
    expect(page.locator(".flash")).to_contain_text("pay-invoices continues")
    reader.sees("#status", "Idle")
    reader.sees("#recent li", f"pay Invoice {name}")
    expect(page.locator("#outputs li").filter(has_text=name)).to_contain_text("resolved by an operator")
    line = live_server.call("GET", "/audit?action=workflows.resolve")["items"][0]
    assert line["after"]["because"] == "the bank's site shows it"


def test_a_pipeline_is_tried_and_run(reader: Reader) -> None:
    page = reader.page
    page.goto("/pipelines")
    page.locator("#list").get_by_role("link", name="sales/bronze/orders").last.click()
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#work .data")).to_contain_text("shop-1")
    reader.act("Run now", "Run now")
    reader.sees("#status", "success")
    page.goto("/pipelines/sales/silver/by_shop")
    reader.sees("#runs li", "3 rows")  # which follows the other


def test_a_host_is_paired_by_the_command_on_the_page_and_does_what_is_asked(
    reader: Reader, live_server: LiveServer, tmp_path: Path
) -> None:
    page, name = reader.page, f"host-{next(numbers)}"
    page.goto("/hosts")
    reader.act("Pair a host", "Create a token")
    command = shlex.split(page.locator(".secret").inner_text())
    page.get_by_role("link", name="Done").click()
    assert command[:3] == ["rota", "agent", "pair"]
    rota, home = [sys.executable, "-m", "rota.app.cli"], ["--dir", str(tmp_path)]
    subprocess.run([*rota, *command[1:], *home, "--name", name], check=True, timeout=30)
    reader.sees("#list tr", name)
    row = page.locator("#list tr").filter(has_text=name)
    expect(row).to_contain_text("not connected yet")
    agent = subprocess.Popen([*rota, "agent", "run", *home, "--allow-any-shell"], preexec_fn=die_with_parent)
    try:
        reader.sees(f"#list tr:has-text('{name}')", "online")
        row.get_by_role("link", name=name).click()
        reader.act("Add a server", "Add", name="web", labels="role=web")
        expect(page.locator(".flash")).to_contain_text("web is created")
        reader.act("Run a job", "Run it", job_type="shell", payload='{"command": "echo it ran on $ROTA_SERVER_NAME"}')
        reader.sees("#status", "success")
        reader.sees("#log", "it ran on web")
    finally:
        agent.terminate()
        agent.wait(20)
    live_server.call("DELETE", f"/server-instances/{server_of(live_server, name)}")


def server_of(live_server: LiveServer, host: str) -> str:
    host_id = live_server.call("GET", f"/hosts/{host}")["id"]
    return str(live_server.call("GET", f"/server-instances?host_id={host_id}")["items"][0]["id"])
