"""Routes of slots and their audit, workers, queues, the freeze, health."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request, Response

from rota.app.api import models
from rota.core import parse
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
from rota.reports import installation, why
from rota.reports import slots as slot_reports

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
    db = engine_of(request).db
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
    return answer(await engine.db.read(why.of_slot, caller.org_id, schedule, at, engine.clock.now(), engine.runners))


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
        await engine_of(request).db.read(
            installation.list_workers, caller.sees_org, limit=limit, cursor=cursor, state=state
        )
    )


@router.get("/queues", tags=["queues"], response_model=page_of(models.Queue))
async def list_queues(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """Queues that have jobs, a limit or a pause: jobs by state, and since when the oldest is ready."""
    return answer_slice(await engine_of(request).db.read(installation.list_queues, caller.org_id), limit, cursor)


@router.get("/queues/{name}", tags=["queues"], response_model=models.Queue)
async def read_queue(request: Request, caller: Viewer, name: str) -> Response:
    return answer(await engine_of(request).db.read(installation.queue, caller.org_id, name))


@router.put("/queues/{name}", tags=["queues"], response_model=models.Queue)
async def put_queue(request: Request, caller: Operator, name: str, body: models.QueueBody) -> Response:
    """Limit or pause a queue `{max_running?, paused?}`; absent fields mean no limit and not paused."""
    return await change_queue(request, caller, name, body, {"max_running": None, "paused": False})


@router.patch("/queues/{name}", tags=["queues"], response_model=models.Queue)
async def edit_queue(request: Request, caller: Operator, name: str, body: models.QueueBody) -> Response:
    """Change the limit or the pause of a queue; absent fields stay, null removes the limit."""
    db = engine_of(request).db
    queues = await db.read(installation.list_queues, caller.org_id)
    before = next((queue for queue in queues if queue["name"] == name), {"max_running": None, "paused": False})
    return await change_queue(request, caller, name, body, before)


async def change_queue(
    request: Request, caller: Operator, name: str, body: models.QueueBody, before: Record
) -> Response:
    engine = engine_of(request)
    limit = body.max_running if "max_running" in body.sent() else before["max_running"]
    paused = before["paused"] if body.paused is None else body.paused
    await engine.set_queue(caller.org_id, parse.name(name, "name"), max_running=limit, paused=paused)
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
