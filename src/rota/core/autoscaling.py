"""How many workers the due jobs need. Pure; docs/autoscaling.md has the formula.

A worker runs `concurrency` jobs at once, each in a place. The wanted number of places is that with which the due jobs
of a queue are done within a span of time (`within`), if each takes as long as usual.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from rota.core.flow import Rate

ROUNDING = 1e-9  # sums of fractions may be larger than they should by this


@dataclass(frozen=True, slots=True)
class DueJobs:
    """Jobs of one lane that take the same time. `usual_seconds` is None if none of them has run before."""

    count: float
    usual_seconds: float | None


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane (org, queue) runs and what is due in it, with the limits of its queue."""

    org_id: str
    queue: str
    running: int
    due: Sequence[DueJobs] = ()
    max_running: int | None = None
    rate: Rate | None = None
    paused: bool = False

    @property
    def due_count(self) -> float:
        return sum(jobs.count for jobs in self.due)


def places_of(lane: LaneLoad, within: timedelta) -> float:
    """Return how many places a lane needs: one for each running job, and for each due job the share of `within` that it
    takes, at most one. A due job whose duration is unknown needs one. Limits of the queue reduce the number."""
    due, seconds = lane.due_count, within.total_seconds()
    if lane.paused or not due:
        return lane.running
    needed = sum(jobs.count * share_of(jobs.usual_seconds, seconds) for jobs in lane.due)
    if lane.rate is not None:
        starts = lane.rate.burst + lane.rate.count * (within / lane.rate.period)
        needed *= min(1.0, starts / due)
    places = lane.running + needed
    return places if lane.max_running is None else max(lane.running, min(places, lane.max_running))


def share_of(usual_seconds: float | None, seconds: float) -> float:
    """Return which part of the span a job takes a place for, at most all of it."""
    return 1.0 if usual_seconds is None else min(1.0, max(0.0, usual_seconds) / seconds)


def places_by_queue(lanes: Iterable[LaneLoad], within: timedelta, org_limits: Mapping[str, int]) -> dict[str, float]:
    """Return the places that each queue needs, over all orgs. An org with a limit of running jobs needs at most that
    many: its queues get their shares of it."""
    by_org: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for lane in lanes:
        by_org[lane.org_id].append((lane.queue, places_of(lane, within)))
    places: dict[str, float] = defaultdict(float)
    for org_id, needs in by_org.items():
        total = sum(need for _, need in needs)
        limit = org_limits.get(org_id)
        share = 1.0 if limit is None or total <= limit else limit / total
        for queue, need in needs:
            places[queue] += need * share
    return dict(places)


def workers_for(places: float, concurrency: int) -> int:
    """Return how many workers have this many places; one as soon as there is anything to do."""
    return ceil(places / concurrency - ROUNDING) if places > ROUNDING else 0
