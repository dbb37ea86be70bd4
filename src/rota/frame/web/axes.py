"""Ticks of axes: of time, in the reader's zone, and of numbers. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import floor, log10

DAY = timedelta(days=1)
STEPS = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
        *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    )
)
DAYS = (1, 2, 7, 14, 28)


def time_ticks(
    start: datetime, end: datetime, local: Callable[[datetime], datetime], most: int = 8
) -> list[tuple[datetime, str]]:
    """Return at most about `most` round local times between two instants, with their labels."""
    span = end - start
    step = next((step for step in STEPS if span <= step * most), None)
    midnight = local(start).replace(hour=0, minute=0, second=0, microsecond=0)
    if step is None:
        days = next((days for days in DAYS if span <= DAY * days * most), DAYS[-1])
        count = span // DAY + 3
        midnights = [
            datetime.combine(midnight.date() + DAY * day, midnight.timetz().replace(fold=0))
            for day in range(0, count, days)
        ]
        return [(at, f"{at:%a %d %b}") for at in midnights if start <= at < end]
    at = midnight.replace(tzinfo=None) + step * -(
        -(local(start).replace(tzinfo=None) - midnight.replace(tzinfo=None)) // step
    )
    first = start + (at - local(start).replace(tzinfo=None))
    ticks = [first + step * number for number in range((end - first) // step + 1)]
    return [(tick, label_of(local(tick), step)) for tick in ticks if start <= tick < end]


def label_of(at: datetime, step: timedelta) -> str:
    """Return the label of a tick: the date at midnight, else the time, as exact as the step."""
    if (at.hour, at.minute, at.second, at.microsecond) == (0, 0, 0, 0):
        return f"{at:%a %d %b}"
    if step >= timedelta(minutes=1):
        return f"{at:%H:%M}"
    if step >= timedelta(seconds=1):
        return f"{at:%H:%M:%S}"
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def value_ticks(top: float, most: int = 4) -> list[float]:
    """Return round numbers from zero up to `top`, at most about `most` above zero."""
    if top <= 0:
        return [0.0]
    rough = top / most
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    return [number * step for number in range(int(top / step + 1e-9) + 1)]


def duration_ticks(top: float, most: int = 4) -> list[float]:
    """Return round durations in seconds from zero up to `top`."""
    if top < 60:
        return value_ticks(top, most)
    units = (*(60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200), *(86_400 * n for n in (1, 2, 5, 10)))
    step = next((unit for unit in units if top / unit <= most), units[-1])
    return [float(number * step) for number in range(int(top // step) + 1)]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
