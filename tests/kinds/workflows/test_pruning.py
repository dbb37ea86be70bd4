"""What is forgotten after a while, and what never is."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from rota import AuthError
from rota.db.tables import causes, effects, events
from rota.engine.maintenance import Maintenance
from rota.testing import World, world
from tests.kinds.workflows.inbox import make_inbox
from tests.kinds.workflows.test_runs import rows, statuses


async def prune(rota: World, **later: float) -> None:
    await rota.drain()
    rota.clock.set(rota.clock.now() + timedelta(**later))
    await rota.drain()
    await Maintenance(rota.engine).prune(rota.clock.now())


async def test_events_are_forgotten_when_they_were_done_for_so_long(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url, keep_success=timedelta(days=10)) as rota:
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await rota.advance(minutes=1)
        await rota.workflows.pause("inbox", "gather")
        for name in ("2", "3"):
            await rota.publish("inbox", "mail", message_id=name, payload=name)
        await rota.workflows.skip(
            "inbox", (await rows(rota, select(events.c.id).where(events.c.message_id == "3")))[0].id
        )
        await prune(rota, days=9)
        kept = ["mail 1 consumed", "rows row-a consumed", "mail 2 pending", "mail 3 skipped"]
        assert await statuses(rota) == kept
        assert await rota.publish("inbox", "mail", message_id="1", payload="again") == "kept"
        await prune(rota, days=2)
        await Maintenance(rota.engine).prune(rota.clock.now())  # an input goes when what came of it is gone
        assert await statuses(rota) == ["mail 2 pending"]
        assert await rows(rota, select(causes)) == []
        assert await rows(rota, select(effects)) == []
        await rota.workflows.resume("inbox")
        assert await rota.publish("inbox", "mail", message_id="1", payload="again") == "created"
        await rota.drain()
        assert inbox.sheets.rows == ["a", "2", "again"]


async def test_an_input_is_kept_while_something_that_came_of_it_waits(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url, keep_success=timedelta(days=10)) as rota:
        await rota.drain()
        inbox.trouble["notify"] = [AuthError("reconnect")]
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await prune(rota, days=200)
        assert await statuses(rota) == ["mail 1 consumed", "rows row-a pending"]
        await rota.workflows.resume("inbox")
        await prune(rota, days=9)
        assert await statuses(rota) == ["mail 1 consumed", "rows row-a consumed"]


@pytest.mark.parametrize("isolate", [False, True])
async def test_a_run_that_waits_for_a_person_is_not_forgotten(clean_url: str, isolate: bool) -> None:
    """However long they take: an effect with an unknown outcome is not repeated."""
    inbox = make_inbox("sheets.blind", isolate=isolate)
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.breaks = [ConnectionError("cut")]
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await prune(rota, days=200)
        assert (await rota.workflow("inbox"))["status"] == "needs_attention"
        await rota.workflows.resolve("inbox", "applied", {"row": 7}, "ada")
        await rota.drain()
        assert (inbox.sheets.rows, inbox.mutations[-1]) == (["a"], ("a", "applied", {"row": 7}))
