"""Rates and their GCRA, keys of limits."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.errors import Invalid
from rota.core.flow import KEY_CHARACTERS, Rate, flow_key, parse_rate, span_text, start_times


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/1m", Rate(100, timedelta(minutes=1))),
        ("1/10s", Rate(1, timedelta(seconds=10))),
        ("5000/1d", Rate(5000, timedelta(days=1))),
        ("3/1h30m", Rate(3, timedelta(minutes=90))),
    ],
)
def test_a_rate_is_read_and_written(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate
    assert str(rate) == text


@pytest.mark.parametrize(
    "value",
    [
        "0/1m",
        "abc",
        "100",
        "100/",
        "/1m",
        "-1/1m",
        "1.5/1m",
        "100/0s",
        "100/1x",
        "100/1m ",
        "9999999/1s",
        100,
        None,
        True,
    ],
)
def test_a_wrong_rate_is_refused_by_its_field_with_the_remedy(value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        parse_rate(value, "rate")
    assert refused.value.field == "rate"
    assert refused.value.right


@given(st.integers(1, 10_000), st.integers(1, 100_000), st.integers(1, 50), st.lists(st.integers(1, 40), max_size=20))
def test_no_window_has_more_starts_than_the_rate_and_its_burst(
    count: int, seconds: int, burst: int, batches: list[int]
) -> None:
    """Batches come at random distances; the starts that GCRA gives keep the rate over every window."""
    rate = Rate(count, timedelta(seconds=seconds), burst)
    interval, period_us = rate.interval_us, seconds * 1_000_000
    tat, now = 0, 0
    starts: list[int] = []
    for number, size in enumerate(batches):
        now += (number * 7919 % 13) * interval // 3
        tat = max(tat, now) + size * interval
        starts += start_times(tat, rate, size, now)
    starts.sort()
    assert all(later - earlier >= 0 for earlier, later in pairwise(starts))
    most = count + burst
    for position, first in enumerate(starts):
        assert len([start for start in starts[position:] if start < first + period_us]) <= most


def test_a_burst_starts_at_once_and_the_rest_evenly() -> None:
    rate = Rate(60, timedelta(minutes=1), burst=3)
    assert start_times(6_000_000, rate, 6, 0) == [0, 0, 0, 1_000_000, 2_000_000, 3_000_000]


def test_keys_distinguish_types_and_stay_short() -> None:
    assert flow_key("task", "o", "t", value=1) != flow_key("task", "o", "t", value="1")
    assert flow_key("task", "o", "t", value={"a": 1, "b": 2}) == flow_key("task", "o", "t", value={"b": 2, "a": 1})
    long = flow_key("task", "o", "t", value="x" * 10_000)
    assert len(long) < KEY_CHARACTERS
    assert long != flow_key("task", "o", "t", value="x" * 10_001)


def test_a_span_is_written_as_it_is_read() -> None:
    assert span_text(timedelta(days=1, hours=2, minutes=3, seconds=4)) == "1d2h3m4s"
