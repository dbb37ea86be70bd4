"""How a run of a pipeline changes a part of its table, in SQL that all engines read. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from rota.core.errors import Invalid, LogicError

APPEND, MERGE, PARTITION = "append_by", "merge_by", "partition_by"
KINDS = (APPEND, MERGE, PARTITION)
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
BACKFILL_DAYS_MAX = 366
Quote = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Increment:
    """A change of a part of a table, in place of its replacement. `kind` is APPEND, MERGE or PARTITION."""

    kind: str
    columns: tuple[str, ...]
    day: date | None = None  # of a partition

    def new_rows(self, query: str, table: str | None, quote: Quote) -> str:
        """Return the query of the rows that a run writes; `table` is None before the first run."""
        column = f"new_rows.{quote(self.columns[0])}"
        rows = f"SELECT * FROM (\n{query}\n) AS new_rows"
        if self.kind == PARTITION:
            return f"{rows} WHERE CAST({column} AS DATE) = DATE '{self.day}'"
        if self.kind == MERGE:
            return rows
        if table is None:
            return f"{rows} WHERE {column} IS NOT NULL"
        last = f"(SELECT max(old_rows.{quote(self.columns[0])}) FROM {table} AS old_rows)"
        return f"{rows} WHERE {column} > {last} OR ({last} IS NULL AND {column} IS NOT NULL)"

    def replaced_rows(self, new_rows: str, quote: Quote) -> str | None:
        """Return the condition of the rows of the table, as `old_rows`, that the new rows replace; None: no row."""
        if self.kind == PARTITION:
            return f"CAST(old_rows.{quote(self.columns[0])} AS DATE) = DATE '{self.day}'"
        if self.kind == APPEND:
            return None
        same = " AND ".join(f"new_rows.{quote(column)} = old_rows.{quote(column)}" for column in self.columns)
        return f"EXISTS (SELECT 1 FROM {new_rows} AS new_rows WHERE {same})"

    def wrong_keys(self, new_rows: str, quote: Quote) -> str | None:
        """Return the query of the number of keys of a merge that are null or not unique; None without keys."""
        if self.kind != MERGE:
            return None
        keys = ", ".join(map(quote, self.columns))
        null = " OR ".join(f"{quote(column)} IS NULL" for column in self.columns)
        return (
            f"SELECT count(*) FROM (SELECT {keys} FROM {new_rows} GROUP BY {keys} HAVING count(*) > 1 OR {null}) AS k"
        )

    def check_keys(self, wrong: int) -> None:
        """Raises LogicError for wrong keys of a merge."""
        if wrong:
            keys = ", ".join(self.columns)
            raise LogicError(
                f"merge_by {keys}: {wrong} keys of the new rows are null or not unique; nothing is written"
            )


def check_columns(path: str, old: Sequence[str], new: Sequence[str]) -> None:
    """Raises LogicError if new rows have other columns than the table."""
    if set(old) != set(new):
        changed = ", ".join(sorted(set(old) ^ set(new)))
        raise LogicError(f"the columns of pipeline {path!r} changed ({changed}); run it once with full_refresh")


def increment_of(stored: Mapping[str, Sequence[str]] | None) -> Increment | None:
    """Return the increment of a stored pipeline; None if its runs replace its table."""
    for kind, columns in (stored or {}).items():
        return Increment(kind, tuple(columns))
    return None


def flat(stored: Mapping[str, Sequence[str]] | None) -> dict[str, object]:
    """Return the fields of a stored pipeline that say how its table changes."""
    increment = increment_of(stored)
    fields: dict[str, object] = dict.fromkeys(KINDS)
    if increment is not None:
        fields[increment.kind] = list(increment.columns) if increment.kind == MERGE else increment.columns[0]
    return fields


def to_store(
    append_by: str | None, merge_by: Sequence[str] | None, partition_by: str | None
) -> dict[str, list[str]] | None:
    """Return how a table changes, to be stored. Raises Invalid for a wrong column, or for more than one way."""
    fields = {APPEND: append_by, MERGE: merge_by, PARTITION: partition_by}
    ways: dict[str, list[str]] = {}
    for kind, value in fields.items():
        if value is not None:
            names = [value] if isinstance(value, str) else list(value)
            ways[kind] = [read_column(name, kind) for name in names]
    if len(ways) > 1:
        kind, other = list(ways)[:2]
        raise Invalid(other, ways[other], f"does not fit {kind}: a table changes in one way")
    return ways or None


def read_column(value: object, field: str) -> str:
    """Return the name of a column. Raises Invalid."""
    if not isinstance(value, str) or not COLUMN.fullmatch(value):
        raise Invalid(field, value, "is not the name of a column: letters, digits and _, at most 60, no digit first")
    return value


def read_input(increment: Increment | None, payload: object, default_day: date) -> tuple[Increment | None, object]:
    """Return how a run with an input changes the table, and the rest of the input: the parameters of a function.
    Raises Invalid."""
    if increment is None or not isinstance(payload, dict | None):
        return increment, payload
    rest = dict(payload or {})
    full, day = rest.pop("full_refresh", False), rest.pop("day", None) if increment.kind == PARTITION else None
    if not isinstance(full, bool):
        raise Invalid("input.full_refresh", full, "is not true or false")
    if full and day is not None:
        raise Invalid("input.day", day, "cannot be set with full_refresh, which writes all days")
    if increment.kind == PARTITION:
        increment = replace(increment, day=default_day if day is None else read_day(day, "input.day"))
    return None if full else increment, rest


def read_day(value: object, field: str) -> date:
    """Return a day. Raises Invalid."""
    try:
        if isinstance(value, str) and DAY.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise Invalid(field, value, "is not a day like 2026-01-31")


def days_between(first: date, last: date) -> list[date]:
    """Return the days of a backfill. Raises Invalid for a wrong order or too many."""
    count = (last - first).days + 1
    if not 1 <= count <= BACKFILL_DAYS_MAX:
        raise Invalid("to", last.isoformat(), f"is not 0 to {BACKFILL_DAYS_MAX - 1} days after {first.isoformat()}")
    return [first + timedelta(days=number) for number in range(count)]
