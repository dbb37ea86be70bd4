"""Routes of hosts, server instances, host jobs and batches."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from rota.access.api.people import NO_STORE
from rota.core import parse
from rota.core.errors import NotFound
from rota.core.states import Status
from rota.frame.http.answers import JobBrief, JobRef
from rota.frame.http.auth import Admin, Caller, Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.models import BodyRoute, NoFields, page_of
from rota.frame.http.reports import reports_of
from rota.kinds.hosts import reports as host_reports
from rota.kinds.hosts.api import models
from rota.kinds.hosts.api.agents import dispatcher
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store import batches, hosts
from rota.reports import jobs as job_reports

router = APIRouter(tags=["hosts"], route_class=BodyRoute)

DEFAULT_PAIRING_TTL_SECONDS = 900


@router.post("/pairing-tokens", status_code=201, tags=["pairing-tokens"], response_model=models.Token)
async def create_token(
    request: Request, caller: Admin, body: Annotated[models.TokenBody, Body(default_factory=models.TokenBody)]
) -> Response:
    """Create a token that pairs one machine with the org: `{ttl_seconds?}` (60 to 86400, default 900). Shown only
    here."""
    engine, ttl = engine_of(request), body.ttl_seconds or DEFAULT_PAIRING_TTL_SECONDS
    now, span = engine.clock.now(), timedelta(seconds=ttl)
    token_id, text = await engine.db.tx(hosts.make_token, caller.org_id, caller.user_id, span, now)
    return answer({"id": token_id, "token": text, "expires_at": now + span}, 201, NO_STORE)


# hosts


@router.get("/hosts", response_model=page_of(models.Host))
async def list_hosts(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Hosts of the org, with the status, job types and metrics of their agents."""
    engine = engine_of(request)
    page = await reports_of(request, caller).read(
        host_reports.list_hosts, caller.org_id, engine.clock.now(), limit=limit, cursor=cursor
    )
    return answer_page(page)


@router.get("/hosts/{host_id}", response_model=models.Host)
async def read_host(request: Request, caller: Viewer, host_id: str) -> Response:
    """Read a host by its id or name."""
    engine = engine_of(request)
    return answer(await engine.db.read(host_reports.host, caller.org_id, host_id, engine.clock.now()))


@router.patch("/hosts/{host_id}", response_model=models.Host)
async def edit_host(request: Request, caller: Operator, host_id: str, body: models.HostChanges) -> Response:
    """Change its `name` or `labels`."""
    engine = engine_of(request)
    now, host_id = engine.clock.now(), await known_host(request, caller, host_id)
    await engine.db.tx(hosts.edit_host, caller.org_id, host_id, body.present(), now)
    return answer(await engine.db.read(host_reports.host, caller.org_id, host_id, now))


@router.delete("/hosts/{host_id}", status_code=204)
async def delete_host(request: Request, caller: Admin, host_id: str) -> Response:
    """Delete a host without server instances; its key becomes invalid."""
    engine, host_id = engine_of(request), await known_host(request, caller, host_id)
    await engine.db.tx(hosts.delete_host, caller.org_id, host_id, engine.clock.now())
    dispatcher(request).forget(host_id)
    return Response(status_code=204)


@router.post("/hosts/{host_id}/$rotate-key", response_model=models.HostKey)
async def rotate_key(request: Request, caller: Admin, host_id: str, _: NoFields) -> Response:
    """Replace the key of its agent, shown only here; the old one is invalid at once."""
    engine, host_id = engine_of(request), await known_host(request, caller, host_id)
    host_id, key = await engine.db.tx(hosts.rotate_key, caller.org_id, host_id, engine.clock.now())
    dispatcher(request).forget(host_id)
    return answer({"host_id": host_id, "agent_key": key}, headers=NO_STORE)


# servers


@router.get("/server-instances", tags=["server-instances"], response_model=page_of(models.Server))
async def list_servers(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    host_id: str | None = None,
    type: str | None = None,
) -> Response:
    """Server instances on hosts; secrets in `config` are hidden. `host_id` may be a name."""
    host_id = host_id and (await reports_of(request, caller).read(hosts.host_id_of, caller.org_id, host_id) or host_id)
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "host_id": host_id, "type": type}
    return answer_page(await reports_of(request, caller).read(host_reports.list_servers, caller.org_id, **filters))


@router.post("/server-instances", status_code=201, tags=["server-instances"], response_model=models.Server)
async def create_server(request: Request, caller: Operator, body: models.ServerBody) -> Response:
    """Create a server instance on a host: `{host_id, name, type?, config?, labels?}`. Its agent gets `config`.
    `host_id` may be a name."""
    engine, host_id = engine_of(request), await known_host(request, caller, body.host_id)
    new = {"type": "server", "config": {}, "labels": {}, **body.present(), "host_id": host_id}
    server_id = await engine.db.tx(hosts.add_server, caller.org_id, new, engine.clock.now())
    return answer(
        await server_record(request, caller, server_id), 201, {"location": f"/api/v1/server-instances/{server_id}"}
    )


@router.get("/server-instances/{server_instance_id}", tags=["server-instances"], response_model=models.Server)
async def read_server(request: Request, caller: Viewer, server_instance_id: str) -> Response:
    """Read a server instance by its id or name."""
    return answer(await server_record(request, caller, await known_server(request, caller, server_instance_id)))


@router.patch("/server-instances/{server_instance_id}", tags=["server-instances"], response_model=models.Server)
async def edit_server(
    request: Request, caller: Operator, server_instance_id: str, body: models.ServerChanges
) -> Response:
    """Change some of `{name, type, config, labels}`."""
    engine = engine_of(request)
    server_id = await known_server(request, caller, server_instance_id)
    await engine.db.tx(hosts.edit_server, caller.org_id, server_id, body.present(), engine.clock.now())
    return answer(await server_record(request, caller, server_id))


@router.delete("/server-instances/{server_instance_id}", status_code=204, tags=["server-instances"])
async def delete_server(request: Request, caller: Operator, server_instance_id: str) -> Response:
    """Delete a server instance that no schedule and no job uses."""
    server_id = await known_server(request, caller, server_instance_id)
    await engine_of(request).db.tx(hosts.delete_server, caller.org_id, server_id)
    return Response(status_code=204)


# jobs


@router.post("/host-jobs", status_code=202, tags=["host-jobs"], response_model=JobRef)
async def create_job(request: Request, caller: Operator, body: models.HostJobBody) -> Response:
    """Enqueue a job on a server now: `{server_instance_id, job_type, payload?, timeout_seconds?, retry?}`. The job
    types `shell` and `python` need the scope `host-shell`."""
    trace = parse.traceparent(request.headers.get("traceparent"))
    caller.check_job_type(body.job_type)
    job_id = await manager(request, caller).run(body.server_instance_id, body.order(), body.terms(), trace)
    return answer({"job_id": job_id}, 202)


@router.get("/host-jobs", tags=["host-jobs"], response_model=page_of(JobBrief))
async def list_jobs(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Status | None = None,
    server_instance_id: str | None = None,
) -> Response:
    """Host jobs, newest first: queued and running ones before those that ended."""
    target = server_instance_id and await manager(request, caller).target_id(server_instance_id)
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "status": status, "target": target}
    return answer_page(
        await reports_of(request, caller).read(job_reports.list_jobs, caller.org_id, kind=hosts.KIND, **filters)
    )


@router.get("/host-jobs/{host_job_id}", tags=["host-jobs"], response_model=models.HostJob)
async def read_job(request: Request, caller: Viewer, host_job_id: str) -> Response:
    """Read a host job with its server, job type and payload; secrets are hidden."""
    return answer(await manager(request, caller).job(host_job_id))


@router.post("/host-jobs/{host_job_id}/$cancel", status_code=202, tags=["host-jobs"], response_model=JobRef)
async def cancel_job(request: Request, caller: Operator, host_job_id: str, _: NoFields) -> Response:
    """Cancel a job: at once if it is queued, through its agent if it runs."""
    return answer({"job_id": await manager(request, caller).cancel(host_job_id)}, 202)


@router.post("/host-jobs/{host_job_id}/$resolve", status_code=202, tags=["host-jobs"], response_model=JobRef)
async def resolve_job(request: Request, caller: Operator, host_job_id: str, body: models.HostResolveBody) -> Response:
    """Resolve a job that waits for reconciliation, because its agent was lost: `{resolution: "applied"|"not_applied",
    result?}`. Applied, it has succeeded; not applied, it is tried again."""
    job_id = await manager(request, caller).resolve(host_job_id, body.resolution == "applied", body.result)
    return answer({"job_id": job_id}, 202)


# batches


@router.post("/batches", status_code=202, tags=["batches"], response_model=models.BatchRef)
async def create_batch(request: Request, caller: Operator, body: models.BatchBody) -> Response:
    """Enqueue the same job on several servers: `{server_instance_ids | labels, job_type, payload?, max_parallel?,
    stop_on_failure?, timeout_seconds?, retry?}`. The job types `shell` and `python` need the scope `host-shell`."""
    caller.check_job_type(body.job_type)
    batch_id = await manager(request, caller).run_batch(
        body.order(), body.terms(), servers=body.server_instance_ids, labels=body.labels
    )
    return answer({"batch_id": batch_id}, 202, {"location": f"/api/v1/batches/{batch_id}"})


@router.get("/batches", tags=["batches"], response_model=page_of(models.BatchBrief))
async def list_batches(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Batches with their counters, newest first."""
    return answer_page(
        await reports_of(request, caller).read(batches.list_batches, caller.org_id, limit=limit, cursor=cursor)
    )


@router.get("/batches/{batch_id}", tags=["batches"], response_model=models.Batch)
async def read_batch(request: Request, caller: Viewer, batch_id: str) -> Response:
    """Read a batch with its members: server, job and status."""
    return answer(await engine_of(request).db.read(batches.batch, caller.org_id, batch_id))


@router.post("/batches/{batch_id}/$cancel", status_code=202, tags=["batches"], response_model=models.BatchRef)
async def cancel_batch(request: Request, caller: Operator, batch_id: str, _: NoFields) -> Response:
    """Cancel a batch: queued jobs are withdrawn, running ones asked to stop."""
    return answer({"batch_id": await manager(request, caller).cancel(batch_id)}, 202)


# helpers


def manager(request: Request, caller: Caller) -> HostManager:
    return HostManager(engine_of(request), caller.org_id)


async def known_host(request: Request, caller: Caller, key: str) -> str:
    """Return the id of a host by its id or name. Raises NotFound."""
    host_id = await engine_of(request).db.read(hosts.host_id_of, caller.org_id, key)
    if host_id is None:
        raise NotFound(f"host '{key}' not found")
    return host_id


async def known_server(request: Request, caller: Caller, key: str) -> str:
    """Return the id of a server instance by its id or name. Raises NotFound, or Conflict for a name on several
    hosts."""
    server_id = await engine_of(request).db.read(hosts.server_id_of, caller.org_id, key)
    if server_id is None:
        raise NotFound(f"server instance '{key}' not found")
    return server_id


async def server_record(request: Request, caller: Caller, server_id: str) -> dict[str, Any]:
    return host_reports.server_record(await engine_of(request).db.read(hosts.server, caller.org_id, server_id))
