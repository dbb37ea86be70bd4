"""Errors of the drivers, translated into Rota's own: Unavailable, DataRefused, BrokenStatement, Invalid."""

import sqlite3
from pathlib import Path

import asyncpg
import structlog
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ResourceClosedError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rota.core.errors import BrokenStatement, DataRefused, Invalid, Unavailable
from rota.db.outages import Outage, first_line, is_misconfiguration, unavailable

# InternalClientError: raised when a connection is used while its server is closing it
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
DATABASE_ERRORS = (*DRIVER_ERRORS, StatementError, OSError, TimeoutError, PoolTimeout, ResourceClosedError)
CONNECTION_ERRORS = (InterfaceError, asyncpg.InterfaceError, asyncpg.InternalClientError, sqlite3.InterfaceError)
PROGRAMMING_ERRORS = "42"  # class of SQLSTATE: syntax error, unknown table or column
LOGGED_CHARACTERS = 300  # of a statement that failed
SQLITE_LIMIT_TEXTS = ("too complex", "too many", "too large", "too big")  # of patterns, variables and texts

log = structlog.get_logger("rota.database")


def is_deadlock(error: BaseException) -> bool:
    """Deadlock or serialization failure: the same transaction may simply be tried again."""
    return getattr(driver_error(error), "sqlstate", None) in ("40P01", "40001")


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement waited longer for a lock than its connection allows."""
    return getattr(driver_error(error), "sqlstate", None) == "55P03"


def driver_error(error: BaseException) -> BaseException:
    """The driver's own error."""
    return (error.orig if isinstance(error, DBAPIError) else None) or error


def translated_outage(outage: Outage, error: BaseException) -> Exception:
    """Translate a driver's error and log the outage that begins with it."""
    translation = translated(error)
    if isinstance(translation, Unavailable):
        outage.lost(translation, getattr(driver_error(error), "sqlstate", None) or "")
    return translation


def translated(error: BaseException, file: Path | None = None) -> Exception:
    """Translate a driver's error: Unavailable, DataRefused, BrokenStatement, or Invalid for a statement that is too
    long. The message names `file`, if there is one."""
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return DataRefused(f"a value cannot be stored: {first_line(error.orig)}")
    if isinstance(error, (DBAPIError, sqlite3.Error, *DRIVER_ERRORS)):
        driver = driver_error(error)
        state = getattr(driver, "sqlstate", None) or ""
        if isinstance(driver.__cause__ or driver, asyncpg.DataError | ValueError) and not state:
            return DataRefused(f"a value cannot be stored: {first_line(driver)}")
        if isinstance(driver, sqlite3.Error) and any(text in str(driver) for text in SQLITE_LIMIT_TEXTS):
            return Invalid("request", "…", f"is too long for the database: {first_line(driver)}; shorten it")
        if is_programming_error(driver):
            text = error.statement if isinstance(error, DBAPIError) else None
            log.error(
                "a statement failed", error=first_line(driver), statement=(text or "")[:LOGGED_CHARACTERS] or None
            )
            return BrokenStatement(f"the database cannot run a statement of Rota: {first_line(driver)}")
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        gone = state[:2] in ("08", "57", "53", "55", "25") or isinstance(error, CONNECTION_ERRORS) or is_deadlock(error)
        locked = isinstance(error, OperationalError | sqlite3.OperationalError) and not state
        if not (lost or gone or locked or is_misconfiguration(driver)):
            return DataRefused(f"the database refused a row: {first_line(driver)}")
        return unavailable(driver, file)
    return unavailable(error, file)


def is_programming_error(driver: BaseException) -> bool:
    """Return whether a statement itself is wrong: trying again does not help. SQLite has one code for all of these."""
    state = getattr(driver, "sqlstate", None) or ""
    if isinstance(driver, sqlite3.OperationalError):
        return getattr(driver, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return state.startswith(PROGRAMMING_ERRORS) and not is_misconfiguration(driver)
