"""Tasks whose function is gone are switched off with one warning, and on again only by a person."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from rota import TaskIn
from rota.core.errors import Invalid, NotRunnable
from rota.db.dialect import Tx
from rota.engine import jobs, workers
from tests.engine.harness import at
from tests.kinds.tasks.harness import TaskHarness


def known() -> str:
    return "here"


@pytest.fixture(autouse=True)
def function(harness: TaskHarness) -> None:
    harness.program.task(known)


async def enabled(harness: TaskHarness) -> dict[str, bool]:
    return {task["command"]: task["enabled"] for task in await harness.manager.find_all()}


async def test_tasks_whose_function_is_gone_are_disabled_with_one_warning(harness: TaskHarness) -> None:
    gone = [await harness.manager.save(TaskIn(name, "python")) for name in ("gone", "lost")]
    await harness.manager.save(TaskIn("off", "python", enabled=False))
    await harness.manager.save(TaskIn("known", "python"))
    await harness.manager.save(TaskIn("echo known", "shell"))
    with capture_logs() as logs:
        assert await harness.manager.disable_orphans() == 2
        assert await harness.manager.disable_orphans() == 0
    assert logs == [
        {
            "event": "disabled tasks whose function is gone",
            "log_level": "warning",
            "count": 2,
            "task_ids": [task["id"] for task in gone],
            "commands": ["gone", "lost"],
        }
    ]
    assert await enabled(harness) == {
        "gone": False,
        "lost": False,
        "off": False,
        "known": True,
        "echo known": True,
    }
    with pytest.raises(NotRunnable, match="Cannot execute disabled task"):
        await harness.manager.execute_task(gone[0]["id"])


async def test_an_orphan_is_not_executed_before_anybody_looked(harness: TaskHarness) -> None:
    task = await harness.manager.save(TaskIn("gone", "python"))
    with pytest.raises(NotRunnable, match=f"Cannot execute task {task['id']}: no running program has its function"):
        await harness.manager.execute_task(task["id"])


async def test_only_a_person_switches_it_on_again(harness: TaskHarness) -> None:
    task = await harness.manager.save(TaskIn("returning", "python"))
    await harness.manager.disable_orphans()
    with pytest.raises(Invalid, match="command: 'returning' is not a function of a running program"):
        await harness.manager.edit(task["id"], {"enabled": True})
    harness.program.task("returning")(known)
    await harness.declare()
    assert await harness.manager.disable_orphans() == 0
    assert (await harness.manager.find(task["id"]))["enabled"] is False
    await harness.manager.edit(task["id"], {"enabled": True})
    assert (await harness.execute(task))["outcome"] == "here"


async def test_functions_of_other_programs_are_spared(harness: TaskHarness) -> None:
    """Another program may just be starting: what it declared is not presumed gone."""
    await harness.declare("reports")
    await harness.manager.save(TaskIn("known", "python"))
    harness.program.registry.clear()
    assert await harness.manager.disable_orphans("billing") == 0
    assert await harness.manager.disable_orphans("reports") == 2


async def test_functions_of_living_workers_are_spared_and_can_be_executed(harness: TaskHarness) -> None:
    def step(tx: Tx, lease: timedelta) -> None:
        workers.register(
            tx,
            worker="01WORKER000000000000000000",
            pid=1,
            version="1",
            concurrency=1,
            kinds=["task"],
            routes=["row:default:elsewhere"],
            queues=None,
            lease=lease,
            now=harness.clock.now(),
        )

    await harness.db.tx(step, timedelta(seconds=30))
    task = await harness.store("elsewhere")
    assert await harness.manager.disable_orphans() == 0
    await harness.manager.execute_task(task["id"])
    (job,) = await harness.queue()
    assert (job.route, job.state) == (
        "row:default:elsewhere",
        "ready",
    )  # this worker does not have it, and leaves it alone
    await harness.work()
    assert len(await harness.queue()) == 1
    harness.clock.set(harness.clock.now() + timedelta(minutes=5))
    assert await harness.manager.disable_orphans() == 1


async def orphaned(harness: TaskHarness) -> str:
    """A declared task with a schedule, whose function has left the program."""
    harness.program.task("leaving")(known)
    await harness.declare("reports")
    await harness.schedule("nightly", target="leaving")
    harness.program.registry.clear()
    assert await harness.manager.disable_orphans("reports") >= 1
    return "leaving"


async def test_slots_of_an_orphaned_task_are_skipped_as_disabled(harness: TaskHarness) -> None:
    await orphaned(harness)
    await harness.run_until(at("9:25"))
    assert await harness.verdicts("nightly") == ["9:10 skipped: disabled", "9:20 skipped: disabled"]
    assert (await harness.stats("nightly")).skipped_count == 2


async def test_jobs_that_waited_before_their_task_was_orphaned_are_skipped_too(harness: TaskHarness) -> None:
    await harness.declare("reports")
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", "known", [None])
    await harness.db.tx(jobs.park_unroutable, ["shell"], harness.clock.now() + timedelta(seconds=1))
    harness.program.registry.clear()
    await harness.manager.disable_orphans("reports")
    await harness.work()
    run = await harness.last_run(job_id)
    assert (run["status"], run["reason"]) == ("skipped", "disabled")


async def test_an_orphaned_task_that_is_back_and_enabled_runs_again(harness: TaskHarness) -> None:
    name = await orphaned(harness)
    harness.program.task("leaving")(known)
    await harness.declare("reports")
    await harness.manager.edit(name, {"enabled": True})
    await harness.run_until(at("9:15"))
    assert await harness.verdicts("nightly") == ["9:10 ran"]
