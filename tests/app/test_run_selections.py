"""Retry and cancel of many runs, by ids or by a filter, over HTTP, by command and by the form of the page."""

from typing import Any

import pytest

from rota.core.states import Status
from tests.app.harness import Api


async def failed_runs(api: Api, count: int) -> list[str]:
    await api.schedule("nightly")
    for _ in range(count):
        await api.job()
    begun = await api.start()
    await api.end(begun, Status.FAILED, "logic")
    return [attempt.run_id for attempt in begun]


async def post(api: Api, verb: str, body: Any, status: int = 200) -> dict[str, Any]:
    answer = await api.call("POST", f"/runs/${verb}", body)
    assert answer.status_code == status, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def test_failed_runs_are_counted_and_then_retried_once(api: Api) -> None:
    run_ids = await failed_runs(api, 3)
    await api.job()
    await api.end(await api.start())  # a success is not selected
    selection = {"filter": {"schedule_id": "nightly"}}
    assert await post(api, "retry", {**selection, "dry_run": True}) == {"count": 3, "refused": [], "more": False}
    assert await api.count("jobs") == 0
    assert (await post(api, "retry", selection))["count"] == 3
    assert await api.count("jobs") == 3
    await post(api, "retry", selection)
    assert await api.count("jobs") == 3  # none was enqueued twice
    while begun := await api.start():
        await api.end(begun)
    assert (await post(api, "retry", selection))["count"] == 0  # they were retried
    entries = (await api.get("/audit", action="runs.retry"))["items"]
    assert {entry["resource_id"] for entry in entries} == set(run_ids)


async def test_a_run_that_refuses_does_not_stop_the_others(api: Api) -> None:
    first, second = await failed_runs(api, 2)
    missing = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    result = await post(api, "retry", {"ids": [first, missing, second, first]})
    assert result["count"] == 2
    assert [(refusal["id"], "not found" in refusal["detail"]) for refusal in result["refused"]] == [(missing, True)]


async def test_a_run_whose_task_has_no_such_parameter_is_refused_and_not_the_request(api: Api) -> None:
    (run_id,) = await failed_runs(api, 1)
    result = await post(api, "retry", {"ids": [run_id], "input": {"colour": "red"}})
    assert (result["count"], [refusal["id"] for refusal in result["refused"]]) == (0, [run_id])
    assert "colour" in result["refused"][0]["detail"]
    assert await api.count("jobs") == 0


async def test_waiting_and_running_runs_are_canceled(api: Api) -> None:
    await api.schedule("nightly")
    await api.job()
    await api.start()
    waiting = await api.job()
    assert (await post(api, "cancel", {"filter": {}, "dry_run": True}))["count"] == 2
    assert (await post(api, "cancel", {"filter": {}}))["count"] == 2
    assert (await api.get(f"/jobs/{waiting}"))["status"] == "canceled"
    assert (await post(api, "cancel", {"ids": [waiting]}))["refused"][0]["id"] == waiting


async def test_deleted_runs_are_counted_first_and_only_by_an_admin(api: Api) -> None:
    run_ids = await failed_runs(api, 2)
    await api.job()
    await api.end(await api.start())
    running = await api.job()
    selection = {"filter": {"schedule_id": "nightly"}}
    assert (await post(api, "delete", {**selection, "dry_run": True}))["count"] == 3
    assert await api.count("runs") == 3
    key = (await api.call("POST", "/api-keys", {"name": "op", "role": "operator"})).json()["key"]
    headers = {"authorization": f"Bearer {key}"}
    assert (await api.client.post("/api/v1/runs/$delete", json=selection, headers=headers)).status_code == 403
    result = await post(api, "delete", {"ids": [run_ids[0], running]})
    assert (result["count"], result["refused"][0]["id"]) == (1, running)
    assert (await post(api, "delete", selection))["count"] == 2
    assert await api.count("runs") == 0
    entries = (await api.get("/audit", action="runs.delete"))["items"]
    assert len(entries) == 3
    assert run_ids[0] in {entry["resource_id"] for entry in entries}


async def test_runs_of_another_org_are_not_found(api: Api) -> None:
    (run_id,) = await failed_runs(api, 1)
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    headers = {"authorization": f"Bearer {theirs['admin_key']}"}
    bodies: list[dict[str, object]] = [{"ids": [run_id]}, {"filter": {}}]
    for body in bodies:
        answer = await api.client.post("/api/v1/runs/$retry", json=body, headers=headers)
        assert answer.json()["count"] == 0
    assert await api.count("jobs") == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"ids": ["x"]}, {"ids": [], "filter": {}}, {"filter": {"status": "odd"}}, {"filter": {"colour": "red"}}],
)
async def test_a_wrong_selection_is_refused_and_nothing_is_retried(api: Api, body: Any) -> None:
    await failed_runs(api, 1)
    await post(api, "retry", body, 422)
    assert await api.count("jobs") == 0


async def test_schedules_are_selected_by_their_ids(api: Api) -> None:
    ids = [(await api.schedule(name))["id"] for name in ("a", "b", "c")]
    answer = await api.call("POST", "/schedules/$pause", {"filter": {"ids": ids[:2]}, "reason": "x"})
    assert answer.json() == {"count": 2}
    none = await api.call("POST", "/schedules/$delete", {"filter": {"ids": []}})
    assert none.json() == {"count": 0}  # no id, not: no filter
    assert [item["name"] for item in (await api.get("/schedules", paused="true"))["items"]] == ["a", "b"]
