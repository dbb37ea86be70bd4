"""Task rows and their runs: results, errors, versions, snapshots, retries, timeouts, caches, switches."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from rota import Retry, TaskIn, TransientError
from rota.core.errors import Conflict, Invalid, NotFound, NotRunnable
from rota.db import tables
from rota.db.tables import cached_results
from rota.engine import artifacts
from rota.engine.maintenance import Maintenance
from rota.kinds.tasks import store as tasks_store
from tests.engine.harness import MINUTE, at
from tests.kinds.tasks.harness import Record, TaskHarness


def calculate_sum(a: int, b: int) -> dict[str, Any]:
    return {"result": a + b, "operation": "sum"}


async def shout(text: str) -> str:
    return text.upper()


def failing(should_fail: bool = True) -> str:
    if should_fail:
        raise ValueError("This task was designed to fail")
    return "fine"


@pytest.fixture(autouse=True)
def functions(harness: TaskHarness) -> None:
    for function in (calculate_sum, shout, failing):
        harness.program.task(function)


def names(records: list[Record]) -> list[str]:
    return [record["name"] for record in records]


# what a run leaves


async def test_a_plain_function_runs_with_its_rows_parameters(harness: TaskHarness) -> None:
    task = await harness.store("calculate_sum", parameters={"a": 10, "b": 32})
    run = await harness.execute(task)
    assert (run["status"], run["outcome"]) == ("success", {"result": 42, "operation": "sum"})
    data = await harness.artifact(run)
    assert data["result"] == {"result": 42, "operation": "sum"}
    assert data["error"] is None
    shown = {name: data["task"][name] for name in ("id", "command", "task_type", "parameters")}
    assert shown == {
        "id": task["id"],
        "command": "calculate_sum",
        "task_type": "python",
        "parameters": {"a": 10, "b": 32},
    }
    assert {"created_at", "updated_at"} <= data["task"].keys()


async def test_an_async_function_runs_and_given_parameters_stand_over_the_rows(harness: TaskHarness) -> None:
    task = await harness.store("shout", parameters={"text": "quiet"})
    assert (await harness.execute(task))["outcome"] == "QUIET"
    run = await harness.execute(task, text="loud")
    assert run["outcome"] == "LOUD"
    assert (await harness.artifact(run))["task"]["parameters"] == {"text": "loud"}


async def test_a_failed_function_is_a_failed_run_with_its_traceback(harness: TaskHarness) -> None:
    run = await harness.execute(await harness.store("failing", parameters={"should_fail": True}))
    assert (run["status"], run["reason"]) == ("failed", "logic")
    data = await harness.artifact(run)
    assert data["result"] is None
    assert (data["error"]["type"], data["error"]["message"]) == ("ValueError", "This task was designed to fail")
    assert 'raise ValueError("This task was designed to fail")' in data["error"]["traceback"]
    assert "src/rota" not in data["error"]["traceback"]


async def test_a_command_leaves_what_it_said_and_its_exit_code(harness: TaskHarness) -> None:
    task = await harness.store("echo out; echo err >&2; exit 3", task_type="shell")
    run = await harness.execute(task)
    assert (run["status"], run["reason"], run["error"]["message"]) == (
        "failed",
        "logic",
        "command exited with code 3: err",
    )
    data = await harness.artifact(run)
    assert (data["stdout"], data["stderr"], data["exit_code"]) == ("out\n", "err\n", 3)
    assert data["task"]["command"] == "echo out; echo err >&2; exit 3"
    assert sorted(await harness.logs(run)) == ["err", "out"]
    fine = await harness.execute(await harness.store("echo 'Hello World'", task_type="shell"))
    assert (fine["status"], (await harness.artifact(fine))["stdout"]) == ("success", "Hello World\n")


async def test_a_command_gets_its_parameters_and_only_the_environment_it_may_see(
    harness: TaskHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.setenv("OPEN", "seen")
    monkeypatch.setenv("ROTA_SERVICE_TOKEN", "hidden")
    command = 'cat; echo; echo "$SECRET|$OPEN|$ROTA_SERVICE_TOKEN|$ROTA_ATTEMPT"; pwd'
    stored = await harness.store(command, task_type="shell", parameters={"a": 1}, env=["OPEN", "ROTA_*"], cwd="/")
    run = await harness.execute(stored, b=2)
    assert run["outcome"]["stdout"].splitlines() == ['{"a":1,"b":2}', "|seen||1", "/"]
    fixed = await harness.store("cat", task_type="shell", parameters={"a": 1}, stdin="as it is")
    assert (await harness.execute(fixed))["outcome"]["stdout"] == "as it is"


async def test_one_task_run_several_times_leaves_as_many_artifacts(harness: TaskHarness) -> None:
    task = await harness.store("calculate_sum", parameters={"a": 1, "b": 1})
    jobs = [await harness.manager.execute_task(task["id"]) for _ in range(5)]
    await harness.work()
    artifact_ids = {(await harness.last_run(job_id))["artifact_id"] for job_id in jobs}
    assert len(artifact_ids) == 5


# versions


async def test_editing_or_deleting_a_task_changes_no_artifact(harness: TaskHarness) -> None:
    task = await harness.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    first = await harness.execute(task)
    before = await harness.artifact(first)
    await harness.manager.edit("sum", {"parameters": {"a": 2, "b": 2}, "retry": {"max_retries": 1}})
    second = await harness.execute(task)
    assert await harness.artifact(first) == before
    assert (await harness.artifact(second))["task"]["parameters"] == {"a": 2, "b": 2}
    await harness.manager.edit("sum", {"command": "shout", "parameters": {"text": "x"}, "name": "other"})
    await harness.manager.delete("other")
    assert await harness.artifact(first) == before
    again = await harness.store("failing", name="sum", parameters={"should_fail": False})
    third = await harness.execute(again)
    assert await harness.artifact(first) == before
    assert (await harness.artifact(third))["task"]["command"] == "failing"


async def test_a_task_made_again_under_its_old_id_is_another_version(harness: TaskHarness) -> None:
    known = "01K7T0000000000000000000A1"
    made = await harness.store("calculate_sum", id=known, parameters={"a": 1, "b": 1})
    assert (made["id"], made["name"]) == (known, known)
    first = await harness.execute(made)
    await harness.manager.delete(known)
    await harness.store("shout", id=known, parameters={"text": "x"})
    assert (await harness.artifact(first))["task"]["command"] == "calculate_sum"


async def test_a_run_records_the_version_of_its_row_and_of_its_function(harness: TaskHarness) -> None:
    harness.program.task("versioned", version="2.1")(calculate_sum)
    task = await harness.store("versioned", parameters={"a": 1, "b": 1})
    assert (await harness.execute(task))["target_version"] == "1/2.1"
    await harness.manager.edit(task["id"], {"enabled": False})
    await harness.manager.edit(task["id"], {"enabled": True})
    run = await harness.execute(task)
    assert run["target_version"] == "1/2.1"
    assert (await harness.artifact(run))["task"]["version"] == "1/2.1"
    await harness.manager.edit(task["id"], {"timeout": 5})
    assert (await harness.execute(task))["target_version"] == "2/2.1"
    declared = await harness.run("versioned", a=1, b=2)
    assert (declared["target_version"], (await harness.artifact(declared))["task"]["name"]) == ("2.1", "versioned")


# cached results


async def test_a_cached_result_is_reused_and_marked_as_cached(harness: TaskHarness) -> None:
    calls: list[int] = []

    def slow(x: int) -> int:
        calls.append(x)
        return x * 10

    harness.program.task("slow", cache_ttl="1h")(slow)
    first, second = await harness.run("slow", x=1), await harness.run("slow", x=1)
    assert (first["outcome"], first["reason"], second["outcome"], second["reason"]) == (10, None, 10, "cached")
    assert await harness.logs(second) == [f"returned the cached result of run {first['id']}"]
    assert calls == [1]
    await harness.run("slow", x=2)
    assert calls == [1, 2]
    harness.clock.set(harness.clock.now() + 61 * MINUTE)
    assert (await harness.run("slow", x=1))["reason"] is None
    assert calls == [1, 2, 1]


async def test_what_is_cached_is_a_result_of_this_version_and_never_a_failure(harness: TaskHarness) -> None:
    results = iter([0, 1, 2, 3])

    def fickle() -> int:
        result = next(results)
        if not result:
            raise ValueError("no")
        return result

    harness.program.task("fickle")(fickle)
    task = await harness.store("fickle", cache_ttl=60)
    assert [(await harness.execute(task))["outcome"] for _ in range(3)] == [None, 1, 1]
    await harness.manager.edit(task["id"], {"timeout": 5})
    assert (await harness.execute(task))["outcome"] == 2
    harness.program.registry.clear()
    harness.program.task("fickle", version="new")(fickle)  # the program came back with other code
    assert (await harness.execute(task))["outcome"] == 3


async def test_old_results_are_swept_out(harness: TaskHarness) -> None:
    harness.program.task("quick", cache_ttl=1)(lambda: 1)
    await harness.run("quick")
    assert len(await harness.rows(select(cached_results))) == 1
    await Maintenance(harness.engine, harness.worker.id, lambda: True).prune(harness.clock.now() + timedelta(seconds=2))
    assert await harness.rows(select(cached_results)) == []


async def test_a_cached_result_whose_artifact_was_deleted_with_its_run_is_computed_again(harness: TaskHarness) -> None:
    harness.program.task("picture", cache_ttl="90d")(lambda: b"png")
    first, second = await harness.run("picture"), await harness.run("picture")
    assert (second["outcome"], second["reason"]) == (first["outcome"], "cached")
    harness.clock.set(harness.clock.now() + timedelta(days=40))
    await Maintenance(harness.engine, harness.worker.id, lambda: True).prune(harness.clock.now())
    third = await harness.run("picture")
    assert third["reason"] is None
    content = await harness.db.read(artifacts.content, harness.org_id, third["outcome"]["artifact_id"])
    assert content.content == b"png"


# retries and timeouts


async def test_each_task_has_its_own_retry_policy(harness: TaskHarness) -> None:
    def flaky() -> None:
        raise ValueError("not today")

    harness.program.task("flaky", retry=Retry(max_retries=1, backoff_ms=60_000))(flaky)
    await harness.run("flaky")
    await harness.run_until(at("9:10"))
    assert await harness.history("flaky") == ["manual #1 failed: logic", "manual #2 failed: logic"]
    row = await harness.store(
        "flaky", retry={"max_retries": 2, "backoff_ms": 1000}
    )  # the task's own policy takes precedence over the function's
    await harness.execute(row)
    await harness.run_until(at("9:20"))
    assert len(await harness.history(row["id"])) == 3


async def test_a_transient_failure_of_a_task_is_tried_again(harness: TaskHarness) -> None:
    errors = [TransientError("the network")]

    def flaky() -> str:
        if errors:
            raise errors.pop()
        return "done"

    harness.program.task("flaky")(flaky)
    await harness.run("flaky")
    await harness.run_until(at("9:10"))
    assert await harness.history("flaky") == ["manual #1 paused: transient", "manual #2 success"]


async def test_each_task_has_its_own_timeout(harness: TaskHarness) -> None:
    harness.program.shell("nap", "sleep 60", timeout=timedelta(milliseconds=200))
    run = await harness.run("nap")
    assert (run["status"], run["reason"], run["error"]["message"]) == ("failed", "timeout", "still running after 0.2 s")


# switches


async def test_a_disabled_task_is_not_executed(harness: TaskHarness) -> None:
    task = await harness.store("echo test", task_type="shell", enabled=False)
    with pytest.raises(ValueError, match=f"Cannot execute disabled task {task['id']}"):
        await harness.manager.execute_task(task["id"])
    with pytest.raises(NotRunnable, match="Cannot execute task unknown: not found"):
        await harness.manager.execute_task("unknown")
    await harness.manager.edit(task["id"], {"enabled": True})
    assert (await harness.execute(task))["status"] == "success"


@pytest.mark.parametrize("declared", [True, False])
async def test_a_slot_of_a_disabled_task_is_skipped_and_the_next_is_planned(
    harness: TaskHarness, declared: bool
) -> None:
    await harness.declare()
    name = "failing" if declared else (await harness.store("echo hi", task_type="shell", name="row"))["name"]
    await harness.schedule(target=name)
    await harness.run_until(at("9:10"))
    await harness.manager.edit(name, {"enabled": False})
    await harness.run_until(at("9:20"))
    await harness.manager.edit(name, {"enabled": True})
    await harness.run_until(at("9:30"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: disabled", "9:30 ran"]
    assert await harness.planned() == ("9:40", "9:40")


async def test_a_failing_task_never_loops(harness: TaskHarness) -> None:
    await harness.declare()
    await harness.schedule(target="failing")
    await harness.run_until(at("9:35"))
    assert await harness.history("failing") == [f"9:{m} #1 failed: logic" for m in (10, 20, 30)]
    assert await harness.planned() == ("9:40", "9:40")


async def test_a_schedule_for_once_is_finished_after_its_failure(harness: TaskHarness) -> None:
    await harness.declare()
    await harness.schedule(cron=None, run_at=at("9:05"), target="failing")
    await harness.run_until(at("12:00"))
    assert await harness.history("failing") == ["9:05 #1 failed: logic"]
    assert (await harness.record()).condition == "finished"
    assert await harness.planned() == (None, None)


async def test_a_schedule_of_a_deleted_function_leaves_a_verdict_and_moves_on(harness: TaskHarness) -> None:
    """The function is gone but the row exists: each slot fails with a reason, and none is repeated."""
    task = await harness.store("calculate_sum", parameters={"a": 1, "b": 2}, name="gone")
    await harness.schedule(target="gone")
    task_row = await harness.manager.row(task["id"])
    await harness.db.tx(tasks_store.remove, task_row)
    await harness.run_until(at("9:20"))
    assert await harness.history("gone") == ["9:10 #1 failed: logic", "9:20 #1 failed: logic"]


# rows


async def test_tasks_are_found_by_their_switch(harness: TaskHarness) -> None:
    for number in range(60):
        await harness.manager.save(TaskIn(f"echo {number}", name=f"n{number:03}", enabled=number % 3 > 0))
    assert len(await harness.manager.find_all()) == 60  # more than a page
    assert len(await harness.manager.find_all(enabled=True)) == 40
    assert names(await harness.manager.find_all(enabled=False))[:2] == ["n000", "n003"]


async def test_saving_makes_a_task_or_writes_it_anew(harness: TaskHarness) -> None:
    known = "01K7T0000000000000000000A1"
    first = await harness.manager.save(TaskIn("calculate_sum", "python", {"a": 1, "b": 1}, id=known))
    assert (first["id"], first["version"]) == (known, "1")
    again = await harness.manager.save(TaskIn("calculate_sum", "python", {"a": 1, "b": 1}, id=known))
    assert again["version"] == "1"
    other = await harness.manager.save(TaskIn("shout", "python", id=known, enabled=False))
    assert (other["command"], other["parameters"], other["enabled"], other["version"]) == ("shout", None, False, "2")
    assert len(await harness.manager.find_all()) == 1
    unknown = await harness.manager.save(TaskIn("nobody_has_this", "python"))  # for the check of orphans to find
    assert unknown["enabled"] is True


async def test_an_id_wins_over_a_name_that_looks_like_it(harness: TaskHarness) -> None:
    first = await harness.store("echo first", task_type="shell", name="first")
    second = await harness.store("echo second", task_type="shell", name="second")
    rename = update(tables.tasks).where(tables.tasks.c.id == second["id"]).values(name=first["id"])
    await harness.db.tx(lambda tx: tx.execute(rename).rowcount)  # older rules allowed it
    assert (await harness.manager.find(first["id"]))["command"] == "echo first"
    assert (await harness.manager.row(first["id"])).command == "echo first"


async def test_what_a_program_declares_is_changed_there(harness: TaskHarness) -> None:
    await harness.declare()
    with pytest.raises(Conflict, match="is declared by a program; change it there"):
        await harness.manager.edit("shout", {"command": "failing"})
    with pytest.raises(Conflict, match="disable it, or remove it there"):
        await harness.manager.delete("shout")
    assert (await harness.manager.edit("shout", {"enabled": False}))["enabled"] is False
    await harness.declare()
    assert (await harness.manager.find("shout"))["enabled"] is False


async def test_deleting_a_task_takes_its_schedules_and_leaves_its_runs(harness: TaskHarness) -> None:
    task = await harness.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    run = await harness.execute(task)
    by_id = await harness.manager.schedule("sum", {"cron_expression": "*/10 * * * *", "name": "mine"})
    await harness.schedule("other", target="sum")
    await harness.manager.delete(task["id"])
    await harness.run_until(at("9:30"))
    assert await harness.verdicts("mine") == await harness.verdicts("other") == []
    assert by_id["task_id"] == task["id"]
    assert (await harness.artifact(run))["result"]["result"] == 2
    with pytest.raises(Invalid, match="target: 'sum' is not a known task"):
        await harness.schedule("new", target="sum")


async def test_a_renamed_task_keeps_its_schedules(harness: TaskHarness) -> None:
    await harness.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    await harness.manager.schedule("sum", {"cron_expression": "*/10 * * * *", "name": "mine"})
    await harness.manager.edit("sum", {"name": "total"})
    await harness.run_until(at("9:10"))
    assert await harness.verdicts("mine") == ["9:10 ran"]
    await harness.schedule("by-name", target="total")
    with pytest.raises(Conflict, match="is the target of a schedule by this name"):
        await harness.manager.edit("total", {"name": "sum"})


async def test_other_orgs_see_nothing_of_it(harness: TaskHarness) -> None:
    task = await harness.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    run = await harness.execute(task)
    other = await harness.add_org("other")
    with pytest.raises(NotFound):
        await harness.db.read(tasks_store.get, other, task["id"])
    with pytest.raises(NotFound):
        await harness.db.read(artifacts.get, other, run["artifact_id"])
    with pytest.raises(NotFound):
        await harness.db.read(artifacts.content, other, run["artifact_id"])
