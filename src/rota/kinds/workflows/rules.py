"""The rules of workflows: what each phase allows, where a new attempt starts, when a consumer wakes. Pure.

The phase of a run only moves forward; its status is in `runs`, and neither changes the other. `mutation_outcome` is the
mutation boundary: once it is known, no attempt repeats the steps before it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, get_args

from rota.core.effects import OPEN_EFFECTS, EffectStatus
from rota.core.errors import Invalid
from rota.core.model import serial_key_of_target
from rota.core.policy import WAKE_MAX, WAKE_MIN
from rota.core.states import PHASE_MOVES, Phase, Status
from rota.core.timing.triggers import parse_instant

WORKFLOW = "workflow"  # the kind
STALE_AFTER = timedelta(days=7)  # the age of an input that needs attention if it is not done


def serial_key_of(org_id: str, name: str) -> str:
    """Return the serial key of a workflow, which runs one handler at a time."""
    return serial_key_of_target(WORKFLOW, org_id, name)


class HandlerKind(StrEnum):
    """The type of a handler."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Op(StrEnum):
    """What a handler may request from its host."""

    READ = "read"  # a connector method that changes nothing
    MUTATE = "mutate"  # a connector method that changes something outside
    PEEK = "peek"  # pending events, or events by their ids
    PUBLISH = "publish"


ALLOWED: dict[Phase, frozenset[Op]] = {
    Phase.EXECUTING: frozenset({Op.READ, Op.PUBLISH}),
    Phase.PREPARING: frozenset({Op.READ, Op.PEEK}),
    Phase.MUTATING: frozenset({Op.MUTATE}),  # at most one, as the last call
    Phase.EMITTING: frozenset({Op.PUBLISH}),
}


class Outcome(StrEnum):
    """The known outcome of a run's mutation."""

    APPLIED = "applied"
    NONE = "none"  # the run made no mutation
    SKIPPED = "skipped"  # an operator decided to continue without it
    FAILED = "failed"  # it certainly did not happen


CONTINUES = frozenset({Outcome.APPLIED, Outcome.NONE, Outcome.SKIPPED})


class EventStatus(StrEnum):
    PENDING = "pending"
    RESERVED = "reserved"
    CONSUMED = "consumed"
    SKIPPED = "skipped"


class Resolution(StrEnum):
    """What an operator decides about a run that needs a decision."""

    APPROVE = "approve"
    REJECT = "reject"
    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    SKIP = "skip"
    TRY_AGAIN = "try_again"


class VersionOutcome(StrEnum):
    """The outcome of a version of a script. Only accepted versions run."""

    ASKED = "asked"  # a repairer is asked and has not answered yet
    WAITING = "waiting"  # for an operator to accept it
    ACCEPTED = "accepted"
    REJECTED = "rejected"  # by an operator
    REFUSED = "refused"  # by the host: it cannot run, or changes more than a repair may
    SUPERSEDED = "superseded"  # the workflow no longer waits for the run that it would repair


REPAIRS_PER_FAILURE = 2  # tried before an operator is asked: the third failure in a row needs a decision
RepairMode = Literal["auto", "ask", "off"]
REPAIR_MODES = get_args(RepairMode)


@dataclass(frozen=True, slots=True)
class Start:
    """The phase where an attempt begins, and whether it keeps reservations, results and mutation of the one before."""

    phase: Phase
    keeps: bool = False


def start_of(
    kind: HandlerKind, phase: Phase | None = None, outcome: Outcome | None = None, effect: EffectStatus | None = None
) -> Start:
    """Return where an attempt begins, from the end of the attempt before: fresh before the mutation boundary, after it
    with `next`. A mutation with an unknown outcome is not repeated: the attempt reconciles it."""
    fresh = Start(Phase.EXECUTING if kind is HandlerKind.PRODUCER else Phase.PREPARING)
    if kind is HandlerKind.PRODUCER or phase is None or outcome is Outcome.FAILED:
        return fresh
    if outcome in CONTINUES:
        return Start(Phase.EMITTING, keeps=True)
    return Start(Phase.MUTATING, keeps=True) if effect in OPEN_EFFECTS else fresh


def may_move(before: Phase, after: Phase) -> bool:
    """Return whether a phase can be reached from another in one or more moves: several may be written at once."""
    if (before, after) in PHASE_MOVES:
        return True
    return any(may_move(between, after) for start, between in PHASE_MOVES if start is before)


def legal(phase: Phase, status: Status, reason: str | None) -> bool:
    """Return whether a run can be in this phase and this status: the pairs that the database may contain."""
    if status is Status.SUCCESS:
        return phase is Phase.COMMITTED
    if (status, reason) == (Status.PAUSED, "reconciliation"):
        return phase in (Phase.MUTATING, Phase.MUTATED)  # mutated if an operator has just resolved it
    return phase is not Phase.COMMITTED


def clamp_wake(
    value: object, now: datetime, soonest: timedelta = WAKE_MIN, latest: timedelta = WAKE_MAX
) -> tuple[datetime | None, str | None]:
    """Return the wake-up time that a consumer asked for, within the limits; if it is invalid, the earliest time and an
    error text."""
    if value is None:
        return None, None
    earliest_at, latest_at = now + soonest, now + latest
    try:
        wake_at = parse_instant(value, "wake_at")
    except Invalid as error:
        return earliest_at, error.message
    return min(max(wake_at, earliest_at), latest_at), None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A consumer that needs to run now: its wake-up time, and its oldest pending event (ids sort by age)."""

    name: str
    wake_at: datetime | None
    oldest: str | None


def first_of(candidates: Iterable[Candidate]) -> str | None:
    """Return the consumer that runs first: the one with the oldest pending event; without events, by wake-up time."""
    ordered = sorted(
        candidates, key=lambda row: (row.oldest is None, row.oldest or "", str(row.wake_at or ""), row.name)
    )
    return ordered[0].name if ordered else None


def forbidden_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return what a repair changes that it may not: the declaration, or connectors that the version before had not."""
    for field in ("name", "topics", "isolate", "repair"):
        if old.get(field) != new.get(field):
            return f"it changes {field}: {old.get(field)!r} became {new.get(field)!r}"
    before, after = ({handler["name"]: handler for handler in version["handlers"]} for version in (old, new))
    if before.keys() != after.keys():
        return f"it changes the handlers: {', '.join(before)} became {', '.join(after)}"
    for name, handler in before.items():
        for field in ("type", "steps", "subscribe", "publishes", "schedule"):
            if handler[field] != after[name][field]:
                return f"it changes {field} of {name}: {handler[field]!r} became {after[name][field]!r}"
    added = [call for call in new["connectors"] if not may_call(call, old["connectors"])]
    return f"it adds connectors: {', '.join(added)}" if added else None


def may_call(call: str, connectors: Iterable[str]) -> bool:
    """Return whether a connector or method is among the declared ones: `sheets`, or `sheets.append`."""
    return call in connectors or call.partition(".")[0] in connectors


def check_prepared(decision: Mapping[str, object], subscribe: Iterable[str]) -> dict[str, list[str]]:
    """Return the event ids that `prepare` reserves, by topic and without duplicates. Raises Invalid."""
    reservations = decision.get("reservations")
    if not isinstance(reservations, Mapping):
        raise Invalid("reservations", reservations, "is not an object of lists of event ids, by topic")
    wanted: dict[str, list[str]] = {}
    for topic, ids in reservations.items():
        if topic not in subscribe:
            raise Invalid("reservations", topic, "is not a topic that this consumer subscribes to")
        if not isinstance(ids, list | tuple) or not all(isinstance(event_id, str) for event_id in ids):
            raise Invalid(f"reservations.{topic}", ids, "is not a list of event ids")
        if ids:
            wanted[topic] = list(dict.fromkeys(ids))
    return wanted
