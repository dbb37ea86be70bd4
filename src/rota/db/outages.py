"""Outages of the database: why it cannot be reached, in plain words, and one log line when it is lost and when it is
back, however many loops and connections of the process notice."""

import sqlite3
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import asyncpg
import structlog

from rota.core.clock import stopwatch
from rota.core.errors import DatabaseMisconfigured, Unavailable
from rota.core.incidents import DATABASE_AWAY

LOST_CONNECTION = (asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.ConnectionDoesNotExistError)
NOT_AN_OUTAGE = ("57014", "55P03")  # statement timeout, lock not available: the database works
REMEDIES = {
    "3D000": "create it (`createdb`), or correct the database URL",
    "28P01": "correct user and password in the database URL",
    "28000": "correct user and password in the database URL, or pg_hba.conf of the server",
    "42501": "give the user of the database URL the permission",
}
FILE_REMEDIES = {
    "file is not a database": "name another file in the database URL",
    "unable to open database file": "check that its directory exists and may be written",
    "database or disk is full": "free space on its disk",
    "disk I/O error": "check that its disk has free space and works",
}

LOST = "database lost; trying again until it is back"

log = structlog.get_logger("rota.database")


class Outage:
    """Of one database, as this process sees it."""

    def __init__(self) -> None:
        self.since: float | None = None
        self.on_lost: Callable[[], None] = lambda: None  # called once for each outage
        self._lock = threading.Lock()  # several event loops of a process share it

    def lost(self, error: Unavailable, sqlstate: str) -> None:
        """Log the first failure; those that follow until `back` are not logged."""
        if sqlstate in NOT_AN_OUTAGE:
            return
        with self._lock:
            first, self.since = self.since is None, self.since or stopwatch()
        if first:
            self.on_lost()
            event = "database cannot be used" if isinstance(error, DatabaseMisconfigured) else LOST
            log.error(event, reason=error.message, page=DATABASE_AWAY)

    def back(self) -> None:
        """Log that it answers again, if it was lost."""
        with self._lock:
            since, self.since = self.since, None
        if since is not None:
            log.warning("database is back", after_seconds=round(stopwatch() - since, 1))


@cache
def outage_of(url: str) -> Outage:  # noqa: ARG001  one for each URL
    return Outage()


def unavailable(driver: BaseException, file: Path | None = None) -> Unavailable:
    """The error for a database that cannot be used: DatabaseMisconfigured if that needs an operator."""
    state = getattr(driver, "sqlstate", None) or ""
    text = first_line(driver)
    remedy = REMEDIES.get(state) or next((fix for words, fix in FILE_REMEDIES.items() if words in text), None)
    if remedy is not None:
        name = "the database" if file is None else f"the database {file}"
        return DatabaseMisconfigured(f"{name} cannot be used: {text}; {remedy}")
    return Unavailable(f"the database is out of reach: {plain_reason(driver)}")


def is_misconfiguration(driver: BaseException) -> bool:
    return isinstance(unavailable(driver), DatabaseMisconfigured)


def plain_reason(driver: BaseException) -> str:
    """Why, without the words of drivers."""
    cause = driver.__cause__ if isinstance(driver.__cause__, Exception) else driver
    if isinstance(driver, TimeoutError):
        return "no answer in time"
    if isinstance(driver, ConnectionRefusedError) or "Connect call failed" in str(driver):
        return "connection refused"
    if isinstance(driver, LOST_CONNECTION) or isinstance(cause, (*LOST_CONNECTION, ConnectionError)):
        return "the connection was lost"
    if isinstance(driver, sqlite3.Error) and "readonly" in str(driver):
        return "it is read-only"
    return first_line(driver) or type(driver).__name__


def first_line(error: BaseException | None) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else ""
