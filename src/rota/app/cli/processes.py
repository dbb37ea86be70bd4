"""Commands that start a process: server, worker, migrate, doctor. Only these import the engine."""

import gc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from rota.frame.cli.connection import Connection, Exit, fail, print_stderr
from rota.frame.cli.options import command_group
from rota.frame.cli.output import print_list, progress

if TYPE_CHECKING:
    from rota.app.settings import Settings

GC_THRESHOLD = 20_000  # allocations between collections: with Python's 700, a large batch of jobs takes 7 % longer

admin = command_group("Administer the installation, on the server's machine.")

App = Annotated[str | None, typer.Argument(help="Python file or module:attribute that defines a Rota object")]
DataDir = Annotated[Path | None, typer.Option(help="data directory [ROTA_DATA_DIR]")]
DatabaseUrl = Annotated[str | None, typer.Option(help="sqlite:///path or postgresql://… [ROTA_DATABASE_URL]")]
Host = Annotated[str | None, typer.Option(help="address to listen on [ROTA_HOST]")]
Port = Annotated[int | None, typer.Option(help="port to listen on [ROTA_PORT]")]
Remote = Annotated[
    bool | None, typer.Option("--allow-remote", help="listen on a public address although only the first key exists")
]
Force = Annotated[
    bool, typer.Option("--force", help="start on a database that the installation has moved from; removes the mark")
]
Concurrency = Annotated[int | None, typer.Option(help="maximum concurrent runs [ROTA_CONCURRENCY]")]


def up(
    ctx: typer.Context,
    app: App = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    concurrency: Concurrency = None,
    allow_remote: Remote = None,
    force: Force = False,
) -> None:
    """Run everything in one process: API, dashboard, scheduler and worker."""
    options = {
        "host": host,
        "port": port,
        "database_url": database_url,
        "concurrency": concurrency,
        "allow_remote": allow_remote,
    }
    start(ctx, reopened(force, lambda main, settings: main.up(settings, app)), data_dir=data_dir, **options)


def server(
    ctx: typer.Context,
    app: App = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    allow_remote: Remote = None,
    force: Force = False,
) -> None:
    """Run API and dashboard, without scheduler and worker."""
    options = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "database_url": database_url,
        "allow_remote": allow_remote,
    }
    start(ctx, reopened(force, lambda main, settings: main.server(settings, app)), **options)


def worker(
    ctx: typer.Context,
    app: App = None,
    concurrency: Concurrency = None,
    processes: Annotated[int | None, typer.Option(help="number of worker processes [ROTA_PROCESSES]")] = None,
    queues: Annotated[
        str | None, typer.Option(help="queues to serve, separated by commas; default: all [ROTA_QUEUES]")
    ] = None,
    orgs: Annotated[
        str | None, typer.Option(help="orgs to serve, separated by commas; default: all [ROTA_ORGS]")
    ] = None,
    exit_when_idle: Annotated[
        str | None, typer.Option(help="exit after this long without a job, such as 5m [ROTA_EXIT_WHEN_IDLE]")
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    force: Force = False,
) -> None:
    """Run scheduler and worker. Any number of workers can run; `rota workers` lists them."""
    options = {
        "concurrency": concurrency,
        "processes": processes,
        "queues": queues,
        "orgs": orgs,
        "exit_when_idle": exit_when_idle,
        "database_url": database_url,
    }
    start(ctx, reopened(force, lambda main, settings: main.worker(settings, app)), data_dir=data_dir, **options)


def migrate(
    ctx: typer.Context,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    sql: Annotated[bool, typer.Option("--sql", help="print the SQL instead, and change nothing")] = False,
) -> None:
    """Migrate the database to the schema of this version."""

    def migrate(main: ModuleType, settings: "Settings") -> None:
        from rota.db.schema import revisions

        if sql:
            from rota.db.migrate import sql_to_head

            print(sql_to_head(settings.database_url), end="")
            return
        with progress(len(revisions()), "migrations") as advance:
            main.migrate(settings, advance)

    start(ctx, migrate, data_dir=data_dir, database_url=database_url)


def doctor(
    ctx: typer.Context,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    release: Annotated[
        str | None,
        typer.Option(help="Python file or module:attribute of a new version: only show what it would break"),
    ] = None,
) -> None:
    """Check the installation: database, schema, clock, wake-ups, leases, orphaned jobs, schedules. With --release,
    compare what is stored with the code of a new version, which is loaded but not started. Needs no server. Exit code 1
    if a problem is found."""

    def examine(_: ModuleType, settings: "Settings") -> None:
        from rota.app.doctor import examine
        from rota.app.release import examine_release

        examined = examine(settings) if release is None else examine_release(settings, release)
        findings = [{**asdict(finding), "detail": finding.advice} for finding in examined]
        rows = ([finding["verdict"], finding["what"], finding["detail"]] for finding in findings)
        print_list(ctx.obj, {"items": findings, "next_cursor": None}, ("verdict", "what", "detail"), rows)
        if any(finding["verdict"] == "wrong" for finding in findings):
            raise typer.Exit(Exit.FAILED)

    start(ctx, examine, data_dir=data_dir, database_url=database_url)


@admin.command("reset-key")
def reset_key(ctx: typer.Context, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Replace a lost or leaked first key: revokes all instance admin keys and writes a new one to admin.key. Needs no
    server."""

    def reset(_: ModuleType, settings: "Settings") -> None:
        from rota.app.first_key import reset

        print_stderr(f"the new key is in {reset(settings).absolute()}; earlier instance admin keys are revoked")

    start(ctx, reset, data_dir=data_dir, database_url=database_url)


def reopened(
    force: bool, process: "Callable[[ModuleType, Settings], None]"
) -> "Callable[[ModuleType, Settings], None]":
    """Return the process; with `force` it first removes the mark of a database that the installation has moved from."""

    def reopen_and_start(main: ModuleType, settings: "Settings") -> None:
        from rota.engine.move import reopen

        reopen(settings.database_url)
        process(main, settings)

    return reopen_and_start if force else process


def start(ctx: typer.Context, process: "Callable[[ModuleType, Settings], None]", **options: object) -> None:
    gc.disable()  # collections during the imports take 20 % of the start-up time and free nothing
    from rota.app import main, secrets
    from rota.app.programs import ProgramError
    from rota.app.settings import Settings
    from rota.core.errors import Conflict, Invalid, NotFound, Refused, RotaError

    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()
    connection: Connection = ctx.obj
    data_dir = options["data_dir"] or connection.data_dir
    try:
        settings = Settings.load(**{**options, "data_dir": data_dir})
        secrets.protect()
        process(main, settings)
    except (Invalid, ProgramError) as error:
        fail(error.message, Exit.USAGE)
    except RotaError as error:
        codes = ((Refused, Exit.REFUSED), (Conflict, Exit.CONFLICT), (NotFound, Exit.NOT_FOUND))
        fail(error.message, next((code for kind, code in codes if isinstance(error, kind)), Exit.FAILED))
    except OSError as error:  # of the data directory: disk full, permission denied
        fail(f"{error.filename or data_dir}: {error.strerror or error}")
