"""Answers as people read them: tables that fit 80 columns, and moments relative to now."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from rota.core.timing.describe import short_span
from rota.frame.cli.connection import Connection, Output, print_stderr
from rota.frame.cli.terminal import json_text, visible

PIPED_WIDTH = 100_000  # columns
PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_]+")  # what YAML reads as the text it is


def print_data(connection: Connection, data: Any) -> bool:
    """Print the answer as it came, if that was asked for; a list as JSON Lines is an item per line."""
    match connection.output:
        case Output.JSON:
            print(json_text(data, indent=2))
        case Output.JSONL:
            for item in data["items"] if isinstance(data, dict) and "items" in data else [data]:
                print(json_text(item), flush=True)
        case Output.YAML:
            print("\n".join(yaml_lines(data)))
        case Output.TABLE:
            return False
    return True


def yaml_lines(data: Any, indent: str = "") -> list[str]:
    """YAML in its plainest form: blocks for lists and objects, JSON for everything else, which YAML reads as well."""
    if isinstance(data, dict) and data:
        pairs = [(f"{name if PLAIN.fullmatch(name) else json.dumps(name)}:", value) for name, value in data.items()]
    elif isinstance(data, list) and data:
        pairs = [("-", value) for value in data]
    else:
        return [f"{indent}{json_text(data)}"]
    lines = []
    for head, value in pairs:
        inner = yaml_lines(value, indent + "  ")
        nested = isinstance(value, dict | list) and value
        lines += [f"{indent}{head}", *inner] if nested else [f"{indent}{head} {inner[0].strip()}"]
    return lines


def print_list(
    connection: Connection, page: dict[str, Any], columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """A list as a table."""
    if print_data(connection, page):
        return
    print_table(columns, rows)
    if page["next_cursor"]:
        print_stderr(f"there are more: --cursor {page['next_cursor']}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        grid.add_column(name.upper(), overflow="fold", no_wrap=name in ("id", "slot"))
    terminal = sys.stdout.isatty()
    for row in rows:
        cells = (visible(cell) if terminal else " ".join(visible(cell).split("\n")) for cell in row)
        grid.add_row(*(Text(cell) for cell in cells))  # as text: what users named must not be read as markup
    # in a pipe or file a row is a line: names must be found by grep
    Console(highlight=False, width=None if terminal else PIPED_WIDTH).print(grid, crop=False)


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal while something long goes on; nothing where nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def print_details(connection: Connection, data: dict[str, Any], fields: Iterable[str]) -> None:
    """One thing, a field per line; empty ones are left out."""
    if print_data(connection, data):
        return
    found = [(field, plain(data.get(field))) for field in fields]
    width = max(len(field) for field, _ in found)
    for field, value in found:
        if value:
            print(f"{field:<{width}}  {visible(value)}")


def plain(value: Any) -> str:
    if value is None or value == [] or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def relative_time(moment: str | None) -> str:
    """`in 5m`, `2h ago`; further away than a day the local date."""
    if moment is None:
        return "-"
    from rota.core.clock import system_time

    at = datetime.fromisoformat(moment)
    away = at - system_time()
    if abs(away) >= timedelta(days=1):
        return f"{at.astimezone():%Y-%m-%d %H:%M}"
    text = short_span(abs(away))
    return f"in {text}" if away > timedelta(0) else f"{text} ago"


def duration(started: str | None, finished: str | None) -> str:
    if started is None or finished is None:
        return "-"
    span = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
    return f"{span.total_seconds():.2f}s" if span < timedelta(seconds=10) else short_span(span)


def local_time(moment: str | None) -> str:
    return "-" if moment is None else f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
