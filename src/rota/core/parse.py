"""Parses the flat form of a schedule, as in requests, to the record, and back.

An error names the field, the value and the remedy. All wrong fields are reported together.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson

from rota.core.errors import Invalid, together
from rota.core.ids import new_id
from rota.core.model import JITTER_LIMIT, NAME_LIMIT, PAYLOAD_LIMIT, Schedule
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import CATCH_UP_LIMIT_SLOTS, Misfire, Overlap, choice, parse_overlap, parse_retry
from rota.core.states import Condition
from rota.core.timing import triggers
from rota.core.timing.triggers import Cron, Every, Once, Timing
from rota.core.timing.windows import parse_window

T = TypeVar("T")

TRIGGER_FIELDS = {
    "cron": ("cron_expression",),
    "interval": ("interval_seconds", "interval", "anchor"),
    "once": ("run_at",),
}
TRIGGER_OF = {field: kind for kind, fields in TRIGGER_FIELDS.items() for field in fields}
TIMING_FIELDS = frozenset(
    {
        *("schedule_type", "cron_expression", "interval_seconds", "interval", "anchor", "run_at", "timezone"),
        *("window_start", "window_end", "starts_at", "ends_at", "jitter_seconds"),
    }
)
FIXED_FIELDS = ("kind",)  # an edit cannot change them
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Defaults:
    """Default policies of a kind of work."""

    misfire: Misfire = Misfire.ONCE
    overlap: Overlap = Overlap.QUEUE_ONE


def parse_schedule(
    body: Mapping[str, Any],
    *,
    org_id: str,
    defaults: Mapping[str, Defaults],
    now: datetime,
    source: str,
    by: str | None,
) -> Schedule:
    """Return a new schedule from its flat form, without a route, which its kind chooses. Raises Invalid."""
    schedule_id = new_id()
    form = Form(body, FIELDS)
    kind = form.take("kind", lambda value, field: one_of(value, field, sorted(defaults)), "task") or "task"
    rules = defaults.get(kind, Defaults())
    timing = form.timing(now)
    target = form.need("target", lambda value, field: text(value, field, 500, required=True))
    optional = form.read(READERS).get
    schedule = Schedule(
        id=schedule_id,
        org_id=org_id,
        owner_id=by,
        name=optional("name") or f"{kind}-{schedule_id[-8:].lower()}",
        description=optional("description") or "",
        tags=optional("tags") or [],
        kind=kind,
        target=target or "",
        route="",
        input=optional("input"),
        timing=timing or Timing(Once(now)),
        max_runs=optional("max_runs"),
        misfire=optional("misfire") or rules.misfire,
        catch_up_limit=optional("catch_up_limit") or CATCH_UP_LIMIT_SLOTS,
        overlap=optional("overlap") or rules.overlap,
        start_deadline=optional("start_deadline_seconds"),
        timeout=optional("timeout_seconds"),
        retry=optional("retry"),
        priority=optional("priority") or 0,
        queue=optional("queue") or "default",
        grant_id=optional("grant_id"),
        enabled=optional("enabled") is not False,
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
    if timing is not None:
        form.check(lambda: triggers.check_timing(timing, now))
    form.done()
    return schedule


def parse_patch(
    old: Schedule, changes: Mapping[str, Any], *, defaults: Mapping[str, Defaults], now: datetime
) -> Schedule:
    """Return an edited schedule: fields not in `changes` stay, and all are validated again. Raises Invalid."""
    check_fixed(old, changes)
    body = without_old_name(old, {**flat(old), **changes})
    if TIMING_FIELDS & set(changes):
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
        other = {key: value for key, value in body.items() if key not in TIMING_FIELDS}
        probe = {**other, "schedule_type": "interval", "interval_seconds": 60}
        fresh = parse_schedule(probe, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None)
        timing = old.timing
        if fresh.enabled and not old.enabled:
            triggers.check_timing(timing, now)
    return same_schedule(old, fresh, timing, named="name" in body)


def parse_put(old: Schedule, body: Mapping[str, Any], *, defaults: Mapping[str, Defaults], now: datetime) -> Schedule:
    """Return a replaced schedule: fields not in `body` get defaults, except name, kind and, if the interval stays,
    the anchor, so that the replacement is idempotent. Raises Invalid."""
    check_fixed(old, body)
    named = without_old_name(old, {**body, "kind": old.kind})
    fresh = parse_schedule(named, org_id=old.org_id, defaults=defaults, now=now, source=old.source, by=None)
    before, after = old.timing.trigger, fresh.timing.trigger
    same = isinstance(before, Every) and isinstance(after, Every) and before.span == after.span
    timing = replace(fresh.timing, trigger=before) if same and body.get("anchor") is None else fresh.timing
    return same_schedule(old, fresh, timing, named="name" in named)


def without_old_name(old: Schedule, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an edit without an unchanged name, which may be older than the rules for names."""
    return {field: value for field, value in body.items() if field != "name" or value not in (None, old.name)}


def check_fixed(old: Schedule, body: Mapping[str, Any]) -> None:
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


def parse_timing(body: Mapping[str, Any], *, now: datetime, extra: frozenset[str] = frozenset()) -> Timing:
    """Parse only the timing fields, to preview a schedule that is not saved. Raises Invalid."""
    form = Form(body, TIMING_FIELDS | extra)
    timing = form.timing(now)
    if timing is not None:
        form.check(lambda: triggers.check_timing(timing, now))
    form.done()
    return timing or Timing(Once(now))


def flat(schedule: Schedule) -> dict[str, Any]:
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


def flat_timing(timing: Timing) -> dict[str, Any]:
    window = timing.window
    fields: dict[str, Any] = {
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


class Form:
    """Reads the fields of a request body and collects their errors."""

    def __init__(self, body: Mapping[str, Any], known: frozenset[str]) -> None:
        self.body = body
        self.errors = [Invalid(str(field), body[field], "is an unknown field") for field in body if field not in known]

    def take(self, field: str, read: Callable[[Any, str], T], default: T | None) -> T | None:
        """Return the value of a field, or the default if it is absent or null."""
        value = self.body.get(field)
        if value is None:
            return default
        try:
            return read(value, field)
        except Invalid as error:
            self.errors.extend(error.all)
            return default

    def read(self, readers: "Mapping[str, Callable[[Any, str], Any]]") -> dict[str, Any]:
        """Return the fields that are present and not null."""
        body = self.body
        return {
            field: self.take(field, readers[field], None)
            for field in body
            if field in readers and body[field] is not None
        }

    def need(self, field: str, read: Callable[[Any, str], T]) -> T | None:
        """Return the value of a required field."""
        if self.body.get(field) is None:
            self.errors.append(Invalid(field, None, "is missing"))
        return self.take(field, read, None)

    def check(self, step: Callable[[], None]) -> None:
        """Run a check, unless there are errors already."""
        if not self.errors:
            step()

    def timing(self, now: datetime) -> Timing | None:
        """Return the timing; None if one of its fields is wrong."""
        before = len(self.errors)
        types = {TRIGGER_OF[field] for field in self.body if field in TRIGGER_OF and self.body[field] is not None}
        kind = self.take("schedule_type", lambda value, field: one_of(value, field, list(TRIGGER_FIELDS)), None)
        if kind is None and len(types) == 1:
            kind = next(iter(types))
        for other in sorted(types - {kind}):
            field = next(field for field in TRIGGER_FIELDS[other] if self.body.get(field) is not None)
            self.errors.append(Invalid(field, self.body[field], f"does not belong to schedule_type {kind}"))
        trigger: Cron | Every | Once | None = None
        if kind is None and not types and self.body.get("schedule_type") is None:
            self.errors.append(Invalid("schedule_type", None, "is missing: cron, interval or once"))
        elif kind == "cron":
            trigger = self.need("cron_expression", lambda value, _: triggers.parse_cron(value))
        elif kind == "interval":
            named = "interval" if self.body.get("interval") is not None else "interval_seconds"
            every = self.need(named, triggers.parse_interval)
            anchor = self.take("anchor", triggers.parse_instant, None)
            # slots on whole seconds are easier to read
            trigger = Every(every, anchor or now.replace(microsecond=0)) if every else None
        elif kind == "once":
            at = self.need("run_at", triggers.parse_instant)
            trigger = Once(at) if at else None
        optional = self.read(BOUNDS).get
        window = None
        try:
            window = parse_window(self.body.get("window_start"), self.body.get("window_end"))
        except Invalid as error:
            self.errors.extend(error.all)
        if len(self.errors) > before or trigger is None:
            return None
        zone, jitter = optional("timezone") or "UTC", optional("jitter_seconds") or timedelta(0)
        return Timing(trigger, zone, window, optional("starts_at"), optional("ends_at"), jitter)

    def done(self) -> None:
        """Raise Invalid if there are errors."""
        if self.errors:
            raise together(self.errors)


def wrong_names(schema: Mapping[str, Any], members: Mapping[str, Any], field: str, of: str) -> list[Invalid]:
    """Return errors for members of an object that a JSON Schema requires or does not allow."""
    wrong = [
        Invalid(f"{field}.{name}", None, "is missing") for name in schema.get("required", ()) if name not in members
    ]
    if schema.get("additionalProperties") is False:
        unknown = [name for name in members if name not in schema.get("properties", {})]
        wrong += [Invalid(f"{field}.{name}", members[name], f"is not a {of}") for name in unknown]
    return wrong


def name(value: Any, field: str) -> str:
    """Return a name of a resource, usable in a path: a label without `/` that does not look like an id."""
    text_value = label(value, field)
    if "/" in text_value:
        raise Invalid(field, value, "has a `/`, which separates the parts of a path; use another character")
    if ULID.fullmatch(text_value.upper()):
        raise Invalid(field, value, "looks like an id (a ULID); choose another name")
    return text_value


def label(value: Any, field: str) -> str:
    """Return a short printable text, such as a tag or a key."""
    text_value = text(value, field, NAME_LIMIT, required=True)
    if not text_value.isprintable() or text_value != text_value.strip():
        raise Invalid(field, value, "has control characters or blanks at its ends; use printable text")
    return text_value


def text(value: Any, field: str, limit: int, required: bool = False) -> str:
    if not isinstance(value, str):
        raise Invalid(field, value, "is not text")
    if len(value) > limit:
        raise Invalid(field, value, f"is {len(value)} characters long; at most {limit} are allowed")
    if required and not value.strip():
        raise Invalid(field, value, "is empty")
    if "\0" in value or (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)):
        raise Invalid(field, value, "has characters that cannot be stored (NUL or half a surrogate pair)")
    return value


def tags(value: Any, field: str) -> list[str]:
    if not isinstance(value, list) or len(value) > 50:
        raise Invalid(field, value, "is not a list of at most 50 texts")
    return [label(tag, field) for tag in value]


def traceparent(value: str | None) -> str | None:
    """Return a W3C `traceparent` header; None for an invalid one, as the standard demands."""
    match = TRACEPARENT.fullmatch(value or "")
    return value if match and match[1] != "0" * 32 and match[2] != "0" * 16 else None


def ulid(value: Any, field: str) -> str:
    if not isinstance(value, str) or not ULID.fullmatch(value):
        raise Invalid(field, value, "is not a ULID: 26 digits and capital letters without I, L, O and U")
    return value


def payload(value: Any, field: str) -> Any:
    """Return a JSON value of at most `PAYLOAD_LIMIT` bytes. Raises Invalid."""
    try:
        size = len(orjson.dumps(value))
    except (TypeError, ValueError) as error:
        raise Invalid(field, type(value).__name__, f"cannot be written as JSON: {error}") from error
    if size > PAYLOAD_LIMIT:
        raise Invalid(field, f"{size} bytes", f"is too large; at most {PAYLOAD_LIMIT} bytes of JSON are allowed")
    return value


def whole(value: Any, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(field, value, f"is not a whole number from {low} to {high}")
    return value


def span(value: Any, field: str) -> timedelta:
    return timedelta(seconds=whole(value, field, 1, 366 * 86_400))


def jitter_span(value: Any, field: str) -> timedelta:
    top = JITTER_LIMIT.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= top:
        raise Invalid(field, value, f"is not a number of seconds from 0 to {top:g}")
    return timedelta(seconds=value)


def flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid(field, value, "is neither true nor false")
    return value


def one_of(value: Any, field: str, known: list[str]) -> str:
    if value not in known:
        raise Invalid(field, value, f"is not one of {', '.join(known)}")
    return str(value)


BOUNDS: dict[str, Callable[[Any, str], Any]] = {  # of the timing fields other than trigger and window
    "timezone": triggers.parse_zone,
    "starts_at": triggers.parse_instant,
    "ends_at": triggers.parse_instant,
    "jitter_seconds": jitter_span,
}
READERS: dict[str, Callable[[Any, str], Any]] = {  # of the fields other than kind, target and timing
    "name": name,
    "description": lambda value, field: text(value, field, 2000),
    "tags": tags,
    "input": payload,
    "max_runs": lambda value, field: whole(value, field, 1, 1_000_000_000),
    "misfire": lambda value, field: choice(Misfire, value, field),
    "catch_up_limit": lambda value, field: whole(value, field, 1, FIRE_BATCH_SLOTS),
    "overlap": lambda value, _: parse_overlap(value),
    "start_deadline_seconds": span,
    "timeout_seconds": span,
    "retry": lambda value, _: parse_retry(value),
    "priority": lambda value, field: whole(value, field, -100, 100),
    "queue": name,
    "grant_id": lambda value, field: text(value, field, 26),
    "enabled": flag,
}
FIELDS = TIMING_FIELDS | {"kind", "target", *READERS}
