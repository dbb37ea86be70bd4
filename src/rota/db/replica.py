"""Reads of reports from a replica of the database: a hot standby of PostgreSQL, a little behind the primary.

A read goes to the replica unless its reader has written something that the replica does not have yet, or the replica is
away, too far behind or not a replica of this database: then it goes to the primary.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import text

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import BrokenStatement, DatabaseMisconfigured, Invalid, NotFound, RotaError, Unavailable
from rota.db import identity, schema
from rota.db.connection import Database, P, R, Step
from rota.db.dialect import Tx
from rota.db.driver_errors import driver_error, is_deadlock
from rota.db.outages import Outage
from rota.db.postgres import PostgresDatabase

POLL_SECONDS = 1.0
PROBE_SECONDS = 5.0  # that a measurement may take
POOL = 10
CANCELED_BY_TIMEOUT = "statement timeout"

PRIMARY_POSITION = text("SELECT CAST(pg_current_wal_lsn() AS text)")
REPLICA_POSITION = text("""
    SELECT pg_is_in_recovery() AS standby,
           pg_last_wal_replay_lsn() >= CAST(CAST(:position AS text) AS pg_lsn) AS caught_up,
           extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) AS replayed_seconds_ago""")

log = structlog.get_logger("rota.database")


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The replica as this process sees it. `problem` is why it is not used; `lag_seconds` is None before the first
    measurement."""

    problem: str | None
    lag_seconds: float | None
    fallbacks: int  # reads of this process that went to the primary instead


class QuietOutage(Outage):
    """Logs nothing: `Replica` logs that it does without its database."""

    def lost(self, error: Unavailable, sqlstate: str) -> None:
        pass


class Replica:
    """The replica of one process. `follow` measures it once a second. `on_fallback` is called for each read that went
    to the primary because the replica could not be used."""

    def __init__(
        self, primary: Database, url: str, max_lag_seconds: float, on_fallback: Callable[[], None] = lambda: None
    ) -> None:
        self.primary, self.max_lag_seconds, self.on_fallback = primary, max_lag_seconds, on_fallback
        self.database = PostgresDatabase(url, POOL)
        self.database.outage = QuietOutage()
        self.problem: str | None = "it has not been measured yet"
        self.lag_seconds: float | None = None
        self.fallbacks = 0
        self.lost_at: float | None = None
        self._identity: identity.DatabaseIdentity | None = None
        self._caught_up_to = float("-inf")  # stopwatch time: what was committed before it is on the replica
        self._written: dict[str, float] = {}  # when readers last wrote, as far as the replica may not have it
        self._unusable = asyncio.Event()

    @property
    def state(self) -> ReplicaState:
        return ReplicaState(self.problem, self.lag_seconds, self.fallbacks)

    def of_reader(self, reader: str) -> "ReplicaReads":
        """Return the database for the reads of a reader, who sees what it has written through this process."""
        return ReplicaReads(self, reader)

    def record_write(self, reader: str) -> None:
        """Read from the primary for this reader until the replica has everything that is committed by now."""
        self._written[reader] = stopwatch()

    def has_writes_of(self, reader: str) -> bool:
        return self._written.get(reader, float("-inf")) < self._caught_up_to

    async def read(self, reader: str, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step that only reads. What is not found on the replica is looked for on the primary."""
        if self.problem is None and self.has_writes_of(reader):
            try:
                return await self._read_replica(step, *args, **kwargs)
            except NotFound:
                return await self.primary.read(step, *args, **kwargs)
            except (Unavailable, BrokenStatement) as error:
                cause = error.__cause__ or error
                if CANCELED_BY_TIMEOUT in str(driver_error(cause)):
                    raise
                if isinstance(error, Unavailable) and not is_deadlock(cause):  # else in conflict with the recovery
                    self.lost(error.message)
                self.count_fallback()
        elif self.problem is not None:
            self.count_fallback()
        return await self.primary.read(step, *args, **kwargs)

    async def _read_replica(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Raises Unavailable also when `follow` finds that the replica does not answer."""
        reading = asyncio.ensure_future(self.database.read(step, *args, **kwargs))
        lost = asyncio.ensure_future(self._unusable.wait())
        try:
            await asyncio.wait([reading, lost], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Unavailable(self.problem or "it was lost")
            return await reading
        finally:
            lost.cancel()
            reading.cancel()

    def count_fallback(self) -> None:
        self.fallbacks += 1
        self.on_fallback()

    async def check(self) -> None:
        """Measure the replica before it is used. Raises Invalid if its URL names something else than a replica of this
        database; one that is away is used when it is there."""
        try:
            await self.measure()
        except Invalid:
            raise
        except RotaError as error:
            self.lost(error.message)

    async def follow(self) -> None:
        """Measure the replica again and again."""
        while True:
            await real_sleep(POLL_SECONDS)
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self.measure()
            except TimeoutError:
                self.lost(f"it did not answer within {PROBE_SECONDS:g} s")
            except RotaError as error:
                self.lost(error.message)

    async def measure(self) -> None:
        """Read how far the replica is behind. Raises Unavailable or Invalid if it cannot be used."""
        asked_at = stopwatch()
        position = await self.primary.read(lambda tx: tx.execute(PRIMARY_POSITION).scalar_one())
        if self._identity is None:
            self._identity = await self._identity_of_primary()
        row = await self.database.read(self._compare, self._identity, position)
        if row.caught_up:
            self._caught_up_to = asked_at
            self._written = {reader: at for reader, at in self._written.items() if at >= asked_at}
        behind = 0.0 if row.caught_up else stopwatch() - self._caught_up_to
        replayed = row.replayed_seconds_ago
        self.lag_seconds = min(behind, float("inf") if replayed is None else max(0.0, float(replayed)))
        if self.lag_seconds > self.max_lag_seconds:
            raise Unavailable(f"it is {self.lag_seconds:.1f} s behind, more than {self.max_lag_seconds:g} s")
        self.found()

    async def _identity_of_primary(self) -> identity.DatabaseIdentity:
        try:
            return await self.primary.read(identity.read)
        except DatabaseMisconfigured:  # the role may not read which server it is
            return await self.primary.read(identity.read, server=False)

    @staticmethod
    def _compare(tx: Tx, expected: identity.DatabaseIdentity, position: str) -> "PositionRow":
        row = tx.execute(REPLICA_POSITION, {"position": position}).one()
        if not row.standby:
            raise Invalid("reports_url", "…", "names a server that is not a standby; name a replica of the database")
        if (difference := expected.difference(identity.read(tx, server=expected.server is not None))) is not None:
            raise Invalid("reports_url", "…", difference)
        if (mismatch := schema.check(tx)) is not None:
            raise Unavailable(mismatch)
        return PositionRow(bool(row.caught_up), row.replayed_seconds_ago)

    def lost(self, problem: str) -> None:
        """Do without the replica from now on; logs it once."""
        first = self.lost_at is None
        self.problem, self.lost_at = problem, self.lost_at or stopwatch()
        self._unusable.set()
        if first:
            log.error("reports replica cannot be used; reading from the primary until it can", reason=problem)

    def found(self) -> None:
        """Use the replica from now on; logs it if it was lost."""
        if self.lost_at is not None:
            log.warning("reports replica is used again", after_seconds=round(stopwatch() - self.lost_at, 1))
        self.problem = self.lost_at = None
        self._unusable.clear()

    async def close(self) -> None:
        await self.database.close()


@dataclass(frozen=True, slots=True)
class PositionRow:
    caught_up: bool
    replayed_seconds_ago: float | None


@dataclass(frozen=True, slots=True)
class ReplicaReads:
    """Reads of one reader."""

    replica: Replica
    reader: str

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.replica.read(self.reader, step, *args, **kwargs)
