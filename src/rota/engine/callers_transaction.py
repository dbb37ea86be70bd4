"""A caller's transaction as the engine uses it to enqueue: its checks, its time, its errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from rota.core.errors import DataRefused
from rota.core.flow import EnqueueRules
from rota.db.callers_connection import open_callers, translated_callers
from rota.db.commit_actions import COMMIT_ACTIONS
from rota.db.dialect import NOTIFIED_TOPICS, Tx, on_sqlite
from rota.db.driver_errors import DRIVER_ERRORS
from rota.db.identity import Identity, check_callers
from rota.db.sqlite_lock import lock_file
from rota.db.sqlite_wakeups import mark_pending_commit
from rota.engine import orgs, tracing
from rota.engine.enqueueing import EnqueueOptions, enqueue_step, new_jobs

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CallersTx:
    """The caller's transaction, on the database that its workers use; `now` is the time of that database."""

    tx: Tx
    now: datetime
    identity: Identity

    def org_id(self, slug: str) -> str | None:
        return orgs.org_by_slug(self.tx, slug)

    def enqueue(
        self,
        org_id: str,
        kind: str,
        target: str,
        payloads: Sequence[object],
        routes: Sequence[str],
        rules: Sequence[EnqueueRules],
        options: EnqueueOptions,
    ) -> list[str]:
        """Insert a job per payload, as `Engine.enqueue` does; returns their ids. Workers are notified by the commit."""
        spans = tracing.tracing_of_program()
        trace = None if spans is None else spans.traceparent_of()
        new = new_jobs(org_id, kind, target, payloads, routes, rules, self.now, trace, options)
        step = enqueue_step(new, rules, self.now, options)
        if on_sqlite(self.tx):
            self.tx.info[NOTIFIED_TOPICS] = set()
        ids = step(self.tx)
        self.tx.info.pop(COMMIT_ACTIONS, None)  # the caller's connection would keep them: nothing calls them
        if on_sqlite(self.tx):
            self.tx.info.pop(NOTIFIED_TOPICS)  # the commit is the caller's: it raises no counters
            assert isinstance(self.identity, Path)
            mark_pending_commit(lock_file(self.identity))
        return ids


def in_callers_transaction(connection: Any, identity: Identity, step: Callable[[CallersTx], R]) -> R:
    """Run a step in the caller's open transaction, which stays open. Raises Refused for another database than
    `identity`, for autocommit mode and for a closed connection."""
    callers = open_callers(connection)
    try:
        now = check_callers(callers.tx, identity)
        callers.check_transaction()
        return step(CallersTx(callers.tx, now, identity))
    except (SQLAlchemyError, *DRIVER_ERRORS) as error:
        raise translated_callers(error) from error
    except (UnicodeEncodeError, OverflowError) as error:  # SQLite's driver lets these through as they are
        raise DataRefused(f"a value cannot be stored: {error}") from error


async def in_callers_transaction_async(connection: Any, identity: Identity, step: Callable[[CallersTx], R]) -> R:
    """Run a step in the open transaction of a connection that the caller awaits."""
    return await greenlet_spawn(in_callers_transaction, connection, identity, step)
