"""The `Rota` object of a Django project: its tasks close their database connections as requests do."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, transaction

from rota.app.application import Rota
from rota.app.callers_transactions import ConnectionOptions, ManyConnectionOptions
from rota.db.paging import Record
from rota.django.settings import database_alias, database_url, read_settings
from rota.reports import jobs as job_reports

F = TypeVar("F", bound=Callable[..., Any])


class DjangoRota(Rota):
    """The program of a Django project. Database and organisation are those of its settings."""

    @overload
    def task(self, name: F) -> F: ...
    @overload
    def task(self, name: str | None = None, **options: object) -> Callable[[F], F]: ...
    def task(self, name: F | str | None = None, **options: object) -> F | Callable[[F], F]:
        """Register a function as a task, as `Rota.task` does. Before and after it, connections to databases that are
        too old or broken are closed (CONN_MAX_AGE)."""
        if name is not None and not isinstance(name, str):
            return super().task(closing_connections(name))

        def register(function: F) -> F:
            return super(DjangoRota, self).task(name, **options)(closing_connections(function))

        return register

    def _url(self) -> str:
        return database_url()  # not the environment: Django's test runner changes the name of the database

    def read_job(self, job_id: str) -> list[Record]:
        """Return the attempts of a job, with their outcome, through Django's connection. Raises NotFound."""
        alias = database_alias()
        with transaction.atomic(using=alias):
            return self._callers.read(
                connections[alias], self._url(), lambda tx, org_id: job_reports.attempts_of(tx, org_id, job_id)[1]
            )


def closing_connections(function: F) -> F:
    """Return the function with Django's care for database connections around it."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            await sync_to_async(close_old_connections)()  # in the thread of Django's async queries
            try:
                return await function(*args, **kwargs)
            finally:
                await sync_to_async(close_old_connections)()

        return call_async  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return call  # type: ignore[return-value]


app = DjangoRota(org=read_settings().get("ORG", "default"))


def enqueue(
    task: str | Callable[..., object],
    params: Mapping[str, object] | None = None,
    /,
    **options: Unpack[ConnectionOptions],
) -> str:
    """Enqueue a task through Django's connection; returns the job's id. Inside `transaction.atomic()` the job commits,
    or vanishes, with it. Options as in `Rota.enqueue`; parameters are a mapping."""
    alias = database_alias()
    with transaction.atomic(using=alias):
        return app.enqueue(task, params, connection=connections[alias], **options)


def enqueue_many(
    task: str | Callable[..., object],
    params: Sequence[Mapping[str, object] | None],
    /,
    **options: Unpack[ManyConnectionOptions],
) -> list[str]:
    """Enqueue a job per item of `params`, as `enqueue` does; returns their ids."""
    alias = database_alias()
    with transaction.atomic(using=alias):
        return app.enqueue_many(task, params, connection=connections[alias], **options)
