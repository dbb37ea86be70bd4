"""Pages of a run's log by line number, filtered and searched. Reads only; the log itself is read by `reports.runs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal, not_, or_, select

from rota.core.log_levels import (
    ESCAPE,
    LEVEL_CHARACTERS,
    SEPARATORS,
    WORDS,
    LogLevel,
    at_least,
    capital_forms,
    level_of,
    logger_forms,
)
from rota.db.dialect import Query, Tx, escape_like
from rota.db.paging import Page, Record, dict_of
from rota.db.tables import logs
from rota.reports.runs import run

MATCHES_MAX = 5000  # lines of a search whose places are returned

g = logs.c


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines of a log are listed; None does not filter."""

    level: LogLevel | None = None  # at least as severe
    stream: str | None = None
    text: str | None = None  # a part of the line, in any case of letters

    @property
    def is_empty(self) -> bool:
        return self.level is None and self.stream is None and self.text is None


def lines_after(tx: Tx, org_id: str, run_id: str, after: int, limit: int, wanted: LogFilter) -> Page:
    """Return a page of the lines of a run that match, oldest first. Raises NotFound."""
    run(tx, org_id, run_id)  # another org's run is not found
    stmt = select(g.id, g.at, g.stream, g.text).where(g.run_id == run_id, g.id > after, *conditions(wanted))
    lines = [dict_of(row) for row in tx.execute(stmt.order_by(g.id).limit(limit + 1))]
    return lines[:limit], str(lines[limit - 1]["id"]) if len(lines) > limit else None


def count(tx: Tx, run_id: str, wanted: LogFilter) -> int:
    """Return the number of lines that match."""
    stmt = select(func.count()).select_from(logs).where(g.run_id == run_id, *conditions(wanted))
    return int(tx.execute(stmt).scalar_one())


def page(tx: Tx, run_id: str, start: int, limit: int, wanted: LogFilter) -> list[Record]:
    """Return lines that match, from the one at the place `start` on (0 is the first), with their numbers in the whole
    log and their levels."""
    columns = (g.id, g.at, g.stream, g.text)
    if wanted.is_empty:  # the number follows from the place: an index finds the line
        first = select(g.id).where(g.run_id == run_id).order_by(g.id).offset(start).limit(1).scalar_subquery()
        stmt: Query = select(*columns).where(g.run_id == run_id, g.id >= first).order_by(g.id).limit(limit)
        lines = [{**dict_of(row), "number": start + place} for place, row in enumerate(tx.execute(stmt), 1)]
    else:
        stmt = select(*columns).where(g.run_id == run_id, *conditions(wanted)).order_by(g.id)
        lines = [dict_of(row) for row in tx.execute(stmt.offset(start).limit(limit))]
        numbers = numbers_of(tx, run_id, [line["id"] for line in lines])
        lines = [{**line, "number": numbers[line["id"]]} for line in lines]
    return [{**line, "level": level_of(line["stream"], line["text"])} for line in lines]


def place_of(tx: Tx, run_id: str, number: int, wanted: LogFilter) -> int:
    """Return the place, among the lines that match, of the first one whose number is `number` or higher."""
    if wanted.is_empty:
        return max(0, number - 1)
    before = select(g.id).where(g.run_id == run_id).order_by(g.id).offset(max(0, number - 1)).limit(1)
    line_id = tx.execute(before).scalar()
    if line_id is None:
        return count(tx, run_id, wanted)
    stmt = select(func.count()).select_from(logs).where(g.run_id == run_id, g.id < line_id, *conditions(wanted))
    return int(tx.execute(stmt).scalar_one())


def search(tx: Tx, run_id: str, text: str, wanted: LogFilter) -> tuple[int, list[int]]:
    """Return how many of the lines that match contain a text, and the places of the first MATCHES_MAX of them."""
    condition = contains(text)
    total = select(func.count()).select_from(logs).where(g.run_id == run_id, *conditions(wanted), condition)
    place = func.row_number().over(order_by=g.id).label("place")
    placed = select(place, g.text).where(g.run_id == run_id, *conditions(wanted)).subquery()
    stmt = select(placed.c.place).where(contains(text, placed.c.text)).order_by(placed.c.place).limit(MATCHES_MAX)
    return int(tx.execute(total).scalar_one()), [int(row.place) - 1 for row in tx.execute(stmt)]


def numbers_of(tx: Tx, run_id: str, ids: Sequence[int]) -> dict[int, int]:
    """Return the numbers, in the whole log, of the lines with these ids, which are in order; reads only an index."""
    if not ids:
        return {}
    before = select(func.count()).select_from(logs).where(g.run_id == run_id, g.id < ids[0])
    place = func.row_number().over(order_by=g.id).label("place")
    placed = select(g.id, place).where(g.run_id == run_id, g.id.between(ids[0], ids[-1])).subquery()
    offset = int(tx.execute(before).scalar_one())
    rows = tx.execute(select(placed).where(placed.c.id.in_(ids)))
    return {int(row.id): offset + int(row.place) for row in rows}


def conditions(wanted: LogFilter, columns: Any = g) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter."""
    found: list[ColumnElement[bool]] = []
    if wanted.stream is not None:
        found.append(columns.stream == wanted.stream)
    if wanted.level is not None:
        found.append(or_(*(of_level(level, columns) for level in at_least(wanted.level))))
    if wanted.text is not None:
        found.append(contains(wanted.text, columns.text))
    return found


def contains(text: str, column: ColumnElement[str] = g.text) -> ColumnElement[bool]:
    return func.lower(column).like(func.lower(f"%{escape_like(text)}%"), escape="/")


def of_level(level: LogLevel, columns: Any) -> ColumnElement[bool]:
    """Return the condition that `level_of` expresses; its words in capitals are found by `replace`, which heeds the
    case of letters on both databases, other than LIKE."""
    text, words = columns.text, WORDS[level]
    head = func.substr(text, 1, LEVEL_CHARACTERS)
    spaced: ColumnElement[str] = head
    for separator in SEPARATORS:
        spaced = func.replace(spaced, separator, " ")
    spaced, lower = literal(" ").concat(spaced).concat(" "), func.lower(head)
    forms = []
    for word in words:
        patterns = [f"{word.lower()}:%", *(f"%{escape_like(form)}%" for form in logger_forms(word))]
        capitals = [func.replace(spaced, form, "") != spaced for form in capital_forms(word)]
        coloured = and_(head.like(f"%{ESCAPE}%"), lower.like(f"%m{word.lower()}%"))
        forms.append(
            and_(
                lower.like(f"%{word.lower()}%"),
                or_(*capitals, *(lower.like(p, escape="/") for p in patterns), coloured),
            )
        )
    recorded = or_(*(func.substr(text, 1, len(word) + 1) == f"{word} " for word in words))
    return or_(and_(columns.stream == "log", recorded), and_(not_(columns.stream == "log"), or_(*forms)))
