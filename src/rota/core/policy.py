"""Policies for misfires, overlaps, retries and failures. Pure: the caller passes the time."""

import traceback
from binascii import crc32
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import NotRequired, TypedDict, TypeVar

from rota.core.errors import (
    AuthError,
    GiveUp,
    Invalid,
    LogicError,
    PermissionDenied,
    RetryAfter,
    TransientError,
    WorkError,
)
from rota.core.frame_locals import FrameLocals, locals_of
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
    """Retry policy: the number of retries and their backoff. With `jitter`, each backoff is shortened by up to this
    fraction, by a different part for each job, so that jobs that failed together are not retried together."""

    max_retries: int = 0
    backoff_ms: int = 2000
    backoff_type: Backoff = Backoff.FIXED
    max_backoff_ms: int = 600_000
    jitter: float = 0.0  # from 0 to 1

    def delay(self, tries: int, job_id: str = "") -> timedelta:
        """Return the backoff after the `tries`-th failure of a job. The jitter is a hash of both: always the same."""
        factor = 1 if self.backoff_type is Backoff.FIXED else 2 ** min(tries - 1, 40)
        backoff_ms: float = min(self.backoff_ms * factor, self.max_backoff_ms)
        if self.jitter:
            backoff_ms *= 1 - self.jitter * crc32(f"{job_id}:{tries}".encode()) / 2**32
        return timedelta(milliseconds=backoff_ms)

    def dump(self) -> dict[str, object]:
        """Return the policy as JSON data; without jitter as versions before it wrote and read it."""
        policy: dict[str, object] = {
            "max_retries": self.max_retries,
            "backoff_ms": self.backoff_ms,
            "backoff_type": self.backoff_type.value,
            "max_backoff_ms": self.max_backoff_ms,
        }
        return {**policy, "jitter": self.jitter} if self.jitter else policy


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
    locals: NotRequired[list[FrameLocals]]  # only if they are captured


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
    retry_after: timedelta | None = None  # the delay that the code asked for, instead of the backoff
    variables: Sequence[FrameLocals] | None = None  # of the functions in its traceback, if they are captured

    def dump(self) -> FailureData:
        data: FailureData = {
            "code": self.code or self.failure_class.value,
            "type": without_surrogates(self.type),
            "message": without_surrogates(self.message),
            "traceback": self.traceback and without_surrogates(self.traceback),
        }
        if self.variables:
            data["locals"] = [
                {**frame, "variables": {k: without_surrogates(v) for k, v in frame["variables"].items()}}
                for frame in self.variables
            ]
        return data


class WorkFailed(Exception):
    """The work failed outside this process, in a command or a child process, so there is no exception of its own."""

    def __init__(self, failure: Failure, outcome: object = None) -> None:
        super().__init__(failure.message)
        self.failure, self.outcome = failure, outcome


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Start another attempt after the delay."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Park:
    """Park the job: a person must act."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Record the job as failed; no further attempt."""


def classify(error: BaseException, capture_locals: bool = False) -> Failure:
    """Return the failure for an exception of user code; its traceback starts after the frames of Rota. With
    `capture_locals` it has the variables of its functions."""
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
    return Failure(
        failure_class,
        name,
        message,
        text,
        code=error.code if isinstance(error, GiveUp) else None,
        final=isinstance(error, LogicError),
        retry_after=timedelta(seconds=error.seconds) if isinstance(error, RetryAfter) else None,
        variables=variables_of(error) if capture_locals else None,
    )


def variables_of(error: BaseException) -> list[FrameLocals] | None:
    """Return the variables of an exception's functions; None where they cannot be read: the failure counts more."""
    try:
        return locals_of(error, ROTA_SOURCE)
    except Exception:
        return None


def after_failure(
    failure: Failure, retry: Retry | None, tries: int, transient_retry: Retry = TRANSIENT_RETRY, job_id: str = ""
) -> RetryLater | Park | Fail:
    """Decide what follows the `tries`-th failure of a job. `transient_retry` applies to transient failures of a job
    without a retry policy."""
    match failure.failure_class:
        case FailureClass.AUTH | FailureClass.PERMISSION:
            return Park("approval")
        case FailureClass.INDETERMINATE:
            return Park(RECONCILIATION) if failure.reconcile_after is None else RetryLater(failure.reconcile_after)
        case FailureClass.BUDGET:
            return Fail()
        case FailureClass.LOGIC if failure.final:
            return Fail()
        case FailureClass.TRANSIENT:
            rule = retry or transient_retry
        case _:
            rule = retry or Retry()
    if tries > rule.max_retries:
        return Fail()
    return RetryLater(rule.delay(tries, job_id) if failure.retry_after is None else failure.retry_after)


def parse_retry(value: object) -> Retry | None:
    """Parse a retry policy. Raises Invalid."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Invalid(
            "retry", value, "is not an object like {max_retries, backoff_ms, backoff_type, max_backoff_ms, jitter}"
        )
    limits = {"max_retries": (0, 1000), "backoff_ms": (0, 86_400_000), "max_backoff_ms": (0, 86_400_000)}
    backoff_type, jitter = Backoff.FIXED, 0.0
    numbers: dict[str, int] = {}
    for name, member in value.items():
        if name == "backoff_type":
            backoff_type = choice(Backoff, member, "retry.backoff_type")
        elif name == "jitter":
            jitter = parse_jitter(member)
        elif name not in limits:
            known = ", ".join([*limits, "backoff_type", "jitter"])
            raise Invalid(f"retry.{name}", member, f"is an unknown field; the fields are {known}")
        elif (
            isinstance(member, bool) or not isinstance(member, int) or not limits[name][0] <= member <= limits[name][1]
        ):
            low, high = limits[name]
            raise Invalid(f"retry.{name}", member, f"is not a whole number from {low} to {high}")
        else:
            numbers[name] = member
    return Retry(**numbers, backoff_type=backoff_type, jitter=jitter)


def parse_jitter(value: object) -> float:
    """Parse the jitter of a retry policy. Raises Invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Invalid("retry.jitter", value, "is not a number from 0 to 1")
    return float(value)


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
