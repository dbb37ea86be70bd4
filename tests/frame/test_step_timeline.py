"""The timeline of steps: its axis, its bars, and the mark of the current step."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.frame.web.step_timeline import AXIS, TICKS_MAX, Axis, axis_of, bar_kind, ruler, step_bar, with_current

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NINE + timedelta(seconds=seconds)


def step(start: float, end: float | None, **fields: Any) -> dict[str, Any]:
    times = {"started_at": at(start), "finished_at": None if end is None else at(end)}
    return {"name": "pack", "type": "step", "status": "done", "attempts": 1, **times, **fields}


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.004, ["0 ms", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (9, ["0 s", "2 s", "4 s", "6 s", "8 s"]),
        (100, ["0 s", "20 s", "40 s", "60 s", "80 s", "100 s"]),
        (7200, ["0 min", "30 min", "60 min", "90 min", "120 min"]),
        (3 * 86400, ["0 d", "1 d", "2 d", "3 d"]),
        (366 * 86400, ["0 d", "100 d", "200 d", "300 d"]),
    ],
)
def test_the_axis_has_few_ticks_with_a_unit(seconds: float, labels: list[str]) -> None:
    ticks = Axis(NINE, at(seconds)).ticks()
    assert 1 < len(ticks) <= TICKS_MAX
    assert all(0 <= x <= AXIS for x, _ in ticks)
    assert [label for _, label in ticks] == labels
    drawn = str(ruler(Axis(NINE, at(seconds))))
    assert all((f">{label}<" in drawn) == (x < AXIS * 0.88) for x, label in ticks)  # the last has no room for a label


def test_the_axis_begins_with_the_first_attempt_and_ends_with_the_last_one_or_now() -> None:
    ended = {"started_at": at(1), "finished_at": at(3)}
    assert axis_of([step(-900, -800)], [ended], at(99)) == Axis(at(1), at(3))
    assert axis_of([], [ended, {"started_at": at(5), "finished_at": None}], at(9)) == Axis(at(1), at(9))
    empty = axis_of([], [{"started_at": None, "finished_at": None}], NINE)
    assert empty.start < empty.end


def test_bars_lie_where_their_times_are_and_are_never_too_short_to_see() -> None:
    axis = Axis(NINE, at(10))

    def drawn(record: dict[str, Any]) -> tuple[float, float]:
        match = re.search(r'<rect x="([^"]+)" y="5" width="([^"]+)"', str(step_bar(record, axis, at(10), "<pack>")))
        assert match is not None
        return float(match[1]), float(match[2])

    assert drawn(step(2.5, 5)) == (AXIS / 4, AXIS / 4)
    assert drawn(step(5, None, status="waiting")) == (AXIS / 2, AXIS / 2)
    assert drawn(step(10, 10)) == (AXIS - 3, 3)
    assert drawn(step(-9, -8)) == (0, 3)  # kept from an earlier run
    assert "&lt;pack&gt;" in str(step_bar(step(1, 2), axis, at(10), "<pack>"))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("success", {}),
        ("failed", {"status": "failed"}),
        ("failed", {"type": "signal", "status": "timed_out"}),
        ("wait", {"type": "sleep"}),
        ("wait", {"status": "waiting"}),
        ("running", {"type": "effect", "status": "in_flight"}),
        ("unclear", {"type": "effect", "status": "indeterminate"}),
    ],
)
def test_a_bar_has_the_colour_of_its_state(kind: str, fields: dict[str, str]) -> None:
    assert bar_kind(step(0, 1, **fields)) == kind


def test_the_current_step_is_the_open_one_or_the_code_after_the_last() -> None:
    running = {"status": "running", "started_at": NINE}
    marked = with_current([step(0, 1), step(1, None, status="waiting")], running, at(3))
    assert [record["current"] for record in marked] == [False, True]
    between = with_current([step(0, 2)], running, at(3))[-1]
    assert (between["name"], between["started_at"], between["current"]) == (None, at(2), True)
    assert len(with_current([step(0, 2)], {"status": "success", "started_at": NINE}, at(3))) == 1
