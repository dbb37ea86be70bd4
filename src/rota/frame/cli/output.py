"""Output of commands: tables, fields and relative times for people; JSON, JSON Lines, YAML and CSV for programs."""

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from rota.frame.cli.connection import Answer, Connection, Exit, Output, fail, print_stderr
from rota.frame.cli.terminal import CONTROL, json_text, output, visible

PIPED_WIDTH = 100_000  # columns: a row is never wrapped in a pipe


def print_data(connection: Connection, data: object) -> bool:
    """Print an answer, or what --query selects from it, in the format of --output; a selection is printed as text,
    a table or JSON if the format is a table. Returns False if nothing was printed because a table is wanted."""
    if connection.for_people:
        return False
    if connection.query is not None:
        data = select(data, connection.query)
    match connection.output:
        case Output.JSON:
            print(json_text(data, indent=2))
        case Output.JSONL:
            for item in items_of(data):
                print(json_text(item), flush=True)
        case Output.YAML:
            print(yaml_text(data), end="")
        case Output.CSV:
            columns, rows = grid_of(data)
            csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows] if columns else rows)
        case Output.TABLE | Output.WIDE:
            print_selection(connection, data)
    return True


def check_query(query: str) -> None:
    """Exit with USAGE if a query is not a JMESPath expression."""
    import jmespath

    try:
        jmespath.compile(query)
    except jmespath.exceptions.JMESPathError as error:
        fail(f"--query {query!r} is not a valid JMESPath expression: {error}", Exit.USAGE)


def select(data: object, query: str) -> object:
    """Return what a JMESPath expression selects. Exits with USAGE if it does not fit the data."""
    import jmespath

    try:
        return jmespath.search(query, data)
    except jmespath.exceptions.JMESPathError as error:
        fail(f"--query {query!r} cannot be applied to the answer: {error}", Exit.USAGE)


def print_selection(connection: Connection, data: object) -> None:
    """Print text and numbers in a line each, a list of objects as a table, everything else as JSON."""
    items = data if isinstance(data, list) else [data]
    if items and all(isinstance(item, dict) for item in items) and isinstance(data, list):
        columns, rows = grid_of(data)
        print_table(columns, rows, wide=connection.output is Output.WIDE)
    elif any(isinstance(item, dict | list) for item in items):
        print(json_text(data, indent=2))
    else:
        for item in items:
            print(visible(plain(item)))


def items_of(data: object) -> list[Any]:
    """Return the items of a page or list; of anything else, a list with it alone."""
    items = data["items"] if isinstance(data, dict) and "items" in data else data
    return items if isinstance(items, list) else [items]


def grid_of(data: object) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows for items that are objects, in the order of their fields; other items have no columns."""
    items = items_of(data)
    if not all(isinstance(item, dict) for item in items):
        return [], [[cell(value) for value in (item if isinstance(item, list) else [item])] for item in items]
    columns = list(dict.fromkeys(name for item in items for name in item))
    return [output(name) for name in columns], [[cell(item.get(name)) for name in columns] for item in items]


def cell(value: object) -> str:
    """Return a value for programs: text as it is, everything else as JSON."""
    text = "" if value is None else value if isinstance(value, str) else json_text(value)
    return output(text)


def yaml_text(data: object) -> str:
    """Return data as YAML. Text with control characters or bidirectional overrides makes all of it ASCII."""
    import yaml

    is_unsafe = CONTROL.search(json.dumps(data, ensure_ascii=False)) is not None
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=not is_unsafe, width=sys.maxsize))


def print_list(
    connection: Connection,
    page: Answer,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    wide: Sequence[str] | None = None,
) -> None:
    """Print a page of a list, as a table or as data. The format `wide` adds the fields `wide` of the items, by default
    all that have a value."""
    if print_data(connection, page):
        return
    is_wide = connection.output is Output.WIDE
    if is_wide:
        items = page["items"]
        others = wide or [name for name in fields_with_values(items) if name not in columns]
        values = ([for_people(name, item.get(name)) for name in others] for item in items)
        columns, rows = (*columns, *others), [[*row, *more] for row, more in zip(rows, values, strict=True)]
    print_table(columns, rows, is_wide)
    if page["next_cursor"]:
        print_stderr(f"more items: --cursor {page['next_cursor']}")


def fields_with_values(items: Sequence[Answer]) -> list[str]:
    """Return the names of fields that have a value in an item, except objects, which do not fit into a cell."""
    objects = {name for item in items for name, value in item.items() if isinstance(value, dict)}
    return list(dict.fromkeys(name for item in items for name in item if plain(item[name]) and name not in objects))


def for_people(field: str, value: object) -> str:
    """Return a value for a cell: a time without its fraction, in the machine's zone; texts of a list with commas."""
    if isinstance(value, str) and field.endswith("_at"):
        return local_time(value)
    return (
        ", ".join(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else plain(value)
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], wide: bool = False) -> None:
    """Print a table that fits the terminal; in a pipe, and if it is wide, with one line per row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        grid.add_column(name.upper(), overflow="fold", no_wrap=name in ("id", "slot"))
    in_lines = wide or not sys.stdout.isatty()
    for row in rows:
        cells = (" ".join(visible(text).split("\n")) if in_lines else visible(text) for text in row)
        grid.add_row(*(Text(text) for text in cells))  # Text: names of users must not be parsed as markup
    Console(highlight=False, width=PIPED_WIDTH if in_lines else None).print(grid, crop=False)


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
    """Print one resource, a line per field; empty fields are left out. The format `wide` prints all fields."""
    if print_data(connection, data):
        return
    names = dict.fromkeys([*fields, *data]) if connection.output is Output.WIDE else fields
    pairs = [(name, plain(data.get(name))) for name in names]
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
    from rota.core.timing.describe import short_span

    at = datetime.fromisoformat(time)
    distance = at - system_time()
    if abs(distance) >= timedelta(days=1):
        return f"{at.astimezone():%Y-%m-%d %H:%M}"
    text = short_span(abs(distance))
    return f"in {text}" if distance > timedelta(0) else f"{text} ago"


def duration(started: str | None, finished: str | None) -> str:
    if started is None or finished is None:
        return "-"
    from rota.core.timing.describe import short_span

    span = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
    return f"{span.total_seconds():.2f}s" if span < timedelta(seconds=10) else short_span(span)


def local_time(time: str | None) -> str:
    return "-" if time is None else f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
