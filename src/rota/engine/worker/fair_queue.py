"""Prefetched jobs: a FIFO per org. The orgs take turns, so that a single job of one org does not wait behind a large
batch of another."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from rota.core.model import Job


class FairQueue:
    """The jobs that a worker holds and has not started."""

    def __init__(self) -> None:
        self._by_org: dict[str, deque[Job]] = {}  # in the order of their turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        return (job for fifo in self._by_org.values() for job in fifo)

    @property
    def orgs(self) -> Collection[str]:
        """The ids of the orgs with a job here."""
        return self._by_org.keys()

    def count(self, org_id: str) -> int:
        """How many jobs of an org are here."""
        return len(self._by_org.get(org_id, ()))

    def extend(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._by_org.setdefault(job.org_id, deque()).append(job)
            self._count += 1

    def next(self, full: Collection[str] = ()) -> Job | None:
        """Remove and return the first job of the org whose turn it is, passing over orgs that are `full`; the turn goes
        to the next org. None if every org with a job is full."""
        for org_id in self._by_org:
            if org_id not in full:
                break
        else:
            return None
        fifo = self._by_org[org_id]
        job = fifo.popleft()
        self._count -= 1
        if not fifo or len(self._by_org) > 1:
            del self._by_org[org_id]
            if fifo:
                self._by_org[org_id] = fifo
        return job

    def remove(self, job: Job) -> None:
        fifo = self._by_org[job.org_id]
        fifo.remove(job)
        self._count -= 1
        if not fifo:
            del self._by_org[job.org_id]

    def clear(self) -> None:
        self._by_org.clear()
        self._count = 0
