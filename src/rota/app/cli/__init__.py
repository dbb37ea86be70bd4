"""The command line: a client of the HTTP API, except for commands that start a process.

Data is printed to stdout, messages and errors to stderr. A command is imported when it is used, and slow modules are
imported in functions: `rota --help` and `rota run list` start in a fraction of the time that all commands take.
"""

from pathlib import Path
from typing import Annotated

import typer

from rota.frame.cli.connection import Connection, Output
from rota.frame.cli.lazy import LazyCommand, lazy_group
from rota.frame.cli.watch import WATCH_INTERVAL_SECONDS
from rota.version import __version__

COMMANDS = (
    LazyCommand(
        "simulate",
        "rota.app.cli.simulation:simulate",
        "Simulate the schedules over a time range: what would run, wait, be skipped or missed, and the load per hour.",
        reads=True,
    ),
    LazyCommand("workers", "rota.app.cli.system:workers", "List worker processes.", reads=True),
    LazyCommand(
        "status",
        "rota.app.cli.status:status",
        "Show the server, workers, queues, schedules, what needs attention, failures and due slots on one screen.",
        reads=True,
    ),
    LazyCommand(
        "failing", "rota.app.cli.system:failing", "List schedules and tasks whose last run failed.", reads=True
    ),
    LazyCommand("why", "rota.app.cli.system:why", "Explain the status of a run, or the verdict of a slot.", reads=True),
    LazyCommand("audit", "rota.access.cli:audit", "List the audit log, newest first: who changed what.", reads=True),
    LazyCommand("logs", "rota.app.cli.runs:logs", "Print the log of a run, or its lines that match."),
    LazyCommand(
        "signal", "rota.app.cli.runs:signal", "Send a signal to a run that waits for it; without one it is kept."
    ),
    LazyCommand("events", "rota.frame.cli.follow:events", "Follow changes in the org until Ctrl-C."),
    LazyCommand("login", "rota.access.cli:login", "Print a login link to the dashboard."),
    LazyCommand(
        "doctor",
        "rota.app.cli.processes:doctor",
        "Check the installation: database, schema, clock, wake-ups, leases, orphaned jobs, schedules.",
    ),
    LazyCommand("plan", "rota.app.cli.files:plan", "Show what an apply of files would change, without storing it."),
    LazyCommand("apply", "rota.app.cli.files:apply", "Create and change what files describe, all or nothing."),
    LazyCommand(
        "demo",
        "rota.app.cli.first_steps:demo",
        "Run a small program with schedules of several kinds, on SQLite and on this machine only.",
        prints=False,
    ),
    LazyCommand(
        "init",
        "rota.app.cli.first_steps:init",
        "Write a small project: a program, a test of it, settings.",
        prints=False,
    ),
    LazyCommand(
        "up",
        "rota.app.cli.processes:up",
        "Run everything in one process: API, dashboard, scheduler and worker.",
        prints=False,
    ),
    LazyCommand(
        "server", "rota.app.cli.processes:server", "Run API and dashboard, without scheduler and worker.", prints=False
    ),
    LazyCommand("worker", "rota.app.cli.processes:worker", "Run scheduler and worker.", prints=False),
    LazyCommand(
        "migrate", "rota.app.cli.processes:migrate", "Migrate the database to the schema of this version.", prints=False
    ),
    LazyCommand("schema", "rota.app.cli.files:schema", "Print the JSON Schema of files.", prints=False),
    LazyCommand("schedule", "rota.app.cli.schedules:app", "Create, list, change and run schedules."),
    LazyCommand(
        "calendar",
        "rota.app.cli.calendars:app",
        "Add, show and edit calendars: named sets of holidays that schedules follow.",
    ),
    LazyCommand("run", "rota.app.cli.runs:app", "List, show, cancel and retry runs."),
    LazyCommand("view", "rota.app.cli.saved_views:app", "Save filters of runs under a name, and share them."),
    LazyCommand("job", "rota.app.cli.jobs:app", "Create, list, show and cancel jobs."),
    LazyCommand("hook", "rota.app.cli.hooks:app", "Add, list, rotate and delete signed webhooks that send signals."),
    LazyCommand("slots", "rota.app.cli.system:slots", "List slots and prove that each has one verdict."),
    LazyCommand("task", "rota.kinds.tasks.cli:app", "List, run, create and schedule tasks."),
    LazyCommand("artifact", "rota.kinds.tasks.cli:artifacts", "List and download artifacts of runs."),
    LazyCommand("queue", "rota.app.cli.system:queues", "List, show, pause, resume and limit queues."),
    LazyCommand(
        "freeze",
        "rota.app.cli.freezes:app",
        "Freeze the org now, or announce freeze windows: time ranges in which slots do not fire.",
    ),
    LazyCommand(
        "catch-up",
        "rota.app.cli.catch_ups:app",
        "Passed slots: what a catch-up takes and costs, and those that wait for an approval.",
    ),
    LazyCommand("graph", "rota.kinds.graphs.cli:app", "List and run graphs (AI work that programs declare)."),
    LazyCommand(
        "pipeline", "rota.kinds.pipelines.cli:app", "Create, preview and run pipelines (tables built from tables)."
    ),
    LazyCommand("workflow", "rota.kinds.workflows.cli:app", "Producers and consumers that talk through topics."),
    LazyCommand("grant", "rota.billing.cli.grants:app", "Grants: the authority under which unattended work runs."),
    LazyCommand(
        "billing", "rota.billing.cli.billing:app", "Billing accounts: balance, ledger, receipts, usage, top-ups."
    ),
    LazyCommand(
        "host", "rota.kinds.hosts.cli.hosts:app", "List, pair, change and remove hosts (machines with an agent)."
    ),
    LazyCommand(
        "server-instance",
        "rota.kinds.hosts.cli.hosts:servers",
        "List, add, change and remove server instances on hosts.",
    ),
    LazyCommand("host-job", "rota.kinds.hosts.cli.hosts:jobs", "Run, list and cancel jobs on hosts."),
    LazyCommand("batch", "rota.kinds.hosts.cli.hosts:batches", "Run one job on several servers."),
    LazyCommand("agent", "rota.kinds.hosts.cli.agent:app", "Run jobs on this machine for a server."),
    LazyCommand("alarm", "rota.kinds.alarms.cli:app", "Add, show, edit, test and acknowledge alarms."),
    LazyCommand("org", "rota.access.cli:orgs", "Create, list and change orgs."),
    LazyCommand("user", "rota.access.cli:users", "Create, list, change and delete users of the org."),
    LazyCommand(
        "service-account",
        "rota.access.cli:service_accounts",
        "Create, list, change and delete service accounts of the org.",
    ),
    LazyCommand("key", "rota.access.cli:keys", "Create, list and revoke API keys of the org."),
    LazyCommand("session", "rota.access.cli:sessions", "List and end login sessions of the dashboard."),
    LazyCommand("profile", "rota.access.profiles_cli:profiles", "Named servers and keys, stored on this machine."),
    LazyCommand("admin", "rota.app.cli.processes:admin", "Administer the installation, on the server's machine."),
    LazyCommand(
        "db", "rota.app.cli.database:app", "Back up, verify, restore and move the database, on the server's machine."
    ),
    LazyCommand(
        "export",
        "rota.app.cli.export:app",
        "Export the resources of the org as YAML files for `rota plan` and `rota apply`.",
    ),
    LazyCommand(
        "import", "rota.app.cli.importing:app", "Import schedules of other schedulers as files, or apply them at once."
    ),
)
app = lazy_group(COMMANDS, name="rota", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


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
