"""Enqueues jobs in a transaction of the caller: through its own connection, without an engine or a pool of Rota's."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypedDict, TypeVar

from rota.core import parse
from rota.core.errors import Invalid, NotFound
from rota.core.timing import triggers
from rota.db.callers_connection import is_awaited
from rota.db.identity import Identity, identity_of
from rota.engine.callers_transaction import CallersTx, in_callers_transaction, in_callers_transaction_async
from rota.engine.commands import at_payload
from rota.engine.enqueueing import EnqueueOptions, check_rules
from rota.kinds.tasks.registry import TaskRegistry
from rota.kinds.tasks.targets import resolve_in
from rota.user_code.injection import Injector

R = TypeVar("R")

KEY_MODES = ["reject", "preserve", "replace"]


class BlockingConnection(Protocol):
    """A connection or session that is not awaited: of SQLAlchemy, psycopg, sqlite3 or Django."""

    def commit(self) -> None: ...


class AwaitedCommit(Protocol):
    """An async connection or session of SQLAlchemy or psycopg."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class AsyncpgConnection(Protocol):
    def is_in_transaction(self) -> bool: ...


AwaitedConnection = AwaitedCommit | AsyncpgConnection


class ManyConnectionOptions(TypedDict, total=False):
    """Options of `Rota.enqueue_many` for callers that pass them on."""

    run_at: str | datetime | None
    queue: str | None
    priority: int | None
    serial_key: str | None
    after: Sequence[str]
    when: str


class ConnectionOptions(ManyConnectionOptions, total=False):
    """Options of `Rota.enqueue` for callers that pass them on."""

    job_key: str | None
    key_mode: str


@dataclass(frozen=True, slots=True)
class EnqueueRequest:
    """The arguments of `Rota.enqueue`, as the caller passed them."""

    task: str | Callable[..., object]
    payloads: Sequence[object]
    run_at: str | datetime | None
    queue: str | None
    priority: int | None
    serial_key: str | None
    job_key: str | None = None
    key_mode: str = "reject"
    after: Sequence[str] = ()
    when: str = "success"

    def options(self, org_id: str) -> EnqueueOptions:
        """Return the options of `Engine.enqueue`. Raises Invalid."""
        return EnqueueOptions(
            run_at=None if self.run_at is None else triggers.parse_instant(self.run_at, "run_at"),
            queue_name=None if self.queue is None else parse.name(self.queue, "queue"),
            priority=None if self.priority is None else parse.whole(self.priority, "priority", -100, 100),
            serial_key=None if self.serial_key is None else f"{org_id}:{parse.label(self.serial_key, 'serial_key')}",
            job_key=None if self.job_key is None else parse.label(self.job_key, "job_key"),
            key_mode=parse.one_of(self.key_mode, "key_mode", KEY_MODES),
            after=self.after,
            when=self.when,
        )


class CallersTransactions:
    """Enqueues tasks of a program in transactions of its callers."""

    def __init__(self, org: str, registry: TaskRegistry, injector: Injector) -> None:
        self.org, self.registry, self.injector = org, registry, injector
        self._identity: tuple[str, Identity] | None = None  # of the database at this URL

    def enqueue(self, request: EnqueueRequest, connection: Any, url: str) -> list[str] | Coroutine[Any, Any, list[str]]:
        """Enqueue on the caller's connection to the database at `url`; returns the ids, or an awaitable of them for a
        connection that is awaited. Raises Invalid, Refused, Unavailable."""
        if is_awaited(connection):
            return self._enqueue_awaited(request, connection, url)
        return in_callers_transaction(connection, self.identity(url), lambda tx: self._enqueue(tx, request))

    def read(self, connection: Any, url: str, step: Callable[[Any, str], R]) -> R:
        """Run a step that reads, with the transaction and the org, on a connection that is not awaited."""
        return in_callers_transaction(
            connection, self.identity(url), lambda callers: step(callers.tx, self._org_id(callers))
        )

    def identity(self, url: str) -> Identity:
        """Return the identity of the database at a URL; connects to it at the first call."""
        if self._identity is None or self._identity[0] != url:
            self._identity = url, identity_of(url)
        return self._identity[1]

    async def _enqueue_awaited(self, request: EnqueueRequest, connection: Any, url: str) -> list[str]:
        identity = await asyncio.to_thread(self.identity, url)
        return await in_callers_transaction_async(connection, identity, lambda tx: self._enqueue(tx, request))

    def _enqueue(self, callers: CallersTx, request: EnqueueRequest) -> list[str]:
        org_id = self._org_id(callers)
        options, target = request.options(org_id), self.registry.name_of(request.task)
        routes, rules = [], []
        for position, payload in enumerate(request.payloads):
            try:
                route, own = resolve_in(callers.tx, org_id, self.org, target, payload, self.registry, self.injector)
                routes.append(route)
                rules.append(check_rules(own, "task", target, options))
            except Invalid as error:
                raise at_payload(error, position, len(request.payloads)) from None
        return callers.enqueue(org_id, "task", target, request.payloads, routes, rules, options)

    def _org_id(self, callers: CallersTx) -> str:
        org_id = callers.org_id(self.org)
        if org_id is None:
            raise NotFound(unknown_org(self.org))
        return org_id


def unknown_org(slug: str) -> str:
    return f"org {slug!r} not found in this database; `rota up` creates the first"
