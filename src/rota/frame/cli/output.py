"""Output of commands: tables, fields and relative times for people; JSON, JSON Lines and YAML for programs."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from rota.core.timing.describe import short_span
from rota.frame.cli.connection import Answer, Connection, Output, print_stderr
from rota.frame.cli.terminal import json_text, visible

PIPED_WIDTH = 100_000  # columns: a row is never wrapped in a pipe
YAML_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_]+")  # strings that need no quotes


def print_data(connection: Connection, data: object) -> bool:
    """Print an answer as JSON, JSON Lines (one line per item) or YAML. Returns False if --output is a table."""
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


def yaml_lines(data: object, indent: str = "") -> list[str]:
    """Return data as lines of YAML: block style for lists and objects, JSON for scalars."""
    if isinstance(data, dict) and data:
        pairs = [(name if YAML_PLAIN.fullmatch(name) else json.dumps(name), value) for name, value in data.items()]
        pairs = [(f"{name}:", value) for name, value in pairs]
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


def print_list(connection: Connection, page: Answer, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a page of a list, as a table or as data."""
    if print_data(connection, page):
        return
    print_table(columns, rows)
    if page["next_cursor"]:
        print_stderr(f"more items: --cursor {page['next_cursor']}")


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
        grid.add_row(*(Text(cell) for cell in cells))  # Text: names of users must not be parsed as markup
    # one line per row in a pipe or file, for grep
    Console(highlight=False, width=None if terminal else PIPED_WIDTH).print(grid, crop=False)


@contextlib.contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; nothing otherwise. Yields a function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def print_details(connection: Connection, data: Answer, fields: Iterable[str]) -> None:
    """Print one resource, a line per field; empty fields are left out."""
    if print_data(connection, data):
        return
    pairs = [(field, plain(data.get(field))) for field in fields]
    width = max(len(field) for field, _ in pairs)
    for field, value in pairs:
        if value:
            print(f"{field:<{width}}  {visible(value)}")


def plain(value: object) -> str:
    if value is None or value == [] or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def relative_time(time: str | None) -> str:
    """Return a time as `in 5m` or `2h ago`; from one day on as the local date."""
    if time is None:
        return "-"
    from rota.core.clock import system_time

    at = datetime.fromisoformat(time)
    distance = at - system_time()
    if abs(distance) >= timedelta(days=1):
        return f"{at.astimezone():%Y-%m-%d %H:%M}"
    text = short_span(abs(distance))
    return f"in {text}" if distance > timedelta(0) else f"{text} ago"


def duration(started: str | None, finished: str | None) -> str:
    if started is None or finished is None:
        return "-"
    span = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
    return f"{span.total_seconds():.2f}s" if span < timedelta(seconds=10) else short_span(span)


def local_time(time: str | None) -> str:
    return "-" if time is None else f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
