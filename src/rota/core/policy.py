"""What to do when slots passed, when runs overlap and when work fails. Pure: the caller brings the time."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from rota.core.errors import AuthError, Invalid, LogicError, PermissionDenied, TransientError, WorkError
from rota.core.timing.triggers import Once, Timing, window_open
from rota.core.timing.windows import Window

E = TypeVar("E", bound=StrEnum)

OWN_CODE = str(Path(__file__).parents[1])
QUARANTINE_CRASHES = 3  # crashes that end a job
CATCH_UP_LIMIT_SLOTS = 100
RECONCILIATION = "reconciliation"


class Misfire(StrEnum):
    """When a slot is later than the grace because nobody was up."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """When a slot comes while the schedule still has a job in any state."""

    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    SKIP = "skip"
    ALLOW = "allow"
    REPLACE = "replace"


OVERLAP_NAMES = {"Allow": Overlap.ALLOW, "Forbid": Overlap.SKIP, "Replace": Overlap.REPLACE}


class Backoff(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class Billing(StrEnum):
    """What becomes of what work costs."""

    OFF = "off"
    RECORD = "record"  # it is charged, and nothing is refused for lack of credits
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed attempt is followed by another, and after how long."""

    max_retries: int = 0
    backoff_ms: int = 2000
    backoff_type: Backoff = Backoff.FIXED
    max_backoff_ms: int = 600_000

    def delay(self, tries: int) -> timedelta:
        """How long to wait after the `tries`-th failure."""
        factor = 1 if self.backoff_type is Backoff.FIXED else 2 ** min(tries - 1, 40)
        return timedelta(milliseconds=min(self.backoff_ms * factor, self.max_backoff_ms))

    def dump(self) -> dict[str, Any]:
        return {
            "max_retries": self.max_retries,
            "backoff_ms": self.backoff_ms,
            "backoff_type": self.backoff_type.value,
            "max_backoff_ms": self.max_backoff_ms,
        }


TRANSIENT_RETRY = Retry(5, 10_000, Backoff.EXPONENTIAL, 600_000)  # where nobody said otherwise


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions a job was promised under, copied to it when it was made."""

    timeout: timedelta | None = None
    retry: Retry | None = None
    deadline_at: datetime | None = None  # it must have started by then
    window_until: datetime | None = None  # its window closes then
    window: Window | None = None
    zone: str = "UTC"
    grant_id: str | None = None  # the authority that it runs under

    def dump(self) -> dict[str, Any] | None:
        """Plain JSON with only what is set; most jobs have none."""
        found: dict[str, Any] = {}
        if self.timeout is not None:
            found["timeout"] = self.timeout.total_seconds()
        if self.retry is not None:
            found["retry"] = self.retry.dump()
        if self.deadline_at is not None:
            found["deadline_at"] = self.deadline_at.isoformat()
        if self.window is not None:
            found["window"] = [self.window.start.isoformat("minutes"), self.window.end.isoformat("minutes"), self.zone]
            found["window_until"] = self.window_until.isoformat() if self.window_until else None
        if self.grant_id is not None:
            found["grant_id"] = self.grant_id
        return found or None

    @classmethod
    def load(cls, data: Mapping[str, Any] | None) -> "Terms":
        if not data:
            return NO_TERMS
        window = data.get("window")
        return cls(
            timeout=timedelta(seconds=data["timeout"]) if "timeout" in data else None,
            retry=parse_retry(data.get("retry")),
            deadline_at=datetime.fromisoformat(data["deadline_at"]) if "deadline_at" in data else None,
            window_until=datetime.fromisoformat(data["window_until"]) if data.get("window_until") else None,
            window=Window(time.fromisoformat(window[0]), time.fromisoformat(window[1])) if window else None,
            zone=window[2] if window else "UTC",
            grant_id=data.get("grant_id"),
        )

    def too_late(self, now: datetime) -> str | None:
        """Why the job may no longer start, if so."""
        if self.deadline_at is not None and now > self.deadline_at:
            return "deadline"
        if self.window_until is not None and now >= self.window_until:
            return "window"
        return None

    def not_before(self, at: datetime) -> datetime:
        """The first moment from `at` on at which a further attempt may start."""
        return at if self.window is None else window_open(Timing(Once(at), self.zone, self.window), at)


NO_TERMS = Terms()


class FailureClass(StrEnum):
    TRANSIENT = "transient"
    LOGIC = "logic"
    AUTH = "auth"
    PERMISSION = "permission"
    INTERNAL = "internal"
    TIMEOUT = "timeout"
    BUDGET = "budget"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: its class decides what follows, the rest is for the ledger."""

    failure_class: FailureClass
    type: str
    message: str
    traceback: str | None = None
    code: str | None = None  # a finer word than its class
    reconcile_after: timedelta | None = None  # when to check next whether an effect of unknown outcome was applied
    final: bool = False  # a LogicError: no retry policy applies

    def dump(self) -> dict[str, Any]:
        texts = {"type": self.type, "message": self.message, "traceback": self.traceback}
        plain = {name: text and text.encode("utf-8", "backslashreplace").decode() for name, text in texts.items()}
        return {"code": self.code or self.failure_class.value, **plain}  # half a surrogate pair cannot be stored


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Another attempt, after the delay."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Park:
    """A person must act."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It has failed for good."""


def classify(error: BaseException) -> Failure:
    """The failure behind an exception that the work raised, told from the work's first own line on."""
    match error:
        case TransientError() | ConnectionError() | TimeoutError():
            kind = FailureClass.TRANSIENT
        case AuthError():
            kind = FailureClass.AUTH
        case PermissionDenied():
            kind = FailureClass.PERMISSION
        case WorkError() | Exception():
            kind = FailureClass.LOGIC
        case _:  # SystemExit and its like: the work tried to end the worker
            kind = FailureClass.LOGIC
    frames = start = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code.co_filename.startswith(OWN_CODE):
            start = frames.tb_next or start
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, start))
    name = type(error).__name__
    message = f"{name}: {error}" if isinstance(error, KeyError) else str(error) or name  # its text is only the key
    return Failure(kind, name, message, text, final=isinstance(error, LogicError))


def after_failure(
    failure: Failure, retry: Retry | None, tries: int, passing: Retry = TRANSIENT_RETRY
) -> RetryAfter | Park | GiveUp:
    """What follows the `tries`-th failure of a job. `passing` is the policy for transient failures where the job has
    none."""
    match failure.failure_class:
        case FailureClass.AUTH | FailureClass.PERMISSION:
            return Park("approval")
        case FailureClass.INDETERMINATE:
            return Park(RECONCILIATION) if failure.reconcile_after is None else RetryAfter(failure.reconcile_after)
        case FailureClass.BUDGET:
            return GiveUp()
        case FailureClass.LOGIC if failure.final:
            return GiveUp()
        case FailureClass.TRANSIENT:
            rule = retry or passing
        case _:
            rule = retry or Retry()
    return RetryAfter(rule.delay(tries)) if tries <= rule.max_retries else GiveUp()


def parse_retry(value: object) -> Retry | None:
    """The retry policy as it came from outside."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Invalid("retry", value, "is not an object like {max_retries, backoff_ms, backoff_type, max_backoff_ms}")
    known = {"max_retries": (0, 1000), "backoff_ms": (0, 86_400_000), "max_backoff_ms": (0, 86_400_000)}
    found: dict[str, Any] = {}
    for name, given in value.items():
        if name == "backoff_type":
            found[name] = choice(Backoff, given, "retry.backoff_type")
        elif name not in known:
            raise Invalid(f"retry.{name}", given, f"is not known; known are {', '.join([*known, 'backoff_type'])}")
        elif isinstance(given, bool) or not isinstance(given, int) or not known[name][0] <= given <= known[name][1]:
            raise Invalid(f"retry.{name}", given, f"is not a whole number from {known[name][0]} to {known[name][1]}")
        else:
            found[name] = given
    return Retry(**found)


def choice(enum: type[E], value: object, field: str) -> E:
    """One of an enumeration's words, or an error that lists them."""
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value in enum._value2member_map_:
        return enum(value)
    raise Invalid(field, value, f"is not one of {', '.join(member.value for member in enum)}")


def parse_overlap(value: object) -> Overlap:
    """An overlap policy, also by the names that Kubernetes users know."""
    return choice(Overlap, OVERLAP_NAMES.get(value, value) if isinstance(value, str) else value, "overlap")
