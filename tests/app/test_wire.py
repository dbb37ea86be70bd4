"""Copies of the fields of the API's models agree with them: the command line, the editor."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import rota
from rota.app.api import models
from rota.app.cli import schedule_editor
from rota.app.cli import schedules as schedule_commands
from rota.core.errors import Invalid
from rota.core.schedule_form import EXAMPLE, Defaults, ScheduleBody, ScheduleChanges, flat, parse_schedule
from rota.frame.http.answers import Schedule
from rota.frame.web.forms import body_of, schema_of_model

SOURCE = Path(rota.__file__).parent
WRITTEN = set(ScheduleBody.model_fields)


def test_the_command_line_edits_and_shows_fields_of_a_schedule() -> None:
    assert set(schedule_editor.WRITABLE) == WRITTEN - {"kind", "interval"}
    assert set(schedule_commands.SHOWN) <= set(Schedule.model_fields)


def test_the_editor_has_each_field_of_a_schedule() -> None:
    text = (SOURCE / "app/web/templates/editor.html").read_text()
    assert [name for name in sorted(WRITTEN) if not re.search(rf"\b{name}\b", text)] == []


def test_a_stored_schedule_is_answered_with_the_fields_of_a_request() -> None:
    now = datetime(2026, 5, 4, 9, tzinfo=UTC)
    context: dict[str, Any] = {"org_id": "o", "defaults": {"task": Defaults()}, "now": now, "source": "api", "by": None}
    assert set(flat(parse_schedule(EXAMPLE, **context))) == WRITTEN - {"interval"}
    assert set(Schedule.model_fields) > WRITTEN - {"interval"}


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"priority": 101}, "priority", "is not a whole number from -100 to 100"),
        ({"jitter_seconds": "x"}, "jitter_seconds", "is not a number from 0 to 86400"),
        ({"misfire": "x"}, "misfire", "is not one of skip, once, all"),
        ({"enabled": 1}, "enabled", "is neither true nor false"),
        ({"description": "x" * 2001}, "description", "is 2001 characters long; at most 2000 are allowed"),
        ({"tags": ["x"] * 51}, "tags", "has 51 items; at most 50 are allowed"),
        ({"tags": ["a", 1]}, "tags", "is not text"),
        ({"retry": {"max_retries": -1}}, "retry.max_retries", "is not a whole number from 0 to 1000"),
        (
            {"retry": {"tries": 1}},
            "retry.tries",
            "is an unknown field; the fields are backoff_ms, backoff_type, jitter, max_backoff_ms, max_retries",
        ),
        ({"retry": 3}, "retry", "is not an object"),
    ],
)
def test_errors_of_constraints_are_in_the_words_of_the_domain(body: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        ScheduleChanges.read(body)
    assert [(error.field, error.right) for error in raised.value.all] == [(field, message)]


def test_an_error_in_an_item_names_its_place() -> None:
    with pytest.raises(Invalid) as raised:
        models.SchedulesBody.read({"items": [{}, 1]})
    assert [(error.field, error.right) for error in raised.value.all] == [("items", "is not an object")]


def test_form_fields_have_the_types_of_the_body() -> None:
    form = {
        "name": "5", "max_runs": "3", "enabled": "true", "tags": "a, b", "input": '{"x": 1}', "retry.max_retries": "2",
        "run_at": "2026-05-04T09:00", "misfire": "all", "jitter_seconds": "1.5", "unknown": "5", "then": "/",
    }  # fmt: skip
    assert body_of(form, "Europe/Oslo", schema_of_model(ScheduleBody)) == {
        "name": "5", "max_runs": 3, "enabled": True, "tags": ["a", "b"], "input": {"x": 1},
        "retry": {"max_retries": 2}, "run_at": "2026-05-04T09:00:00+02:00", "misfire": "all", "jitter_seconds": 1.5,
        "unknown": "5",
    }  # fmt: skip
