"""Policies for misfires, overlaps, retries and failures. Pure: the caller passes the time."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypedDict, TypeVar

from rota.core.errors import AuthError, Invalid, LogicError, PermissionDenied, TransientError, WorkError
from rota.core.timing.triggers import Once, Timing, window_open
from rota.core.timing.windows import Window

E = TypeVar("E", bound=StrEnum)

ROTA_SOURCE = str(Path(__file__).parents[1])
QUARANTINE_CRASHES = 3  # a job fails for good after this many crashes
CATCH_UP_LIMIT_SLOTS = 100
RECONCILIATION = "reconciliation"
WAKE_MIN, WAKE_MAX = timedelta(seconds=30), timedelta(hours=24)  # how soon and how late a consumer may ask to be woken


class Misfire(StrEnum):
    """What happens to slots that are late by more than the grace, because no scheduler was running."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What happens when a slot is due while the schedule still has a job."""

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
    """Whether the cost of runs is charged."""

    OFF = "off"
    RECORD = "record"  # charged; no run is refused for lack of credits
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy: the number of retries and their backoff."""

    max_retries: int = 0
    backoff_ms: int = 2000
    backoff_type: Backoff = Backoff.FIXED
    max_backoff_ms: int = 600_000

    def delay(self, tries: int) -> timedelta:
        """Return the backoff after the `tries`-th failure."""
        factor = 1 if self.backoff_type is Backoff.FIXED else 2 ** min(tries - 1, 40)
        return timedelta(milliseconds=min(self.backoff_ms * factor, self.max_backoff_ms))

    def dump(self) -> dict[str, object]:
        return {
            "max_retries": self.max_retries,
            "backoff_ms": self.backoff_ms,
            "backoff_type": self.backoff_type.value,
            "max_backoff_ms": self.max_backoff_ms,
        }


TRANSIENT_RETRY = Retry(5, 10_000, Backoff.EXPONENTIAL, 600_000)  # default for transient failures


class TermsData(TypedDict, total=False):
    """The terms of a job as JSON data: what is set."""

    timeout: float
    retry: dict[str, object]
    deadline_at: str
    window: tuple[str, str, str]  # start, end, zone; JSON has it as a list
    window_until: str | None
    grant_id: str


@dataclass(frozen=True, slots=True)
class Terms:
    """Conditions of a job, copied from its schedule when it is enqueued."""

    timeout: timedelta | None = None
    retry: Retry | None = None
    deadline_at: datetime | None = None  # it must start by then
    window_until: datetime | None = None  # when its window closes
    window: Window | None = None
    zone: str = "UTC"
    grant_id: str | None = None  # the grant that it runs under

    def dump(self) -> TermsData | None:
        """Return what is set as JSON data; None if nothing is."""
        data: TermsData = {}
        if self.timeout is not None:
            data["timeout"] = self.timeout.total_seconds()
        if self.retry is not None:
            data["retry"] = self.retry.dump()
        if self.deadline_at is not None:
            data["deadline_at"] = self.deadline_at.isoformat()
        if self.window is not None:
            data["window"] = (self.window.start.isoformat("minutes"), self.window.end.isoformat("minutes"), self.zone)
            data["window_until"] = self.window_until.isoformat() if self.window_until else None
        if self.grant_id is not None:
            data["grant_id"] = self.grant_id
        return data or None

    @classmethod
    def load(cls, data: TermsData | None) -> "Terms":
        """Restore terms from `dump`."""
        if not data:
            return NO_TERMS
        window, window_until = data.get("window"), data.get("window_until")
        return cls(
            timeout=timedelta(seconds=data["timeout"]) if "timeout" in data else None,
            retry=parse_retry(data.get("retry")),
            deadline_at=datetime.fromisoformat(data["deadline_at"]) if "deadline_at" in data else None,
            window_until=datetime.fromisoformat(window_until) if window_until else None,
            window=Window(time.fromisoformat(window[0]), time.fromisoformat(window[1])) if window else None,
            zone=window[2] if window else "UTC",
            grant_id=data.get("grant_id"),
        )

    def too_late(self, now: datetime) -> str | None:
        """Return the reason why the job may no longer start; None if it may."""
        if self.deadline_at is not None and now > self.deadline_at:
            return "deadline"
        if self.window_until is not None and now >= self.window_until:
            return "window"
        return None

    def not_before(self, at: datetime) -> datetime:
        """Return the first instant from `at` on at which another attempt may start."""
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


class FailureData(TypedDict):
    """A failure as JSON data, as it is recorded with the run."""

    code: str
    type: str
    message: str
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: its class decides what follows, the rest is recorded with the run."""

    failure_class: FailureClass
    type: str
    message: str
    traceback: str | None = None
    code: str | None = None  # more specific than its class
    reconcile_after: timedelta | None = None  # when to check next whether an effect of unknown outcome was applied
    final: bool = False  # a LogicError: no retry policy applies

    def dump(self) -> FailureData:
        return {
            "code": self.code or self.failure_class.value,
            "type": without_surrogates(self.type),
            "message": without_surrogates(self.message),
            "traceback": self.traceback and without_surrogates(self.traceback),
        }


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Start another attempt after the delay."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Park:
    """Park the job: a person must act."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Record the job as failed; no further attempt."""


def classify(error: BaseException) -> Failure:
    """Return the failure for an exception of user code; its traceback starts after the frames of Rota."""
    match error:
        case TransientError() | ConnectionError() | TimeoutError():
            failure_class = FailureClass.TRANSIENT
        case AuthError():
            failure_class = FailureClass.AUTH
        case PermissionDenied():
            failure_class = FailureClass.PERMISSION
        case WorkError() | Exception():
            failure_class = FailureClass.LOGIC
        case _:  # SystemExit, KeyboardInterrupt: user code tried to end the worker
            failure_class = FailureClass.LOGIC
    frame = start = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(ROTA_SOURCE):
            start = frame.tb_next or start
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, start))
    name = type(error).__name__
    message = f"{name}: {error}" if isinstance(error, KeyError) else str(error) or name  # str(KeyError) is only the key
    return Failure(failure_class, name, message, text, final=isinstance(error, LogicError))


def after_failure(
    failure: Failure, retry: Retry | None, tries: int, transient_retry: Retry = TRANSIENT_RETRY
) -> RetryAfter | Park | GiveUp:
    """Decide what follows the `tries`-th failure of a job. `transient_retry` applies to transient failures of a job
    without a retry policy."""
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
            rule = retry or transient_retry
        case _:
            rule = retry or Retry()
    return RetryAfter(rule.delay(tries)) if tries <= rule.max_retries else GiveUp()


def parse_retry(value: object) -> Retry | None:
    """Parse a retry policy. Raises Invalid."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Invalid("retry", value, "is not an object like {max_retries, backoff_ms, backoff_type, max_backoff_ms}")
    limits = {"max_retries": (0, 1000), "backoff_ms": (0, 86_400_000), "max_backoff_ms": (0, 86_400_000)}
    backoff_type = Backoff.FIXED
    numbers: dict[str, int] = {}
    for name, member in value.items():
        if name == "backoff_type":
            backoff_type = choice(Backoff, member, "retry.backoff_type")
        elif name not in limits:
            raise Invalid(
                f"retry.{name}", member, f"is an unknown field; the fields are {', '.join([*limits, 'backoff_type'])}"
            )
        elif (
            isinstance(member, bool) or not isinstance(member, int) or not limits[name][0] <= member <= limits[name][1]
        ):
            low, high = limits[name]
            raise Invalid(f"retry.{name}", member, f"is not a whole number from {low} to {high}")
        else:
            numbers[name] = member
    return Retry(**numbers, backoff_type=backoff_type)


def without_surrogates(text: str) -> str:
    """Return the text with halves of surrogate pairs escaped: they cannot be stored."""
    return text.encode("utf-8", "backslashreplace").decode()


def choice(enum: type[E], value: object, field: str) -> E:
    """Return the member of an enumeration. Raises Invalid with the list of members."""
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value in enum._value2member_map_:
        return enum(value)
    raise Invalid(field, value, f"is not one of {', '.join(member.value for member in enum)}")


def parse_overlap(value: object) -> Overlap:
    """Parse an overlap policy, also by its Kubernetes name. Raises Invalid."""
    return choice(Overlap, OVERLAP_NAMES.get(value, value) if isinstance(value, str) else value, "overlap")
