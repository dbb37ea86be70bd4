"""GRANT_NOT_SESSION: work runs under a grant, which is looked at when it begins; without it the slot is skipped."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from rota.billing import store as billing_store
from rota.core.errors import Invalid
from rota.db.tables import grants
from rota.engine import orgs
from tests.engine.harness import HOUR, MINUTE, NINE, Harness, at


async def grant(harness: Harness, scope: str = "task:execute:job", **fields: Any) -> str:
    owner = await harness.db.tx(orgs.system_user, harness.org_id, NINE)
    return await harness.engine.create_grant(harness.org_id, owner, [scope], **fields)


async def test_work_under_a_grant_that_holds_runs(harness: Harness) -> None:
    await harness.schedule(grant_id=await grant(harness))
    await harness.run_until(at("9:20"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_a_revoked_grant_stops_the_next_run_and_slots_continue(harness: Harness) -> None:
    held = await grant(harness)
    await harness.schedule(grant_id=held)
    await harness.run_until(at("9:10"))
    await harness.engine.revoke_grant(harness.org_id, held)
    await harness.run_until(at("9:30"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: grant_revoked", "9:30 skipped: grant_revoked"]
    assert (await harness.planned())[0] == "9:40"


async def test_a_grant_taken_back_between_enqueue_and_start_is_noticed(harness: Harness) -> None:
    held = await grant(harness)
    await harness.schedule(grant_id=held)
    harness.clock.set(at("9:10"))
    await harness.fire_elsewhere()
    await harness.engine.revoke_grant(harness.org_id, held)
    await harness.work()
    assert await harness.verdicts() == ["9:10 skipped: grant_revoked"]
    assert harness.fake_runner.began == []


async def test_a_grant_that_ends_stops_work_from_then_on(harness: Harness) -> None:
    await harness.schedule(grant_id=await grant(harness, expires_at=NINE + 15 * MINUTE))
    await harness.run_until(at("9:20"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: grant_expired"]


async def test_a_schedule_cannot_name_a_grant_that_does_not_allow_it(harness: Harness) -> None:
    with pytest.raises(Invalid, match="grant_scope"):
        await harness.schedule(grant_id=await grant(harness, "task:execute:other"))
    with pytest.raises(Invalid, match="grant_not_found"):
        await harness.schedule(grant_id="01KQRS3Z5T8M0A2N6Y4V7W9XCD")
    await harness.schedule(grant_id=await grant(harness))
    with pytest.raises(Invalid, match="grant_scope"):
        await harness.edit(target="other")


async def test_a_kind_that_needs_a_grant_mints_it_with_the_schedule_and_loses_it_with_it(harness: Harness) -> None:
    harness.fake_runner.under_grant = True
    schedule_id = await harness.schedule()
    (minted,) = await harness.rows(select(grants))
    assert (minted.schedule_id, minted.scopes, minted.revoked_at) == (schedule_id, ["task:execute:job"], None)
    assert (await harness.record()).grant_id == minted.id
    await harness.run_until(at("9:10"))
    await harness.engine.delete_schedule(harness.org_id, "job")
    (minted,) = await harness.rows(select(grants))
    assert minted.revoked_at == at("9:10")


async def test_revoking_a_grant_lets_a_running_run_finish_unless_asked(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    for name, stop, ends in (("one", False, "success"), ("two", True, "canceled: grant_revoked")):
        held = await grant(harness, f"task:execute:{name}")
        await harness.schedule(name, None, interval="1h", grant_id=held)
        await harness.run_until(harness.clock.now() + HOUR)
        await harness.engine.revoke_grant(harness.org_id, held, cancel_running=stop)
        await harness.work()
        if not stop:
            await harness.release()
        assert [line.split(" ", 1)[1] for line in await harness.history(name)][-1].endswith(ends)


async def test_the_forecast_names_what_will_not_run(harness: Harness) -> None:
    from rota.engine.grants import lapsing

    soon = await grant(harness, expires_at=NINE + timedelta(days=3))
    await harness.schedule("lasting", target="job", grant_id=await grant(harness))
    await harness.schedule("soon", target="job", grant_id=soon)
    gone = await grant(harness)
    await harness.schedule("gone", target="job", grant_id=gone)
    await harness.engine.revoke_grant(harness.org_id, gone)
    forecasts = await harness.db.read(lapsing, harness.org_id, NINE + timedelta(days=7))
    assert [(forecast["schedule_name"], forecast["reason"]) for forecast in forecasts] == [
        ("gone", "grant_revoked"),
        ("soon", "grant_expired"),
    ]
    assert len(await harness.db.read(lapsing, harness.org_id, NINE + timedelta(days=1))) == 1


async def test_a_task_does_not_begin_when_the_budget_of_its_grant_is_used_up(harness: Harness) -> None:
    held = await grant(harness, budget={"total": 100})
    await harness.schedule(grant_id=held)
    await harness.run_until(at("9:10"))
    await harness.db.tx(lambda tx: tx.execute(update(grants).where(grants.c.id == held).values(spent_total=100)))
    await harness.run_until(at("9:20"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: budget"]


async def test_a_task_does_not_begin_at_the_expense_of_a_closed_account(harness: Harness) -> None:
    held = await grant(harness)
    await harness.schedule(grant_id=held)
    account = await harness.db.read(lambda tx: tx.execute(select(grants.c.billing_account_id)).scalar_one())
    await harness.db.tx(billing_store.close, harness.org_id, account, NINE)
    await harness.run_until(at("9:10"))
    assert await harness.verdicts() == ["9:10 skipped: budget"]
