"""`/metrics` for Prometheus: counters of all workers and servers, gauges of the installation."""

from fastapi import APIRouter, Request, Response

from rota.app import exposition
from rota.core.clock import stopwatch, system_time
from rota.core.errors import Unavailable
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import worker_metrics
from rota.engine.commands import Engine
from rota.engine.metrics import SERVERS, Values
from rota.frame.http.auth import Caller, authenticate
from rota.frame.http.exposure import is_local
from rota.reports import autoscaling, installation

CACHE_SECONDS = 5.0  # scrapes in between read nothing

router = APIRouter(tags=["health"])


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters of all workers and servers, and gauges of the installation. Open on loopback; elsewhere a key is
    required."""
    state = request.app.state
    engine: Engine = state.engine
    caller = None if is_local(request) else await authenticate(request)
    read_at, stored = getattr(state, "stored_metrics", (None, None))
    if read_at is None or stopwatch() - read_at > CACHE_SECONDS:
        try:
            stored = await read_stored(engine)
        except Unavailable:
            stored = None
        state.stored_metrics = (stopwatch(), stored)
    own, sources = engine.metrics, {} if stored is None else dict(stored[1])
    if own.source != SERVERS:  # this process has newer numbers of its own worker
        sources[own.source] = own.current()
    offset = (engine.clock.now() - system_time()).total_seconds()
    families = [
        *exposition.counted(sources),
        *exposition.of_process(own),
        *(() if state.replica is None else exposition.of_replica(state.replica.state)),
        *exposition.of_database(stored is not None, offset),
        *(() if stored is None else exposition.of_installation(stored[0])),
        *(() if stored is None or not await sees_queues(engine, caller) else exposition.of_queues(stored[0])),
    ]
    return Response(exposition.exposition(families), media_type=exposition.CONTENT_TYPE)


async def sees_queues(engine: Engine, caller: Caller | None) -> bool:
    """Return whether a caller may see the names of the queues of all orgs; None: on the server's own machine."""
    try:
        return caller is None or await engine.db.read(autoscaling.org_seen_by, caller.org_id) is None
    except Unavailable:  # since the stored metrics were read
        return False


async def read_stored(engine: Engine) -> tuple[Record, dict[str, Values]]:
    """Return the gauges of the installation and all stored metrics; stores what this server has counted before."""
    own, now = engine.metrics, engine.clock.now()
    if own.source == SERVERS and own.current():
        await engine.db.tx(worker_metrics.store_of_server, own)

    def read(tx: Tx) -> tuple[Record, dict[str, Values]]:
        demand = autoscaling.demand(tx, sorted(engine.runners), now)
        wanted = autoscaling.wanted_workers(demand, engine.settings.concurrency)
        return {**installation.gauges(tx, now), "wanted": wanted}, worker_metrics.by_source(tx)

    return await engine.db.read(read)
