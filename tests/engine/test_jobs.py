"""The queue's contract, the same on both databases: keys, order, leases, moves."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy import select, update

from rota.core.errors import Conflict, DataRefused
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job, NewJob
from rota.core.states import HEADS, MOVES, Move, State, Status, states_before
from rota.core.steps import StepStatus, StepType, Suspension, WaitingData
from rota.db.connection import Database
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.tables import jobs, runs
from rota.engine import claiming, finishing, serial_keys, steps, versions
from rota.engine import jobs as queue
from rota.engine import runs as ledger_rows
from rota.engine.records import StepRow

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def new(key: str | None = None, **how: Any) -> NewJob:
    fields = {"org_id": "org", "kind": "task", "target": "t", "payload": None, "run_at": NOW, "trigger": "manual"}
    return NewJob(**{**fields, "job_key": key, "route": "task", **how})


async def add(db: Database, *some: NewJob, key_mode: str = "reject", now: datetime = NOW) -> list[str]:
    return await db.tx(queue.enqueue, some, now, key_mode)


async def claim(db: Database, worker: str = "w", room: int = 100, turn: int = 0) -> list[Job]:
    def step(tx: Tx) -> list[Job]:
        return claiming.claim(tx, claiming.lanes(tx), worker=worker, routes=["task"], room=room, turn=turn)

    return await db.tx(step)


async def rows(db: Database) -> list[Any]:
    return await db.read(lambda tx: list(tx.execute(select(jobs).order_by(jobs.c.id))))


async def ledger(db: Database) -> list[Any]:
    return await db.read(lambda tx: list(tx.execute(select(runs).order_by(runs.c.attempt, runs.c.id))))


async def state_of(db: Database, job_id: str) -> str | None:
    return {row.id: row.state for row in await rows(db)}.get(job_id)


def end(job: Job, status: Status = Status.SUCCESS, **how: Any) -> AttemptResult:
    return AttemptResult(job, status, None, NOW, new_id(), job.attempt + 1, NOW, **how)


async def bring(db: Database, job: NewJob, state: State) -> str:
    """Put a job into a state by legal steps."""
    if state is State.LATER:
        return (await add(db, replace(job, run_at=LATER)))[0]
    if state is State.BLOCKED:
        await add(db, new(serial_key="held"))
        return (await add(db, replace(job, serial_key="held")))[0]
    (job_id,) = await add(db, job)
    if state is State.READY:
        return job_id
    (held,) = await claim(db)
    if state is State.RETRY:
        await db.tx(finishing.finish, [end(held, Status.FAILED, move=Move.BACK_OFF, run_at=LATER, counts=True)], "w")
    elif state is State.PARKED:
        await db.tx(finishing.finish, [end(held, Status.PAUSED, move=Move.PARK)], "w")
    elif state is State.WAITING:
        await suspend(db, held)
    return job_id


async def suspend(db: Database, job: Job) -> str:
    """Suspend a claimed job whose run waits for its step `nap`; returns the id of the run."""
    row = StepRow(job.id, "nap", job.org_id, 1, StepType.SLEEP, StepStatus.WAITING, 0, NOW, new_id(), until=LATER)
    await db.tx(steps.recording([(job.fence, row)]))
    waiting: WaitingData = {"for": "sleep", "step": "nap", "run_id": row.run_id, "started_at": NOW.isoformat()}
    suspended = end(
        job, Status.PAUSED, move=Move.SUSPEND, run_at=LATER, suspension=Suspension(waiting, LATER, ("nap",))
    )
    await db.tx(finishing.finish, [suspended], "w")
    return row.run_id


# keys

STARTED = (State.RUNNING, State.RETRY, State.WAITING, State.PARKED)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("mode", ["reject", "preserve", "replace"])
async def test_a_key_that_a_living_job_holds(db: Database, mode: str, state: State) -> None:
    holder = await bring(db, new("k"), state)
    second = new("k", payload={"second": True})
    if mode == "reject":
        with pytest.raises(Conflict):
            await add(db, second)
        assert await state_of(db, holder) == state
        return
    (stands,) = await add(db, second, key_mode=mode)
    if mode == "preserve" or state in STARTED:
        assert stands == holder
        assert await state_of(db, holder) == state
    else:
        assert stands == second.id
        assert await state_of(db, holder) is None
        recorded = [row for row in await ledger(db) if row.job_id == holder]
        assert [(row.status, row.reason) for row in recorded] == [("skipped", "superseded")]
    keyed = [row for row in await rows(db) if row.job_key == "k"]
    assert len(keyed) == 1


@pytest.mark.parametrize("mode", ["reject", "preserve", "replace"])
async def test_a_key_is_free_again_when_its_job_has_finished(db: Database, mode: str) -> None:
    await add(db, new("k"))
    await db.tx(finishing.finish, [end(job) for job in await claim(db)], "w")
    (second,) = await add(db, new("k"), key_mode=mode)
    assert await state_of(db, second) == "ready"


async def test_jobs_without_keys_are_enqueued_in_one_statement(db: Database) -> None:
    """Then it needs no transaction around it, and its notice goes with it."""
    said: list[str] = []
    with at_each_statement(said.append):
        ids = await db.statement(queue.enqueue_keyless([new(), new(run_at=LATER)], NOW))
    assert sorted(ids) == [row.id for row in await rows(db)]
    assert len([text for text in said if text not in ("BEGIN IMMEDIATE", "COMMIT")]) == 1


async def test_keys_of_different_orgs_do_not_meet(db: Database) -> None:
    await add(db, new("k"))
    await add(db, new("k", org_id="other"))
    assert len(await rows(db)) == 2


async def test_replacing_the_head_of_another_serial_key_promotes_the_next(db: Database) -> None:
    await add(db, new("k", serial_key="a"))
    (behind,) = await add(db, new(serial_key="a"))
    await add(db, new("k", serial_key="b"), key_mode="replace")
    assert await state_of(db, behind) == "ready"
    assert await db.read(serial_keys.headless) == []


async def test_concurrent_enqueues_of_one_key_make_one_job(db: Database) -> None:
    job_ids = await asyncio.gather(*(add(db, new("k"), key_mode="preserve") for _ in range(20)))
    assert len({ids[0] for ids in job_ids}) == 1
    assert len(await rows(db)) == 1


# order


async def test_claims_take_urgent_first_then_older_then_in_the_order_of_ids(db: Database) -> None:
    early = NOW - timedelta(minutes=1)
    some = [new(priority=0), new(priority=9), new(priority=0, run_at=early), new(priority=-9, run_at=early)]
    await add(db, *some)
    assert [job.id for job in await claim(db)] == [some[1].id, some[2].id, some[0].id, some[3].id]


async def test_a_claim_takes_no_more_than_its_room(db: Database) -> None:
    await add(db, *(new() for _ in range(300)))
    seen: set[str] = set()
    for room in (1, 7, 50, 100, 200):
        took = await claim(db, room=room)
        assert len(took) == min(room, 300 - len(seen))
        assert not seen & {job.id for job in took}
        seen |= {job.id for job in took}


async def test_a_claim_leaves_what_its_worker_cannot_run(db: Database) -> None:
    await add(db, new(route="task:elsewhere"), new())
    (job,) = await claim(db)
    assert job.route == "task"


async def test_fences_rise_along_a_serial_key(db: Database) -> None:
    await add(db, *(new(serial_key="k") for _ in range(5)))
    fences = []
    for _ in range(5):
        (job,) = await claim(db)
        fences.append(job.fence)
        await db.tx(finishing.finish, [end(job)], "w")
    assert fences == sorted(set(fences))


async def test_future_jobs_become_ready_when_due(db: Database) -> None:
    plain, keyed, behind = await add(
        db, new(run_at=LATER), new(run_at=LATER, serial_key="k"), new(run_at=LATER, serial_key="k")
    )
    assert await db.read(queue.next_due) == LATER
    assert await db.tx(queue.release_due, NOW) == 0
    assert await db.tx(queue.release_due, LATER) == 3
    assert [await state_of(db, job_id) for job_id in (plain, keyed, behind)] == ["ready", "ready", "blocked"]
    assert await db.read(queue.next_due) is None


async def test_letting_in_keeps_to_its_limit(db: Database) -> None:
    await add(db, *(new(run_at=LATER) for _ in range(30)))
    assert await db.tx(queue.release_due, LATER, 10) == 10
    assert len([row for row in await rows(db) if row.state == "ready"]) == 10


# serial keys


async def test_one_head_per_key_and_the_rest_in_order(db: Database) -> None:
    first, low, high = await add(db, new(serial_key="k"), new(serial_key="k"), new(serial_key="k", priority=5))
    states = [await state_of(db, job_id) for job_id in (first, low, high)]
    assert states == ["blocked", "blocked", "ready"]  # together: the most urgent is the head
    for expected in (high, first, low):
        (job,) = await claim(db)
        assert job.id == expected
        await db.tx(finishing.finish, [end(job)], "w")


@pytest.mark.parametrize("move", [Move.BACK_OFF, Move.PARK, Move.HAND_BACK])
async def test_a_job_that_waits_for_its_next_attempt_keeps_its_key(db: Database, move: Move) -> None:
    await add(db, new(serial_key="k"))
    (behind,) = await add(db, new(serial_key="k"))
    (job,) = await claim(db)
    await db.tx(finishing.finish, [end(job, Status.PAUSED, move=move, run_at=LATER)], "w")
    assert await state_of(db, behind) == "blocked"


async def test_the_database_itself_refuses_two_heads(db: Database) -> None:
    await add(db, new(serial_key="k"), new(serial_key="k"))

    def force(tx: Tx) -> None:
        tx.execute(update(jobs).values(state="ready"))

    with pytest.raises(DataRefused):
        await db.tx(force)


# NO_MOVE_WITHOUT_THE_LEASE


async def stolen(db: Database) -> tuple[Job, Job]:
    """A job that one worker lost and another holds."""
    await add(db, new())
    (old,) = await claim(db, "old")
    await db.tx(finishing.rescue, "old", NOW)
    (fresh,) = await claim(db, "new")
    return old, fresh


WRITES: dict[str, Callable[[Tx, Job], Any]] = {
    "finish": lambda tx, job: finishing.finish(tx, [end(job)], "old").recorded,
    "back off": lambda tx, job: (
        finishing.finish(tx, [end(job, Status.FAILED, move=Move.BACK_OFF, run_at=LATER)], "old").recorded
    ),
    "park": lambda tx, job: finishing.finish(tx, [end(job, Status.PAUSED, move=Move.PARK)], "old").recorded,
    "mark": lambda tx, job: finishing.mark_started(tx, [Attempt(job, new_id(), 1, NOW)]),
    "hand back": lambda tx, job: finishing.hand_back(tx, "old", [job.id]),
    "hand back all": lambda tx, job: finishing.hand_back(tx, "old", None),
    "rescue": lambda tx, job: finishing.rescue(tx, "old", NOW)[0],
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_worker_that_lost_its_lease_changes_nothing(db: Database, write: str) -> None:
    old, fresh = await stolen(db)
    before = await rows(db)
    assert not await db.tx(WRITES[write], old)
    assert await rows(db) == before
    assert await ledger(db) == []
    assert before[0].fence == fresh.fence > old.fence


async def test_an_answer_given_twice_counts_once(db: Database) -> None:
    await add(db, new())
    (job,) = await claim(db)
    result = end(job)
    assert await db.tx(finishing.finish, [result], "w") == ({result.run_id}, False)
    assert await db.tx(finishing.finish, [result], "w") == (set(), False)
    assert await db.tx(ledger_rows.record_lost, [result], "w", NOW) == []
    assert len(await ledger(db)) == 1


async def test_one_lost_lease_in_a_batch_costs_only_itself(db: Database) -> None:
    await add(db, *(new(serial_key=f"k{n % 3}" if n % 2 else None) for n in range(10)))
    took = await claim(db)
    ended = [end(replace(job, fence=job.fence + 999) if n == 2 else job) for n, job in enumerate(took)]
    kept, _ = await db.tx(finishing.finish, ended, "w")
    assert kept == {result.run_id for n, result in enumerate(ended) if n != 2}
    assert took[2].id in {row.id for row in await rows(db)}


# rescue


async def test_a_job_that_never_started_returns_without_a_trace(db: Database) -> None:
    await add(db, new())
    await claim(db, "old")
    assert await db.tx(finishing.rescue, "old", NOW) == (1, False)
    (row,) = await rows(db)
    assert (row.state, row.attempt, row.crashes, row.rescues, row.lease_owner) == ("ready", 0, 0, 1, None)
    assert await ledger(db) == []


async def test_a_started_job_becomes_a_crashed_run_and_a_new_attempt(db: Database) -> None:
    await add(db, new(serial_key="k"))
    (job,) = await claim(db, "old")
    run_id = new_id()
    assert await db.tx(finishing.mark_started, [Attempt(job, run_id, 1, NOW)]) == {run_id}
    await db.tx(finishing.rescue, "old", NOW)
    (row,) = await rows(db)
    assert (row.state, row.attempt, row.crashes, row.last_run_id, row.run_id) == ("ready", 1, 1, run_id, None)
    (run,) = await ledger(db)
    assert (run.id, run.status, run.worker) == (run_id, "crashed", "old")
    (again,) = await claim(db)
    assert again.attempt == 1
    assert again.suspect


async def test_the_third_crash_ends_the_job_and_frees_its_key(db: Database) -> None:
    await add(db, new(serial_key="k"))
    (behind,) = await add(db, new(serial_key="k"))
    for number in (1, 2, 3):
        (job,) = await claim(db, "old")
        await db.tx(finishing.mark_started, [Attempt(job, new_id(), number, NOW)])
        await db.tx(finishing.rescue, "old", NOW)
    assert [row.status for row in await ledger(db)] == ["crashed", "crashed", "failed"]
    assert (await ledger(db))[-1].reason == "quarantined"
    assert await state_of(db, behind) == "ready"


async def test_a_crashed_run_with_a_cancel_request_stays_canceled(db: Database) -> None:
    (job_id,) = await add(db, new())
    (job,) = await claim(db, "old")
    await db.tx(finishing.mark_started, [Attempt(job, new_id(), 1, NOW)])
    await db.tx(queue.request_cancel, [job_id], "ann", NOW)
    assert await db.read(queue.cancel_requests, "old") == {job_id: "ann"}
    await db.tx(finishing.rescue, "old", NOW)
    assert await rows(db) == []
    assert [(row.status, row.reason) for row in await ledger(db)] == [("canceled", "ann")]


async def hold(db: Database, worker: str, count: int) -> list[Job]:
    """Jobs that a worker has begun."""
    took = await claim(db, worker, count)
    await db.tx(finishing.mark_started, [Attempt(job, new_id(), job.attempt + 1, NOW) for job in took])
    return took


async def test_a_death_counts_against_no_job_of_several(db: Database) -> None:
    await add(db, *(new() for _ in range(3)))
    for deaths in (1, 2, 3):
        await hold(db, "old", 3)
        await db.tx(finishing.rescue, "old", NOW)
        assert [(row.attempt, row.crashes, row.rescues) for row in await rows(db)] == [(deaths, 0, deaths)] * 3
    assert {row.status for row in await ledger(db)} == {"crashed"}


async def test_a_death_counts_against_the_only_begun_job_that_was_at_three_deaths(db: Database) -> None:
    suspects = await add(db, new(), new())
    for _ in range(3):
        await hold(db, "old", 2)
        await db.tx(finishing.rescue, "old", NOW)
    (begun,) = await hold(db, "old", 1)
    await claim(db, "old", 1)  # waits for its turn
    fresh = await add(db, *(new() for _ in range(3)))
    await hold(db, "old", 3)
    await db.tx(finishing.rescue, "old", NOW)
    counts = {row.id: (row.crashes, row.rescues) for row in await rows(db)}
    assert begun.id == suspects[0]
    assert counts == {begun.id: (1, 3), suspects[1]: (0, 4), **dict.fromkeys(fresh, (0, 1))}


async def test_the_rest_of_a_dead_workers_jobs_is_no_evidence(db: Database) -> None:
    await add(db, *(new() for _ in range(11)))
    await hold(db, "old", 11)
    assert (await db.tx(finishing.rescue, "old", NOW, 10))[:2] == (10, True)
    await db.tx(finishing.rescue, "old", NOW, 10, False)
    assert {(row.crashes, row.rescues) for row in await rows(db)} == {(0, 1)}


async def test_a_start_that_is_recorded_while_a_rescue_waits_is_not_forgotten(db: Database) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    await add(db, new(serial_key="k"))
    (job,) = await claim(db, "old")
    blocker = await asyncpg.connect(db.url)
    try:
        await blocker.execute("SELECT pg_advisory_lock(hashtextextended('k', 0))")
        rescuing = asyncio.ensure_future(db.tx(finishing.rescue, "old", NOW))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = ("
        waiting += "SELECT oid FROM pg_database WHERE datname = current_database())"
        async with asyncio.timeout(20):
            while not await blocker.fetchval(waiting):  # noqa: ASYNC110 (only the server knows)
                await asyncio.sleep(0.01)
        run_id = new_id()
        assert await db.tx(finishing.mark_started, [Attempt(job, run_id, 1, NOW)]) == {run_id}
    finally:
        await blocker.close()
    assert (await rescuing)[0] == 1
    (row,) = await rows(db)
    assert (row.attempt, row.last_run_id) == (1, run_id)
    assert [(run.id, run.attempt, run.status) for run in await ledger(db)] == [(run_id, 1, "crashed")]


async def test_rescue_goes_in_portions(db: Database) -> None:
    await add(db, *(new() for _ in range(25)))
    await claim(db, "old")
    assert [await db.tx(finishing.rescue, "old", NOW, 10) for _ in range(3)] == [
        (10, True),
        (10, True),
        (5, False),
    ]


async def test_a_worker_hands_back_what_it_does_not_know_of(db: Database) -> None:
    await add(db, *(new() for _ in range(3)))
    took = await claim(db)
    assert await db.tx(finishing.hand_back, "w", None, [took[0].id]) == 2
    assert sorted(row.state for row in await rows(db)) == ["ready", "ready", "running"]


async def test_a_sole_lane_is_taken_without_another_look(db: Database) -> None:
    await add(db, *(new(priority=n) for n in range(3)))
    took = await db.statement(claiming.claim_sole(Lane("org", "default"), worker="w", routes=["task"], room=2))
    assert len(took) == 2
    (last,) = await claim(db)
    assert last.fence > took[0].fence


@pytest.mark.parametrize("beside", ["org before", "org behind", "queue before", "queue behind", "paused", "limited"])
async def test_a_lane_that_is_not_all_there_is_needs_another_look(db: Database, beside: str) -> None:
    await add(db, new(queue="m"))
    match beside:
        case "org before" | "org behind":
            await add(db, new(org_id="a" if beside == "org before" else "z", queue="m"))
        case "queue before" | "queue behind":
            await add(db, new(queue="a" if beside == "queue before" else "z"))
        case _:
            await db.tx(queue.set_queue, "org", "m", 5 if beside == "limited" else None, beside == "paused", NOW)
    assert await db.statement(claiming.claim_sole(Lane("org", "m"), worker="w", routes=["task"], room=9)) == []


# each pair of state and move

STEPS: dict[Move, Callable[[Tx, str, Job], Any]] = {
    Move.DUE: lambda tx, job_id, job: queue.release_due(tx, LATER),
    Move.CLAIM: lambda tx, job_id, job: claiming.claim(
        tx, claiming.lanes(tx) or [Lane("org", "default")], worker="v", routes=["task"], room=9, turn=0
    ),
    Move.BACK_OFF: lambda tx, job_id, job: finishing.finish(tx, [end(job, move=Move.BACK_OFF, run_at=LATER)], "w"),
    Move.HAND_BACK: lambda tx, job_id, job: finishing.hand_back(tx, "w", [job_id]),
    Move.RESCUE: lambda tx, job_id, job: finishing.rescue(tx, "w", NOW),
    Move.PARK: lambda tx, job_id, job: finishing.finish(tx, [end(job, Status.PAUSED, move=Move.PARK)], "w"),
    Move.STRAND: lambda tx, job_id, job: versions.park(tx, jobs.c.id == job_id, NOW),
    Move.RESUME: lambda tx, job_id, job: queue.resume(tx, job_id, NOW),
    Move.ADOPT: lambda tx, job_id, job: queue.adopt(tx, job_id, job.fence, "w", NOW),
}


@pytest.mark.parametrize("move", list(STEPS))
@pytest.mark.parametrize("state", list(State))
async def test_each_pair_of_state_and_move_is_legal_or_changes_nothing(db: Database, state: State, move: Move) -> None:
    job_id = await bring(db, new(), state)
    held = {row.id: row for row in await rows(db)}[job_id]
    job = await db.read(
        lambda tx: queue.job_of(tx.execute(select(*queue.JOB_COLUMNS).where(jobs.c.id == job_id)).one())
    )
    await db.tx(STEPS[move], job_id, job)
    expected = MOVES.get((state, move), state)
    assert await state_of(db, job_id) == expected
    if (state, move) not in MOVES:
        assert {row.id: row for row in await rows(db)}[job_id] == held
    assert (state in states_before(move)) == ((state, move) in MOVES)


def test_every_head_state_is_one_in_which_a_job_was_promoted() -> None:
    assert set(HEADS) == set(State) - {State.LATER, State.BLOCKED}
