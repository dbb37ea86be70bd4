"""The rules of workflows: what each phase may do, where a new attempt starts, when a consumer wakes. Pure.

A run's phase says how far it has come and only moves forward; its status stands in the ledger beside it, and neither
changes the other. `mutation_outcome` is the boundary: from the moment it is known, work only goes forward.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from rota.core.errors import Invalid
from rota.core.policy import WAKE_MAX, WAKE_MIN, Backoff, Retry
from rota.core.states import PHASE_MOVES, Phase, Status
from rota.core.timing.triggers import parse_instant

STALE_AFTER = timedelta(days=7)  # an input that is not done by then is worth a look
RECONCILE = Retry(5, 10_000, Backoff.EXPONENTIAL, 600_000)  # how often a service is asked what became of an effect


class HandlerKind(StrEnum):
    """What a handler is."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Op(StrEnum):
    """What a handler may ask of its host."""

    READ = "read"  # from the world outside
    MUTATE = "mutate"  # change the world outside
    PEEK = "peek"  # events that wait, or some by their ids
    PUBLISH = "publish"


ALLOWED: dict[Phase, frozenset[Op]] = {
    Phase.EXECUTING: frozenset({Op.READ, Op.PUBLISH}),
    Phase.PREPARING: frozenset({Op.READ, Op.PEEK}),
    Phase.MUTATING: frozenset({Op.MUTATE}),  # one at the most, and nothing after it
    Phase.EMITTING: frozenset({Op.PUBLISH}),
}


class Outcome(StrEnum):
    """What became of a run's mutation, once that is known."""

    APPLIED = "applied"
    NONE = "none"  # it made none
    SKIPPED = "skipped"  # a person decided to go on without it
    FAILED = "failed"  # it surely did not happen


GOES_ON = frozenset({Outcome.APPLIED, Outcome.NONE, Outcome.SKIPPED})


class EffectStatus(StrEnum):
    """A mutation in its ledger."""

    IN_FLIGHT = "in_flight"  # written down before it was tried
    APPLIED = "applied"
    FAILED = "failed"
    NEEDS_RECONCILE = "needs_reconcile"  # no answer; the service will be asked
    INDETERMINATE = "indeterminate"  # no answer, and nobody but a person can find out


EFFECT_MOVES: frozenset[tuple[EffectStatus, EffectStatus]] = frozenset(
    {
        (EffectStatus.IN_FLIGHT, EffectStatus.APPLIED),
        (EffectStatus.IN_FLIGHT, EffectStatus.FAILED),
        (EffectStatus.IN_FLIGHT, EffectStatus.NEEDS_RECONCILE),
        (EffectStatus.IN_FLIGHT, EffectStatus.INDETERMINATE),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.NEEDS_RECONCILE),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.APPLIED),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.FAILED),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.INDETERMINATE),
        (EffectStatus.INDETERMINATE, EffectStatus.APPLIED),  # from here on only a person moves it
        (EffectStatus.INDETERMINATE, EffectStatus.FAILED),
        (EffectStatus.INDETERMINATE, EffectStatus.NEEDS_RECONCILE),
    }
)
OPEN_EFFECTS = (EffectStatus.IN_FLIGHT, EffectStatus.NEEDS_RECONCILE, EffectStatus.INDETERMINATE)


class EventStatus(StrEnum):
    PENDING = "pending"
    RESERVED = "reserved"
    CONSUMED = "consumed"
    SKIPPED = "skipped"


class Resolution(StrEnum):
    """What a person says about a run that waits for one."""

    APPROVE = "approve"
    REJECT = "reject"
    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    SKIP = "skip"
    TRY_AGAIN = "try_again"


class VersionOutcome(StrEnum):
    """What became of a version of a script. Only what is accepted is ever run."""

    ASKED = "asked"  # of a repairer, which has not answered yet
    WAITING = "waiting"  # for a person to accept it
    ACCEPTED = "accepted"
    REJECTED = "rejected"  # by a person
    REFUSED = "refused"  # by the host: it is no version that could be run
    SUPERSEDED = "superseded"  # the run that it would repair does not wait any more


REPAIRS_PER_FAILURE = 2  # tried before an operator is asked: the third failure in a row needs a decision
REPAIR_HOW = ("auto", "ask", "off")


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins, and whether it keeps what the one before it had: reservations, results, its effect."""

    phase: Phase
    keeps: bool = False


def start_of(
    kind: HandlerKind, phase: Phase | None = None, outcome: Outcome | None = None, effect: EffectStatus | None = None
) -> Start:
    """Where to begin, given how far the attempt before came: fresh before the mutation boundary, forward after it. An
    effect of which nobody knows is not tried again: the attempt goes on asking about it."""
    fresh = Start(Phase.EXECUTING if kind is HandlerKind.PRODUCER else Phase.PREPARING)
    if kind is HandlerKind.PRODUCER or phase is None or outcome is Outcome.FAILED:
        return fresh
    if outcome in GOES_ON:
        return Start(Phase.EMITTING, keeps=True)
    return Start(Phase.MUTATING, keeps=True) if effect in OPEN_EFFECTS else fresh


def may_move(before: Phase, after: Phase) -> bool:
    """Whether a phase can be reached from another, step by step: two of them may be written down at once."""
    if (before, after) in PHASE_MOVES:
        return True
    return any(may_move(between, after) for start, between in PHASE_MOVES if start is before)


def legal(phase: Phase, status: Status, reason: str | None) -> bool:
    """Whether a run may be in this phase and this status: the pairs that can be found in the database."""
    if status is Status.SUCCESS:
        return phase is Phase.COMMITTED
    if (status, reason) == (Status.PAUSED, "reconciliation"):
        return phase in (Phase.MUTATING, Phase.MUTATED)  # mutated when a person has just resolved it
    return phase is not Phase.COMMITTED


def clamp_wake(
    value: object, now: datetime, soonest: timedelta = WAKE_MIN, latest: timedelta = WAKE_MAX
) -> tuple[datetime | None, str | None]:
    """When a consumer wakes that asked for this instant, within the limits, and what was wrong with it, if anything."""
    if value is None:
        return None, None
    low, high = now + soonest, now + latest
    try:
        wanted = parse_instant(value, "wake_at")
    except Invalid as error:
        return low, error.message
    return min(max(wanted, low), high), None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A consumer that could run now: what it knows of time, and its oldest pending event (ids sort by age)."""

    name: str
    wake_at: datetime | None
    oldest: str | None


def first_of(candidates: Iterable[Candidate]) -> str | None:
    """Which consumer runs first: the one whose oldest event waits longest; those without events by their wake time."""
    ordered = sorted(
        candidates, key=lambda one: (one.oldest is None, one.oldest or "", str(one.wake_at or ""), one.name)
    )
    return ordered[0].name if ordered else None


def widened(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """What a repair may not do, if it does it: change what a workflow is to others, or reach further than it did."""
    for word in ("name", "topics", "isolate", "repair"):
        if old.get(word) != new.get(word):
            return f"it changes {word}: {old.get(word)!r} became {new.get(word)!r}"
    before, after = ({one["name"]: one for one in each["handlers"]} for each in (old, new))
    if before.keys() != after.keys():
        return f"it changes the handlers: {', '.join(before)} became {', '.join(after)}"
    for name, one in before.items():
        for word in ("type", "steps", "subscribe", "publishes", "schedule"):
            if one[word] != after[name][word]:
                return f"it changes {word} of {name}: {one[word]!r} became {after[name][word]!r}"
    more = [call for call in new["connectors"] if not may_call(call, old["connectors"])]
    return f"it reaches further: {', '.join(more)}" if more else None


def may_call(call: str, connectors: Iterable[str]) -> bool:
    """Whether a connector or one of its methods is among those that were declared: `sheets`, or `sheets.append`."""
    return call in connectors or call.partition(".")[0] in connectors


def check_prepared(found: Mapping[str, Any], subscribe: Iterable[str]) -> dict[str, list[str]]:
    """The reservations that `prepare` asked for, by topic, each event once."""
    given = found.get("reservations")
    if not isinstance(given, Mapping):
        raise Invalid("reservations", given, "is not an object of lists of event ids, by topic")
    wanted: dict[str, list[str]] = {}
    for topic, ids in given.items():
        if topic not in subscribe:
            raise Invalid("reservations", topic, "is not a topic that this consumer subscribes to")
        if not isinstance(ids, list | tuple) or not all(isinstance(one, str) for one in ids):
            raise Invalid(f"reservations.{topic}", ids, "is not a list of event ids")
        if ids:
            wanted[topic] = list(dict.fromkeys(ids))
    return wanted
