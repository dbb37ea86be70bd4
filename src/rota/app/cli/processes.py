"""The commands that are a process themselves. Only these load the engine."""

import gc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rota.frame.cli.connection import Connection, Exit, fail, print_stderr
from rota.frame.cli.output import print_list, progress

GARBAGE = 20_000  # objects between two looks for garbage: Python's 700 cost a crowd of jobs a fifteenth of its time

admin = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Administer the installation on its own machine.")

App = Annotated[str | None, typer.Argument(help="a Python file, or module:attribute, with a Rota object")]
DataDir = Annotated[Path | None, typer.Option(help="data directory [ROTA_DATA_DIR]")]
DatabaseUrl = Annotated[str | None, typer.Option(help="sqlite:///path or postgresql://… [ROTA_DATABASE_URL]")]
Host = Annotated[str | None, typer.Option(help="address to listen on [ROTA_HOST]")]
Port = Annotated[int | None, typer.Option(help="port to listen on [ROTA_PORT]")]
Remote = Annotated[
    bool | None, typer.Option("--allow-remote", help="let others reach a server that has only its first key")
]
Concurrency = Annotated[int | None, typer.Option(help="runs at once [ROTA_CONCURRENCY]")]


def up(
    ctx: typer.Context,
    app: App = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    concurrency: Concurrency = None,
    allow_remote: Remote = None,
) -> None:
    """Run everything in one process: API, dashboard, scheduler and worker."""
    given = {
        "host": host, "port": port, "database_url": database_url, "concurrency": concurrency,
        "allow_remote": allow_remote,
    }  # fmt: skip
    start(ctx, lambda main, settings: main.up(settings, app), data_dir=data_dir, **given)


def server(
    ctx: typer.Context,
    app: App = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    allow_remote: Remote = None,
) -> None:
    """Run API and dashboard alone."""
    given = {
        "data_dir": data_dir, "host": host, "port": port, "database_url": database_url, "allow_remote": allow_remote
    }  # fmt: skip
    start(ctx, lambda main, settings: main.server(settings, app), **given)


def worker(
    ctx: typer.Context,
    app: App = None,
    concurrency: Concurrency = None,
    processes: Annotated[int | None, typer.Option(help="worker processes [ROTA_PROCESSES]")] = None,
    queues: Annotated[str | None, typer.Option(help="queues to serve, as a,b; else all [ROTA_QUEUES]")] = None,
    orgs: Annotated[str | None, typer.Option(help="orgs to serve, as a,b; else all [ROTA_ORGS]")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run scheduler and worker. Start as many as you like; `rota workers` lists them."""
    given = {
        "concurrency": concurrency, "processes": processes, "queues": queues, "orgs": orgs, "database_url": database_url
    }  # fmt: skip
    start(ctx, lambda main, settings: main.worker(settings, app), data_dir=data_dir, **given)


def migrate(ctx: typer.Context, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Bring the database to the schema that this version needs."""

    def migrate(main: Any, settings: Any) -> None:
        from rota.db.schema import revisions

        with progress(len(revisions()), "migrations") as advance:
            main.migrate(settings, advance)

    start(ctx, migrate, data_dir=data_dir, database_url=database_url)


def doctor(ctx: typer.Context, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Look for what is wrong: the database, its schema and clock, wake-ups, leases, orphans, schedules. Needs no
    server; exit code 1 if something must be done."""

    def examine(_: Any, settings: Any) -> None:
        from rota.app.doctor import examine

        found = [asdict(one) for one in examine(settings)]
        rows = ([one["verdict"], one["what"], one["detail"]] for one in found)
        print_list(ctx.obj, {"items": found, "next_cursor": None}, ("verdict", "what", "detail"), rows)
        if any(one["verdict"] == "wrong" for one in found):
            raise typer.Exit(Exit.FAILED)

    start(ctx, examine, data_dir=data_dir, database_url=database_url)


@admin.command("reset-key")
def reset_key(ctx: typer.Context, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Replace the first key, if it was lost or others have it: earlier instance admin keys are revoked, and the new one
    is written to admin.key. Needs no server."""

    def reset(_: Any, settings: Any) -> None:
        from rota.app.first_key import reset

        print_stderr(f"the new key is in {reset(settings).absolute()}; earlier instance admin keys are revoked")

    start(ctx, reset, data_dir=data_dir, database_url=database_url)


def start(ctx: typer.Context, process: Callable[[Any, Any], None], **given: Any) -> None:
    gc.disable()  # what is loaded now stays: to look through it again and again for garbage takes a fifth of the start
    from rota.app import main, secrets
    from rota.app.programs import ProgramError
    from rota.app.settings import Settings
    from rota.core.errors import Invalid, Refused, RotaError

    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()
    connection: Connection = ctx.obj
    given["data_dir"] = given["data_dir"] or connection.data_dir
    try:
        settings = Settings.load(**given)
        secrets.protect()
        process(main, settings)
    except (Invalid, ProgramError) as error:
        fail(error.message, Exit.USAGE)
    except RotaError as error:
        fail(error.message, Exit.REFUSED if isinstance(error, Refused) else Exit.FAILED)
    except OSError as error:  # of the data directory: a full disk, or no permission
        fail(f"{error.filename or given['data_dir']}: {error.strerror or error}")
