"""Uploaded workflows: versions, and runs that behave like those of a program."""

import pytest
from sqlalchemy import select

from rota import Rota
from rota.access.store import accounts
from rota.core.errors import Conflict, Invalid, LogicError, NotFound
from rota.core.states import Status
from rota.db.tables import effects, events, logs, runs
from rota.testing import World, world
from tests.kinds.workflows.inbox import Sheets, make_inbox
from tests.kinds.workflows.letters import SCRIPT, deploy, history, program, send, versions

PRODUCER = """
from rota import Prepare, Workflow, every
flow = Workflow("ticks", topics=["tick"])

@flow.producer(schedule=every("5m"), publishes=["tick"])
async def count(ctx, state):
    number = (state or 0) + 1
    await ctx.publish("tick", message_id=str(number), payload=ctx.now.isoformat())
    return number

@flow.consumer(subscribe=["tick"])
class Take:
    async def prepare(self, ctx, state):
        return Prepare(reservations={"tick": [event.id for event in await ctx.peek("tick")]})
"""


async def test_a_script_runs_as_a_program_does(clean_url: str) -> None:
    sheets = Sheets()
    async with world(program(sheets), database_url=clean_url) as rota:
        made = await deploy(rota)
        await rota.drain()
        await send(rota, "1", subject="Hello")
        assert sheets.rows == ["Hello"]
        assert await history(rota) == [("1.0", "success", "committed")]
        rows = await rota.engine.db.read(lambda tx: list(tx.execute(select(events.c.topic, events.c.status))))
        assert sorted(tuple(row) for row in rows) == [("mail", "consumed"), ("rows", "consumed")]
        seen = await rota.workflow("letters")
        assert (seen["id"], seen["status"], seen["version"], seen["source"]) == (made, "idle", "1.0", "script")
        assert [line["text"] for line in seen["recent"]] == ["handled 1 event", "a row → published 1 row"]


async def test_producers_of_scripts_have_schedules(clean_url: str) -> None:
    async with world(Rota(), database_url=clean_url) as rota:
        await deploy(rota, PRODUCER)
        await rota.advance(minutes=11)
        outcomes = [
            run["outcome"]["published"] for run in await rota.runs(kind="workflow") if run["handler_id"] == "count"
        ]
        assert outcomes == [{"tick": 1}] * 3
        assert (await rota.workflow("ticks"))["schedule"] == "checks every 5 minutes"


async def test_each_version_is_kept_and_runs_say_which_one_they_ran(clean_url: str) -> None:
    async with world(program(), database_url=clean_url) as rota:
        await deploy(rota)
        await send(rota, "1", subject="a")
        await deploy(rota, SCRIPT.replace('title="a row"', 'title="another row"'), "letters")
        await send(rota, "2", subject="b")
        await rota.workflows.roll_back("letters", "1.0", "ada")
        await send(rota, "3", subject="c")
        assert [version for version, _, _ in await history(rota)] == ["1.0", "2.0", "3.0"]
        assert await versions(rota) == [("1.0", "accepted"), ("2.0", "accepted"), ("3.0", "accepted")]
        stored = await rota.workflows.version("letters", "2.0")
        assert stored["against"] == "1.0"
        assert '-            title="a row",\n+            title="another row",' in stored["diff"]
        assert (await rota.workflows.version("letters", "3.0", "1.0"))["diff"] == ""
        assert (await rota.workflows.version("letters", "1.0"))["against"] is None
        with pytest.raises(NotFound, match=r"version '9\.9' of workflow 'letters' not found"):
            await rota.workflows.version("letters", "9.9")


async def test_what_cannot_work_is_refused_and_nothing_is_stored(clean_url: str) -> None:
    async with world(program(), database_url=clean_url) as rota:
        for script, wrong in {
            SCRIPT.replace('subscribe=["mail"]', 'subscribe=["post"]'): "post' is not a topic",
            SCRIPT.replace('"letters", topics', '"let\\nters", topics'): "control characters",
            SCRIPT.replace("async def mutate", "def mutate").replace(
                "await ctx.call", "ctx.call"
            ): "mutate is not an async.*line",
            SCRIPT.replace('topics=["mail", "rows"]', "topics=[1]"): "is not a list of texts",
            SCRIPT.replace('connectors=["sheets.append"]', 'repair="often"'): "repair: 'often' is not one of",
            PRODUCER.replace('"5m"', '"5x"'): "5x",
        }.items():
            with pytest.raises(Invalid, match=wrong):
                await deploy(rota, script)
        with pytest.raises(Invalid, match="not the name that the script declares"):
            await rota.workflows.upload(None, SCRIPT, "ada", name="other")
        with pytest.raises(NotFound):
            await rota.workflow("letters")
        await deploy(rota)
        with pytest.raises(Conflict, match="already exists"):
            await deploy(rota)
        with pytest.raises(Conflict, match="cannot be renamed"):
            await deploy(rota, PRODUCER, "letters")
        assert await versions(rota) == [("1.0", "accepted")]


async def test_scripts_and_programs_do_not_take_each_others_names(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as rota:
        with pytest.raises(Conflict, match="already exists"):
            await deploy(rota, SCRIPT.replace('"letters"', '"inbox"'))
        with pytest.raises(Conflict, match="from code:test"):
            await deploy(rota, SCRIPT.replace('"letters"', '"inbox"'), "inbox")
        with pytest.raises(Conflict, match="declared by a program"):
            await rota.workflows.delete("inbox")


async def test_a_script_calls_only_what_it_declares(clean_url: str) -> None:
    sheets = Sheets()
    async with world(program(sheets), database_url=clean_url) as rota:
        await deploy(rota, SCRIPT.replace('sheets.append"]', 'sheets.count"]'))
        await send(rota, "1", subject="a")
        assert await history(rota) == [("1.0", "failed: logic", "prepared")]
        assert "not among the connectors that its workflow declares" in (await rota.workflow("letters"))["issue"]
        assert sheets.rows == []


async def test_a_script_of_another_org_gets_none_of_the_connectors_here(clean_url: str) -> None:
    """Only a worker whose program belongs to the org can claim its jobs: the route names the org."""
    sheets = Sheets()
    async with world(program(sheets), database_url=clean_url) as rota:
        other, _ = await rota.engine.db.tx(accounts.create_org, "Other", "other", rota.clock.now())
        theirs = World(rota.engine, rota.clock, rota.worker, rota.scheduler, other)
        await deploy(theirs)
        await deploy(theirs, PRODUCER)
        await theirs.publish("letters", "mail", message_id="1", payload={"subject": "a"})
        await theirs.drain()
        assert sheets.rows == []
        assert {run["target"] for run in await theirs.runs(kind="workflow", status=Status.SUCCESS)} == {"ticks"}


async def test_a_host_call_that_failed_ends_the_run_though_the_script_swallows_it(clean_url: str) -> None:
    sheets = Sheets(fails=[LogicError("the sheet is full")])
    swallows = SCRIPT.replace(
        '        await ctx.call("sheets.append", row=prepared.data[0])',
        '        try:\n            await ctx.call("sheets.append", row=prepared.data[0])\n'
        "        except BaseException:\n            pass",
    )
    async with world(program(sheets), database_url=clean_url) as rota:
        await deploy(rota, swallows)
        await send(rota, "1", subject="a")
        assert await history(rota) == [("1.0", "failed: logic", "mutated")]
        assert "the sheet is full" in (await rota.workflow("letters"))["issue"]


@pytest.mark.parametrize(
    ("body", "status", "issue"),
    [
        ("import os; os._exit(1)", "failed: logic", "ended its own process"),
        ("return len(bytearray(10**10))", "failed: logic", "MemoryError"),
        ("open('/etc/passwd')", "failed: logic", "Operation not permitted"),
        ("return 1", "failed: logic", "must return a Prepare"),
        ("from rota import AuthError; raise AuthError('log in again')", "paused: approval", "log in again"),
        ("await ctx.call('sheets.append', row=1)", "failed: logic", "is not allowed while preparing"),
    ],
)
async def test_an_error_of_a_script_is_reported_and_the_worker_continues(
    clean_url: str, body: str, status: str, issue: str
) -> None:
    async with world(program(), database_url=clean_url) as rota:
        await deploy(rota, SCRIPT.replace('waiting = await ctx.peek("mail", limit=1)', body))
        await deploy(rota, PRODUCER)
        await rota.drain()
        assert (await history(rota))[0] == ("1.0", status, "preparing")
        seen = await rota.workflow("letters")
        assert (seen["status"], issue in seen["issue"]) == ("needs_attention", True), seen["issue"]
        assert (await rota.workflow("ticks"))["status"] == "idle"
        assert await rota.runs(kind="workflow", target="ticks", status=Status.SUCCESS)


async def test_what_a_script_says_is_in_the_log(clean_url: str) -> None:
    async with world(program(), database_url=clean_url) as rota:
        await deploy(rota)
        await send(rota, "1", subject="a")
        rows = await rota.engine.db.read(lambda tx: list(tx.execute(select(logs.c.text))))
        assert "INFO applied a row" in [row.text for row in rows]


async def test_deleting_gives_up_what_waits_and_frees_the_name(clean_url: str) -> None:
    async with world(program(Sheets(fails=[LogicError("no")])), database_url=clean_url) as rota:
        await deploy(rota)
        await deploy(rota, PRODUCER)
        await send(rota, "1", subject="a")  # fails, and waits for a person
        await rota.workflows.delete("letters")
        await rota.workflows.delete("ticks")
        with pytest.raises(NotFound):
            await rota.workflow("letters")
        before = len(await rota.runs())
        await rota.advance(minutes=30)
        assert len(await rota.runs()) == before
        ended = await rota.engine.db.read(lambda tx: tx.execute(select(runs.c.reason)).scalars().all())
        assert "deleted" in ended
        await deploy(rota)
        await send(rota, "1", subject="a")
        assert (await rota.workflow("letters"))["issue"] is None
        kept = await rota.engine.db.read(lambda tx: tx.execute(select(effects.c.status)).scalars().all())
        assert sorted(kept) == ["applied", "failed"]
        assert await versions(rota) == [("1.0", "accepted")]
