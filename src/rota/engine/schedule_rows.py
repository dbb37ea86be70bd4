"""Rows of schedules, their clocks and trigger spans, and the records they are read into."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any, TypedDict

from rota.core.model import Schedule
from rota.core.plan import first_plan
from rota.core.policy import Misfire, Overlap, parse_retry
from rota.core.states import Condition
from rota.core.timing import stored
from rota.core.timing.triggers import Once, Timing
from rota.db.tables import schedules

COLUMNS = tuple(column.name for column in schedules.c)
RENAMED_COLUMNS = {"start_deadline": "start_deadline_seconds", "timeout": "timeout_seconds"}  # by field


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of new schedules, in their order: columns of `schedules`, rows of `clocks` and of `trigger_spans`."""

    columns: dict[str, list[object]]
    clocks: "list[ClockRow]"
    spans: list[dict[str, object] | None]


def new_rows(new: Sequence[Schedule], now: datetime) -> NewRows:
    """Return the rows of new schedules. Computes their first slots, so call it outside a transaction."""
    columns = {name: [read(schedule) for schedule in new] for name, read in COLUMN_VALUES.items()}
    spans = [span_row(schedule, stored.dump(schedule.timing), now) if schedule.enabled else None for schedule in new]
    return NewRows(columns, [clock_row(schedule, now) for schedule in new], spans)


def row_of(schedule: Schedule) -> dict[str, object]:
    return {name: read(schedule) for name, read in COLUMN_VALUES.items()}


class ClockRow(TypedDict):
    """A new row of `clocks`."""

    schedule_id: str
    org_id: str
    kind: str
    next_slot: datetime | None
    next_run_at: datetime | None
    fired: int


def clock_row(schedule: Schedule, now: datetime) -> ClockRow:
    """Return the clock of a schedule that is planned from `now`."""
    slot, at = first_plan(schedule, now) if schedule.enabled else (None, None)
    if schedule.paused_at is not None:
        at = schedule.paused_until
    return {
        "schedule_id": schedule.id,
        "org_id": schedule.org_id,
        "kind": schedule.kind,
        "next_slot": slot,
        "next_run_at": at,
        "fired": 0,
    }


def span_row(schedule: Schedule, timing: dict[str, object], now: datetime) -> dict[str, object]:
    """Return the trigger span that begins at `now`: the time in which this timing decides the slots."""
    return {
        "schedule_id": schedule.id,
        "revision": schedule.revision,
        "timing": timing,
        "from_at": now,
        "until_at": None,
    }


def schedule_of(row: Sequence[Any], readable: bool = True) -> Schedule:
    """Return the schedule of a row that begins with all columns of `schedules`. Raises if its timing cannot be parsed;
    with `readable=False` such a schedule is returned with a placeholder timing, to be edited or deleted."""
    values = list(in_field_order(row))
    for position, read in FIELD_READERS:
        values[position] = read(values[position])
    try:
        values[TIMING] = stored.load(values[TIMING])
    except Exception:
        if readable:
            raise
        values[TIMING] = Timing(Once(row[COLUMNS.index("created_at")]))
    return Schedule(*values)


def to_seconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds())


def to_duration(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


# Columns are matched to fields by name here, once: keyword arguments would cost 30 % more per row.
FIELD_NAMES = tuple(field.name for field in fields(Schedule))
in_field_order = itemgetter(*(COLUMNS.index(RENAMED_COLUMNS.get(name, name)) for name in FIELD_NAMES))
TIMING = FIELD_NAMES.index("timing")
FIELD_READERS: Sequence[tuple[int, Callable[[Any], object]]] = [  # of fields whose columns hold another type
    (FIELD_NAMES.index("misfire"), Misfire),
    (FIELD_NAMES.index("overlap"), Overlap),
    (FIELD_NAMES.index("start_deadline"), to_duration),
    (FIELD_NAMES.index("timeout"), to_duration),
    (FIELD_NAMES.index("retry"), parse_retry),
    (FIELD_NAMES.index("condition"), Condition),
]
COLUMN_VALUES: Mapping[str, Callable[[Schedule], object]] = {  # the value of each column
    **{name: attrgetter(name) for name in COLUMNS},
    "timing": lambda schedule: stored.dump(schedule.timing),
    "start_deadline_seconds": lambda schedule: to_seconds(schedule.start_deadline),
    "timeout_seconds": lambda schedule: to_seconds(schedule.timeout),
    "retry": lambda schedule: schedule.retry and schedule.retry.dump(),
}
