"""Runs of workflows: who runs when, what commits together, what nobody sees twice."""

from typing import Any

import pytest
from sqlalchemy import select

from rota import Prepare, Rota, Workflow, every
from rota.core.errors import Conflict
from rota.store.tables import events, handlers, jobs, workflow_runs
from rota.testing import World, world
from tests.workflows.inbox import make_inbox


async def rows(one: World, stmt: Any) -> list[Any]:
    return await one.engine.db.read(lambda tx: list(tx.execute(stmt)))


async def statuses(one: World) -> list[str]:
    found = await rows(one, select(events).order_by(events.c.id))
    return [f"{row.topic} {row.message_id} {row.status}" for row in found]


async def test_mail_becomes_rows_once_each(clean_url: str) -> None:
    inbox = make_inbox()
    inbox.mail = ["a", "b"]
    async with world(inbox.app, database_url=clean_url) as one:
        await one.drain()
        assert inbox.sheets.rows == ["a", "b"]
        assert inbox.told == ["a", "b"]
        assert inbox.mutations[-2:] == [("a", "applied", {"row": 1}), ("b", "applied", {"row": 2})]
        assert set(await statuses(one)) == {
            "mail 0 consumed", "mail 1 consumed", "rows row-a consumed", "rows row-b consumed",
        }  # fmt: skip
        inbox.mail.append("c")
        await one.advance(minutes=5)
        assert inbox.sheets.rows == ["a", "b", "c"]
        phases = await rows(one, select(workflow_runs.c.phase).distinct())
        assert [row.phase for row in phases] == ["committed"]
        shown = await one.workflow("inbox")
        assert (shown["status"], shown["issue"], shown["pending"]) == ("idle", None, 0)
        assert shown["schedule"] == "checks every 5 minutes"
        assert shown["next_check"] == "in 5m"
        assert "row for c → passed on 1 rows" in [line["text"] for line in shown["recent"]]


async def test_an_idle_workflow_calls_nobody(clean_url: str) -> None:
    inbox = make_inbox()
    async with world(inbox.app, database_url=clean_url) as one:
        await one.drain()
        assert (inbox.count("poll"), inbox.count("prepare"), inbox.count("tell")) == (1, 1, 1)
        await one.advance(hours=1)
        assert (inbox.count("poll"), inbox.count("prepare"), inbox.count("tell")) == (13, 1, 1)
        assert await rows(one, select(jobs)) == []
