"""Rows of the timeline and axes: where bars are, and which numbers are on them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from rota.frame.web.axes import duration_ticks, percentile, time_ticks, value_ticks
from rota.frame.web.lanes import LINKED_MOST, TRACKS_MOST, Range, bars_of, lane
from rota.frame.web.pages import span

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = Range(NOON, NOON + timedelta(hours=1), NOON + timedelta(minutes=45))


def run(job: str, attempt: int, queued: float, started: float | None, ended: float | None, status: str) -> Any:
    at = [None if value is None else NOON + value * SECOND for value in (queued, started, ended)]
    return {"id": f"{job}.{attempt}", "job_id": job, "attempt": attempt, "status": status, "reason": None, "slot": None,
            "queued_at": at[0], "started_at": at[1], "finished_at": at[2]}  # fmt: skip


def drawn(runs: list[Any], slots: Any = (), coming: Any = ()) -> str:
    bars = bars_of(runs, HOUR.now)
    return str(lane(HOUR, bars, slots, coming, [], (None, None), "nightly", span, lambda at: f"{at:%H:%M:%S}"))


def test_a_retry_waits_from_the_end_of_the_attempt_before_it() -> None:
    first, second = bars_of([run("j", 1, 0, 10, 20, "retried"), run("j", 2, 0, 60, 90, "success")], HOUR.now)
    assert (first.queued, first.started, first.seconds) == (NOON, NOON + 10 * SECOND, 10)
    assert (second.queued, second.seconds) == (NOON + 20 * SECOND, 30)
    text = drawn([run("j", 1, 0, 10, 20, "retried"), run("j", 2, 0, 900, 1800, "success")])
    assert 'href="/runs/j.2"' in text
    assert "success for 15m, attempt 2, 12:15:00, waited 14m" in text
    assert 'x="25.00%" width="25.00%"' in text
    assert "nightly: 1 retried, 1 success, p50 10s, p95 15m" in text


def test_a_running_job_reaches_until_now_and_the_future_is_told_apart() -> None:
    text = drawn([run("j", 1, 0, 0, None, "running")], coming=[NOON + timedelta(minutes=50)])
    assert 'x="0.00%" width="75.00%" y="3" height="17" rx="2" class="running"' in text
    assert 'x="75.00%" width="25.00%" y="0" height="24" class="future"' in text
    assert 'class="coming"' in text
    assert "1 planned" in text


def test_runs_at_the_same_time_have_tracks_of_their_own() -> None:
    runs = [run(f"j{n}", 1, n, n, 100 + n, "success") for n in range(5)]
    assert [bar.track for bar in bars_of(runs, HOUR.now)] == [0, 1, 2, 0, 0]
    apart = [run(f"j{n}", 1, n, 10 * n, 10 * n + 5, "success") for n in range(5)]
    assert {bar.track for bar in bars_of(apart, HOUR.now)} == {0}
    assert TRACKS_MOST == 3


def test_many_runs_are_a_shape_per_status_with_failures_on_top() -> None:
    runs = [run(f"j{n}", 1, n, n, n + 1, "failed" if n == 3 else "success") for n in range(LINKED_MOST + 1)]
    text = drawn(runs)
    assert "<a " not in text
    assert re.findall(r'<path d="[^"]+" class="(\w+)">', text) == ["success", "failed"]


def test_a_slot_that_did_not_run_names_its_reason() -> None:
    slot = {"slot": NOON, "last_slot": NOON + timedelta(minutes=6), "count": 7, "verdict": "missed", "reason": "late"}
    assert "missed, 12:00:00 to 12:06:00, 7 slots: late" in drawn([], [slot])


def test_ticks_of_time_are_round_and_local_from_a_week_to_a_second() -> None:
    oslo = ZoneInfo("Europe/Oslo")
    for seconds in (1, 10, 60, 3600, 86_400, 7 * 86_400, 31 * 86_400):
        end = NOON + seconds * SECOND
        ticks = time_ticks(NOON, end, lambda at: at.astimezone(oslo))
        assert 3 <= len(ticks) <= 9, seconds
        assert all(NOON <= at < end for at, _ in ticks)
        assert len({label for _, label in ticks}) == len(ticks)
    assert time_ticks(NOON, NOON + timedelta(days=1), lambda at: at.astimezone(oslo))[0][1] == "15:00"
    week = time_ticks(NOON, NOON + timedelta(days=7), lambda at: at.astimezone(oslo))
    assert [label for _, label in week][:2] == ["Fri 20 Nov", "Sat 21 Nov"]
    assert week[0][0] == datetime(2026, 11, 20, tzinfo=oslo)


def test_ticks_of_numbers_are_round() -> None:
    assert value_ticks(9.3) == [0, 2.5, 5, 7.5]
    assert value_ticks(0.00041) == [0, 0.0002, 0.0004]
    assert value_ticks(0) == [0]
    assert duration_ticks(200) == [0, 60, 120, 180]
    assert [percentile(range(1, 101), share) for share in (0.5, 0.95, 1.0)] == [50, 95, 100]
    assert percentile([], 0.5) == 0
