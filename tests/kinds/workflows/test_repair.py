"""Scripts that mend themselves: who may propose what, how often, and what a proposal can never do."""

import asyncio
import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rota.core.errors import Conflict
from rota.core.states import Phase, Status
from rota.kinds.workflows.rules import legal
from rota.kinds.workflows.scripts.repair import CommandRepairer
from rota.kinds.workflows.store import upkeep
from rota.testing import MONDAY, World, count_from_here, dies_at, world
from tests.kinds.workflows.inbox import Sheets
from tests.kinds.workflows.letters import (
    RENAMED,
    SCRIPT,
    deploy,
    history,
    program,
    repairer,
    send,
    versions,
)
from tests.kinds.workflows.test_crashes import Folder, fresh
from tests.kinds.workflows.test_crashes import program as folder_program

FAILED = ("1.0", "failed: logic", "preparing")


async def test_a_field_that_was_renamed_is_repaired(clean_url: str, tmp_path: Path) -> None:
    sheets = Sheets()
    async with world(program(sheets), database_url=clean_url, repairer=repairer(tmp_path, RENAMED)) as rota:
        await deploy(rota)
        await send(rota, "1", title="Hello", password="hunter2")
        assert await history(rota) == [FAILED, ("1.1", "success", "committed")]
        failed, again = [run for run in await rota.runs(kind="workflow") if run.get("handler_id") == "AddRow"][-2:]
        assert again["retry_of"] == failed["id"]
        assert sheets.rows == ["Hello"]
        assert await versions(rota) == [("1.0", "accepted"), ("1.1", "accepted")]
        assert (await rota.workflow("letters"))["issue"] is None
        request = json.loads((tmp_path / "asked-0").read_text())
        assert {name: request[name] for name in ("workflow", "version", "handler", "phase", "proposals", "source")} == {
            "workflow": "letters",
            "version": "1.0",
            "handler": "AddRow",
            "phase": "preparing",
            "proposals": [],
            "source": SCRIPT,
        }
        assert request["error"]["type"] == "KeyError"
        assert 'line 13, in <listcomp>\n    data=[event.payload["subject"]' in request["error"]["traceback"]
        assert request["inputs"]["events"]["mail"] == [
            {"message_id": "1", "payload": {"title": "Hello", "password": "***"}}
        ]
        (repair,) = await rota.runs(kind="repair")
        assert (repair["status"], repair["outcome"]) == ("success", {"outcome": "accepted", "why": None})
        change = await rota.workflows.version("letters", "1.1")
        assert '+            data=[event.payload.get("subject") or event.payload["title"]' in change["diff"]
        assert (change["run_id"], change["live"]) == (failed["id"], True)


async def test_a_next_that_fails_after_the_mutation_is_repaired_at_emitting(clean_url: str, tmp_path: Path) -> None:
    sheets = Sheets()
    wrong = SCRIPT.replace(
        '        return {"last"', '        prepared.data and prepared.missing\n        return {"last"'
    )
    async with world(program(sheets), database_url=clean_url, repairer=repairer(tmp_path, SCRIPT)) as rota:
        await deploy(rota, wrong)
        await send(rota, "1", subject="a")
        assert await history(rota) == [("1.0", "failed: logic", "emitting"), ("1.1", "success", "committed")]
        assert sheets.rows == ["a"]
        request = json.loads((tmp_path / "asked-0").read_text())
        assert request["inputs"]["prepared"]["data"] == ["a"]
        assert request["inputs"]["mutation"] == {"status": "applied", "result": {"row": 1}}
        failed, again = [run for run in await rota.runs(kind="workflow") if run.get("handler_id") == "AddRow"][-2:]
        assert (again["retry_of"], again["prepare_result"]) == (failed["id"], failed["prepare_result"])


async def test_two_repairs_then_a_person(clean_url: str, tmp_path: Path) -> None:
    """Three failures in a row: the third one is a person's. A new version by a person has its own budget, and so has
    whatever fails after a run was committed."""
    answers = repairer(tmp_path, SCRIPT + "\n# one", SCRIPT + "\n# two", "", RENAMED)
    async with world(program(), database_url=clean_url, repairer=answers) as rota:
        await deploy(rota)
        await send(rota, "1", title="a")
        assert await history(rota) == [FAILED, ("1.1", *FAILED[1:]), ("1.2", *FAILED[1:])]
        assert await versions(rota) == [("1.0", "accepted"), ("1.1", "accepted"), ("1.2", "accepted")]
        seen = await rota.workflow("letters")
        assert seen["status"] == "needs_attention"
        assert seen["issue"] == (
            "it failed: KeyError: 'subject' (line 13); it could not be repaired (1.1 did not help; 1.2 did not help): "
            "deploy a version that does not fail, then resume; see incidents/needs-attention"
        )
        await rota.workflows.resume("letters")
        await rota.drain()
        assert len(await rota.runs(kind="repair")) == 2
        await deploy(rota, RENAMED, "letters")
        await rota.workflows.resume("letters")
        await rota.drain()
        assert (await history(rota))[-1] == ("2.0", "success", "committed")


async def test_a_committed_run_renews_the_budget(clean_url: str, tmp_path: Path) -> None:
    """Each letter brings a new name for the subject, and each repair learns one."""
    learned = [SCRIPT.replace('event.payload["subject"]', f'event.payload["{name}"]') for name in ("a", "b", "c")]
    async with world(program(), database_url=clean_url, repairer=repairer(tmp_path, *learned)) as rota:
        await deploy(rota)
        for number, name in enumerate("abc"):
            await send(rota, str(number), **{name: "x"})
        assert (await rota.workflow("letters"))["issue"] is None
        assert [version for version, _ in await versions(rota)] == ["1.0", "1.1", "1.2", "1.3"]
        assert len(json.loads((tmp_path / "asked-2").read_text())["proposals"]) == 2


WIDER = {
    "does not parse": ("def (", "cannot be loaded: invalid syntax (line 1)"),
    "loops": ("while True: pass", "took longer than 5 s to load"),
    "is empty": ("", "the repairer had no proposal"),
    "fails": ("fail", "the repairer failed (exit code 3)"),
    "another name": (RENAMED.replace('"letters"', '"others"'), "it changes name: 'letters' became 'others'"),
    "another topic": (RENAMED.replace('"rows"', '"lines"'), "it changes topics"),
    "another connector": (RENAMED.replace('["sheets.append"]', '["sheets"]'), "it adds connectors: sheets"),
    "one more": (RENAMED.replace('["sheets.append"]', '["sheets.append", "mail"]'), "it adds connectors: mail"),
    "no repair": (RENAMED.replace('connectors=["sheets', 'repair="off", connectors=["sheets'), "it changes repair"),
    "another handler": (RENAMED.replace("class Notify", "class Announce"), "it changes the handlers: AddRow, Notify"),
    "publishes less": (RENAMED.replace('"rows"])\nclass Notify', '"rows"])\nclass Notify').replace(
        'subscribe=["mail"], publishes=["rows"]', 'subscribe=["mail", "rows"], publishes=["rows"]'),
        "it changes subscribe of AddRow"),
    "acts where it did not": (RENAMED + "\n    async def mutate(self, ctx, prepared):\n        pass\n",
        "it changes steps of Notify"),
}  # fmt: skip


@pytest.mark.parametrize("change", WIDER)
async def test_a_proposal_that_widens_or_breaks_the_workflow_is_refused_and_counts(
    change: str, clean_url: str, tmp_path: Path
) -> None:
    wrong, why = WIDER[change]
    async with world(program(), database_url=clean_url, repairer=repairer(tmp_path, wrong, wrong)) as rota:
        await deploy(rota)
        await send(rota, "1", title="a")
        assert await history(rota) == [FAILED]
        assert await versions(rota) == [("1.0", "accepted"), ("1.1", "refused"), ("1.2", "refused")]
        seen = await rota.workflow("letters")
        assert (seen["version"], seen["status"]) == ("1.0", "needs_attention")
        assert why in seen["issue"]
        proposals = json.loads((tmp_path / "asked-1").read_text())["proposals"]
        assert [(version["version"], version["outcome"], why in version["why"]) for version in proposals] == [
            ("1.1", "refused", True)
        ]


async def test_a_refused_proposal_is_followed_by_a_better_one(clean_url: str, tmp_path: Path) -> None:
    async with world(program(), database_url=clean_url, repairer=repairer(tmp_path, "def (", RENAMED)) as rota:
        await deploy(rota)
        await send(rota, "1", title="a")
        assert await history(rota) == [FAILED, ("1.2", "success", "committed")]
        assert await versions(rota) == [("1.0", "accepted"), ("1.1", "refused"), ("1.2", "accepted")]


async def test_a_repairer_that_never_answers_is_stopped(clean_url: str, tmp_path: Path) -> None:
    slow = repairer(tmp_path, "sleep", RENAMED, seconds=1)
    async with world(program(), database_url=clean_url, repairer=slow) as rota:
        await deploy(rota)
        await send(rota, "1", title="a")
        assert (await history(rota))[-1] == ("1.2", "success", "committed")
        version = await rota.workflows.version("letters", "1.1")
        assert version["why"] == "the repairer gave no answer in 1 s"


ASKS = SCRIPT.replace('connectors=["sheets', 'repair="ask", connectors=["sheets')


async def test_where_a_person_is_asked_nothing_happens_without_them(clean_url: str, tmp_path: Path) -> None:
    right = RENAMED.replace('connectors=["sheets', 'repair="ask", connectors=["sheets')
    answers = repairer(tmp_path, ASKS + "\n# no use", right)
    async with world(program(), database_url=clean_url, repairer=answers) as rota:
        await deploy(rota, ASKS)
        await send(rota, "1", title="a")
        assert await history(rota) == [FAILED]
        assert "version 1.1 would repair it: accept or reject it" in (await rota.workflow("letters"))["issue"]
        with pytest.raises(Conflict, match=r"version 1\.0 of workflow 'letters' is accepted"):
            await rota.workflows.decide("letters", "1.0", True, "", "ada")
        await rota.workflows.decide("letters", "1.1", False, "it changes nothing", "ada")
        await rota.drain()
        proposals = json.loads((tmp_path / "asked-1").read_text())["proposals"]
        assert [(each["outcome"], each["why"]) for each in proposals] == [("rejected", "it changes nothing")]
        await rota.workflows.decide("letters", "1.2", True, "", "ada")
        await rota.drain()
        assert await history(rota) == [FAILED, ("1.2", "success", "committed")]
        assert (await rota.workflows.version("letters", "1.2"))["decided_by"] == "ada"


async def test_a_deployment_by_a_person_wins_over_a_repair(clean_url: str, tmp_path: Path) -> None:
    right = RENAMED.replace('connectors=["sheets', 'repair="ask", connectors=["sheets')
    async with world(program(), database_url=clean_url, repairer=repairer(tmp_path, right, right)) as rota:
        await deploy(rota, ASKS)
        await send(rota, "1", title="a")
        await deploy(rota, right, "letters")
        await rota.workflows.resume("letters")
        await rota.drain()
        with pytest.raises(Conflict, match=r"no longer needs version 1\.1"):
            await rota.workflows.decide("letters", "1.1", True, "", "ada")
        assert (await rota.workflow("letters"))["version"] == "2.0"


async def test_only_what_is_wrong_is_repaired(clean_url: str, tmp_path: Path) -> None:
    """Not transient failures, not runs that wait for a person, not unknown outcomes."""
    async with world(program(), database_url=clean_url, repairer=repairer(tmp_path, RENAMED, RENAMED)) as rota:
        for body in ("raise TimeoutError", 'from rota import AuthError; raise AuthError("x")'):
            name = f"w{len(body)}"
            script = SCRIPT.replace('"letters"', f'"{name}"')
            await deploy(rota, script.replace('waiting = await ctx.peek("mail", limit=1)', body))
            await rota.drain()
        assert {run["reason"] for run in await rota.runs(kind="workflow", status=Status.PAUSED)} == {
            "transient",
            "approval",
        }
        assert await rota.runs(kind="repair") == []


async def test_nothing_is_repaired_while_an_effect_is_unclear(clean_url: str, tmp_path: Path) -> None:
    blind = SCRIPT.replace("sheets.append", "sheets.blind").replace(
        '"rows"], connectors', '"rows"], isolate=True, connectors'
    )
    sheets = Sheets(breaks=[OSError("gone")])
    async with world(program(sheets), database_url=clean_url, repairer=repairer(tmp_path, SCRIPT, SCRIPT)) as rota:
        await deploy(rota, blind)
        await send(rota, "1", subject="a")
        assert (await rota.workflow("letters"))["status"] == "needs_attention"
        await deploy(rota, blind.replace('[event.id for event in await ctx.peek("rows")]', "missing"), "letters")
        await rota.drain()
        reasons = [run["reason"] for run in await rota.runs(kind="workflow") if run["status"] == "failed"]
        assert reasons == ["logic"]  # of Notify, while AddRow waits for a resolution
        assert await rota.runs(kind="repair") == []


async def test_without_a_repairer_a_person_is_asked(clean_url: str) -> None:
    async with world(program(), database_url=clean_url) as rota:
        await deploy(rota)
        await send(rota, "1", title="a")
        assert await history(rota) == [FAILED]
        assert "deploy a version that does not, then resume" in (await rota.workflow("letters"))["issue"]


# killed at each step


COPY = """
from rota import Prepare, Workflow
flow = Workflow("copy", topics=["in", "out"], connectors=["folder"])

@flow.consumer(subscribe=["in"], publishes=["out"])
class Copy:
    async def prepare(self, ctx, state):
        found = await ctx.peek("in", limit=1)
        WRONG_BEFORE
        return Prepare(reservations={"in": [event.id for event in found]}, data=[event.message_id for event in found])

    async def mutate(self, ctx, prepared):
        await ctx.call("folder.write", name=prepared.data[0])

    async def next(self, ctx, prepared, mutation):
        WRONG_AFTER
        for event in prepared.data:
            await ctx.publish("out", message_id=event, payload=mutation.status)

@flow.consumer(subscribe=["out"])
class Take:
    async def prepare(self, ctx, state):
        return Prepare(reservations={"out": [event.id for event in await ctx.peek("out")]})
"""
RIGHT = COPY.replace("WRONG_BEFORE", "pass").replace("WRONG_AFTER", "pass")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["WRONG_BEFORE", "WRONG_AFTER"])
def test_a_crash_at_every_step_of_a_repair(clean_url: str, sqlite_template: Path, tmp_path: Path, where: str) -> None:
    """Whoever dies, at any statement: the run is repaired, its effect happens once, and no event is lost."""
    variable = "found" if where == "WRONG_BEFORE" else "prepared.data"
    wrong = (
        RIGHT.replace("pass", f"{variable} and {variable}.missing", 1)
        if where == "WRONG_BEFORE"
        else (RIGHT[: RIGHT.rindex("pass")] + f"{variable} and {variable}.missing" + RIGHT[RIGHT.rindex("pass") + 4 :])
    )

    async def play(folder: Folder, answers: CommandRepairer) -> None:
        async with world(folder_app(folder), database_url=clean_url, repairer=answers) as rota:
            await rota.workflows.upload(None, wrong, "ada")
            await rota.drain()
            count_from_here()
            await rota.publish("copy", "in", message_id="a")
            await rota.drain()

    async def settle(folder: Folder, answers: CommandRepairer) -> None:
        later = MONDAY.replace(minute=1)
        async with world(folder_app(folder), database_url=clean_url, start=later, repairer=answers) as rota:
            await rota.take_over()
            with suppress(Conflict):  # it may have died before that
                await rota.workflows.upload(None, wrong, "ada")
            await rota.publish("copy", "in", message_id="a")  # the caller may not have got an answer
            await rota.advance(minutes=10)
            await check(rota)

    async def check(rota: World) -> None:
        seen = await rota.workflow("copy")
        assert (seen["status"], seen["issue"]) == ("idle", None)
        assert seen["version"] in ("1.1", "1.2")  # a dead worker's proposal may have been asked for again
        runs = [run for run in await rota.runs(kind="workflow") if run.get("phase")]  # others never began
        for run in runs:
            assert legal(Phase(run["phase"]), Status(run["status"]), run["reason"]), run
        assert [run["status"] for run in runs].count("failed") == 1
        before = None
        for run in [run for run in runs if run["handler_id"] == "Copy"]:
            assert run["attempt"] == 1 or run["retry_of"] == before
            before = run["id"]
        assert await rota.engine.db.read(upkeep.orphaned_events) == []

    every = bool(os.environ.get("ROTA_TEST_EVERY_POINT"))
    step = 1 if every else 11
    first = 1 if every else 1 + 5 * (where == "WRONG_AFTER") + 3 * clean_url.startswith("sqlite")
    for point in range(first, 500, step):
        path = tmp_path / f"effects-{point}"
        path.mkdir()
        output = tmp_path / f"output-{point}"
        output.mkdir()
        folder, answers = Folder(path), repairer(output, RIGHT, RIGHT)
        fresh(clean_url, sqlite_template)
        died = dies_at(point, partial(play, folder, answers), after_set_up=True)
        asyncio.run(settle(folder, answers))
        assert folder.effects == ["a"], f"after a crash at point {point}"
        if not died:
            break
    assert point > 80  # statements and commits: the failed run, its repair, the run that follows


def folder_app(folder: Folder) -> Any:
    app = folder_program(folder, "write")
    app.workflows.clear()
    return app
