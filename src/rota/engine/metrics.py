"""Counters of this process since its start, as plain numbers; the metrics route reads them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rota.core.model import AttemptResult

LATENESS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)  # seconds


@dataclass(slots=True)
class Metrics:
    looked: float | None = None  # stopwatch time of the scheduler's last poll
    fired: int = 0
    refused: int = 0  # results of runs whose lease was lost
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and status
    repairs: Counter[str] = field(default_factory=Counter)
    late: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS) + 1))  # slots by how late they started
    late_sum: float = 0.0

    def ended(self, batch: Sequence[AttemptResult], refused: int) -> None:
        self.refused += refused
        self.runs.update([(result.job.kind, result.status) for result in batch])
        for result in batch:
            if result.job.slot is not None and result.started_at is not None and result.number == 1:
                late = max(0.0, (result.started_at - result.job.run_at).total_seconds())
                self.late[bisect_left(LATENESS_BUCKETS, late)] += 1
                self.late_sum += late
