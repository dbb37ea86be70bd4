"""Limits on guessing credentials. Each kind of credential and each address has a count of its own, so that guesses of
one kind or from one place do not lock others out."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address

from rota.core.errors import Refused

FAILURES_PER_MINUTE = 20
PASSWORDS_PER_ADDRESS = 100  # wrong passwords a minute from one address, for any number of people
PASSWORDS_PER_PERSON = 200  # wrong passwords a minute for one person, from any number of addresses
IPV6_PREFIX = 64  # bits that one subscriber has: its addresses count together


class TooManyFailures(Refused):
    """Somebody guesses: 429."""

    code = "too_many_failures"

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many failed attempts from here; try again in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Bucket:
    """What failed attempts are counted by, and how many a minute are allowed."""

    name: str
    limit: int = FAILURES_PER_MINUTE


class Failures:
    """Failed attempts of the last minute by bucket. Kept in the process: each server of an installation counts for
    itself, and a guesser cannot make the database write."""

    SPAN = timedelta(minutes=1)
    MOST = 10_000  # buckets that are remembered

    def __init__(self) -> None:
        self.seen: dict[str, list[datetime]] = {}

    def check(self, now: datetime, *buckets: Bucket) -> None:
        """Raises TooManyFailures if one of these is full."""
        for bucket in buckets:
            recent = [at for at in self.seen.get(bucket.name, ()) if now - at < self.SPAN]
            if len(recent) >= bucket.limit:
                raise TooManyFailures(max(1, round((recent[0] + self.SPAN - now).total_seconds())))

    def add(self, now: datetime, *buckets: Bucket) -> None:
        for bucket in buckets:
            recent = [at for at in self.seen.pop(bucket.name, ()) if now - at < self.SPAN]
            self.seen[bucket.name] = [*recent, now][-bucket.limit :]  # as the newest: the oldest are forgotten first
        while len(self.seen) > self.MOST:
            del self.seen[next(iter(self.seen))]

    def count(self, now: datetime, *buckets: Bucket) -> None:
        """Count a failed attempt; raises TooManyFailures instead if there were too many before it."""
        self.check(now, *buckets)
        self.add(now, *buckets)

    def forgive(self, at: datetime, *buckets: Bucket) -> None:
        """One attempt that was counted at its start, and did not fail."""
        for bucket in buckets:
            if at in self.seen.get(bucket.name, ()):
                self.seen[bucket.name].remove(at)


def network_of(address: str | None) -> str:
    """The address that failures are counted by: of IPv6 the network that one subscriber has."""
    try:
        known = ip_address(address or "")
    except ValueError:
        return str(address)
    if isinstance(known, IPv6Address):
        if known.ipv4_mapped is not None:
            return str(known.ipv4_mapped)
        return f"{IPv6Address(int(known) >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX))}/{IPV6_PREFIX}"
    return str(known)
