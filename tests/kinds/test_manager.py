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
from tests.kinds.shop import Record, Shop


def calculate_sum(a: int, b: int) -> dict[str, Any]:
    return {"result": a + b, "operation": "sum"}


async def shout(text: str) -> str:
    return text.upper()


def failing(should_fail: bool = True) -> str:
    if should_fail:
        raise ValueError("This task was designed to fail")
    return "fine"


@pytest.fixture(autouse=True)
def functions(shop: Shop) -> None:
    for function in (calculate_sum, shout, failing):
        shop.program.task(function)


def names(found: list[Record]) -> list[str]:
    return [one["name"] for one in found]


# what a run leaves


async def test_a_plain_function_runs_with_its_rows_parameters(shop: Shop) -> None:
    task = await shop.store("calculate_sum", parameters={"a": 10, "b": 32})
    run = await shop.execute(task)
    assert (run["status"], run["outcome"]) == ("success", {"result": 42, "operation": "sum"})
    data = await shop.artifact(run)
    assert data["result"] == {"result": 42, "operation": "sum"}
    assert data["error"] is None
    shown = {name: data["task"][name] for name in ("id", "command", "task_type", "parameters")}
    assert shown == {
        "id": task["id"], "command": "calculate_sum", "task_type": "python", "parameters": {"a": 10, "b": 32},
    }  # fmt: skip
    assert {"created_at", "updated_at"} <= data["task"].keys()


async def test_an_async_function_runs_and_given_parameters_stand_over_the_rows(shop: Shop) -> None:
    task = await shop.store("shout", parameters={"text": "quiet"})
    assert (await shop.execute(task))["outcome"] == "QUIET"
    run = await shop.execute(task, text="loud")
    assert run["outcome"] == "LOUD"
    assert (await shop.artifact(run))["task"]["parameters"] == {"text": "loud"}


async def test_a_failed_function_is_a_failed_run_with_its_traceback(shop: Shop) -> None:
    run = await shop.execute(await shop.store("failing", parameters={"should_fail": True}))
    assert (run["status"], run["reason"]) == ("failed", "logic")
    data = await shop.artifact(run)
    assert data["result"] is None
    assert (data["error"]["type"], data["error"]["message"]) == ("ValueError", "This task was designed to fail")
    assert 'raise ValueError("This task was designed to fail")' in data["error"]["traceback"]
    assert "src/rota" not in data["error"]["traceback"]


async def test_a_command_leaves_what_it_said_and_its_exit_code(shop: Shop) -> None:
    task = await shop.store("echo out; echo err >&2; exit 3", task_type="shell")
    run = await shop.execute(task)
    assert (run["status"], run["reason"], run["error"]["message"]) == (
        "failed",
        "logic",
        "command exited with code 3: err",
    )
    data = await shop.artifact(run)
    assert (data["stdout"], data["stderr"], data["exit_code"]) == ("out\n", "err\n", 3)
    assert data["task"]["command"] == "echo out; echo err >&2; exit 3"
    assert sorted(await shop.logs(run)) == ["err", "out"]
    fine = await shop.execute(await shop.store("echo 'Hello World'", task_type="shell"))
    assert (fine["status"], (await shop.artifact(fine))["stdout"]) == ("success", "Hello World\n")


async def test_a_command_gets_its_parameters_and_only_the_environment_it_may_see(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.setenv("OPEN", "seen")
    monkeypatch.setenv("ROTA_SERVICE_TOKEN", "hidden")
    command = 'cat; echo; echo "$SECRET|$OPEN|$ROTA_SERVICE_TOKEN|$ROTA_ATTEMPT"; pwd'
    told = await shop.store(command, task_type="shell", parameters={"a": 1}, env=["OPEN", "ROTA_*"], cwd="/")
    run = await shop.execute(told, b=2)
    assert run["outcome"]["stdout"].splitlines() == ['{"a":1,"b":2}', "|seen||1", "/"]
    fixed = await shop.store("cat", task_type="shell", parameters={"a": 1}, stdin="as it is")
    assert (await shop.execute(fixed))["outcome"]["stdout"] == "as it is"


async def test_one_task_run_several_times_leaves_as_many_artifacts(shop: Shop) -> None:
    task = await shop.store("calculate_sum", parameters={"a": 1, "b": 1})
    jobs = [await shop.manager.execute_task(task["id"]) for _ in range(5)]
    await shop.work()
    found = {(await shop.last_run(job_id))["artifact_id"] for job_id in jobs}
    assert len(found) == 5


# versions


async def test_editing_or_deleting_a_task_changes_no_artifact(shop: Shop) -> None:
    task = await shop.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    first = await shop.execute(task)
    before = await shop.artifact(first)
    await shop.manager.edit("sum", {"parameters": {"a": 2, "b": 2}, "retry": {"max_retries": 1}})
    second = await shop.execute(task)
    assert await shop.artifact(first) == before
    assert (await shop.artifact(second))["task"]["parameters"] == {"a": 2, "b": 2}
    await shop.manager.edit("sum", {"command": "shout", "parameters": {"text": "x"}, "name": "other"})
    await shop.manager.delete("other")
    assert await shop.artifact(first) == before
    again = await shop.store("failing", name="sum", parameters={"should_fail": False})
    third = await shop.execute(again)
    assert await shop.artifact(first) == before
    assert (await shop.artifact(third))["task"]["command"] == "failing"


async def test_a_task_made_again_under_its_old_id_is_another_version(shop: Shop) -> None:
    known = "01K7T0000000000000000000A1"
    made = await shop.store("calculate_sum", id=known, parameters={"a": 1, "b": 1})
    assert (made["id"], made["name"]) == (known, known)
    first = await shop.execute(made)
    await shop.manager.delete(known)
    await shop.store("shout", id=known, parameters={"text": "x"})
    assert (await shop.artifact(first))["task"]["command"] == "calculate_sum"


async def test_a_run_tells_the_version_of_its_row_and_of_its_function(shop: Shop) -> None:
    shop.program.task("told", version="2.1")(calculate_sum)
    task = await shop.store("told", parameters={"a": 1, "b": 1})
    assert (await shop.execute(task))["target_version"] == "1/2.1"
    await shop.manager.edit(task["id"], {"enabled": False})
    await shop.manager.edit(task["id"], {"enabled": True})
    run = await shop.execute(task)
    assert run["target_version"] == "1/2.1"
    assert (await shop.artifact(run))["task"]["version"] == "1/2.1"
    await shop.manager.edit(task["id"], {"timeout": 5})
    assert (await shop.execute(task))["target_version"] == "2/2.1"
    declared = await shop.run("told", a=1, b=2)
    assert (declared["target_version"], (await shop.artifact(declared))["task"]["name"]) == ("2.1", "told")


# cached results


async def test_a_cached_result_is_used_again_and_that_is_told(shop: Shop) -> None:
    calls: list[int] = []

    def slow(x: int) -> int:
        calls.append(x)
        return x * 10

    shop.program.task("slow", cache_ttl="1h")(slow)
    first, second = await shop.run("slow", x=1), await shop.run("slow", x=1)
    assert (first["outcome"], first["reason"], second["outcome"], second["reason"]) == (10, None, 10, "cached")
    assert await shop.logs(second) == [f"the result of run {first['id']} was used again"]
    assert calls == [1]
    await shop.run("slow", x=2)
    assert calls == [1, 2]
    shop.clock.set(shop.clock.now() + 61 * MINUTE)
    assert (await shop.run("slow", x=1))["reason"] is None
    assert calls == [1, 2, 1]


async def test_what_is_cached_is_a_result_of_this_version_and_never_a_failure(shop: Shop) -> None:
    results = iter([0, 1, 2, 3])

    def fickle() -> int:
        found = next(results)
        if not found:
            raise ValueError("no")
        return found

    shop.program.task("fickle")(fickle)
    task = await shop.store("fickle", cache_ttl=60)
    assert [(await shop.execute(task))["outcome"] for _ in range(3)] == [None, 1, 1]
    await shop.manager.edit(task["id"], {"timeout": 5})
    assert (await shop.execute(task))["outcome"] == 2
    shop.program.registry.clear()
    shop.program.task("fickle", version="new")(fickle)  # the program came back with other code
    assert (await shop.execute(task))["outcome"] == 3


async def test_old_results_are_swept_out(shop: Shop) -> None:
    shop.program.task("quick", cache_ttl=1)(lambda: 1)
    await shop.run("quick")
    assert len(await shop.rows(select(cached_results))) == 1
    await Maintenance(shop.engine, shop.worker.id, lambda: True).prune(shop.clock.now() + timedelta(seconds=2))
    assert await shop.rows(select(cached_results)) == []


# retries and timeouts


async def test_each_task_has_its_own_retry_policy(shop: Shop) -> None:
    def flaky() -> None:
        raise ValueError("not today")

    shop.program.task("flaky", retry=Retry(max_retries=1, backoff_ms=60_000))(flaky)
    await shop.run("flaky")
    await shop.live(at("9:10"))
    assert await shop.history("flaky") == ["manual #1 failed: logic", "manual #2 failed: logic"]
    row = await shop.store("flaky", retry={"max_retries": 2, "backoff_ms": 1000})  # its own stands over the function's
    await shop.execute(row)
    await shop.live(at("9:20"))
    assert len(await shop.history(row["id"])) == 3


async def test_a_transient_failure_of_a_task_is_tried_again(shop: Shop) -> None:
    errors = [TransientError("the network")]

    def flaky() -> str:
        if errors:
            raise errors.pop()
        return "done"

    shop.program.task("flaky")(flaky)
    await shop.run("flaky")
    await shop.live(at("9:10"))
    assert await shop.history("flaky") == ["manual #1 paused: transient", "manual #2 success"]


async def test_each_task_has_its_own_timeout(shop: Shop) -> None:
    shop.program.shell("nap", "sleep 60", timeout=timedelta(milliseconds=200))
    run = await shop.run("nap")
    assert (run["status"], run["reason"], run["error"]["message"]) == ("failed", "timeout", "still running after 0.2 s")


# switches


async def test_a_disabled_task_is_not_executed(shop: Shop) -> None:
    task = await shop.store("echo test", task_type="shell", enabled=False)
    with pytest.raises(ValueError, match=f"Cannot execute disabled task {task['id']}"):
        await shop.manager.execute_task(task["id"])
    with pytest.raises(NotRunnable, match="Cannot execute task nobody: not found"):
        await shop.manager.execute_task("nobody")
    await shop.manager.edit(task["id"], {"enabled": True})
    assert (await shop.execute(task))["status"] == "success"


@pytest.mark.parametrize("declared", [True, False])
async def test_a_slot_of_a_disabled_task_is_skipped_and_the_next_is_planned(shop: Shop, declared: bool) -> None:
    await shop.declare()
    name = "failing" if declared else (await shop.store("echo hi", task_type="shell", name="row"))["name"]
    await shop.schedule(target=name)
    await shop.live(at("9:10"))
    await shop.manager.edit(name, {"enabled": False})
    await shop.live(at("9:20"))
    await shop.manager.edit(name, {"enabled": True})
    await shop.live(at("9:30"))
    assert await shop.verdicts() == ["9:10 ran", "9:20 skipped: disabled", "9:30 ran"]
    assert await shop.planned() == ("9:40", "9:40")


async def test_a_failing_task_never_loops(shop: Shop) -> None:
    await shop.declare()
    await shop.schedule(target="failing")
    await shop.live(at("9:35"))
    assert await shop.history("failing") == [f"9:{m} #1 failed: logic" for m in (10, 20, 30)]
    assert await shop.planned() == ("9:40", "9:40")


async def test_a_schedule_for_once_is_finished_after_its_failure(shop: Shop) -> None:
    await shop.declare()
    await shop.schedule(cron=None, run_at=at("9:05"), target="failing")
    await shop.live(at("12:00"))
    assert await shop.history("failing") == ["9:05 #1 failed: logic"]
    assert (await shop.record()).condition == "finished"
    assert await shop.planned() == (None, None)


async def test_a_schedule_of_a_deleted_function_leaves_a_verdict_and_moves_on(shop: Shop) -> None:
    """Whoever had the function is gone, the row stands: each slot fails with a word, none comes twice."""
    task = await shop.store("calculate_sum", parameters={"a": 1, "b": 2}, name="gone")
    await shop.schedule(target="gone")
    task_row = await shop.manager.row(task["id"])
    await shop.db.tx(tasks_store.remove, task_row)
    await shop.live(at("9:20"))
    assert await shop.history("gone") == ["9:10 #1 failed: logic", "9:20 #1 failed: logic"]


# rows


async def test_tasks_are_found_by_their_switch(shop: Shop) -> None:
    for number in range(60):
        await shop.manager.save(TaskIn(f"echo {number}", name=f"n{number:03}", enabled=number % 3 > 0))
    assert len(await shop.manager.find_all()) == 60  # more than a page
    assert len(await shop.manager.find_all(enabled=True)) == 40
    assert names(await shop.manager.find_all(enabled=False))[:2] == ["n000", "n003"]


async def test_saving_makes_a_task_or_writes_it_anew(shop: Shop) -> None:
    known = "01K7T0000000000000000000A1"
    first = await shop.manager.save(TaskIn("calculate_sum", "python", {"a": 1, "b": 1}, id=known))
    assert (first["id"], first["version"]) == (known, "1")
    again = await shop.manager.save(TaskIn("calculate_sum", "python", {"a": 1, "b": 1}, id=known))
    assert again["version"] == "1"
    other = await shop.manager.save(TaskIn("shout", "python", id=known, enabled=False))
    assert (other["command"], other["parameters"], other["enabled"], other["version"]) == ("shout", None, False, "2")
    assert len(await shop.manager.find_all()) == 1
    unknown = await shop.manager.save(TaskIn("nobody_has_this", "python"))  # for the check of orphans to find
    assert unknown["enabled"] is True


async def test_an_id_wins_over_a_name_that_looks_like_it(shop: Shop) -> None:
    first = await shop.store("echo first", task_type="shell", name="first")
    second = await shop.store("echo second", task_type="shell", name="second")
    rename = update(tables.tasks).where(tables.tasks.c.id == second["id"]).values(name=first["id"])
    await shop.db.tx(lambda tx: tx.execute(rename).rowcount)  # older rules allowed it
    assert (await shop.manager.find(first["id"]))["command"] == "echo first"
    assert (await shop.manager.row(first["id"])).command == "echo first"


async def test_what_a_program_declares_is_changed_there(shop: Shop) -> None:
    await shop.declare()
    with pytest.raises(Conflict, match="a program declares it; change it there"):
        await shop.manager.edit("shout", {"command": "failing"})
    with pytest.raises(Conflict, match="disable it instead"):
        await shop.manager.delete("shout")
    assert (await shop.manager.edit("shout", {"enabled": False}))["enabled"] is False
    await shop.declare()
    assert (await shop.manager.find("shout"))["enabled"] is False


async def test_deleting_a_task_takes_its_schedules_and_leaves_its_runs(shop: Shop) -> None:
    task = await shop.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    run = await shop.execute(task)
    by_id = await shop.manager.schedule("sum", {"cron_expression": "*/10 * * * *", "name": "mine"})
    await shop.schedule("other", target="sum")
    await shop.manager.delete(task["id"])
    await shop.live(at("9:30"))
    assert await shop.verdicts("mine") == await shop.verdicts("other") == []
    assert by_id["task_id"] == task["id"]
    assert (await shop.artifact(run))["result"]["result"] == 2
    with pytest.raises(Invalid, match="target: 'sum' is not a known task"):
        await shop.schedule("new", target="sum")


async def test_a_renamed_task_keeps_its_schedules(shop: Shop) -> None:
    await shop.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    await shop.manager.schedule("sum", {"cron_expression": "*/10 * * * *", "name": "mine"})
    await shop.manager.edit("sum", {"name": "total"})
    await shop.live(at("9:10"))
    assert await shop.verdicts("mine") == ["9:10 ran"]
    await shop.schedule("by-name", target="total")
    with pytest.raises(Conflict, match="a schedule knows it by this name"):
        await shop.manager.edit("total", {"name": "sum"})


async def test_other_orgs_see_nothing_of_it(shop: Shop) -> None:
    task = await shop.store("calculate_sum", parameters={"a": 1, "b": 1}, name="sum")
    run = await shop.execute(task)
    other = await shop.add_org("other")
    with pytest.raises(NotFound):
        await shop.db.read(tasks_store.get, other, task["id"])
    with pytest.raises(NotFound):
        await shop.db.read(artifacts.get, other, run["artifact_id"])
    with pytest.raises(NotFound):
        await shop.db.read(artifacts.content, other, run["artifact_id"])
