"""Shell completion of names: asks the server, and offers nothing if it does not answer soon."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import typer

from rota.frame.cli.connection import Connection, Output

COMPLETION_TIMEOUT_SECONDS = 1.0
COMPLETION_LIMIT = 200  # a page


def complete(collection: str, field: str = "name") -> Callable[[typer.Context, str], list[str]]:
    """Return the completion of an argument or option: values of a field in a list of the API."""

    def names(ctx: typer.Context, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            return [name for name in values_of(ctx, collection, field, incomplete) if name.startswith(incomplete)]
        return []

    return names


def values_of(ctx: typer.Context, collection: str, field: str, incomplete: str) -> list[str]:
    from rota.client import Client

    options = ctx.find_root().params
    data_dir = Path(options.get("data_dir") or ".rota")
    server, key = Connection(
        options.get("server"), options.get("key"), data_dir, Output.TABLE, options.get("profile")
    ).address()
    part = incomplete if collection == "schedules" else None  # there may be many
    with Client(server, key, timeout=COMPLETION_TIMEOUT_SECONDS, tries=1) as client:
        page = client.call("GET", f"/{collection}", limit=COMPLETION_LIMIT, name=part or None)
    return [str(item[field]) for item in page["items"]]
