"""What failures come to: backoff, approval, reconciliation, a person's word; and never a second effect."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy import text as sql

from rota import (
    Applied,
    AuthError,
    PermissionDenied,
    Prepare,
    Rota,
    TransientError,
    Unsure,
    Workflow,
    not_applied,
)
from rota.core.effects import EffectStatus
from rota.core.errors import Conflict, Invalid
from rota.core.states import Phase, Status
from rota.db.dialect import Tx
from rota.db.tables import effects, events, workflow_runs
from rota.engine import orgs
from rota.engine.maintenance import Maintenance
from rota.kinds.workflows import reports
from rota.kinds.workflows.rules import legal
from rota.kinds.workflows.store import effects as effects_store
from rota.kinds.workflows.store import upkeep
from rota.kinds.workflows.store import workflow_runs as workflow_runs_store
from rota.testing import World, world
from tests.kinds.workflows.inbox import Inbox, broken_step, make_inbox
from tests.kinds.workflows.test_runs import rows, statuses


async def history(rota: World, handler: str = "AddRow") -> list[str]:
    """The runs of a handler that came to something: attempt, status, phase; each must be a legal pair, and linked."""
    runs = [run for run in await rota.runs() if run.get("handler_id") == handler]
    before = None
    for run in runs:
        if run["status"] != "pending":
            assert legal(Phase(run["phase"]), Status(run["status"]), run["reason"]), run
        assert run["attempt"] == 1 or run["retry_of"] == before
        before = run["id"]
    return [
        f"#{run['attempt']} {run['status']}{': ' + run['reason'] if run['reason'] else ''} {run['phase']}"
        for run in runs
        if run["prepare_result"] is None or run["prepare_result"]["reservations"]
    ]


async def one_mail(rota: World, inbox: Inbox) -> None:
    await rota.drain()
    inbox.calls.clear()
    await rota.publish("inbox", "mail", message_id="1", payload="a")
    await rota.drain()


async def effect_status(rota: World) -> list[str]:
    return [row.status for row in await rows(rota, select(effects.c.status).order_by(effects.c.id))]


# transient


async def test_a_transient_failure_backs_off_and_starts_fresh(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.trouble["prepare"] = [TransientError("busy"), TransientError("busy")]
        await one_mail(rota, inbox)  # the first error hits the run after the deployment
        shown = await rota.workflow("inbox")
        assert (shown["status"], shown["issue"]) == ("idle", "retrying in 10s: busy")
        with pytest.raises(Conflict, match="it retries at"):
            await rota.workflows.run("inbox")
        before = rota.clock.now()
        await rota.advance(seconds=9)
        assert inbox.sheets.rows == []
        await rota.advance(seconds=21)
        assert inbox.sheets.rows == ["a"]
        assert rota.clock.now() - before == timedelta(seconds=30)
        assert (await history(rota))[:3] == [
            "#1 paused: transient preparing",
            "#2 paused: transient preparing",
            "#3 success committed",
        ]


async def test_after_five_tries_a_person_is_asked(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["prepare"] = [TransientError("down") for _ in range(6)]
        await one_mail(rota, inbox)
        await rota.advance(hours=1)
        shown = await rota.workflow("inbox")
        assert shown["status"] == "needs_attention"
        assert "no retries left: down" in shown["issue"]
        assert inbox.count("prepare") == 6
        polls = inbox.count("poll")
        await rota.advance(hours=1)
        assert (inbox.count("prepare"), inbox.count("poll")) == (6, polls)
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]


# logic


async def test_a_logic_failure_stops_the_whole_workflow_until_it_is_resumed(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["prepare"] = [KeyError("subject")]
        await one_mail(rota, inbox)
        inbox.mail = ["b"]
        await rota.advance(minutes=30)
        assert inbox.calls == ["prepare"]
        shown = await rota.workflow("inbox")
        assert shown["status"] == "needs_attention"
        assert shown["issue"].startswith("it failed: KeyError: 'subject'; deploy a version")
        with pytest.raises(Conflict, match="needs attention"):
            await rota.workflows.run("inbox")
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.sheets.rows == ["a", "b"]
        assert (await history(rota))[:2] == ["#1 failed: logic preparing", "#2 success committed"]


async def test_with_isolate_the_others_go_on(clean_url: str) -> None:
    inbox = make_inbox(isolate=True)
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["prepare"] = [KeyError("subject")]
        await one_mail(rota, inbox)
        polls = inbox.count("poll")
        await rota.advance(minutes=10)
        assert inbox.count("poll") == polls + 2
        assert inbox.count("prepare") == 1
        shown = await rota.workflow("inbox")
        assert (shown["status"], shown["issue"]) == (
            "needs_attention",
            "AddRow failed and is on hold; the other handlers continue; see incidents/needs-attention",
        )
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        assert (await history(rota))[:2] == ["#1 failed: logic preparing", "#2 success committed"]


async def test_a_failure_after_the_mutation_only_goes_forward(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["next"] = [KeyError("oops")]
        await one_mail(rota, inbox)
        assert inbox.sheets.rows == ["a"]
        assert await statuses(rota) == ["mail 1 reserved"]
        await rota.workflows.resume("inbox")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        assert inbox.calls[:4] == ["prepare", "mutate", "next", "next"]
        assert inbox.mutations[-1] == ("a", "applied", {"row": 1})
        assert await history(rota) == ["#1 failed: logic emitting", "#2 success committed"]
        assert (await statuses(rota))[0] == "mail 1 consumed"


async def test_an_error_of_a_host_call_ends_the_run_even_if_it_is_swallowed(clean_url: str) -> None:
    app, calls = Rota(), []
    flow = Workflow("sly", topics=["in"])

    @flow.consumer(subscribe=["in"])
    class Sly:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            calls.append("prepare")
            try:
                await ctx.publish("in", message_id="x")
            except BaseException:
                calls.append("swallowed")
            return Prepare()

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        assert calls == ["prepare", "swallowed"]
        (run,) = await rota.runs(status=Status.FAILED)
        assert run["reason"] == "logic"
        assert "publish is not allowed while preparing" in run["error"]["message"]


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        ({"reservations": {"other": ["x"]}}, "not a topic that this consumer subscribes to"),
        ({"reservations": {"in": "x"}}, "not a list of event ids"),
        ({"reservations": {"in": ["01J00000000000000000000000"]}}, "not pending there"),
        ({"reservations": 7}, "not an object of lists"),
    ],
)
async def test_reservations_are_all_or_nothing(clean_url: str, prepared: dict[str, Any], message: str) -> None:
    app = Rota()
    flow = Workflow("w", topics=["in", "other"])

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            events = await ctx.peek("in")
            fields_of_prepare = {**prepared}
            if isinstance(fields_of_prepare["reservations"], dict) and isinstance(
                fields_of_prepare["reservations"].get("in"), list
            ):
                fields_of_prepare["reservations"] = {
                    "in": [*fields_of_prepare["reservations"]["in"], *(event.id for event in events)]
                }
            return Prepare(**fields_of_prepare)

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.publish("w", "in", message_id="1")
        await rota.drain()
        (run,) = await rota.runs(status=Status.FAILED)
        assert message in run["error"]["message"]
        assert [row.status for row in await rows(rota, select(events))] == ["pending"]


# approval


async def test_an_auth_error_waits_for_approval_and_then_continues(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["prepare"] = [AuthError("reconnect Gmail")]
        await one_mail(rota, inbox)
        shown = await rota.workflow("inbox")
        assert (shown["status"], shown["issue"]) == (
            "needs_attention",
            "waiting for you: reconnect Gmail; see incidents/needs-attention",
        )
        await rota.workflows.resolve("inbox", "approve", None, "ada")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        assert (await history(rota))[0] == "#1 paused: approval preparing"


async def test_a_denied_mutation_surely_failed_and_is_done_again_when_approved(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.fails = [PermissionDenied("no write access")]
        await one_mail(rota, inbox)
        assert await effect_status(rota) == ["failed"]
        await rota.workflows.resolve("inbox", "approve", None, "ada")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        assert await history(rota) == ["#1 paused: approval mutated", "#2 success committed"]


async def test_a_rejected_run_skips_its_events_and_the_workflow_continues(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.fails = [PermissionDenied("no write access")]
        await one_mail(rota, inbox)
        await rota.publish("inbox", "mail", message_id="2", payload="b")
        await rota.workflows.resolve("inbox", "reject", None, "ada")
        await rota.drain()
        assert inbox.sheets.rows == ["b"]
        assert [line for line in await statuses(rota) if line.startswith("mail")] == [
            "mail 1 skipped",
            "mail 2 consumed",
        ]


async def mail_statuses(rota: World) -> list[str]:
    return [line for line in await statuses(rota) if line.startswith("mail")]


@pytest.mark.parametrize("isolate", [False, True])
async def test_rejecting_a_failed_prepare_skips_its_only_event(clean_url: str, isolate: bool) -> None:
    inbox = make_inbox(isolate=isolate)
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        inbox.trouble["prepare"] = [KeyError("subject")]
        await one_mail(rota, inbox)
        await rota.workflows.resolve("inbox", "reject", None, "ada")
        await rota.drain()
        assert await mail_statuses(rota) == ["mail 1 skipped"]
        shown = await rota.workflow("inbox")
        assert (shown["status"], shown["issue"]) == ("idle", None)
        await rota.publish("inbox", "mail", message_id="2", payload="b")
        await rota.drain()
        assert inbox.sheets.rows == ["b"]


async def test_rejecting_a_failed_prepare_skips_the_oldest_event_and_looks_at_the_rest(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.workflows.pause("inbox", "")
        for number in ("1", "2"):
            await rota.publish("inbox", "mail", message_id=number, payload=number)
        inbox.trouble["prepare"] = [KeyError("subject")]
        await rota.workflows.resume("inbox")
        await rota.drain()
        await rota.workflows.resolve("inbox", "reject", None, "ada")
        await rota.drain()
        assert await mail_statuses(rota) == ["mail 1 skipped", "mail 2 consumed"]
        assert inbox.sheets.rows == ["2"]


async def test_an_event_that_came_after_a_failed_prepare_is_not_skipped(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.trouble["prepare"] = [KeyError("at deploy, without any event")]
        await rota.drain()
        await rota.advance(seconds=1)
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await rota.workflows.resolve("inbox", "reject", None, "ada")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]


def lose_needs(tx: Tx) -> None:
    """What rejecting a run did to its consumer before."""
    tx.execute(sql("DELETE FROM jobs"))
    tx.execute(sql("UPDATE handlers SET dirty = false"))


async def test_maintenance_finds_a_consumer_that_missed_an_event(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.advance(seconds=1)
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await rota.engine.db.tx(lose_needs)
        await rota.drain()
        assert inbox.sheets.rows == []
        missed = await rota.engine.db.read(upkeep.stranded_consumers)
        assert [handler.name for handler in missed] == ["inbox.AddRow"]
        await Maintenance(rota.engine).reconcile()
        await rota.drain()
        assert inbox.sheets.rows == ["a"]


async def test_maintenance_leaves_alone_what_a_consumer_saw_and_left_waiting(clean_url: str) -> None:
    app, looks = Rota(), []
    flow = Workflow("pairs", topics=["halves"])

    @flow.consumer(subscribe=["halves"])
    class Pair:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            waiting = await ctx.peek("halves")
            looks.append(len(waiting))
            return Prepare(reservations={"halves": [event.id for event in waiting] if len(waiting) == 2 else []})

    app.workflow(flow)
    async with world(app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.publish("pairs", "halves", message_id="1")
        await rota.drain()
        await rota.advance(seconds=1)
        await Maintenance(rota.engine).reconcile()
        await rota.drain()
        assert looks == [0, 1]


# the ledger


async def test_the_ledger_has_the_outcome_of_a_mutation(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await one_mail(rota, inbox)
        inbox.sheets.breaks = [ConnectionError("no answer")]  # reconciled in the same attempt
        await rota.publish("inbox", "mail", message_id="2", payload="b")
        await rota.drain()
        ledger = await rows(rota, select(workflow_runs).order_by(workflow_runs.c.id))
        outcomes = [(row.handler_id, row.mutation_outcome) for row in ledger if row.prepare_result]
        assert outcomes.count(("AddRow", "applied")) == 2
        assert {outcome for handler, outcome in outcomes if handler == "Notify"} == {"none"}


async def test_next_is_a_separate_phase_in_the_ledger(clean_url: str) -> None:
    inbox = make_inbox()
    phases: list[str] = []
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()

        async def look(step: str) -> None:
            if step == "next":
                phases.extend(row.phase for row in await rows(rota, select(workflow_runs.c.phase)))

        inbox.during = look
        inbox.trouble["next"] = [KeyError("subject")]
        await one_mail(rota, inbox)
        assert "emitting" in phases
        assert await history(rota) == ["#1 failed: logic emitting"]


async def test_a_mutation_moves_only_as_its_table_allows(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await one_mail(rota, inbox)
        (effect,) = await rows(rota, select(effects.c.id))
        now = rota.clock.now()
        await rota.engine.db.tx(effects_store.move_effect, effect.id, EffectStatus.APPLIED, now)  # a repeat
        for status in (
            EffectStatus.FAILED,
            EffectStatus.NEEDS_RECONCILE,
            EffectStatus.INDETERMINATE,
            EffectStatus.IN_FLIGHT,
        ):
            with pytest.raises(Conflict, match="is applied and cannot become"):
                await rota.engine.db.tx(effects_store.move_effect, effect.id, status, now)
        assert await effect_status(rota) == ["applied"]


# reconciliation


async def test_no_answer_but_the_service_knows_it_was_applied(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.breaks = [TimeoutError("no answer")]
        await one_mail(rota, inbox)
        assert (inbox.sheets.rows, inbox.sheets.asked) == (["a"], 1)
        assert inbox.mutations[-1] == ("a", "applied", {"row": "found"})
        assert await history(rota) == ["#1 success committed"]


async def test_no_answer_and_the_service_knows_it_was_not_applied(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.fails = [ConnectionError("refused")]
        await one_mail(rota, inbox)
        assert await effect_status(rota) == ["failed"]
        await rota.advance(seconds=10)
        assert inbox.sheets.rows == ["a"]
        assert await history(rota) == ["#1 paused: transient mutated", "#2 success committed"]


async def test_an_unknown_outcome_is_reconciled_and_mutate_is_not_called_again(clean_url: str) -> None:
    """UNKNOWN_IS_NOT_FAILED."""
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.breaks = [ConnectionError("cut")]
        inbox.sheets.answers = [Unsure(), RuntimeError("also down"), Unsure(), Applied({"row": 1})]
        await one_mail(rota, inbox)
        assert await effect_status(rota) == ["needs_reconcile"]
        outputs, _ = await rota.engine.db.read(reports.list_outputs, rota.org_id, "inbox")
        assert outputs[0]["warning"] == "no answer; its service will be asked whether it happened"
        await rota.advance(seconds=70)
        assert inbox.sheets.rows == ["a"]
        assert (inbox.count("mutate"), inbox.sheets.asked) == (1, 4)
        assert await history(rota) == [
            "#1 paused: reconciliation mutating",
            "#2 paused: reconciliation mutating",
            "#3 paused: reconciliation mutating",
            "#4 success committed",
        ]


async def unclear(rota: World, inbox: Inbox) -> None:
    """A mutation that happened, of which even its service does not know."""
    inbox.sheets.breaks = [ConnectionError("cut")]
    inbox.sheets.answers = [Unsure() for _ in range(6)]
    await one_mail(rota, inbox)
    await rota.advance(hours=1)
    assert inbox.sheets.asked == 6  # inline, then five times at 10, 20, 40, 80, 160 s
    assert await effect_status(rota) == ["indeterminate"]
    shown = await rota.workflow("inbox")
    assert shown["status"] == "needs_attention"
    assert "resolve it as applied" in shown["issue"]
    assert shown["issue"].endswith("see incidents/outcome-unknown")


async def test_a_person_says_it_was_applied(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await unclear(rota, inbox)
        with pytest.raises(Conflict, match="unknown outcome"):
            await rota.workflows.resume("inbox")
        with pytest.raises(Conflict, match="resolve it as applied"):
            await rota.workflows.resolve("inbox", "approve", None, "ada")
        await rota.workflows.resolve("inbox", "applied", {"row": 7}, "ada")
        await rota.drain()
        assert inbox.mutations[-1] == ("a", "applied", {"row": 7})
        assert (inbox.sheets.rows, inbox.count("mutate")) == (["a"], 1)


async def test_a_person_says_it_was_not_applied(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await unclear(rota, inbox)
        inbox.sheets.rows.clear()
        await rota.workflows.resolve("inbox", "not_applied", None, "ada")
        await rota.drain()
        assert (inbox.sheets.rows, inbox.count("mutate"), inbox.count("prepare")) == (["a"], 2, 2)
        assert len(set(inbox.sheets.keys)) == 2  # it is another effect with its own key


async def test_a_person_skips_it(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await unclear(rota, inbox)
        await rota.workflows.resolve("inbox", "skip", None, "ada")
        await rota.drain()
        assert inbox.mutations[-1] == ("a", "skipped", None)
        assert (await statuses(rota))[0] == "mail 1 skipped"
        assert inbox.count("mutate") == 1


async def test_a_person_has_it_asked_again(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await unclear(rota, inbox)
        await rota.workflows.resolve("inbox", "try_again", None, "ada")
        await rota.drain()
        assert inbox.mutations[-1] == ("a", "applied", {"row": "found"})
        assert inbox.count("mutate") == 1


async def test_a_mutation_that_cannot_be_asked_about_waits_for_a_person_at_once(clean_url: str) -> None:
    inbox = make_inbox("sheets.blind")
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.breaks = [ConnectionError("cut")]
        await one_mail(rota, inbox)
        assert await effect_status(rota) == ["indeterminate"]
        await rota.advance(hours=2)
        assert inbox.count("mutate") == 1
        await rota.workflows.resolve("inbox", "applied", None, "ada")
        await rota.drain()
        assert (inbox.sheets.rows, inbox.mutations[-1]) == (["a"], ("a", "applied", None))


async def test_an_error_that_knows_the_effect_did_not_happen_is_simply_tried_again(clean_url: str) -> None:
    inbox = make_inbox("sheets.blind")
    async with world(inbox.app, database_url=clean_url) as rota:
        inbox.sheets.fails = [not_applied(TransientError("too many requests"))]
        await one_mail(rota, inbox)
        await rota.advance(seconds=10)
        assert inbox.sheets.rows == ["a"]


async def test_what_is_not_waiting_cannot_be_resolved(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        with pytest.raises(Conflict, match="no run that needs a decision"):
            await rota.workflows.resolve("inbox", "skip", None, "ada")
        with pytest.raises(Invalid, match="resolution"):
            await rota.workflows.resolve("inbox", "maybe", None, "ada")
        with pytest.raises(Conflict, match="neither paused nor stuck"):
            await rota.workflows.resume("inbox")


# our own bugs, and what should not be


async def test_our_own_bug_stops_the_workflow(clean_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        monkeypatch.setattr(workflow_runs_store, "save_decision", broken_step)
        await one_mail(rota, inbox)
        monkeypatch.undo()
        shown = await rota.workflow("inbox")
        assert shown["status"] == "needs_attention"
        assert shown["issue"].startswith("Rota failed internally")


async def test_orphaned_reservations_are_reported_not_released(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        assert await rota.engine.db.read(upkeep.orphaned_events) == []

        def strand(tx: Any) -> None:
            tx.execute(events.update().values(status="reserved", reserved_by="01J00000000000000000000000"))

        await rota.engine.db.tx(strand)
        await rota.drain()
        assert [row.topic for row in await rota.engine.db.read(upkeep.orphaned_events)] == ["mail"]
        assert await statuses(rota) == ["mail 1 reserved"]


async def test_a_second_mutation_is_refused(clean_url: str) -> None:
    app, seen = Rota(), make_inbox()
    flow = Workflow("twice", topics=["in"])

    @flow.consumer(subscribe=["in"])
    class Twice:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare(reservations={"in": [event.id for event in await ctx.peek("in")]})

        async def mutate(self, ctx: Any, prepared: Prepare) -> None:
            await ctx.call("sheets.append", row=1)
            await ctx.call("sheets.append", row=2)

    app.workflow(flow)
    app.connector("sheets", seen.sheets)
    async with world(app, database_url=clean_url) as rota:
        await rota.publish("twice", "in", message_id="1")
        await rota.drain()
        (run,) = await rota.runs(status=Status.FAILED)
        assert "a mutation must be the last call" in run["error"]["message"]
        assert seen.sheets.rows == [1]


async def test_consumers_stop_with_the_grant_of_their_workflow_and_go_on_with_another(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        engine, org_id = rota.engine, rota.org_id
        owner = await engine.db.tx(orgs.system_user, org_id, rota.clock.now())
        flow_id = (await rota.workflow("inbox"))["id"]
        first, second = [
            await engine.create_grant(org_id, owner, [f"workflow:run:{name}"]) for name in ("inbox", flow_id)
        ]
        await engine.edit_schedule(org_id, "inbox.poll", {"grant_id": first})
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        await engine.revoke_grant(org_id, first)
        await rota.publish("inbox", "mail", message_id="2", payload="b")
        await rota.drain()
        assert inbox.sheets.rows == ["a"]
        skipped = [(run["status"], run["reason"]) for run in await rota.runs() if run["status"] == "skipped"]
        assert skipped == [("skipped", "grant_revoked")]
        await engine.edit_schedule(org_id, "inbox.poll", {"grant_id": second})
        await Maintenance(engine).reconcile()
        await rota.drain()
        assert inbox.sheets.rows == ["a", "b"]
        polls = inbox.count("poll")
        await rota.advance(minutes=6)
        assert inbox.count("poll") == polls + 1  # a scope by id covers producers too


async def test_consumers_of_one_run_after_the_other_look_at_the_grant_each_time(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        await rota.drain()
        engine, org_id = rota.engine, rota.org_id
        owner = await engine.db.tx(orgs.system_user, org_id, rota.clock.now())
        grant = await engine.create_grant(org_id, owner, ["workflow:run:inbox"])
        await engine.edit_schedule(org_id, "inbox.poll", {"grant_id": grant})

        async def revoke(step: str) -> None:
            if step == "next":
                await engine.revoke_grant(org_id, grant)

        inbox.during = revoke
        await rota.publish("inbox", "mail", message_id="1", payload="a")
        await rota.drain()
        assert (inbox.sheets.rows, inbox.notified) == (["a"], [])  # what ran finished; the next consumer did not begin
