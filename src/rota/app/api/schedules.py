"""Routes of schedules."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from rota.app import views
from rota.core import effort, parse
from rota.core.errors import Invalid
from rota.core.model import Schedule
from rota.core.policy import choice
from rota.core.states import Condition, Status
from rota.core.timing import triggers
from rota.engine.compute import compute
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
    read_body,
    time_span,
    trace_of,
)
from rota.kinds.hosts.manager import HostManager
from rota.kinds.hosts.store.hosts import KIND as HOST_JOB
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports

router = APIRouter(prefix="/schedules", tags=["schedules"])

FILTER_FIELDS = frozenset({"name", "kind", "tag", "enabled", "paused", "condition"})


@router.post("", status_code=201)
async def create(request: Request, caller: Operator) -> Response:
    """Create a schedule."""
    (made,) = await engine_of(request).create_schedules(
        caller.org_id,
        [await with_server_id(request, caller, await read_body(request))],
        by=caller.user_id,
        check=caller.check_schedule,
    )
    return answer_with_etag(schedule_reports.new_schedule(made), 201, {"location": f"/api/v1/schedules/{made.id}"})


@router.post("/$bulk", status_code=201)
async def create_many(request: Request, caller: Operator) -> Response:
    """Create up to 10,000 schedules `{items: […]}` in one transaction; none if one is invalid."""
    items = (await read_body(request, ["items"])).get("items")
    if not isinstance(items, list) or any(not isinstance(item, dict) for item in items):
        raise Invalid("items", items, "is not a list of schedules")
    items = [await with_server_id(request, caller, item) for item in items]
    made = await engine_of(request).create_schedules(
        caller.org_id, items, by=caller.user_id, check=caller.check_schedule
    )
    return answer({"items": await compute(new_schedules, made)}, 201)


@router.post("/$preview")
async def preview(request: Request, _: Viewer) -> Response:
    """Next slots of a timing, stores nothing: trigger fields, `count` (10) and `after` (now)."""
    now = engine_of(request).clock.now()
    body = await read_body(request)
    form = parse.Form({name: body[name] for name in ("count", "after") if name in body}, frozenset({"count", "after"}))
    count = form.take("count", lambda value, field: parse.whole(value, field, 1, 100), 10) or 10
    after = form.take("after", triggers.parse_instant, now) or now
    form.done()

    def search() -> dict[str, Any]:
        timing = parse.parse_timing(body, now=now, extra=frozenset({"count", "after"}))
        return views.preview_slots(timing, after, count, since=min(now, after))

    return answer(await compute(search))


@router.post("/$pause")
async def pause_many(request: Request, caller: Operator) -> Response:
    """Pause all schedules with a tag, or matching a filter: `{tag | filter, reason, until?}`."""
    body = await read_body(request, ["tag", "filter", "reason", "until"])
    filters = parse_filters(body)
    paused = await engine_of(request).pause_many(caller.org_id, filters, **body)
    return answer({"count": len(paused)})


@router.post("/$resume")
async def resume_many(request: Request, caller: Operator) -> Response:
    """Resume all schedules with a tag, or matching a filter: `{tag | filter, gap?}`."""
    body = await read_body(request, ["tag", "filter", "gap"])
    filters = parse_filters(body)
    resumed = await engine_of(request).resume_many(caller.org_id, filters, **body)
    return answer({"count": len(resumed)})


@router.post("/$enable")
async def enable_many(request: Request, caller: Operator) -> Response:
    """Enable all schedules with a tag, or matching a filter: `{tag | filter}`; slots are planned from now."""
    return await switch_many(request, caller, enabled=True)


@router.post("/$disable")
async def disable_many(request: Request, caller: Operator) -> Response:
    """Disable all schedules with a tag, or matching a filter: `{tag | filter}`; no slots are planned for them."""
    return await switch_many(request, caller, enabled=False)


async def switch_many(request: Request, caller: Caller, *, enabled: bool) -> Response:
    filters = parse_filters(await read_body(request, ["tag", "filter"]))
    changed = await engine_of(request).enable_many(caller.org_id, filters, enabled=enabled)
    return answer({"count": len(changed)})


@router.post("/$delete")
async def delete_many(request: Request, caller: Operator) -> Response:
    """Delete all schedules with a tag, or matching a filter: `{tag | filter}`; their slots and runs are kept."""
    deleted = await engine_of(request).delete_many(
        caller.org_id, parse_filters(await read_body(request, ["tag", "filter"]))
    )
    return answer({"count": len(deleted)})


@router.get("")
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
    filters: dict[str, Any] = {
        "limit": limit,
        "cursor": cursor,
        "name": name,
        "kind": kind,
        "tag": tag,
        "enabled": enabled,
        "paused": paused,
        "condition": condition,
        "sort": sort,
    }
    return answer_page(await engine_of(request).db.read(schedule_reports.list_schedules, caller.org_id, **filters))


@router.get("/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One schedule, by its id or name."""
    return answer_with_etag(await engine_of(request).db.read(schedule_reports.schedule, caller.org_id, key))


@router.patch("/{key}")
async def edit(request: Request, caller: Operator, key: str) -> Response:
    """Change some fields; absent ones stay. `If-Match` with the ETag that was read prevents lost updates."""
    engine = engine_of(request)
    changed = await engine.edit_schedule(
        caller.org_id,
        key,
        await with_server_id(request, caller, await read_body(request), key),
        expected=expected_revision(request),
        check=caller.check_schedule,
    )
    return answer_with_etag(await engine.db.read(schedule_reports.schedule, caller.org_id, changed.id))


@router.put("/{key}")
async def put(request: Request, caller: Operator, key: str) -> Response:
    """Replace all fields; absent ones get their defaults. `If-Match` as in an edit."""
    engine = engine_of(request)
    changed = await engine.edit_schedule(
        caller.org_id,
        key,
        await with_server_id(request, caller, await read_body(request), key),
        expected=expected_revision(request),
        whole=True,
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


@router.post("/{key}/$run", status_code=202)
async def run(request: Request, caller: Operator, key: str) -> Response:
    """Enqueue a job now, without a slot: `{input?, overlap?}`. A `traceparent` header sets the trace id of its run."""
    body = await read_body(request, ["input", "overlap"], optional=True)
    job_id = await engine_of(request).run_now(
        caller.org_id, key, trace=trace_of(request), check=caller.check_schedule, **body
    )
    return answer({"job_id": job_id}, 202)


@router.post("/{key}/$pause")
async def pause(request: Request, caller: Operator, key: str) -> Response:
    """Pause: slots pass without firing: `{reason, until?}`."""
    body = await read_body(request, ["reason", "until"], optional=True)
    engine = engine_of(request)
    paused = await engine.pause_schedule(caller.org_id, key, **body)
    return answer_with_etag(await engine.db.read(schedule_reports.schedule, caller.org_id, paused.id))


@router.post("/{key}/$resume")
async def resume(request: Request, caller: Operator, key: str) -> Response:
    """End a pause; `{gap: "skip" | "once" | "all"}` decides about the slots that passed in it."""
    body = await read_body(request, ["gap"], optional=True)
    engine = engine_of(request)
    resumed = await engine.resume_schedule(caller.org_id, key, **body)
    return answer_with_etag(await engine.db.read(schedule_reports.schedule, caller.org_id, resumed.id))


@router.post("/{key}/$skip-next")
async def skip_next(request: Request, caller: Operator, key: str) -> Response:
    """Skip the next slot, once: `{reason}`."""
    body = await read_body(request, ["reason"], optional=True)
    slot = await engine_of(request).skip_next(caller.org_id, key, **body)
    return answer({"slot": slot, "verdict": "skipped", "reason": "operator"})


@router.post("/{key}/$backfill")
async def backfill(request: Request, caller: Operator, key: str) -> Response:
    """Fire slots of the past that did not run: `{from, to, reprocess?, limit?, dry_run?}`."""
    body = await read_body(request, ["from", "to", "reprocess", "limit", "dry_run"])
    since, until = body.pop("from", None), body.pop("to", None)
    flags = {name: parse.flag(body.pop(name), name) for name in ("reprocess", "dry_run") if name in body}
    slots = await engine_of(request).backfill(caller.org_id, key, since=since, until=until, **flags, **body)
    return answer({"count": len(slots), "slots": slots})


@router.get("/{key}/$next")
async def upcoming(
    request: Request, caller: Viewer, key: str, count: Annotated[int, Query(ge=1, le=100)] = 10
) -> Response:
    """Next slots of a schedule, from its clock on."""
    return answer(await views.upcoming(engine_of(request), caller.org_id, key, count))


@router.get("/{key}/runs")
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
    db = engine_of(request).db
    schedule_id = await known_id(request, caller.org_id, key)
    filters: dict[str, Any] = {
        "limit": limit,
        "cursor": cursor,
        "status": status,
        "reason": reason,
        **time_span(since, until),
    }
    return answer_page(await db.read(run_reports.list_runs, caller.org_id, schedule_id=schedule_id, **filters))


@router.get("/{key}/slots")
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
    db = engine_of(request).db
    schedule_id = await known_id(request, caller.org_id, key)
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "verdict": verdict, **time_span(since, until)}
    return answer_page(await db.read(slot_reports.list_slots, caller.org_id, schedule=schedule_id, **filters))


def new_schedules(made: list[Schedule]) -> list[dict[str, Any]]:
    with effort.unlimited():  # they are stored already: an error would come too late
        return [schedule_reports.new_schedule(schedule) for schedule in made]


async def with_server_id(
    request: Request, caller: Caller, body: dict[str, Any], key: str | None = None
) -> dict[str, Any]:
    """Return the body with server names in its target replaced by ids, if the schedule is for hosts. `key` is the
    schedule that is edited, if any."""
    target, engine = body.get("target"), engine_of(request)
    if not isinstance(target, str) or (key is None and body.get("kind") != HOST_JOB):
        return body
    if key is not None and (await engine.db.read(schedule_reports.schedule, caller.org_id, key))["kind"] != HOST_JOB:
        return body
    return {**body, "target": await HostManager(engine, caller.org_id).target_id(target)}


def parse_filters(body: dict[str, Any]) -> dict[str, Any]:
    """Remove `tag` or `filter` from the body and return them as filters. Raises Invalid if both or none are there."""
    tag, conditions = body.pop("tag", None), body.pop("filter", None)
    if (tag is None) == (conditions is None):
        raise Invalid("filter", conditions, "or `tag` is required; the filter `{}` matches every schedule of the org")
    if not isinstance(conditions, dict | None):
        raise Invalid("filter", conditions, "is not an object")
    form = parse.Form({"tag": tag} if conditions is None else conditions, FILTER_FIELDS)
    filters = {
        "name": form.take("name", parse.label, None),
        "kind": form.take("kind", parse.label, None),
        "tag": form.take("tag", parse.label, None),
        "enabled": form.take("enabled", parse.flag, None),
        "paused": form.take("paused", parse.flag, None),
        "condition": form.take("condition", lambda value, field: choice(Condition, value, field).value, None),
    }
    form.done()
    return filters


async def known_id(request: Request, org_id: str, key: str) -> str:
    """Return the id of a schedule by id or name; a deleted one only by id."""
    db = engine_of(request).db
    schedule_id = await db.read(schedule_reports.schedule_id_of, org_id, key)
    return schedule_id or str((await db.read(schedule_reports.schedule, org_id, key))["id"])
