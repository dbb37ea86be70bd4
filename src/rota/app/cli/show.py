"""Answers as people read them: tables that fit 80 columns, and moments relative to now."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from rota.app.cli.connection import Connection, Output, say

UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def as_json(connection: Connection, data: Any) -> bool:
    """Print the answer as it came, if that was asked for."""
    if connection.output is Output.JSON:
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return True
    return False


def listing(
    connection: Connection, page: dict[str, Any], columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """A list as a table."""
    if as_json(connection, page):
        return
    table(columns, rows)
    if page["next_cursor"]:
        say(f"there are more: --cursor {page['next_cursor']}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        grid.add_column(name.upper(), overflow="fold", no_wrap=name in ("id", "slot"))
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))  # as text: what users named must not be read as markup
    Console(highlight=False).print(grid)


def details(connection: Connection, data: dict[str, Any], fields: Iterable[str]) -> None:
    """One thing, a field per line; empty ones are left out."""
    if as_json(connection, data):
        return
    found = [(field, plain(data.get(field))) for field in fields]
    width = max(len(field) for field, _ in found)
    for field, value in found:
        if value:
            print(f"{field:<{width}}  {value}")


def plain(value: Any) -> str:
    if value is None or value == [] or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def when(moment: str | None) -> str:
    """`in 5m`, `2h ago`; further away than a day the local date."""
    if moment is None:
        return "-"
    from rota.core.clock import wall

    at = datetime.fromisoformat(moment)
    away = at - wall()
    if abs(away) >= timedelta(days=1):
        return f"{at.astimezone():%Y-%m-%d %H:%M}"
    text = short(abs(away))
    return f"in {text}" if away > timedelta(0) else f"{text} ago"


def short(span: timedelta) -> str:
    """A span in its largest unit, or two of them where that is too coarse."""
    seconds = round(span.total_seconds())
    for position, (size, unit) in enumerate(UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            finer = UNITS[position + 1] if whole < 3 and position + 1 < len(UNITS) else None
            return f"{whole}{unit}" + (f"{rest // finer[0]}{finer[1]}" if finer and rest >= finer[0] else "")
    return "0s"


def took(started: str | None, finished: str | None) -> str:
    if started is None or finished is None:
        return "-"
    span = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
    return f"{span.total_seconds():.2f}s" if span < timedelta(seconds=10) else short(span)


def local(moment: str | None) -> str:
    return "-" if moment is None else f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
