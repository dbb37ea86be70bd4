"""English descriptions of timings, as in lists, messages and the editor."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.timing.presentation import describe
from rota.core.timing.triggers import Every, Once, Timing, next_slot, parse_cron
from rota.core.timing.windows import parse_window

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/1 * * * *", "every minute"),
        ("*/7 * * * *", "every hour at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56"),
        ("0 * * * *", "every hour"),
        ("@hourly", "every hour"),
        ("30 * * * *", "every hour at minute 30"),
        ("0,30 * * * *", "every hour at minutes 0 and 30"),
        ("0-10 * * * *", "every hour at minutes 0 to 10"),
        ("0 */2 * * *", "every 2 hours (Europe/Oslo)"),
        ("15 */2 * * *", "every 2 hours at minute 15 (Europe/Oslo)"),
        ("0 */5 * * *", "every day at 00:00, 05:00, 10:00, 15:00 and 20:00 (Europe/Oslo)"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:45 on weekdays (Europe/Oslo)"),
        ("*/5 2 * * *", "every 5 minutes from 02:00 to 02:55 (Europe/Oslo)"),
        ("*/5 2,4 * * *", "every 5 minutes in the hours 2 and 4 (Europe/Oslo)"),
        ("*/10 * * * 6,0", "every 10 minutes on Saturdays and Sundays (Europe/Oslo)"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00 (Europe/Oslo)"),
        ("0 9 * * 1-5", "every weekday at 09:00 (Europe/Oslo)"),
        ("0 9 * * MON-FRI", "every weekday at 09:00 (Europe/Oslo)"),
        ("30 2 * * *", "every day at 02:30 (Europe/Oslo)"),
        ("@daily", "every day at 00:00 (Europe/Oslo)"),
        ("@weekly", "every Sunday at 00:00 (Europe/Oslo)"),
        ("0 8,20 * * *", "every day at 08:00 and 20:00 (Europe/Oslo)"),
        ("0 7 * * 7,3", "every Wednesday and Sunday at 07:00 (Europe/Oslo)"),
        ("0,30 8,9 * * sat", "every Saturday at 08:00, 08:30, 09:00 and 09:30 (Europe/Oslo)"),
        ("0-30 9-17 * * *", "every day at minutes 0 to 30 of the hours 9 to 17 (Europe/Oslo)"),
        ("@monthly", "on the 1st of every month at 00:00 (Europe/Oslo)"),
        ("@yearly", "on the 1st of January at 00:00 (Europe/Oslo)"),
        ("0 0 2,3,11,22 * *", "on the 2nd, 3rd, 11th and 22nd of every month at 00:00 (Europe/Oslo)"),
        ("0 18 L * *", "on the last day of every month at 18:00 (Europe/Oslo)"),
        ("0 0 15,L 1,7 *", "on the 15th and last day of January and July at 00:00 (Europe/Oslo)"),
        ("0 0 */2 * *", "on every 2nd day of every month at 00:00 (Europe/Oslo)"),
        ("0 0 * * 1#2", "on the second Monday of every month at 00:00 (Europe/Oslo)"),
        ("0 0 * 12 5L", "on the last Friday of December at 00:00 (Europe/Oslo)"),
        ("0 0 * 6 1,3#2", "on every Monday and the second Wednesday of June at 00:00 (Europe/Oslo)"),
        ("0 0 13 * 5", "on the 13th of the month or every Friday at 00:00 (Europe/Oslo)"),
        ("0 * 13 * 5", "every hour on the 13th of the month or on Fridays (Europe/Oslo)"),
        ("0 0 1-31 * 5", "every day at 00:00 (Europe/Oslo)"),  # one OR the other
        ("0 0 */2 * 1", "on every 2nd day of the month if it is Monday at 00:00 (Europe/Oslo)"),
        ("0 0 */2,4 * *", None),
        ("30 2 * 7 *", "every day in July at 02:30 (Europe/Oslo)"),
        ("0 0 * 1 1", "every Monday in January at 00:00 (Europe/Oslo)"),
        ("*/5 * * 1 *", "every 5 minutes in January (Europe/Oslo)"),
    ],
)
def test_a_cron_expression_reads_as_a_phrase(expression: str, expected: str | None) -> None:
    phrase = describe(Timing(parse_cron(expression), "Europe/Oslo"))
    assert expected is None or phrase == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1, "every second"),
        (1.5, "every 1.5 seconds"),
        (30, "every 30 seconds"),
        (60, "every minute"),
        (300, "every 5 minutes"),
        (5400, "every 1 hour 30 minutes"),
        (3600, "every hour"),
        (86400, "every day"),
        (90061, "every 1 day 1 hour 1 minute 1 second"),
        (3660 * 86400, "every 3660 days"),
    ],
)
def test_an_interval_reads_as_a_phrase(seconds: float, expected: str) -> None:
    assert describe(Timing(Every(timedelta(seconds=seconds), NOON), "Europe/Oslo")) == expected


def test_a_timestamp_reads_as_local_time() -> None:
    assert describe(Timing(Once(NOON))) == "once at 2026-11-20 12:00 (UTC)"
    assert (
        describe(Timing(Once(NOON + timedelta(seconds=5)), "Asia/Tokyo")) == "once at 2026-11-20 21:00:05 (Asia/Tokyo)"
    )


def test_a_window_names_the_zone_once() -> None:
    night = parse_window("22:00", "06:00")
    daily, five = parse_cron("30 2 * * *"), Every(timedelta(minutes=5), NOON)
    assert (
        describe(Timing(daily, "Europe/Berlin", night)) == "every day at 02:30 (Europe/Berlin), between 22:00 and 06:00"
    )
    assert describe(Timing(five, "Europe/Berlin", night)) == "every 5 minutes, between 22:00 and 06:00 (Europe/Berlin)"


def test_a_window_that_moves_the_slots_says_so() -> None:
    noon = Timing(parse_cron("0 12 * * *"), "UTC", parse_window("22:00", "06:00"))
    assert describe(noon) == "every day at 12:00 (UTC), moved to the window between 22:00 and 06:00"


def test_bounds_and_jitter_come_last() -> None:
    timing = Timing(
        Every(timedelta(hours=1), NOON), starts_at=NOON, ends_at=NOON + timedelta(days=1), jitter=timedelta(minutes=1)
    )
    expected = "every hour, from 2026-11-20 12:00 UTC, until 2026-11-21 12:00 UTC, up to 1 minute later"
    assert describe(timing) == expected


@given(st.integers(0, 59), st.integers(0, 23), st.sampled_from(["*", "1-5", "0", "1,3"]))
def test_a_described_time_is_the_time_of_the_slot(minute: int, hour: int, weekdays: str) -> None:
    timing = Timing(parse_cron(f"{minute} {hour} * * {weekdays}"))
    match = re.search(r"at (\d\d:\d\d)", describe(timing))
    slot = next_slot(timing, NOON)
    assert match
    assert slot
    assert match[1] == f"{slot:%H:%M}"
