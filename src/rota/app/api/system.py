"""Routes of slots and their audit, workers, queues, the freeze, health."""

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request, Response

from rota.app.api import models
from rota.core import parse
from rota.core.errors import Invalid
from rota.core.flow import parse_rate
from rota.core.timing import triggers
from rota.db.paging import Record
from rota.engine import pauses
from rota.engine.slot_audit import audit
from rota.frame.http.answers import Health
from rota.frame.http.auth import Operator, Viewer
from rota.frame.http.contract import (
    Cursor,
    Limit,
    Timestamp,
    answer,
    answer_page,
    answer_slice,
    engine_of,
    time_span,
)
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import replica_state, reports_of
from rota.reports import autoscaling, installation, status, why
from rota.reports import slots as slot_reports
from rota.reports.installation import UNLIMITED_QUEUE
from rota.version import __version__

router = APIRouter(tags=["system"], route_class=BodyRoute)
health = APIRouter(prefix="/health", tags=["health"])

ScheduleKey = Annotated[str | None, Query(description="id or name")]


@router.get("/slots", tags=["slots"], response_model=page_of(models.Slot))
async def list_slots(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    schedule: ScheduleKey = None,
    verdict: Literal["ran", "skipped", "missed", "coalesced"] | None = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """Slots with their verdicts, newest first."""
    db = reports_of(request, caller)
    return answer_page(
        await db.read(
            slot_reports.list_slots,
            caller.org_id,
            schedule=schedule,
            limit=limit,
            cursor=cursor,
            verdict=verdict,
            **time_span(since, until),
        )
    )


@router.get("/slots/$audit", tags=["slots"], response_model=models.SlotAudit)
async def audit_slots(
    request: Request, caller: Viewer, schedule: ScheduleKey = None, since: Timestamp = None
) -> Response:
    """Recompute the slots of all triggers over their recorded spans and compare them with the stored ones."""
    engine = engine_of(request)
    start = time_span(since, None)["since"]
    grace = engine.settings.misfire_grace
    return answer(await audit(engine.db, caller.org_id, schedule, start, engine.clock.now(), grace))


@router.get("/slots/$why", tags=["slots"], response_model=models.Why)
async def why_slot(
    request: Request,
    caller: Viewer,
    schedule: Annotated[str, Query(description="id or name")],
    slot: Annotated[str, Query(description="RFC 3339 with offset", examples=["2026-05-04T09:00:00+00:00"])],
) -> Response:
    """Explain a slot of a schedule: its verdict and the reason."""
    engine = engine_of(request)
    at = triggers.parse_instant(slot, "slot")
    return answer(
        await reports_of(request, caller).read(
            why.of_slot, caller.org_id, schedule, at, engine.clock.now(), engine.runners
        )
    )


@router.get("/workers", tags=["workers"], response_model=page_of(models.Worker))
async def list_workers(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: Literal["alive", "stopped", "dead"] | None = None,
) -> Response:
    """Worker processes, newest first. `running` counts the jobs of the caller's org, of all orgs for the first key of
    the installation; `host` and `pid` are null for other orgs than `default`."""
    return answer_page(
        await reports_of(request, caller).read(
            installation.list_workers, caller.sees_org, limit=limit, cursor=cursor, state=state
        )
    )


@router.get("/status", response_model=models.InstallationStatus)
async def read_status(request: Request, caller: Viewer) -> Response:
    """Workers, queues, schedules, what needs attention, failing schedules and the next due ones. `ok` is false if no
    worker is alive or something is failing without an acknowledgement."""
    engine = engine_of(request)
    report = await engine.db.read(
        status.status,
        caller.org_id,
        sorted(engine.runners),
        engine.clock.now(),
        grace=engine.settings.misfire_grace,
        sees_org=caller.sees_org,
    )
    replica = replica_state(request)
    return answer({"version": __version__, **report, "reports_replica": replica and asdict(replica)})


@router.get("/queues", tags=["queues"], response_model=page_of(models.Queue))
async def list_queues(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """Queues that have jobs, a limit or a pause: jobs by state, and since when the oldest is ready."""
    return answer_slice(await reports_of(request, caller).read(installation.list_queues, caller.org_id), limit, cursor)


@router.get("/queues/$wanted", tags=["queues"], response_model=models.WantedWorkers)
async def wanted_workers(
    request: Request,
    caller: Viewer,
    queues: Annotated[str | None, Query(description="as `a,b`; default: all", max_length=1000)] = None,
    concurrency: Annotated[
        int | None, Query(ge=1, le=10_000, description="of a worker; default: that of the workers that are alive")
    ] = None,
    within: Annotated[str, Query(description="span in which due jobs should be done")] = "60s",
    ahead: Annotated[str, Query(description="what becomes due within this span counts as due")] = "60s",
) -> Response:
    """How many workers the due jobs need, for autoscalers such as KEDA: of each queue, and of workers that serve all of
    these queues. Counts the jobs of the caller's org; those of all orgs for keys of org `default`."""
    engine = engine_of(request)
    names = None if queues is None else [parse.name(name.strip(), "queues") for name in queues.split(",")]
    within_span = triggers.parse_interval(within, "within")
    ahead_span = triggers.parse_interval(ahead, "ahead")
    sees = await engine.db.read(autoscaling.org_seen_by, caller.org_id)
    demand = await engine.db.read(
        autoscaling.demand, sorted(engine.runners), engine.clock.now(), org_id=sees, ahead=ahead_span
    )
    return answer(
        autoscaling.wanted_workers(
            demand, engine.settings.concurrency, queue_names=names, concurrency=concurrency, within=within_span
        )
    )


@router.get("/queues/{name}", tags=["queues"], response_model=models.Queue)
async def read_queue(request: Request, caller: Viewer, name: str) -> Response:
    return answer(await engine_of(request).db.read(installation.queue, caller.org_id, name))


@router.put("/queues/{name}", tags=["queues"], response_model=models.Queue)
async def put_queue(request: Request, caller: Operator, name: str, body: models.QueueBody) -> Response:
    """Limit or pause a queue `{max_running?, rate?, burst?, paused?}`; absent fields mean no limit and not paused."""
    return await change_queue(request, caller, name, body, UNLIMITED_QUEUE)


@router.patch("/queues/{name}", tags=["queues"], response_model=models.Queue)
async def edit_queue(request: Request, caller: Operator, name: str, body: models.QueueBody) -> Response:
    """Change the limits or the pause of a queue; absent fields stay, null removes a limit."""
    db = engine_of(request).db
    queues = await db.read(installation.list_queues, caller.org_id)
    before = next((queue for queue in queues if queue["name"] == name), UNLIMITED_QUEUE)
    return await change_queue(request, caller, name, body, before)


async def change_queue(
    request: Request, caller: Operator, name: str, body: models.QueueBody, before: Record
) -> Response:
    engine = engine_of(request)
    sent = body.sent()
    changed: Record = {**before, **sent}
    limit, rate, burst = changed["max_running"], changed["rate"], changed["burst"]
    if rate is None and sent.get("burst") is not None:
        raise Invalid("burst", burst, "needs a rate: set `rate` too, such as 100/1m")
    paused = before["paused"] if body.paused is None else body.paused
    parsed_rate = None if rate is None else parse_rate(rate, burst=burst or 1)
    await engine.set_queue(caller.org_id, parse.name(name, "name"), max_running=limit, paused=paused, rate=parsed_rate)
    return answer(await engine.db.read(installation.queue, caller.org_id, name))


@router.get("/freeze", response_model=models.Freeze)
async def read_freeze(request: Request, caller: Viewer) -> Response:
    engine = engine_of(request)
    return answer(await engine.db.read(pauses.freeze_of, caller.org_id, engine.clock.now()))


@router.put("/freeze", response_model=models.Freeze)
async def freeze(
    request: Request, caller: Operator, body: Annotated[models.PauseBody, Body(default_factory=models.PauseBody)]
) -> Response:
    """Freeze the org: slots pass without firing: `{reason, until?}`."""
    await engine_of(request).freeze(caller.org_id, **body.present())
    return await read_freeze(request, caller)


@router.delete("/freeze", status_code=204)
async def unfreeze(request: Request, caller: Operator) -> Response:
    await engine_of(request).unfreeze(caller.org_id)
    return Response(status_code=204)


@health.get("/live", response_model=Health)
async def live() -> Response:
    """200 while the process answers."""
    return answer({"status": "ok"})


@health.get("/ready", response_model=Health)
async def ready(request: Request) -> Response:
    """200 if slots can fire, jobs can run and results can be stored; else 503 with the problems."""
    state = request.app.state
    state.readiness.stopping = state.closing
    problems = await state.readiness.problems()
    status = "unavailable" if problems else "ok"
    return answer({"status": status, "problems": list(problems), "details": problems}, 503 if problems else 200)
