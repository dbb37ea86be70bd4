"""Timeline page: runs of each schedule between two times, from a second to a week, and slots to come; and the load of
the next week."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from rota.core.errors import Invalid
from rota.core.freeze import FreezeWindow
from rota.core.states import Status
from rota.core.timing import triggers
from rota.core.timing.dst import TICK, next_change, zone_of
from rota.core.timing.triggers import Timing, parse_instant
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import freezes, pauses, schedules
from rota.engine.compute import compute
from rota.frame.http.auth import Caller
from rota.frame.http.reports import reports_of
from rota.frame.web import lanes
from rota.frame.web.axes import percentile, time_ticks
from rota.frame.web.pages import (
    NavigationItem,
    TimeFormat,
    engine_of,
    next_page_url,
    page,
    preferences,
    query_values,
    span,
)
from rota.frame.web.sessions import Viewer
from rota.reports import schedules as schedule_reports
from rota.reports import timeline as timeline_reports

router = APIRouter()

NAVIGATION = [NavigationItem("/timeline", "Timeline", "t", "calendar")]
ROWS = 20
COMING_MOST = 100  # planned slots of a row that are drawn
FOUND_MOST = 200  # schedules that have runs with a status
SPANS = {
    "week": timedelta(days=7), "day": timedelta(days=1), "6h": timedelta(hours=6), "hour": timedelta(hours=1),
    "10min": timedelta(minutes=10), "minute": timedelta(minutes=1), "10s": timedelta(seconds=10),
    "second": timedelta(seconds=1),
}  # fmt: skip
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=31)
PAST_SHARE = 0.75  # of a range around now
NOTHING = timeline_reports.Past([], True, [])
FILTERS = ("name", "kind", "tag", "status")
STATUSES = ("running", "pending", "failed", "crashed", "canceled", "skipped", "success")


@dataclass(frozen=True, slots=True)
class Shown:
    """The range of the page, and links to others that keep its filters."""

    start: datetime
    end: datetime
    now: datetime
    follows: bool  # it moves with the time
    kept: dict[str, str]

    @property
    def span(self) -> timedelta:
        return self.end - self.start

    def link(self, start: datetime, end: datetime) -> str:
        """Return the address of another range; of at least SHORTEST, at most LONGEST."""
        length = min(max(end - start, SHORTEST), LONGEST)
        start = start + (end - start - length) / 2
        instants = {"from": instant_text(start), "to": instant_text(start + length)}
        return f"/timeline?{urlencode({**instants, **self.kept})}"

    def of_span(self, name: str) -> str:
        """Return the address of a range with a named length around the middle of this one, or around now."""
        if self.follows or SPANS[name] == self.span:
            return f"/timeline?{urlencode({'span': name, **self.kept})}"
        middle = self.start + self.span / 2
        return self.link(middle - SPANS[name] / 2, middle + SPANS[name] / 2)

    def moved(self, share: float) -> str:
        return self.link(self.start + self.span * share, self.end + self.span * share)

    def zoomed(self, factor: float) -> str:
        middle, half = self.start + self.span / 2, self.span * factor / 2
        return self.link(middle - half, middle + half)


def instant_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@router.get("/timeline")
async def timeline(request: Request, caller: Viewer) -> Response:
    engine, db = engine_of(request), reports_of(request, caller)
    now, times = engine.clock.now(), TimeFormat(preferences(request), engine.clock.now())
    query = query_values(request, "span", "from", "to", "day", "name", "kind", "tag", "status", "cursor")
    shown = read_range(query, times, now)
    status = query["status"] if query["status"] in set(Status) else None
    ids = None
    if status is not None and status != Status.SUCCESS:
        newest = (status, shown.start, shown.end, FOUND_MOST)
        ids = await db.read(timeline_reports.schedules_with, caller.org_id, *newest)
    items: list[Record] = []
    cursor = None
    if ids != []:
        items, cursor = await db.read(
            schedule_reports.list_schedules,
            caller.org_id,
            limit=ROWS,
            cursor=query["cursor"],
            ids=ids,
            name=query["name"],
            kind=query["kind"],
            tag=query["tag"],
        )
    frozen = await db.read(pauses.freeze_of, caller.org_id, now)
    keys = [schedule["id"] for schedule in items]
    reads_runs = caller.reads("runs")
    pasts = await db.read(timeline_reports.pasts, keys, shown.start, shown.end, status) if reads_runs else {}
    coming = await planned(request, caller, items, shown)
    windows = (await db.read(freezes.between, [caller.org_id], shown.start, None)).get(caller.org_id, ())
    rows = [
        row(schedule, shown, frozen, windows, pasts.get(key, NOTHING), coming.get(key, []), times)
        for schedule in items
        for key in [schedule["id"]]
    ]
    visible = lanes.Range(shown.start, shown.end, now)
    ticks = time_ticks(shown.start, shown.end, times.local)
    return page(
        request,
        "timeline.html",
        rows=rows,
        ruler=lanes.ruler(visible, ticks, shown.link),
        next_page_url=next_page_url(request, cursor),
        shown=shown,
        span_name=next((name for name, length in SPANS.items() if length == shown.span), ""),
        spans=list(SPANS),
        statuses=STATUSES,
        kinds=sorted(engine.runners),
        query=query,
        load=await request.app.state.loads.of_org(db, caller.org_id, now),
        frozen=frozen,
    )


def read_range(query: dict[str, str | None], times: TimeFormat, now: datetime) -> Shown:
    """Return the range of the query: `from` and `to`; or `span` from the midnight of `day`, else around now. Raises
    Invalid."""
    kept = {name: value for name in FILTERS if (value := query[name])}
    if query["from"] is not None and query["to"] is not None:
        start, end = parse_instant(query["from"], "from"), parse_instant(query["to"], "to")
        if not SHORTEST <= end - start <= LONGEST:
            raise Invalid("to", query["to"], "must be a second to 31 days after `from`")
        return Shown(start, end, now, False, kept)
    length = SPANS.get(query["span"] or "day", SPANS["day"])
    if query["day"] is not None:
        start = midnight(times, now, query["day"])
        days = length.days
        end = midnight(times, start + timedelta(days=days, hours=12), None) if days else start + length
        return Shown(start, end, now, False, kept)
    step = length / 24
    start = now - length * PAST_SHARE
    start = datetime.fromtimestamp((start.timestamp() // step.total_seconds() + 1) * step.total_seconds(), UTC)
    return Shown(start, start + length, now, True, kept)


def row(
    schedule: Record,
    shown: Shown,
    frozen: Record,
    windows: Sequence[FreezeWindow],
    past: timeline_reports.Past,
    coming: Sequence[datetime],
    times: TimeFormat,
) -> Record:
    """Return the row of a schedule, with clock changes, freeze and pauses."""
    start, end = shown.start, shown.end
    marks = clock_marks(schedule["timezone"] or "UTC", start, end)
    for since, until, kind, words in (
        (frozen["frozen_at"], frozen["until"], "freeze", frozen["reason"]),
        (schedule["paused_at"], schedule["paused_until"], "freeze", schedule["pause_reason"]),
        *(
            (window.starts_at, window.ends_at, "freeze", window.note)
            for window in windows
            if window.covers(schedule["kind"], schedule["queue"], schedule["tags"])
        ),
    ):
        if since is not None and since < end and (until is None or until > start):
            marks.append((max(since, start), min(until or end, end), kind, f"{words or 'no reason given'}"))
    bars, slots = lanes.bars_of(past.runs, shown.now), past.slots
    earlier = None if past.complete else min((bar.started or bar.queued for bar in bars), default=None)
    later = coming[-1] if len(coming) == COMING_MOST else None

    def at(instant: datetime) -> str:
        return times.at(instant, schedule["timezone"])

    visible = lanes.Range(start, end, shown.now)
    drawn = lanes.lane(visible, bars, slots, coming, marks, (earlier, later), schedule["name"], span, at)
    return {"schedule": schedule, "drawn": drawn, "figures": figures(bars, slots, earlier is not None)}


def figures(bars: Sequence[lanes.Bar], slots: Sequence[Record], more: bool) -> Record:
    """Return the number of runs, of failed and missed ones, and percentiles of durations of a row, as texts."""
    failed = sum(bar.run["status"] in lanes.BAD for bar in bars)
    failed += sum(slot["count"] or 1 for slot in slots if slot["verdict"] == "missed")
    took = lanes.durations(bars)
    return {
        "runs": f"{len(bars)}{'+' if more else ''}" if bars else "",
        "bad": f"{failed:,}" if failed else "",
        "p50": span(percentile(took, 0.5)) if took else "",
        "p95": span(percentile(took, 0.95)) if took else "",
    }


async def planned(request: Request, caller: Caller, items: Sequence[Record], shown: Shown) -> dict[str, list[datetime]]:
    """Return the slots of schedules that are still to come, in the range."""
    active = {
        item["id"]: max(item["next_slot"], shown.start) - TICK
        for item in items
        if item["next_slot"] is not None and item["enabled"] and not item["paused"] and item["next_slot"] < shown.end
    }
    until = shown.end - TICK

    def timings(tx: Tx) -> dict[str, Timing]:
        return {key: schedules.get(tx, caller.org_id, key).timing for key in active}

    def slots(timing_of: dict[str, Timing]) -> dict[str, list[datetime]]:
        return {
            key: list(islice(triggers.slots_between(timing, active[key], until), COMING_MOST))
            for key, timing in timing_of.items()
        }

    return await compute(slots, await reports_of(request, caller).read(timings)) if active else {}


def clock_marks(zone: str, start: datetime, end: datetime) -> list[lanes.Mark]:
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
