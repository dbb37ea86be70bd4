"""Routes of schedules."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request, Response

from rota.app import impact, views
from rota.app.api import models
from rota.app.api.catch_up_models import CatchUpOptions
from rota.app.api.impact_models import DiffBody, SlotImpact
from rota.app.api.models import PauseBody, ResumeBody, SkipBody
from rota.core import effort, timing_form
from rota.core.catch_up import SPREAD_HOURS_MAX, CatchUpChoice
from rota.core.errors import Invalid
from rota.core.model import Schedule
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import Misfire
from rota.core.schedule_form import ScheduleBody, ScheduleChanges
from rota.core.states import Status
from rota.engine.compute import compute
from rota.frame.http import answers
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import (
    Cursor,
    Limit,
    Timestamp,
    answer,
    answer_page,
    answer_with_etag,
    engine_of,
    expected_revision,
    time_span,
    trace_of,
)
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store.hosts import KIND as HOST_JOB
from rota.reports import catch_ups as catch_up_reports
from rota.reports import freezes as freeze_reports
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports

router = APIRouter(prefix="/schedules", tags=["schedules"], route_class=BodyRoute)


@router.post("", status_code=201, response_model=answers.Schedule)
async def create(request: Request, caller: Operator, body: ScheduleBody) -> Response:
    """Create a schedule."""
    if body.kind == HOST_JOB:
        body = body.model_copy(update={"target": await server_id(request, caller, body.target)})
    (made,) = await engine_of(request).create_schedules(
        caller.org_id, [body], by=caller.user_id, check=caller.check_schedule
    )
    return answer_with_etag(schedule_reports.new_schedule(made), 201, {"location": f"/api/v1/schedules/{made.id}"})


@router.post("/$bulk", status_code=201, response_model=models.Schedules)
async def create_many(request: Request, caller: Operator, body: models.SchedulesBody) -> Response:
    """Create up to 10,000 schedules `{items: […]}` in one transaction; none if one is invalid."""
    items = [await with_server_id(request, caller, item) for item in body.items]
    made = await engine_of(request).create_schedules(
        caller.org_id, items, by=caller.user_id, check=caller.check_schedule
    )
    return answer({"items": await compute(new_schedules, made)}, 201)


@router.post("/$preview", response_model=models.Coming)
async def preview(request: Request, caller: Viewer, body: models.PreviewBody) -> Response:
    """Next slots of a timing, stores nothing: trigger fields, `count` (10) and `after` (now)."""
    engine = engine_of(request)
    now = engine.clock.now()
    after = body.after or now
    known = await engine.calendars_named(caller.org_id, [{"calendar": body.calendar}])

    windows = await engine.db.read(
        freeze_reports.windows_ahead, caller.org_id, after, body.kind, body.queue, body.tags or []
    )

    def search() -> dict[str, object]:
        timing = timing_form.parse_timing(body, now=now, calendars=known, seed=body.name or "")
        return views.preview_slots(timing, after, body.count or 10, now, min(now, after), windows)

    return answer(await compute(search))


@router.post("/$pause", response_model=models.Count)
async def pause_many(request: Request, caller: Operator, body: models.PauseManyBody) -> Response:
    """Pause all schedules with a tag, or matching a filter: `{tag | filter, reason, until?}`."""
    paused = await engine_of(request).pause_many(
        caller.org_id, filters_of(body), reason=body.reason or "", until=body.until
    )
    return answer({"count": len(paused)})


@router.post("/$resume", response_model=models.Count)
async def resume_many(request: Request, caller: Operator, body: models.ResumeManyBody) -> Response:
    """Resume all schedules with a tag, or matching a filter: `{tag | filter, gap?}`."""
    resumed = await engine_of(request).resume_many(caller.org_id, filters_of(body), gap=body.gap or Misfire.SKIP)
    return answer({"count": len(resumed)})


@router.post("/$enable", response_model=models.Count)
async def enable_many(request: Request, caller: Operator, body: models.EnableManyBody) -> Response:
    """Enable all schedules with a tag, or matching a filter: `{tag | filter}`; slots are planned from now."""
    changed = await engine_of(request).enable_many(caller.org_id, filters_of(body), enabled=True)
    return answer({"count": len(changed)})


@router.post("/$disable", response_model=models.Count)
async def disable_many(request: Request, caller: Operator, body: models.EnableManyBody) -> Response:
    """Disable all schedules with a tag, or matching a filter: `{tag | filter}`; no slots are planned for them."""
    changed = await engine_of(request).enable_many(caller.org_id, filters_of(body), enabled=False)
    return answer({"count": len(changed)})


@router.post("/$delete", response_model=models.Count)
async def delete_many(request: Request, caller: Operator, body: models.DeleteManyBody) -> Response:
    """Delete all schedules with a tag, or matching a filter: `{tag | filter}`; their slots and runs are kept."""
    deleted = await engine_of(request).delete_many(caller.org_id, filters_of(body))
    return answer({"count": len(deleted)})


@router.get("", response_model=page_of(answers.Schedule))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    name: Annotated[str | None, Query(description="a part of the name")] = None,
    kind: str | None = None,
    tag: str | None = None,
    enabled: bool | None = None,
    paused: bool | None = None,
    condition: Literal["ok", "broken", "finished"] | None = None,
    sort: Literal["name", "-name", "id", "-id"] = "name",
) -> Response:
    """Schedules that are not deleted, by name or, with `sort=id`, by creation; `-` reverses the order."""
    return answer_page(
        await reports_of(request, caller).read(
            schedule_reports.list_schedules,
            caller.org_id,
            limit=limit,
            cursor=cursor,
            name=name,
            kind=kind,
            tag=tag,
            enabled=enabled,
            paused=paused,
            condition=condition,
            sort=sort,
        )
    )


@router.get("/{key}", response_model=answers.Schedule)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One schedule, by its id or name."""
    return answer_with_etag(await engine_of(request).db.read(schedule_reports.schedule, caller.org_id, key))


@router.patch("/{key}", response_model=answers.Schedule)
async def edit(request: Request, caller: Operator, key: str, body: ScheduleChanges) -> Response:
    """Change some fields; absent ones stay. `If-Match` with the ETag that was read prevents lost updates."""
    return await change(request, caller, key, body, whole=False)


@router.put("/{key}", response_model=answers.Schedule)
async def put(request: Request, caller: Operator, key: str, body: ScheduleChanges) -> Response:
    """Replace all fields; absent ones get their defaults. `If-Match` as in an edit."""
    return await change(request, caller, key, body, whole=True)


async def change(request: Request, caller: Caller, key: str, body: ScheduleChanges, *, whole: bool) -> Response:
    engine = engine_of(request)
    changed = await engine.edit_schedule(
        caller.org_id,
        key,
        await with_server_id(request, caller, body.sent(), key),
        expected=expected_revision(request),
        whole=whole,
        check=caller.check_schedule,
    )
    return answer_with_etag(await engine.db.read(schedule_reports.schedule, caller.org_id, changed.id))


@router.delete("/{key}", status_code=204)
async def delete(
    request: Request,
    caller: Operator,
    key: str,
    force: Annotated[bool, Query(description="also if a program declares it")] = False,
) -> Response:
    """Delete a schedule; its slots and runs are kept. 409 if a workflow or a trigger manages it, or a program declares
    it (`force` deletes it until the program declares it again)."""
    await engine_of(request).delete_schedule(caller.org_id, key, expected=expected_revision(request), force=force)
    return Response(status_code=204)


@router.post("/{key}/$run", status_code=202, response_model=models.StartedJob)
async def run(
    request: Request, caller: Operator, key: str, body: Annotated[models.RunBody, Body(default_factory=models.RunBody)]
) -> Response:
    """Enqueue a job now, without a slot: `{input?, overlap?}`. A `traceparent` header sets the trace id of its run.
    A freeze window does not prevent it; `warnings` names those that are in effect."""
    engine = engine_of(request)
    warnings = await engine.freeze_warnings(caller.org_id, key, engine.clock.now())
    job_id = await engine.run_now(
        caller.org_id, key, trace=trace_of(request), check=caller.check_schedule, **body.present()
    )
    return answer({"job_id": job_id, "warnings": warnings}, 202)


@router.post("/{key}/$pause", response_model=answers.Schedule)
async def pause(
    request: Request, caller: Operator, key: str, body: Annotated[PauseBody, Body(default_factory=PauseBody)]
) -> Response:
    """Pause: slots pass without firing: `{reason, until?}`."""
    engine = engine_of(request)
    paused = await engine.pause_schedule(caller.org_id, key, **body.present())
    return answer_with_etag(await engine.db.read(schedule_reports.schedule, caller.org_id, paused.id))


@router.post("/{key}/$resume", response_model=models.Resumed)
async def resume(
    request: Request, caller: Operator, key: str, body: Annotated[ResumeBody, Body(default_factory=ResumeBody)]
) -> Response:
    """End a pause; `{gap: "skip" | "once" | "all", limit?, spread_hours?}` decides about the slots that passed in it.
    Beyond the limits of the installation they wait for an approval: `catch_up`."""
    engine = engine_of(request)
    resumed = await engine.resume_schedule(caller.org_id, key, **body.present())
    record = await engine.db.read(schedule_reports.schedule, caller.org_id, resumed.id)
    waiting = await engine.db.read(catch_up_reports.open_of_schedule, resumed.id)
    return answer_with_etag({**record, "catch_up": waiting})


@router.post("/{key}/$skip-next", response_model=models.Skipped)
async def skip_next(
    request: Request, caller: Operator, key: str, body: Annotated[SkipBody, Body(default_factory=SkipBody)]
) -> Response:
    """Skip the next slot, once: `{reason}`."""
    slot = await engine_of(request).skip_next(caller.org_id, key, **body.present())
    return answer({"slot": slot, "verdict": "skipped", "reason": "operator"})


@router.post("/{key}/$backfill", response_model=models.Backfilled)
async def backfill(request: Request, caller: Operator, key: str, body: models.BackfillBody) -> Response:
    """Fire slots of the past that did not run: `{from, to, reprocess?, limit?, spread_hours?, dry_run?}`. Beyond the
    limits of the installation they wait for an approval: `catch_up`."""
    engine = engine_of(request)
    warnings = await engine.freeze_warnings(caller.org_id, key, engine.clock.now())
    filled = await engine.backfill(caller.org_id, key, **body.present())
    slots = filled.plan.slots if body.dry_run else filled.fired
    waiting = None
    if filled.id is not None:
        waiting = await engine.db.read(catch_up_reports.summary_of, caller.org_id, filled.id)
    plan = catch_up_reports.plan_record(filled.plan)
    return answer({"count": len(slots), "slots": slots, "warnings": warnings, "plan": plan, "catch_up": waiting})


@router.get("/{key}/$catch-up", response_model=CatchUpOptions)
async def catch_up(
    request: Request,
    caller: Viewer,
    key: str,
    limit: Annotated[
        int | None, Query(ge=1, le=FIRE_BATCH_SLOTS, description="of `all`; default: `catch_up_limit`")
    ] = None,
    spread_hours: Annotated[float | None, Query(gt=0, le=SPREAD_HOURS_MAX, allow_inf_nan=False)] = None,
) -> Response:
    """What the slots that passed since a pause or an outage take and cost, if none, the latest or all are caught up."""
    engine = engine_of(request)
    choice = CatchUpChoice(limit=limit, spread=timedelta(hours=spread_hours or 0))
    now, limits = engine.clock.now(), engine.settings.catch_up
    return answer(await engine.db.read(catch_up_reports.options, caller.org_id, key, choice, limits, now))


@router.get("/{key}/$next", response_model=models.Coming)
async def upcoming(
    request: Request, caller: Viewer, key: str, count: Annotated[int, Query(ge=1, le=100)] = 10
) -> Response:
    """Next slots of a schedule, from its clock on."""
    return answer(await views.upcoming(engine_of(request), caller.org_id, key, count))


@router.post("/{key}/$diff", response_model=SlotImpact)
async def diff(
    request: Request, caller: Viewer, key: str, body: Annotated[DiffBody, Body(default_factory=DiffBody)]
) -> Response:
    """What an edit would change, stores nothing: slots added, removed and moved in the next `days` (30), clashes with
    calendars and freezes, usual duration and cost. The fields of an edit; with `replace` absent ones get defaults."""
    changes = await with_server_id(request, caller, body.changes(), key)
    days = body.days or impact.DIFF_DAYS
    return answer(
        await impact.impact_of_edit(
            engine_of(request), caller.org_id, key, changes, whole=body.replace is True, days=days
        )
    )


@router.get("/{key}/runs", response_model=page_of(models.Run))
async def runs(
    request: Request,
    caller: Viewer,
    key: str,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Status | None = None,
    reason: str | None = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """Runs of a schedule, newest first."""
    db = reports_of(request, caller)
    schedule_id = await known_id(request, caller.org_id, key)
    return answer_page(
        await db.read(
            run_reports.list_runs,
            caller.org_id,
            schedule_id=schedule_id,
            limit=limit,
            cursor=cursor,
            status=status,
            reason=reason,
            **time_span(since, until),
        )
    )


@router.get("/{key}/slots", response_model=page_of(models.Slot))
async def slots(
    request: Request,
    caller: Viewer,
    key: str,
    limit: Limit = 50,
    cursor: Cursor = None,
    verdict: Literal["ran", "skipped", "missed", "coalesced"] | None = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """Slots of a schedule with their verdicts, newest first."""
    db = reports_of(request, caller)
    schedule_id = await known_id(request, caller.org_id, key)
    return answer_page(
        await db.read(
            slot_reports.list_slots,
            caller.org_id,
            schedule=schedule_id,
            limit=limit,
            cursor=cursor,
            verdict=verdict,
            **time_span(since, until),
        )
    )


def new_schedules(made: list[Schedule]) -> list[dict[str, object]]:
    with effort.unlimited():  # they are stored already: an error would come too late
        return [schedule_reports.new_schedule(schedule) for schedule in made]


async def with_server_id(request: Request, caller: Caller, body: Any, key: str | None = None) -> Any:
    """Return the body with server names in its target replaced by ids, if the schedule is for hosts. `key` is the
    schedule that is edited, if any."""
    target = body.get("target") if isinstance(body, dict) else None
    if not isinstance(target, str) or (key is None and body.get("kind") != HOST_JOB):
        return body
    if key is not None:
        stored = await engine_of(request).db.read(schedule_reports.schedule, caller.org_id, key)
        if stored["kind"] != HOST_JOB:
            return body
    return {**body, "target": await server_id(request, caller, target)}


async def server_id(request: Request, caller: Caller, target: str) -> str:
    return await HostManager(engine_of(request), caller.org_id).target_id(target)


def filters_of(body: models.Selection) -> dict[str, object]:
    """Return the tag or the filter of a body as filters. Raises Invalid if both or none are there."""
    if (body.tag is None) == (body.filter is None):
        raise Invalid("filter", body.filter, "or `tag` is required; the filter `{}` matches every schedule of the org")
    return {"tag": body.tag} if body.filter is None else body.filter.present()


async def known_id(request: Request, org_id: str, key: str) -> str:
    """Return the id of a schedule by id or name; a deleted one only by id."""
    db = engine_of(request).db
    schedule_id = await db.read(schedule_reports.schedule_id_of, org_id, key)
    return schedule_id or str((await db.read(schedule_reports.schedule, org_id, key))["id"])
