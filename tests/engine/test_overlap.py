"""What becomes of slots that come while the schedule still has a job."""

from typing import Any

import pytest
from sqlalchemy import select

from rota.core.errors import AuthError, Conflict
from rota.db.tables import runs
from tests.engine.harness import House, at

# the run of 9:10 lasts until 9:45, three periods long; the others are short
LONG_RUN = [
    ("queue_one", ["9:20 coalesced > 9:30", "9:30 coalesced > 9:40", "9:40 (blocked)"], ["9:10", "9:40"]),
    ("queue_all", ["9:20 (blocked)", "9:30 (blocked)", "9:40 (blocked)"], ["9:10", "9:20", "9:30", "9:40"]),
    ("skip", ["9:20 skipped: overlap", "9:30 skipped: overlap", "9:40 skipped: overlap"], ["9:10"]),
    ("allow", ["9:20 ran", "9:30 ran", "9:40 ran"], ["9:10", "9:20", "9:30", "9:40"]),
]


@pytest.mark.parametrize(("overlap", "meanwhile", "ran"), LONG_RUN)
async def test_a_run_three_periods_long(house: House, overlap: str, meanwhile: list[str], ran: list[str]) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap=overlap)
    await house.live(at("9:45"))
    assert await house.verdicts() == ["9:10 (running)", *meanwhile]
    assert await house.planned() == ("9:50", "9:50")
    await house.release()
    assert await house.fired_slots() == ran
    await house.live(at("9:50"))
    assert (await house.verdicts())[-1] == "9:50 ran"


async def test_replace_cancels_the_run_and_takes_its_place(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="replace")
    await house.live(at("9:25"))
    assert await house.verdicts() == ["9:10 ran", "9:20 ran"]
    assert await house.history() == ["9:10 #1 canceled: replaced", "9:20 #1 success"]


async def test_replace_waits_until_the_replaced_run_is_gone(house: House) -> None:
    house.hands.long, house.hands.stubborn = lambda job: job.slot == at("9:10"), True
    await house.schedule(overlap="replace")
    await house.live(at("9:45"))
    assert await house.verdicts() == [
        "9:10 (running)", "9:20 coalesced > 9:30", "9:30 coalesced > 9:40", "9:40 (blocked)",
    ]  # fmt: skip
    await house.release()
    assert await house.fired_slots() == ["9:10", "9:40"]
    assert (await house.history())[-2:] == ["9:10 #1 success", "9:40 #1 success"]  # what the work returned wins


async def test_a_slot_skipped_for_overlap_is_counted_but_uses_up_no_run(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="skip", max_runs=3)
    await house.live(at("9:45"))
    stats = await house.stats()
    assert (stats.fired, stats.skipped_count) == (1, 3)
    assert house.engine.meter.fired == 1
    await house.release()
    await house.live(at("11:00"))
    assert await house.fired_slots() == ["9:10", "9:50", "10:00"]
    assert (await house.record()).condition == "finished"


async def test_the_last_run_that_max_runs_allows_is_not_used_up_by_a_skipped_slot(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="skip", max_runs=2)
    await house.live(at("9:25"))
    assert await house.planned() == ("9:30", "9:30")
    await house.release()
    await house.live(at("10:00"))
    assert await house.fired_slots() == ["9:10", "9:30"]


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "queue_all", "replace"])
async def test_a_parked_job_counts_as_a_job_of_the_schedule(house: House, overlap: str) -> None:
    house.hands.errors = [AuthError("no key")]
    await house.schedule(overlap=overlap)
    await house.live(at("9:25"))
    second = {
        "skip": "9:20 skipped: overlap", "queue_one": "9:20 (blocked)", "queue_all": "9:20 (blocked)",
        "replace": "9:20 ran",
    }[overlap]  # fmt: skip
    assert await house.verdicts() == ["9:10 (parked)" if overlap != "replace" else "9:10 ran", second]


# run now


async def test_run_now_starts_at_once_and_moves_no_slot(house: House) -> None:
    await house.schedule()
    await house.live(at("9:05"))
    job = await house.run_now()
    await house.work()
    assert await house.history() == ["manual #1 success"]
    assert house.hands.began[0].id == job
    assert await house.planned() == ("9:10", "9:10")
    assert await house.verdicts() == []


@pytest.mark.parametrize("overlap", ["queue_one", "replace"])
async def test_run_now_joins_the_waiting_job(house: House, overlap: str) -> None:
    house.hands.long, house.hands.stubborn = lambda job: job.slot == at("9:10"), True
    await house.schedule(overlap=overlap)
    await house.live(at("9:25"))
    (waiting,) = [row.id for row in await house.queue() if row.state == "blocked"]
    assert await house.run_now() == waiting
    await house.release()
    assert await house.fired_slots() == ["9:10", "9:20"]


async def test_run_now_waits_behind_the_running_job(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="queue_one")
    await house.live(at("9:15"))
    first, second = await house.run_now(), await house.run_now()
    assert first == second
    await house.work()
    assert len(house.hands.began) == 1
    await house.release()
    assert [job.trigger for job in house.hands.began] == ["schedule:*/10 * * * *", "manual"]


async def test_run_now_is_refused_while_busy_under_skip(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="skip")
    await house.live(at("9:15"))
    with pytest.raises(Conflict):
        await house.run_now()
    assert await house.run_now(overlap="allow")
    await house.work()
    assert len(house.hands.began) == 2


async def test_run_now_under_allow_and_queue_all_makes_a_job_each_time(house: House) -> None:
    house.hands.long = lambda job: True
    await house.schedule("free", overlap="allow")
    await house.schedule("queued", overlap="queue_all")
    for name in ("free", "queued"):
        for _ in range(3):
            await house.run_now(name)
    await house.work()
    assert [job.target for job in house.hands.began] == ["free", "free", "free", "queued"]
    while house.hands.gates:
        await house.release()
    assert [job.target for job in house.hands.began][4:] == ["queued", "queued"]


async def test_run_now_under_replace_stops_what_runs(house: House) -> None:
    house.hands.long = lambda job: job.slot is not None
    await house.schedule(overlap="replace")
    await house.live(at("9:15"))
    await house.run_now()
    await house.work()
    assert await house.history() == ["9:10 #1 canceled: replaced", "manual #1 success"]


async def test_a_newer_slot_takes_the_place_of_a_waiting_run_now(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="queue_one")
    await house.live(at("9:15"))
    await house.run_now()
    await house.live(at("9:20"))
    await house.release()
    assert sorted(await house.history()) == ["9:10 #1 success", "9:20 #1 success", "manual #1 coalesced"]


async def test_run_now_takes_an_input_of_its_own(house: House) -> None:
    await house.schedule(input={"n": 1})
    await house.run_now(input={"n": 2})
    await house.work()
    await house.live(at("9:10"))
    assert [job.payload for job in house.hands.began] == [{"n": 2}, {"n": 1}]


async def test_a_retried_run_now_still_waits_for_the_schedules_other_jobs(house: House) -> None:
    await house.schedule(overlap="queue_all")
    await house.run_now()
    await house.work()
    (run,) = await house.rows(runs_of("job"))
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.live(at("9:10"))
    await house.engine.retry(house.org_id, run.id)
    await house.work()
    assert [row.state for row in await house.queue()] == ["running", "blocked"]
    await house.release()
    assert (await house.history())[-1] == "retry #2 success"


def runs_of(name: str) -> Any:
    return select(runs).where(runs.c.target == name).order_by(runs.c.id)


@pytest.mark.parametrize("overlap", ["queue_one", "replace"])
async def test_run_now_with_another_input_than_the_waiting_job_is_refused(house: House, overlap: str) -> None:
    house.hands.long, house.hands.stubborn = lambda job: job.slot == at("9:10"), True
    await house.schedule(overlap=overlap)
    await house.live(at("9:25"))
    (waiting,) = [row.id for row in await house.queue() if row.state == "blocked"]
    with pytest.raises(Conflict, match=f"job {waiting} waits with another input"):
        await house.run_now(input={"day": "monday"})
    assert await house.run_now(input={"day": "monday"}, overlap="queue_all") != waiting


async def test_no_slot_takes_the_place_of_a_waiting_job_with_an_input_of_its_own(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="queue_one")
    await house.live(at("9:15"))
    job_id = await house.run_now(input={"day": "monday"})
    assert await house.run_now(input={"day": "monday"}) == job_id
    with pytest.raises(Conflict, match=f"job {job_id} waits with another input"):
        await house.run_now()
    await house.live(at("9:35"))
    await house.release()
    ran = [(job.trigger, job.slot, job.payload) for job in house.hands.began]
    assert ran[1:] == [("manual", None, {"day": "monday"}), ("schedule:*/10 * * * *", at("9:30"), None)]
