"""Ten thousand events through three stages while workers are killed: each input has exactly one output."""

import asyncio
from collections import Counter
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import func, select

from rota.app.programs import load_app
from rota.core.states import Phase, Status
from rota.db.dialect import Tx
from rota.db.tables import events, runs, workflow_runs
from rota.kinds.workflows.manager import deploy_all
from rota.kinds.workflows.rules import legal
from rota.kinds.workflows.store import events as events_store
from rota.kinds.workflows.store import upkeep, workflows
from rota.kinds.workflows.store.consumer_jobs import ensure_consumer_job
from rota.kinds.workflows.store.records import NewEvent
from tests.acceptance.cluster import Cluster, Process, until
from tests.acceptance.conftest import MakeCluster

EVENTS, CHUNK = 10_000, 500
STAGES = """
from rota import Prepare, Workflow
from rota.connectors import Files

flow = Workflow("stages", topics=["raw", "clean", "ready"])
app.workflow(flow)
app.connector("files", Files(os.environ["HOME_OF_OUTPUT"]))

async def take(ctx, topic):
    found = await ctx.peek(topic, limit=100)
    return Prepare(reservations={topic: [one.id for one in found]}, data=[one.payload for one in found])

@flow.consumer(subscribe=["raw"], publishes=["clean"])
class Clean:
    async def prepare(self, ctx, state):
        return await take(ctx, "raw")
    async def next(self, ctx, prepared, mutation):
        for one in prepared.data:
            await ctx.publish("clean", message_id=str(one), payload=one * 2)

@flow.consumer(subscribe=["clean"], publishes=["ready"])
class Enrich:
    async def prepare(self, ctx, state):
        return await take(ctx, "clean")
    async def next(self, ctx, prepared, mutation):
        for one in prepared.data:
            await ctx.publish("ready", message_id=str(one), payload=one + 1)

@flow.consumer(subscribe=["ready"])
class Deliver:
    async def prepare(self, ctx, state):
        return await take(ctx, "ready")
    async def mutate(self, ctx, prepared):
        await ctx.call("files.append_csv", path="out.csv", row=prepared.data)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_each_of_ten_thousand_inputs_has_one_output_while_workers_are_killed(
    cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME_OF_OUTPUT", str(tmp_path))
    async with cluster(STAGES, lease_seconds=2) as live_cluster:
        program = load_app(str(live_cluster.app))
        await deploy_all(live_cluster.engine, "default", None, program.workflows)
        workers = await live_cluster.up(2)
        killing = asyncio.ensure_future(kill_now_and_then(live_cluster, workers))
        for start in range(0, EVENTS, CHUNK):
            await live_cluster.db.tx(publish, live_cluster.org, range(start, start + CHUNK), live_cluster.clock.now())
        await until(lambda: all_consumed(live_cluster), 400, "everything is delivered")
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)

        lines = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()]
        delivered = Counter(int(value) for line in lines for value in line[:-1])
        assert set(delivered) == {number * 2 + 1 for number in range(EVENTS)}
        assert set(delivered.values()) == {1}
        pairs = select(workflow_runs.c.phase, runs.c.status, runs.c.reason).join(runs, runs.c.id == workflow_runs.c.id)
        for row in await live_cluster.rows(pairs.distinct()):
            assert legal(Phase(row.phase), Status(row.status), row.reason), row
        crashed = await live_cluster.rows(select(func.count()).where(runs.c.status == "crashed"))
        print(
            f"killed {len(live_cluster.processes) - 2} workers, {crashed[0][0]} runs crashed, {len(lines)} deliveries"
        )
        assert len(live_cluster.processes) > 3
        assert await live_cluster.db.read(upkeep.orphaned_events) == []


def publish(tx: Tx, org_id: str, numbers: range, now: datetime) -> None:
    workflow = workflows.get(tx, org_id, "stages", hold=True)
    new_events = [NewEvent("raw", str(number), number) for number in numbers]
    events_store.publish(tx, workflow, new_events, now, source="test")
    ensure_consumer_job(tx, workflow, now)


async def kill_now_and_then(cluster: Cluster, workers: list[Process]) -> None:
    """Whenever some more runs have ended, the next of two workers dies; another takes its place."""
    for turn in count():
        before = await ended(cluster)
        await until(partial(more_than, cluster, before + 25), 400, "runs end")
        workers[turn % 2].kill()
        (workers[turn % 2],) = await cluster.up()


async def more_than(cluster: Cluster, number: int) -> bool:
    return await ended(cluster) > number


async def ended(cluster: Cluster) -> int:
    return int((await cluster.rows(select(func.count()).select_from(runs)))[0][0])


async def all_consumed(cluster: Cluster) -> bool:
    unconsumed = select(events.c.id).where(events.c.status.in_(["pending", "reserved"])).limit(1)
    done = select(func.count()).where(events.c.topic == "ready", events.c.status == "consumed")
    return not await cluster.rows(unconsumed) and (await cluster.rows(done))[0][0] == EVENTS
