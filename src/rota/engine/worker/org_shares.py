"""How many places of a worker each org may hold at once, so that no org holds all of them.

Where there are several orgs, an org without a limit of its own (`max_running`) holds at most four fifths of the places,
and never the last one. With one org, or one place, there is no share.
"""

from collections import Counter
from collections.abc import Collection
from math import ceil

ORG_SHARE = 0.8


class OrgShares:
    """Counts the runs of each org on one worker."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.most: int | None = None  # places that an org without a limit may hold; None: all
        self.limited: Collection[str] = ()  # ids of orgs with a limit of their own, which claims count
        self.running: Counter[str] = Counter()

    def update(self, several: bool, limited: Collection[str]) -> None:
        """Set whether there are several orgs, and which of them have a limit of their own."""
        self.most = min(ceil(self.places * ORG_SHARE), self.places - 1) if several and self.places > 1 else None
        self.limited = limited

    def begin(self, org_id: str) -> None:
        self.running[org_id] += 1

    def end(self, org_id: str) -> None:
        self.running[org_id] -= 1
        if not self.running[org_id]:
            del self.running[org_id]

    def room(self, org_id: str) -> int | None:
        """How many more runs of an org may start here; None: as many as there are places."""
        if self.most is None or org_id in self.limited:
            return None
        return max(0, self.most - self.running[org_id])

    def is_full(self, org_id: str) -> bool:
        return self.room(org_id) == 0

    def full_among(self, orgs: Collection[str]) -> Collection[str]:
        """Which of these orgs may start no further run."""
        return () if self.most is None else {org_id for org_id in orgs if self.is_full(org_id)}
