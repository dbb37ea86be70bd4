"""The timeline: past runs and coming slots on one strip per schedule, and how much the coming week holds."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice

import orjson
from fastapi import APIRouter, Request, Response

from rota.app.auth import Caller
from rota.app.web.charts import MARKS
from rota.app.web.pages import Look, Place, asked, engine_of, older, page, preferences
from rota.app.web.sessions import Viewer
from rota.core import triggers
from rota.core.errors import Invalid
from rota.core.plan import TICK
from rota.core.triggers import Every, parse_instant
from rota.core.wall import next_change, zone_of
from rota.store import dashboard, reports, schedules
from rota.store.reports import Record

router = APIRouter()

PLACES = [Place("/timeline", "Timeline", "t", "calendar")]
ROWS = 20
HOURS = 7 * 24
SLOTS = 3_000  # of one rule in a week that are counted one by one
FRESH = timedelta(minutes=1)  # how long the sum over all schedules holds

Load = tuple[datetime, list[int], int]
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
        reports.list_schedules, caller.org_id, limit=ROWS, cursor=given["cursor"], name=given["name"], tag=given["tag"]
    )
    frozen = await db.read(reports.freeze, caller.org_id, now)
    lanes = [await lane(request, caller, one, start, end, frozen) for one in items]
    hour, hours, counted = await load(request, caller, now)
    step = timedelta(days=7 if week else 1)
    return page(
        request, "timeline.html", lanes=lanes, older=older(request, cursor), start=start, end=end, week=week,
        given=given, hours=hours, hour=hour, counted=counted, frozen=frozen,
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
        coming = list(islice(triggers.slots_between(timing, after, end - TICK), MARKS))
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
    """The slots of the coming week by hours, over all schedules; as it was a minute ago at most."""
    known = loads.get(caller.org_id)
    if known is None or not timedelta(0) <= now - known[0] < FRESH:
        found = await engine_of(request).db.read(dashboard.timings, caller.org_id)
        start = now.replace(minute=0, second=0, microsecond=0)
        known = (now, summed(found, start), sum(count for _, count in found))
        loads[caller.org_id] = known
    return now.replace(minute=0, second=0, microsecond=0), known[1], known[2]


def summed(found: Sequence[tuple[str, int]], start: datetime) -> list[int]:
    hours = [0] * HOURS
    for text, count in found:
        for hour, slots in enumerate(by_hour(text, start)):
            hours[hour] += slots * count
    return hours


@lru_cache(maxsize=5_000)
def by_hour(text: str, start: datetime) -> tuple[int, ...]:
    """The slots of one rule in each hour of a week. Of a rule with very many, the rest goes on as it began."""
    try:
        timing = triggers.load(orjson.loads(text))
    except (Invalid, ValueError):
        return (0,) * HOURS
    edges = [start + timedelta(hours=number) - TICK for number in range(HOURS + 1)]
    if isinstance(timing.trigger, Every) and timing.window is None:
        return tuple(triggers.count_slots(timing, edges[n], edges[n + 1], SLOTS) or 0 for n in range(HOURS))
    hours, last = [0] * HOURS, 0
    for number, slot in enumerate(triggers.slots_between(timing, edges[0], edges[-1])):
        last = (slot - start) // timedelta(hours=1)
        if number >= SLOTS and last >= 24:
            return tuple(hours[n] if n < last else hours[n % 24] for n in range(HOURS))
        hours[last] += 1
    return tuple(hours)
