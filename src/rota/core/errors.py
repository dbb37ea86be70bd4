"""Error classes. Each has a stable `code` that the API, the CLI and the recorded runs share.

RotaError
├── Invalid            a value in a request is wrong; names the field, the value and the remedy
│   ├── InvalidMany    several wrong values
│   └── TooMuchEffort  the request needs more computing than one request may use
├── NotFound           the resource does not exist, or belongs to another org
├── Conflict           the state of the resource does not allow the operation
│   ├── StaleRevision  the resource changed since it was read
│   ├── SessionOver    an agent's session has ended; it must register again
│   └── KeyInUse       the first request with this idempotency key still runs
├── KeyMismatch        this idempotency key was used with another request
├── NotRunnable        a task cannot be executed now: unknown, disabled, or without its function
├── Refused            the caller is not allowed to do this
├── Unavailable        the database is out of reach or its schema is old; try again, or migrate
│   └── DatabaseMisconfigured  missing database, refused login, wrong file: an operator must act
├── DataRefused        the database refused a row: a constraint, or a value that it cannot store
├── LeaseLost          a worker wrote to a job whose lease it no longer owns
└── WorkError          raised by user code to choose the failure class
    ├── TransientError    network error, rate limit: retry later
    ├── LogicError        a bug or wrong input: retrying does not help
    ├── AuthError         credentials are missing or expired: a person must act
    └── PermissionDenied  not allowed: a person must act
"""

from collections.abc import Iterable, Sequence

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
    code = "not_found"


class Conflict(RotaError):
    code = "conflict"


class StaleRevision(Conflict):
    code = "stale_revision"


class SessionOver(Conflict):
    code = "session_over"


class KeyInUse(Conflict):
    code = "idempotency_in_progress"


class KeyMismatch(RotaError):
    code = "idempotency_mismatch"


class NotRunnable(RotaError, ValueError):
    code = "not_runnable"


class Refused(RotaError):
    code = "refused"


class Unavailable(RotaError):
    code = "unavailable"


class DatabaseMisconfigured(Unavailable):
    """The database cannot be used until an operator acts: it does not exist, refuses the login, or its disk is full."""


class DataRefused(RotaError):
    code = "data_refused"


class LeaseLost(RotaError):
    code = "lease_lost"


class WorkError(RotaError):
    """Raised by user code to choose the failure class; other exceptions are logic failures."""

    code = "logic"

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__name__)


class TransientError(WorkError):
    code = "transient"


class LogicError(WorkError):
    code = "logic"


class AuthError(WorkError):
    code = "auth"


class PermissionDenied(WorkError):
    code = "permission"


def short_repr(value: object, limit: int = 80) -> str:
    """Return the repr of a value, cut to `limit` characters, for messages."""
    huge = isinstance(value, int) and value.bit_length() > 1000  # repr() of more than 4300 digits raises
    text = "a huge number" if huge else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
