"""Tasks whose function is gone are switched off with one warning, and on again only by a person."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from rota import TaskIn
from rota.core.errors import Invalid, NotRunnable
from rota.db.dialect import Tx
from rota.engine import jobs, workers
from tests.engine.harness import at
from tests.kinds.shop import Shop


def known() -> str:
    return "here"


@pytest.fixture(autouse=True)
def function(shop: Shop) -> None:
    shop.program.task(known)


async def enabled(shop: Shop) -> dict[str, bool]:
    return {one["command"]: one["enabled"] for one in await shop.manager.find_all()}


async def test_tasks_whose_function_is_gone_are_disabled_with_one_warning(shop: Shop) -> None:
    gone = [await shop.manager.save(TaskIn(name, "python")) for name in ("gone", "lost")]
    await shop.manager.save(TaskIn("off", "python", enabled=False))
    await shop.manager.save(TaskIn("known", "python"))
    await shop.manager.save(TaskIn("echo known", "shell"))
    with capture_logs() as told:
        assert await shop.manager.disable_orphans() == 2
        assert await shop.manager.disable_orphans() == 0
    assert told == [
        {
            "event": "disabled tasks whose function is gone", "log_level": "warning", "count": 2,
            "task_ids": [one["id"] for one in gone], "commands": ["gone", "lost"],
        }
    ]  # fmt: skip
    assert await enabled(shop) == {
        "gone": False, "lost": False, "off": False, "known": True, "echo known": True,
    }  # fmt: skip
    with pytest.raises(NotRunnable, match="Cannot execute disabled task"):
        await shop.manager.execute_task(gone[0]["id"])


async def test_an_orphan_is_not_executed_before_anybody_looked(shop: Shop) -> None:
    task = await shop.manager.save(TaskIn("gone", "python"))
    with pytest.raises(NotRunnable, match=f"Cannot execute task {task['id']}: no program that is up has its function"):
        await shop.manager.execute_task(task["id"])


async def test_only_a_person_switches_it_on_again(shop: Shop) -> None:
    task = await shop.manager.save(TaskIn("returning", "python"))
    await shop.manager.disable_orphans()
    with pytest.raises(Invalid, match="command: 'returning' is no function that a running program has"):
        await shop.manager.edit(task["id"], {"enabled": True})
    shop.program.task("returning")(known)
    await shop.declare()
    assert await shop.manager.disable_orphans() == 0
    assert (await shop.manager.find(task["id"]))["enabled"] is False
    await shop.manager.edit(task["id"], {"enabled": True})
    assert (await shop.execute(task))["outcome"] == "here"


async def test_functions_of_other_programs_are_spared(shop: Shop) -> None:
    """Another program may just be starting: what it declared is not presumed gone."""
    await shop.declare("reports")
    await shop.manager.save(TaskIn("known", "python"))
    shop.program.registry.clear()
    assert await shop.manager.disable_orphans("billing") == 0
    assert await shop.manager.disable_orphans("reports") == 2


async def test_functions_of_living_workers_are_spared_and_can_be_executed(shop: Shop) -> None:
    def step(tx: Tx, lease: timedelta) -> None:
        workers.register(
            tx, worker="01WORKER000000000000000000", pid=1, version="1", concurrency=1, kinds=["task"],
            routes=["row:default:elsewhere"], queues=None, lease=lease, now=shop.clock.now(),
        )  # fmt: skip

    await shop.db.tx(step, timedelta(seconds=30))
    task = await shop.store("elsewhere")
    assert await shop.manager.disable_orphans() == 0
    await shop.manager.execute_task(task["id"])
    (job,) = await shop.queue()
    assert (job.route, job.state) == (
        "row:default:elsewhere",
        "ready",
    )  # this worker does not have it, and leaves it alone
    await shop.work()
    assert len(await shop.queue()) == 1
    shop.clock.set(shop.clock.now() + timedelta(minutes=5))
    assert await shop.manager.disable_orphans() == 1


async def orphaned(shop: Shop) -> str:
    """A declared task with a schedule, whose function has left the program."""
    shop.program.task("leaving")(known)
    await shop.declare("reports")
    await shop.schedule("nightly", target="leaving")
    shop.program.registry.clear()
    assert await shop.manager.disable_orphans("reports") >= 1
    return "leaving"


async def test_slots_of_an_orphaned_task_are_skipped_as_disabled(shop: Shop) -> None:
    await orphaned(shop)
    await shop.live(at("9:25"))
    assert await shop.verdicts("nightly") == ["9:10 skipped: disabled", "9:20 skipped: disabled"]
    assert (await shop.stats("nightly")).skipped_count == 2


async def test_jobs_that_waited_before_their_task_was_orphaned_are_skipped_too(shop: Shop) -> None:
    await shop.declare("reports")
    (job_id,) = await shop.engine.enqueue(shop.org_id, "task", "known", [None])
    await shop.db.tx(jobs.park_unroutable, ["shell"], shop.clock.now() + timedelta(seconds=1))
    shop.program.registry.clear()
    await shop.manager.disable_orphans("reports")
    await shop.work()
    run = await shop.last_run(job_id)
    assert (run["status"], run["reason"]) == ("skipped", "disabled")


async def test_an_orphaned_task_that_is_back_and_enabled_runs_again(shop: Shop) -> None:
    name = await orphaned(shop)
    shop.program.task("leaving")(known)
    await shop.declare("reports")
    await shop.manager.edit(name, {"enabled": True})
    await shop.live(at("9:15"))
    assert await shop.verdicts("nightly") == ["9:10 ran"]
