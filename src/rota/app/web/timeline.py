"""The timeline: past runs and coming slots on one strip per schedule, and how much the coming week holds."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice

import orjson
from fastapi import APIRouter, Request, Response

from rota.core import effort
from rota.core.errors import Invalid
from rota.core.timing import triggers
from rota.core.timing.counting import slots_per_hour
from rota.core.timing.dst import TICK, next_change, zone_of
from rota.core.timing.triggers import parse_instant
from rota.db.paging import Record
from rota.engine import dashboard, schedules
from rota.engine import reports as engine_reports
from rota.engine.compute import compute
from rota.frame.http.auth import Caller
from rota.frame.web.charts import MARKS
from rota.frame.web.pages import Look, Place, asked, engine_of, older, page, preferences
from rota.frame.web.sessions import Viewer

router = APIRouter()

PLACES = [Place("/timeline", "Timeline", "t", "calendar")]
ROWS = 20
HOURS = 7 * 24
HOUR = timedelta(hours=1)
FRESH = timedelta(minutes=1)  # how long the sum over all schedules holds


@dataclass(frozen=True, slots=True)
class Load:
    """How much the coming week holds, as it was at a moment."""

    at: datetime
    start: datetime
    hours: list[int]
    counted: int  # schedules
    total: int


loads: dict[str, Load] = {}  # of each org: counting a hundred thousand rules for each look would be dear


@router.get("/timeline")
async def timeline(request: Request, caller: Viewer) -> Response:
    engine, db = engine_of(request), engine_of(request).db
    now, look = engine.clock.now(), Look(preferences(request), engine.clock.now())
    given = asked(request, "span", "day", "name", "tag", "cursor")
    week = given["span"] == "week"
    start = midnight(look, now, given["day"])
    end = midnight(look, start + timedelta(days=7 if week else 1, hours=12), None)
    items, cursor = await db.read(
        engine_reports.list_schedules,
        caller.org_id,
        limit=ROWS,
        cursor=given["cursor"],
        name=given["name"],
        tag=given["tag"],
    )
    frozen = await db.read(engine_reports.freeze, caller.org_id, now)
    lanes = [await lane(request, caller, one, start, end, frozen) for one in items]
    step = timedelta(days=7 if week else 1)
    return page(
        request, "timeline.html", lanes=lanes, older=older(request, cursor), start=start, end=end, week=week,
        given=given, load=await load(request, caller, now), frozen=frozen,
        before=f"{look.local(start) - step:%Y-%m-%d}", after=f"{look.local(start) + step:%Y-%m-%d}",
    )  # fmt: skip


async def lane(request: Request, caller: Caller, one: Record, start: datetime, end: datetime, frozen: Record) -> Record:
    """What one schedule did and will do between two moments, with clock changes, freeze and pause."""
    db = engine_of(request).db
    slots = await db.read(dashboard.strip, one["id"], MARKS, start, end)
    coming: list[datetime] = []
    if one["next_slot"] is not None and one["enabled"] and not one["paused"]:
        timing = (await db.read(schedules.get, caller.org_id, one["id"])).timing
        after = max(one["next_slot"] - TICK, start - TICK)
        coming = await compute(lambda: list(islice(triggers.slots_between(timing, after, end - TICK), MARKS)))
    marks = clock_marks(one["timezone"] or "UTC", start, end)
    for since, until, kind, words in (
        (frozen["frozen_at"], frozen["until"], "freeze", frozen["reason"]),
        (one["paused_at"], one["paused_until"], "freeze", one["pause_reason"]),
    ):
        if since is not None and since < end and (until is None or until > start):
            marks.append((max(since, start), min(until or end, end), kind, f"{words or 'no reason was given'}"))
    return {"one": one, "slots": slots, "coming": coming, "marks": marks}


def clock_marks(zone: str, start: datetime, end: datetime) -> list[tuple[datetime, datetime | None, str, str]]:
    """Where the clock of a schedule's zone jumps."""
    found = next_change(zone_of(zone), start, end)
    return [(found, None, "jump", f"the clock changes in {zone}")] if found is not None else []


def midnight(look: Look, at: datetime, day: str | None) -> datetime:
    """The start of a day in the zone of the reader: of this one, or of the one that is named."""
    local = look.local(at)
    if day is not None:
        offset = f"{local:%z}"
        local = look.local(parse_instant(f"{day}T12:00:00{offset[:3]}:{offset[3:]}", "day"))
    return local.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


async def load(request: Request, caller: Caller, now: datetime) -> Load:
    """The slots of the coming week by whole hours, over all schedules; as it was a minute ago at most."""
    known = loads.get(caller.org_id)
    if known is None or not timedelta(0) <= now - known.at < FRESH:
        rules, total = await engine_of(request).db.read(dashboard.timings, caller.org_id)
        start = now.replace(minute=0, second=0, microsecond=0) + HOUR
        known = loads[caller.org_id] = Load(now, start, *await compute(summed, rules, start, total), total)
    return known


def summed(rules: dict[str, int], start: datetime, total: int) -> tuple[list[int], int]:
    """The slots in each hour, and how many schedules they were counted from. Where that is not all of them, the others
    are taken to be alike."""
    hours = [0] * HOURS
    counted = sum(rules.values())
    with effort.unlimited():  # the number of rules is limited, and the slots of a rule are not walked
        for text, count in rules.items():
            hours = [sum_so_far + count * more for sum_so_far, more in zip(hours, by_hour(text, start), strict=True)]
    return [round(hour * total / counted) for hour in hours] if counted else hours, counted


@lru_cache(maxsize=5_000)
def by_hour(text: str, start: datetime) -> tuple[int, ...]:
    """The slots of one rule in each hour of a week; none where the rule cannot be read."""
    try:
        return tuple(slots_per_hour(triggers.load(orjson.loads(text)), start, HOURS))
    except (Invalid, ValueError):
        return (0,) * HOURS
