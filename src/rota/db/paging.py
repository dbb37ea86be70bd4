"""Lists in pages. The cursor holds the sort key of the last row shown, so a page costs the same at any depth and rows
inserted or deleted between two requests shift nothing."""

import base64
import binascii
import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVarTuple

import orjson
from sqlalchemy import ColumnElement, Integer, Row, Select, or_

from rota.core.errors import Invalid
from rota.core.timing.triggers import parse_instant
from rota.db.column_types import Instant
from rota.db.dialect import Tx

Record = dict[str, Any]
Page = tuple[list[Record], str | None]
Ts = TypeVarTuple("Ts")  # the columns of a statement

PAGE_ROWS = 50
PAGE_ROWS_MAX = 200
STATEMENT_ROWS = (PAGE_ROWS + 1, PAGE_ROWS_MAX + 1)  # of a page and one more, as literals of a statement
INTEGER_DIGITS_MAX = 18  # of a number in a cursor: both databases store it in 64 bits


def dict_of(row: Row[*Ts]) -> Record:
    """Return a row as a dict by column name."""
    values: Sequence[object] = row
    return dict(zip(plain_names(row._fields), values, strict=True))


@functools.lru_cache
def plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Column names as plain `str`: orjson refuses SQLAlchemy's subclass as a key."""
    return tuple(map(str, names))


def page_by(
    tx: Tx,
    stmt: Select[*Ts],
    order: ColumnElement[object] | Sequence[ColumnElement[object]],
    limit: int,
    cursor: str | None,
    record: Callable[[Row[*Ts]], Record] = dict_of,
    *,
    descending: bool = False,
) -> Page:
    """Return one page in the order of one or two columns, selected by `stmt` and unique together, and the cursor of the
    next page; None at the end."""
    columns = [order] if isinstance(order, ColumnElement) else list(order)
    stmt = stmt.order_by(*(column.desc() if descending else column for column in columns))
    if cursor:
        parts = zip(read_cursor(cursor, len(columns)), columns, strict=True)
        stmt = stmt.where(*rows_after([key_of(text, column, cursor) for text, column in parts], columns, descending))
    rows = tx.execute(stmt.limit(limit + 1)).all()
    shown = rows[:limit]
    last_key = [text_of(shown[-1]._mapping[column]) for column in columns] if len(rows) > limit else None
    return [record(row) for row in shown], write_cursor(*last_key) if last_key else None


def rows_after(
    last: Sequence[object], columns: Sequence[ColumnElement[object]], descending: bool
) -> list[ColumnElement[bool]]:
    """Return conditions for rows after `last`. Of two columns, an index can serve the condition on the first alone."""
    after = [column < key if descending else column > key for column, key in zip(columns, last, strict=True)]
    if len(columns) == 1:
        return after
    return [columns[0] <= last[0] if descending else columns[0] >= last[0], or_(*after)]


def text_of(key: object) -> str:
    return key.isoformat() if isinstance(key, datetime) else str(key)


def key_of(text: str, column: ColumnElement[object], cursor: str) -> object:
    """Return a part of a cursor as a value of its column. Raises Invalid."""
    if isinstance(column.type, Instant):
        return parse_instant(text, "cursor")
    if not isinstance(column.type, Integer):
        return text
    if not text.isascii() or not text.isdigit() or len(text) > INTEGER_DIGITS_MAX:
        raise invalid_cursor(cursor)
    return int(text)


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


def matching(stmt: Select[*Ts], *filters: tuple[ColumnElement[Any], object]) -> Select[*Ts]:
    """Keep rows whose columns equal the values; a value of None does not filter."""
    return stmt.where(*(column == value for column, value in filters if value is not None))


def within(
    stmt: Select[*Ts],
    time: ColumnElement[object],
    since: datetime | ColumnElement[Any] | None,
    until: datetime | ColumnElement[Any] | None,
) -> Select[*Ts]:
    """Keep rows with `since` <= `time` < `until`; None is no bound."""
    if since is not None:
        stmt = stmt.where(time >= since)
    return stmt if until is None else stmt.where(time < until)
