"""Rate limits on failed logins and unknown credentials. Each kind of credential and each address is counted
separately: failures from one address do not lock out others."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address

from rota.core.errors import Refused

FAILURES_PER_MINUTE = 20
PASSWORDS_PER_ADDRESS = 100  # wrong passwords per minute from one address, for any number of users
PASSWORDS_PER_PERSON = 200  # wrong passwords per minute for one user, from any number of addresses
IPV6_PREFIX = 64  # bits: the addresses of one subscriber are counted together


class TooManyFailures(Refused):
    """Too many failed attempts: 429."""

    code = "too_many_failures"

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many failed attempts; try again in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Bucket:
    """A counter of failed attempts and its limit per minute."""

    name: str
    limit: int = FAILURES_PER_MINUTE


class FailedAttempts:
    """Failed attempts of the last minute by bucket. Kept in memory, per server process: an attacker cannot cause
    database writes."""

    WINDOW = timedelta(minutes=1)
    MAX_BUCKETS = 10_000

    def __init__(self) -> None:
        self.seen: dict[str, list[datetime]] = {}

    def check(self, now: datetime, *buckets: Bucket) -> None:
        """Raises TooManyFailures if one of these buckets is full."""
        for bucket in buckets:
            recent = [at for at in self.seen.get(bucket.name, ()) if now - at < self.WINDOW]
            if len(recent) >= bucket.limit:
                raise TooManyFailures(max(1, round((recent[0] + self.WINDOW - now).total_seconds())))

    def add(self, now: datetime, *buckets: Bucket) -> None:
        for bucket in buckets:
            recent = [at for at in self.seen.pop(bucket.name, ()) if now - at < self.WINDOW]
            self.seen[bucket.name] = [*recent, now][
                -bucket.limit :
            ]  # moved to the end of the dict: the oldest buckets are dropped first
        while len(self.seen) > self.MAX_BUCKETS:
            del self.seen[next(iter(self.seen))]

    def count(self, now: datetime, *buckets: Bucket) -> None:
        """Count a failed attempt; raises TooManyFailures instead if there were too many before it."""
        self.check(now, *buckets)
        self.add(now, *buckets)

    def uncount(self, at: datetime, *buckets: Bucket) -> None:
        """Remove an attempt that was counted before its check and then succeeded."""
        for bucket in buckets:
            if at in self.seen.get(bucket.name, ()):
                self.seen[bucket.name].remove(at)


def network_of(address: str | None) -> str:
    """Return the address by which failures are counted: for IPv6, its /64 network."""
    try:
        known = ip_address(address or "")
    except ValueError:
        return str(address)
    if isinstance(known, IPv6Address):
        if known.ipv4_mapped is not None:
            return str(known.ipv4_mapped)
        return f"{IPv6Address(int(known) >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX))}/{IPV6_PREFIX}"
    return str(known)
