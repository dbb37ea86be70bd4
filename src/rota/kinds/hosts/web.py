"""Hosts: the machines of the org and their agents, the servers on them, their jobs, and batches over many."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from rota.db.dialect import Tx
from rota.frame.http.auth import Caller
from rota.frame.web.pages import Place, asked, engine_of, history, older, page
from rota.frame.web.sessions import Viewer
from rota.kinds.hosts.manager import host_job
from rota.kinds.hosts.store import batches, hosts

router = APIRouter()

PLACES = [Place("/hosts", "Hosts", "h", "server", 1)]
ROWS = 25
SERVERS = 100
JOBS = 15
BATCHES = 10


@router.get("/hosts")
async def list_all(request: Request, caller: Viewer) -> Response:
    """The hosts, what waits for somebody's word, and the last batches."""
    engine, db, given = engine_of(request), engine_of(request).db, asked(request, "cursor")
    now = engine.clock.now()
    items, cursor = await db.read(hosts.list_hosts, caller.org_id, now, limit=ROWS, cursor=given["cursor"])
    asks = await db.read(hosts.waiting_for_word, caller.org_id, JOBS) if caller.reads("host-jobs") else []
    last: list[dict[str, Any]] = []
    if caller.reads("batches"):
        last, _ = await db.read(batches.list_batches, caller.org_id, limit=BATCHES, cursor=None)
    return page(
        request, "hosts.html", items=items, older=older(request, cursor), batches=last,
        running=await jobs_under_way(request, caller, [one["id"] for one in items]),
        unclear=await jobs_of(request, caller, asks),
        job_types=sorted({name for one in items for name in one["job_types"] or ()}),
    )  # fmt: skip


@router.get("/hosts/{key:path}")  # a name may have slashes
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine, db, org_id = engine_of(request), engine_of(request).db, caller.org_id
    one = await db.read(hosts.host, org_id, key, engine.clock.now())
    servers: list[dict[str, Any]] = []
    if caller.reads("server-instances"):
        servers, _ = await db.read(hosts.list_servers, org_id, limit=SERVERS, cursor=None, host_id=one["id"])
    asks = [server["id"] for server in servers] if caller.reads("host-jobs") else []
    ids = await db.read(hosts.jobs_of, org_id, asks, JOBS)
    return page(
        request, "host.html", one=one, servers=servers, names={server["id"]: server["name"] for server in servers},
        running=(await jobs_under_way(request, caller, [one["id"]]))[one["id"]],
        jobs=await jobs_of(request, caller, ids),
        changes=await history(request, caller, "hosts", one["id"]),
    )  # fmt: skip


@router.get("/batches/{batch_id}")
async def read_batch(request: Request, caller: Viewer, batch_id: str) -> Response:
    one = await engine_of(request).db.read(batches.batch, caller.org_id, batch_id)
    return page(request, "batch.html", one=one)


async def jobs_under_way(request: Request, caller: Caller, host_ids: list[str]) -> Mapping[str, list[Any]]:
    """The running jobs of each host; none for a caller who may not read host jobs."""
    if not caller.reads("host-jobs"):
        return {host_id: [] for host_id in host_ids}
    return await engine_of(request).db.read(hosts.under_way, host_ids)


async def jobs_of(request: Request, caller: Caller, ids: list[str]) -> list[dict[str, Any]]:
    """Jobs with what was asked of which server; secrets in it are not shown."""

    def step(tx: Tx) -> list[dict[str, Any]]:
        found = [host_job(tx, caller.org_id, one) for one in ids]
        for one in found:
            server = hosts.find_server(tx, caller.org_id, one["server_instance_id"])
            one["server"], one["host_id"] = (server.name, server.host_id) if server else ("a server that is gone", None)
        return found

    return await engine_of(request).db.read(step)
