"""Error classes. Each has a stable `code` that the API, the CLI and the recorded runs share.

RotaError
├── Invalid
│   ├── InvalidMany
│   └── TooMuchEffort
├── NotFound
├── Conflict
│   ├── StaleRevision
│   ├── SessionOver
│   └── KeyInUse
├── KeyMismatch
├── NotRunnable
├── Refused
├── Unavailable
│   └── DatabaseMisconfigured
├── DataRefused
├── BrokenStatement
├── DamagedFile
├── LeaseLost
└── WorkError
    ├── TransientError
    │   ├── RetryAfter
    │   └── ObjectStoreUnavailable
    │       └── ObjectStoreMisconfigured
    ├── LogicError
    │   └── GiveUp
    ├── AuthError
    └── PermissionDenied
"""

from collections.abc import Iterable, Sequence

MAX_RETRY_AFTER_SECONDS = 366 * 86_400
MAX_NAMED_ERRORS = 20  # further wrong values are only counted


class RotaError(Exception):
    """Base class. `code` never changes; the message may."""

    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


MISSING = "is missing"


class Invalid(RotaError):
    """The value of a field is wrong; `right` completes the sentence "field: value …" with the remedy."""

    code = "invalid"

    def __init__(self, field: str, value: object, right: str) -> None:
        super().__init__(f"{field} {right}" if right.startswith(MISSING) else f"{field}: {short_repr(value)} {right}")
        self.field, self.value, self.right = field, value, right

    @property
    def all(self) -> Sequence["Invalid"]:
        return [self]


class InvalidMany(Invalid):
    """Several wrong values in one error; the message names the first `MAX_NAMED_ERRORS`."""

    def __init__(self, errors: Iterable[Invalid]) -> None:
        self.errors = list(errors)
        first, omitted = self.errors[0], len(self.errors) - MAX_NAMED_ERRORS
        super().__init__(first.field, first.value, first.right)
        messages = [error.message for error in self.errors[:MAX_NAMED_ERRORS]]
        self.message = "; ".join([*messages, f"and {omitted} more"] if omitted > 0 else messages)
        self.args = (self.message,)

    @property
    def all(self) -> Sequence[Invalid]:
        return self.errors


class TooMuchEffort(Invalid):
    """Computing the requested slots takes more steps than one request may use."""


def together(wrong: Sequence[Invalid]) -> Invalid:
    """Combine wrong values, at least one, into one error."""
    return wrong[0] if len(wrong) == 1 else InvalidMany(wrong)


class NotFound(RotaError):
    """The resource does not exist, or belongs to another org."""

    code = "not_found"


class Conflict(RotaError):
    """The state of the resource does not allow the operation."""

    code = "conflict"


class StaleRevision(Conflict):
    """The resource changed since it was read."""

    code = "stale_revision"


class SessionOver(Conflict):
    """An agent's session has ended; it must register again."""

    code = "session_over"


class KeyInUse(Conflict):
    """The first request with this idempotency key still runs."""

    code = "idempotency_in_progress"


class KeyMismatch(RotaError):
    """This idempotency key was used with another request."""

    code = "idempotency_mismatch"


class NotRunnable(RotaError, ValueError):
    """A task cannot be executed now: unknown, disabled, or without its function."""

    code = "not_runnable"


class Refused(RotaError):
    """The caller is not allowed to do this."""

    code = "refused"


class Unavailable(RotaError):
    """The database is out of reach or its schema is old; try again, or migrate."""

    code = "unavailable"


class DatabaseMisconfigured(Unavailable):
    """The database cannot be used until an operator acts: it does not exist, refuses the login, or its disk is full."""


class DataRefused(RotaError):
    """The database refused a row: a constraint, or a value that it cannot store."""

    code = "data_refused"


class BrokenStatement(RotaError):
    """The database cannot run a statement of Rota: a bug, or tables that were changed by hand."""

    code = "internal"


class DamagedFile(RotaError):
    """A backup is cut short or was changed."""

    code = "damaged_file"


class LeaseLost(RotaError):
    """A worker wrote to a job whose lease it no longer owns."""

    code = "lease_lost"


class WorkError(RotaError):
    """Raised by user code to choose the failure class; other exceptions are logic failures."""

    code = "logic"

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__name__)


class TransientError(WorkError):
    """Network error, rate limit: retry later."""

    code = "transient"


class RetryAfter(TransientError):
    """Start the next attempt after `seconds`, instead of the backoff of the retry policy. It counts as a retry. Raises
    Invalid for a delay that is no number from 0 to MAX_RETRY_AFTER_SECONDS."""

    def __init__(self, seconds: float, message: str = "") -> None:
        is_number = type(seconds) in (int, float)
        if not is_number or not 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
            raise Invalid("seconds", seconds, f"is not a number from 0 to {MAX_RETRY_AFTER_SECONDS}")
        super().__init__(message or f"asked for another attempt after {seconds:g} s")
        self.seconds = seconds


class ObjectStoreUnavailable(TransientError):
    """The object store of artifacts does not answer, or not as it must; a run is retried."""

    code = "object_store_unavailable"


class ObjectStoreMisconfigured(ObjectStoreUnavailable):
    """The object store refuses this installation: an operator must act."""


class LogicError(WorkError):
    """A bug or wrong input: retrying does not help."""

    code = "logic"


class GiveUp(LogicError):
    """Fail the job: no further attempt, whatever its retry policy says."""

    code = "gave_up"


class AuthError(WorkError):
    """Credentials are missing or expired: a person must act."""

    code = "auth"


class PermissionDenied(WorkError):
    """Not allowed: a person must act."""

    code = "permission"


def short_repr(value: object, limit: int = 80) -> str:
    """Return the repr of a value, cut to `limit` characters, for messages."""
    huge = isinstance(value, int) and value.bit_length() > 1000  # repr() of more than 4300 digits raises
    text = "a huge number" if huge else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
