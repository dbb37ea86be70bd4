"""The flat form of a schedule, as in requests: its models, and how they become the record and back.

`ScheduleBody` describes a new schedule, `ScheduleChanges` an edit. A null means that a field is absent. An error names
the field, the value and the remedy; all wrong fields are reported together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator

from rota.core import parse
from rota.core.errors import MISSING, Invalid
from rota.core.ids import new_id
from rota.core.kinds import DEFAULT_KIND
from rota.core.model import JITTER_LIMIT, Schedule
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import CATCH_UP_LIMIT_SLOTS, OVERLAP_NAMES, Misfire, Overlap
from rota.core.states import Condition
from rota.core.timing import triggers
from rota.core.timing.triggers import Cron, Every, Once, Timing
from rota.core.timing.windows import parse_time_of_day, parse_window
from rota.core.wire import (
    NAME_SCHEMA,
    Choice,
    Instant,
    Label,
    Name,
    Payload,
    Priority,
    RequestBody,
    Retry,
    SpanSeconds,
    StorableText,
    checked,
    domain_error,
    example,
)

TRIGGER_FIELDS = {
    "cron": ("cron_expression",),
    "interval": ("interval_seconds", "interval", "anchor"),
    "once": ("run_at",),
}
TRIGGER_OF = {field: kind for kind, fields in TRIGGER_FIELDS.items() for field in fields}
FIXED_FIELDS = ("kind",)  # an edit cannot change them
INVALID = object()  # stands for the value of a field that was refused
EXAMPLE = {
    "name": "nightly", "target": "report", "schedule_type": "cron", "cron_expression": "0 2 * * *",
    "timezone": "Europe/Oslo", "input": {"day": "yesterday"}, "retry": {"max_retries": 2}, "tags": ["reports"],
}  # fmt: skip


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
    WithJsonSchema({"type": "string", "description": "a span of time instead of interval_seconds", "examples": ["5m"]}),
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
OverlapPolicy = Annotated[
    Overlap, Choice, BeforeValidator(lambda value: OVERLAP_NAMES.get(value, value) if isinstance(value, str) else value)
]  # also by its Kubernetes name
Target = Annotated[
    str,
    PlainValidator(checked(lambda value, field: parse.text(value, field, 500, required=True))),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 500, "examples": ["report"]}),
]
OldName = Annotated[str, WithJsonSchema(NAME_SCHEMA)]  # may be older than the rules for names: see `without_old_name`


class TimingFields(RequestBody):
    """The fields that say when a schedule is due, each by itself."""

    cron_expression: Expression | None = None
    interval_seconds: IntervalSeconds | None = None
    interval: Interval | None = None
    anchor: Instant | None = None
    run_at: Instant | None = None
    timezone: Zone | None = None
    window_start: StartTime | None = None
    window_end: EndTime | None = Field(None, validate_default=True)
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    jitter_seconds: Annotated[float, Field(ge=0, le=int(JITTER_LIMIT.total_seconds()))] | None = None
    schedule_type: Literal["cron", "interval", "once"] | None = Field(None, validate_default=True)


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
        present = [field for field in TRIGGER_OF if info.data.get(field, INVALID) is not None]
        types = {TRIGGER_OF[field] for field in present}
        if schedule_type is None and len(types) == 1:
            (schedule_type,) = types
        if types == {schedule_type} and present != ["anchor"]:
            return schedule_type
        raise domain_error(wrong_trigger_fields(schedule_type, types, info.data))


class ScheduleFields(TimingFields):
    """The fields of a schedule, except those that name its work."""

    name: OldName | None = None
    input: Payload | None = None
    max_runs: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    misfire: Annotated[Misfire, Choice] | None = None
    catch_up_limit: Annotated[int, Field(ge=1, le=FIRE_BATCH_SLOTS)] | None = None
    overlap: OverlapPolicy | None = None
    start_deadline_seconds: SpanSeconds | None = None
    timeout_seconds: SpanSeconds | None = None
    retry: Retry | None = None
    priority: Priority | None = None
    queue: Name | None = None
    enabled: bool | None = None
    tags: Annotated[list[Label], Field(max_length=50)] | None = None
    description: Annotated[str, Field(max_length=2000), StorableText] | None = None
    grant_id: Annotated[str, Field(max_length=26), StorableText] | None = None


class ScheduleChanges(ScheduleFields):
    """An edit of a schedule: absent fields stay, or get their defaults if the whole schedule is replaced."""

    model_config = example(EXAMPLE)

    kind: Annotated[str, Field(examples=[DEFAULT_KIND])] | None = None
    target: Target | None = None


class ScheduleBody(ScheduleChanges, WholeTiming):
    """A new schedule."""

    name: Name | None = None
    target: Target


@dataclass(frozen=True, slots=True)
class Defaults:
    """Default policies of a kind of work."""

    misfire: Misfire = Misfire.ONCE
    overlap: Overlap = Overlap.QUEUE_ONE


def parse_schedule(
    body: Mapping[str, object] | ScheduleBody,
    *,
    org_id: str,
    defaults: Mapping[str, Defaults],
    now: datetime,
    source: str,
    by: str | None,
) -> Schedule:
    """Return a new schedule from its flat form, without a route, which its kind chooses. Raises Invalid."""
    form = ScheduleBody.read(body)
    kind = form.kind or DEFAULT_KIND
    rules = defaults.get(kind)
    if rules is None:
        raise Invalid("kind", kind, f"is not one of {', '.join(sorted(defaults))}")
    timing = timing_of(form, now)
    triggers.check_timing(timing, now)
    schedule_id = new_id()
    return Schedule(
        id=schedule_id,
        org_id=org_id,
        owner_id=by,
        name=form.name or f"{kind}-{schedule_id[-8:].lower()}",
        description=form.description or "",
        tags=form.tags or [],
        kind=kind,
        target=form.target,
        route="",
        input=form.input,
        timing=timing,
        max_runs=form.max_runs,
        misfire=form.misfire or rules.misfire,
        catch_up_limit=form.catch_up_limit or CATCH_UP_LIMIT_SLOTS,
        overlap=form.overlap or rules.overlap,
        start_deadline=seconds(form.start_deadline_seconds),
        timeout=seconds(form.timeout_seconds),
        retry=None if form.retry is None else form.retry.policy(),
        priority=form.priority or 0,
        queue=form.queue or "default",
        grant_id=form.grant_id,
        enabled=form.enabled is not False,
        paused_at=None,
        paused_until=None,
        pause_reason=None,
        condition=Condition.OK,
        condition_reason=None,
        revision=1,
        source=source,
        created_by=by,
        created_at=now,
        updated_at=now,
    )


def parse_patch(
    old: Schedule, changes: Mapping[str, object], *, defaults: Mapping[str, Defaults], now: datetime
) -> Schedule:
    """Return an edited schedule: fields not in `changes` stay, and all are validated again. Raises Invalid."""
    check_fixed(old, changes)
    body = without_old_name(old, {**flat(old), **changes})
    if TimingFields.model_fields.keys() & changes.keys():
        types = {TRIGGER_OF[field] for field in changes if field in TRIGGER_OF and changes[field] is not None}
        trigger_type = changes.get("schedule_type") or (types.pop() if len(types) == 1 else body["schedule_type"])
        for kind, fields in TRIGGER_FIELDS.items():
            if kind != trigger_type:
                body = {key: value for key, value in body.items() if key not in fields or key in changes}
        if "interval" in changes or "interval_seconds" in changes:
            body = {
                key: value for key, value in body.items() if key not in TRIGGER_FIELDS["interval"] or key in changes
            }
        body["schedule_type"] = trigger_type
        fresh = parse_schedule(body, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None)
        timing = fresh.timing
    else:
        other = {key: value for key, value in body.items() if key not in TimingFields.model_fields}
        probe = {**other, "schedule_type": "interval", "interval_seconds": 60}
        fresh = parse_schedule(probe, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None)
        timing = old.timing
        if fresh.enabled and not old.enabled:
            triggers.check_timing(timing, now)
    return same_schedule(old, fresh, timing, named="name" in body)


def parse_put(
    old: Schedule, body: Mapping[str, object], *, defaults: Mapping[str, Defaults], now: datetime
) -> Schedule:
    """Return a replaced schedule: fields not in `body` get defaults, except name, kind and, if the interval stays,
    the anchor, so that the replacement is idempotent. Raises Invalid."""
    check_fixed(old, body)
    named = without_old_name(old, {**body, "kind": old.kind})
    fresh = parse_schedule(named, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None)
    before, after = old.timing.trigger, fresh.timing.trigger
    same = isinstance(before, Every) and isinstance(after, Every) and before.span == after.span
    timing = replace(fresh.timing, trigger=before) if same and body.get("anchor") is None else fresh.timing
    return same_schedule(old, fresh, timing, named="name" in named)


def without_old_name(old: Schedule, body: Mapping[str, object]) -> dict[str, object]:
    """Return the body of an edit without an unchanged name, which may be older than the rules for names."""
    return {field: value for field, value in body.items() if field != "name" or value not in (None, old.name)}


def check_fixed(old: Schedule, body: Mapping[str, object]) -> None:
    for field in FIXED_FIELDS:
        if body.get(field) is not None and body[field] != getattr(old, field):
            raise Invalid(
                field, body[field], f"cannot be changed from {getattr(old, field)!r}; create another schedule"
            )


def same_schedule(old: Schedule, fresh: Schedule, timing: Timing, *, named: bool) -> Schedule:
    """Return the new definition with the fields that an edit keeps: its creator, pause and condition."""
    kept: dict[str, Any] = {
        "id": old.id, "owner_id": old.owner_id, "timing": timing, "paused_at": old.paused_at,
        "paused_until": old.paused_until, "pause_reason": old.pause_reason, "condition": old.condition,
        "condition_reason": old.condition_reason, "revision": old.revision, "source": old.source,
        "created_by": old.created_by, "created_at": old.created_at, "name": fresh.name if named else old.name,
    }  # fmt: skip
    return replace(fresh, **kept)


def parse_timing(body: Mapping[str, object] | WholeTiming, *, now: datetime) -> Timing:
    """Parse only the timing fields, to preview a schedule that is not saved. Raises Invalid."""
    timing = timing_of(WholeTiming.read(body), now)
    triggers.check_timing(timing, now)
    return timing


def timing_of(form: WholeTiming, now: datetime) -> Timing:
    """Return the timing of a form. An interval without an anchor begins `now`."""
    trigger: Cron | Every | Once
    if form.schedule_type == "cron":
        trigger = Cron(str(form.cron_expression))
    elif form.schedule_type == "interval":
        length = form.interval_seconds if form.interval is None else form.interval
        # slots on whole seconds are easier to read
        trigger = Every(triggers.parse_interval(length), form.anchor or now.replace(microsecond=0))
    else:
        assert form.run_at is not None
        trigger = Once(form.run_at)
    window, jitter = parse_window(form.window_start, form.window_end), timedelta(seconds=form.jitter_seconds or 0)
    return Timing(trigger, form.timezone or "UTC", window, form.starts_at, form.ends_at, jitter)


def wrong_trigger_fields(schedule_type: str | None, types: set[str], values: Mapping[str, Any]) -> list[Invalid]:
    """Return errors for fields of other triggers, and for those that the trigger lacks. `values` are without refused
    ones, which have errors of their own."""
    wrong = []
    for other in sorted(types - {schedule_type}):
        field = next(field for field in TRIGGER_FIELDS[other] if values.get(field, INVALID) is not None)
        if field in values:
            value = values[field].isoformat() if isinstance(values[field], datetime) else values[field]
            wrong.append(Invalid(field, value, f"does not belong to schedule_type {schedule_type}"))
    if schedule_type is None and not types:
        wrong.append(Invalid("schedule_type", None, f"{MISSING}: cron, interval or once"))
    elif schedule_type is not None:
        needed = [field for field in TRIGGER_FIELDS[schedule_type] if field != "anchor"]
        if all(values.get(field, INVALID) is None for field in needed):
            wrong.append(Invalid(needed[0], None, MISSING))
    return wrong


def seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def flat(schedule: Schedule) -> dict[str, object]:
    """Return a schedule in its flat form, which `parse_schedule` reads."""
    return {
        "name": schedule.name,
        "kind": schedule.kind,
        "target": schedule.target,
        "input": schedule.input,
        **flat_timing(schedule.timing),
        "max_runs": schedule.max_runs,
        "misfire": schedule.misfire.value,
        "catch_up_limit": schedule.catch_up_limit,
        "overlap": schedule.overlap.value,
        "start_deadline_seconds": None
        if schedule.start_deadline is None
        else int(schedule.start_deadline.total_seconds()),
        "timeout_seconds": None if schedule.timeout is None else int(schedule.timeout.total_seconds()),
        "retry": schedule.retry.dump() if schedule.retry else None,
        "priority": schedule.priority,
        "queue": schedule.queue,
        "enabled": schedule.enabled,
        "tags": schedule.tags,
        "description": schedule.description,
        "grant_id": schedule.grant_id,
    }


def flat_timing(timing: Timing) -> dict[str, object]:
    window = timing.window
    fields: dict[str, object] = {
        "schedule_type": None, "cron_expression": None, "interval_seconds": None, "anchor": None, "run_at": None,
        "timezone": timing.zone, "window_start": window.start.isoformat("minutes") if window else None,
        "window_end": window.end.isoformat("minutes") if window else None, "starts_at": timing.starts_at,
        "ends_at": timing.ends_at, "jitter_seconds": number(timing.jitter),
    }  # fmt: skip
    match timing.trigger:
        case Cron(expression):
            fields |= {"schedule_type": "cron", "cron_expression": expression}
        case Every(span, anchor):
            fields |= {"schedule_type": "interval", "interval_seconds": number(span), "anchor": anchor}
        case Once(at):
            fields |= {"schedule_type": "once", "run_at": at}
    return fields


def number(span: timedelta) -> int | float:
    """Return seconds, as int if they are whole."""
    seconds = span.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
