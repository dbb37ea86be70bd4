"""What kinds of work and other slices add to the engine, which knows none of them by name.

A kind implements these protocols by its Runner and registers its traits (`core/kinds.py`); what is no kind of work is
registered at assembly as `Extensions`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import structlog

from rota.core.clock import real_sleep
from rota.core.flow import EnqueueRules
from rota.core.model import Schedule
from rota.core.steps import OnNewVersion
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine.instruments import REPAIRS

if TYPE_CHECKING:
    from rota.engine.commands import Engine
    from rota.engine.runner import Runner

# the record of a resource by its org and its id or name; raises NotFound
Describe = Callable[[Tx, str, str], dict[str, object]]
Prune = Callable[["Engine", datetime], Awaitable[None]]

PRUNE_CHUNK_ROWS = 500
PRUNE_PAUSE_SECONDS = 0.05  # between chunks, for other writers

log = structlog.get_logger("rota.maintenance")


@dataclass(frozen=True, slots=True)
class Extensions:
    """What slices that are not kinds of work add."""

    describers: Mapping[str, Describe] = field(default_factory=dict)  # for the audit log, by resource as in the path
    prunes: Sequence[Prune] = ()  # steps of maintenance that delete old rows


@runtime_checkable
class DescribesResources(Protocol):
    """A kind of work whose resources the audit log describes before and after a change."""

    describers: Mapping[str, Describe]


@runtime_checkable
class ReadsTargets(Protocol):
    """A kind of work whose targets are rows, which a request may create and use in one transaction."""

    def reading(self, db: Database) -> "Runner":
        """Return this runner with targets read through `db`, without caches that others share."""
        ...


@runtime_checkable
class Reconciles(Protocol):
    """A kind of work that repairs its own rows."""

    async def reconcile(self, engine: "Engine", now: datetime) -> None:
        """Find inconsistent rows, repair them and record that by `record_repair`. Called at start and every five
        minutes."""
        ...


@runtime_checkable
class Prunes(Protocol):
    """A kind of work that keeps rows of its own for a limited time."""

    async def prune(self, engine: "Engine", now: datetime) -> None:
        """Delete what is older than it is kept, in chunks."""
        ...


@runtime_checkable
class DeletesWithSchedule(Protocol):
    """A kind of work whose targets may end with their last schedule."""

    def schedule_deleted(self, tx: Tx, schedule: Schedule) -> None:
        """Called in the transaction that deletes a schedule."""
        ...


@runtime_checkable
class RulesEnqueuing(Protocol):
    """A kind of work whose targets decide about their jobs as they are enqueued."""

    async def enqueue_rules(self, org_id: str, target: str, payload: object) -> EnqueueRules | None:
        """Return the rules of a target for a job with this payload; None without any."""
        ...


@runtime_checkable
class RulesVersions(Protocol):
    """A kind of work whose runs record steps."""

    def on_new_version(self, tx: Tx, org_id: str, target: str) -> OnNewVersion:
        """Return what becomes of runs of a target whose version no live worker has."""
        ...


@runtime_checkable
class ExplainsRoutes(Protocol):
    """A kind of work that knows why no live worker runs a job."""

    def why_no_worker(self, tx: Tx, org_id: str, route: str, now: datetime) -> str | None:
        """Return the reason as a sentence, None for a route of another kind."""
        ...


async def prune_in_chunks(db: Database, step: Callable[..., int], *args: object) -> None:
    """Repeat `step(tx, *args, limit)`, which deletes at most `limit` rows and returns their number, until fewer are
    left."""
    while await db.tx(step, *args, PRUNE_CHUNK_ROWS) == PRUNE_CHUNK_ROWS:
        await real_sleep(PRUNE_PAUSE_SECONDS)


def record_repair(engine: "Engine", repaired: str, count: int) -> None:
    """Count and log repairs, if there were any."""
    if count:
        engine.metrics.add(REPAIRS, repaired, amount=count)
        log.warning("repaired", what=repaired, count=count)
