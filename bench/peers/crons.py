"""The next slot of an expression that is parsed already, in a zone where clocks change: microseconds a call."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger
from croniter import croniter
from cronsim import CronSim

from bench.peers import kit
from rota.core.timing.triggers import Timing, next_slot, parse_cron

ZONE = "America/New_York"
AFTER = datetime(2026, 3, 3, 16, 7, 30, tzinfo=UTC)
EXPRESSIONS = ("*/5 * * * *", "0 2 * * *", "0 9 * * MON-FRI", "0 0 1 */3 *", "0 0 29 2 *")
STEPS = 10  # from slot to slot, then again from the beginning: rare expressions would leave the century
TURN = 0.02  # seconds; the systems take turns, so that load affects all of them


def measure(seconds: float) -> dict[str, dict[str, float]]:
    microseconds: dict[str, dict[str, float]] = {}
    for expression in EXPRESSIONS:
        spent = dict.fromkeys(walks(expression), (0.0, 0))
        end = time.perf_counter() + seconds * len(spent)
        while time.perf_counter() < end:
            for system, walk in walks(expression).items():
                took, calls = timed(walk)
                spent[system] = (spent[system][0] + took, spent[system][1] + calls)
        microseconds[expression] = {system: took / calls * 1e6 for system, (took, calls) in spent.items()}
    return microseconds


def timed(walk: Callable[[], Iterator[Any]]) -> tuple[float, int]:
    took, calls = 0.0, 0
    while took < TURN:
        steps = walk()
        next(steps)  # what is made on the first step is not the cost of a step
        begun = time.perf_counter()
        for _ in range(STEPS):
            next(steps)
        took += time.perf_counter() - begun
        calls += STEPS
    return took, calls


def walks(expression: str) -> dict[str, Callable[[], Iterator[Any]]]:
    zone = ZoneInfo(ZONE)
    timing, trigger = Timing(parse_cron(expression), ZONE), CronTrigger.from_crontab(expression, zone)
    start = AFTER.astimezone(zone)
    return {
        "rota": lambda: chain(lambda at: next_slot(timing, at), AFTER),
        "APScheduler": lambda: chain(lambda at: trigger.get_next_fire_time(at, at), start),
        "croniter": lambda: iter(croniter(expression, start, ret_type=datetime)),
        "cronsim": lambda: CronSim(expression, start),
    }


def chain(after: Callable[[Any], Any], at: Any) -> Iterator[Any]:
    while True:
        at = after(at)
        yield at


if __name__ == "__main__":
    kit.main(globals())
