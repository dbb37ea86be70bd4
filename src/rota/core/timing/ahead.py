"""Many slots of a schedule in a row, at a fraction of what a search for each costs. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from rota.core.timing.cron import HORIZON_YEARS, CronPattern
from rota.core.timing.dst import LONGEST_JUMP, TICK, changes_in, next_local, offset, zone_of
from rota.core.timing.triggers import LATEST, Cron, Every, Timing, in_utc, local_pattern, next_slot

HORIZON = timedelta(days=366 * HORIZON_YEARS)
ONE_DAY = timedelta(days=1)


def slots_after(timing: Timing, after: datetime) -> Iterator[datetime]:
    """Yield each slot strictly after `after`, ascending, as `next_slot` finds them one by one."""
    after, end = in_utc(after), min(timing.ends_at or LATEST, LATEST)
    if timing.starts_at is not None:
        after = max(after, timing.starts_at - TICK)
    pattern = local_pattern(timing) if isinstance(timing.trigger, Cron) else None
    if timing.window is None and isinstance(pattern, CronPattern):
        slots = slots_of_pattern(pattern, timing.zone, after)
    elif timing.window is None and timing.holidays is None and isinstance(timing.trigger, Every):
        slots = slots_of_interval(timing, timing.trigger.span, after)
    else:
        slots = searched_slots(timing, after)
    for slot in slots:
        if slot >= end:
            return
        yield slot


def searched_slots(timing: Timing, after: datetime) -> Iterator[datetime]:
    slot = next_slot(timing, after)
    while slot is not None:
        yield slot
        slot = next_slot(timing, slot)


def slots_of_interval(timing: Timing, span: timedelta, after: datetime) -> Iterator[datetime]:
    slot = next_slot(timing, after)
    while slot is not None and slot < LATEST:
        yield slot
        slot += span


def slots_of_pattern(pattern: CronPattern, zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the slots of a pattern of local times. Far from clock changes the local times of whole days are shifted by
    the offset of the zone; around a change each slot is searched."""
    info, latest = zone_of(zone), after
    while after < LATEST and after - latest < HORIZON:
        change = next((change for change in upcoming_changes(zone, after)), None)
        quiet_until = datetime(after.year + 2, 1, 1, tzinfo=UTC) if change is None else change - LONGEST_JUMP
        if after < quiet_until:
            shift = offset(info, after)
            for local in local_times(pattern, after + shift, quiet_until + shift):
                latest = local - shift
                yield latest
            after = quiet_until
        if change is not None:
            while (slot := next_local(pattern, info, after)) is not None and slot <= change + LONGEST_JUMP:
                after = latest = slot
                yield slot
            if slot is None:
                return
            after = max(after, change + LONGEST_JUMP)


def upcoming_changes(zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the clock changes of this year and the next one after `after`, and the one that may still matter."""
    for year in (after.year - 1, after.year, after.year + 1):
        for change, _ in changes_in(zone, year):
            if change + LONGEST_JUMP > after:
                yield change


def local_times(pattern: CronPattern, low: datetime, high: datetime) -> Iterator[datetime]:
    """Yield the matching local times with `low < time <= high`, ascending, all labelled as UTC."""
    year, month = low.year, low.month
    times = [divmod(minute, 60) for minute in pattern.times]
    edges = (low.replace(hour=0, minute=0, second=0, microsecond=0), high - ONE_DAY)
    while (year, month) <= (high.year, high.month):
        days = pattern.days_in(year, month) if month in pattern.months else 0
        while days:
            day = (days & -days).bit_length() - 1
            days &= days - 1
            midnight = datetime(year, month, day, tzinfo=UTC)
            if edges[0] < midnight <= edges[1]:
                for hour, minute in times:
                    yield datetime(year, month, day, hour, minute, tzinfo=UTC)
            elif low - ONE_DAY < midnight <= high:
                for hour, minute in times:
                    local = datetime(year, month, day, hour, minute, tzinfo=UTC)
                    if low < local <= high:
                        yield local
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
