"""A person leaves out an event: while it is pending, with what came of it alone, and under the feet of a run."""

from typing import Any

import pytest
from sqlalchemy import select

from rota import AuthError, Prepare, Rota, Workflow
from rota.core.errors import Conflict, NotFound
from rota.core.states import Status
from rota.db.tables import events
from rota.kinds.workflows import reports as views
from rota.testing import World, world
from tests.workflows.inbox import make_inbox
from tests.workflows.test_runs import rows, statuses


async def id_of(one: World, message_id: str) -> str:
    (found,) = await rows(one, select(events.c.id).where(events.c.message_id == message_id))
    return str(found.id)


async def test_a_skipped_event_is_handled_by_nobody_and_the_rest_is(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as one:
        await one.drain()
        await one.workflows.pause("inbox", "look")
        for text in ("a", "b"):
            await one.publish("inbox", "mail", message_id=text, payload=text)
        await one.workflows.skip("inbox", await id_of(one, "a"))
        assert (await one.workflow("inbox"))["pending"] == 1
        await one.workflows.resume("inbox")
        await one.drain()
        assert inbox.sheets.rows == ["b"]
        inputs, _ = await one.engine.db.read(views.list_inputs, one.org_id, "inbox", one.clock.now())
        assert [(entry["message_id"], entry["status"]) for entry in inputs] == [("b", "done"), ("a", "skipped")]
        assert await one.publish("inbox", "mail", message_id="a", payload="again") == "kept"


async def test_what_a_run_has_taken_is_not_skipped(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as one:
        await one.drain()
        inbox.trouble["mutate"] = [AuthError("reconnect")]
        await one.publish("inbox", "mail", message_id="a", payload="a")
        await one.drain()
        assert await statuses(one) == ["mail a reserved"]
        with pytest.raises(Conflict, match="reserved by a run; wait until the run has ended, or resolve it"):
            await one.workflows.skip("inbox", await id_of(one, "a"))
        await one.workflows.resolve("inbox", "approve", None, "ada")
        await one.drain()
        with pytest.raises(Conflict, match="already consumed, and no event derived from it is pending"):
            await one.workflows.skip("inbox", await id_of(one, "a"))
        with pytest.raises(NotFound, match="event 'nowhere' of workflow 'inbox' not found"):
            await one.workflows.skip("inbox", "nowhere")


async def test_what_came_of_a_skipped_input_alone_is_skipped_too(clean_url: str) -> None:
    app = Rota()
    flow = Workflow("pairs", topics=["in", "out"])

    @flow.consumer(subscribe=["in"], publishes=["out"])
    class Pass:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            found = await ctx.peek("in")
            return Prepare(reservations={"in": [event.id for event in found]}, data=[one.message_id for one in found])

        async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> None:
            if prepared.data:
                await ctx.publish("out", message_id="of " + "+".join(prepared.data))

    @flow.consumer(subscribe=["out"])
    class Wait:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare()

    app.workflow(flow)
    async with world(app, database_url=clean_url) as one:
        await one.drain()
        await one.publish("pairs", "in", message_id="a")
        await one.drain()
        await one.workflows.pause("pairs", "gather")
        for name in ("b", "c"):
            await one.publish("pairs", "in", message_id=name)
        await one.workflows.resume("pairs")
        await one.drain()
        await one.workflows.skip("pairs", await id_of(one, "a"))
        with pytest.raises(Conflict, match="already consumed"):
            await one.workflows.skip("pairs", await id_of(one, "b"))  # what came of it came of another too
        assert [line for line in await statuses(one) if line.startswith("out")] == [
            "out of a skipped",
            "out of b+c pending",
        ]
        await one.workflows.skip("pairs", await id_of(one, "of b+c"))
        assert (await one.workflow("pairs"))["pending"] == 0


@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_event_that_is_skipped_while_a_run_decides_makes_it_decide_anew(
    clean_url: str, stubborn: bool
) -> None:
    app, seen = Rota(), []
    flow = Workflow("take", topics=["in"])

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            found = await ctx.peek("in")
            seen.append([event.message_id for event in found])
            if len(found) == 2:
                await one.workflows.skip("take", found[0].id)
                self.first = [event.id for event in found]
            return Prepare(reservations={"in": self.first if stubborn and found else [event.id for event in found]})

    app.workflow(flow)
    async with world(app, database_url=clean_url) as one:
        await one.drain()
        await one.workflows.pause("take", "gather")
        for name in ("a", "b"):
            await one.publish("take", "in", message_id=name)
        await one.workflows.resume("take")
        await one.drain()
        assert seen[:3] == [[], ["a", "b"], ["b"]]
        assert len(await one.runs(status=Status.FAILED)) == stubborn
        assert await statuses(one) == ["in a skipped", "in b pending" if stubborn else "in b consumed"]
