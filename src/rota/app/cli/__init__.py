"""The command line: a client of the HTTP API, except for commands that start a process.

Data is printed to stdout, messages and errors to stderr. Slow modules are imported in functions, which keeps the
start-up time of `rota --help` short.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rota.access import cli as access_cli
from rota.access import profiles_cli
from rota.app.cli import (
    calendars,
    catch_ups,
    database,
    export,
    files,
    first_steps,
    freezes,
    hooks,
    importing,
    jobs,
    processes,
    runs,
    saved_views,
    schedules,
    simulation,
    status,
    system,
)
from rota.billing.cli import billing, grants
from rota.frame.cli import follow
from rota.frame.cli.connection import Connection, Output
from rota.frame.cli.options import CommandGroup
from rota.frame.cli.watch import WATCH_INTERVAL_SECONDS
from rota.kinds.alarms import cli as alarms_cli
from rota.kinds.graphs import cli as graphs_cli
from rota.kinds.hosts.cli import agent, hosts
from rota.kinds.pipelines import cli as pipelines_cli
from rota.kinds.tasks import cli as tasks_cli
from rota.kinds.workflows import cli as workflows_cli
from rota.version import __version__

app = CommandGroup(name="rota", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(schedules.app, name="schedule")
app.add_typer(calendars.app, name="calendar")
app.add_typer(runs.app, name="run")
app.add_typer(saved_views.app, name="view")
app.add_typer(jobs.app, name="job")
app.add_typer(hooks.app, name="hook")
app.add_typer(system.slots, name="slots")
app.add_typer(tasks_cli.app, name="task")
app.add_typer(tasks_cli.artifacts, name="artifact")
app.add_typer(system.queues, name="queue")
app.add_typer(freezes.app, name="freeze")
app.add_typer(catch_ups.app, name="catch-up")
app.add_typer(graphs_cli.app, name="graph")
app.add_typer(pipelines_cli.app, name="pipeline")
app.add_typer(workflows_cli.app, name="workflow")
app.add_typer(grants.app, name="grant")
app.add_typer(billing.app, name="billing")
app.add_typer(hosts.app, name="host")
app.add_typer(hosts.servers, name="server-instance")
app.add_typer(hosts.jobs, name="host-job")
app.add_typer(hosts.batches, name="batch")
app.add_typer(agent.app, name="agent")
app.add_typer(alarms_cli.app, name="alarm")
app.add_typer(access_cli.orgs, name="org")
app.add_typer(access_cli.users, name="user")
app.add_typer(access_cli.service_accounts, name="service-account")
app.add_typer(access_cli.keys, name="key")
app.add_typer(access_cli.sessions, name="session")
app.add_typer(profiles_cli.profiles, name="profile")
app.add_typer(processes.admin, name="admin")
app.add_typer(database.app, name="db")
app.add_typer(export.app, name="export")
app.add_typer(importing.app, name="import")
READS: tuple[Callable[..., None], ...] = (
    simulation.simulate,
    system.workers,
    status.status,
    system.failing,
    system.why,
    access_cli.audit,
)
PRINTS: tuple[Callable[..., None], ...] = (
    *(runs.logs, runs.signal, follow.events, access_cli.login, processes.doctor),
    *(files.plan, files.apply),
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(first_steps.demo, first_steps.init),
    *(processes.up, processes.server, processes.worker, processes.migrate, files.schema),
)
for command in READS:
    app.command(reads=True)(command)
for command in PRINTS:
    app.command()(command)
for command in COMMANDS:
    typer.Typer.command(app)(command)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"rota {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(envvar="ROTA_SERVER", help="URL of the server; default: the one in server.json"),
    ] = None,
    key: Annotated[str | None, typer.Option(envvar="ROTA_KEY", help="API key; default: the one in admin.key")] = None,
    data_dir: Annotated[Path, typer.Option(envvar="ROTA_DATA_DIR", help="data directory")] = Path(".rota"),
    output: Annotated[Output, typer.Option("--output", "-o", help="output format")] = Output.TABLE,
    profile: Annotated[
        str | None, typer.Option(envvar="ROTA_PROFILE", help="use the server and key of a profile, see `rota profile`")
    ] = None,
    version: Annotated[  # noqa: ARG001  # its callback prints and exits
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version and exit")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="repeat the command every 2 s until Ctrl-C")] = False,
) -> None:
    """Rota: a durable scheduler. Runs code on schedule, once per slot, and records the outcome of every slot.

    Exit codes: 0 ok, 1 error, 2 usage error, 3 not found, 4 conflict, 5 refused, 6 timed out, 7 the run failed,
    8 a plan has changes.
    """
    ctx.obj = Connection(server, key, data_dir, output, profile, watch=WATCH_INTERVAL_SECONDS if watch else None)


def main() -> None:
    app()
