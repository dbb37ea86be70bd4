"""The timeline: past runs and coming slots on one strip per schedule, and how much the coming week holds."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise

import orjson
from fastapi import APIRouter, Request, Response

from rota.app.auth import Caller
from rota.app.web.charts import MARKS
from rota.app.web.pages import Look, Place, asked, engine_of, older, page, preferences
from rota.app.web.sessions import Viewer
from rota.core import triggers
from rota.core.errors import Invalid
from rota.core.plan import TICK
from rota.core.triggers import Every, Timing, parse_instant
from rota.core.wall import next_change, zone_of
from rota.store import dashboard, reports, schedules
from rota.store.reports import Record

router = APIRouter()

PLACES = [Place("/timeline", "Timeline", "t", "calendar")]
ROWS = 20
HOURS = 7 * 24
HOUR = timedelta(hours=1)
SLOTS = 3_000  # of one rule in a week that are counted one by one
EFFORT = 20_000  # slots that are counted for one look
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
        reports.list_schedules, caller.org_id, limit=ROWS, cursor=given["cursor"], name=given["name"], tag=given["tag"]
    )
    frozen = await db.read(reports.freeze, caller.org_id, now)
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
    if known is None or not timedelta(0) <= now - known.at < FRESH:
        found, total = await engine_of(request).db.read(dashboard.timings, caller.org_id)
        start = now.replace(minute=0, second=0, microsecond=0)
        known = loads[caller.org_id] = Load(now, start, *summed(found, start, total), total)
    return known


def summed(found: dict[str, int], start: datetime, total: int) -> tuple[list[int], int]:
    """The slots in each hour, and how many schedules were counted for it: the commonest rules first, as far as there is
    time. The others are presumed to be alike."""
    hours, counted, effort = [0] * HOURS, 0, 0
    for text, count in sorted(found.items(), key=lambda one: -one[1]):
        if effort > EFFORT:
            break
        slots = by_hour(text, start)
        hours = [one + count * more for one, more in zip(hours, slots, strict=True)]
        counted, effort = counted + count, effort + min(sum(slots), SLOTS) + 10
    return [round(one * total / counted) for one in hours] if counted else hours, counted


@lru_cache(maxsize=5_000)
def by_hour(text: str, start: datetime) -> tuple[int, ...]:
    """The slots of one rule in each hour of a week. Of one with very many, the rest goes on as the first day was."""
    try:
        timing = triggers.load(orjson.loads(text))
    except (Invalid, ValueError):
        return (0,) * HOURS
    if isinstance(timing.trigger, Every) and timing.window is None:
        return evenly(timing, timing.trigger, start)
    hours, last = [0] * HOURS, 0
    for number, slot in enumerate(triggers.slots_between(timing, start - TICK, start + HOURS * HOUR - TICK)):
        last = (slot - start) // HOUR
        if number >= SLOTS and last >= 24:
            return tuple(hours[n] if n < last else hours[n % 24] for n in range(HOURS))
        hours[last] += 1
    return tuple(hours)


def evenly(timing: Timing, trigger: Every, start: datetime) -> tuple[int, ...]:
    """Of an interval, by arithmetic: how many multiples of it lie in each hour."""
    first = max(trigger.anchor, timing.starts_at or trigger.anchor)
    edges = [max(first, min(start + n * HOUR, timing.ends_at or start + HOURS * HOUR)) for n in range(HOURS + 1)]
    before = [-((trigger.anchor - edge) // trigger.span) for edge in edges]  # slots that lie before each edge
    return tuple(after - earlier for earlier, after in pairwise(before))
