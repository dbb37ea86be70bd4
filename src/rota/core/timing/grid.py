"""Slots of an interval inside a daily window, by arithmetic: no loop over slots or days.

While the UTC offset is constant, the local times of `anchor + k * span` are `(a + k * span) mod one day`. The first k
inside the window is the first solution of a linear congruence, the number of them a sum of floors; both take about as
many steps as the numbers have binary digits.
"""

from datetime import datetime, timedelta

from rota.core.effort import spend
from rota.core.timing.dst import TICK, Period, periods, periods_back

DAY_TICKS = timedelta(days=1) // TICK


def first_in_window(
    span: timedelta, anchor: datetime, window_start: timedelta, window_length: timedelta, zone: str, after: datetime,
    until: datetime,
) -> datetime | None:  # fmt: skip
    """Return the first `anchor + k * span`, k >= 0, in `after < slot < until` with its local time inside the window."""
    step, length = span // TICK, window_length // TICK
    first = max(after + TICK, anchor)
    if first >= until:
        return None
    for period in periods(zone, first, until):
        k = -((anchor - period.start) // span)
        lead = local_ticks(anchor, period, window_start) + k * step
        skip = first_multiple(step, DAY_TICKS, -lead, length)
        if skip is not None and (slot := anchor + (k + skip) * span) < period.end:
            return slot
        spend()
    return None


def last_in_window(
    span: timedelta, anchor: datetime, window_start: timedelta, window_length: timedelta, zone: str, until: datetime,
    since: datetime,
) -> datetime | None:  # fmt: skip
    """Return the last `anchor + k * span`, k >= 0, in `since < slot <= until` with its local time inside the window."""
    step, length = span // TICK, window_length // TICK
    first = max(since + TICK, anchor)
    if first > until:
        return None
    for period in periods_back(zone, first, until + TICK):
        k = (period.end - TICK - anchor) // span
        lead = local_ticks(anchor, period, window_start) + k * step
        skip = first_multiple(-step, DAY_TICKS, -lead, length)
        if skip is not None and (slot := anchor + (k - skip) * span) >= period.start:
            return slot
        spend()
    return None


def count_in_window(
    span: timedelta, anchor: datetime, window_start: timedelta, window_length: timedelta, period: Period
) -> int:
    """Return how many `anchor + k * span` with k >= 0 are in the period and inside the window."""
    first = max(0, -((anchor - period.start) // span))
    count = max(0, -((anchor - period.end) // span)) - first
    if count <= 0:
        return 0
    step, length = span // TICK, window_length // TICK
    lead = (local_ticks(anchor, period, window_start) + first * step) % DAY_TICKS
    return floor_sum(count, DAY_TICKS, step, lead) - floor_sum(count, DAY_TICKS, step, lead - length)


def local_ticks(anchor: datetime, period: Period, window_start: timedelta) -> int:
    """Return the local time of the anchor in the period's offset, in ticks since the window start, modulo a day."""
    midnight = anchor.replace(hour=0, minute=0, second=0, microsecond=0)
    return (anchor - midnight + period.offset - window_start) // TICK % DAY_TICKS


def first_multiple(step: int, modulus: int, low: int, length: int) -> int | None:
    """Return the smallest k >= 0 with `k * step mod modulus` in `low .. low + length - 1` modulo `modulus`, or None."""
    low %= modulus
    if low == 0 or low + length > modulus:
        return 0  # 0 itself is inside
    return smallest_multiple(step % modulus, modulus, low, low + length - 1)


def smallest_multiple(step: int, modulus: int, low: int, high: int) -> int | None:
    """Return the same for `0 < low <= high < modulus`, `0 <= step < modulus`. The modulus halves with each call."""
    if 2 * step > modulus:
        return smallest_multiple(modulus - step, modulus, modulus - high, modulus - low)
    if step == 0:
        return None
    k = -(-low // step)
    if k * step <= high:
        return k
    rounds = smallest_multiple(-modulus % step, step, low % step, high % step)
    return None if rounds is None else -(-(low + modulus * rounds) // step)


def floor_sum(count: int, modulus: int, step: int, start: int) -> int:
    """Return the sum of `(step * k + start) // modulus` over `0 <= k < count`."""
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (step // modulus) + count * (start // modulus)
        step, start = step % modulus, start % modulus
        top = step * count + start
        if top < modulus:
            break
        count, modulus, step, start = top // modulus, step, modulus, top % modulus
    return total
