"""Jobs beside schedules, over HTTP."""

from datetime import timedelta
from typing import Any

import pytest

from tests.app.harness import NINE, Api


async def add(api: Api, status: int = 202, **body: Any) -> Any:
    answer = await api.call("POST", "/jobs", {"target": "hello", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


async def row(api: Api, job_id: str) -> Any:
    return await api.db.read(
        lambda tx: tx.exec_driver_sql(
            f"SELECT state, queue, priority, job_key, payload FROM jobs WHERE id = '{job_id}'"
        ).one()
    )


async def test_a_job_is_made_with_all_it_is_given(api: Api) -> None:
    later = (NINE + timedelta(hours=1)).isoformat()
    made = await add(api, input={"name": "x"}, queue="night", priority=5, run_at=later, job_key="k")
    job = await row(api, made["job_id"])
    assert (job.state, job.queue, job.priority, job.job_key) == ("later", "night", 5, "k")
    shown = await api.get(f"/jobs/{made['job_id']}")
    assert (shown["status"], shown["kind"]) == ("pending", "task")
    (run,) = (await api.get("/runs", job_id=made["job_id"]))["items"]
    assert (run["input"], run["target_name"]) == ({"name": "x"}, "hello")
    assert "A user asked" not in (await api.get(f"/runs/{made['job_id']}/$why"))["sentences"][0]


async def test_a_second_job_with_a_key_is_refused_joined_or_takes_its_place(api: Api) -> None:
    first = (await add(api, job_key="k"))["job_id"]
    assert first in (await add(api, 409, job_key="k"))["detail"]
    assert (await add(api, job_key="k", key_mode="preserve"))["job_id"] == first
    second = (await add(api, job_key="k", key_mode="replace"))["job_id"]
    assert second != first
    assert (await api.get(f"/jobs/{first}"))["status"] == "skipped"
    await api.start()
    assert (await add(api, job_key="k", key_mode="replace"))["job_id"] == second  # it has started


async def test_a_graph_job_has_its_own_grant_that_outlives_its_due_time(api: Api) -> None:
    later = NINE + timedelta(days=3)
    await add(api, kind="graph", target="python:echo", input={"say": "hi"}, run_at=later.isoformat())
    (grant,) = (await api.get("/grants"))["items"]
    assert (grant["scopes"], grant["expires_at"]) == (
        ["graph:execute:python:echo"],
        (later + timedelta(days=1)).isoformat(),
    )


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"kind": "workflow"}, 422, "kind"),
        ({"kind": "pipeline", "target": "a/b/c"}, 422, "target"),
        ({"kind": "graph", "target": "python:none"}, 422, "target"),
        ({"kind": "host_job", "target": "labels:role=web"}, 422, "target"),
        ({"queue": "a/b"}, 422, "queue"),
        ({"key_mode": "other"}, 422, "key_mode"),
        ({"priority": 101}, 422, "priority"),
        ({"run_at": "soon"}, 422, "run_at"),
        ({"after": []}, 422, "after"),
        ({"input": [1]}, 422, "parameters"),
        ({"target": "none"}, 400, None),
    ],
)
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_wrong_job_is_refused_by_field(api: Api, body: Any, status: int, field: str | None) -> None:
    refusal = await add(api, status, **body)
    assert field is None or [error["field"] for error in refusal["errors"]] == [field]
    assert await api.count("jobs") == 0


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_commands_on_hosts_need_the_scope_here_too(api: Api) -> None:
    key = (await api.call("POST", "/api-keys", {"name": "op", "role": "operator"})).json()["key"]
    body = {"target": "01JB3Q2M5T8V0W1X2Y3Z4A5B6C", "kind": "host_job", "input": {"job_type": "shell"}}
    answer = await api.call("POST", "/jobs", body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 403
