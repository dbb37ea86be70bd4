"""GRANT_NOT_SESSION: work runs under a grant, which is looked at when it begins; without it the slot is skipped."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from rota.billing import store as billing_store
from rota.core.errors import Invalid
from rota.db.tables import grants
from rota.engine import orgs
from tests.engine.harness import HOUR, MINUTE, NINE, House, at


async def grant(house: House, scope: str = "task:execute:job", **fields: Any) -> str:
    owner = await house.db.tx(orgs.system_user, house.org_id, NINE)
    return await house.engine.create_grant(house.org_id, {"scopes": [scope], **fields}, owner)


async def test_work_under_a_grant_that_holds_runs(house: House) -> None:
    await house.schedule(grant_id=await grant(house))
    await house.live(at("9:20"))
    assert await house.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_a_grant_that_is_taken_back_stops_the_next_run_and_the_clock_goes_on(house: House) -> None:
    held = await grant(house)
    await house.schedule(grant_id=held)
    await house.live(at("9:10"))
    await house.engine.revoke_grant(house.org_id, held)
    await house.live(at("9:30"))
    assert await house.verdicts() == ["9:10 ran", "9:20 skipped: grant_revoked", "9:30 skipped: grant_revoked"]
    assert (await house.planned())[0] == "9:40"


async def test_a_grant_taken_back_between_enqueue_and_start_is_noticed(house: House) -> None:
    held = await grant(house)
    await house.schedule(grant_id=held)
    house.clock.set(at("9:10"))
    await house.fire_elsewhere()
    await house.engine.revoke_grant(house.org_id, held)
    await house.work()
    assert await house.verdicts() == ["9:10 skipped: grant_revoked"]
    assert house.hands.began == []


async def test_a_grant_that_ends_stops_work_from_then_on(house: House) -> None:
    await house.schedule(grant_id=await grant(house, expires_at=(NINE + 15 * MINUTE).isoformat()))
    await house.live(at("9:20"))
    assert await house.verdicts() == ["9:10 ran", "9:20 skipped: grant_expired"]


async def test_a_schedule_cannot_name_a_grant_that_does_not_allow_it(house: House) -> None:
    with pytest.raises(Invalid, match="grant_scope"):
        await house.schedule(grant_id=await grant(house, "task:execute:other"))
    with pytest.raises(Invalid, match="grant_not_found"):
        await house.schedule(grant_id="01KQRS3Z5T8M0A2N6Y4V7W9XCD")
    await house.schedule(grant_id=await grant(house))
    with pytest.raises(Invalid, match="grant_scope"):
        await house.edit(target="other")


async def test_a_kind_that_needs_a_grant_mints_it_with_the_schedule_and_loses_it_with_it(house: House) -> None:
    house.hands.under_grant = True
    schedule_id = await house.schedule()
    (minted,) = await house.rows(select(grants))
    assert (minted.schedule_id, minted.scopes, minted.revoked_at) == (schedule_id, ["task:execute:job"], None)
    assert (await house.record()).grant_id == minted.id
    await house.live(at("9:10"))
    await house.engine.delete_schedule(house.org_id, "job")
    (minted,) = await house.rows(select(grants))
    assert minted.revoked_at == at("9:10")


async def test_taking_a_grant_back_lets_a_running_run_finish_unless_asked(house: House) -> None:
    house.hands.long = lambda job: True
    for name, stop, ends in (("one", False, "success"), ("two", True, "canceled: grant_revoked")):
        held = await grant(house, f"task:execute:{name}")
        await house.schedule(name, None, interval="1h", grant_id=held)
        await house.live(house.clock.now() + HOUR)
        await house.engine.revoke_grant(house.org_id, held, cancel_running=stop)
        await house.work()
        if not stop:
            await house.release()
        assert [line.split(" ", 1)[1] for line in await house.history(name)][-1].endswith(ends)


async def test_the_forecast_names_what_will_not_run(house: House) -> None:
    from rota.engine.grants import lapsing

    soon = await grant(house, expires_at=(NINE + timedelta(days=3)).isoformat())
    await house.schedule("lasting", target="job", grant_id=await grant(house))
    await house.schedule("soon", target="job", grant_id=soon)
    gone = await grant(house)
    await house.schedule("gone", target="job", grant_id=gone)
    await house.engine.revoke_grant(house.org_id, gone)
    found = await house.db.read(lapsing, house.org_id, NINE + timedelta(days=7))
    assert [(one["schedule_name"], one["reason"]) for one in found] == [
        ("gone", "grant_revoked"), ("soon", "grant_expired"),
    ]  # fmt: skip
    assert len(await house.db.read(lapsing, house.org_id, NINE + timedelta(days=1))) == 1


async def test_a_task_does_not_begin_when_the_budget_of_its_grant_is_used_up(house: House) -> None:
    held = await grant(house, budget={"total": 100})
    await house.schedule(grant_id=held)
    await house.live(at("9:10"))
    await house.db.tx(lambda tx: tx.execute(update(grants).where(grants.c.id == held).values(spent_total=100)))
    await house.live(at("9:20"))
    assert await house.verdicts() == ["9:10 ran", "9:20 skipped: budget"]


async def test_a_task_does_not_begin_at_the_expense_of_a_closed_account(house: House) -> None:
    held = await grant(house)
    await house.schedule(grant_id=held)
    account = await house.db.read(lambda tx: tx.execute(select(grants.c.billing_account_id)).scalar_one())
    await house.db.tx(billing_store.close, house.org_id, account, NINE)
    await house.live(at("9:10"))
    assert await house.verdicts() == ["9:10 skipped: budget"]
