"""Where claimed jobs wait for a place: one line for each org. The orgs take turns, so that who comes with one job does
not wait behind the crowd of another."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from rota.core.model import Job


class Lines:
    def __init__(self) -> None:
        self._lines: dict[str, deque[Job]] = {}  # the org whose turn it is first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        return (job for line in self._lines.values() for job in line)

    @property
    def orgs(self) -> Collection[str]:
        return self._lines.keys()

    def count(self, org_id: str) -> int:
        return len(self._lines.get(org_id, ()))

    def extend(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._lines.setdefault(job.org_id, deque()).append(job)
            self._count += 1

    def next(self, full: Collection[str] = ()) -> Job | None:
        """The first job of the org whose turn it is, but for orgs that are `full`; it is the next org's turn then. None
        if no other org has one."""
        org_id = next((org for org in self._lines if org not in full), None)
        if org_id is None:
            return None
        line = self._lines[org_id]
        job = line.popleft()
        self._count -= 1
        if not line or len(self._lines) > 1:
            del self._lines[org_id]
            if line:
                self._lines[org_id] = line
        return job

    def remove(self, job: Job) -> None:
        line = self._lines[job.org_id]
        line.remove(job)
        self._count -= 1
        if not line:
            del self._lines[job.org_id]

    def clear(self) -> None:
        self._lines.clear()
        self._count = 0
