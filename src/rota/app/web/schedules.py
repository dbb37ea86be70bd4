"""Schedules: all of them, and everything about one."""

from typing import Any

from fastapi import APIRouter, Request, Response

from rota.app import views
from rota.core.errors import RotaError
from rota.core.policy import Misfire, Overlap
from rota.core.states import Condition
from rota.engine import dashboard, run_reports
from rota.engine import reports as engine_reports
from rota.frame.web.forms import moment, number
from rota.frame.web.pages import Place, asked, engine_of, history, older, page, preferences
from rota.frame.web.sessions import Viewer
from rota.kinds.tasks.manager import TaskManager

router = APIRouter()

PLACES = [Place("/schedules", "Schedules", "s", "clock")]
ROWS = 25
NEXT = 20
RUNS = 60  # that the chart of durations shows
FLAGS = {"true": True, "false": False}


@router.get("/schedules")
async def list_all(request: Request, caller: Viewer) -> Response:
    """Found by name, kind, tag and state; what is found can be paused, resumed and deleted at once."""
    engine = engine_of(request)
    given = asked(request, "name", "kind", "tag", "enabled", "paused", "condition", "sort", "cursor")
    wanted = filters(given)
    sort = given["sort"] if given["sort"] in ("name", "-name", "id", "-id") else "name"
    items, cursor = await engine.db.read(
        engine_reports.list_schedules, caller.org_id, limit=ROWS, cursor=given["cursor"], sort=sort, **wanted
    )
    items = await engine.db.read(dashboard.with_names, items)
    strips = await engine.db.read(dashboard.strips, [one["id"] for one in items])
    whole = cursor is None and given["cursor"] is None  # then they are counted already
    count = len(items) if whole else await engine.db.read(dashboard.count_schedules, caller.org_id, **wanted)
    return page(
        request, "schedules.html", items=items, older=older(request, cursor), strips=strips, given=given,
        count=f"{count:,}{'+' if count == dashboard.SCAN_ROWS_MAX else ''}",
        kinds=sorted(engine.runners), conditions=[one.value for one in Condition],
        filters={name: value for name, value in wanted.items() if value is not None},
    )  # fmt: skip


@router.get("/schedules/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine, db = engine_of(request), engine_of(request).db
    found = await db.read(engine_reports.schedule, caller.org_id, key)
    coming = await views.upcoming(engine, caller.org_id, found["id"], NEXT)
    runs: list[dict[str, Any]] = []
    if caller.reads("runs"):
        runs, _ = await db.read(run_reports.list_runs, caller.org_id, schedule_id=found["id"], limit=RUNS)
    ended = [one for one in runs if one["started_at"] and one["finished_at"]][::-1]
    slots = [one["at"] for one in coming["slots"]]
    period = (slots[1] - slots[0]).total_seconds() if len(slots) > 1 else None
    given = asked(request, "from", "to", "reprocess", "limit")
    return page(
        request, "schedule.html", one=found, coming=coming, runs=runs, ended=ended, period=period, given=given,
        strip=(await db.read(dashboard.strips, [found["id"]], 90))[found["id"]],
        spans=await db.read(dashboard.spans, found["id"]),
        changes=await history(request, caller, "schedules", found["id"]),
        overlaps=[one.value for one in Overlap], misfires=[one.value for one in Misfire],
        schema=await schema_of(request, caller.org_id, found), rehearsed=await rehearse(request, caller, key, given),
    )  # fmt: skip


async def rehearse(request: Request, caller: Viewer, key: str, given: dict[str, str | None]) -> dict[str, Any] | None:
    """What a backfill would fire: told, not done. Nothing is written, so it may stand in the address."""
    if given["from"] is None or given["to"] is None:
        return None
    zone = preferences(request).zone
    since, until = moment(given["from"], zone), moment(given["to"], zone)
    limit: Any = number(given["limit"] or "100")
    wanted = {"reprocess": given["reprocess"] is not None, "limit": limit, "dry_run": True}
    try:
        slots = await engine_of(request).backfill(caller.org_id, key, since=since, until=until, **wanted)
    except RotaError as error:
        return {"refusal": error.message, "slots": []}
    return {"refusal": None, "slots": slots, "from": since, "to": until}


async def schema_of(request: Request, org_id: str, schedule: dict[str, Any]) -> dict[str, Any] | None:
    """Which parameters a schedule's task takes; None for what is no task, or has none."""
    if schedule["kind"] != "task":
        return None
    try:
        return await TaskManager(engine_of(request), org_id).schema(schedule["target"])
    except RotaError:  # a task that is gone: the page says so elsewhere
        return None


def filters(given: dict[str, str | None]) -> dict[str, Any]:
    """What the address asks of schedules; a flag that is neither true nor false asks nothing."""
    return {
        "name": given["name"], "kind": given["kind"], "tag": given["tag"], "condition": given["condition"],
        "enabled": FLAGS.get(given["enabled"] or ""), "paused": FLAGS.get(given["paused"] or ""),
    }  # fmt: skip
