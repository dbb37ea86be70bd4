"""Many slots in a row are the same as those that are searched one by one."""

import random
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice

import pytest

from rota.core.timing.ahead import slots_after
from rota.core.timing.calendars import Calendar, HolidayRule
from rota.core.timing.triggers import Every, Once, Recurring, Timing, Trigger, next_slot, parse_cron
from rota.core.timing.windows import Window

ZONES = ("UTC", "Europe/Oslo", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca")
CRONS = (
    "* * * * *", "*/20 1-3 * * *", "30 2 * * *", "0 * * * *", "0 0 29 2 *", "0 9 LW * *", "0 9 3B * *",
    "30 7 * JAN-MAR 7", "15 0 1 * *", "H H * * *",
)  # fmt: skip
ANCHOR = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)
HOLIDAYS = HolidayRule(
    Calendar("c", "norway", 1, (date(2026, 3, 30).toordinal(), date(2026, 10, 26).toordinal())), "next"
)  # fmt: skip


def random_timing(draw: random.Random) -> Timing:
    triggers: list[Trigger] = [
        *(parse_cron(draw.choice(CRONS), "seed") for _ in range(6)),
        Every(timedelta(minutes=draw.choice([7, 90, 1440])), ANCHOR),
        Once(ANCHOR + timedelta(days=30)),
        Recurring("FREQ=WEEKLY;BYDAY=SU;BYHOUR=2", ANCHOR),
    ]
    trigger = draw.choice(triggers)
    cyclic = not isinstance(trigger, Once | Every)
    return Timing(
        trigger,
        draw.choice(ZONES),
        window=draw.choice([None, None, None, Window(time(2, 10), time(5, 0))]),
        starts_at=draw.choice([None, None, datetime(2026, 3, 29, 0, 30, tzinfo=UTC)]),
        ends_at=draw.choice([None, None, datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]),
        dst_gap=draw.choice([None, "skip", "run_after"]) if cyclic else None,
        dst_repeat=draw.choice([None, "first", "both"]) if cyclic else None,
        holidays=draw.choice([None, None, HOLIDAYS]) if cyclic else None,
    )


@pytest.mark.parametrize("seed", range(60))
def test_slots_in_a_row_are_those_of_single_searches(seed: int) -> None:
    draw = random.Random(seed)
    timing = random_timing(draw)
    change = draw.choice([datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC), ANCHOR])
    after = change + timedelta(minutes=draw.randint(-8_000, 3_000), microseconds=draw.choice([0, 1]))
    expected: list[datetime] = []
    slot = next_slot(timing, after)
    while slot is not None and len(expected) < 200:
        expected.append(slot)
        slot = next_slot(timing, slot)
    assert list(islice(slots_after(timing, after), 200)) == expected
