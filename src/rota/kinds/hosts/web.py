"""Pages of hosts: the list, one host with its servers and jobs, and batches."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web.pages import NavigationItem, engine_of, history, next_page_url, page, query_values
from rota.frame.web.sessions import Viewer
from rota.kinds.hosts import reports as host_reports
from rota.kinds.hosts.manager import host_job
from rota.kinds.hosts.store import batches, hosts

router = APIRouter()

NAVIGATION = [NavigationItem("/hosts", "Hosts", "h", "server", 1)]
PAGE_ROWS = 25
MAX_SERVERS = 100
LAST_JOBS = 15
LAST_BATCHES = 10


@router.get("/hosts")
async def list_all(request: Request, caller: Viewer) -> Response:
    """The hosts, the jobs that wait for reconciliation, and the last batches."""
    engine, db, query = engine_of(request), reports_of(request, caller), query_values(request, "cursor")
    now = engine.clock.now()
    items, cursor = await db.read(host_reports.list_hosts, caller.org_id, now, limit=PAGE_ROWS, cursor=query["cursor"])
    parked = (
        await db.read(host_reports.parked_for_reconciliation, caller.org_id, LAST_JOBS)
        if caller.reads("host-jobs")
        else []
    )
    last: list[Record] = []
    if caller.reads("batches"):
        last, _ = await db.read(batches.list_batches, caller.org_id, limit=LAST_BATCHES, cursor=None)
    return page(
        request,
        "hosts.html",
        items=items,
        next_page_url=next_page_url(request, cursor),
        batches=last,
        running=await running_jobs(request, caller, [host["id"] for host in items]),
        unclear=await jobs_of(request, caller, parked),
        job_types=sorted({name for host in items for name in host["job_types"] or ()}),
    )


@router.get("/hosts/{key:path}")  # a name may have slashes
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine, db, org_id = engine_of(request), reports_of(request, caller), caller.org_id
    host = await db.read(host_reports.host, org_id, key, engine.clock.now())
    servers: list[Record] = []
    if caller.reads("server-instances"):
        servers, _ = await db.read(
            host_reports.list_servers, org_id, limit=MAX_SERVERS, cursor=None, host_id=host["id"]
        )
    server_ids = [server["id"] for server in servers] if caller.reads("host-jobs") else []
    ids = await db.read(host_reports.jobs_of, org_id, server_ids, LAST_JOBS)
    return page(
        request,
        "host.html",
        host=host,
        servers=servers,
        names={server["id"]: server["name"] for server in servers},
        running=(await running_jobs(request, caller, [host["id"]]))[host["id"]],
        jobs=await jobs_of(request, caller, ids),
        changes=await history(request, caller, "hosts", host["id"]),
    )


@router.get("/batches/{batch_id}")
async def read_batch(request: Request, caller: Viewer, batch_id: str) -> Response:
    batch = await reports_of(request, caller).read(batches.batch, caller.org_id, batch_id)
    return page(request, "batch.html", batch=batch)


async def running_jobs(request: Request, caller: Caller, host_ids: list[str]) -> Mapping[str, list[Record]]:
    """The running jobs of each host; none for a caller who may not read host jobs."""
    if not caller.reads("host-jobs"):
        return {host_id: [] for host_id in host_ids}
    return await reports_of(request, caller).read(host_reports.running_by_host, host_ids)


async def jobs_of(request: Request, caller: Caller, ids: list[str]) -> list[Record]:
    """Return host jobs with their servers; secrets are hidden."""

    def step(tx: Tx) -> list[Record]:
        jobs = [host_job(tx, caller.org_id, job_id) for job_id in ids]
        for job in jobs:
            server = hosts.find_server(tx, caller.org_id, job["server_instance_id"])
            job["server"], job["host_id"] = (server.name, server.host_id) if server else ("a deleted server", None)
        return jobs

    return await reports_of(request, caller).read(step)
