"""Plan of a due schedule: which slots fire, which pass and why, and when it is due again. Pure.

The cost does not grow with the number of passed slots: they are handled as ranges, and only slots that fire are listed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from rota.core.catch_up import AWAITING_APPROVAL, CatchUpChoice, CatchUpLimits, UsualRun, lowered, plan_catch_up
from rota.core.freeze import FREEZE_REASON, FreezeMode
from rota.core.model import DueSchedule, Fire, Gap, Plan, PlannedSchedule, Schedule
from rota.core.policy import Misfire, Overlap
from rota.core.states import Verdict
from rota.core.timing.counting import count_slots
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import Timing, delay_of, last_slot, next_slot, run_at, slots_between

GAP_COUNT_STEPS = 2_000  # limit for counting one gap while firing
FIRE_BATCH_SLOTS = 1_000  # slots of one schedule per transaction; also the maximum of `catch_up_limit`


@dataclass(frozen=True, slots=True)
class Hold:
    """A half-open time range in which slots do not fire: a pause, a freeze or a freeze window."""

    start: datetime
    end: datetime
    reason: str
    note: str | None = None  # recorded with the slots
    releases: bool = False  # its slots do not pass: they are due at its end


@dataclass(frozen=True, slots=True)
class Range:
    """Slots from first to last, both included."""

    first: datetime
    last: datetime
    released_at: datetime | None = None  # when what held them ended: a freeze window, or schedules before this one


def plan(due: DueSchedule, now: datetime, grace: timedelta, *, hold_late: bool = False) -> Plan:
    """Decide every slot from the next slot of the clock row up to now. With `hold_late`, late slots that would fire are
    missed until their catch-up is approved."""
    schedule, timing, first = due.schedule, due.schedule.timing, due.next_slot
    if first is None or first > now:  # a hold ended before the slot was due
        return Plan((), (), first, next_run_at(schedule, first, now), now)
    following = next_slot(timing, first)
    latest = first if following is None or following > now else latest_due(schedule, first, now)
    passed = Range(first, latest, released_by_others(due, first, latest))
    gaps: list[Gap] = []
    free: list[Range] = []
    held_until: datetime | None = None  # end of the hold that the first slot after `latest` waits for
    for part, hold in split_by_holds(timing, passed, holds(due, now)):
        if hold is None:
            free.append(part)
        elif not hold.releases:
            gaps.append(plan_gap(timing, part, Verdict.SKIPPED, hold.reason, note=hold.note))
        elif hold.end <= now:
            free.append(replace(part, released_at=hold.end))
        elif part.first == first:
            return Plan((), (), first, hold.end, first - TICK)
        else:
            latest, held_until = last_slot(timing, part.first - TICK, first - TICK) or first, hold.end
            break
    fires, passed_by = decide(schedule, free, now - grace)
    if hold_late:
        fires, passed_by = without_late(schedule, fires, passed_by, now - grace)
    if len(fires) > FIRE_BATCH_SLOTS:  # the clock stops at the first slot of the rest, which fires next
        latest = last_slot(timing, fires[FIRE_BATCH_SLOTS].slot - TICK, first - TICK) or first
        fires, held_until = fires[:FIRE_BATCH_SLOTS], None
    fires, finished = within_max_runs(schedule, fires, due.fired)
    handled = (fires[-1].slot if fires else first - TICK) if finished else latest
    upcoming = None if finished else following if latest == first else next_slot(timing, latest)
    return Plan(
        fires=tuple(fires),
        gaps=tuple(gap for gap in gaps + passed_by if gap.first <= handled),
        next_slot=upcoming,
        next_run_at=next_run_at(schedule, upcoming, now) if held_until is None or finished else held_until,
        handled=handled,
    )


def released_by_others(due: DueSchedule, first: datetime, latest: datetime) -> datetime | None:
    """Return when a slot became due whose clock waited for schedules before it: it is not late because of them. None
    for several slots, of which the first ones are late."""
    schedule = due.schedule
    if schedule.timing.after is None or first != latest or due.run_at is None:
        return None
    return due.run_at if due.run_at > run_at(schedule.id, first, schedule.timing.jitter) else None


def plan_at(due: DueSchedule, now: datetime, grace: timedelta) -> Plan:
    """Return the plan for now, or for `run_at` if that is in the future."""
    return plan(due, max(now, due.run_at or now), grace)


def plan_of_late(
    due: DueSchedule,
    now: datetime,
    grace: timedelta,
    usual: UsualRun | None,
    limits: CatchUpLimits,
    spread: timedelta = timedelta(0),
) -> Plan | None:
    """Return the plan in which the late slots are a catch-up: spread over a time, or waiting for an approval. None if
    they exceed no limit and are not spread."""
    timing = due.schedule.timing
    held = plan(due, max(now, due.run_at or now), grace, hold_late=True)
    waiting = [gap for gap in held.gaps if gap.reason == AWAITING_APPROVAL]
    slots = [slot for gap in waiting for slot in slots_between(timing, gap.first - TICK, gap.last)]
    left = None if due.schedule.max_runs is None else max(0, due.schedule.max_runs - due.fired)
    limits = lowered(limits, due.schedule.catch_up_approval_slots)
    catch_up = plan_catch_up(slots[:left], CatchUpChoice(spread=spread), usual, limits, now)
    is_spread = bool(spread) and len(catch_up.slots) > 1
    return replace(held, catch_up=catch_up) if catch_up.waits_for or is_spread else None


def plan_again(planned: PlannedSchedule, now: datetime, grace: timedelta) -> PlannedSchedule:
    """Return a plan that was made ahead while it is valid, else a new one. It is valid while the schedule is not held,
    its slot is not late and the next slot is not due."""
    (due, known), slot = planned, planned.due.next_slot
    at = max(now, due.run_at or now)
    free = due.schedule.paused_at is None and due.frozen_at is None and not due.windows
    if free and slot is not None and known.next_slot is not None and at - grace <= slot and at < known.next_slot:
        return planned
    return PlannedSchedule(due, plan_at(due, now, grace))


def first_plan(schedule: Schedule, after: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the next slot and when it is due, for the clock row of a new, edited or enabled schedule."""
    slot = next_slot(schedule.timing, after, after)
    return slot, next_run_at(schedule, slot, after)


def next_run_at(schedule: Schedule, slot: datetime | None, now: datetime) -> datetime | None:
    """Return when the slot is due, with its jitter; never in the past."""
    return None if slot is None else max(now, run_at(schedule.id, slot, schedule.timing.jitter))


def passed_gap(timing: Timing, first: datetime, until: datetime, verdict: Verdict, reason: str) -> Gap | None:
    """Return the slots from `first` up to `until` as one gap; None if there are no such slots."""
    if first > until:
        return None
    return plan_gap(timing, Range(first, last_slot(timing, until, first - TICK) or first), verdict, reason)


def latest_due(schedule: Schedule, first: datetime, now: datetime) -> datetime:
    """Return the latest slot that is due, with its jitter; at least `first`."""
    return last_slot(schedule.timing, now - delay_of(schedule.id, schedule.timing.jitter), first) or first


def holds(due: DueSchedule, now: datetime) -> list[Hold]:
    """Return the pause, the freeze and the freeze windows up to now. The first that covers a slot decides: windows that
    skip come before those that hold, and of these the one that ends last."""
    ranges = []
    if due.schedule.paused_at is not None:
        ranges.append(Hold(due.schedule.paused_at, due.schedule.paused_until or now + TICK, "paused"))
    if due.frozen_at is not None:
        ranges.append(Hold(due.frozen_at, due.frozen_until or now + TICK, "frozen"))
    for window in sorted(due.windows, key=lambda window: (window.mode is FreezeMode.HOLD, now - window.ends_at)):
        releases = window.mode is FreezeMode.HOLD
        ranges.append(Hold(window.starts_at, window.ends_at, FREEZE_REASON, window.note, releases))
    return [hold for hold in ranges if hold.start < hold.end]  # the clock may have been set back in between


def split_by_holds(timing: Timing, whole: Range, by: Iterable[Hold]) -> Iterator[tuple[Range, Hold | None]]:
    """Yield the range in parts, ascending, each with the hold that covers it."""
    pieces: list[tuple[Range, Hold | None]] = [(whole, None)]
    for hold in by:
        pieces = [part for piece in pieces for part in split_by_hold(timing, piece, hold)]
    yield from pieces


def split_by_hold(timing: Timing, piece: tuple[Range, Hold | None], hold: Hold) -> Iterator[tuple[Range, Hold | None]]:
    part, held_by = piece
    if held_by is not None or hold.start > part.last or hold.end <= part.first:
        yield piece
        return
    before = last_slot(timing, hold.start - TICK, part.first - TICK)
    if before is not None:
        yield Range(part.first, before), None
    first = next_slot(timing, before) if before is not None else part.first
    last = last_slot(timing, min(hold.end - TICK, part.last), part.first - TICK)
    if first is not None and last is not None and first <= last:
        yield Range(first, last), hold
    after = next_slot(timing, hold.end - TICK)
    if after is not None and after <= part.last:
        yield Range(max(after, part.first), part.last), None


def late_before(schedule: Schedule, due_before: datetime) -> datetime:
    """Return the slot before which slots are late: those due before `due_before`. Jitter does not count as lateness."""
    return due_before - delay_of(schedule.id, schedule.timing.jitter)


def decide(schedule: Schedule, free: list[Range], due_before: datetime) -> tuple[list[Fire], list[Gap]]:
    """Apply the misfire policy to slots that were due before a time, the overlap policy to later ones. Slots that a
    freeze window held were due when it ended."""
    timing, threshold = schedule.timing, late_before(schedule, due_before)
    late: list[Range] = []
    fresh: list[Range] = []
    for part in free:
        if part.released_at is not None:
            (late if part.released_at < due_before else fresh).append(part)
        elif part.first >= threshold:
            fresh.append(part)
        elif part.last < threshold:
            late.append(part)
        else:
            late.append(Range(part.first, last_slot(timing, threshold - TICK, part.first - TICK) or part.first))
            fresh.append(Range(next_slot(timing, threshold - TICK) or part.last, part.last))
    fires: list[Fire] = []
    gaps: list[Gap] = []
    match schedule.misfire:
        case Misfire.SKIP:
            gaps += [plan_gap(timing, part, Verdict.MISSED) for part in late]
        case Misfire.ALL:
            fires, gaps = catch_up(schedule, late)
        case Misfire.ONCE:
            if late:
                newest = (fresh or late)[-1]
                gaps += [
                    plan_gap(timing, part, Verdict.COALESCED, into=newest.last) for part in late if part is not newest
                ]
                if not fresh:
                    fires, gaps = latest_only(schedule, newest, gaps)
    if fresh and schedule.overlap in (Overlap.QUEUE_ALL, Overlap.ALLOW):
        for part in fresh:
            slots = slots_between(timing, part.first - TICK, part.last)
            fires += [plan_fire(schedule, slot, part, solo=False) for slot in islice(slots, FIRE_BATCH_SLOTS + 1)]
    elif fresh:
        gaps += [plan_gap(timing, part, Verdict.COALESCED, into=fresh[-1].last) for part in fresh[:-1]]
        last, gaps = latest_only(schedule, fresh[-1], gaps)
        fires += last
    return fires, gaps


def latest_only(schedule: Schedule, part: Range, gaps: list[Gap]) -> tuple[list[Fire], list[Gap]]:
    """Fire the latest slot of a range; the others are coalesced into it."""
    others = last_slot(schedule.timing, part.last - TICK, part.first - TICK) if part.first < part.last else None
    if others is not None:
        gaps = [*gaps, plan_gap(schedule.timing, Range(part.first, others), Verdict.COALESCED, into=part.last)]
    return [plan_fire(schedule, part.last, part, solo=schedule.keeps_one_waiting)], gaps


def catch_up(schedule: Schedule, late: list[Range]) -> tuple[list[Fire], list[Gap]]:
    """Fire late slots, oldest first, up to `catch_up_limit`; the rest is missed."""
    fires: list[Fire] = []
    gaps: list[Gap] = []
    for part in late:
        room = schedule.catch_up_limit - len(fires)
        slots = list(islice(slots_between(schedule.timing, part.first - TICK, part.last), room))
        fires += [plan_fire(schedule, slot, part, solo=False) for slot in slots]
        rest = next_slot(schedule.timing, slots[-1] if slots else part.first - TICK)
        if rest is not None and rest <= part.last:
            gaps.append(plan_gap(schedule.timing, Range(rest, part.last), Verdict.MISSED, "limit"))
    return fires, gaps


def without_late(
    schedule: Schedule, fires: list[Fire], gaps: list[Gap], due_before: datetime
) -> tuple[list[Fire], list[Gap]]:
    """Take the fires that were due before a time from a plan; their slots become gaps that wait for an approval."""
    late = [fire.slot for fire in fires if fire.run_at < due_before]
    waiting: list[Range] = []
    for slot in late:
        if waiting and next_slot(schedule.timing, waiting[-1].last) == slot:
            waiting[-1] = replace(waiting[-1], last=slot)
        else:
            waiting.append(Range(slot, slot))
    held = [plan_gap(schedule.timing, part, Verdict.MISSED, AWAITING_APPROVAL) for part in waiting]
    return [fire for fire in fires if fire.run_at >= due_before], gaps + held


def within_max_runs(schedule: Schedule, fires: list[Fire], fired: int) -> tuple[list[Fire], bool]:
    """Return the fires that `max_runs` allows, and whether it is exhausted (also if it was lowered below `fired`)."""
    if schedule.max_runs is None or fired + len(fires) < schedule.max_runs:
        return fires, False
    return fires[: max(0, schedule.max_runs - fired)], True


def plan_fire(schedule: Schedule, slot: datetime, part: Range, *, solo: bool) -> Fire:
    due_at = run_at(schedule.id, slot, schedule.timing.jitter)
    return Fire(slot, due_at if part.released_at is None else max(due_at, part.released_at), solo)


def plan_gap(
    timing: Timing,
    part: Range,
    verdict: Verdict,
    reason: str | None = None,
    into: datetime | None = None,
    note: str | None = None,
) -> Gap:
    count = 1 if part.first == part.last else count_slots(timing, part.first - TICK, part.last, GAP_COUNT_STEPS)
    return Gap(part.first, part.last, count, verdict.value, reason, into, note)
