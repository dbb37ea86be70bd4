"""The script that the tests of scripts use: each letter becomes a row, and each row is announced."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from rota import Rota
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.scripts.repair import CommandRepairer
from rota.testing import World
from tests.kinds.workflows.inbox import Sheets

SCRIPT = """
from rota import Prepare, Workflow

flow = Workflow("letters", topics=["mail", "rows"], connectors=["sheets.append"])


@flow.consumer(subscribe=["mail"], publishes=["rows"])
class AddRow:
    async def prepare(self, ctx, state):
        waiting = await ctx.peek("mail", limit=1)
        return Prepare(
            reservations={"mail": [event.id for event in waiting]},
            data=[event.payload["subject"] for event in waiting],
            title="a row",
        )

    async def mutate(self, ctx, prepared):
        await ctx.call("sheets.append", row=prepared.data[0])

    async def next(self, ctx, prepared, mutation):
        for subject in prepared.data:
            await ctx.publish("rows", message_id=subject, payload=mutation.result)
        ctx.log.info("%s %s", mutation.status, prepared.title)
        return {"last": prepared.data}


@flow.consumer(subscribe=["rows"])
class Notify:
    async def prepare(self, ctx, state):
        return Prepare(reservations={"rows": [event.id for event in await ctx.peek("rows")]})
"""
RENAMED = SCRIPT.replace('event.payload["subject"]', 'event.payload.get("subject") or event.payload["title"]')


def program(sheets: Sheets | None = None) -> Rota:
    app = Rota()
    app.connector("sheets", sheets or Sheets())
    return app


async def deploy(rota: World, script: str = SCRIPT, key: str | None = None) -> str:
    return await rota.workflows.upload(key, script, "ada")


async def send(rota: World, message: str, **payload: Any) -> None:
    await rota.publish("letters", "mail", message_id=message, payload=payload)
    await rota.drain()


async def history(rota: World) -> list[tuple[str, str, str]]:
    """Version, status and phase of each run that took something or failed, oldest first."""
    runs = [run for run in await rota.runs(kind="workflow") if run.get("handler_id") == "AddRow"]
    return [
        (
            run["target_version"],
            run["status"] if not run["reason"] else f"{run['status']}: {run['reason']}",
            run["phase"],
        )
        for run in runs
        if run["status"] != "pending" and (run["status"] != "success" or run["outcome"]["taken"])
    ]


async def versions(rota: World) -> list[tuple[str, str]]:
    versions, _ = await rota.engine.db.read(lambda tx: scripts_store.list_versions(tx, rota.org_id, "letters"))
    return [(row["version"], row["outcome"]) for row in versions[::-1]]


def repairer(folder: Path, *answers: str, seconds: float = 30) -> CommandRepairer:
    """A command that answers with these, one after the other, and keeps what it was asked."""
    for number, answer in enumerate(answers):
        (folder / f"answer-{number}").write_text(answer)
    code = folder / "repair.py"
    code.write_text(REPAIR.format(folder=str(folder)))
    return CommandRepairer(f"{sys.executable} {code}", timedelta(seconds=seconds))


REPAIR = """
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
failure = json.load(sys.stdin)
number = len(failure["proposals"])
(folder / f"asked-{{number}}").write_text(json.dumps(failure))
print("looking at", failure["workflow"], failure["version"], file=sys.stderr)
answer = (folder / f"answer-{{number}}").read_text()
if answer == "fail":
    sys.exit(3)
if answer == "sleep":
    time.sleep(60)
print(answer, end="")
"""
