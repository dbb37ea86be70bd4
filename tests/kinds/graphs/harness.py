"""Graphs over a fresh database of either kind, with the clock in the test's fake_runner."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from rota.billing import store as billing_store
from rota.core.clock import ManualClock
from rota.db.connection import Database
from rota.db.tables import charge_receipts, grants, logs, runs
from rota.engine import billing_accounts, orgs
from rota.engine.grants import parse_scopes
from rota.engine.runner import Runner
from rota.graphs import AssistantFinal, GraphRequest, LlmCaller, TextDelta, UsageReport
from rota.kinds.graphs.registry import GraphRegistry
from rota.kinds.graphs.runner import GraphRunner
from rota.reports import why
from tests.engine.harness import NINE, Harness, open_harness

Body = Callable[[GraphRequest, LlmCaller], AsyncIterator[object]]


@dataclass
class Graphs:
    """Harness with graphs that the test declares."""

    registry: GraphRegistry
    harness: Harness
    asked: list[GraphRequest] = field(default_factory=list)

    def declare(self, name: str, body: Body) -> str:
        graph_id = self.registry.add(name, body, "python").id
        self.announce()
        return graph_id

    def announce(self) -> None:
        """Let the worker claim what is declared now."""
        self.harness.worker.registration.refresh_routes()

    async def schedule(self, name: str = "job", target: str = "python:poet", **fields: Any) -> str:
        self.announce()
        return await self.harness.schedule(name, target=target, kind="graph", **fields)

    async def grant(self, *scopes: str, consent: bool = False, **fields: Any) -> str:
        owner = await self.harness.db.tx(orgs.system_user, self.harness.org_id, NINE)
        allowed = parse_scopes(list(scopes) or ["graph:execute:python:poet"], consent)
        return await self.harness.engine.create_grant(self.harness.org_id, owner, allowed, **fields)

    async def top_up(self, amount: int) -> None:
        account = await self.account()
        now = self.harness.clock.now()
        await self.harness.db.tx(billing_store.credit, self.harness.org_id, account.id, amount, "top_up", "first", now)

    async def account(self) -> Any:
        owner = await self.harness.db.tx(orgs.system_user, self.harness.org_id, NINE)
        return await self.harness.db.tx(billing_accounts.account_of, self.harness.org_id, owner, NINE)

    async def runs(self) -> list[Any]:
        return await self.harness.rows(select(runs).order_by(runs.c.finished_at, runs.c.id))

    async def grants(self) -> list[Any]:
        return await self.harness.rows(select(grants).order_by(grants.c.id))

    async def receipts(self) -> list[Any]:
        return await self.harness.rows(select(charge_receipts).order_by(charge_receipts.c.id))

    async def why(self, run: Any) -> str:
        explanation = await self.harness.db.read(why.of_run, self.harness.org_id, run.id, self.harness.clock.now())
        return " ".join(explanation["sentences"])

    async def said(self) -> list[tuple[str, str]]:
        return [(row.stream, row.text) for row in await self.harness.rows(select(logs).order_by(logs.c.id))]


Open = Callable[..., Any]


@pytest.fixture
async def opened(clean_url: str) -> AsyncIterator[Open]:
    """Opens harnesses with settings; at the end every slot must have its verdict."""
    harnesses: list[Harness] = []

    async def open_it(**settings: Any) -> Graphs:
        registry = GraphRegistry()

        def runners(db: Database, clock: ManualClock) -> list[Runner]:
            return [GraphRunner(registry, db, clock)]

        asked: list[GraphRequest] = []

        async def poet(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
            """Write a line."""
            asked.append(request)
            yield TextDelta("roses ")
            yield UsageReport("first", "tiny", 10, 20, "0.001")
            yield TextDelta("are red")
            yield UsageReport("second", "tiny", 30, 40, "0.002")
            yield AssistantFinal("roses are red")

        registry.add("poet", poet, "python", version="7")
        harness = await open_harness(clean_url, more=runners, **settings)
        harnesses.append(harness)
        return Graphs(registry, harness, asked)

    yield open_it
    for harness in harnesses:
        try:
            await harness.check()
        finally:
            await harness.close()


@pytest.fixture
async def graphs(opened: Open) -> Graphs:
    opened_graphs: Graphs = await opened()
    return opened_graphs
