"""Alarms: their rules, what measurements breach them, and which alarm events fire, resolve or are sent. Pure.

A rule is written as `late > 5m`. What it measures is read elsewhere, as `Measurement`s of subjects (a schedule, a
queue, a host …); `decide` compares them with the alarm events that are open.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rota.core.errors import Invalid
from rota.core.flow import span_text
from rota.core.kinds import registered
from rota.core.timing.dst import zone_of
from rota.core.timing.triggers import parse_interval
from rota.core.timing.windows import Window, inside, parse_time_of_day, window_length

WHEN = re.compile(r"([a-z_.]{1,40})(?:\s*(<|>=|>|=)\s*(\S{1,40}))?")
COUNT = re.compile(r"[0-9]{1,4}")
PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9])?)%")
REASON = re.compile(r"[a-z_]{1,40}")
QUIET_MAX = timedelta(hours=23)
SHORTEN_AFTER_SUBJECTS = 20  # subjects that one message lists
ALARM_QUEUE = "alarms"


class EventState(StrEnum):
    """State of an alarm event. A rule has at most one event per subject that is not resolved."""

    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"  # a person takes care of it: it is not repeated
    RESOLVED = "resolved"


class Unit(StrEnum):
    """What a rule compares."""

    SPAN = "a span such as 5m"
    SPAN_OR_PERCENT = "a span such as 10s, or a part of the usual duration such as 50%"
    COUNT = "a number such as 3"
    PERCENT = "a percentage such as 10%"
    REASON = "a reason such as overlap"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class RuleType:
    """What a rule measures, on what, and its usual limit."""

    meaning: str
    unit: Unit
    sign: str
    limit: str | None
    scopes: tuple[str, ...]
    whole: bool = False  # each evaluation measures every subject that breaches it: the others are resolved
    local: bool = False  # measured on each machine of the installation


WORK = ("schedule", "tag")  # or a kind of work, with the target of its schedules
RULES = {
    "late": RuleType("a slot started late, or has not started", Unit.SPAN, ">", "5m", WORK),
    "overran": RuleType("a run takes or took longer", Unit.SPAN, ">", "1h", WORK),
    "too_short": RuleType("a run succeeded sooner than usual", Unit.SPAN_OR_PERCENT, "<", "50%", WORK),
    "not_succeeded_since": RuleType("no run succeeded for so long", Unit.SPAN, ">", "26h", WORK, whole=True),
    "failed_in_a_row": RuleType("so many jobs failed one after the other", Unit.COUNT, ">=", "3", WORK),
    "missed": RuleType("a slot passed without a job", Unit.NOTHING, ">", None, WORK),
    "skipped": RuleType("a slot or job was skipped", Unit.REASON, "=", None, WORK),
    "paused": RuleType("a schedule was paused after failures in a row", Unit.NOTHING, ">", None, WORK, whole=True),
    "queue_age": RuleType("a job has been ready for so long", Unit.SPAN, ">", "10m", ("queue",), whole=True),
    "grant_expiring": RuleType("a grant ends within this time", Unit.SPAN, "<", "7d", (), whole=True),
    "budget_low": RuleType("less of a grant's budget is left", Unit.PERCENT, "<", "20%", (), whole=True),
    "no_worker": RuleType("no live worker runs jobs that have waited so long", Unit.SPAN, ">", "2m", (), whole=True),
    "host_offline": RuleType("the agent of a host is silent", Unit.SPAN, ">", "5m", ("host",), whole=True),
    "disk_low": RuleType("less of the data directory's disk is free", Unit.PERCENT, "<", "10%", (), True, True),
    "clock_skew": RuleType("a machine's clock differs from the database's", Unit.SPAN, ">", "2s", (), True, True),
}
RUN_EVENTS = {  # the rule of a run webhook: statuses of the last attempt of a job
    "run.succeeded": ("success",),
    "run.failed": ("failed", "crashed"),
    "run.ended": ("success", "failed", "crashed", "canceled", "skipped"),
}
INSTALLATION_RULES = frozenset({"disk_low", "clock_skew", "no_worker"})  # for org `default` alone


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule. `limit` is in seconds, a number, or a percentage from 0 to 100."""

    name: str
    sign: str = ">"
    limit: float = 0
    is_percent: bool = False
    reason: str | None = None

    @property
    def type(self) -> RuleType | None:
        """What it measures; None for the rule of a run webhook."""
        return RULES.get(self.name)

    @property
    def span(self) -> timedelta:
        return timedelta(seconds=self.limit)

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.name} = {self.reason}"
        kind = self.type
        if kind is None or kind.limit is None:
            return self.name
        number = f"{self.limit:g}%" if self.is_percent else f"{self.limit:g}"
        is_span = kind.unit in (Unit.SPAN, Unit.SPAN_OR_PERCENT) and not self.is_percent
        return f"{self.name} {self.sign} {span_text(self.span) if is_span else number}"

    def breached_by(self, value: float) -> bool:
        match self.sign:
            case "<":
                return value < self.limit
            case ">=":
                return value >= self.limit
            case _:
                return value > self.limit


def parse_when(value: object, field: str = "when") -> Rule:
    """Parse a rule such as `late > 5m`, `skipped = overlap`, `missed` or `run.failed`. Raises Invalid."""
    match = WHEN.fullmatch(value.strip()) if isinstance(value, str) else None
    known = (*RULES, *RUN_EVENTS)
    if match is None or match[1] not in known:
        raise Invalid(field, value, f"is not a rule such as late > 5m; the rules are {', '.join(known)}")
    name, sign, text = match.groups()
    kind = RULES.get(name)
    if kind is None or kind.unit is Unit.NOTHING:
        if text is not None:
            raise Invalid(field, value, f"has a limit, but {name} has none")
        return Rule(name)
    if text is None:
        return Rule(name) if kind.limit is None else with_limit(name, kind, kind.limit, field)
    if sign != kind.sign:
        raise Invalid(field, value, f"compares with {sign}; {name} needs {kind.sign} and {kind.unit.value}")
    return with_limit(name, kind, text, field)


def with_limit(name: str, kind: RuleType, text: str, field: str) -> Rule:
    """Return a rule with the limit that a text states. Raises Invalid."""
    percent = PERCENT.fullmatch(text)
    if percent and kind.unit in (Unit.PERCENT, Unit.SPAN_OR_PERCENT) and 0 < float(percent[1]) <= 100:
        return Rule(name, kind.sign, float(percent[1]), is_percent=True)
    if kind.unit is Unit.COUNT and COUNT.fullmatch(text) and int(text) >= 1:
        return Rule(name, kind.sign, int(text))
    if kind.unit is Unit.REASON and REASON.fullmatch(text):
        return Rule(name, ">", 0, reason=text)
    if kind.unit in (Unit.SPAN, Unit.SPAN_OR_PERCENT):
        try:
            return Rule(name, kind.sign, parse_interval(text, field).total_seconds())
        except Invalid:
            pass
    raise Invalid(field, text, f"is no limit of {name}, which is {kind.unit.value}")


def parse_scope(value: object, rule: Rule, field: str = "on") -> tuple[str, str] | None:
    """Parse what a rule watches: `schedule:NAME`, `tag:NAME`, `KIND:TARGET` (the schedules of a target), `queue:NAME`
    or `host:NAME`; None is all of the org. Raises Invalid."""
    if value is None:
        return None
    scopes = rule.type.scopes if rule.type is not None else WORK
    kinds = tuple(registered()) if scopes is WORK else ()
    scope, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if scope not in (*scopes, *kinds) or not name or len(name) > 200:
        if not scopes:
            raise Invalid(field, value, f"cannot be set: {rule.name} watches the whole org or installation")
        raise Invalid(field, value, f"is not one of {', '.join(f'{known}:NAME' for known in (*scopes, *kinds))}")
    return scope, name


def parse_quiet(value: object, field: str = "quiet") -> Window:
    """Parse quiet hours such as `22:00-07:00`, local times. Raises Invalid if they leave less than an hour a day."""
    start, dash, end = value.partition("-") if isinstance(value, str) else ("", "", "")
    if not dash:
        raise Invalid(field, value, "is not a span of local times such as 22:00-07:00")
    window = Window(parse_time_of_day(start.strip(), field), parse_time_of_day(end.strip(), field))
    if window.start == window.end or window_length(window) > QUIET_MAX:
        raise Invalid(field, value, "covers the whole day: nothing would be sent; leave at least an hour")
    return window


def is_quiet(quiet: str | None, zone: str, now: datetime) -> bool:
    """Whether messages wait for the end of the quiet hours."""
    return quiet is not None and inside(parse_quiet(quiet), zone_of(zone), now)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a subject. `at` orders measurements of one subject: an older one than that of the subject's
    last event changes nothing."""

    subject: str  # key, such as `schedule:ID`
    name: str
    value: float
    text: str  # what happened, as the end of a sentence that begins with the name
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The newest alarm event of a rule about a subject."""

    id: str
    state: EventState
    measured_at: datetime | None

    @property
    def is_open(self) -> bool:
        return self.state is not EventState.RESOLVED


@dataclass(frozen=True, slots=True)
class Fire:
    """A new alarm event."""

    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Update:
    """Newer words for an open alarm event."""

    event_id: str
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Resolve:
    """The end of an alarm event."""

    event_id: str
    text: str


Change = Fire | Update | Resolve


def decide(
    rule: Rule, measured: Sequence[Measurement], last: Mapping[str, LastEvent], gone: Sequence[str] = ()
) -> list[Change]:
    """Return what follows from measurements, with the newest event of each subject. `gone` are open subjects that
    are deleted, paused or disabled."""
    changes: list[Change] = []
    breaching: set[str] = set()
    for subject, group in by_subject(measured).items():
        event = last.get(subject)
        breaches = [measurement for measurement in group if rule.breached_by(measurement.value)]
        if breaches:
            breaching.add(subject)
        if event is None or not event.is_open:
            if breaches and (event is None or is_newer(breaches[-1], event)):
                changes.append(Fire(breaches[-1]))
        elif is_newer(group[-1], event):
            if group[-1] not in breaches:
                changes.append(Resolve(event.id, group[-1].text))
            elif group[-1].at is not None:
                changes.append(Update(event.id, group[-1]))
    ended = {change.event_id for change in changes if isinstance(change, Resolve)}
    for subject, event in last.items():
        if not event.is_open or event.id in ended:
            continue
        if subject in gone:
            changes.append(Resolve(event.id, "is deleted, paused or disabled"))
        elif rule.type is not None and rule.type.whole and subject not in breaching:
            changes.append(Resolve(event.id, "is no longer measured beyond the limit"))
    return changes


def is_newer(measurement: Measurement, event: LastEvent) -> bool:
    return measurement.at is None or event.measured_at is None or measurement.at > event.measured_at


def by_subject(measured: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Return measurements by subject, oldest first."""
    groups: dict[str, list[Measurement]] = {}
    for measurement in sorted(measured, key=lambda item: item.at.timestamp() if item.at else 0.0):
        groups.setdefault(measurement.subject, []).append(measurement)
    return groups


def subject_line(alarm: str, state: str, names: Sequence[str]) -> str:
    """Return the subject of a message about alarm events."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"[{state}] {alarm}: {names[0]}{others}"


def body_text(lines: Sequence[str], link: str | None, page: str | None = None) -> str:
    """Return the text of a message: a line per subject, and where to look: the dashboard, a page of the handbook."""
    more = len(lines) - SHORTEN_AFTER_SUBJECTS
    shown = [*lines[:SHORTEN_AFTER_SUBJECTS], *([f"and {more} more"] if more > 0 else [])]
    places = [*([link] if link else []), *([f"What to do: {page}"] if page else [])]
    return "\n".join([*shown, *(["", *places] if places else [])])
