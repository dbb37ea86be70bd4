"""Installations as files, over HTTP: plan, apply, drift, prune, export."""

from datetime import timedelta
from typing import Any

import pytest

from rota.app.files.reconcile import version_of
from rota.app.files.resources import Stored
from rota.app.files.store import Applied
from tests.app.harness import Api

FILES: dict[str, Any] = {
    "queues": [{"name": "reports", "max_running": 2, "rate": "100/1m"}],
    "calendars": [{"name": "ours", "dates": ["2026-12-24", "2026-12-31"]}],
    "tasks": [{"name": "disk", "command": "df -h", "timeout": "30s", "env": {"TOKEN": "secret"}}],
    "grants": [{"name": "disk-grant", "scopes": ["task:execute:disk"], "budget": {"per_day": 5}}],
    "schedules": [
        {
            "name": "disk-check", "target": "disk", "cron_expression": "0 12 * * *", "timezone": "Europe/Oslo",
            "calendar": "ours", "queue": "reports", "retry": {"max_retries": 2}, "tags": ["ops"], "grant": "disk-grant",
        },
        {"name": "greet", "target": "hello", "interval": "1h", "input": {"name": "Ada"}},
        {"name": "once", "target": "hello", "run_at": "2026-06-01T09:00:00+02:00"},
    ],
    "alarms": [{"name": "disk is late", "when": "late > 5m", "on": "schedule:disk-check", "quiet": "22:00-07:00"}],
}  # fmt: skip


def changed(**fields: Any) -> dict[str, Any]:
    """Return the files with other fields of the first schedule."""
    first, *rest = FILES["schedules"]
    return {**FILES, "schedules": [{**first, **fields}, *rest]}


async def send(api: Api, verb: str, resources: Any = FILES, status: int = 200, **more: Any) -> Any:
    answer = await api.call("POST", f"/files/${verb}", {"resources": resources, **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def actions(plan: dict[str, Any]) -> dict[str, str]:
    return {f"{change['resource']}/{change['name']}": change["action"] for change in plan["changes"]}


TABLES = ("schedules", "tasks", "calendars", "queues", "grants", "audit_log", "applied_resources", "idempotency_keys")


async def counts(api: Api) -> list[int]:
    return [await api.count(table) for table in TABLES]


async def test_a_plan_shows_what_an_apply_does_and_stores_nothing(api: Api) -> None:
    before = await counts(api)
    plan = await send(api, "plan")
    assert await counts(api) == before
    assert set(actions(plan).values()) == {"create"}
    assert list(actions(plan)) == [
        "queues/reports", "calendars/ours", "tasks/disk", "grants/disk-grant", "schedules/disk-check",
        "schedules/greet", "schedules/once", "alarms/disk is late",
    ]  # fmt: skip
    check = next(change for change in plan["changes"] if change["name"] == "disk-check")
    assert (check["slots"]["added_count"], check["slots"]["slots_before"]) == (30, 0)
    assert "secret" not in str(plan)
    applied = await send(api, "apply", version=plan["version"])
    assert actions(applied) == actions(plan)
    stored = await api.get("/schedules/disk-check")
    assert (stored["source"], stored["queue"], stored["calendar"]) == ("file", "reports", "ours")
    assert stored["grant_id"] == (await api.get("/grants"))["items"][0]["id"]
    assert (await api.get("/tasks/disk"))["env"] == {"TOKEN": "secret"}
    entries = (await api.get("/audit", limit=50))["items"]
    assert {"schedules.create", "tasks.create", "calendars.create", "grants.create", "queues.edit"} <= {
        entry["action"] for entry in entries
    }


async def test_a_second_apply_changes_nothing(api: Api) -> None:
    await send(api, "apply")
    before = [await counts(api), await api.get("/schedules")]
    again = await send(api, "apply")
    assert (again["changes"], again["unchanged"]) == ([], 8)
    assert [await counts(api), await api.get("/schedules")] == before
    assert (await send(api, "plan"))["changes"] == []


async def test_schedules_that_follow_others_are_stored_behind_them(api: Api) -> None:
    def schedule(name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "target": "hello", "cron_expression": "0 2 * * *", **fields}

    files = {"schedules": [schedule("a", after=["b"], when="any"), schedule("b", after=["c"]), schedule("c")]}
    assert list(actions(await send(api, "apply", files))) == ["schedules/c", "schedules/b", "schedules/a"]
    stored = await api.get("/schedules/a")
    assert (stored["after"], stored["when"]) == (["b"], "any")
    assert (await send(api, "plan", files))["changes"] == []
    files["schedules"][2] = schedule("c", after=["a"])
    assert "closes a cycle" in (await send(api, "apply", files, 422))["detail"]


async def test_changes_drift_and_pruning(api: Api) -> None:
    await send(api, "apply")
    plan = await send(api, "plan", changed(cron_expression="0 13 * * *"))
    (change,) = plan["changes"]
    assert change["fields"] == [{"field": "cron_expression", "before": "0 12 * * *", "after": "0 13 * * *"}]
    assert (change["action"], change["slots"]["moved_count"], change["drift"]) == ("change", 30, [])
    await api.call("PATCH", "/schedules/disk-check", {"priority": 7})
    (drift,) = (await send(api, "plan"))["changes"]
    assert (drift["action"], drift["drift"]) == ("change", ["priority"])
    assert drift["note"] == "changed elsewhere since it was applied: priority"
    refused = await send(api, "apply", changed(cron_expression="0 13 * * *"), 412, version=plan["version"])
    assert "plan again" in refused["detail"]
    await send(api, "apply", version=(await send(api, "plan"))["version"])
    assert (await api.get("/schedules/disk-check"))["priority"] == 0
    rest = {**FILES, "schedules": FILES["schedules"][1:], "tasks": [], "calendars": []}
    left = await send(api, "plan", rest)
    assert set(actions(left).values()) == {"left"}
    pruned = await send(api, "apply", rest, prune=True)
    assert actions(pruned) == {
        "calendars/ours": "left", "schedules/disk-check": "pause", "tasks/disk": "pause",
    }  # fmt: skip
    paused = await api.get("/schedules/disk-check")
    assert (paused["paused"], paused["pause_reason"]) == (True, "no longer in the files of this installation")
    assert (await api.get("/tasks/disk"))["enabled"] is False
    back = await send(api, "apply")
    fields = {change["name"]: [field["field"] for field in change["fields"]] for change in back["changes"]}
    assert (fields["disk-check"], fields["disk"]) == (["paused"], ["enabled"])
    assert (await api.get("/schedules/disk-check"))["paused"] is False


async def test_alarms_are_created_changed_and_disabled(api: Api) -> None:
    await api.call("POST", "/alarm-channels", {"name": "ops", "type": "email", "address": "ops@example.org"})
    await send(api, "apply")
    (alarm,) = FILES["alarms"]
    other = {**FILES, "alarms": [{**alarm, "when": "missed", "notify": ["ops"], "quiet": None}]}
    (change,) = (await send(api, "plan", other))["changes"]
    assert {field["field"] for field in change["fields"]} == {"when", "notify", "quiet"}
    await send(api, "apply", other)
    stored = await api.get("/alarms/disk is late")
    assert (stored["when"], stored["notify"], stored["quiet"]) == ("missed", ["ops"], None)
    assert actions(await send(api, "apply", {**FILES, "alarms": []}, prune=True)) == {"alarms/disk is late": "pause"}
    assert (await api.get("/alarms/disk is late"))["enabled"] is False
    unknown = {"alarms": [{"name": "x", "when": "missed", "notify": ["nowhere"]}]}
    assert "alarms[0].notify: 'nowhere' is not an alarm channel" in (await send(api, "apply", unknown, 422))["detail"]


@pytest.mark.parametrize(
    ("resources", "status", "message"),
    [
        ({"schedules": [{"name": "a", "target": "hello"}]}, 422, "schedules[0].schedule_type"),
        ({"schedules": [{"name": "a", "target": "nothing", "interval": "1h"}]}, 422, "schedules[0].target: 'nothing'"),
        ({"schedules": [{"name": "a", "target": "hello", "interval": "1h", "grant": "g"}]}, 422, "schedules[0].grant"),
        ({"tasks": [{"name": "a", "command": "x", "cwd": 1}, {"name": "b"}]}, 422, "tasks[1].command"),
        ({"tasks": [{"name": "a", "command": "x"}, {"name": "a", "command": "y"}]}, 422, "is also tasks[0]"),
        ({"tasks": [{"name": "a", "command": "x", "stdin": "***"}]}, 422, "placeholder of a hidden secret"),
        ({"tasks": [{"name": "hello", "command": "x"}]}, 409, "tasks[0] 'hello': declared by a program"),
        ({"alarm": []}, 422, "alarm is unknown; files have queues, calendars"),
        ({"calendars": [{"name": "a"}]}, 422, "calendars[0].holidays"),
        ({"schedules": "x"}, 422, "resources"),
    ],
)
async def test_an_error_names_its_entry_and_nothing_is_stored(
    api: Api, resources: Any, status: int, message: str
) -> None:
    before = await counts(api)
    valid = {"queues": FILES["queues"], "calendars": FILES["calendars"]}
    for verb in ("plan", "apply"):
        refused = await send(api, verb, {**valid, **resources}, status)
        assert message in refused["detail"].replace("alarm: None is", "alarm is")
    assert await counts(api) == before


async def test_an_export_applied_to_an_empty_installation_needs_no_change(api: Api) -> None:
    await send(api, "apply")
    export = await api.get("/files")
    assert {item["name"] for item in export["left_out"]} >= {"hello", "disk"}
    assert export["resources"]["tasks"][0]["env"] == {"TOKEN": "***"}
    assert (await send(api, "plan", export["resources"]))["changes"] == []  # hidden secrets stand for the stored ones
    whole = await api.get("/files", secrets="true")
    names = [entry["name"] for entry in whole["resources"]["schedules"]]
    assert names == ["disk-check", "greet", "once"]
    await api.execute("DELETE FROM alarm_checks")
    await api.execute("DELETE FROM alarms")
    for table in ("trigger_spans", "clocks", "schedule_stats", "schedule_tags", "slots", "schedules", "grants"):
        await api.execute(f"DELETE FROM {table}")
    for table in ("calendars", "queues", "applied_resources", "task_versions"):
        await api.execute(f"DELETE FROM {table}")
    await api.execute("DELETE FROM tasks WHERE source <> 'code'")
    api.engine.runners["task"].forget(api.org_id)  # type: ignore[attr-defined]
    applied = await send(api, "apply", whole["resources"])
    assert set(actions(applied).values()) == {"create"}
    assert (await send(api, "plan", whole["resources"]))["changes"] == []
    assert (await api.get("/files", secrets="true"))["resources"] == whole["resources"]


async def test_a_file_of_a_schedule_that_ran_once_stays_valid(api: Api) -> None:
    await send(api, "apply")
    await api.clock.advance(timedelta(days=40))  # beyond `run_at` of `once`, which an apply would refuse if it were new
    assert (await send(api, "plan"))["changes"] == []


async def test_a_key_needs_the_role_and_scopes_of_what_it_changes(api: Api) -> None:
    made = await api.call("POST", "/api-keys", {"name": "k", "role": "operator", "scopes": ["files", "schedules"]})
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    allowed = {"resources": {"schedules": [FILES["schedules"][1]]}}
    refused = {"resources": {"queues": FILES["queues"]}}
    shell = {"resources": {"tasks": FILES["tasks"]}}
    for body, status in ((allowed, 200), (refused, 403), (shell, 403)):
        answer = await api.call("POST", "/files/$apply", body, headers=headers)
        assert answer.status_code == status, answer.text
    assert (await api.call("GET", "/files?secrets=true", headers=headers)).status_code == 403


async def test_without_the_scope_shell_a_plan_does_not_confirm_guesses_of_secrets(api: Api) -> None:
    """For tasks of both types; with the scope, and for a value as exported, a plan answers."""
    code = {"name": "mail", "task_type": "python", "command": "hello", "parameters": {"password": "secret"}}
    tasks = [*FILES["tasks"], code]
    await send(api, "apply", {"tasks": tasks})
    made = await api.call("POST", "/api-keys", {"name": "k", "role": "operator", "scopes": ["files", "tasks"]})
    headers = {"authorization": f"Bearer {made.json()['key']}"}

    async def plan(task: dict[str, Any]) -> tuple[int, Any]:
        answer = await api.call("POST", "/files/$plan", {"resources": {"tasks": [task]}}, headers=headers)
        return answer.status_code, answer.json()

    for guess in ("secret", "other"):
        for task in ({**FILES["tasks"][0], "env": {"TOKEN": guess}}, {**code, "parameters": {"password": guess}}):
            assert (await plan(task))[0] == 403
    exported = (await api.get("/files"))["resources"]["tasks"]
    for task in exported:
        status, planned = await plan(task)
        assert (status, set(actions(planned).values())) == (200, {"left"})  # the other task
    assert (await send(api, "plan", {"tasks": tasks}))["changes"] == []


async def test_the_version_of_a_plan_is_no_digest_of_secrets(api: Api) -> None:
    versions = []
    for secret in ("one", "two"):
        form = {"name": "disk", "command": "df", "env": {"TOKEN": secret}}
        before = {"tasks": {"disk": Stored("1", form, version=7)}}
        versions.append(version_of([], before, {("tasks", "disk"): Applied({}, None, api.clock.now())}, False))
    assert versions[0] == versions[1]
    await send(api, "apply", {"tasks": FILES["tasks"]})
    planned = (await send(api, "plan", {"tasks": FILES["tasks"]}))["version"]
    await api.call("PATCH", "/tasks/disk", {"env": {"TOKEN": "other"}})
    await send(api, "apply", {"tasks": FILES["tasks"]}, 412, version=planned)
