"""Counters and histograms of this process since its start, as plain numbers.

A worker stores a snapshot of them with each heartbeat (`workers.beat`), so that every server can expose all workers.
What transactions did is counted when they have committed (`count_on_commit`).
"""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import structlog

from rota.core.model import AttemptResult
from rota.db.commit_actions import on_commit
from rota.db.dialect import Tx
from rota.engine.instruments import (
    CPU,
    DURATION,
    INSTRUMENTS,
    LATENESS,
    MEMORY,
    REFUSED,
    RUNS,
    Instrument,
)

Series = tuple[str, ...]  # name of the instrument and the values of its labels
Values = dict[Series, list[float]]  # by series, as many numbers as `Instrument.size`
Snapshot = list[list[object]]  # [[name, *labels], [numbers]], as JSON
Mirror = Callable[[Instrument, float, Sequence[str]], None]

SERVERS = "servers"  # the source of what all processes without a worker count
ENDED = "ended"  # the source of what workers counted that have ended
SERIES_LIMIT = 1000  # of a snapshot; more are not stored

log = structlog.get_logger("rota.metrics")


class Metrics:
    """Counts of one process. Thread-safe: the event loops of worker, API and heartbeat share it.

    `source` is the id of the worker registration that the counts belong to, SERVERS without a worker. `base` is what
    earlier registrations of this process have stored, or a server has added to the total of all servers; `current` is
    the rest.
    """

    def __init__(self) -> None:
        self.source = SERVERS
        self.polled_at: float | None = None  # stopwatch time of the scheduler's last poll
        self.values: Values = {}
        self.base: Values = {}
        self.mirror: Mirror | None = None  # gets each measurement too, for OpenTelemetry
        self._lock = threading.Lock()

    # measure

    def add(self, instrument: Instrument, *labels: str, amount: float = 1) -> None:
        """Increase a counter."""
        with self._lock:
            self.series(instrument, labels)[0] += amount
        if self.mirror is not None:
            self.mirror(instrument, amount, labels)

    def observe(self, instrument: Instrument, values: Sequence[float], *labels: str) -> None:
        """Add values to a histogram."""
        with self._lock:
            numbers = self.series(instrument, labels)
            for value in values:
                numbers[bisect_left(instrument.buckets, value)] += 1
            numbers[-1] += sum(values)
        if self.mirror is not None:
            for value in values:
                self.mirror(instrument, value, labels)

    def ended(self, results: Iterable[AttemptResult]) -> None:
        """Count runs that were recorded in the ledger."""
        statuses: Counter[tuple[str, str]] = Counter()
        observed: dict[tuple[Instrument, str], list[float]] = defaultdict(list)
        lateness: list[float] = []
        for result in results:
            job, started_at, info = result.job, result.started_at, result.info
            statuses[job.kind, result.status.value] += 1
            if started_at is None:
                continue
            observed[DURATION, job.kind].append(seconds_between(started_at, result.finished_at))
            if job.slot is not None and result.number == 1:
                lateness.append(seconds_between(job.run_at, started_at))
            if info is not None and info.resources is not None:
                if info.resources.cpu_seconds is not None:
                    observed[CPU, job.kind].append(info.resources.cpu_seconds)
                if info.resources.peak_memory_bytes is not None:
                    observed[MEMORY, job.kind].append(info.resources.peak_memory_bytes)
        for (kind, status), number in statuses.items():
            self.add(RUNS, kind, status, amount=number)
        for (instrument, kind), values in observed.items():
            self.observe(instrument, values, kind)
        if lateness:
            self.observe(LATENESS, lateness)

    def refused(self, results: Sequence[AttemptResult]) -> None:
        """Count results whose lease was lost."""
        if results:
            self.add(REFUSED, amount=len(results))

    def series(self, instrument: Instrument, labels: Sequence[str]) -> list[float]:
        """Return the numbers of a series, created as zeros. The caller holds the lock."""
        return self.values.setdefault((instrument.name, *labels), [0.0] * instrument.size)

    # read

    def total(self, instrument: Instrument, *labels: str) -> float:
        """Return a counter, or the number of values of a histogram, since the start of this process."""
        numbers = self.values.get((instrument.name, *labels), [0.0])
        return sum(numbers[:-1]) if instrument.buckets else numbers[0]

    def by_labels(self, instrument: Instrument) -> dict[tuple[str, ...], float]:
        """Return the totals of an instrument by the values of its labels."""
        return {key[1:]: self.total(instrument, *key[1:]) for key in list(self.values) if key[0] == instrument.name}

    def current(self) -> Values:
        """Return a copy of what was counted since `base`, without series that are zero."""
        with self._lock:
            return difference(self.values, self.base)

    def snapshot(self) -> Snapshot:
        """Return `current` as JSON."""
        return dump(self.current())

    def begin_registration(self, worker: str, stored: object) -> None:
        """Count for a new registration from now on. `stored` is the snapshot of the previous one, which keeps it."""
        self.leave(load(stored))
        self.source = worker

    def leave(self, values: Mapping[Series, Sequence[float]]) -> None:
        """Remove values from `current`: they are stored elsewhere."""
        with self._lock:
            add_to(self.base, values)


def seconds_between(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


def count_on_commit(tx: Tx, update: Callable[[Metrics], None]) -> None:
    """Change the metrics of this process when the transaction has committed."""
    on_commit(tx, update)


# snapshots


def add_to(total: Values, values: Mapping[Series, Sequence[float]]) -> None:
    """Add series to a total, number by number."""
    for series, numbers in values.items():
        before = total.get(series)
        total[series] = list(numbers) if before is None else [a + b for a, b in zip(before, numbers, strict=True)]


def difference(values: Mapping[Series, Sequence[float]], base: Mapping[Series, Sequence[float]]) -> Values:
    """Return the series without their base, as far as they are not zero."""
    result: Values = {}
    for series, numbers in values.items():
        left = [a - b for a, b in zip(numbers, base.get(series, [0.0] * len(numbers)), strict=True)]
        if any(left):
            result[series] = left
    return result


def dump(values: Mapping[Series, Sequence[float]]) -> Snapshot:
    """Return a snapshot as JSON; whole numbers are written as integers."""
    if len(values) > SERIES_LIMIT:
        log.warning("too many series; the snapshot has only the first", series=len(values), limit=SERIES_LIMIT)
    return [
        [list(series), [int(number) if number == int(number) else round(number, 6) for number in numbers]]
        for series, numbers in sorted(values.items())[:SERIES_LIMIT]
    ]


def load(snapshot: object) -> Values:
    """Return the series of a stored snapshot. Ignores what this version does not know: during an upgrade, workers of
    another version store theirs."""
    values: Values = {}
    for entry in snapshot if isinstance(snapshot, list) else []:
        match entry:
            case [[str(name), *labels], [*numbers]]:
                instrument = INSTRUMENTS.get(name)
                if instrument is not None and len(labels) == len(instrument.labels) and len(numbers) == instrument.size:
                    values[(name, *map(str, labels))] = [float(number) for number in numbers]
            case _:
                pass
    return values
