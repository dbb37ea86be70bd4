"""Times on the command line: accepted forms, and that printed times are accepted."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import typer

from rota.core import clock
from rota.frame.cli.output import local_time, relative_time
from rota.frame.cli.times import future, past

NOON = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon_in_oslo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Oslo")
        time.tzset()
        patch.setattr(clock, "system_time", lambda: NOON)
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ago", "ahead"),
    [
        ("now", "2026-11-17T12:00:00", "2026-11-17T12:00:00"),
        ("1h", "2026-11-17T11:00:00", "2026-11-17T13:00:00"),
        ("2d", "2026-11-15T12:00:00", "2026-11-19T12:00:00"),
        ("1h30m", "2026-11-17T10:30:00", "2026-11-17T13:30:00"),
        ("5m ago", "2026-11-17T11:55:00", "2026-11-17T11:55:00"),
        ("in 5m", "2026-11-17T12:05:00", "2026-11-17T12:05:00"),
        ("12:30", "2026-11-17T11:30:00", "2026-11-18T11:30:00"),
        ("13:30", "2026-11-16T12:30:00", "2026-11-17T12:30:00"),
        ("2026-11-16", "2026-11-15T23:00:00", "2026-11-15T23:00:00"),
        ("2026-11-16 13:00", "2026-11-16T12:00:00", "2026-11-16T12:00:00"),
        ("2026-07-01 13:00:05", "2026-07-01T11:00:05", "2026-07-01T11:00:05"),
        ("2026-11-16T13:00:00+03:00", "2026-11-16T10:00:00", "2026-11-16T10:00:00"),
        ("2026-11-16T13:00:00Z", "2026-11-16T13:00:00", "2026-11-16T13:00:00"),
    ],
)
def test_times_are_read_in_common_forms(text: str, ago: str, ahead: str) -> None:
    for read, expected in ((past, ago), (future, ahead)):
        assert datetime.fromisoformat(read(text)).astimezone(UTC) == datetime.fromisoformat(expected + "+00:00")


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01", "1y", "1h2"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time; use 1h, 13:00"):
        past(text)


@pytest.mark.parametrize("away", [timedelta(minutes=-5), timedelta(hours=3), timedelta(days=-3), timedelta(days=40)])
def test_what_is_printed_is_read_back(away: timedelta) -> None:
    at = NOON + away
    printed = relative_time(at.isoformat())
    assert abs(datetime.fromisoformat(past(printed)) - at) < timedelta(minutes=1)
    assert datetime.fromisoformat(past(local_time(at.isoformat()))) == at
