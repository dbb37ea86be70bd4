"""Pages of schedules: the list, and one schedule."""

from fastapi import APIRouter, Request, Response

from rota.app import views
from rota.app.approvers import approver_of
from rota.core.catch_up import ALL_SLOTS
from rota.core.errors import RotaError
from rota.core.policy import Misfire, Overlap
from rota.core.states import Condition
from rota.db.paging import Record
from rota.frame.http.reports import reports_of
from rota.frame.web import columns
from rota.frame.web.forms import number, to_rfc3339
from rota.frame.web.pages import NavigationItem, engine_of, history, next_page_url, page, preferences, query_values
from rota.frame.web.sessions import Viewer
from rota.kinds.tasks.manager import TaskManager
from rota.reports import catch_ups as catch_up_reports
from rota.reports import freezes as freeze_reports
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports

router = APIRouter()

NAVIGATION = [NavigationItem("/schedules", "Schedules", "s", "clock")]
ROWS = 50
NEXT_SLOTS = 20
CHART_RUNS = 60
FLAGS = {"true": True, "false": False}


@router.get("/schedules")
async def list_all(request: Request, caller: Viewer) -> Response:
    """List schedules by filters, with bulk actions on all matches."""
    engine = engine_of(request)
    query = query_values(request, "name", "kind", "tag", "enabled", "paused", "condition", "sort", "cursor")
    filter_values = filters(query)
    sort = query["sort"] if query["sort"] in ("name", "-name", "id", "-id") else "name"
    items, cursor = await reports_of(request, caller).read(
        schedule_reports.list_schedules, caller.org_id, limit=ROWS, cursor=query["cursor"], sort=sort, **filter_values
    )
    items = await reports_of(request, caller).read(run_reports.with_names, items)
    strips = await reports_of(request, caller).read(slot_reports.strips, [schedule["id"] for schedule in items])
    whole = cursor is None and query["cursor"] is None  # complete: no count query needed
    count = (
        len(items)
        if whole
        else await reports_of(request, caller).read(schedule_reports.count_schedules, caller.org_id, **filter_values)
    )
    return page(
        request,
        "schedules.html",
        items=items,
        next_page_url=next_page_url(request, cursor),
        strips=strips,
        query=query,
        count=f"{count:,}{'+' if count == schedule_reports.COUNTED_MAX else ''}",
        kinds=sorted(engine.runners),
        conditions=[schedule.value for schedule in Condition],
        filters={name: value for name, value in filter_values.items() if value is not None},
        columns=columns.chosen(request, "schedules"),
        all_columns=columns.SCHEDULES,
    )


@router.get("/schedules/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine, db = engine_of(request), reports_of(request, caller)
    schedule = await db.read(schedule_reports.schedule, caller.org_id, key)
    coming = await views.upcoming(engine, caller.org_id, schedule["id"], NEXT_SLOTS)
    runs: list[Record] = []
    if caller.reads("runs"):
        runs, _ = await db.read(run_reports.list_runs, caller.org_id, schedule_id=schedule["id"], limit=CHART_RUNS)
    ended = [run for run in runs if run["started_at"] and run["finished_at"]][::-1]
    slots = [slot["at"] for slot in coming["slots"]]
    period = (slots[1] - slots[0]).total_seconds() if len(slots) > 1 else None
    query = query_values(request, "from", "to", "reprocess", "limit")
    catch_up = await db.read(catch_up_reports.open_of_schedule, schedule["id"])
    passed = None
    if schedule["paused"]:
        now, limits = engine.clock.now(), engine.settings.catch_up
        passed = await db.read(catch_up_reports.options, caller.org_id, schedule["id"], ALL_SLOTS, limits, now)
    return page(
        request,
        "schedule.html",
        schedule=schedule,
        coming=coming,
        windows=await db.read(
            freeze_reports.windows_ahead,
            caller.org_id,
            engine.clock.now(),
            schedule["kind"],
            schedule["queue"],
            schedule["tags"],
        ),
        catch_up=catch_up,
        may_decide_catch_ups=catch_up is not None and (await approver_of(engine.db, caller)).may_decide_catch_ups,
        passed=passed,
        runs=runs,
        ended=ended,
        period=period,
        query=query,
        strip=(await db.read(slot_reports.strips, [schedule["id"]], 90))[schedule["id"]],
        spans=await db.read(schedule_reports.spans, schedule["id"]),
        changes=await history(request, caller, "schedules", schedule["id"]),
        overlaps=[policy.value for policy in Overlap],
        misfires=[policy.value for policy in Misfire],
        schema=await schema_of(request, caller.org_id, schedule),
        backfill_preview=await preview_backfill(request, caller, key, query),
    )


async def preview_backfill(request: Request, caller: Viewer, key: str, query: dict[str, str | None]) -> Record | None:
    """Return the result of a dry-run backfill with the query parameters, or its error; None without a range."""
    if query["from"] is None or query["to"] is None:
        return None
    zone = preferences(request).zone
    since, until = to_rfc3339(query["from"], zone), to_rfc3339(query["to"], zone)
    options: Record = {
        "reprocess": query["reprocess"] is not None,
        "limit": number(query["limit"] or "100"),
        "dry_run": True,
    }
    try:
        filled = await engine_of(request).backfill(caller.org_id, key, since=since, until=until, **options)
    except RotaError as error:
        return {"refusal": error.message, "slots": []}
    return {"refusal": None, "slots": filled.plan.slots, "plan": filled.plan, "from": since, "to": until}


async def schema_of(request: Request, org_id: str, schedule: Record) -> Record | None:
    """Return the JSON Schema of a schedule's task; None for other kinds and unknown tasks."""
    if schedule["kind"] != "task":
        return None
    try:
        return await TaskManager(engine_of(request), org_id).schema(schedule["target"])
    except RotaError:  # deleted task: the page shows the schedule's condition
        return None


def filters(query: dict[str, str | None]) -> Record:
    """Return the filters of the query; a flag other than true or false is ignored."""
    return {
        "name": query["name"],
        "kind": query["kind"],
        "tag": query["tag"],
        "condition": query["condition"],
        "enabled": FLAGS.get(query["enabled"] or ""),
        "paused": FLAGS.get(query["paused"] or ""),
    }
