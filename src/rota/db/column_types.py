"""Column types that are the same on both databases: instants, durations and JSON."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import BigInteger, DateTime, Dialect, Float, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


class Instant(TypeDecorator[datetime]):
    """An instant in UTC: `timestamptz` on PostgreSQL, microseconds since 1970 on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else DateTime(timezone=True))

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], object] | None:
        return ticks_of if dialect.name == "sqlite" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:  # noqa: ARG002
        return instant_of if dialect.name == "sqlite" else None  # asyncpg gives UTC


def ticks_of(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - EPOCH) // TICK


def instant_of(ticks: int | None) -> datetime | None:
    return None if ticks is None else EPOCH + timedelta(0, 0, ticks)  # faster than by name


class Double(TypeDecorator[float]):
    """A double; both drivers return it as a float."""

    impl = Float
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> None:  # noqa: ARG002
        return None  # SQLAlchemy's would ask for the type that the driver returned, which hot statements do not know


class Json(TypeDecorator[object]):
    """A JSON text, the same bytes on both databases; the database does not parse it."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[object], str | None]:  # noqa: ARG002
        return json_text

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], object]:  # noqa: ARG002
        return json_value


def json_text(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def json_value(text: str | None) -> object:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return Damaged(text)


class Damaged(str):
    """A text that should be JSON and is not. Returned instead of an error, so that one bad row hides no others."""
