"""What is forgotten after a while, and what never is."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from rota import AuthError
from rota.db.tables import causes, effects, events
from rota.engine.maintenance import Maintenance
from rota.testing import World, world
from tests.workflows.inbox import make_inbox
from tests.workflows.test_runs import rows, statuses


async def prune(one: World, **later: float) -> None:
    await one.drain()
    one.clock.set(one.clock.now() + timedelta(**later))
    await one.drain()
    await Maintenance(one.engine).prune(one.clock.now())


async def test_events_are_forgotten_when_they_were_done_for_so_long(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url, keep_success=timedelta(days=10)) as one:
        await one.publish("inbox", "mail", message_id="1", payload="a")
        await one.advance(minutes=1)
        await one.workflows.pause("inbox", "gather")
        for name in ("2", "3"):
            await one.publish("inbox", "mail", message_id=name, payload=name)
        await one.workflows.skip(
            "inbox", (await rows(one, select(events.c.id).where(events.c.message_id == "3")))[0].id
        )
        await prune(one, days=9)
        kept = ["mail 1 consumed", "rows row-a consumed", "mail 2 pending", "mail 3 skipped"]
        assert await statuses(one) == kept
        assert await one.publish("inbox", "mail", message_id="1", payload="again") == "kept"
        await prune(one, days=2)
        await Maintenance(one.engine).prune(one.clock.now())  # an input goes when what came of it is gone
        assert await statuses(one) == ["mail 2 pending"]
        assert await rows(one, select(causes)) == []
        assert await rows(one, select(effects)) == []
        await one.workflows.resume("inbox")
        assert await one.publish("inbox", "mail", message_id="1", payload="again") == "created"
        await one.drain()
        assert inbox.sheets.rows == ["a", "2", "again"]


async def test_an_input_is_kept_while_something_that_came_of_it_waits(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url, keep_success=timedelta(days=10)) as one:
        await one.drain()
        inbox.trouble["tell"] = [AuthError("reconnect")]
        await one.publish("inbox", "mail", message_id="1", payload="a")
        await prune(one, days=200)
        assert await statuses(one) == ["mail 1 consumed", "rows row-a pending"]
        await one.workflows.resume("inbox")
        await prune(one, days=9)
        assert await statuses(one) == ["mail 1 consumed", "rows row-a consumed"]


@pytest.mark.parametrize("isolate", [False, True])
async def test_a_run_that_waits_for_a_person_is_not_forgotten(clean_url: str, isolate: bool) -> None:
    """However long they take: what nobody knows of is not done again."""
    inbox = make_inbox("sheets.blind", isolate=isolate)
    async with world(inbox.app, database_url=clean_url) as one:
        inbox.sheets.breaks = [ConnectionError("cut")]
        await one.publish("inbox", "mail", message_id="1", payload="a")
        await prune(one, days=200)
        assert (await one.workflow("inbox"))["status"] == "needs_attention"
        await one.workflows.resolve("inbox", "applied", {"row": 7}, "ada")
        await one.drain()
        assert (inbox.sheets.rows, inbox.mutations[-1]) == (["a"], ("a", "applied", {"row": 7}))
