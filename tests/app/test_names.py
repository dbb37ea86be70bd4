"""Names: which are refused, and that an id is never taken for a name."""

from typing import Any

import pytest

from rota.core.ids import new_id
from rota.frame.cli.terminal import output, visible
from tests.app.harness import Api

WRONG = ["a/b", "a\x1b[2Jb", " blank", "x" * 201, "", "01JB3Q2M5T8V0W1X2Y3Z4A5B6C", "01jb3q2m5t8v0w1x2y3z4a5b6c"]
CRON = {"target": "hello", "cron_expression": "0 12 * * *"}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_name_that_cannot_be_reached_or_told_from_an_id_is_refused(api: Api, name: str) -> None:
    bodies: list[tuple[str, Any]] = [
        ("/schedules", {**CRON, "name": name}),
        ("/tasks", {"name": name, "command": "true"}),
        ("/api-keys", {"name": name, "role": "viewer"}),
        ("/orgs", {"name": name, "slug": "other"}),
        ("/server-instances", {"host_id": new_id(), "name": name, "type": "x"}),
        ("/schedules", {**CRON, "queue": name}),
        ("/users", {"email": "a@example.org", "name": name, "password": "long enough 123", "role": "viewer"}),
    ]
    for path, body in bodies:
        answer = await api.call("POST", path, body)
        assert answer.status_code == 422, (path, answer.text)
        assert answer.json()["errors"][0]["field"] in ("name", "queue")


async def test_an_id_wins_over_a_name_that_is_another_schedules_id(api: Api) -> None:
    first = await api.schedule("first")
    second = await api.schedule("second")
    await api.execute("UPDATE schedules SET name = :name WHERE id = :id", name=first["id"], id=second["id"])
    third = await api.schedule("third")
    await api.execute("UPDATE schedules SET name = :name WHERE id = :id", name=second["id"], id=third["id"])
    for schedule in (first, second):
        assert (await api.get(f"/schedules/{schedule['id']}"))["id"] == schedule["id"]
        answer = await api.call("POST", f"/schedules/{schedule['id']}/$pause", {"reason": "x"})
        assert answer.json()["id"] == schedule["id"]
        assert (await api.call("DELETE", f"/schedules/{schedule['id']}")).status_code == 204
    assert (await api.get(f"/schedules/{third['id']}"))["id"] == third["id"]


async def test_an_edit_keeps_a_name_that_older_rules_allowed(api: Api) -> None:
    made = await api.schedule("old")
    await api.execute("UPDATE schedules SET name = 'a/b' WHERE id = :id", id=made["id"])
    edited = await api.call("PATCH", f"/schedules/{made['id']}", {"name": "a/b", "cron_expression": "1 12 * * *"})
    assert (edited.status_code, edited.json()["name"]) == (200, "a/b")
    written = await api.call("PUT", f"/schedules/{made['id']}", CRON)
    assert (written.status_code, written.json()["name"]) == (200, "a/b")
    assert (await api.call("PATCH", f"/schedules/{made['id']}", {"name": "c/d"})).status_code == 422


async def test_a_task_without_a_name_goes_by_its_id_and_can_be_edited(api: Api) -> None:
    made = (await api.call("POST", "/tasks", {"command": "true"})).json()
    again = await api.call("PUT", f"/tasks/{made['id']}", {"name": made["id"], "command": "false"})
    assert (again.status_code, again.json()["name"]) == (200, made["id"])


@pytest.mark.parametrize("scope", ["task:execute:a\x1bb", "task:execute:hello ", "workflow:run:x\u200b"])
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_scope_that_nothing_can_match_is_refused(api: Api, scope: str) -> None:
    answer = await api.call("POST", "/grants", {"scopes": [scope]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "scopes")


def test_the_command_line_shows_control_characters_as_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible("a\x1b]0;title\x07b\tc\n") == "a\\x1b]0;title\\x07b\tc\n"
    assert output("\x1b[2J") == "\x1b[2J"  # into a file: as it was printed
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert output("\x1b[31mred\x1b[0m\x1b[2J") == "\x1b[31mred\x1b[0m\\x1b[2J"
