"""Lists in pages. The cursor holds the sort key of the last row shown, so a page costs the same at any depth and rows
inserted or deleted between two requests shift nothing."""

import base64
import binascii
import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, or_

from rota.core.errors import Invalid
from rota.core.timing.triggers import parse_instant
from rota.db.dialect import Tx

Record = dict[str, Any]
Page = tuple[list[Record], str | None]

PAGE_ROWS = 50
PAGE_ROWS_MAX = 200


def dict_of(row: Any) -> Record:
    """Return a row as a dict by column name."""
    return dict(zip(plain_names(row._fields), row, strict=True))


@functools.lru_cache
def plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Column names as plain `str`: orjson refuses SQLAlchemy's subclass as a key."""
    return tuple(map(str, names))


def page_by(
    tx: Tx,
    stmt: Select[Any],
    key: ColumnElement[str],
    limit: int,
    cursor: str | None,
    record: Callable[[Any], Record] = dict_of,
    *,
    descending: bool = False,
) -> Page:
    """Return one page in the order of `key`, a unique column that `stmt` selects, and the cursor of the next page."""
    stmt = stmt.order_by(key.desc() if descending else key)
    if cursor:
        last = read_cursor(cursor)[0]
        stmt = stmt.where(key < last if descending else key > last)
    return read_page(tx, stmt, limit, record, lambda row: [row._mapping[key]])


def page_by_time(
    tx: Tx,
    stmt: Select[Any],
    time: ColumnElement[datetime],
    key: ColumnElement[str],
    limit: int,
    cursor: str | None,
    record: Callable[[Any], Record] = dict_of,
) -> Page:
    """Return one page, newest first by `time` and then `key`; `stmt` selects both columns."""
    stmt = stmt.order_by(time.desc(), key.desc())
    if cursor:
        text, last = read_cursor(cursor, 2)
        stmt = stmt.where(*older_than(time, key, parse_instant(text, "cursor"), last))
    return read_page(tx, stmt, limit, record, lambda row: [row._mapping[time].isoformat(), row._mapping[key]])


def older_than(
    time: ColumnElement[datetime], key: ColumnElement[str], at: datetime, last: str
) -> tuple[ColumnElement[bool], ...]:
    """Conditions for rows after (`at`, `last`) in descending order. The first one alone can be served by an index."""
    return time <= at, or_(time < at, key < last)


def read_page(
    tx: Tx, stmt: Select[Any], limit: int, record: Callable[[Any], Record], key: Callable[[Any], list[str]]
) -> Page:
    """Return up to `limit` records, and the cursor of the next page, made of `key` of the last row; None at the end."""
    rows = tx.execute(stmt.limit(limit + 1)).all()
    shown = rows[:limit]
    return [record(row) for row in shown], write_cursor(*key(shown[-1])) if len(rows) > limit else None


def write_cursor(*key: str) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def read_cursor(text: str, parts: int = 1) -> list[str]:
    """Return the key inside a cursor. Raises Invalid unless `write_cursor` wrote it with that many parts."""
    try:
        key = orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        key = None
    if not isinstance(key, list) or len(key) != parts or any(not isinstance(part, str) or "\0" in part for part in key):
        raise invalid_cursor(text)
    return key


def invalid_cursor(text: str | None) -> Invalid:
    return Invalid("cursor", text, "is not a cursor of this list; use next_cursor of the previous page")


def matching(stmt: Select[Any], *filters: tuple[ColumnElement[Any], Any]) -> Select[Any]:
    """Keep rows whose columns equal the values; a value of None does not filter."""
    return stmt.where(*(column == value for column, value in filters if value is not None))


def within(stmt: Select[Any], time: ColumnElement[Any], since: datetime | None, until: datetime | None) -> Select[Any]:
    """Keep rows with `since` <= `time` < `until`; None is no bound."""
    if since is not None:
        stmt = stmt.where(time >= since)
    return stmt if until is None else stmt.where(time < until)
