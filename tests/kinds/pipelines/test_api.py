"""Pipelines over HTTP: made, tried, run and chained; webhooks; what is refused, and how."""

from datetime import timedelta
from typing import Any

import pytest

from rota.kinds.pipelines.runner import PipelineRunner
from rota.version import DISTRIBUTION
from tests.app.harness import NINE, Api

ORDERS = {"namespace": "sales", "layer": "bronze", "name": "orders", "sql": "SELECT range AS id FROM range(3)"}
TOTALS = {
    "namespace": "sales", "layer": "silver", "name": "daily_totals", "type": "sql", "description": "by day",
    "sql": "SELECT count(*) AS orders FROM sales.bronze.orders",
}  # fmt: skip
ONE = "/pipelines/sales/bronze/orders"


async def make(api: Api, *bodies: dict[str, Any]) -> None:
    for body in bodies or (ORDERS, TOTALS):
        answer = await api.call("POST", "/pipelines", body)
        assert answer.status_code == 201, answer.text


async def test_a_pipeline_is_made_read_edited_and_deleted(api: Api) -> None:
    assert (await api.get("/pipelines"))["items"] == []
    answer = await api.call("POST", "/pipelines", ORDERS)
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/api/v1{ONE}")
    assert (made["path"], made["version"], made["reads"], made["source"]) == ("sales/bronze/orders", 1, [], "api")
    assert await api.get(ONE) == made
    assert (await api.call("POST", "/pipelines", ORDERS)).status_code == 409
    await make(api, TOTALS)
    assert (await api.get("/pipelines/sales/silver/daily_totals"))["reads"] == ["sales/bronze/orders"]
    edited = await api.call("PUT", ONE, {"sql": "SELECT 7 AS id", "max_runs": 10})
    assert (edited.json()["version"], edited.json()["max_runs"]) == (2, 10)
    assert [version["version"] for version in (await api.get(f"{ONE}/versions"))["items"]] == [2, 1]
    assert [pipeline["path"] for pipeline in (await api.get("/pipelines", layer="silver"))["items"]] == [
        "sales/silver/daily_totals"
    ]
    assert (await api.get("/pipelines/$namespaces"))["items"] == [{"name": "sales", "pipelines": 2}]
    assert (await api.get("/pipelines/$graph"))["edges"] == [
        {"from": "sales/bronze/orders", "to": "sales/silver/daily_totals", "kind": "reads"}
    ]
    assert (await api.call("DELETE", ONE)).status_code == 204
    assert (await api.call("GET", ONE)).status_code == 404
    entries = await api.get("/audit", resource="pipelines")
    assert [line["action"] for line in entries["items"]] == [
        "pipelines.delete",
        "pipelines.edit",
        "pipelines.create",
        "pipelines.create",
    ]


async def test_pages_go_on_where_they_ended(api: Api) -> None:
    await make(api, *({**ORDERS, "name": f"o{number}"} for number in range(5)))
    page = await api.get("/pipelines", limit=2)
    rest = await api.get("/pipelines", limit=200, cursor=page["next_cursor"])
    assert [pipeline["name"] for pipeline in page["items"] + rest["items"]] == [f"o{number}" for number in range(5)]


async def test_a_run_is_asked_for_scheduled_and_canceled(api: Api) -> None:
    await make(api)
    answer = await api.call("POST", f"{ONE}/$run")
    job_id = answer.json()["job_id"]
    assert answer.status_code == 202
    (run,) = (await api.get("/runs", namespace="sales", layer="bronze", pipeline="orders"))["items"]
    assert (run["job_id"], run["trigger"], run["status"], run["kind"]) == (job_id, "manual", "pending", "pipeline")
    assert (await api.get("/runs", layer="silver"))["items"] == []
    assert (await api.call("POST", f"/jobs/{job_id}/$cancel")).status_code == 202
    assert (await api.call("POST", f"/jobs/{job_id}/$cancel")).status_code == 409
    assert [run["status"] for run in (await api.get("/runs", namespace="sales"))["items"]] == ["canceled"]
    schedule = {"kind": "pipeline", "target": "sales/bronze/orders", "cron_expression": "0 * * * *"}
    made = (await api.call("POST", "/schedules", schedule)).json()
    assert (made["misfire"], made["overlap"]) == ("once", "skip")
    assert (await api.call("POST", "/schedules", {**schedule, "target": "sales/bronze/none"})).status_code == 422


async def test_preview_and_validate(api: Api) -> None:
    await make(api)
    shown = (await api.call("POST", f"{ONE}/$preview")).json()
    assert shown == {"columns": [{"name": "id", "type": "BIGINT"}], "rows": [[0], [1], [2]]}
    draft = await api.call("POST", f"{ONE}/$preview", {"sql": "SELECT 'a' AS letter"})
    assert draft.json()["rows"] == [["a"]]
    assert (await api.call("POST", f"{ONE}/$preview", {"sql": "SELECT 1 FROM"})).status_code == 422
    valid = (await api.call("POST", f"{ONE}/$validate")).json()
    assert (valid["ok"], valid["error"], valid["reads"]) == (True, None, [])
    wrong = (await api.call("POST", f"{ONE}/$validate", {"sql": "SELECT * FROM sales.gold.none"})).json()
    assert (wrong["ok"], "is read, but is not a pipeline" in wrong["error"]) == (False, True)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"namespace": "Sales"}, "namespace"),
        ({"namespace": "../etc"}, "namespace"),
        ({"namespace": None}, "namespace"),
        ({"layer": "platinum"}, "layer"),
        ({"layer": None}, "layer"),
        ({"name": "Orders"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": 5}, "name"),
        ({"type": "spark"}, "type"),
        ({"type": "python"}, "function"),
        ({"function": "x"}, "function"),
        ({"sql": None}, "sql"),
        ({"sql": "SELEC"}, "sql"),
        ({"sql": "ATTACH 'x'"}, "sql"),
        ({"sql": "COPY (SELECT 1) TO 'x'"}, "sql"),
        ({"sql": "INSTALL httpfs"}, "sql"),
        ({"sql": "SELECT * FROM sales.bronze.none"}, "sql"),
        ({"max_runs": 0}, "max_runs"),
        ({"s3_path": "x"}, "s3_path"),
        ({"type": "python", "sql": None, "function": "unknown/bronze/knows"}, "function"),
    ],
)
async def test_a_wrong_pipeline_is_refused_and_the_field_is_named(api: Api, change: Any, field: str) -> None:
    answer = await api.call("POST", "/pipelines", {**ORDERS, **change})
    assert answer.status_code == 422, answer.text
    assert field in [error["field"] for error in answer.json()["errors"]]


async def test_triggers_are_made_listed_switched_off_and_deleted(api: Api) -> None:
    await make(api)
    path = "/pipelines/sales/silver/daily_totals/triggers"
    answer = await api.call("POST", path, {"type": "pipeline_success", "upstream": "sales/bronze/orders"})
    made = answer.json()
    assert (answer.status_code, made["upstreams"], made["token"]) == (201, ["sales/bronze/orders"], None)
    unknown = await api.call("POST", path, {"type": "pipeline_success", "upstream": "sales/bronze/none"})
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (422, "upstream")
    back = {"type": "pipeline_success", "upstream": "sales/silver/daily_totals"}
    circle = await api.call("POST", f"{ONE}/triggers", back)
    assert circle.status_code == 422
    assert "the triggers would form a cycle" in circle.json()["detail"]
    off = await api.call("PATCH", f"{path}/{made['id']}", {"enabled": False})
    assert off.json()["enabled"] is False
    assert (await api.call("PATCH", f"{ONE}/triggers/{made['id']}", {"enabled": True})).status_code == 404
    assert [trigger["id"] for trigger in (await api.get(path))["items"]] == [made["id"]]
    assert (await api.call("DELETE", f"{path}/{made['id']}")).status_code == 204
    assert (await api.get(path))["items"] == []


async def test_a_webhook_needs_its_token_and_cools_down(api: Api) -> None:
    await make(api, ORDERS)
    answer = await api.call("POST", f"{ONE}/triggers", {"type": "webhook", "cooldown_seconds": 60})
    token = answer.json()["token"]
    assert answer.headers["cache-control"] == "no-store"
    assert "token" not in (await api.get(f"{ONE}/triggers"))["items"][0]  # it was shown once

    async def call(**headers: str) -> Any:
        api.client.headers.pop("authorization", None)
        return await api.client.post("/api/v1/webhooks", headers=headers)

    assert (await call()).status_code == 401
    assert (await call(**{"X-Webhook-Token": "wrong"})).status_code == 404
    first = await call(**{"X-Webhook-Token": token})
    assert first.status_code == 202
    api.clock.set(NINE + timedelta(seconds=20))
    again = await call(authorization=f"Bearer {token}")
    assert (again.status_code, again.headers["retry-after"], again.json()["code"]) == (429, "40", "cooldown")
    api.clock.set(NINE + timedelta(seconds=60))
    assert (await call(authorization=f"Bearer {token}")).status_code == 202
    for _ in range(20):
        assert (await call(**{"X-Webhook-Token": "wrong"})).status_code == 404
    assert (await call(**{"X-Webhook-Token": "wrong"})).json()["code"] == "too_many_failures"
    api.client.headers["authorization"] = f"Bearer {api.key}"
    (run,) = (await api.get("/runs", namespace="sales"))["items"]
    assert (run["job_id"], run["trigger"]) == (first.json()["job_id"], f"webhook:{answer.json()['id']}")


async def test_without_duckdb_sql_is_refused_with_what_to_install(api: Api) -> None:
    runner = api.engine.runners["pipeline"]
    assert isinstance(runner, PipelineRunner)
    runner.executor = None
    answer = await api.call("POST", "/pipelines", ORDERS)
    assert (answer.status_code, f"{DISTRIBUTION}[duckdb]" in answer.json()["detail"]) == (409, True)


async def test_a_sql_pipeline_takes_an_empty_input_and_no_other(api: Api) -> None:
    body = {"namespace": "sales", "layer": "bronze", "name": "empty", "type": "sql", "sql": "SELECT 1 AS a"}
    assert (await api.call("POST", "/pipelines", body)).status_code == 201
    for run_input, status in (({}, 202), ({"a": 1}, 422)):
        answer = await api.call("POST", "/pipelines/sales/bronze/empty/$run", {"input": run_input})
        assert answer.status_code == status
