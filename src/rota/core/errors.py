"""Everything Rota can refuse or fail with. Each class has a stable `code` that API, CLI and ledger share.

RotaError
├── Invalid            a value from outside is wrong; names the field, the value and what would be right
│   ├── InvalidMany    several of them at once
│   └── TooMuchEffort  the answer takes more computing than one request may cause
├── NotFound           no such thing (or it belongs to another org)
├── Conflict           the thing is not in a state that allows this
│   ├── StaleRevision  it changed since it was read
│   ├── SessionOver    an agent's session has ended; it must register anew
│   └── KeyInUse       the first request with this idempotency key still runs
├── KeyMismatch        this idempotency key came before with another request
├── NotRunnable        a task cannot be executed now: unknown, disabled, or without its function
├── Refused            who asks may not
├── Unavailable        the database is out of reach or its schema is old; try again, or migrate
│   └── DatabaseMisconfigured  missing database, refused login, wrong file: an operator must act
├── DataRefused        the database refused a row: a constraint held, or a value that it cannot store
├── LeaseLost          a worker wrote about a job that it no longer holds
└── WorkError          raised by the work itself, to say how it failed
    ├── TransientError    the network, a rate limit: try again later
    ├── LogicError        the work is wrong: trying again changes nothing
    ├── AuthError         credentials are missing or stale: a person must act
    └── PermissionDenied  not allowed: a person must act
"""

from collections.abc import Iterable, Sequence

MAX_NAMED_ERRORS = 20  # wrong values that one message names


class RotaError(Exception):
    """The root. `code` never changes; the message is for people."""

    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


MISSING = "is missing"


class Invalid(RotaError):
    """`field` was `value`, which cannot be; `right` says what would be right."""

    code = "invalid"

    def __init__(self, field: str, value: object, right: str) -> None:
        super().__init__(f"{field} {right}" if right.startswith(MISSING) else f"{field}: {short_repr(value)} {right}")
        self.field, self.value, self.right = field, value, right

    @property
    def all(self) -> Sequence["Invalid"]:
        return [self]


class InvalidMany(Invalid):
    """Several wrong values, told together; of a crowd, its first."""

    def __init__(self, errors: Iterable[Invalid]) -> None:
        self.errors = list(errors)
        first, unsaid = self.errors[0], len(self.errors) - MAX_NAMED_ERRORS
        super().__init__(first.field, first.value, first.right)
        told = [error.message for error in self.errors[:MAX_NAMED_ERRORS]]
        self.message = "; ".join([*told, f"and {unsaid} more"] if unsaid > 0 else told)
        self.args = (self.message,)

    @property
    def all(self) -> Sequence[Invalid]:
        return self.errors


class TooMuchEffort(Invalid):
    """The slots that a request asks for take more steps to compute than one request may cause."""


def together(wrong: Sequence[Invalid]) -> Invalid:
    """Wrong values, at least one, as one error."""
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
    """What work raises to say how it failed; anything else that it raises is a logic failure."""

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
    """A value as it may stand in a message: short, quoted, without control characters."""
    huge = isinstance(value, int) and value.bit_length() > 1000  # repr() of more than 4300 digits raises
    text = "a huge number" if huge else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
