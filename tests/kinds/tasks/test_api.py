"""Tasks, their schedules, jobs and artifacts over HTTP."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rota import ArtifactManager
from rota.engine.worker import Worker
from rota.kinds.tasks.runner import TaskRunner
from tests.app.harness import Api

TASK_ID = "01K7T0000000000000000000A1"


def calculate_sum(a: int, b: int = 1) -> dict[str, Any]:
    return {"result": a + b, "operation": "sum"}


async def keep(artifacts: ArtifactManager, size: int = 3) -> list[str]:
    """One of each kind."""
    saved = [await artifacts.save({"x": 1}), await artifacts.save("tëxt"), await artifacts.save(b"\xff" * size)]
    saved.append(await artifacts.save("<b>", parent=saved[0], label="page", content_type="text/html"))
    saved.append(await artifacts.save(b"\xff", content_type="text/plain"))
    saved.append(await artifacts.save(b"{", content_type="application/json"))
    return saved


def raw() -> bytes:
    return b"\x00\x01"


def failing() -> None:
    raise ValueError("no")


@pytest.fixture
def registered(api: Api) -> None:
    runner = api.engine.runners["task"]
    assert isinstance(runner, TaskRunner)
    for function in (calculate_sum, keep, raw, failing):
        runner.registry.register_function(function.__name__, function)


@pytest.fixture
async def task_api(api: Api, registered: None) -> "TaskApi":
    worker = Worker(api.engine)
    await worker.register()
    return TaskApi(api, worker)


class TaskApi:
    """The API, with a worker that the test steps."""

    def __init__(self, api: Api, worker: Worker) -> None:
        self.api, self.worker = api, worker

    async def make(self, command: str = "calculate_sum", **fields: Any) -> Any:
        return await self.ask("POST", "/tasks", {"command": command, "task_type": "python", **fields}, 201)

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        answer = await self.api.call(method, path, body, **more)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def wrong(self, method: str, path: str, body: Any, status: int = 422) -> list[str]:
        """The fields that are named in a refusal; of one that names none, its code."""
        answer = await self.ask(method, path, body, status)
        assert answer["status"] == status
        return [error["field"] for error in answer["errors"]] if "errors" in answer else [answer["code"]]

    async def work(self) -> None:
        self.worker.registration.refresh_routes()
        while await self.worker.prefetch.claim() or self.worker.active or self.worker.completer.results:
            await asyncio.gather(
                *(active_run.task for active_run in self.worker.active.values() if active_run.task),
                return_exceptions=True,
            )
            await asyncio.sleep(0)  # their callbacks
            while self.worker.completer.results:
                await self.worker.completer.flush()

    async def run(self, task: Any, **params: Any) -> Any:
        """Execute; returns the job when it has ended."""
        body = {"parameters": params} if params else None
        job_id = (await self.ask("POST", f"/tasks/{task['id']}/$execute", body, 202))["job_id"]
        await self.work()
        return await self.ask("GET", f"/jobs/{job_id}")


# rows


async def test_a_task_is_made_read_and_deleted(task_api: TaskApi) -> None:
    body = {"command": "calculate_sum", "task_type": "python", "parameters": {"a": 10, "b": 32}, "enabled": True}
    answer = await task_api.api.call("POST", "/tasks", {**body, "id": TASK_ID})
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/api/v1/tasks/{TASK_ID}")
    assert {name: made[name] for name in body} == body
    assert (made["id"], made["source"], made["version"]) == (TASK_ID, "api", "1")
    assert made["created_at"] == made["updated_at"] == "2026-05-04T09:00:00+00:00"
    assert await task_api.ask("GET", f"/tasks/{TASK_ID}") == made
    assert await task_api.wrong("POST", "/tasks", {**body, "id": TASK_ID}, 409) == ["conflict"]
    await task_api.ask("DELETE", f"/tasks/{TASK_ID}", status=204)
    assert await task_api.wrong("GET", f"/tasks/{TASK_ID}", None, 404) == ["not_found"]
    assert await task_api.wrong("DELETE", f"/tasks/{TASK_ID}", None, 404) == ["not_found"]


async def test_a_command_is_a_task_too_and_the_usual_one(task_api: TaskApi) -> None:
    made = await task_api.ask("POST", "/tasks", {"command": "echo 'Hello World'"}, 201)
    assert (made["task_type"], made["parameters"], made["enabled"], made["name"]) == ("shell", None, True, made["id"])


async def test_tasks_are_listed_by_type_and_switch(task_api: TaskApi) -> None:
    await task_api.make(name="on", parameters={"a": 1})
    await task_api.make(name="off", enabled=False)
    await task_api.make("true", name="shell", task_type="shell")

    async def names(**wanted: Any) -> list[str]:
        return sorted(task["name"] for task in (await task_api.api.get("/tasks", **wanted))["items"])

    assert await names() == ["hello", "off", "on", "shell"]
    assert await names(enabled=True) == ["hello", "on", "shell"]
    assert await names(enabled=False) == ["off"]
    assert await names(enabled=True, task_type="shell") == ["shell"]
    first = await task_api.api.get("/tasks", enabled=True, limit=2)
    rest = await task_api.api.get("/tasks", enabled=True, limit=2, cursor=first["next_cursor"])
    assert [len(first["items"]), len(rest["items"]), rest["next_cursor"]] == [2, 1, None]
    assert await task_api.wrong("GET", "/tasks?enabled=perhaps", None) == ["enabled"]
    assert await task_api.wrong("GET", "/tasks?limit=201", None) == ["limit"]


async def test_put_writes_a_task_anew_but_keeps_its_type_and_name(task_api: TaskApi) -> None:
    made = await task_api.make(name="sum", parameters={"a": 1}, timeout=5, enabled=False)
    put = await task_api.ask("PUT", "/tasks/sum", {"command": "failing"})
    assert (put["command"], put["task_type"], put["name"], put["id"]) == ("failing", "python", "sum", made["id"])
    assert (put["parameters"], put["timeout"], put["enabled"], put["version"]) == (None, None, True, "2")
    assert await task_api.wrong("PUT", "/tasks/sum", {"enabled": False}) == ["command"]
    assert await task_api.wrong("PUT", "/tasks/unknown", {"command": "failing"}, 404) == ["not_found"]
    null = await task_api.ask("PUT", "/tasks/sum", {"command": "failing", "task_type": None, "name": None})
    assert (null["task_type"], null["name"]) == ("python", "sum")
    shell = await task_api.ask("PUT", "/tasks/sum", {"command": "true", "task_type": "shell"})
    assert shell["task_type"] == "shell"


async def test_patch_changes_only_what_is_said(task_api: TaskApi) -> None:
    made = await task_api.make(name="sum", parameters={"a": 1}, timeout=5)
    off = await task_api.ask("PATCH", "/tasks/sum", {"enabled": False})
    assert off == {**made, "enabled": False, "updated_at": off["updated_at"]}
    params = await task_api.ask("PATCH", "/tasks/sum", {"parameters": {"a": 2}})
    assert (params["parameters"], params["timeout"], params["enabled"], params["version"]) == ({"a": 2}, 5, False, "2")
    cleared = await task_api.ask("PATCH", "/tasks/sum", {"parameters": None, "timeout": None})
    assert (cleared["parameters"], cleared["timeout"]) == (None, None)
    nulls = await task_api.ask(
        "PATCH", "/tasks/sum", {"name": None, "task_type": None, "enabled": None, "command": None}
    )
    assert nulls == {**cleared, "updated_at": nulls["updated_at"]}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["command"]),
        ({"command": " "}, ["command"]),
        ({"command": 5}, ["command"]),
        ({"command": "x" * 100_001}, ["command"]),
        ({"command": "nul\0"}, ["command"]),
        ({"command": "os.system", "task_type": "python"}, ["command"]),
        ({"command": "hello", "task_type": "perl"}, ["task_type"]),
        ({"command": "true", "parameters": [1]}, ["parameters"]),
        ({"command": "true", "parameters": "a=1"}, ["parameters"]),
        ({"command": "true", "parameters": {"x": "y" * 2 * 2**20}}, ["parameters"]),
        ({"command": "true", "enabled": "yes"}, ["enabled"]),
        ({"command": "true", "id": "task-1"}, ["id"]),
        ({"command": "true", "id": TASK_ID.lower()}, ["id"]),
        ({"command": "true", "colour": "red", "size": 3}, ["colour", "size"]),
        ({"command": "true", "timeout": 0}, ["timeout"]),
        ({"command": "true", "cache_ttl": "soon", "isolation": "moon"}, ["isolation", "cache_ttl"]),
        ({"command": "true", "retry": {"max_retries": -1}}, ["retry.max_retries"]),
        ({"command": "true", "memory_mb": 1}, ["memory_mb"]),
        ({"command": "true", "env": "PATH"}, ["env"]),
    ],
)
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_wrong_tasks_are_refused_by_field(task_api: TaskApi, body: dict[str, Any], fields: list[str]) -> None:
    assert await task_api.wrong("POST", "/tasks", body) == fields
    assert len((await task_api.api.get("/tasks"))["items"]) == 1


async def test_shell_tasks_take_their_scope(task_api: TaskApi) -> None:
    """Who may change a command, or turn a function into one, may run anything on the workers."""
    body = {"name": "op", "role": "operator", "scopes": ["tasks"]}
    key = (await task_api.ask("POST", "/api-keys", body, 201))["key"]
    headers = {"authorization": f"Bearer {key}"}
    shell = await task_api.make("true", task_type="shell")
    python = await task_api.make(parameters={"a": 1})

    async def ask(method: str, path: str, body: Any) -> int:
        return (await task_api.api.call(method, path, body, headers=headers)).status_code

    assert await ask("POST", "/tasks", {"command": "true"}) == 403
    assert await ask("POST", "/tasks", {"command": "true", "task_type": None}) == 403
    assert await ask("POST", "/tasks", {"command": "calculate_sum", "task_type": "python"}) == 201
    for method in ("PUT", "PATCH"):
        assert await ask(method, f"/tasks/{python['id']}", {"command": "true", "task_type": "shell"}) == 403
        assert await ask(method, f"/tasks/{python['id']}", {"command": "true", "task_type": None}) == 422
        assert await ask(method, f"/tasks/{shell['id']}", {"command": "rm -rf /"}) == 403
    assert await ask("PATCH", f"/tasks/{shell['id']}", {"enabled": False}) == 200
    assert await ask("DELETE", f"/tasks/{shell['id']}", None) == 403
    assert (await task_api.api.get(f"/tasks/{python['id']}"))["task_type"] == "python"


# execute


async def test_executing_answers_with_the_job_whose_artifact_has_the_result(task_api: TaskApi) -> None:
    task = await task_api.make(parameters={"a": 10, "b": 32})
    answer = await task_api.ask("POST", f"/tasks/{task['id']}/$execute", None, 202)
    assert answer == {
        "job_id": answer["job_id"],
        "message": f"Task submitted for execution. Job ID: {answer['job_id']}",
    }
    before = await task_api.ask("GET", f"/jobs/{answer['job_id']}")
    assert (before["status"], before["artifact_id"], before["started_at"]) == ("pending", None, None)
    await task_api.work()
    job = await task_api.ask("GET", f"/jobs/{answer['job_id']}")
    assert job.keys() == {
        "id",
        "status",
        "kind",
        "target",
        "attempt",
        "submitted_at",
        "started_at",
        "finished_at",
        "error",
        "artifact_id",
        "run_ids",
        "target_name",
        "parent_id",
        "children",
        "waiting",
        "steps",
    }
    assert (job["status"], job["run_ids"]) == ("success", [job["artifact_id"]])
    artifact = await task_api.ask("GET", f"/artifacts/{job['artifact_id']}")
    assert artifact["data"]["result"] == {"result": 42, "operation": "sum"}
    assert artifact["data"]["error"] is None
    assert artifact["data"]["task"]["parameters"] == {"a": 10, "b": 32}
    assert (artifact["id"], artifact["level"], artifact["label"]) == (job["artifact_id"], 0, "execution")
    assert {"created_at", "updated_at"} <= artifact.keys()


async def test_a_failed_task_is_a_failed_job_with_its_error(task_api: TaskApi) -> None:
    job = await task_api.run(await task_api.make("failing"))
    assert (job["status"], job["error"]["type"], job["error"]["message"]) == ("failed", "ValueError", "no")
    data = (await task_api.ask("GET", f"/artifacts/{job['artifact_id']}"))["data"]
    assert (data["result"], data["error"]["type"]) == (None, "ValueError")
    assert data["error"]["traceback"].startswith("Traceback")


async def test_what_cannot_be_executed_is_a_bad_request(task_api: TaskApi) -> None:
    off = await task_api.make(enabled=False)
    orphan = await task_api.make("gone", enabled=False)
    await task_api.api.execute("UPDATE tasks SET enabled = true WHERE id = :id", id=orphan["id"])
    for key, text in (
        (off["id"], f"Cannot execute disabled task {off['id']}"),
        (orphan["id"], f"Cannot execute task {orphan['id']}: no running program has its function gone"),
        (TASK_ID, f"Cannot execute task {TASK_ID}: not found"),
        ("not-a-ulid", "Cannot execute task not-a-ulid: not found"),
    ):
        answer = await task_api.ask("POST", f"/tasks/{key}/$execute", None, 400)
        assert (answer["detail"], answer["code"]) == (text, "not_runnable")


async def test_wrong_parameters_are_named_before_anything_runs(task_api: TaskApi) -> None:
    task = await task_api.make()
    path = f"/tasks/{task['id']}/$execute"
    assert await task_api.wrong("POST", path, None) == ["parameters.a"]
    assert await task_api.wrong("POST", path, {"parameters": {"a": "ten"}}) == ["parameters.a"]
    assert await task_api.wrong("POST", path, {"parameters": {"a": 1, "c": 2}}) == ["parameters.c"]
    assert await task_api.wrong("POST", path, {"parameters": [1]}) == ["parameters"]
    assert await task_api.wrong("POST", path, {"params": {"a": 1}}) == ["params"]
    shell = await task_api.make("cat", task_type="shell")
    big = {"parameters": {"x": "y" * 2 * 2**20}}
    assert await task_api.wrong("POST", f"/tasks/{shell['id']}/$execute", big) == ["input"]
    answer = await task_api.api.call("POST", path, content=b"{oops", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert (await task_api.api.get("/jobs"))["items"] == []


async def test_the_schema_of_a_tasks_parameters_can_be_read(task_api: TaskApi) -> None:
    task = await task_api.make(parameters={"a": 1})
    schema = await task_api.ask("GET", f"/tasks/{task['id']}/$schema")
    assert schema["properties"]["b"] == {"default": 1, "title": "B", "type": "integer"}
    assert schema["required"] == ["a"]
    assert (await task_api.ask("GET", "/tasks/hello/$schema"))["properties"]["name"]["default"] == "you"
    shell = await task_api.make("true", task_type="shell")
    assert await task_api.wrong("GET", f"/tasks/{shell['id']}/$schema", None, 404) == ["not_found"]
    assert await task_api.wrong("GET", "/tasks/unknown/$schema", None, 404) == ["not_found"]


# schedules


@pytest.mark.parametrize(
    ("body", "next_run_at"),
    [
        ({"schedule_type": "once", "run_at": "2026-05-05T14:00:00Z"}, "2026-05-05T14:00:00+00:00"),
        ({"schedule_type": "interval", "interval_seconds": 3600}, "2026-05-04T10:00:00+00:00"),
        ({"schedule_type": "cron", "cron_expression": "0 2 * * *"}, "2026-05-05T02:00:00+00:00"),
        ({"cron_expression": "0 2 * * *", "timezone": "Europe/Oslo"}, "2026-05-05T00:00:00+00:00"),
        ({"interval_seconds": 60, "enabled": False}, None),
    ],
)
async def test_a_task_is_scheduled(task_api: TaskApi, body: dict[str, Any], next_run_at: str | None) -> None:
    task = await task_api.make(parameters={"a": 1})
    answer = await task_api.api.call("POST", f"/tasks/{task['id']}/$schedule", body)
    made = answer.json()
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/api/v1/schedules/{made['id']}"
    assert (made["task_id"], made["target"], made["next_run_at"]) == (task["id"], task["id"], next_run_at)
    assert made["enabled"] is body.get("enabled", True)
    assert made["last_run_at"] is None
    assert {"created_at", "updated_at", "schedule_type"} <= made.keys()
    (listed,) = (await task_api.api.get(f"/tasks/{task['id']}/$schedules"))["items"]
    assert (listed["id"], listed["task_id"], listed["next_run_at"]) == (made["id"], task["id"], next_run_at)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["schedule_type"]),
        ({"schedule_type": "once"}, ["run_at"]),
        ({"schedule_type": "once", "run_at": "2026-05-04T08:59:59Z"}, ["run_at"]),
        ({"schedule_type": "once", "run_at": "2026-05-04T09:00:00Z"}, ["run_at"]),
        ({"schedule_type": "once", "run_at": "2026-12-01T09:00:00"}, ["run_at"]),
        ({"schedule_type": "interval"}, ["interval_seconds"]),
        ({"schedule_type": "interval", "interval_seconds": 0}, ["interval_seconds"]),
        ({"schedule_type": "cron"}, ["cron_expression"]),
        ({"schedule_type": "cron", "cron_expression": "61 * * * *"}, ["cron_expression"]),
        ({"schedule_type": "cron", "cron_expression": "* * * * * *"}, ["cron_expression"]),
        ({"schedule_type": "cron", "cron_expression": "* * * * *", "interval_seconds": 5}, ["interval_seconds"]),
        ({"schedule_type": "interval", "interval_seconds": 5, "run_at": "2026-12-01T09:00:00Z"}, ["run_at"]),
        ({"schedule_type": "once", "run_at": "2026-12-01T09:00:00Z", "cron_expression": "* * * * *"},
         ["cron_expression"]),
        ({"schedule_type": "hourly"}, ["schedule_type"]),
        ({"interval_seconds": 5, "target": "hello"}, ["target"]),
        ({"interval_seconds": 5, "kind": "task"}, ["kind"]),
        ({"interval_seconds": 5, "input": {"a": "ten"}}, ["input.a"]),
        ({"interval_seconds": 5, "input": [1]}, ["input"]),
        ({"interval_seconds": 5, "colour": "red"}, ["colour"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_wrong_schedules_are_refused_by_field(task_api: TaskApi, body: dict[str, Any], fields: list[str]) -> None:
    task = await task_api.make(parameters={"a": 1})
    assert await task_api.wrong("POST", f"/tasks/{task['id']}/$schedule", body) == fields
    assert (await task_api.api.get(f"/tasks/{task['id']}/$schedules"))["items"] == []


async def test_a_schedule_is_edited_and_deleted_only_through_its_own_task(task_api: TaskApi) -> None:
    task, other = await task_api.make(parameters={"a": 1}), await task_api.make(parameters={"a": 2})
    made = await task_api.ask("POST", f"/tasks/{task['id']}/$schedule", {"interval_seconds": 60}, 201)
    own_path, strange = (f"/tasks/{owner['id']}/$schedules/{made['id']}" for owner in (task, other))
    for method, body in (("PATCH", {"enabled": False}), ("DELETE", None)):
        assert await task_api.wrong(method, strange, body, 404) == ["not_found"]
        assert await task_api.wrong(method, f"/tasks/unknown/$schedules/{made['id']}", body, 404) == ["not_found"]
        assert await task_api.wrong(method, f"/tasks/{task['id']}/$schedules/x", body, 404) == ["not_found"]
    off = await task_api.ask("PATCH", own_path, {"enabled": False})
    assert (off["enabled"], off["next_run_at"], off["task_id"]) == (False, None, task["id"])
    task_api.api.clock.set(task_api.api.clock.now().replace(hour=12))
    on = await task_api.ask("PATCH", own_path, {"enabled": True})
    assert on["next_run_at"] == "2026-05-04T12:01:00+00:00"  # not what had been planned before
    assert await task_api.wrong("PATCH", own_path, {"target": other["id"]}) == ["target"]
    assert await task_api.wrong("PATCH", own_path, {"interval_seconds": 0}) == ["interval_seconds"]
    stale = await task_api.api.call("PATCH", own_path, {"enabled": False}, headers={"if-match": '"1"'})
    assert stale.status_code == 412
    await task_api.ask("DELETE", own_path, status=204)
    assert (await task_api.api.get(f"/tasks/{task['id']}/$schedules"))["items"] == []
    assert await task_api.wrong("DELETE", own_path, None, 404) == ["not_found"]


async def test_a_schedule_whose_moment_passed_while_it_was_off_is_not_switched_on(task_api: TaskApi) -> None:
    task = await task_api.make(parameters={"a": 1})
    body = {"run_at": "2026-05-04T10:00:00Z", "enabled": False}
    made = await task_api.ask("POST", f"/tasks/{task['id']}/$schedule", body, 201)
    task_api.api.clock.set(task_api.api.clock.now().replace(hour=12))
    path = f"/tasks/{task['id']}/$schedules/{made['id']}"
    assert await task_api.wrong("PATCH", path, {"enabled": True}) == ["run_at"]


async def test_a_deleted_task_takes_its_schedules_and_leaves_runs_and_artifacts(task_api: TaskApi) -> None:
    task = await task_api.make(parameters={"a": 1})
    made = await task_api.ask("POST", f"/tasks/{task['id']}/$schedule", {"interval_seconds": 60}, 201)
    job = await task_api.run(task)
    before = await task_api.ask("GET", f"/artifacts/{job['artifact_id']}")
    await task_api.ask("DELETE", f"/tasks/{task['id']}", status=204)
    assert await task_api.wrong("GET", f"/schedules/{made['id']}", None, 404) == ["not_found"]
    assert await task_api.ask("GET", f"/jobs/{job['id']}") == job
    assert await task_api.ask("GET", f"/artifacts/{job['artifact_id']}") == before


async def test_an_operator_may_limit_the_schedules_of_a_task(task_api: TaskApi) -> None:
    task_api.api.engine.settings = replace(task_api.api.engine.settings, max_schedules_per_task=2)
    task, other = await task_api.make(parameters={"a": 1}, name="x"), await task_api.make(parameters={"a": 1})
    path = f"/tasks/{task['id']}/$schedule"
    for status in (201, 201, 409):
        answer = await task_api.ask("POST", path, {"interval_seconds": 60}, status)
    assert answer["detail"] == "task 'x' has 2 schedules, the maximum; delete one first"
    await task_api.ask("POST", f"/tasks/{other['id']}/$schedule", {"interval_seconds": 60}, 201)


# jobs


async def test_jobs_are_listed_newest_first_and_filtered(task_api: TaskApi) -> None:
    assert (await task_api.api.get("/jobs"))["items"] == []
    good, bad = await task_api.make(parameters={"a": 1}), await task_api.make("failing")
    ended = [(await task_api.run(executed))["id"] for executed in (good, bad, good)]
    waiting = (await task_api.ask("POST", f"/tasks/{good['id']}/$execute", None, 202))["job_id"]
    assert [job["id"] for job in (await task_api.api.get("/jobs"))["items"]] == [waiting, *reversed(ended)]
    assert [job["id"] for job in (await task_api.api.get("/jobs", status="failed"))["items"]] == [ended[1]]
    assert [job["id"] for job in (await task_api.api.get("/jobs", status="pending"))["items"]] == [waiting]
    assert [job["id"] for job in (await task_api.api.get("/jobs", target=bad["id"]))["items"]] == [ended[1]]
    page = await task_api.api.get("/jobs", limit=2)
    rest = await task_api.api.get("/jobs", limit=2, cursor=page["next_cursor"])
    assert [job["id"] for job in rest["items"]] == [ended[1], ended[0]]
    assert await task_api.wrong("GET", "/jobs?status=completed", None) == ["status"]
    assert await task_api.wrong("GET", "/jobs/01JOB", None, 404) == ["not_found"]


async def test_deleting_a_job_cancels_it(task_api: TaskApi) -> None:
    task = await task_api.make(parameters={"a": 1})
    job_id = (await task_api.ask("POST", f"/tasks/{task['id']}/$execute", None, 202))["job_id"]
    await task_api.ask("DELETE", f"/jobs/{job_id}", status=204)
    await task_api.work()
    job = await task_api.ask("GET", f"/jobs/{job_id}")
    assert (job["status"], job["started_at"], job["artifact_id"]) == ("canceled", None, None)
    assert await task_api.wrong("DELETE", f"/jobs/{job_id}", None, 409) == ["conflict"]
    assert await task_api.wrong("DELETE", "/jobs/unknown", None, 404) == ["not_found"]


# artifacts


async def test_saved_artifacts_are_listed_shown_as_a_tree_and_downloaded(task_api: TaskApi) -> None:
    job = await task_api.run(await task_api.make("keep"))
    root = job["artifact_id"]
    saved = (await task_api.ask("GET", f"/artifacts/{root}"))["data"]["result"]
    listed = (await task_api.api.get("/artifacts", run_id=root))["items"]
    assert sorted(artifact["id"] for artifact in listed) == sorted(saved)
    assert all("data" not in artifact for artifact in listed)
    assert [artifact["id"] for artifact in (await task_api.api.get("/artifacts", label="page"))["items"]] == [saved[3]]
    assert [artifact["id"] for artifact in (await task_api.api.get("/artifacts", parent_id=saved[0]))["items"]] == [
        saved[3]
    ]
    tree = await task_api.ask("GET", f"/artifacts/{root}/$tree")
    below = {child["id"]: child for child in tree["children"]}
    assert below.keys() == {*saved} - {saved[3]}
    assert [(child["id"], child["level"], child["label"]) for child in below[saved[0]]["children"]] == [
        (saved[3], 2, "page")
    ]
    assert below[saved[1]]["children"] == []
    expanded = await task_api.ask("GET", f"/artifacts/{saved[0]}/$expand")
    assert (expanded["children"], expanded["data"]) == (None, {"x": 1})
    read = [(await task_api.ask("GET", f"/artifacts/{artifact_id}"))["data"] for artifact_id in saved]
    assert read == [{"x": 1}, "tëxt", None, "<b>", None, None]
    for artifact_id, kind, content in (
        (saved[0], "application/json", b'{"x":1}'),
        (saved[1], "text/plain; charset=utf-8", "tëxt".encode()),
        (saved[2], "application/octet-stream", b"\xff\xff\xff"),
        (saved[3], "text/html; charset=utf-8", b"<b>"),
    ):
        answer = await task_api.api.call("GET", f"/artifacts/{artifact_id}/$content")
        assert (answer.headers["content-type"], answer.content) == (kind, content)
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in answer.headers["content-security-policy"]
    whole = await task_api.api.call("GET", f"/artifacts/{root}/$content")
    assert whole.json()["result"] == saved


async def test_a_binary_result_is_a_separate_artifact(task_api: TaskApi) -> None:
    job = await task_api.run(await task_api.make("raw"))
    result = (await task_api.ask("GET", f"/artifacts/{job['artifact_id']}"))["data"]["result"]
    assert result["content_type"] == "application/octet-stream"
    assert (await task_api.api.call("GET", f"/artifacts/{result['artifact_id']}/$content")).content == b"\x00\x01"


async def test_an_artifact_that_is_too_large_fails_the_run(task_api: TaskApi) -> None:
    task_api.api.engine.settings = replace(task_api.api.engine.settings, artifact_limit=100)
    job = await task_api.run(await task_api.make("keep"), size=101)
    assert job["error"]["message"] == "the artifact has 101 bytes; at most 100 are allowed (ROTA_MAX_ARTIFACT_MB)"


async def test_unknown_artifacts_are_not_found(task_api: TaskApi) -> None:
    for tail in ("", "/$tree", "/$expand", "/$content"):
        for unknown in (TASK_ID, "not-a-ulid", "%00"):
            assert (await task_api.api.call("GET", f"/artifacts/{unknown}{tail}")).status_code == 404


async def test_a_task_made_for_a_schedule_goes_with_the_last_schedule_that_runs_it(task_api: TaskApi) -> None:
    made = await task_api.make(name="made", delete_with_schedule=True)
    await task_api.make(name="kept")
    for name, target in (("one", "made"), ("two", made["id"]), ("three", "kept")):
        await task_api.api.schedule(name, target=target, input={"a": 1, "b": 2})
    await task_api.ask("DELETE", "/schedules/one", status=204)
    await task_api.ask("DELETE", "/schedules/three", status=204)
    assert (await task_api.ask("GET", "/tasks/made"))["delete_with_schedule"] is True
    await task_api.ask("DELETE", "/schedules/two", status=204)
    assert await task_api.wrong("GET", "/tasks/made", None, 404) == ["not_found"]
    await task_api.ask("GET", "/tasks/kept")
