"""Columns of lists, which each reader chooses; the choice is kept in a cookie per list."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

COOKIE = "rota_columns_"
FIELD = "column."  # prefix of the checkboxes of the form


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    shown: bool = True  # unless the reader chooses otherwise
    number: bool = False


RUNS = (
    Column("status", "Status"),
    Column("slot", "Slot"),
    Column("started", "Started"),
    Column("duration", "Duration", number=True),
    Column("reason", "Reason"),
    Column("kind", "Kind", shown=False),
    Column("trigger", "Trigger", shown=False),
    Column("attempt", "Attempt", shown=False, number=True),
    Column("queued", "Queued", shown=False),
    Column("waited", "Waited", shown=False, number=True),
    Column("finished", "Finished", shown=False),
    Column("worker", "Worker", shown=False),
    Column("cpu", "CPU", shown=False, number=True),
    Column("memory", "Memory", shown=False, number=True),
    Column("input", "Input", shown=False),
    Column("id", "Id", shown=False),
)
SCHEDULES = (
    Column("when", "When"),
    Column("next", "Next"),
    Column("slots", "Last 30 slots"),
    Column("last", "Last"),
    Column("target", "Target", shown=False),
    Column("zone", "Time zone", shown=False),
    Column("counts", "Runs, failed, skipped", shown=False, number=True),
    Column("created", "Created by", shown=False),
)
LISTS: Mapping[str, tuple[Column, ...]] = {"runs": RUNS, "schedules": SCHEDULES}


def chosen(request: Request, name: str) -> list[Column]:
    """Return the columns of a list that the reader sees, in the order of the list."""
    names = request.cookies.get(COOKIE + name, "").split(".")
    columns = [column for column in LISTS[name] if column.name in names]
    return columns or [column for column in LISTS[name] if column.shown]


def cookie_value(name: str, form: Mapping[str, str]) -> str:
    """Return the columns that a form checks, as the value of the cookie; empty for the default ones."""
    checked = [column for column in LISTS[name] if FIELD + column.name in form]
    return "" if checked == [column for column in LISTS[name] if column.shown] else ".".join(c.name for c in checked)
