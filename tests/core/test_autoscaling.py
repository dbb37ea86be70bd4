"""How many workers the due jobs need."""

from datetime import timedelta
from typing import Any

import pytest

from rota.core.autoscaling import DueJobs, LaneLoad, places_by_queue, places_of, workers_for
from rota.core.flow import Rate

MINUTE = timedelta(minutes=1)


def lane(running: int = 0, due: list[tuple[float, float | None]] | None = None, **more: Any) -> LaneLoad:
    queue, org = more.pop("queue", "default"), more.pop("org", "o")
    return LaneLoad(org, queue, running, [DueJobs(*jobs) for jobs in due or []], **more)


@pytest.mark.parametrize(
    ("load", "places"),
    [
        (lane(), 0),
        (lane(running=3), 3),
        (lane(due=[(600, 0.1)]), 1),  # 60 s of work within a minute
        (lane(due=[(600, 6.0)]), 60),
        (lane(due=[(10, 3600.0)]), 10),  # a job takes one place, however long it is
        (lane(due=[(10, None)]), 10),
        (lane(running=2, due=[(30, 2.0), (60, 1.0)]), 4),
        (lane(running=2, due=[(600, 60.0)], max_running=5), 5),
        (lane(running=7, due=[(600, 60.0)], max_running=5), 7),  # the limit was lowered
        (lane(running=2, due=[(600, 60.0)], paused=True), 2),
        (lane(due=[(600, 60.0)], rate=Rate(10, MINUTE)), 11),  # 10 starts a minute, and one at once
        (lane(due=[(600, 60.0)], rate=Rate(10, MINUTE, burst=50)), 60),
        (lane(due=[(5, 60.0)], rate=Rate(10, MINUTE)), 5),
    ],
)
def test_places_of_a_lane(load: LaneLoad, places: float) -> None:
    assert places_of(load, MINUTE) == pytest.approx(places)


def test_a_shorter_span_needs_more_places() -> None:
    load = lane(due=[(600, 1.0)])
    assert [places_of(load, timedelta(seconds=seconds)) for seconds in (600, 60, 10, 1)] == [1, 10, 60, 600]


def test_queues_are_summed_over_orgs_and_share_the_limit_of_their_org() -> None:
    lanes = [
        lane(due=[(30, None)]),
        lane(due=[(10, None)], queue="slow"),
        lane(due=[(5, None)], org="p"),
    ]
    assert places_by_queue(lanes, MINUTE, {}) == {"default": 35, "slow": 10}
    assert places_by_queue(lanes, MINUTE, {"o": 20}) == {"default": 20, "slow": 5}
    assert places_by_queue(lanes, MINUTE, {"o": 0}) == {"default": 5, "slow": 0}


@pytest.mark.parametrize(("places", "workers"), [(0, 0), (0.001, 1), (50, 1), (50.0000000001, 1), (50.1, 2), (501, 11)])
def test_one_worker_as_soon_as_there_is_something_to_do(places: float, workers: int) -> None:
    assert workers_for(places, 50) == workers
