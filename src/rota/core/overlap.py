"""Decisions about slots that are due while their schedule still has jobs, and the terms of their jobs. Pure.

The scheduler applies them to the rows of the queue, the simulation to its own jobs.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Protocol, TypeVar

from rota.core.catch_up import CATCH_UP_TRIGGER
from rota.core.model import DueSchedule, Fire, Plan, Schedule
from rota.core.plan import next_run_at
from rota.core.policy import Overlap, Terms
from rota.core.states import State
from rota.core.timing import triggers

BEGUN = frozenset((State.RUNNING, State.RETRY, State.WAITING, State.PARKED))
REQUESTED = ("backfill", "retry", CATCH_UP_TRIGGER)  # triggers of jobs that a person asked for


class ScheduleJob(Protocol):
    """A job of a schedule, in any state."""

    @property
    def state(self) -> str: ...
    @property
    def solo_key(self) -> str | None: ...
    @property
    def trigger(self) -> str: ...


J = TypeVar("J", bound=ScheduleJob)


def skips_for_overlap(schedule: Schedule, jobs: Iterable[ScheduleJob]) -> bool:
    """Whether slots are skipped because the schedule still has jobs. Requested jobs that are due later do not count."""
    return schedule.overlap is Overlap.SKIP and any(
        job.state != State.LATER or job.trigger not in REQUESTED for job in jobs
    )


def coalesced_jobs(fires: Iterable[Fire], jobs: Iterable[J]) -> list[J]:
    """Return the jobs that wait and that newer slots replace."""
    return [job for job in jobs if job.solo_key is not None] if any(fire.solo for fire in fires) else []


def stopped_jobs(jobs: Iterable[J]) -> list[J]:
    """Return the jobs that a job of the policy `replace` stops. Backfills and retries that have not started are kept: a
    user requested them."""
    return [job for job in jobs if job.state in BEGUN or job.trigger not in REQUESTED]


def without_fires(due: DueSchedule, plan: Plan, now: datetime) -> Plan:
    """Return a plan whose slots were skipped for overlap. They do not count towards `max_runs`, so another follows."""
    if plan.next_slot is not None:
        return replace(plan, fires=())
    upcoming = triggers.next_slot(due.schedule.timing, plan.handled)
    return replace(plan, fires=(), next_slot=upcoming, next_run_at=next_run_at(due.schedule, upcoming, now))


def terms_of(schedule: Schedule, fire: Fire) -> Terms:
    """Return the terms of the job of a slot."""
    timing = schedule.timing
    return Terms(
        timeout=schedule.timeout,
        retry=schedule.retry,
        deadline_at=fire.run_at + schedule.start_deadline if schedule.start_deadline is not None else None,
        window_until=triggers.window_close(timing, fire.slot) if timing.window else None,
        window=timing.window,
        zone=timing.zone,
        grant_id=schedule.grant_id,
    )
