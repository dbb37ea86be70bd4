"""The timing fields of a schedule in its flat form: their models, and how they become a `Timing` and back."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator

from rota.core.errors import MISSING, Invalid
from rota.core.model import JITTER_LIMIT
from rota.core.timing import triggers
from rota.core.timing.calendars import Calendar, HolidayRule, OnHoliday
from rota.core.timing.dst import DstGap, DstRepeat, local_instant
from rota.core.timing.triggers import Cron, Every, Once, Recurring, Timing, Trigger
from rota.core.timing.windows import parse_time_of_day, parse_window
from rota.core.wire import Instant, Name, RequestBody, checked, domain_error

TRIGGER_FIELDS = {
    "cron": ("cron_expression",),
    "interval": ("interval_seconds", "interval"),
    "once": ("run_at",),
    "rrule": ("rrule",),
}
TRIGGER_OF = {field: kind for kind, fields in TRIGGER_FIELDS.items() for field in fields}
TYPES_OF_FIELD = {  # the schedule types that a field belongs to; other fields belong to all
    **{field: (kind,) for field, kind in TRIGGER_OF.items()},
    "anchor": ("interval", "rrule"),
    "dst_gap": ("cron", "rrule"),
    "dst_repeat": ("cron", "rrule"),
    "calendar": ("cron", "rrule", "interval"),
    "on_holiday": ("cron", "rrule", "interval"),
}
NOT_OF_TYPE = {  # why a field does not belong to a type, where that is not obvious
    "dst_gap": ": it follows elapsed time or names an instant",
    "dst_repeat": ": it follows elapsed time or names an instant",
    "calendar": ": choose another time instead",
    "on_holiday": ": choose another time instead",
}
Calendars = Mapping[str, Calendar]  # by name
NO_CALENDARS: Calendars = {}
INVALID = object()  # stands for the value of a field that was refused


def checked_interval(value: object, field: str) -> object:
    triggers.parse_interval(value, field)
    return value


def checked_time(value: object, field: str) -> object:
    parse_time_of_day(value, field)
    return value


Expression = Annotated[
    str,
    PlainValidator(checked(lambda value, _: triggers.parse_cron(value).expression)),
    WithJsonSchema({"type": "string", "examples": ["0 2 * * *"]}),
]
IntervalSeconds = Annotated[
    int | float, PlainValidator(checked(checked_interval)), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Interval = Annotated[
    str,
    PlainValidator(checked(checked_interval)),
    WithJsonSchema({"type": "string", "examples": ["5m"]}),
]
Rule = Annotated[
    str,
    PlainValidator(checked(lambda value, _: triggers.parse_rule(value))),
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0"],
        }
    ),
]
Zone = Annotated[
    str,
    PlainValidator(checked(triggers.parse_zone)),
    WithJsonSchema({"type": "string", "examples": ["Europe/Oslo"]}),
]
StartTime = Annotated[
    str, PlainValidator(checked(checked_time)), WithJsonSchema({"type": "string", "examples": ["08:00"]})
]
EndTime = Annotated[
    str, PlainValidator(checked(checked_time)), WithJsonSchema({"type": "string", "examples": ["18:00"]})
]


class TimingFields(RequestBody):
    """The fields that say when a schedule is due, each by itself."""

    cron_expression: Expression | None = Field(None, description="slots by a cron expression with five fields")
    interval_seconds: IntervalSeconds | None = Field(None, description="seconds between two slots")
    interval: Interval | None = Field(None, description="span of time between two slots, instead of `interval_seconds`")
    anchor: Instant | None = Field(
        None, description="instant from which intervals count, or at which a recurrence rule starts"
    )
    run_at: Instant | None = Field(None, description="the slot of a schedule that runs once")
    rrule: Rule | None = Field(
        None,
        description="slots by a recurrence rule of RFC 5545; its DTSTART is `anchor`, else `starts_at`, else midnight",
    )
    timezone: Zone | None = Field(
        None, description="IANA time zone of expression, rule, window and calendar; default: UTC"
    )
    window_start: StartTime | None = Field(None, description="start of the time of day in which jobs may start")
    window_end: EndTime | None = Field(
        None, validate_default=True, description="end of that time; if it is before `window_start`, on the next day"
    )
    starts_at: Instant | None = Field(None, description="no slot is before this instant")
    ends_at: Instant | None = Field(None, description="no slot is after this instant")
    jitter_seconds: Annotated[float, Field(ge=0, le=int(JITTER_LIMIT.total_seconds()))] | None = Field(
        None, description="upper limit of the delay of slots, which is different for each schedule and constant for one"
    )
    dst_gap: DstGap | None = Field(None, description="slots at local times that a clock change skips")
    dst_repeat: DstRepeat | None = Field(None, description="slots at local times that a clock change repeats")
    calendar: Name | None = Field(None, description="name of the calendar of holidays")
    on_holiday: OnHoliday | None = Field(None, description="slots on holidays of the calendar; default: `skip`")
    schedule_type: Literal["cron", "interval", "once", "rrule"] | None = Field(
        None, validate_default=True, description="follows from the fields above, may be omitted"
    )


class WholeTiming(TimingFields):
    """The timing of a schedule: exactly one trigger, and both ends of a window."""

    @field_validator("window_end")
    @classmethod
    def check_window(cls, end: str | None, info: ValidationInfo) -> str | None:
        if "window_start" in info.data:  # else it was refused
            try:
                parse_window(info.data["window_start"], end)
            except Invalid as error:
                raise domain_error(error.all) from None
        return end

    @field_validator("schedule_type")
    @classmethod
    def check_trigger(cls, schedule_type: str | None, info: ValidationInfo) -> str | None:
        """Return the type, which follows from the trigger's fields if it is absent."""
        types = {TRIGGER_OF[field] for field in TRIGGER_OF if info.data.get(field, INVALID) is not None}
        if schedule_type is None and len(types) == 1:
            (schedule_type,) = types
        wrong = wrong_trigger_fields(schedule_type, types, info.data)
        if wrong:
            raise domain_error(wrong)
        return schedule_type


def parse_timing(
    body: Mapping[str, object] | WholeTiming,
    *,
    now: datetime,
    calendars: Calendars = NO_CALENDARS,
    seed: str = "",
) -> Timing:
    """Parse only the timing fields, to preview a schedule that is not saved. `seed`, the name of the schedule, decides
    what an `H` means. Raises Invalid."""
    timing = timing_of(WholeTiming.read(body), now, calendars, seed)
    triggers.check_timing(timing, now)
    return timing


def timing_of(form: WholeTiming, now: datetime, calendars: Calendars, seed: str) -> Timing:
    """Return the timing of a form. An interval without an anchor begins `now`, a recurrence rule at `starts_at` or at
    the beginning of the local day, so that its BYHOUR and BYMINUTE are enough. Raises Invalid."""
    trigger: Trigger
    zone = form.timezone or "UTC"
    if form.schedule_type == "cron":
        trigger = triggers.parse_cron(form.cron_expression, seed)
    elif form.schedule_type == "rrule":
        midnight = triggers.local_start(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
        trigger = Recurring(str(form.rrule), form.anchor or form.starts_at or local_instant(midnight, zone))
    elif form.schedule_type == "interval":
        length = form.interval_seconds if form.interval is None else form.interval
        # slots on whole seconds are easier to read
        trigger = Every(triggers.parse_interval(length), form.anchor or now.replace(microsecond=0))
    else:
        assert form.run_at is not None
        trigger = Once(form.run_at)
    window, jitter = parse_window(form.window_start, form.window_end), timedelta(seconds=form.jitter_seconds or 0)
    return Timing(
        trigger, zone, window, form.starts_at, form.ends_at, jitter, form.dst_gap, form.dst_repeat,
        holidays_of(form, calendars),
    )  # fmt: skip


def holidays_of(form: WholeTiming, calendars: Calendars) -> HolidayRule | None:
    """Return what the calendar of a form does to slots; by default slots on holidays are skipped. Raises Invalid."""
    if form.calendar is None:
        if form.on_holiday is not None:
            raise Invalid("on_holiday", form.on_holiday, "needs a calendar; see `rota calendar list`")
        return None
    calendar = calendars.get(form.calendar)
    if calendar is None:
        raise Invalid("calendar", form.calendar, "not found: add it, or see `rota calendar list`")
    if form.schedule_type == "interval" and form.on_holiday in ("next", "previous"):
        raise Invalid("on_holiday", form.on_holiday, "moves days, which an interval does not have: use skip or run")
    return HolidayRule(calendar, form.on_holiday or "skip")


def wrong_trigger_fields(schedule_type: str | None, types: set[str], values: Mapping[str, Any]) -> list[Invalid]:
    """Return errors for fields of other triggers, and for those that the trigger lacks. `values` are without refused
    ones, which have errors of their own."""
    wrong = []
    if schedule_type is None and not types:
        return [Invalid("schedule_type", None, f"{MISSING}: cron, interval, once or rrule")]
    for field, kinds in TYPES_OF_FIELD.items():
        if values.get(field) is not None and schedule_type not in kinds:
            value = values[field].isoformat() if isinstance(values[field], datetime) else values[field]
            reason = NOT_OF_TYPE.get(field, "") if schedule_type else ""
            wrong.append(Invalid(field, value, f"does not belong to schedule_type {schedule_type}{reason}"))
    if schedule_type is not None:
        needed = TRIGGER_FIELDS[schedule_type]
        if all(values.get(field, INVALID) is None for field in needed):
            wrong.append(Invalid(needed[0], None, MISSING))
    return wrong


def flat_timing(timing: Timing) -> dict[str, object]:
    window = timing.window
    fields: dict[str, object] = {
        "schedule_type": None, "cron_expression": None, "interval_seconds": None, "anchor": None, "run_at": None,
        "rrule": None, "dst_gap": timing.dst_gap, "dst_repeat": timing.dst_repeat,
        "calendar": timing.holidays.calendar.name if timing.holidays else None,
        "on_holiday": timing.holidays.on_holiday if timing.holidays else None,
        "timezone": timing.zone, "window_start": window.start.isoformat("minutes") if window else None,
        "window_end": window.end.isoformat("minutes") if window else None, "starts_at": timing.starts_at,
        "ends_at": timing.ends_at, "jitter_seconds": number(timing.jitter),
        "after": list(timing.after.schedules) if timing.after else [],
        "when": timing.after.when.value if timing.after else None,
    }  # fmt: skip
    match timing.trigger:
        case Cron(expression):
            fields |= {"schedule_type": "cron", "cron_expression": expression}
        case Every(span, anchor):
            fields |= {"schedule_type": "interval", "interval_seconds": number(span), "anchor": anchor}
        case Once(at):
            fields |= {"schedule_type": "once", "run_at": at}
        case Recurring(rule, anchor):
            fields |= {"schedule_type": "rrule", "rrule": rule, "anchor": anchor}
    return fields


def number(span: timedelta) -> int | float:
    """Return seconds, as int if they are whole."""
    seconds = span.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
