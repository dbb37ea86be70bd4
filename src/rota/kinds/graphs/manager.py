"""The commands for graphs: which there are, and run one now."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rota.core import parse
from rota.core.errors import Invalid, NotFound
from rota.core.model import NewJob
from rota.core.policy import Terms
from rota.db.dialect import Tx
from rota.engine import grants, jobs, orgs, workers
from rota.engine.authority import check_owner
from rota.engine.commands import Engine
from rota.kinds.graphs.runner import GraphRunner, graph_of

ONE_RUN = timedelta(days=1)  # how long the grant of a run lasts that was asked for without one


@dataclass(frozen=True, slots=True)
class GraphManager:
    """What can be asked about the graphs of one org."""

    engine: Engine
    org_id: str

    @property
    def runner(self) -> GraphRunner:
        found = self.engine.runners["graph"]
        assert isinstance(found, GraphRunner)
        return found

    async def list_all(self) -> list[dict[str, Any]]:
        """The graphs that this program declares, or a live worker announces."""
        slug = await self.engine.db.read(orgs.slug_of, self.org_id)
        routes = await self.engine.db.read(workers.live_routes, self.engine.clock.now())
        announced = {found for route in routes if (found := graph_of(route, slug)) is not None}
        here = self.runner.registry.graphs if self.runner.org == slug else {}
        return [
            {
                "id": one, "provider": one.partition(":")[0], "name": one.partition(":")[2],
                "version": here[one].version if one in here else None,
                "description": here[one].description if one in here else None, "live": one in announced,
            }
            for one in sorted({*here, *announced})
        ]  # fmt: skip

    async def run(
        self, graph_id: str, given: Any, grant_id: str | None, by: str, trace: str | None = None, *,
        run_at: datetime | None = None, queue_name: str = "default", priority: int = 0, job_key: str | None = None,
        key_mode: str = "reject",
    ) -> str:  # fmt: skip
        """A job, at once or later, under this grant or one that is minted for this graph alone and ends a day after the
        job is due."""
        try:
            route = await self.runner.resolve(self.org_id, graph_id, given)
        except Invalid as error:
            if error.field == "input":
                raise
            raise NotFound(f"graph {graph_id!r} not found") from error
        payload, now = parse.payload(given or {}, "input"), self.engine.clock.now()

        def step(tx: Tx) -> str:
            due = max(run_at or now, now)
            terms = Terms(grant_id=self.authority(tx, graph_id, grant_id, by, now, due + ONE_RUN))
            job = NewJob(
                self.org_id, "graph", graph_id, payload, due, "manual", route=route, terms=terms, trace=trace,
                queue=queue_name, priority=priority, job_key=job_key,
            )  # fmt: skip
            return jobs.enqueue(tx, [job], now, key_mode)[0]

        return await self.engine.write_and_wake(step)

    def authority(self, tx: Tx, graph_id: str, grant_id: str | None, by: str, now: datetime, until: datetime) -> str:
        if grant_id is None:
            scope = grants.scope_for("graph", graph_id)
            return grants.mint(tx, self.org_id, by, [scope], now, expires_at=until)
        wrong = grants.trouble(tx, self.org_id, grant_id, "graph", [graph_id], now)
        if wrong is not None:
            raise Invalid("grant_id", grant_id, f"does not allow graph {graph_id} ({wrong})")
        check_owner(tx, self.engine.act, self.org_id, grant_id)
        return grant_id
