"""The flat form of a schedule, as in requests: its models, and how they become the record and back.

`ScheduleBody` describes a new schedule, `ScheduleChanges` an edit. A null means that a field is absent. An error names
the field, the value and the remedy; all wrong fields are reported together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from rota.core import parse
from rota.core.catch_up import SPREAD_HOURS_MAX
from rota.core.errors import Invalid
from rota.core.ids import new_id
from rota.core.kinds import DEFAULT_KIND
from rota.core.model import Schedule
from rota.core.order import AFTER_SCHEDULES_MAX, After, When
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import CATCH_UP_LIMIT_SLOTS, OVERLAP_NAMES, Misfire, Overlap
from rota.core.states import Condition
from rota.core.timing import triggers
from rota.core.timing.triggers import Cron, Every, Recurring, Timing, Trigger
from rota.core.timing_form import (
    NO_CALENDARS,
    TRIGGER_FIELDS,
    TRIGGER_OF,
    TYPES_OF_FIELD,
    Calendars,
    TimingFields,
    WholeTiming,
    flat_timing,
    timing_of,
)
from rota.core.wire import (
    NAME_SCHEMA,
    Choice,
    Label,
    Name,
    Payload,
    Priority,
    Retry,
    SpanSeconds,
    StorableText,
    checked,
    example,
)

FIXED_FIELDS = ("kind",)  # an edit cannot change them
EXAMPLE = {
    "name": "nightly", "target": "report", "schedule_type": "cron", "cron_expression": "0 2 * * *",
    "timezone": "Europe/Oslo", "input": {"day": "yesterday"}, "retry": {"max_retries": 2}, "tags": ["reports"],
}  # fmt: skip
OverlapPolicy = Annotated[
    Overlap, Choice, BeforeValidator(lambda value: OVERLAP_NAMES.get(value, value) if isinstance(value, str) else value)
]  # also by its Kubernetes name
Target = Annotated[
    str,
    PlainValidator(checked(lambda value, field: parse.text(value, field, 500, required=True))),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 500, "examples": ["report"]}),
]
OldName = Annotated[str, WithJsonSchema(NAME_SCHEMA)]  # may be older than the rules for names: see `without_old_name`


class ScheduleFields(TimingFields):
    """The fields of a schedule, except those that name its work."""

    name: OldName | None = Field(None, description="unique in the organisation; default: the kind and a random suffix")
    input: Payload | None = Field(None, description="input of each run: for tasks an object of parameters")
    max_runs: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="number of slots after which the schedule ends"
    )
    misfire: Annotated[Misfire, Choice] | None = Field(
        None, description="slots missed while no scheduler ran: none, the latest or all of them fire; default by kind"
    )
    catch_up_limit: Annotated[int, Field(ge=1, le=FIRE_BATCH_SLOTS)] | None = Field(
        None, description="maximum number of slots that `misfire` = `all` fires"
    )
    catch_up_spread_hours: Annotated[float, Field(gt=0, le=SPREAD_HOURS_MAX, allow_inf_nan=False)] | None = Field(
        None, description="hours over which `misfire` = `all` and a resume spread several slots; default: at once"
    )
    catch_up_approval_slots: Annotated[int, Field(ge=1, le=FIRE_BATCH_SLOTS)] | None = Field(
        None, description="a catch-up of more slots waits for an approval; default: as the installation says"
    )
    overlap: OverlapPolicy | None = Field(
        None, description="a slot that is due while the schedule still has a job; default by kind"
    )
    start_deadline_seconds: SpanSeconds | None = Field(
        None, description="a slot that has not started by then is skipped"
    )
    timeout_seconds: SpanSeconds | None = Field(None, description="maximum duration of a run, which then fails")
    retry: Retry | None = Field(None, description="retry policy; default: that of the target")
    priority: Priority | None = Field(None, description="jobs with a higher number start first")
    queue: Name | None = Field(None, description="queue of its jobs; default: `default`")
    after: Annotated[list[OldName], Field(max_length=AFTER_SCHEDULES_MAX)] | None = Field(
        None, description="names of schedules whose jobs of the same slot must have ended before its job starts"
    )
    when: Annotated[When, Choice] | None = Field(
        None, description="how the jobs of `after` must have ended; default: `success`"
    )
    enabled: bool | None = Field(None, description="whether it fires; default: true")
    tags: Annotated[list[Label], Field(max_length=50)] | None = Field(
        None, description="labels to list, pause and search by"
    )
    description: Annotated[str, Field(max_length=2000), StorableText] | None = Field(
        None, description="text for people"
    )
    grant_id: Annotated[str, Field(max_length=26), StorableText] | None = Field(
        None, description="grant under which it runs"
    )
    keep_runs_days: Annotated[int, Field(ge=1, le=36_500)] | None = Field(
        None, description="days that its runs are kept, instead of the settings of the server"
    )
    pause_after_failures: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="number of slots in a row that failed after which the schedule is paused"
    )


class ScheduleChanges(ScheduleFields):
    """An edit of a schedule: absent fields stay, or get their defaults if the whole schedule is replaced."""

    model_config = example(EXAMPLE)

    kind: Annotated[str, Field(examples=[DEFAULT_KIND])] | None = Field(
        None, description="kind of work; default: `task`"
    )
    target: Target | None = Field(None, description="the task, graph or pipeline that it runs")


class ScheduleBody(ScheduleChanges, WholeTiming):
    """A new schedule."""

    name: Name | None = Field(None, description="unique in the organisation; default: the kind and a random suffix")
    target: Target = Field(description="the task, graph or pipeline that it runs")


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
    calendars: Calendars = NO_CALENDARS,
) -> Schedule:
    """Return a new schedule from its flat form, without a route, which its kind chooses. `calendars` has those of the
    organisation that the form can name. Raises Invalid."""
    form = ScheduleBody.read(body)
    kind = form.kind or DEFAULT_KIND
    rules = defaults.get(kind)
    if rules is None:
        raise Invalid("kind", kind, f"is not one of {', '.join(sorted(defaults))}")
    schedule_id = new_id()
    name = form.name or f"{kind}-{schedule_id[-8:].lower()}"
    timing = replace(timing_of(form, now, calendars, seed=name), after=after_of(form, name))
    triggers.check_timing(timing, now)
    return Schedule(
        id=schedule_id,
        org_id=org_id,
        owner_id=by,
        name=name,
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
        catch_up_spread_hours=form.catch_up_spread_hours,
        catch_up_approval_slots=form.catch_up_approval_slots,
        overlap=form.overlap or rules.overlap,
        start_deadline=seconds(form.start_deadline_seconds),
        timeout=seconds(form.timeout_seconds),
        retry=None if form.retry is None else form.retry.policy(),
        priority=form.priority or 0,
        queue=form.queue or "default",
        grant_id=form.grant_id,
        keep_runs_days=form.keep_runs_days,
        pause_after_failures=form.pause_after_failures,
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
    old: Schedule,
    changes: Mapping[str, object],
    *,
    defaults: Mapping[str, Defaults],
    now: datetime,
    calendars: Calendars = NO_CALENDARS,
) -> Schedule:
    """Return an edited schedule: fields not in `changes` stay, and all are validated again. Raises Invalid."""
    check_fixed(old, changes)
    body = without_old_name(old, {**flat(old), **changes})
    if not body.get("after") and "when" not in changes:
        body["when"] = None
    if TimingFields.model_fields.keys() & changes.keys():
        types = {TRIGGER_OF[field] for field in changes if field in TRIGGER_OF and changes[field] is not None}
        trigger_type = changes.get("schedule_type") or (types.pop() if len(types) == 1 else body["schedule_type"])
        replaced = {field for field, kinds in TYPES_OF_FIELD.items() if trigger_type not in kinds}
        if "interval" in changes or "interval_seconds" in changes:
            replaced |= {*TRIGGER_FIELDS["interval"], "anchor"}
        if trigger_type != body["schedule_type"]:
            replaced.add("anchor")
        if changes.get("calendar", body["calendar"]) is None:
            replaced.add("on_holiday")
        body = {key: value for key, value in body.items() if key not in replaced or key in changes}
        body["schedule_type"] = trigger_type
        named = {**own_calendar(old), **calendars}
        fresh = parse_schedule(
            body, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None, calendars=named
        )
        timing = with_same_seed(old, fresh.timing)
    else:
        other = {key: value for key, value in body.items() if key not in TimingFields.model_fields}
        probe = {**other, "schedule_type": "interval", "interval_seconds": 60}
        fresh = parse_schedule(probe, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None)
        timing = replace(old.timing, after=fresh.timing.after)
        if fresh.enabled and not old.enabled:
            triggers.check_timing(timing, now)
    return same_schedule(old, fresh, timing, named="name" in body)


def parse_put(
    old: Schedule,
    body: Mapping[str, object],
    *,
    defaults: Mapping[str, Defaults],
    now: datetime,
    calendars: Calendars = NO_CALENDARS,
) -> Schedule:
    """Return a replaced schedule: fields not in `body` get defaults, except name, kind and, if the interval or the
    recurrence rule stays, the anchor, so that the replacement is idempotent. Raises Invalid."""
    check_fixed(old, body)
    named = without_old_name(old, {**body, "kind": old.kind})
    known = {**own_calendar(old), **calendars}
    fresh = parse_schedule(
        named, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None, calendars=known
    )
    same = body.get("anchor") is None and same_but_anchor(old.timing.trigger, fresh.timing.trigger)
    timing = replace(fresh.timing, trigger=old.timing.trigger) if same else with_same_seed(old, fresh.timing)
    return same_schedule(old, fresh, timing, named="name" in named)


def after_of(form: ScheduleFields, name: str) -> After | None:
    """Return which schedules go before one. Raises Invalid."""
    if not form.after:
        if form.when is not None:
            raise Invalid("when", form.when.value, "needs `after`: the names of schedules that go first")
        return None
    if name in form.after:
        raise Invalid("after", name, "is the schedule itself")
    return After(tuple(dict.fromkeys(form.after)), form.when or When.SUCCESS)


def same_but_anchor(before: Trigger, after: Trigger) -> bool:
    """Whether two triggers are the same interval or recurrence rule."""
    match before, after:
        case (Every(span), Every(other)) if span == other:
            return True
        case (Recurring(rule), Recurring(other_rule)) if rule == other_rule:
            return True
        case _:
            return False


def with_same_seed(old: Schedule, timing: Timing) -> Timing:
    """Return a timing whose `H` has the values that the schedule had, also if it is renamed."""
    before, after = old.timing.trigger, timing.trigger
    if isinstance(before, Cron) and isinstance(after, Cron) and before.seed and after.seed:
        return replace(timing, trigger=replace(after, seed=before.seed))
    return timing


def own_calendar(schedule: Schedule) -> Calendars:
    """Return the calendar of a schedule by its name."""
    rule = schedule.timing.holidays
    return {} if rule is None else {rule.calendar.name: rule.calendar}


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
        "catch_up_spread_hours": schedule.catch_up_spread_hours,
        "catch_up_approval_slots": schedule.catch_up_approval_slots,
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
        "keep_runs_days": schedule.keep_runs_days,
        "pause_after_failures": schedule.pause_after_failures,
    }
