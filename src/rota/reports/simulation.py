"""Simulation for people: what the schedules of an org would do in a time range, with durations and costs from their
history."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil

from sqlalchemy import func, select

from rota.core.kinds import traits_of
from rota.core.model import DueSchedule
from rota.core.simulation import (
    Expected,
    QueueLimit,
    Scenario,
    Simulated,
    SimulatedSlot,
    TimeRange,
    first_due,
    simulate,
)
from rota.core.states import Condition, Status
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.tables import charge_receipts, clocks, orgs, queues, runs, schedules
from rota.engine import freezes
from rota.engine.schedule_rows import schedule_of
from rota.engine.schedules import LIVING

HISTORY_RUNS = 50  # newest runs of a schedule from which its duration and cost are estimated
SCHEDULES_MAX = 5_000  # of one simulation
SLOTS_SHOWN = 1_000
LOAD_ROWS_MAX = 10_000  # over a year of one queue
UNKNOWN_DURATION = timedelta(seconds=60)  # of a schedule without a run that succeeded
HOUR = timedelta(hours=1)
ZERO = timedelta(0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

s, k, r = schedules.c, clocks.c, runs.c


class Durations(StrEnum):
    """Which of the recent durations of a schedule its runs are expected to take."""

    P50 = "p50"
    P95 = "p95"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Installation:
    """The schedules and limits of an org, as they are stored."""

    expected: Sequence[Expected]
    queues: dict[str, QueueLimit]
    max_running: int | None
    unknown: Sequence[str]  # names of schedules without a known duration
    truncated: bool  # there are more schedules


def read_installation(tx: Tx, org_id: str, since: datetime, durations: Durations) -> Installation:
    """Return the enabled schedules of an org with the expected durations and costs of their runs, and its limits."""
    org = tx.execute(select(orgs.c.max_running, orgs.c.frozen_at, orgs.c.frozen_until).where(orgs.c.id == org_id)).one()
    stmt = select(*s, k.fired).join(clocks, k.schedule_id == s.id)
    stmt = stmt.where(s.org_id == org_id, LIVING, s.enabled, s.condition == Condition.OK).order_by(s.name)
    rows = tx.execute(stmt.limit(SCHEDULES_MAX + 1)).all()
    windows = freezes.between(tx, [org_id], since, None).get(org_id, ())
    expected, unknown = [], []
    for row in rows[:SCHEDULES_MAX]:
        schedule = schedule_of(row)
        covering = freezes.covering(schedule, windows)
        due = DueSchedule(schedule, None, row.fired, org.frozen_at, org.frozen_until, windows=covering)
        duration, credits = estimate(tx, schedule.id, durations)
        if duration is None:
            unknown.append(schedule.name)
        host = schedule.target if traits_of(schedule.kind).orders_hosts else None
        expected.append(Expected(due, duration or UNKNOWN_DURATION, credits, host))
    of_org = tx.execute(
        select(queues.c.name, queues.c.max_running, queues.c.paused_at).where(queues.c.org_id == org_id)
    )
    limits = {row.name: QueueLimit(row.max_running, row.paused_at is not None) for row in of_org}
    return Installation(expected, limits, org.max_running, unknown, len(rows) > SCHEDULES_MAX)


def estimate(tx: Tx, schedule_id: str, durations: Durations) -> tuple[timedelta | None, float]:
    """Return how long a run of a schedule is expected to take, None if none has succeeded, and how many credits it
    costs on average."""
    recent = select(r.id, r.started_at, r.finished_at, r.status).where(r.schedule_id == schedule_id)
    rows = tx.execute(recent.order_by(r.recorded_at.desc(), r.id.desc()).limit(HISTORY_RUNS)).all()
    spans = sorted(row.finished_at - row.started_at for row in rows if row.started_at and row.status == Status.SUCCESS)
    if not spans:
        return None, 0.0
    receipts = charge_receipts.c
    charged = select(func.sum(receipts.charged_credits)).where(receipts.run_id.in_([row.id for row in rows]))
    started = sum(row.started_at is not None for row in rows)
    return percentile(spans, durations), float(tx.execute(charged).scalar() or 0) / started


def percentile(spans: Sequence[timedelta], durations: Durations) -> timedelta:
    """Return a percentile of ascending durations, by the nearest rank."""
    share = {Durations.P50: 0.5, Durations.P95: 0.95, Durations.MAX: 1.0}[durations]
    return spans[ceil(share * len(spans)) - 1]


def run_simulation(installation: Installation, scenario: Scenario, go_on: Callable[[], bool] = lambda: True) -> Record:
    """Simulate an installation; returns the answer for people. Takes long: call it outside the event loop."""
    start = scenario.span.start
    expected = [replace(each, due=first_due(each.due, start)) for each in installation.expected]
    places = [limit for limit in (scenario.places, installation.max_running) if limit is not None]
    scenario = replace(scenario, places=min(places, default=None), queues=installation.queues)
    return answer_of(expected, simulate(expected, scenario, go_on), installation, scenario)


def answer_of(
    expected: Sequence[Expected], result: Simulated, installation: Installation, scenario: Scenario
) -> Record:
    load, load_truncated = load_of(expected, result.slots, scenario.outages)
    shown = sorted(result.slots, key=lambda slot: slot.slot)[:SLOTS_SHOWN]
    return {
        "from": scenario.span.start,
        "to": scenario.span.end,
        "until": result.until,
        "slots": [slot_record(expected[slot.position], slot) for slot in shown],
        "totals": totals_of(expected, result.slots, scenario.outages),
        "load": load,
        "unknown_durations": installation.unknown[:100],
        "truncated": result.truncated or installation.truncated or load_truncated or len(result.slots) > SLOTS_SHOWN,
    }


def slot_record(expected: Expected, slot: SimulatedSlot) -> Record:
    return {
        "schedule": expected.due.schedule.name,
        "slot": slot.slot,
        "last_slot": slot.last_slot,
        "count": slot.slots,
        "verdict": slot.verdict,
        "reason": slot.reason,
        "starts_at": slot.started_at,
        "finishes_at": slot.finished_at,
    }


def totals_of(expected: Sequence[Expected], slots: Sequence[SimulatedSlot], outages: Sequence[TimeRange]) -> Record:
    """Return how many slots have each verdict, and the time and credits that the runs take."""
    verdicts = {"ran": 0, "skipped": 0, "missed": 0, "coalesced": 0, "waiting": 0}
    reasons: dict[str, int] = {}
    seconds = credits = longest = 0.0
    for slot in slots:
        number = slot.slots or 1
        verdicts[slot.verdict or "waiting"] += number
        if slot.verdict in ("skipped", "missed") and slot.reason:
            reasons[slot.reason] = reasons.get(slot.reason, 0) + number
        if slot.started_at is not None and slot.run_at is not None:
            each = expected[slot.position]
            seconds += sum((end - at).total_seconds() for at, end in running_parts(slot, outages))
            credits += each.credits
            longest = max(longest, (slot.started_at - slot.run_at).total_seconds())
    return {
        **verdicts,
        "reasons": reasons,
        "seconds": round(seconds, 3),
        "credits": round(credits),
        "longest_wait_seconds": round(longest, 3),
    }


def running_parts(slot: SimulatedSlot, outages: Sequence[TimeRange]) -> Iterator[tuple[datetime, datetime]]:
    """Yield when the attempts of a slot run. `outages` are in order; what they interrupt is tried again after them."""
    if slot.started_at is None:
        return
    at, end = slot.started_at, slot.finished_at or slot.started_at
    for outage in outages:
        if at < outage.end and outage.start < end:
            if at < outage.start:
                yield at, outage.start
            at = outage.end
    if at < end:
        yield at, end


def load_of(
    expected: Sequence[Expected], slots: Sequence[SimulatedSlot], outages: Sequence[TimeRange]
) -> tuple[list[Record], bool]:
    """Return how many runs start in each hour and how many seconds of it they take, by queue and host; and whether that
    is not all."""
    starts: Counter[tuple[int, str, str]] = Counter()  # by hours since EPOCH, queue, and host or ""
    busy: defaultdict[tuple[int, str, str], timedelta] = defaultdict(timedelta)
    places = [(each.due.schedule.queue, each.host or "") for each in expected]
    for slot in slots:
        if slot.started_at is None:
            continue
        place = places[slot.position]
        starts[(slot.started_at - EPOCH) // HOUR, *place] += 1
        for at, end in running_parts(slot, outages):
            (hour, into), left = divmod(at - EPOCH, HOUR), end - at
            while into + left > HOUR:
                busy[hour, *place] += HOUR - into
                left -= HOUR - into
                hour, into = hour + 1, ZERO
            busy[hour, *place] += left
    keys = sorted({*starts, *(key for key, time in busy.items() if time)})
    rows: list[Record] = [
        {
            "hour": EPOCH + hour * HOUR,
            "queue": queue,
            "host": host or None,
            "runs": starts.get((hour, queue, host), 0),
            "seconds": round(busy[hour, queue, host].total_seconds(), 3),
        }
        for hour, queue, host in keys[:LOAD_ROWS_MAX]
    ]
    return rows, len(keys) > LOAD_ROWS_MAX


def disjoint(outages: Sequence[TimeRange]) -> list[TimeRange]:
    """Return outages in order, with those that overlap merged."""
    merged: list[TimeRange] = []
    for outage in sorted(outages, key=lambda outage: outage.start):
        if merged and outage.start <= merged[-1].end:
            merged[-1] = TimeRange(merged[-1].start, max(merged[-1].end, outage.end))
        else:
            merged.append(outage)
    return merged
