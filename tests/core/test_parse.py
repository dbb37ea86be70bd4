"""Parsing the flat form of a schedule; all wrong fields are reported."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.core.errors import Invalid, InvalidMany
from rota.core.model import Schedule
from rota.core.policy import Misfire, Overlap
from rota.core.schedule_form import Defaults, flat, parse_patch, parse_schedule
from rota.core.timing.triggers import Cron, Every, Once
from rota.core.timing_form import parse_timing

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
DEFAULTS = {"task": Defaults(), "graph": Defaults(Misfire.SKIP, Overlap.QUEUE_ONE)}


def parse(**body: Any) -> Schedule:
    return parse_schedule({"target": "t", **body}, org_id="o", defaults=DEFAULTS, now=NINE, source="test", by=None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "schedule_type"),
        ({"cron_expression": "61 * * * *"}, "cron_expression"),
        ({"cron_expression": "* * * * *", "interval": "5m"}, "interval"),
        ({"schedule_type": "cron"}, "cron_expression"),
        ({"schedule_type": "hourly"}, "schedule_type"),
        ({"interval": "0s"}, "interval"),
        ({"interval_seconds": 0.1}, "interval_seconds"),
        ({"run_at": "2020-01-01T00:00:00Z"}, "run_at"),
        ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"cron_expression": "* * * * *", "timezone": "Mars/Base"}, "timezone"),
        ({"cron_expression": "* * * * *", "window_start": "09:00"}, "window_end"),
        ({"cron_expression": "* * * * *", "misfire": "never"}, "misfire"),
        ({"cron_expression": "* * * * *", "overlap": "never"}, "overlap"),
        ({"cron_expression": "* * * * *", "kind": "dance"}, "kind"),
        ({"cron_expression": "* * * * *", "name": ""}, "name"),
        ({"cron_expression": "* * * * *", "name": "n" * 201}, "name"),
        ({"cron_expression": "* * * * *", "name": "a\0b"}, "name"),
        ({"cron_expression": "* * * * *", "name": "a\nb"}, "name"),
        ({"cron_expression": "* * * * *", "description": "\ud800"}, "description"),
        ({"cron_expression": "* * * * *", "priority": 101}, "priority"),
        ({"cron_expression": "* * * * *", "priority": True}, "priority"),
        ({"cron_expression": "* * * * *", "max_runs": 0}, "max_runs"),
        ({"cron_expression": "* * * * *", "catch_up_limit": 1001}, "catch_up_limit"),
        ({"cron_expression": "* * * * *", "jitter_seconds": -1}, "jitter_seconds"),
        ({"cron_expression": "* * * * *", "jitter_seconds": 90_000}, "jitter_seconds"),
        ({"cron_expression": "* * * * *", "jitter_seconds": float("nan")}, "jitter_seconds"),
        ({"cron_expression": "* * * * *", "enabled": "yes"}, "enabled"),
        ({"cron_expression": "* * * * *", "tags": "a,b"}, "tags"),
        ({"cron_expression": "* * * * *", "input": {"x": "y" * 1_100_000}}, "input"),
        ({"cron_expression": "* * * * *", "nonsense": 1}, "nonsense"),
        ({"cron_expression": "* * * * *", "timeout_seconds": 0}, "timeout_seconds"),
    ],
)
def test_an_invalid_field_is_reported_by_its_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(**body)
    assert field in [error.field for error in raised.value.all]
    assert raised.value.message.startswith(field) or isinstance(raised.value, InvalidMany)


def test_all_invalid_fields_are_reported_together() -> None:
    with pytest.raises(InvalidMany) as raised:
        parse(cron_expression="x", priority=999, overlap="never", nonsense=1)
    assert {error.field for error in raised.value.all} >= {"cron_expression", "priority", "overlap", "nonsense"}


def test_the_message_names_the_first_of_many_invalid_fields() -> None:
    with pytest.raises(InvalidMany) as raised:
        parse(cron_expression="0 9 * * *", **{f"nonsense{n}": 1 for n in range(1000)})
    assert len(raised.value.all) == 1000
    assert "nonsense0:" in raised.value.message
    assert raised.value.message.endswith("; and 980 more")


FORMS = [
    {"cron_expression": "*/5 9-17 * * 1-5", "timezone": "Europe/Oslo", "window_start": "09:00", "window_end": "17:00"},
    {"interval": "1h30m", "jitter_seconds": 30, "starts_at": "2026-06-01T00:00:00Z", "ends_at": "2026-07-01T00:00:00Z"},
    {"run_at": "2026-06-01T12:00:00+02:00"},
    {"cron_expression": "@daily", "retry": {"max_retries": 3}, "max_runs": 5, "tags": ["a"], "timeout_seconds": 60},
]


@pytest.mark.parametrize("body", FORMS)
def test_the_flat_form_can_be_parsed_again(body: dict[str, Any]) -> None:
    schedule = parse(name="n", **body)
    parsed = parse_schedule(flat(schedule), org_id="o", defaults=DEFAULTS, now=NINE, source="test", by=None)
    assert flat(parsed) == flat(schedule)
    assert parsed.timing == schedule.timing


def test_defaults_come_from_the_kind() -> None:
    schedule = parse(cron_expression="* * * * *", kind="graph")
    assert (schedule.misfire, schedule.overlap) == (Misfire.SKIP, Overlap.QUEUE_ONE)
    assert parse(cron_expression="* * * * *").misfire is Misfire.ONCE


def patch(schedule: Schedule, **changes: Any) -> Schedule:
    return parse_patch(schedule, changes, defaults=DEFAULTS, now=NINE + timedelta(hours=1))


def test_an_edit_keeps_what_it_does_not_mention() -> None:
    schedule = parse(name="n", interval="5m", priority=7, jitter_seconds=3)
    edited = patch(schedule, description="d")
    assert (edited.timing, edited.priority, edited.id, edited.name) == (schedule.timing, 7, schedule.id, "n")


def test_an_edit_may_change_the_kind_of_trigger() -> None:
    schedule = parse(interval="5m")
    assert isinstance(patch(schedule, cron_expression="0 * * * *").timing.trigger, Cron)
    assert isinstance(patch(parse(cron_expression="* * * * *"), interval="7m").timing.trigger, Every)
    assert isinstance(patch(schedule, run_at="2026-06-01T00:00:00Z").timing.trigger, Once)


def test_a_new_interval_begins_at_the_edit_and_an_untouched_one_keeps_its_grid() -> None:
    schedule = parse(interval="5m")
    changed, kept = (
        patch(schedule, interval="7m").timing.trigger,
        patch(schedule, timezone="Europe/Oslo").timing.trigger,
    )
    assert isinstance(changed, Every)
    assert isinstance(kept, Every)
    assert (changed.anchor, kept.anchor) == (NINE + timedelta(hours=1), NINE)


def test_an_edit_clears_with_null() -> None:
    schedule = parse(
        cron_expression="* * * * *", max_runs=3, window_start="09:00", window_end="10:00", timeout_seconds=9
    )
    edited = patch(schedule, max_runs=None, window_start=None, window_end=None, timeout_seconds=None)
    assert (edited.max_runs, edited.timing.window, edited.timeout) == (None, None, None)


def test_the_kind_of_a_schedule_cannot_change() -> None:
    with pytest.raises(Invalid):
        patch(parse(cron_expression="* * * * *"), kind="graph")


def test_a_preview_needs_no_target() -> None:
    assert parse_timing({"cron_expression": "0 * * * *"}, now=NINE).trigger == Cron("0 * * * *")
