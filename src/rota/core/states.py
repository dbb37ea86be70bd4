"""States of jobs and the moves between them; what a run can end as. SQL, docs and tests derive from these tables."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """A job in the queue. A finished job leaves the queue for the ledger."""

    LATER = "later"  # run_at has not come
    BLOCKED = "blocked"  # another job of its serial key is the head
    READY = "ready"  # claimable
    RUNNING = "running"  # a worker holds it, by fence
    RETRY = "retry"  # backing off until run_at
    PARKED = "parked"  # needs a person


class Move(StrEnum):
    """Why a job changes state."""

    DUE = "due"  # its moment has come
    WAIT = "wait"  # its moment has come, but its serial key has a head
    PROMOTE = "promote"  # it is the new head of its serial key
    CLAIM = "claim"  # a worker took it
    BACK_OFF = "back_off"  # the attempt failed and another is planned
    HAND_BACK = "hand_back"  # its worker is stopping, or took more than it knows of
    RESCUE = "rescue"  # its worker is dead
    PARK = "park"  # the attempt needs a person
    YIELD = "yield"  # another of its serial key goes first
    STRAND = "strand"  # no live worker can run it
    RESUME = "resume"  # a person acted, or a worker that can run it came up
    ADOPT = "adopt"  # an agent that was lost came back, and had it in hand all the while


MOVES: dict[tuple[State, Move], State] = {
    (State.LATER, Move.DUE): State.READY,
    (State.LATER, Move.WAIT): State.BLOCKED,
    (State.BLOCKED, Move.PROMOTE): State.READY,
    (State.READY, Move.CLAIM): State.RUNNING,
    (State.RUNNING, Move.BACK_OFF): State.RETRY,
    (State.RUNNING, Move.HAND_BACK): State.READY,
    (State.RUNNING, Move.RESCUE): State.READY,
    (State.RUNNING, Move.PARK): State.PARKED,
    (State.RUNNING, Move.YIELD): State.BLOCKED,
    (State.RETRY, Move.DUE): State.READY,
    (State.READY, Move.STRAND): State.PARKED,
    (State.PARKED, Move.RESUME): State.READY,
    (State.PARKED, Move.ADOPT): State.RUNNING,
}

HEADS = (State.READY, State.RUNNING, State.RETRY, State.PARKED)  # at most one of these per serial key


def states_before(move: Move) -> list[State]:
    """Where a move may start: the WHERE clause of its UPDATE."""
    return [before for before, how in MOVES if how is move]


def state_after(move: Move) -> State:
    """Where a move leads."""
    (after,) = {after for (_, how), after in MOVES.items() if how is move}
    return after


class Status(StrEnum):
    """What a run, or a slot that never ran, is or ended as."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CRASHED = "crashed"  # its worker died under it
    LOST = "lost"  # it ended after its worker had lost the lease: its result counts for nothing
    CANCELED = "canceled"
    PAUSED = "paused"  # ended for now; another attempt is planned, or a person must act
    SKIPPED = "skipped"  # never started, with a reason
    MISSED = "missed"  # nobody was up
    COALESCED = "coalesced"  # another slot's job did its work


class Verdict(StrEnum):
    """What became of a slot. A slot whose job is still pending, running or paused has none."""

    RAN = "ran"
    SKIPPED = "skipped"
    MISSED = "missed"
    COALESCED = "coalesced"


REASONS: dict[Status, frozenset[str]] = {
    Status.FAILED: frozenset({"logic", "internal", "timeout", "budget", "transient", "quarantined"}),
    Status.PAUSED: frozenset({"transient", "approval", "reconciliation"}),
    Status.SKIPPED: frozenset(
        {
            *("overlap", "window", "disabled", "paused", "frozen", "deadline", "operator", "superseded", "busy"),
            *("budget", "grant_not_found", "grant_revoked", "grant_expired", "grant_scope", "scheduler_failed"),
            *("upstream", "no_shell"),
        }
    ),
    Status.MISSED: frozenset({"limit"}),
}

RAN = frozenset({Status.SUCCESS, Status.FAILED, Status.CRASHED, Status.LOST, Status.CANCELED, Status.PAUSED})


def verdict_of(status: Status) -> Verdict:
    """The verdict of a slot whose job left the queue with this last run."""
    return Verdict.RAN if status in RAN else Verdict(status.value)


class Condition(StrEnum):
    """What the system found about a schedule, beside what its owner wants of it."""

    OK = "ok"
    BROKEN = "broken"  # it cannot be evaluated
    FINISHED = "finished"  # no slot is left


class WorkerState(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"  # said good-bye
    DEAD = "dead"  # its lease ran out


class Phase(StrEnum):
    """How far a workflow run has come; a status change never alters it."""

    PENDING = "pending"
    EXECUTING = "executing"  # producers
    PREPARING = "preparing"
    PREPARED = "prepared"
    MUTATING = "mutating"
    MUTATED = "mutated"
    EMITTING = "emitting"
    COMMITTED = "committed"


PHASE_MOVES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.PENDING, Phase.EXECUTING),
        (Phase.EXECUTING, Phase.COMMITTED),
        (Phase.PENDING, Phase.PREPARING),
        (Phase.PREPARING, Phase.PREPARED),
        (Phase.PREPARED, Phase.MUTATING),
        (Phase.PREPARED, Phase.EMITTING),  # nothing to mutate
        (Phase.MUTATING, Phase.MUTATED),
        (Phase.MUTATED, Phase.EMITTING),
        (Phase.EMITTING, Phase.COMMITTED),
    }
)


def shown_status(run: Mapping[str, Any]) -> str:
    """The status of a run as people read it: an attempt that failed for a passing reason is `retrying` while its next
    attempt is planned (`retry_at`), `retried` afterwards. The wire keeps `paused: transient`."""
    if run["status"] == Status.PAUSED and run.get("reason") == "transient":
        return "retrying" if run.get("retry_at") else "retried"
    return str(run["status"])
