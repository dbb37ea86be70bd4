"""The impact of an edit of a schedule, before it is saved."""

from datetime import timedelta
from typing import Any

import pytest

from rota.core.ids import new_id
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import charge_receipts, runs
from tests.app.harness import NINE, Api


async def diff(api: Api, body: dict[str, Any], status: int = 200, name: str = "nightly") -> Any:
    answer = await api.call("POST", f"/schedules/{name}/$diff", body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def record_runs(api: Api, schedule: dict[str, Any], seconds: list[int], credits: int | None = None) -> None:
    """Store successful runs of a schedule, as a worker and the billing would."""
    account = (await api.get("/billing/account"))["id"]

    def step(tx: Tx) -> None:
        for duration in seconds:
            begin, run_id = NINE - timedelta(hours=3), new_id()
            end = begin + timedelta(seconds=duration)
            run = {
                "id": run_id, "job_id": new_id(), "org_id": api.org_id, "kind": "task", "target": "hello",
                "route": "task:default:hello", "schedule_id": schedule["id"], "trigger": "manual", "attempt": 1,
                "status": Status.SUCCESS.value, "queued_at": begin, "started_at": begin, "finished_at": end,
                "recorded_at": end,
            }  # fmt: skip
            insert_rows(tx, runs, [run])
            if credits is not None:
                receipt = {
                    "id": new_id(), "org_id": api.org_id, "billing_account_id": account, "virtual_key_id": new_id(),
                    "target": "hello", "run_id": run_id, "attempt": 1, "unit": "u", "input_tokens": 0,
                    "output_tokens": 0, "charged_credits": credits, "cost_usd": "0.5", "source_system": "test",
                    "source_reference": run_id, "created_at": end,
                }  # fmt: skip
                insert_rows(tx, charge_receipts, [receipt])

    await api.db.tx(step)


async def test_an_edit_is_compared_with_the_stored_schedule_and_changes_nothing(api: Api) -> None:
    before = await api.schedule("nightly")
    impact = await diff(api, {"cron_expression": "0 13 * * *", "tags": ["a"]})
    assert (impact["slots_before"], impact["slots_after"], impact["moved_count"]) == (30, 30, 30)
    assert impact["moved"][0] == {"from": "2026-05-04T12:00:00+00:00", "to": "2026-05-04T13:00:00+00:00"}
    assert (impact["added"], impact["removed"], impact["usual_run"], impact["cost"]) == ([], [], None, None)
    assert impact["words_after"] == "every day at 13:00 (UTC)"
    assert {change["field"]: (change["before"], change["after"]) for change in impact["fields"]} == {
        "cron_expression": ("0 12 * * *", "0 13 * * *"),
        "tags": ([], ["a"]),
    }
    week = await diff(api, {"interval": "1h", "days": 7})
    assert (week["slots_before"], week["added_count"], week["added"][0]) == (7, 161, "2026-05-04T10:00:00+00:00")
    assert len(week["added"]) == 100
    off = await diff(api, {"enabled": False})
    assert (off["slots_after"], off["removed_count"]) == (0, 30)
    assert "it is disabled: it has no slots" in off["warnings"]
    whole = await diff(api, {"target": "hello", "cron_expression": "0 12 * * *", "replace": True})
    assert (whole["fields"], whole["moved_count"]) == ([], 0)
    assert (await diff(api, {}))["fields"] == []
    assert await api.get("/schedules/nightly") == before


async def test_clashes_usual_duration_and_cost_are_shown(api: Api) -> None:
    nightly = await api.schedule("nightly", overlap="skip")
    await api.call("POST", "/calendars", {"name": "ours", "dates": ["2026-05-17", "2026-05-20"]})
    await api.call("PUT", "/freeze", {"reason": "audit", "until": "2026-05-06T00:00:00Z"})
    await record_runs(api, nightly, [60] * 18 + [900, 1200], credits=3)
    impact = await diff(api, {"cron_expression": "*/15 * * * *"})
    assert impact["usual_run"]["runs"] == 20
    assert (impact["usual_run"]["median_seconds"], impact["usual_run"]["p95_seconds"]) == (60, 900)
    assert impact["shortest_gap_seconds"] == 900
    assert any(text.startswith("it overlaps itself: 95 of 100 runs end within 15 min") for text in impact["warnings"])
    assert impact["cost"] == {"credits_before": 90, "credits_after": 8640, "usd_before": 15.0, "usd_after": 1440.0}
    ours, freeze = impact["clashes"]
    assert (ours["name"], ours["count"], ours["days"]) == ("ours", 192, ["2026-05-17", "2026-05-20"])
    assert (freeze["type"], freeze["name"], freeze["count"]) == ("freeze", "audit", 155)
    window = {"starts_at": "2026-05-10T00:00:00Z", "ends_at": "2026-05-12T00:00:00Z"}
    for name, kind in (("move", "task"), ("other", "pipeline")):
        made = await api.call("POST", "/freeze-windows", {"name": name, "kind": kind, "reason": "", **window})
        assert made.status_code == 201, made.text
    announced = (await diff(api, {"cron_expression": "30 3 * * *"}))["clashes"][-1]
    assert (announced["type"], announced["name"], announced["count"]) == ("freeze", "move", 2)
    assert (await api.call("DELETE", "/freeze-windows/move")).status_code == 204
    followed = await diff(api, {"calendar": "ours", "on_holiday": "next"})
    assert [clash["type"] for clash in followed["clashes"]] == ["freeze"]
    assert followed["left_out"][0] == {"date": "2026-05-17", "moved_to": "2026-05-18"}


async def test_many_slots_are_compared_up_to_a_limit(api: Api) -> None:
    await api.schedule("nightly")
    impact = await diff(api, {"interval": "1s"})
    assert impact["slots_after"] == 30 * 86_400
    assert impact["compared_until"] == "2026-05-04T11:46:40+00:00"
    assert "are not compared: there are too many" in impact["warnings"][-1]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"cron_expression": "61 * * * *"}, 422, "minute"),
        ({"kind": "graph"}, 422, "cannot be changed"),
        ({"days": 400}, 422, "366"),
        ({"crom": "x"}, 422, "unknown field"),
        ({"calendar": "nowhere"}, 422, "not found"),
    ],
)
async def test_an_edit_that_would_be_refused_is_refused(
    api: Api, body: dict[str, Any], status: int, message: str
) -> None:
    await api.schedule("nightly")
    assert message in (await diff(api, body, status))["detail"]
    assert (await api.call("POST", "/schedules/other/$diff", body | {"days": 3})).status_code in (404, 422)
