"""What becomes of slots that come while the schedule still has a job."""

from typing import Any

import pytest
from sqlalchemy import select

from rota.core.errors import AuthError, Conflict
from rota.db.tables import runs
from rota.engine.instruments import FIRES
from tests.engine.harness import Harness, at

# the run of 9:10 lasts until 9:45, three periods long; the others are short
LONG_RUN = [
    ("queue_one", ["9:20 coalesced > 9:30", "9:30 coalesced > 9:40", "9:40 (blocked)"], ["9:10", "9:40"]),
    ("queue_all", ["9:20 (blocked)", "9:30 (blocked)", "9:40 (blocked)"], ["9:10", "9:20", "9:30", "9:40"]),
    ("skip", ["9:20 skipped: overlap", "9:30 skipped: overlap", "9:40 skipped: overlap"], ["9:10"]),
    ("allow", ["9:20 ran", "9:30 ran", "9:40 ran"], ["9:10", "9:20", "9:30", "9:40"]),
]


@pytest.mark.parametrize(("overlap", "while_running", "ran"), LONG_RUN)
async def test_a_run_three_periods_long(
    harness: Harness, overlap: str, while_running: list[str], ran: list[str]
) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap=overlap)
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == ["9:10 (running)", *while_running]
    assert await harness.planned() == ("9:50", "9:50")
    await harness.release()
    assert await harness.fired_slots() == ran
    await harness.run_until(at("9:50"))
    assert (await harness.verdicts())[-1] == "9:50 ran"


async def test_replace_cancels_the_run_and_takes_its_place(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="replace")
    await harness.run_until(at("9:25"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]
    assert await harness.history() == ["9:10 #1 canceled: replaced", "9:20 #1 success"]


async def test_replace_waits_until_the_replaced_run_is_gone(harness: Harness) -> None:
    harness.fake_runner.long, harness.fake_runner.stubborn = lambda job: job.slot == at("9:10"), True
    await harness.schedule(overlap="replace")
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == [
        "9:10 (running)",
        "9:20 coalesced > 9:30",
        "9:30 coalesced > 9:40",
        "9:40 (blocked)",
    ]
    await harness.release()
    assert await harness.fired_slots() == ["9:10", "9:40"]
    assert (await harness.history())[-2:] == ["9:10 #1 success", "9:40 #1 success"]  # what the work returned wins


async def test_a_slot_skipped_for_overlap_is_counted_but_uses_up_no_run(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="skip", max_runs=3)
    await harness.run_until(at("9:45"))
    stats = await harness.stats()
    assert (stats.fired, stats.skipped_count) == (1, 3)
    assert harness.engine.metrics.total(FIRES) == 1
    await harness.release()
    await harness.run_until(at("11:00"))
    assert await harness.fired_slots() == ["9:10", "9:50", "10:00"]
    assert (await harness.record()).condition == "finished"


async def test_the_last_run_that_max_runs_allows_is_not_used_up_by_a_skipped_slot(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="skip", max_runs=2)
    await harness.run_until(at("9:25"))
    assert await harness.planned() == ("9:30", "9:30")
    await harness.release()
    await harness.run_until(at("10:00"))
    assert await harness.fired_slots() == ["9:10", "9:30"]


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "queue_all", "replace"])
async def test_a_parked_job_counts_as_a_job_of_the_schedule(harness: Harness, overlap: str) -> None:
    harness.fake_runner.errors = [AuthError("no key")]
    await harness.schedule(overlap=overlap)
    await harness.run_until(at("9:25"))
    second = {
        "skip": "9:20 skipped: overlap",
        "queue_one": "9:20 (blocked)",
        "queue_all": "9:20 (blocked)",
        "replace": "9:20 ran",
    }[overlap]
    assert await harness.verdicts() == ["9:10 (parked)" if overlap != "replace" else "9:10 ran", second]


# run now


async def test_run_now_starts_at_once_and_moves_no_slot(harness: Harness) -> None:
    await harness.schedule()
    await harness.run_until(at("9:05"))
    job = await harness.run_now()
    await harness.work()
    assert await harness.history() == ["manual #1 success"]
    assert harness.fake_runner.began[0].id == job
    assert await harness.planned() == ("9:10", "9:10")
    assert await harness.verdicts() == []


@pytest.mark.parametrize("overlap", ["queue_one", "replace"])
async def test_run_now_joins_the_waiting_job(harness: Harness, overlap: str) -> None:
    harness.fake_runner.long, harness.fake_runner.stubborn = lambda job: job.slot == at("9:10"), True
    await harness.schedule(overlap=overlap)
    await harness.run_until(at("9:25"))
    (waiting,) = [row.id for row in await harness.queue() if row.state == "blocked"]
    assert await harness.run_now() == waiting
    await harness.release()
    assert await harness.fired_slots() == ["9:10", "9:20"]


async def test_run_now_waits_behind_the_running_job(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_one")
    await harness.run_until(at("9:15"))
    first, second = await harness.run_now(), await harness.run_now()
    assert first == second
    await harness.work()
    assert len(harness.fake_runner.began) == 1
    await harness.release()
    assert [job.trigger for job in harness.fake_runner.began] == ["schedule:*/10 * * * *", "manual"]


async def test_run_now_is_refused_while_busy_under_skip(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="skip")
    await harness.run_until(at("9:15"))
    with pytest.raises(Conflict):
        await harness.run_now()
    assert await harness.run_now(overlap="allow")
    await harness.work()
    assert len(harness.fake_runner.began) == 2


async def test_run_now_under_allow_and_queue_all_makes_a_job_each_time(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    await harness.schedule("free", overlap="allow")
    await harness.schedule("queued", overlap="queue_all")
    for name in ("free", "queued"):
        for _ in range(3):
            await harness.run_now(name)
    await harness.work()
    assert [job.target for job in harness.fake_runner.began] == ["free", "free", "free", "queued"]
    while harness.fake_runner.gates:
        await harness.release()
    assert [job.target for job in harness.fake_runner.began][4:] == ["queued", "queued"]


async def test_run_now_under_replace_stops_what_runs(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot is not None
    await harness.schedule(overlap="replace")
    await harness.run_until(at("9:15"))
    await harness.run_now()
    await harness.work()
    assert await harness.history() == ["9:10 #1 canceled: replaced", "manual #1 success"]


async def test_a_newer_slot_takes_the_place_of_a_waiting_run_now(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_one")
    await harness.run_until(at("9:15"))
    await harness.run_now()
    await harness.run_until(at("9:20"))
    await harness.release()
    assert sorted(await harness.history()) == ["9:10 #1 success", "9:20 #1 success", "manual #1 coalesced"]


async def test_run_now_accepts_its_own_input(harness: Harness) -> None:
    await harness.schedule(input={"n": 1})
    await harness.run_now(input={"n": 2})
    await harness.work()
    await harness.run_until(at("9:10"))
    assert [job.payload for job in harness.fake_runner.began] == [{"n": 2}, {"n": 1}]


async def test_a_retried_run_now_still_waits_for_the_schedules_other_jobs(harness: Harness) -> None:
    await harness.schedule(overlap="queue_all")
    await harness.run_now()
    await harness.work()
    (run,) = await harness.rows(runs_of("job"))
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.run_until(at("9:10"))
    await harness.engine.retry(harness.org_id, run.id)
    await harness.work()
    assert [row.state for row in await harness.queue()] == ["running", "blocked"]
    await harness.release()
    assert (await harness.history())[-1] == "retry #2 success"


def runs_of(name: str) -> Any:
    return select(runs).where(runs.c.target == name).order_by(runs.c.id)


@pytest.mark.parametrize("overlap", ["queue_one", "replace"])
async def test_run_now_with_another_input_than_the_waiting_job_is_refused(harness: Harness, overlap: str) -> None:
    harness.fake_runner.long, harness.fake_runner.stubborn = lambda job: job.slot == at("9:10"), True
    await harness.schedule(overlap=overlap)
    await harness.run_until(at("9:25"))
    (waiting,) = [row.id for row in await harness.queue() if row.state == "blocked"]
    with pytest.raises(Conflict, match=f"job {waiting} waits with another input"):
        await harness.run_now(input={"day": "monday"})
    assert await harness.run_now(input={"day": "monday"}, overlap="queue_all") != waiting


async def test_no_slot_replaces_a_waiting_job_with_its_own_input(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_one")
    await harness.run_until(at("9:15"))
    job_id = await harness.run_now(input={"day": "monday"})
    assert await harness.run_now(input={"day": "monday"}) == job_id
    with pytest.raises(Conflict, match=f"job {job_id} waits with another input"):
        await harness.run_now()
    await harness.run_until(at("9:35"))
    await harness.release()
    ran = [(job.trigger, job.slot, job.payload) for job in harness.fake_runner.began]
    assert ran[1:] == [("manual", None, {"day": "monday"}), ("schedule:*/10 * * * *", at("9:30"), None)]
