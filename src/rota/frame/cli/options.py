"""Options that commands share, and checks of their values."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rota.frame.cli.connection import Exit, fail

Limit = Annotated[int | None, typer.Option(help="maximum number of items, up to 200")]
Cursor = Annotated[str | None, typer.Option(help="`next_cursor` of the previous page")]


def command_group(help: str) -> typer.Typer:
    """Return a group of sub-commands that prints its help if none is given."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def exactly_one(**values: str | None) -> None:
    """Exit with USAGE unless exactly one of these arguments (upper case) and options is set."""
    names = " | ".join(name if name.isupper() else f"--{name}" for name in values)
    if sum(value is not None for value in values.values()) != 1:
        fail(f"give exactly one of {names}", Exit.USAGE)


def read_input(text: str | None, option: str = "--input") -> object:
    """Parse an option that has JSON, or @file. Exits with USAGE if it is not JSON."""
    if text is None:
        return None
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        fail(f"{option} {text}: {error.strerror}", Exit.USAGE)
    except ValueError as error:
        fail(f"{option} is not JSON: {error}", Exit.USAGE)
