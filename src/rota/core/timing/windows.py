"""Daily execution windows: whether an instant is inside, and when a window opens and closes. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from rota.core.errors import Invalid
from rota.core.timing.dst import TICK, next_change

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Window:
    """Local times of day, half-open, in the zone of the schedule; `start > end` crosses midnight."""

    start: time
    end: time

    def holds(self, local: time) -> bool:
        """Whether a local time of day is inside."""
        if self.start < self.end:
            return self.start <= local < self.end
        return local >= self.start or local < self.end


def parse_window(start: object, end: object) -> Window | None:
    """Parse two local times `HH:MM`; None if both are None. Raises Invalid."""
    if start is None and end is None:
        return None
    window = Window(parse_time_of_day(start, "window_start"), parse_time_of_day(end, "window_end"))
    if window.start == window.end:
        raise Invalid("window_end", end, "must differ from window_start")
    return window


def inside(window: Window, zone: ZoneInfo, at: datetime) -> bool:
    return window.holds(at.astimezone(zone).time())


def opening(window: Window, zone: ZoneInfo, at: datetime) -> datetime:
    """Return the first instant from `at` on that is inside."""
    while not inside(window, zone, at):
        remaining = (since_midnight(window.start) - since_midnight(at.astimezone(zone).time())) % DAY
        change = next_change(zone, at, at + remaining)
        if change is None:
            return at + remaining
        at = change
    return at


def closing(window: Window, zone: ZoneInfo, at: datetime) -> datetime:
    """Return the first instant from `at` on that is outside."""
    while inside(window, zone, at):
        remaining = (since_midnight(window.end) - since_midnight(at.astimezone(zone).time())) % DAY
        change = next_change(zone, at, at + remaining)
        if change is None:
            return at + remaining
        at = change
    return at


def last_closing(window: Window, zone: ZoneInfo, at: datetime) -> datetime:
    """Return when the last window before `at`, which is outside, closed."""
    while True:
        elapsed = (since_midnight(at.astimezone(zone).time()) - since_midnight(window.end)) % DAY
        change = next_change(zone, at - elapsed, at)
        if change is None:
            return at - elapsed
        at = change - TICK
        if inside(window, zone, at):
            return change


def window_length(window: Window) -> timedelta:
    return (since_midnight(window.end) - since_midnight(window.start)) % DAY


def since_midnight(local: time) -> timedelta:
    return timedelta(hours=local.hour, minutes=local.minute, seconds=local.second, microseconds=local.microsecond)


def parse_time_of_day(value: object, field: str) -> time:
    """Parse a local time `HH:MM`. Raises Invalid."""
    if not isinstance(value, str) or not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", value):
        raise Invalid(field, value, "must be a local time HH:MM such as 22:00; a window needs both ends")
    return time.fromisoformat(value)
