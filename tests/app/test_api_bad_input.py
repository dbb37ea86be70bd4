"""What must not be stored: each gets 422 that names the field, the value and what would be right."""

from typing import Any

import pytest

from tests.app.harness import Api

GOOD = {"name": "nightly", "target": "hello", "schedule_type": "cron", "cron_expression": "0 12 * * *"}
INTERVAL = {"schedule_type": "interval", "cron_expression": None}
ONCE = {"schedule_type": "once", "cron_expression": None}

# what is changed, the field that is named, and a part of what would be right
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"cron_expression": "every day"}, "cron_expression", "field"),
    ({"cron_expression": "61 * * * *"}, "cron_expression", "minute"),
    ({"cron_expression": "0 0 31 2 *"}, "cron_expression", ""),
    ({"cron_expression": "*/5 * * * * *"}, "cron_expression", "interval"),
    ({"cron_expression": "0 25 * * *"}, "cron_expression", "hour"),
    ({"cron_expression": "0 0 * * 5-2-1"}, "cron_expression", ""),
    ({"cron_expression": "\u0660 12 * * *"}, "cron_expression", ""),
    ({"cron_expression": 5}, "cron_expression", ""),
    ({"cron_expression": None}, "cron_expression", "missing"),
    ({"timezone": "Mars/Olympus"}, "timezone", "Europe/Oslo"),
    ({"timezone": "../../etc/passwd"}, "timezone", "IANA"),
    ({"timezone": 1}, "timezone", "IANA"),
    ({**INTERVAL, "interval_seconds": 0}, "interval_seconds", "1 second"),
    ({**INTERVAL, "interval_seconds": 0.5}, "interval_seconds", "1 second"),
    ({**INTERVAL, "interval_seconds": -5}, "interval_seconds", "1 second"),
    ({**INTERVAL, "interval_seconds": 10 * 366 * 86_400 + 1}, "interval_seconds", "days"),
    ({**INTERVAL, "interval_seconds": 1e300}, "interval_seconds", "days"),
    ({**INTERVAL, "interval": "5 parsecs"}, "interval", "30s"),
    ({**INTERVAL, "interval": "0s"}, "interval", "1 second"),
    ({**INTERVAL, "interval": "4000d"}, "interval", "days"),
    ({**ONCE, "run_at": "2026-12-01T09:00:00"}, "run_at", "offset"),
    ({**ONCE, "run_at": "2026-12-01"}, "run_at", "offset"),
    ({**ONCE, "run_at": "2026-02-30T09:00:00Z"}, "run_at", "offset"),
    ({**ONCE, "run_at": "2026-05-04T08:59:59Z"}, "run_at", "future"),
    ({**ONCE, "run_at": 1777885200}, "run_at", "offset"),
    ({"run_at": "2026-12-01T09:00:00Z"}, "run_at", "cron"),
    ({"schedule_type": "sometimes"}, "schedule_type", "interval"),
    ({"schedule_type": None, "cron_expression": None}, "schedule_type", "missing"),
    ({"window_start": "09:00", "window_end": "09:00"}, "window_end", "differ"),
    ({"window_start": "9:00", "window_end": "10:00"}, "window_start", "HH:MM"),
    ({"window_start": "09:00"}, "window_end", "both"),
    ({"window_start": "24:00", "window_end": "10:00"}, "window_start", "HH:MM"),
    ({"starts_at": "2026-06-02T00:00:00Z", "ends_at": "2026-06-01T00:00:00Z"}, "ends_at", "after"),
    ({"ends_at": "2026-05-04T10:00:00Z"}, "ends_at", "no slot"),
    ({"misfire": "never"}, "misfire", "skip, once, all"),
    ({"overlap": "sometimes"}, "overlap", "queue_one"),
    ({"overlap": ["skip"]}, "overlap", "queue_one"),
    ({"catch_up_limit": 0}, "catch_up_limit", "from 1"),
    ({"max_runs": 0}, "max_runs", "from 1"),
    ({"max_runs": True}, "max_runs", "whole number"),
    ({"jitter_seconds": -1}, "jitter_seconds", "from 0"),
    ({"timeout_seconds": 0}, "timeout_seconds", "from 1"),
    ({"timeout_seconds": "10"}, "timeout_seconds", "whole number"),
    ({"start_deadline_seconds": 1.5}, "start_deadline_seconds", "whole number"),
    ({"priority": 101}, "priority", "-100 to 100"),
    ({"enabled": "yes"}, "enabled", "true"),
    ({"tags": "a"}, "tags", "list"),
    ({"tags": ["a", 1]}, "tags", "text"),
    ({"tags": ["x"] * 51}, "tags", "50"),
    ({"retry": {"max_retries": -1}}, "retry.max_retries", "from 0"),
    ({"retry": {"tries": 1}}, "retry.tries", "max_retries"),
    ({"retry": {"backoff_type": "random"}}, "retry.backoff_type", "fixed"),
    ({"retry": 3}, "retry", "object"),
    ({"name": "x" * 201}, "name", "200"),
    ({"name": "a\nb"}, "name", "printable"),
    ({"name": "a\u0000b"}, "name", ""),
    ({"name": "\u202eabc"}, "name", "printable"),
    ({"name": " x"}, "name", "blanks"),
    ({"name": ""}, "name", "empty"),
    ({"name": 5}, "name", "text"),
    ({"description": "x" * 2001}, "description", "2000"),
    ({"kind": "magic"}, "kind", "task"),
    ({"target": "unknown"}, "target", "known task"),
    ({"target": None}, "target", "missing"),
    ({"target": ""}, "target", "empty"),
    ({"input": {"name": "x" * (1024 * 1024)}}, "input", "1048576"),
    ({"input": [1]}, "input", "object"),
    ({"input": {"nam": 1}}, "input.nam", "parameter"),
    ({"colour": "red"}, "colour", "unknown field"),
    ({"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "id", "unknown field"),
]  # fmt: skip


async def test_a_wrong_value_is_named_and_nothing_is_stored(api: Api) -> None:
    for change, field, right in WRONG:
        body = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
        answer = await api.call("POST", "/schedules", body)
        assert answer.status_code == 422, (change, answer.text)
        assert len(answer.content) < 2000, change
        problem = answer.json()
        assert problem["code"] == "invalid"
        assert [error["field"] for error in problem["errors"]] == [field], change
        assert right in problem["errors"][0]["message"], change
        sent = change.get(field)
        if isinstance(sent, int | float) or (isinstance(sent, str) and sent.isprintable() and len(sent) < 50):
            assert str(sent).removesuffix("Z") in problem["errors"][0]["value"], change
    for table in ("schedules", "clocks", "schedule_stats", "trigger_spans"):
        assert await api.count(table) == 0


async def test_all_invalid_fields_are_reported_at_once(api: Api) -> None:
    answer = await api.call("POST", "/schedules", {"cron_expression": "x", "timezone": "x", "overlap": "x", "other": 1})
    fields = {error["field"] for error in answer.json()["errors"]}
    assert fields == {"cron_expression", "timezone", "overlap", "other", "target"}


async def test_an_edit_to_a_wrong_value_changes_nothing(api: Api) -> None:
    before = await api.schedule("nightly")
    for change, field, right in WRONG:
        if None in change.values() or right == "cron":  # an edit may leave fields out, and may change the trigger
            continue
        answer = await api.call("PATCH", "/schedules/nightly", change)
        assert answer.status_code == 422, (change, answer.text)
        assert field in [error["field"] for error in answer.json()["errors"]], change
    assert await api.get("/schedules/nightly") == before


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("$run", {"overlap": "x"}, "overlap"),
        ("$run", {"input": 3}, "input"),
        ("$run", {"why": 3}, "why"),
        ("$pause", {"until": "2026-05-04T08:00:00Z"}, "until"),
        ("$pause", {"until": "soon"}, "until"),
        ("$pause", {"reason": 5}, "reason"),
        ("$pause", {"reason": "x" * 1001}, "reason"),
        ("$resume", {"gap": "some"}, "gap"),
        ("$skip-next", {"slot": 1}, "slot"),
        ("$backfill", {"to": "2026-05-01T00:00:00Z"}, "from"),
        ("$backfill", {"from": "2026-05-01T00:00:00Z"}, "to"),
        ("$backfill", {"from": "2026-05-02T00:00:00Z", "to": "2026-05-01T00:00:00Z"}, "to"),
        ("$backfill", {"from": "2026-05-01T00:00:00Z", "to": "2026-05-02T00:00:00Z", "limit": 0}, "limit"),
        ("$backfill", {"from": "2026-05-01T00:00:00Z", "to": "2026-05-02T00:00:00Z", "dry_run": "no"}, "dry_run"),
    ],
)
async def test_a_wrong_order_is_named(api: Api, path: str, body: dict[str, Any], field: str) -> None:
    before = await api.schedule("nightly")
    answer = await api.call("POST", f"/schedules/nightly/{path}", body)
    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert await api.get("/schedules/nightly") == before
    assert await api.count("jobs") == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"interval": "5m", "count": 0}, "count"),
        ({"interval": "5m", "count": 101}, "count"),
        ({"interval": "5m", "after": "now"}, "after"),
        ({"interval": "5m", "nome": "x"}, "nome"),
        ({"cron_expression": "61 * * * *"}, "cron_expression"),
    ],
)
async def test_a_wrong_preview_is_named(api: Api, body: dict[str, Any], field: str) -> None:
    answer = await api.call("POST", "/schedules/$preview", body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_one_wrong_item_stops_the_bulk(api: Api) -> None:
    items = [{**GOOD, "name": f"s{number}"} for number in range(5)]
    items[3]["cron_expression"] = "x"
    answer = await api.call("POST", "/schedules/$bulk", {"items": items})
    assert [error["field"] for error in answer.json()["errors"]] == ["items[3].cron_expression"]
    bodies: list[dict[str, Any]] = [{}, {"items": {}}, {"items": [1]}, {"items": []}]
    for wrong in bodies:
        answer = await api.call("POST", "/schedules/$bulk", wrong)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "items")
    assert (await api.call("POST", "/schedules/$bulk", {"items": [GOOD, GOOD]})).status_code == 409
    many = [{**GOOD, "name": f"s{number % 99}"} for number in range(100)]
    assert (await api.call("POST", "/schedules/$bulk", {"items": many})).status_code == 409
    assert await api.count("schedules") == 0
