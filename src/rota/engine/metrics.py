"""What this process did since it started, as plain numbers: counting costs nothing, and who wants to tell it reads."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rota.core.model import AttemptResult

LATE = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)  # seconds


@dataclass(slots=True)
class Metrics:
    looked: float | None = None  # when the scheduler here last knew what is due, on the stopwatch
    fired: int = 0
    refused: int = 0  # results of workers that had lost their lease
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and status
    repairs: Counter[str] = field(default_factory=Counter)
    late: list[int] = field(default_factory=lambda: [0] * (len(LATE) + 1))  # slots by how late they started
    late_sum: float = 0.0

    def ended(self, batch: Sequence[AttemptResult], refused: int) -> None:
        self.refused += refused
        self.runs.update([(one.job.kind, one.status) for one in batch])
        for one in batch:
            if one.job.slot is not None and one.started_at is not None and one.number == 1:
                late = max(0.0, (one.started_at - one.job.run_at).total_seconds())
                self.late[bisect_left(LATE, late)] += 1
                self.late_sum += late
