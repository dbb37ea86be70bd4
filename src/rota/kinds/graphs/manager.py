"""Commands for graphs: list them, and run one now."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.core import parse
from rota.core.errors import Invalid, NotFound
from rota.core.model import NewJob
from rota.core.policy import Terms
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import grants, jobs, orgs, workers
from rota.engine.authority import check_owner
from rota.engine.commands import Engine
from rota.kinds.graphs.runner import GraphRunner, graph_of

MINTED_GRANT_TTL = timedelta(days=1)  # of the grant of a run without one


@dataclass(frozen=True, slots=True)
class GraphManager:
    """Commands and queries on the graphs of one org."""

    engine: Engine
    org_id: str

    @property
    def runner(self) -> GraphRunner:
        runner = self.engine.runners["graph"]
        assert isinstance(runner, GraphRunner)
        return runner

    async def list_all(self) -> list[Record]:
        """Return the graphs that this program declares, or a live worker announces."""
        slug = await self.engine.db.read(orgs.slug_of, self.org_id)
        routes = await self.engine.db.read(workers.live_routes, self.engine.clock.now())
        announced = {graph_id for route in routes if (graph_id := graph_of(route, slug)) is not None}
        here = self.runner.registry.graphs if self.runner.org == slug else {}
        return [
            {
                "id": graph_id,
                "provider": graph_id.partition(":")[0],
                "name": graph_id.partition(":")[2],
                "version": here[graph_id].version if graph_id in here else None,
                "description": here[graph_id].description if graph_id in here else None,
                "live": graph_id in announced,
            }
            for graph_id in sorted({*here, *announced})
        ]

    async def run(
        self, graph_id: str, graph_input: object, grant_id: str | None, by: str, trace: str | None = None, *,
        run_at: datetime | None = None, queue_name: str | None = None, priority: int | None = None,
        job_key: str | None = None, key_mode: str = "reject",
    ) -> str:  # fmt: skip
        """Enqueue a job under this grant, or one that is minted for this graph and expires a day after `run_at`;
        returns the job's id. Raises NotFound for an unknown graph, Invalid for its input or grant."""
        try:
            route = await self.runner.resolve(self.org_id, graph_id, graph_input)
        except Invalid as error:
            if error.field == "input":
                raise
            raise NotFound(f"graph {graph_id!r} not found") from error
        payload, now = parse.payload(graph_input or {}, "input"), self.engine.clock.now()

        def step(tx: Tx) -> str:
            due = max(run_at or now, now)
            terms = Terms(grant_id=self.grant_for(tx, graph_id, grant_id, by, now, due + MINTED_GRANT_TTL))
            job = NewJob(
                self.org_id,
                "graph",
                graph_id,
                payload,
                due,
                "manual",
                route=route,
                terms=terms,
                trace=trace,
                queue=queue_name or "default",
                priority=priority or 0,
                job_key=job_key,
            )
            return jobs.enqueue(tx, [job], now, key_mode)[0]

        return await self.engine.write_and_wake(step)

    def grant_for(self, tx: Tx, graph_id: str, grant_id: str | None, by: str, now: datetime, until: datetime) -> str:
        """Return the id of the grant of a job: minted, or checked. Raises Invalid if it does not cover the graph."""
        if grant_id is None:
            scope = grants.scope_for("graph", graph_id)
            return grants.mint(tx, self.org_id, by, [scope], now, expires_at=until)
        wrong = grants.trouble(tx, self.org_id, grant_id, "graph", [graph_id], now)
        if wrong is not None:
            raise Invalid("grant_id", grant_id, f"does not allow graph {graph_id} ({wrong})")
        check_owner(tx, self.engine.act, self.org_id, grant_id)
        return grant_id
