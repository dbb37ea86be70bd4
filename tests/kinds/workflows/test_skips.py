"""A person leaves out an event: while it is pending, with what came of it alone, and under the feet of a run."""

from typing import Any

import pytest
from sqlalchemy import select

from rota import AuthError, Prepare, Rota, Workflow
from rota.core.errors import Conflict, NotFound
from rota.core.states import Status
from rota.db.tables import events
from rota.kinds.workflows import reports
from rota.testing import World, world
from tests.kinds.workflows.inbox import make_inbox
from tests.kinds.workflows.test_runs import rows, statuses


async def id_of(rota: World, message_id: str) -> str:
    (row,) = await rows(rota, select(events.c.id).where(events.c.message_id == message_id))
    return str(row.id)


async def test_a_skipped_event_is_not_handled_and_the_rest_is(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.pause("inbox", "look")
        for text in ("a", "b"):
            await rota.publish("inbox", "mail", message_id=text, payload=text)
        await rota.workflows.skip("inbox", await id_of(rota, "a"))
        assert (await rota.workflow("inbox"))["pending"] == 1
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.sheets.rows == ["b"]
        inputs, _ = await rota.engine.db.read(reports.list_inputs, rota.org_id, "inbox", rota.clock.now())
        assert [(entry["message_id"], entry["status"]) for entry in inputs] == [("b", "done"), ("a", "skipped")]
        assert await rota.publish("inbox", "mail", message_id="a", payload="again") == "kept"


async def test_what_a_run_has_taken_is_not_skipped(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["mutate"] = [AuthError("reconnect")]
        await rota.publish("inbox", "mail", message_id="a", payload="a")
        await rota.drain()
        assert await statuses(rota) == ["mail a reserved"]
        with pytest.raises(Conflict, match="reserved by a run; wait until the run has ended, or resolve it"):
            await rota.workflows.skip("inbox", await id_of(rota, "a"))
        await rota.workflows.resolve("inbox", "approve", None, "ada")
        await rota.drain()
        with pytest.raises(Conflict, match="already consumed, and no event derived from it is pending"):
            await rota.workflows.skip("inbox", await id_of(rota, "a"))
        with pytest.raises(NotFound, match="event 'nowhere' of workflow 'inbox' not found"):
            await rota.workflows.skip("inbox", "nowhere")


async def test_events_derived_only_from_a_skipped_input_are_skipped_too(clean_url: str) -> None:
    app = Rota()
    flow = Workflow("pairs", topics=["in", "out"])

    @flow.consumer(subscribe=["in"], publishes=["out"])
    class Pass:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            events = await ctx.peek("in")
            return Prepare(
                reservations={"in": [event.id for event in events]}, data=[event.message_id for event in events]
            )

        async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> None:
            if prepared.data:
                await ctx.publish("out", message_id="of " + "+".join(prepared.data))

    @flow.consumer(subscribe=["out"])
    class Wait:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare()

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.publish("pairs", "in", message_id="a")
        await rota.drain()
        await rota.workflows.pause("pairs", "gather")
        for name in ("b", "c"):
            await rota.publish("pairs", "in", message_id=name)
        await rota.workflows.resume("pairs")
        await rota.drain()
        await rota.workflows.skip("pairs", await id_of(rota, "a"))
        with pytest.raises(Conflict, match="already consumed"):
            await rota.workflows.skip("pairs", await id_of(rota, "b"))  # what came of it came of another too
        assert [line for line in await statuses(rota) if line.startswith("out")] == [
            "out of a skipped",
            "out of b+c pending",
        ]
        await rota.workflows.skip("pairs", await id_of(rota, "of b+c"))
        assert (await rota.workflow("pairs"))["pending"] == 0


@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_event_that_is_skipped_while_a_run_decides_makes_it_decide_anew(
    clean_url: str, stubborn: bool
) -> None:
    app, seen = Rota(), []
    flow = Workflow("take", topics=["in"])

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            events = await ctx.peek("in")
            seen.append([event.message_id for event in events])
            if len(events) == 2:
                await rota.workflows.skip("take", events[0].id)
                self.first = [event.id for event in events]
            return Prepare(reservations={"in": self.first if stubborn and events else [event.id for event in events]})

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.pause("take", "gather")
        for name in ("a", "b"):
            await rota.publish("take", "in", message_id=name)
        await rota.workflows.resume("take")
        await rota.drain()
        assert seen[:3] == [[], ["a", "b"], ["b"]]
        assert len(await rota.runs(status=Status.FAILED)) == stubborn
        assert await statuses(rota) == ["in a skipped", "in b pending" if stubborn else "in b consumed"]
