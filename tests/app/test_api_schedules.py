"""Schedules over HTTP."""

from datetime import timedelta
from typing import Any

from tests.app.harness import NINE, Api


async def test_a_schedule_is_made_and_read(api: Api) -> None:
    answer = await api.call(
        "POST",
        "/schedules",
        {
            "name": "nightly",
            "target": "hello",
            "cron_expression": "30 2 * * *",
            "timezone": "Europe/Oslo",
            "input": {"name": "Ada"},
            "retry": {"max_retries": 2},
            "tags": ["a"],
            "window_start": "02:00",
            "window_end": "03:00",
        },
    )
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["location"] == f"/api/v1/schedules/{made['id']}"
    assert answer.headers["etag"] == '"1"'
    assert made["words"] == "every day at 02:30 (Europe/Oslo), between 02:00 and 03:00"
    expected = {
        "kind": "task",
        "target": "hello",
        "schedule_type": "cron",
        "cron_expression": "30 2 * * *",
        "next_run_at": "2026-05-05T00:30:00+00:00",
        "next_slot": "2026-05-05T00:30:00+00:00",
        "last_run_at": None,
        "last_run_id": None,
        "last_job_id": None,
        "last_run_status": None,
        "run_count": 0,
        "failure_count": 0,
        "skipped_count": 0,
        "revision": 1,
        "condition": "ok",
        "condition_reason": None,
        "paused": False,
        "enabled": True,
        "source": "api",
        "misfire": "once",
        "overlap": "queue_one",
        "created_at": "2026-05-04T09:00:00+00:00",
        "input": {"name": "Ada"},
        "timezone": "Europe/Oslo",
        "window_start": "02:00",
        "window_end": "03:00",
    }
    assert {field: made[field] for field in expected} == expected
    assert await api.get(f"/schedules/{made['id']}") == made
    assert await api.get("/schedules/nightly") == made
    assert (await api.get("/schedules"))["items"] == [made]


async def test_a_name_is_made_up_where_none_is_given(api: Api) -> None:
    answer = await api.call("POST", "/schedules", {"target": "hello", "interval": "5m"})
    assert answer.json()["name"].startswith("task-")
    assert answer.json()["interval_seconds"] == 300


async def test_a_name_belongs_to_one_schedule_until_it_is_deleted(api: Api) -> None:
    await api.schedule("nightly")
    again = {"name": "nightly", "target": "hello", "interval": "5m"}
    answer = await api.call("POST", "/schedules", again)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (await api.call("DELETE", "/schedules/nightly")).status_code == 204
    assert (await api.call("GET", "/schedules/nightly")).status_code == 404
    assert (await api.call("POST", "/schedules", again)).status_code == 201


async def test_an_edit_changes_only_what_it_says(api: Api) -> None:
    before = await api.schedule("nightly", tags=["a"], timezone="Europe/Oslo")
    answer = await api.call("PATCH", "/schedules/nightly", {"cron_expression": "0 13 * * *", "tags": []})
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"2"'
    after = answer.json()
    assert after["next_run_at"] == "2026-05-04T11:00:00+00:00"
    changed = {field for field in before if before[field] != after[field]}
    assert changed == {"cron_expression", "tags", "next_run_at", "next_slot", "revision", "words"}


async def test_an_edit_may_change_the_trigger_and_clear_fields(api: Api) -> None:
    await api.schedule("nightly", description="x", timeout_seconds=5)
    answer = await api.call(
        "PATCH", "/schedules/nightly", {"interval": "1h", "timeout_seconds": None, "description": None}
    )
    after = answer.json()
    assert (after["schedule_type"], after["interval_seconds"], after["cron_expression"]) == ("interval", 3600, None)
    assert (after["timeout_seconds"], after["description"]) == (None, "")


async def test_if_match_guards_against_overwriting(api: Api) -> None:
    await api.schedule("nightly")
    first = await api.call("PATCH", "/schedules/nightly", {"priority": 1}, headers={"if-match": '"1"'})
    assert first.status_code == 200
    for stale in ('"1"', 'W/"1"', '"x"', "garbage"):
        answer = await api.call("PATCH", "/schedules/nightly", {"priority": 2}, headers={"if-match": stale})
        assert (answer.status_code, answer.json()["code"]) == (412, "stale_revision")
        assert (await api.call("DELETE", "/schedules/nightly", headers={"if-match": stale})).status_code == 412
    assert (await api.get("/schedules/nightly"))["priority"] == 1
    assert (
        await api.call("PATCH", "/schedules/nightly", {"priority": 2}, headers={"if-match": "*"})
    ).status_code == 200
    assert (await api.call("DELETE", "/schedules/nightly", headers={"if-match": '"3"'})).status_code == 204


async def test_a_pause_holds_until_it_is_resumed(api: Api) -> None:
    await api.schedule("nightly")
    paused = (await api.call("POST", "/schedules/nightly/$pause", {"reason": "holidays"})).json()
    assert (paused["paused"], paused["pause_reason"], paused["next_run_at"]) == (True, "holidays", None)
    api.clock.set(NINE + timedelta(days=2))
    resumed = (await api.call("POST", "/schedules/nightly/$resume", {"gap": "skip"})).json()
    assert (resumed["paused"], resumed["next_run_at"]) == (False, "2026-05-06T12:00:00+00:00")
    (gap,) = (await api.get("/schedules/nightly/slots"))["items"]
    assert (gap["slot"], gap["last_slot"]) == ("2026-05-04T12:00:00+00:00", "2026-05-05T12:00:00+00:00")
    assert (gap["count"], gap["verdict"], gap["reason"], gap["status"]) == (2, "skipped", "paused", "skipped")
    assert (await api.call("POST", "/schedules/nightly/$resume")).status_code == 409


async def test_the_next_slot_can_be_skipped(api: Api) -> None:
    await api.schedule("nightly")
    answer = await api.call("POST", "/schedules/nightly/$skip-next", {"reason": "not today"})
    assert answer.json() == {"slot": "2026-05-04T12:00:00+00:00", "verdict": "skipped", "reason": "operator"}
    assert (await api.get("/schedules/nightly"))["next_run_at"] == "2026-05-05T12:00:00+00:00"
    (slot,) = (await api.get("/slots"))["items"]
    assert (slot["schedule_name"], slot["verdict"], slot["reason"], slot["run_id"]) == (
        "nightly",
        "skipped",
        "operator",
        None,
    )


async def test_the_coming_slots_are_listed(api: Api) -> None:
    await api.schedule("nightly", timezone="Europe/Oslo")
    preview = await api.get("/schedules/nightly/$next", count=2)
    assert [slot["at"] for slot in preview["slots"]] == ["2026-05-04T10:00:00+00:00", "2026-05-05T10:00:00+00:00"]
    assert preview["slots"][0]["local"] == "2026-05-04T12:00:00+02:00"
    await api.call("PATCH", "/schedules/nightly", {"enabled": False})
    preview = await api.get("/schedules/nightly/$next")
    assert (preview["slots"], preview["warnings"]) == ([], ["it is not enabled"])


async def test_a_preview_stores_nothing(api: Api) -> None:
    body = {"cron_expression": "30 2 * * *", "timezone": "Europe/Oslo", "count": 3, "after": "2026-10-23T12:00:00Z"}
    answer = await api.call("POST", "/schedules/$preview", body)
    assert answer.status_code == 200
    preview = answer.json()
    assert preview["words"] == "every day at 02:30 (Europe/Oslo)"
    assert [slot["at"] for slot in preview["slots"]] == [
        "2026-10-24T00:30:00+00:00",
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]
    assert preview["slots"][1]["note"]
    assert len(preview["warnings"]) == 1
    assert await api.count("schedules") == 0


async def test_backfill_previews_or_fires_slots_of_the_past(api: Api) -> None:
    await api.schedule("nightly")
    stretch = {"from": "2026-05-01T00:00:00Z", "to": "2026-05-04T00:00:00Z"}
    body = (await api.call("POST", "/schedules/nightly/$backfill", {**stretch, "dry_run": True})).json()
    assert (body["count"], await api.count("jobs")) == (3, 0)
    fired = (await api.call("POST", "/schedules/nightly/$backfill", {**stretch, "limit": 2})).json()
    slots = ["2026-05-01T12:00:00+00:00", "2026-05-02T12:00:00+00:00"]
    assert (fired["count"], fired["slots"], fired["warnings"], fired["catch_up"]) == (2, slots, [], None)
    slots = (await api.get("/slots"))["items"]
    assert [(slot["verdict"], slot["status"]) for slot in slots] == [(None, "pending")] * 2


async def test_schedules_are_found_by_what_they_are(api: Api) -> None:
    await api.schedule("alpha", tags=["red", "100%"])
    await api.schedule("Beta_1", tags=['say "hi"', "x,y"])
    await api.schedule("gamma", enabled=False, tags=["Red", "blå"])

    async def names(**query: str) -> list[str]:
        return [schedule["name"] for schedule in (await api.get("/schedules", **query))["items"]]

    assert sorted(await names()) == ["Beta_1", "alpha", "gamma"]
    assert await names(name="bet") == ["Beta_1"]
    assert await names(name="_") == ["Beta_1"]
    assert await names(tag="red") == ["alpha"]
    assert await names(tag="Red") == ["gamma"]
    assert await names(tag="100%") == ["alpha"]
    assert await names(tag="%") == []
    assert await names(tag=",") == []
    assert await names(tag="x") == []
    assert await names(tag="hi") == []
    assert await names(tag='say "hi"') == ["Beta_1"]
    assert await names(tag="blå") == ["gamma"]
    assert await names(enabled="false") == ["gamma"]
    assert await names(condition="broken") == []
    assert sorted(await names(kind="task", enabled="true")) == ["Beta_1", "alpha"]


async def test_pages_show_each_schedule_once(api: Api) -> None:
    items = [{"name": f"s{number:03}", "target": "hello", "interval": "1h"} for number in range(25)]
    assert (await api.call("POST", "/schedules/$bulk", {"items": items})).status_code == 201
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await api.get("/schedules", limit=10, **cursor)
        seen += [schedule["name"] for schedule in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == [schedule["name"] for schedule in items]


async def test_a_bulk_answers_in_its_order(api: Api) -> None:
    items = [{"name": f"s{number}", "target": "hello", "interval": "1h"} for number in range(30)]
    answer = await api.call("POST", "/schedules/$bulk", {"items": items})
    made = answer.json()["items"]
    assert [item["name"] for item in made] == [item["name"] for item in items]
    assert made[7] == await api.get("/schedules/s7")


async def test_a_schedule_that_cannot_be_read_is_still_listed(api: Api) -> None:
    await api.schedule("good")
    for number, damage in enumerate(['{"trigger": {"type": "moon"}}', "not json", "[]", "null"]):
        await api.schedule(f"bad{number}")
        await api.execute(
            "UPDATE schedules SET timing = :damage WHERE name = :name", damage=damage, name=f"bad{number}"
        )
        shown = await api.get(f"/schedules/bad{number}")
        assert (shown["words"], shown["schedule_type"], shown["timezone"]) == (None, None, None)
    assert len((await api.get("/schedules"))["items"]) == 5


async def test_a_freeze_is_set_shown_and_lifted(api: Api) -> None:
    assert (await api.get("/freeze"))["frozen"] is False
    body = {"reason": "incident", "until": "2026-05-05T00:00:00Z"}
    frozen = (await api.call("PUT", "/freeze", body)).json()
    assert frozen == {
        "frozen": True,
        "frozen_at": "2026-05-04T09:00:00+00:00",
        "until": "2026-05-05T00:00:00+00:00",
        "reason": "incident",
    }
    assert await api.get("/freeze") == frozen
    assert (await api.call("DELETE", "/freeze")).status_code == 204
    assert (await api.get("/freeze"))["frozen"] is False
    assert (await api.call("DELETE", "/freeze")).status_code == 409
    api.clock.set(NINE + timedelta(days=2))
    assert (await api.call("PUT", "/freeze", body)).status_code == 422


async def test_shell_tasks_are_made_and_deleted(api: Api) -> None:
    answer = await api.call("POST", "/tasks", {"name": "disk", "command": "df", "task_type": "shell"})
    assert answer.status_code == 201
    made = answer.json()
    assert (made["name"], made["task_type"], made["command"], made["source"], made["enabled"]) == (
        "disk",
        "shell",
        "df",
        "api",
        True,
    )
    assert await api.get("/tasks/disk") == await api.get(f"/tasks/{made['id']}") == made
    assert [task["name"] for task in (await api.get("/tasks"))["items"]] == ["hello", "disk"]
    assert (await api.call("POST", "/tasks", {"name": "disk", "command": "df"})).status_code == 409
    await api.schedule("nightly", target="disk")
    assert (await api.call("DELETE", "/tasks/disk")).status_code == 204
    assert (await api.call("GET", "/schedules/nightly")).status_code == 404  # it goes with its task
    assert (await api.call("DELETE", "/tasks/hello")).status_code == 409


async def test_a_list_by_tag_follows_names_tags_and_deletion(api: Api) -> None:
    async def tagged(tag: str, **more: Any) -> list[str]:
        names, cursor = [], None
        while True:
            page = await api.get("/schedules", tag=tag, limit=2, **more, **({"cursor": cursor} if cursor else {}))
            names += [schedule["name"] for schedule in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return names

    for name in ("c", "a", "b", "e", "d"):
        await api.schedule(name, tags=["red", "red", name])
    assert await tagged("red") == ["a", "b", "c", "d", "e"]
    assert await tagged("red", sort="-name") == ["e", "d", "c", "b", "a"]
    assert await tagged("red", sort="id") == ["c", "a", "b", "e", "d"]
    assert await tagged("red", sort="-id", name="d") == ["d"]
    await api.call("PATCH", "/schedules/a", {"name": "z"})
    await api.call("PATCH", "/schedules/b", {"tags": ["blue"]})
    await api.call("DELETE", "/schedules/c")
    await api.call("POST", "/schedules/d/$pause", {})
    assert await tagged("red") == ["d", "e", "z"]
    assert (await tagged("a"), await tagged("blue"), await tagged("c"), await tagged("b")) == (["z"], ["b"], [], [])
    again = await api.schedule("c", tags=["red"])
    assert await tagged("red", sort="-id") == ["c", "d", "e", "z"]
    assert (await api.call("POST", "/schedules/$delete", {"tag": "red"})).json() == {"count": 4}
    assert await tagged("red") == []
    assert again["tags"] == ["red"]
    assert await api.count("schedule_tags") == 1


async def test_schedules_are_disabled_and_enabled_by_tag(api: Api) -> None:
    for name in ("one", "two"):
        await api.schedule(name, tags=["night"])
    await api.schedule("other")
    for verb, enabled, count in (("disable", False, 2), ("disable", False, 0), ("enable", True, 2)):
        answer = await api.call("POST", f"/schedules/${verb}", {"tag": "night"})
        assert (answer.status_code, answer.json()) == (200, {"count": count})
        shown = await api.get("/schedules/one")
        assert (shown["enabled"], shown["next_run_at"] is not None) == (enabled, enabled)
        assert (await api.get("/schedules/other"))["enabled"]
    assert (await api.call("POST", "/schedules/$enable", {})).status_code == 422


async def test_a_schedule_has_its_source_and_owner(api: Api) -> None:
    made = await api.schedule("nightly")
    assert made == await api.get("/schedules/nightly")
    assert (made["source"], made["source_ref"]) == ("api", None)
    (act,) = (await api.get("/audit", action="schedules.create"))["items"]
    assert made["owner_id"] == made["created_by"] == act["user_id"]
    await api.execute("UPDATE schedules SET source = 'code:jobs'")
    shown = await api.get("/schedules/nightly")
    assert (shown["source"], shown["source_ref"]) == ("code", "jobs")
