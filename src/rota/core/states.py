"""States of jobs and the moves between them, statuses of runs, verdicts of slots. SQL and tests derive from these."""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """State of a job in the queue. A finished job leaves the queue; its runs stay."""

    LATER = "later"  # run_at is in the future
    BLOCKED = "blocked"  # another job with the same serial key goes first
    READY = "ready"  # can be claimed
    RUNNING = "running"  # leased by a worker
    RETRY = "retry"  # until run_at: its backoff, or the start that a rate reserved; or until a place is handed to it
    WAITING = "waiting"  # suspended by its own code, until run_at or until a signal, an approval or a child wakes it
    PARKED = "parked"  # until a person acts, an agent reports, or a worker that can run it starts


class Move(StrEnum):
    """Why a job is inserted or changes state."""

    ENQUEUE = "enqueue"  # inserted, can be claimed at once
    DELAY = "delay"  # inserted, run_at is in the future
    LEASE = "lease"  # inserted under the lease of the worker whose process fires it
    DUE = "due"  # run_at has passed
    WAIT = "wait"  # run_at has passed, but its serial key has a head; also when inserted
    PLACE = "place"  # a place of its key was handed to it
    PROMOTE = "promote"  # it is the new head of its serial key
    CLAIM = "claim"  # a worker leases it
    BACK_OFF = "back_off"  # the attempt failed and is retried later, or it may not start yet
    HAND_BACK = "hand_back"  # its worker stops, lost its lease, does not know the job, or has long runs on all places
    RESCUE = "rescue"  # its lease expired
    SUSPEND = "suspend"  # its code waits: the job leaves its worker, and the attempt goes on later
    WAKE = "wake"  # what it waited for happened
    PARK = "park"  # the attempt needs a person
    YIELD = "yield"  # it goes behind another job with the same serial key
    STRAND = "strand"  # no live worker can run it, or none has the version that began it
    RESUME = "resume"  # a person acted, or a worker that can run it started
    ADOPT = "adopt"  # an agent reconnected and still runs it


MOVES: dict[tuple[State | None, Move], State] = {  # None: the job is inserted
    (None, Move.ENQUEUE): State.READY,
    (None, Move.DELAY): State.LATER,
    (None, Move.WAIT): State.BLOCKED,
    (None, Move.LEASE): State.RUNNING,
    (State.LATER, Move.DUE): State.READY,
    (State.LATER, Move.WAIT): State.BLOCKED,
    (State.BLOCKED, Move.PROMOTE): State.READY,
    (State.READY, Move.CLAIM): State.RUNNING,
    (State.RUNNING, Move.BACK_OFF): State.RETRY,
    (State.RUNNING, Move.HAND_BACK): State.READY,
    (State.RUNNING, Move.RESCUE): State.READY,
    (State.RUNNING, Move.SUSPEND): State.WAITING,
    (State.RUNNING, Move.PARK): State.PARKED,
    (State.RUNNING, Move.YIELD): State.BLOCKED,
    (State.RETRY, Move.DUE): State.READY,
    (State.WAITING, Move.DUE): State.READY,
    (State.WAITING, Move.WAKE): State.READY,
    (State.RETRY, Move.PLACE): State.READY,
    (State.READY, Move.STRAND): State.PARKED,
    (State.RETRY, Move.STRAND): State.PARKED,
    (State.WAITING, Move.STRAND): State.PARKED,
    (State.PARKED, Move.RESUME): State.READY,
    (State.PARKED, Move.ADOPT): State.RUNNING,
}

STATE_AFTER = {move: state for (_, move), state in MOVES.items()}  # a move leads to one state, from wherever it starts

HEADS = (
    State.READY,
    State.RUNNING,
    State.RETRY,
    State.WAITING,
    State.PARKED,
)  # at most one job in these states per serial key


def states_before(move: Move) -> list[State]:
    """Return the states from which a move is allowed: the WHERE clause of its UPDATE. Empty for an insert."""
    return [state for state, allowed_move in MOVES if allowed_move is move and state is not None]


def state_after(move: Move) -> State:
    """Return the state that a move leads to: the SET clause of its UPDATE, or the value of an INSERT."""
    return STATE_AFTER[move]


class Status(StrEnum):
    """Status of a run, or of a slot that never ran."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CRASHED = "crashed"  # its worker died
    LOST = "lost"  # it ended after its worker had lost the lease; its result is not used
    CANCELED = "canceled"
    PAUSED = "paused"  # the attempt ended; another one is planned, or a person must act
    SKIPPED = "skipped"  # never started, with a reason
    MISSED = "missed"  # no scheduler was running
    COALESCED = "coalesced"  # the job of another slot stands for it


class Verdict(StrEnum):
    """Outcome of a slot. A slot whose job is pending, running or paused has no verdict."""

    RAN = "ran"
    SKIPPED = "skipped"
    MISSED = "missed"
    COALESCED = "coalesced"


STATUSES_THAT_RAN = frozenset(
    {Status.SUCCESS, Status.FAILED, Status.CRASHED, Status.LOST, Status.CANCELED, Status.PAUSED}
)


def verdict_of(status: Status) -> Verdict:
    """Return the verdict of a slot whose job left the queue; `status` is that of its last run."""
    return Verdict.RAN if status in STATUSES_THAT_RAN else Verdict(status.value)


class Condition(StrEnum):
    """Health of a schedule, set by the scheduler."""

    OK = "ok"
    BROKEN = "broken"  # it cannot be evaluated
    FINISHED = "finished"  # no slot is left


class WorkerState(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"  # it deregistered
    DEAD = "dead"  # its lease expired


class Phase(StrEnum):
    """Progress of a workflow run; a status change never alters it."""

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


def shown_status(run: Mapping[str, object]) -> str:
    """Return the status of a run for display: an attempt that failed for a transient reason is `retrying` while the
    next one is planned (`retry_at`), `retried` afterwards. The wire keeps `paused: transient`."""
    if run["status"] == Status.PAUSED and run.get("reason") == "transient":
        return "retrying" if run.get("retry_at") else "retried"
    return str(run["status"])
