"""Runs of workflows: order, what commits together, and that no event is handled twice."""

from typing import Any

import pytest
from sqlalchemy import select

from rota import Prepare, Rota, Workflow, every
from rota.app import doctor
from rota.core.errors import Conflict
from rota.db.tables import events, handlers, jobs, workflow_runs
from rota.engine import orgs, schedules
from rota.engine.maintenance import Maintenance
from rota.kinds.workflows import reports
from rota.kinds.workflows.store import upkeep
from rota.reports import schedules as schedule_reports
from rota.testing import World, world
from tests.kinds.workflows.inbox import make_inbox


async def rows(rota: World, stmt: Any) -> list[Any]:
    return await rota.engine.db.read(lambda tx: list(tx.execute(stmt)))


async def statuses(rota: World) -> list[str]:
    event_rows = await rows(rota, select(events).order_by(events.c.id))
    return [f"{row.topic} {row.message_id} {row.status}" for row in event_rows]


async def test_each_mail_becomes_one_row(clean_url: str) -> None:
    inbox = make_inbox()
    inbox.mail = ["a", "b"]
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        assert inbox.sheets.rows == ["a", "b"]
        assert inbox.notified == ["a", "b"]
        assert inbox.mutations[-2:] == [("a", "applied", {"row": 1}), ("b", "applied", {"row": 2})]
        assert set(await statuses(rota)) == {
            "mail 0 consumed",
            "mail 1 consumed",
            "rows row-a consumed",
            "rows row-b consumed",
        }
        inbox.mail.append("c")
        await rota.advance(minutes=5)
        assert inbox.sheets.rows == ["a", "b", "c"]
        phases = await rows(rota, select(workflow_runs.c.phase).distinct())
        assert [row.phase for row in phases] == ["committed"]
        shown = await rota.workflow("inbox")
        assert (shown["status"], shown["issue"], shown["pending"]) == ("idle", None, 0)
        assert shown["schedule"] == "checks every 5 minutes"
        assert shown["next_check"] == "in 5m"
        assert "row for c → published 1 row" in [line["text"] for line in shown["recent"]]


async def test_an_idle_workflow_calls_no_handler(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        assert (inbox.count("poll"), inbox.count("prepare"), inbox.count("notify")) == (1, 1, 1)
        await rota.advance(hours=1)
        assert (inbox.count("poll"), inbox.count("prepare"), inbox.count("notify")) == (13, 1, 1)
        assert await rows(rota, select(jobs)) == []


async def test_a_publish_during_a_run_is_not_swallowed(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        late = iter(["y", "z"])

        async def publish() -> None:
            text = next(late, None)
            if text is not None:
                await rota.publish("inbox", "mail", message_id=text, payload=text)

        inbox.during = lambda step: publish() if step == "next" else None
        await rota.publish("inbox", "mail", message_id="x", payload="x")
        await rota.drain()
        assert inbox.sheets.rows == ["x", "y", "z"]


async def test_an_event_after_an_empty_prepare_wakes_the_consumer_again(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:

        async def publish() -> None:
            await rota.publish("inbox", "mail", message_id="late", payload="late")

        inbox.during = lambda step: publish() if step == "next" and not inbox.sheets.rows else None
        await rota.drain()  # the run after the deployment finds nothing; the event is published before it commits
        assert inbox.sheets.rows == ["late"]


async def test_the_same_message_replaces_while_pending_and_never_after(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.pause("inbox", "look")
        assert await rota.publish("inbox", "mail", message_id="1", payload="old") == "created"
        assert await rota.publish("inbox", "mail", message_id="1", payload="new") == "replaced"
        await rota.drain()
        assert inbox.sheets.rows == []
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.sheets.rows == ["new"]
        assert await rota.publish("inbox", "mail", message_id="1", payload="newer") == "kept"
        await rota.drain()
        assert inbox.sheets.rows == ["new"]


async def test_paused_workflows_start_nothing_while_triggers_gather(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.pause("inbox", "holiday")
        inbox.mail = ["a"]
        before = len(inbox.calls)
        await rota.advance(hours=2)
        assert len(inbox.calls) == before
        shown = await rota.workflow("inbox")
        assert (shown["status"], shown["issue"]) == ("stopped", "paused: holiday")
        with pytest.raises(Conflict, match="paused"):
            await rota.workflows.run("inbox")
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.calls[before:].count("poll") == 1  # 24 slots were coalesced into one
        assert inbox.sheets.rows == ["a"]


async def test_run_now_queues_all_producers_and_keeps_the_grid(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.advance(minutes=3)
        before = (await rota.workflow("inbox"))["next_check_at"]
        await rota.workflows.run("inbox")
        await rota.drain()
        assert inbox.count("poll") == 2
        assert (await rota.workflow("inbox"))["next_check_at"] == before
        assert [run["trigger"] for run in await rota.runs() if run["handler_id"] == "poll"] == ["deploy", "manual"]


async def test_run_now_is_refused_while_a_run_is_active(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        refused: list[str] = []

        async def ask() -> None:
            with pytest.raises(Conflict, match="has an active run") as caught:
                await rota.workflows.run("inbox")
            refused.append(caught.value.message)
            assert (await rota.workflow("inbox"))["status"] == "running"

        inbox.during = lambda step: ask() if step == "poll" else None
        await rota.drain()
        assert len(refused) == 1


async def test_consumers_go_before_producers_and_the_oldest_event_first(clean_url: str) -> None:
    order: list[str] = []
    app = Rota()
    flow = Workflow("two", topics=["a", "b"])

    @flow.producer(schedule=every("1m"), publishes=["a"])
    async def poll(ctx: Any, state: Any) -> None:
        order.append("poll")

    def taker(topic: str) -> Any:
        class Take:
            async def prepare(self, ctx: Any, state: Any) -> Prepare:
                events = await ctx.peek(topic, limit=1)
                order.extend(event.message_id for event in events)
                return Prepare(reservations={topic: [event.id for event in events]})

        return Take

    flow.consumer(subscribe=["a"], name="A")(taker("a"))
    flow.consumer(subscribe=["b"], name="B")(taker("b"))
    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.pause("two", "gather")
        for topic, message in (("b", "b1"), ("a", "a1"), ("a", "a2"), ("b", "b2")):
            await rota.publish("two", topic, message_id=message)
        await rota.advance(minutes=1)
        order.clear()
        await rota.workflows.resume("two")
        await rota.drain()
        assert order == ["b1", "a1", "a2", "b2", "poll"]


async def test_events_are_marked_with_what_they_go_back_to(clean_url: str) -> None:
    inbox = make_inbox()
    inbox.mail = ["a"]
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        events_page, _ = await rota.engine.db.read(reports.list_events, rota.org_id, "inbox")
        mail = next(event for event in events_page if event["topic"] == "mail")
        row = next(event for event in events_page if event["topic"] == "rows")
        assert (mail["source"], mail["caused_by"]) == ("poll", [mail["id"]])
        assert (row["source"], row["caused_by"]) == (None, [mail["id"]])
        inputs, _ = await rota.engine.db.read(reports.list_inputs, rota.org_id, "inbox", rota.clock.now())
        assert [(entry["title"], entry["status"]) for entry in inputs] == [("mail a", "done")]
        outputs, _ = await rota.engine.db.read(reports.list_outputs, rota.org_id, "inbox")
        assert [(entry["call"], entry["title"], entry["inputs"]) for entry in outputs] == [
            ("sheets.append", "row for a", 1)
        ]


async def test_a_deploy_that_changes_nothing_runs_nothing(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
    assert (inbox.count("poll"), inbox.count("prepare")) == (1, 1)


async def test_a_new_version_looks_again_and_is_recorded_on_its_runs(clean_url: str) -> None:
    first, second = make_inbox(version="1"), make_inbox(version="2")
    async with world(first.app, database_url=clean_url) as rota:
        await rota.drain()
    async with world(second.app, database_url=clean_url) as rota:
        await rota.drain()
        assert (second.count("prepare"), second.count("poll")) == (1, 0)  # its schedule did not change
        assert {run["target_version"] for run in await rota.runs()} == {"1", "2"}


async def test_a_workflow_that_vanished_from_its_program_is_paused(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
    async with world(Rota(), database_url=clean_url) as rota:
        assert (await rota.workflow("inbox"))["issue"] == "paused: no longer declared in the program"
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        assert (await rota.workflow("inbox"))["status"] == "idle"


async def test_state_is_each_handlers_own(clean_url: str) -> None:
    inbox = make_inbox()
    inbox.mail = ["a"]
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        states = await rows(rota, select(handlers.c.name, handlers.c.state))
        assert {row.name: row.state for row in states} == {"poll": 1, "AddRow": {"last": "a"}, "Notify": None}


async def test_a_program_that_starts_again_leaves_its_producers_planned(clean_url: str) -> None:
    for _ in range(2):
        async with world(make_inbox().app, database_url=clean_url) as rota:
            schedules, _ = await rota.engine.db.read(lambda tx: schedule_reports.list_schedules(tx, rota.org_id))
            assert [(plan["name"], plan["paused"]) for plan in schedules] == [("inbox.poll", False)]


async def test_a_producer_whose_schedule_was_deleted_is_planned_again(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        engine, org_id = rota.engine, rota.org_id
        grant = await engine.create_grant(
            org_id,
            await engine.db.tx(orgs.system_user, org_id, rota.clock.now()),
            ["workflow:run:inbox"],
        )
        await engine.edit_schedule(org_id, "inbox.poll", {"grant_id": grant})
        first = await engine.db.read(schedules.get, org_id, "inbox.poll")
        await engine.db.tx(schedules.delete_if_exists, org_id, first.id, rota.clock.now())
        findings = [finding async for finding in doctor.check_database(engine.db, None, wake_ups=False)]
        assert ("producers", "wrong") in [(finding.what, finding.verdict) for finding in findings]
        await Maintenance(engine).reconcile()
        again = await engine.db.read(schedules.get, org_id, "inbox.poll")
        assert (again.id != first.id, again.grant_id, again.source) == (True, grant, first.source)
        polls = inbox.count("poll")
        await rota.advance(minutes=6)
        assert inbox.count("poll") == polls + 1
        assert await engine.db.read(upkeep.lost_producers) == []
        await Maintenance(engine).reconcile()  # a no-op
