"""What a process fires it may have at once: the job is its worker's from the transaction that makes it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rota.core.errors import Unavailable
from rota.engine.engine import EngineSettings
from rota.store import schedules
from rota.store.dialect import insert_rows
from rota.store.tables import queues
from tests.engine.harness import House, at


async def state_of_the_fired(house: House) -> str:
    house.clock.set(at("9:10"))
    await house.fire()
    (job,) = await house.queue()
    return str(job.state)


async def test_a_fired_job_is_running_when_it_is_made(house: House) -> None:
    await house.schedule()
    assert await state_of_the_fired(house) == "running"
    (job,) = await house.queue()
    assert job.lease_owner == house.worker.id
    assert job.fence > 0
    await house.work()
    assert await house.verdicts() == ["9:10 ran"]


async def full(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=0)


async def limited_org(house: House) -> None:
    await house.limit_org(max_running=1)


async def paused_queue(house: House) -> None:
    row = {"org_id": house.org_id, "name": "default", "paused_at": house.clock.now(), "max_running": None}
    await house.db.tx(insert_rows, queues, [row])


async def other_queues(house: House) -> None:
    house.worker.queues = ["elsewhere"]


async def unregistered(house: House) -> None:
    house.worker.registered = False


async def draining(house: House) -> None:
    house.worker.draining = True


@pytest.mark.parametrize("hindrance", [full, limited_org, paused_queue, other_queues, unregistered, draining])
async def test_it_waits_for_a_claim_where_it_may_not_start(house: House, hindrance: Callable[[House], Any]) -> None:
    await house.schedule()
    await hindrance(house)
    assert await state_of_the_fired(house) == "ready"


async def test_a_job_behind_one_that_runs_is_not_taken(house: House) -> None:
    house.hands.long = lambda job: True
    await house.schedule()
    await house.live(at("9:10"))
    await house.live(at("9:20"))
    assert sorted(job.state for job in await house.queue()) == ["blocked", "running"]
    await house.release()
    assert await house.verdicts() == ["9:10 ran", "9:20 (running)"]


async def test_what_was_fired_into_a_lost_answer_is_handed_back(house: House, monkeypatch: Any) -> None:
    await house.schedule()
    house.clock.set(at("9:10"))
    real = house.db.tx

    async def deaf(step: Any, *args: Any, **kwargs: Any) -> Any:
        found = await real(step, *args, **kwargs)
        if step is schedules.fire:
            monkeypatch.setattr(house.db, "tx", real)
            raise Unavailable("the answer is lost")
        return found

    monkeypatch.setattr(house.db, "tx", deaf)
    with pytest.raises(Unavailable):
        await house.scheduler.step()
    (job,) = await house.queue()
    assert (job.state, job.lease_owner, job.run_id) == ("ready", None, None)
    await house.live(at("9:10") + timedelta(seconds=1))
    assert await house.verdicts() == ["9:10 ran"]
