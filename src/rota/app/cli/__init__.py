"""The command line. It speaks HTTP with a server, except for the commands that are a process themselves.

Data goes to stdout, talk and errors to stderr. Modules that take long to import are imported where they are needed:
people wait for `rota --help`.
"""

from pathlib import Path
from typing import Annotated

import typer

from rota.app.cli import processes, runs, schedules, system
from rota.app.cli.connection import Connection, Output

app = typer.Typer(
    name="rota", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.add_typer(schedules.app, name="schedule")
app.add_typer(runs.app, name="run")
app.add_typer(system.slots, name="slots")
app.add_typer(system.tasks, name="task")
app.command("workers")(system.workers)
for command in (processes.up, processes.server, processes.worker, processes.migrate):
    app.command()(command)


@app.callback()
def options(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(envvar="ROTA_SERVER", help="URL of the server (else of server.json)"),
    ] = None,
    key: Annotated[str | None, typer.Option(envvar="ROTA_KEY", help="API key (else of admin.key)")] = None,
    data_dir: Annotated[Path, typer.Option(envvar="ROTA_DATA_DIR", help="data directory")] = Path(".rota"),
    output: Annotated[Output, typer.Option("--output", "-o", help="how answers are written")] = Output.TABLE,
) -> None:
    """A durable rota for code: runs it at the right moment, once per slot, and accounts for every slot.

    Exit codes: 0 ok, 1 failed, 2 wrong use, 3 not found, 4 conflict, 5 refused, 6 timed out, 7 the run failed.
    """
    ctx.obj = Connection(server, key, data_dir, output)


def main() -> None:
    app()
