"""Executes docs/alarms.md: its programs, and its commands against a live API."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from rota.core import webhooks
from rota.core.alarms import RULES, RUN_EVENTS, parse_when
from rota.kinds.alarms.manager import declare_alarms
from rota.kinds.alarms.store import rows
from tests.app.harness import Api
from tests.kinds.alarms.harness import Alarms

PAGE = (Path(__file__).parents[3] / "docs" / "alarms.md").read_text()


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_every_rule_with_its_limit() -> None:
    documented = [
        rule for cell in re.findall(r"^\| (`[a-z].*?`) \|", PAGE, re.MULTILINE) for rule in re.findall("`(.*?)`", cell)
    ]
    parsed = {rule.name: rule for rule in map(parse_when, documented[: len(RULES) + len(RUN_EVENTS)])}
    assert parsed == {name: parse_when(name) for name in (*RULES, *RUN_EVENTS)}


async def test_the_program_declares_its_alarm_again_and_again(alarms: Alarms) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(snippets("python")[0], namespace)
    declared, harness = namespace["app"].alarms, alarms.harness
    for wanted in (declared, declared, [({**declared[0][0], "when": "late > 7m"}, declared[0][1])]):
        await declare_alarms(harness.engine, "default", "page", wanted)
    (alarm,) = await harness.db.read(rows.list_alarms, harness.org_id)
    assert (alarm["when"], alarm["on"], alarm["source"]) == ("late > 7m", "tag:nightly", "code:page")
    assert [channel["type"] for channel in await harness.db.read(rows.list_channels, harness.org_id)] == [
        "webhook",
        "email",
    ]
    await declare_alarms(harness.engine, "default", "page", [])
    assert await harness.db.read(rows.list_alarms, harness.org_id) == []


def test_the_receiver_verifies_a_signature() -> None:
    from datetime import UTC, datetime

    namespace: dict[str, Any] = {}
    exec(snippets("python")[1], namespace)
    secret, now, body = webhooks.new_secret(), datetime.now(UTC), '{"type": "alarm.test"}'
    signature = Webhook(secret).sign("1", now, body)
    headers = {
        "webhook-id": "1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    assert namespace["receive"](secret, body.encode(), headers) == "alarm.test"


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_the_fields_of_the_commands_are_those_of_the_api(api: Api) -> None:
    """The commands of the page; the command line itself is compared with the API in `test_cli_covers_the_api.py`."""
    for line in snippets("sh")[0].splitlines():
        assert shlex.split(line)[:2] == ["rota", "alarm"]
    hook = {"name": "hook", "type": "webhook", "address": "https://example.org/hook"}
    created = (await api.call("POST", "/alarm-channels", hook)).json()
    assert created["secret"].startswith("whsec_")
    assert (await api.call("POST", "/alarms", {"name": "late", "when": "late > 5m", "notify": ["hook"]})).is_success
    edited = await api.call(
        "PATCH", "/alarms/late", {"repeat_seconds": 3600, "quiet": "22:00-07:00", "timezone": "UTC"}
    )
    assert edited.json()["quiet"] == "22:00-07:00"
    audit = await api.get("/audit", limit=200)
    shown = [await api.get(path) for path in ("/alarms", "/alarm-channels/hook", "/alarm-channels")]
    assert created["secret"] not in str([audit, *shown])
    assert {entry["action"] for entry in audit["items"]} >= {"alarms.create", "alarms.edit", "alarm-channels.create"}
    assert (await api.call("DELETE", "/alarm-channels/hook")).status_code == 409
    assert len((await api.call("POST", "/alarms/late/$test")).json()["job_ids"]) == 1
