"""Jobs after jobs: when a dependent job runs, when it never does, and what a crash leaves."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from rota.core.errors import Conflict, Invalid, LogicError
from rota.core.ids import new_id
from rota.core.steps import NO_DUE_TIME
from rota.db.tables import job_dependencies, jobs, runs
from rota.engine import dependencies
from rota.engine import runs as run_rows
from rota.engine.jobs import release_due
from rota.engine.maintenance import Maintenance
from rota.reports import why
from tests.databases import on_postgresql
from tests.engine.harness import MINUTE, Harness


async def add(harness: Harness, target: str = "t", **options: Any) -> str:
    return (await harness.engine.enqueue(harness.org_id, "task", target, [None], **options))[0]


async def ends(harness: Harness, job_id: str) -> str | None:
    """Return how a job ended; None while it is in the queue."""
    stmt = select(runs.c.status, runs.c.reason).where(runs.c.job_id == job_id).order_by(runs.c.attempt.desc())
    row = next(iter(await harness.rows(stmt)), None)
    return None if row is None else row.status + (f": {row.reason}" if row.reason else "")


@pytest.mark.parametrize(
    ("when", "error", "expected"),
    [
        ("success", None, "success"),
        ("success", LogicError("wrong"), "skipped: dependency"),
        ("failure", None, "skipped: dependency"),
        ("failure", LogicError("wrong"), "success"),
        ("any", None, "success"),
        ("any", LogicError("wrong"), "success"),
    ],
)
@pytest.mark.parametrize("enqueued", ["before", "after its end"])
async def test_a_job_runs_after_others_as_its_condition_says(
    harness: Harness, when: str, error: Exception | None, expected: str, enqueued: str
) -> None:
    harness.fake_runner.errors = [error]
    first = await add(harness)
    if enqueued != "before":
        await harness.run_due()
    last = await add(harness, "last", after=[first], when=when)
    await harness.run_until(harness.clock.now() + MINUTE)
    assert await ends(harness, last) == expected
    (row,) = await harness.rows(select(job_dependencies))  # kept with the run, for the drawing of its page
    assert (row.job_id, row.depends_on) == (last, first)
    assert row.status == ("success" if error is None else "failed")
    assert await harness.queue() == []
    assert await harness.db.tx(dependencies.wake_dependents, [first], harness.clock.now()) == 0
    await harness.db.tx(run_rows.delete_runs, await harness.db.read(run_rows.of_job, harness.org_id, last))
    assert await harness.rows(select(job_dependencies)) == []


@on_postgresql
async def test_a_process_does_not_wait_for_one_that_decides_about_the_same_job(harness: Harness) -> None:
    """Else it would have the job locked when the other has made it ready, and claims skip locked jobs."""
    first = await add(harness)
    last = await add(harness, "last", after=[first], when="any")
    await harness.db.tx(lambda tx: tx.execute(delete(jobs).where(jobs.c.id == first)).rowcount)
    now = harness.clock.now()
    await harness.db.tx(dependencies.wake_dependents, [first], now)
    deciding = await harness.db.begin()
    assert await deciding.run(release_due, now) == 1
    async with asyncio.timeout(20):
        assert await harness.db.tx(release_due, now) == 0
    await deciding.commit()
    (job,) = await harness.queue()
    assert (job.id, job.state) == (last, "ready")


async def test_a_job_waits_for_all_and_does_nothing_meanwhile(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.target == "slow"
    slow, quick = await add(harness, "slow"), await add(harness)
    last = await add(harness, "last", after=[slow, quick, slow])
    await harness.run_until(harness.clock.now() + MINUTE)
    (waiting,) = [row for row in await harness.queue() if row.id == last]
    assert (waiting.state, waiting.run_at) == ("later", NO_DUE_TIME)
    answer = await harness.db.read(why.of_run, harness.org_id, last, harness.clock.now())
    assert answer["sentences"][-2:] == ["It waits until other jobs have ended.", f"These are 1: {slow}."] or (
        "It waits until other jobs have ended." in answer["sentences"]
    )
    await harness.release()
    await harness.run_due()
    assert await ends(harness, last) == "success"


async def test_a_retried_job_has_not_ended(harness: Harness) -> None:
    harness.fake_runner.errors = [ConnectionError("net")]
    first = await add(harness)
    last = await add(harness, "last", after=[first])
    await harness.run_due()
    assert await ends(harness, last) is None
    await harness.run_until(harness.clock.now() + MINUTE)
    assert (await ends(harness, first), await ends(harness, last)) == ("success", "success")


async def test_a_canceled_job_has_not_succeeded(harness: Harness) -> None:
    first = await add(harness, run_at=harness.clock.now() + MINUTE)
    good, bad = await add(harness, "good", after=[first], when="any"), await add(harness, "bad", after=[first])
    await harness.engine.cancel(harness.org_id, first)
    await harness.run_due()
    assert (await ends(harness, good), await ends(harness, bad)) == ("success", "skipped: dependency")


async def test_what_a_canceled_job_waited_for_is_deleted_with_its_run(harness: Harness) -> None:
    first = await add(harness, run_at=harness.clock.now() + MINUTE)
    canceled, waiting = await add(harness, after=[first]), await add(harness, after=[first])
    await harness.engine.cancel(harness.org_id, canceled)
    await harness.db.tx(run_rows.delete_runs, await harness.db.read(run_rows.of_job, harness.org_id, canceled))
    assert [row.job_id for row in await harness.rows(select(job_dependencies))] == [waiting]


async def test_unknown_ids_and_wrong_combinations_are_refused_and_nothing_is_stored(harness: Harness) -> None:
    first, other_org = await add(harness), await harness.add_org("other")
    before = len(await harness.queue())
    for options, field in (
        ({"after": [first, new_id()]}, r"after\[1\]"),
        ({"after": ["x"]}, r"after\[0\]"),
        ({"after": [first], "when": "sometimes"}, "when"),
        ({"after": [first], "run_at": harness.clock.now() + MINUTE}, "run_at"),
    ):
        with pytest.raises(Invalid, match=field):
            await add(harness, "last", **options)
    with pytest.raises(Invalid, match="is not a job"):
        await harness.engine.enqueue(other_org, "task", "t", [None], after=[first])
    assert len(await harness.queue()) == before
    assert await harness.rows(select(jobs.c.id).where(jobs.c.followed)) == []


async def test_maintenance_delivers_an_end_that_a_crash_kept(harness: Harness) -> None:
    first = await add(harness)
    last = await add(harness, "last", after=[first])
    await harness.write(update(jobs).where(jobs.c.id == first).values(followed=False))  # as if nobody had been told
    await harness.run_due()
    assert await ends(harness, last) is None
    assert await harness.db.read(dependencies.undelivered) == [first]
    await Maintenance(harness.engine).reconcile()
    await harness.run_due()
    assert await ends(harness, last) == "success"


async def test_a_batch_has_one_last_job(harness: Harness) -> None:
    harness.fake_runner.errors = [None, LogicError("wrong")]
    batch = ("nightly", "task", "member", [1, 2, 3], "report", {"day": "today"})
    ids, last = await harness.engine.enqueue_batch(harness.org_id, *batch)
    with pytest.raises(Conflict, match="batch:nightly"):
        await harness.engine.enqueue_batch(harness.org_id, *batch)
    assert len(await harness.queue()) == 4
    await harness.run_until(harness.clock.now() + MINUTE)
    assert [job.target for job in harness.fake_runner.began] == ["member", "member", "member", "report"]
    assert (len(ids), await ends(harness, last)) == (3, "success")
    await harness.engine.enqueue_batch(harness.org_id, *batch)
