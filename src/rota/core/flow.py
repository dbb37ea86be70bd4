"""Flow control: how often and how many jobs of a key may start. Pure: the caller passes the time.

A rate is kept by GCRA (generic cell rate algorithm): one timestamp per key, the theoretical arrival time (TAT) of the
next start. Each start moves it by one interval; a start may come `burst - 1` intervals before its TAT.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson

from rota.core.errors import Invalid
from rota.core.timing.triggers import parse_interval

RATE = re.compile(r"([0-9]{1,9})/([0-9a-z]+)")
MAX_RATE_COUNT = 1_000_000
MAX_BURST = 1_000_000
MAX_PLACES = 1_000_000
KEY_CHARACTERS = 200  # of the value in a key; a longer one is replaced by its hash
START_TOLERANCE = timedelta(seconds=1)  # a start that is later than its reserved time by more reserves again
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts per `period`, evenly spaced; after a pause up to `burst` at once."""

    count: int
    period: timedelta
    burst: int = 1

    @property
    def interval_us(self) -> int:
        """Microseconds between two starts."""
        return max(1, -(-(self.period // MICROSECOND) // self.count))  # rounded up: never above the rate

    def __str__(self) -> str:
        return f"{self.count}/{span_text(self.period)}"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The rate of a key."""

    key: str
    rate: Rate


@dataclass(frozen=True, slots=True)
class PlaceLimit:
    """How many jobs of a key may run at once."""

    key: str
    places: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the start of a job has to wait for."""

    rates: tuple[RateLimit, ...] = ()
    place: PlaceLimit | None = None


@dataclass(frozen=True, slots=True)
class Debounce:
    """Jobs of a key that are enqueued within `period` of each other become one, `period` after the last of them and at
    most `longest` after the first."""

    key: str
    period: timedelta
    longest: timedelta


@dataclass(frozen=True, slots=True)
class Throttle:
    """Of the jobs of a key that are enqueued within `period`, the first is kept and the others are skipped."""

    key: str
    period: timedelta


@dataclass(frozen=True, slots=True)
class EnqueueRules:
    """What a target decides about its jobs as they are enqueued."""

    queue: str | None = None  # unless the request names one
    priority: int | None = None
    debounce: Debounce | None = None
    throttle: Throttle | None = None


def start_times(tat_us: int, rate: Rate, count: int, now_us: int) -> Sequence[int]:
    """Return when the starts of a batch may happen, whose reservation moved the TAT of their key to `tat_us`."""
    interval = rate.interval_us
    first = tat_us - count * interval - (rate.burst - 1) * interval
    return [max(now_us, first + number * interval) for number in range(count)]


def microseconds(instant: datetime) -> int:
    return (instant - EPOCH) // MICROSECOND


def instant_of(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def flow_key(scope: str, *parts: str, value: object = None) -> str:
    """Return the key of a limit: what it limits, and the value of the key parameter, as JSON."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    if len(text) > KEY_CHARACTERS:
        text = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return ":".join((scope, *parts, text))


def parse_rate(value: object, field: str = "rate", burst: int = 1) -> Rate:
    """Parse a rate such as `100/1m`. Raises Invalid."""
    match = RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Invalid(field, value, "is not a rate such as 100/1m, 10/1s or 5000/1d: number of starts per span of time")
    count = int(match[1])
    if not 1 <= count <= MAX_RATE_COUNT:
        raise Invalid(
            field, value, f"must allow 1 to {MAX_RATE_COUNT} starts; to start none, pause the queue or disable the task"
        )
    try:
        period = parse_interval(match[2], field)
    except Invalid as error:
        raise Invalid(field, value, f"has a wrong span of time after the slash: it {error.right}") from error
    return Rate(count, period, burst)


def span_text(span: timedelta) -> str:
    """Return a span as `parse_interval` reads it."""
    seconds = int(span.total_seconds())
    parts = ((seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)
