"""Overhead of a run of a graph that reports usage once: in the worker's process, and in a child process."""

from collections.abc import AsyncIterator
from pathlib import Path

from bench.figures import Figure, Size
from bench.installation import DatabaseKind, Installation, installation
from bench.run_overhead import figures_of, runs_per_second, single_runs, task_runs
from rota.app.programs import load_app
from rota.core.policy import Terms
from rota.db.dialect import Tx
from rota.db.tables import jobs
from rota.db.wake import Wake
from rota.engine import grants, orgs
from rota.engine.commands import Engine
from rota.kinds.graphs.runner import GraphRunner

PROGRAM = Path(__file__).parent / "graph_program.py"
GRAPH = "python:quiet"
CHILD_RUNS = 5
CRASHES = 1  # after one, a job runs in a child process


async def graphs(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """One run at a time, then a full queue."""
    async with installation(kind) as here:
        engine, terms = await installed(here)

        async def enqueue(_: int) -> None:
            await engine.enqueue(here.org_id, "graph", GRAPH, [{}], terms=terms)

        async def enqueue_isolated(_: int) -> None:
            await engine.enqueue(here.org_id, "graph", GRAPH, [{}], terms=terms)
            await here.db.tx(lambda tx: tx.execute(jobs.update().values(crashes=CRASHES)))

        task = await task_runs(here, size.paced)
        cost = await single_runs(engine, "graph", enqueue, size.paced)
        for figure in figures_of(f"graph run, {kind.name}", cost, task):
            yield figure
        child = await single_runs(engine, "graph", enqueue_isolated, CHILD_RUNS)
        yield Figure(f"graph run in a child process, {kind.name}: p50", child.milliseconds(), "ms")
        rate = await runs_per_second(here, engine, enqueue, size.paced)
        yield Figure(f"graph runs of one worker, {kind.name}", rate, "/s")


async def installed(here: Installation) -> tuple[Engine, Terms]:
    """Return an engine with the graph, and the terms of its jobs: a grant with a budget that is never used up."""
    program, base = load_app(str(PROGRAM)), here.engine
    runner = GraphRunner(program.graphs, here.db, base.clock, app=str(PROGRAM))
    engine = Engine(here.db, base.clock, Wake(), {"graph": runner}, base.settings)

    def mint(tx: Tx) -> str:
        owner = orgs.system_user(tx, here.org_id, base.clock.now())
        scopes = [grants.scope_for("graph", GRAPH)]
        return grants.mint(tx, here.org_id, owner, scopes, base.clock.now(), budget={"total": 2**50})

    return engine, Terms(grant_id=await here.db.tx(mint))
