"""`rota db …`: back up, verify and restore the database, or move it to another one. Needs no server."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rota.app.cli.processes import DataDir, start
from rota.frame.cli.connection import print_stderr
from rota.frame.cli.options import command_group
from rota.frame.cli.output import print_details, progress

if TYPE_CHECKING:
    from types import ModuleType

    from rota.app.settings import Settings
    from rota.db.backup import Manifest

app = command_group("Back up, verify, restore and move the database, on the server's machine.")

File = Annotated[Path, typer.Argument(help="file of the backup")]
Target = Annotated[
    str | None,
    typer.Option("--database-url", "--database", help="sqlite:///path or postgresql://… [ROTA_DATABASE_URL]"),
]
SHOWN = ("file", "created_at", "version", "revision", "database", "rows")


@app.command()
def backup(ctx: typer.Context, file: File, database_url: Target = None, data_dir: DataDir = None) -> None:
    """Write a consistent copy of the database to FILE, while the installation runs. The file has password hashes and
    results: its mode is 0600."""

    def write(_: "ModuleType", settings: "Settings") -> None:
        from rota.db.backup import backup

        with explaining_interrupt(f"{file} was not replaced, or is complete; repeat the command"):
            manifest = backup(settings.database_url, file, partial(progress, label="backup"))
        print_manifest(ctx, file, manifest)
        print_stderr(f"not in the file; save them beside it: {', '.join(beside(settings))}")

    start(ctx, write, data_dir=data_dir, database_url=database_url)


@app.command()
def verify(ctx: typer.Context, file: File) -> None:
    """Read a backup and compare its rows with their recorded numbers and hashes."""

    def check(_: "ModuleType", __: "Settings") -> None:
        from rota.db.backup import verify

        print_manifest(ctx, file, verify(file, partial(progress, label="verify")))

    start(ctx, check, data_dir=None)


@app.command()
def restore(ctx: typer.Context, file: File, database_url: Target = None, data_dir: DataDir = None) -> None:
    """Restore a backup into an empty database of either kind, completely or not at all, and migrate it."""

    def fill(_: "ModuleType", settings: "Settings") -> None:
        from rota.db.backup import restore

        with explaining_interrupt("the database is unchanged, or completely restored; repeat the command"):
            manifest = restore(file, settings.database_url, partial(progress, label="restore"))
        print_manifest(ctx, file, manifest)
        print_stderr(
            "restored. Users log in again. Keys that were revoked after the backup are valid again: revoke them. "
            "Without its admin.key run `rota admin reset-key`"
        )
        if settings.artifacts_url:
            print_stderr(
                f"objects of artifacts stay in {settings.artifacts_url}. If the original goes on, give this copy its "
                "own objects and another ROTA_ARTIFACTS_URL: each deletes the objects of runs that it deletes"
            )

    start(ctx, fill, data_dir=data_dir, database_url=database_url)


@app.command()
def move(
    ctx: typer.Context,
    target: Annotated[str, typer.Option("--to", help="an empty database: sqlite:///path or postgresql://…")],
    source: Annotated[
        str | None, typer.Option("--from", help="database of the installation [ROTA_DATABASE_URL]")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait until no process uses the source")] = False,
    data_dir: DataDir = None,
) -> None:
    """Move the installation to another database. All its processes must be stopped. An interrupted move continues when
    it is repeated. The source keeps its rows, and processes refuse to start on it."""

    def copy(_: "ModuleType", settings: "Settings") -> None:
        from rota.engine.move import move, processes_on, wait_until_unused

        if wait and (using := processes_on(settings.database_url)):
            print_stderr(f"waiting for {', '.join(using)}")
            wait_until_unused(settings.database_url)
        with explaining_interrupt("processes refuse to start on an incomplete copy; repeat the command to continue"):
            moved = move(settings.database_url, checked_url(target), partial(progress, label="move"))
        for problem in moved.problems:
            print_stderr(f"the slot audit found the same on both sides: {problem}")
        print_stderr(
            f"moved {moved.rows} rows of {moved.tables} tables; numbers, hashes and the slot audit of {moved.slots} "
            "slots are equal on both sides. Set ROTA_DATABASE_URL of all processes to the new database; they refuse to "
            "start on the old one, except with --force. Tables of your own tasks and objects of artifacts are not moved"
        )

    start(ctx, copy, data_dir=data_dir, database_url=source)


@contextmanager
def explaining_interrupt(state: str) -> Iterator[None]:
    """Print what a Ctrl-C left behind."""
    try:
        yield
    except KeyboardInterrupt:
        print_stderr(f"interrupted: {state}")
        raise


def print_manifest(ctx: typer.Context, file: Path, manifest: "Manifest") -> None:
    rows = sum(entry["rows"] for entry in manifest["tables"])
    print_details(ctx.obj, {"file": str(file), "rows": rows, **manifest}, SHOWN)


def beside(settings: "Settings") -> list[str]:
    """Return what belongs to an installation and is not in its database."""
    warehouse = settings.warehouse_dir or settings.data_dir / "warehouse"
    sqlite = Path(settings.database_url.removeprefix("sqlite:///"))
    own = sqlite.with_name(f"{sqlite.stem}-own.db") if settings.database_url.startswith("sqlite") else None
    paths = [path for path in (settings.data_dir / "admin.key", warehouse, own) if path is not None and path.exists()]
    tables = [] if own is not None else ["tables of your own tasks"]
    objects = [f"objects of artifacts in {settings.artifacts_url}"] if settings.artifacts_url else []
    return [*map(str, paths), *objects, *tables, "settings (ROTA_…)", "your programs"]


def checked_url(url: str) -> str:
    """Return the URL of a database. Raises Invalid for an unknown scheme."""
    from rota.app.settings import Settings

    return Settings.load(database_url=url).database_url
