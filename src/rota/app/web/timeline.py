"""Timeline page: past and next slots per schedule, and slots per hour of the next week."""

from datetime import UTC, datetime, timedelta
from itertools import islice

from fastapi import APIRouter, Request, Response

from rota.core.timing import triggers
from rota.core.timing.dst import TICK, next_change, zone_of
from rota.core.timing.triggers import parse_instant
from rota.db.paging import Record
from rota.engine import pauses, schedules
from rota.engine.compute import compute
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web.charts import MAX_TIMELINE_MARKS
from rota.frame.web.pages import NavigationItem, TimeFormat, engine_of, next_page_url, page, preferences, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import freezes as freeze_reports
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports

router = APIRouter()

NAVIGATION = [NavigationItem("/timeline", "Timeline", "t", "calendar")]
ROWS = 20


@router.get("/timeline")
async def timeline(request: Request, caller: Viewer) -> Response:
    engine, db = engine_of(request), reports_of(request, caller)
    now, times = engine.clock.now(), TimeFormat(preferences(request), engine.clock.now())
    query = query_values(request, "span", "day", "name", "tag", "cursor")
    week = query["span"] == "week"
    start = midnight(times, now, query["day"])
    end = midnight(times, start + timedelta(days=7 if week else 1, hours=12), None)
    items, cursor = await db.read(
        schedule_reports.list_schedules,
        caller.org_id,
        limit=ROWS,
        cursor=query["cursor"],
        name=query["name"],
        tag=query["tag"],
    )
    frozen = await db.read(pauses.freeze_of, caller.org_id, now)
    lanes = [await lane(request, caller, schedule, start, end, frozen) for schedule in items]
    step = timedelta(days=7 if week else 1)
    return page(
        request,
        "timeline.html",
        lanes=lanes,
        next_page_url=next_page_url(request, cursor),
        start=start,
        end=end,
        week=week,
        query=query,
        load=await request.app.state.loads.of_org(db, caller.org_id, now),
        frozen=frozen,
        before=f"{times.local(start) - step:%Y-%m-%d}",
        after=f"{times.local(start) + step:%Y-%m-%d}",
    )


async def lane(
    request: Request, caller: Caller, schedule: Record, start: datetime, end: datetime, frozen: Record
) -> Record:
    """Return past and next slots of a schedule between two times, with clock changes, freeze and pause."""
    db = reports_of(request, caller)
    slots = await db.read(slot_reports.strip, schedule["id"], MAX_TIMELINE_MARKS, start, end)
    coming: list[datetime] = []
    if schedule["next_slot"] is not None and schedule["enabled"] and not schedule["paused"]:
        timing = (await db.read(schedules.get, caller.org_id, schedule["id"])).timing
        after = max(schedule["next_slot"] - TICK, start - TICK)
        coming = await compute(
            lambda: list(islice(triggers.slots_between(timing, after, end - TICK), MAX_TIMELINE_MARKS))
        )
    covered = (schedule["kind"], schedule["queue"], schedule["tags"])
    windows = await db.read(freeze_reports.windows_ahead, caller.org_id, start, *covered)
    marks = clock_marks(schedule["timezone"] or "UTC", start, end)
    for since, until, kind, words in (
        (frozen["frozen_at"], frozen["until"], "freeze", frozen["reason"]),
        (schedule["paused_at"], schedule["paused_until"], "freeze", schedule["pause_reason"]),
        *((window.starts_at, window.ends_at, "freeze", window.note) for window in windows),
    ):
        if since is not None and since < end and (until is None or until > start):
            marks.append((max(since, start), min(until or end, end), kind, f"{words or 'no reason given'}"))
    return {"schedule": schedule, "slots": slots, "coming": coming, "marks": marks}


def clock_marks(zone: str, start: datetime, end: datetime) -> list[tuple[datetime, datetime | None, str, str]]:
    """Return the marks of DST changes in a zone."""
    change = next_change(zone_of(zone), start, end)
    return [(change, None, "jump", f"the clock changes in {zone}")] if change is not None else []


def midnight(times: TimeFormat, at: datetime, day: str | None) -> datetime:
    """Return midnight in the user's zone, of the day of `at` or of the given day."""
    local = times.local(at)
    if day is not None:
        offset = f"{local:%z}"
        local = times.local(parse_instant(f"{day}T12:00:00{offset[:3]}:{offset[3:]}", "day"))
    return local.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
