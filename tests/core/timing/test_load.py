"""The load of many schedules together: the same as walking over the slots of each."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, time, timedelta
from itertools import islice
from time import perf_counter

from rota.core.timing import stored
from rota.core.timing.calendars import Calendar, HolidayRule
from rota.core.timing.counting import HOUR
from rota.core.timing.dst import TICK
from rota.core.timing.load import HourlyLoad
from rota.core.timing.triggers import Every, Once, Timing, next_slot, parse_cron, slots_between
from rota.core.timing.windows import Window

START = datetime(2026, 10, 22, 9, tzinfo=UTC)  # the clocks of Europe go back within the week
HOURS = 7 * 24
END = START + HOURS * HOUR
EASTER = HolidayRule(Calendar("id", "name", 1, (START.toordinal() + 2,), frozenset({5, 6}), False, None), "skip")


def mixed_timings(count: int) -> list[Timing]:
    """Timings of all types; intervals with anchors of their own and lengths that do not divide an hour."""
    rng = random.Random(28)
    lengths = [timedelta(seconds=s) for s in (977, 3600, 5400, 86_401, 7 * 86_400, 900_000)]
    made: list[Timing] = []
    for number in range(count):
        anchor = START + timedelta(microseconds=rng.randrange(-(10**13), 10**11))
        window = Window(time(22), time(6)) if number % 7 == 0 else None
        made += [
            Timing(Every(rng.choice(lengths), anchor), "Europe/Oslo", window, jitter=timedelta(seconds=number)),
            Timing(parse_cron("H H(2-4) * * *", f"seed {number}"), "Europe/Oslo"),
            Timing(parse_cron(f"*/{number % 29 + 1} * * * 1-5"), "Europe/Oslo", holidays=EASTER),
            Timing(Every(timedelta(minutes=50), anchor), starts_at=START + 9 * HOUR, ends_at=START + 50 * HOUR),
            Timing(Once(START + number * timedelta(hours=17, seconds=1))),
        ]
    return made


def test_the_load_of_all_schedules_equals_a_walk_over_their_slots() -> None:
    timings = mixed_timings(40)
    load = HourlyLoad(START, HOURS)
    load.add(Counter(json.dumps(stored.dump(timing)) for timing in timings))
    walked: Counter[int] = Counter()
    for timing in timings:
        walked.update((slot - START) // HOUR for slot in slots_between(timing, START - TICK, END - TICK))
    assert load.totals() == [walked[hour] for hour in range(HOURS)]
    assert sum(walked.values()) > 10_000


def test_schedules_that_end_after_some_runs_are_counted_until_then() -> None:
    load, walked = HourlyLoad(START, HOURS), Counter[int]()
    for left, timing in enumerate(mixed_timings(8), start=1):
        first = next_slot(timing, START - 3 * HOUR)
        if first is None:
            continue
        load.add_limited(json.dumps(stored.dump(timing)), first, left)
        slots = islice(slots_between(timing, first - TICK, END), left)
        walked.update((slot - START) // HOUR for slot in slots if START <= slot < END)
    assert load.totals() == [walked[hour] for hour in range(HOURS)]
    assert sum(walked.values()) > 100


def test_a_hundred_thousand_different_intervals_are_counted_at_once() -> None:
    dumped = stored.dump(Timing(Every(timedelta(minutes=7), START - timedelta(days=1))))
    texts = {
        json.dumps({**dumped, "trigger": {"type": "interval", "microseconds": 420_000_000, "anchor": anchor}}): 1
        for n in range(100_000)
        for anchor in [(START - timedelta(days=1, microseconds=n)).isoformat()]
    }
    load, begun = HourlyLoad(START, HOURS), perf_counter()
    load.add(texts)
    totals = load.totals()
    assert perf_counter() - begun < 5  # one by one it takes minutes
    assert abs(sum(totals) - len(texts) * (END - START) / timedelta(minutes=7)) <= len(texts)


def test_a_damaged_timing_is_left_out() -> None:
    load = HourlyLoad(START, HOURS)
    load.add({'{"trigger": {"type": "cron", "expression": "61 * * * *"}, "zone": "UTC", "window": null}': 3, "{}": 1})
    load.add_limited("{}", START, 3)
    assert load.totals() == [0] * HOURS
