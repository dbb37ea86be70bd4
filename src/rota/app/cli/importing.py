"""`rota import`: schedules of other schedulers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rota.frame.cli.connection import Exit, fail, print_stderr
from rota.frame.cli.options import command_group
from rota.frame.cli.output import print_data, print_table
from rota.frame.cli.terminal import visible

if TYPE_CHECKING:
    from rota.app.importing.report import Imported
    from rota.app.importing.sources import SourceFile

    Read = Callable[[Sequence[SourceFile], datetime], Imported]

app = command_group("Import schedules of other schedulers as files, or apply them at once.")

SOURCE_BYTES_MAX = 2 * 1024 * 1024

Dir = Annotated[
    Path | None, typer.Option("--dir", "-d", help="write a YAML file to this directory instead of applying")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only print the report")]
Prefix = Annotated[str, typer.Option(help="begin of the names of schedules")]
MachineZone = Annotated[str, typer.Option(help="time zone of the machine, for schedules that name none")]


@app.command()
def crontab(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="output of `crontab -l`, or a file such as /etc/crontab")],
    system: Annotated[bool, typer.Option("--system", help="lines have a user, as in /etc/crontab")] = False,
    tz: Annotated[str, typer.Option(help="time zone of the machine, for lines without CRON_TZ")] = "UTC",
    prefix: Prefix = "cron",
    directory: Dir = None,
    dry_run: DryRun = False,
) -> None:
    """Import a crontab. Every line is in the report: imported, partly, not imported, or no schedule."""
    from rota.app.importing.crontab import import_crontab
    from rota.core.errors import Invalid

    try:
        if file.stat().st_size > SOURCE_BYTES_MAX:
            fail(f"{file}: is larger than {SOURCE_BYTES_MAX} bytes", Exit.USAGE)
        imported = import_crontab(file.read_text("utf-8"), system=system, timezone=tz, prefix=prefix)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file}: {error}", Exit.USAGE)
    except Invalid as error:
        fail(error.message, Exit.USAGE)
    finish(ctx, imported, "crontab.yaml", directory, dry_run=dry_run)


@app.command("systemd-timers")
def systemd_timers(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="unit files *.timer and *.service, or directories of them")],
    tz: MachineZone = "UTC",
    prefix: Prefix = "timer",
    directory: Dir = None,
    dry_run: DryRun = False,
) -> None:
    """Import timers of systemd with the commands of their services. Every setting is in the report."""

    def read(sources: "Sequence[SourceFile]", now: datetime) -> "Imported":
        from rota.app.importing.systemd import import_timers

        return import_timers(sources, now=now, timezone=tz, prefix=prefix)

    run(ctx, read, files, (".timer", ".service", ".conf"), "systemd-timers.yaml", directory, dry_run=dry_run)


@app.command()
def celery(
    ctx: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(help="Python files with beat_schedule, or *.json fixtures of django-celery-beat")
    ],
    tz: MachineZone = "UTC",
    prefix: Prefix = "celery",
    directory: Dir = None,
    dry_run: DryRun = False,
) -> None:
    """Import periodic tasks of Celery. The files are read, not executed; every periodic task is in the report."""

    def read(sources: "Sequence[SourceFile]", now: datetime) -> "Imported":
        from rota.app.importing.celery import import_celery

        return import_celery(sources, now=now, timezone=tz, prefix=prefix)

    run(ctx, read, files, (".py", ".json"), "celery.yaml", directory, dry_run=dry_run)


@app.command()
def apscheduler(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="Python files with add_job or scheduled_job")],
    tz: MachineZone = "UTC",
    prefix: Prefix = "job",
    directory: Dir = None,
    dry_run: DryRun = False,
) -> None:
    """Import jobs of APScheduler. The files are read, not executed; every job is in the report."""

    def read(sources: "Sequence[SourceFile]", now: datetime) -> "Imported":
        from rota.app.importing.apscheduler import import_apscheduler

        return import_apscheduler(sources, now=now, timezone=tz, prefix=prefix)

    run(ctx, read, files, (".py",), "apscheduler.yaml", directory, dry_run=dry_run)


@app.command()
def kubernetes(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="manifests *.yaml, *.yml or *.json, or directories of them")],
    tz: Annotated[str, typer.Option(help="time zone of the cluster, for CronJobs without timeZone")] = "UTC",
    prefix: Prefix = "kube",
    directory: Dir = None,
    dry_run: DryRun = False,
) -> None:
    """Import CronJobs of Kubernetes as shell tasks. Every document is in the report."""

    def read(sources: "Sequence[SourceFile]", now: datetime) -> "Imported":
        from rota.app.importing.kubernetes import import_cron_jobs

        return import_cron_jobs(sources, now=now, timezone=tz, prefix=prefix)

    run(ctx, read, files, (".yaml", ".yml", ".json"), "kubernetes.yaml", directory, dry_run=dry_run)


@app.command()
def airflow(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="DAG files, or directories of them")],
    tz: Annotated[str, typer.Option(help="time zone for DAGs whose start_date has none")] = "UTC",
    prefix: Prefix = "dag",
    directory: Dir = None,
    dry_run: DryRun = False,
) -> None:
    """Import DAGs of shell tasks of Airflow. The files are read, not executed; every DAG and task is in the report."""

    def read(sources: "Sequence[SourceFile]", now: datetime) -> "Imported":
        from rota.app.importing.airflow import import_airflow

        return import_airflow(sources, now=now, timezone=tz, prefix=prefix)

    run(ctx, read, files, (".py",), "airflow.yaml", directory, dry_run=dry_run)


def run(
    ctx: typer.Context,
    read: "Read",
    files: Sequence[Path],
    suffixes: Sequence[str],
    name: str,
    directory: Path | None,
    *,
    dry_run: bool,
) -> None:
    """Read sources, print the report, and write or apply the entries. Exits with USAGE for files that cannot be
    read."""
    from rota.app.files.documents import FileError
    from rota.app.importing.sources import read_sources
    from rota.core.clock import system_time
    from rota.core.errors import Invalid

    try:
        imported = read(read_sources(files, suffixes), system_time())
    except FileError as error:
        fail(str(error), Exit.USAGE)
    except Invalid as error:
        fail(error.message, Exit.USAGE)
    except RecursionError:
        fail("a file has an expression that is nested too deeply; write it in parts", Exit.USAGE)
    finish(ctx, imported, name, directory, dry_run=dry_run)


def finish(ctx: typer.Context, imported: "Imported", name: str, directory: Path | None, *, dry_run: bool) -> None:
    """Print the report, then write or apply the entries unless it is a dry run."""
    from rota.app.files.documents import yaml_of

    lines = [line for line in imported.report if line.outcome != "no schedule"]
    report = {"resources": imported.resources, "report": [asdict(line) for line in imported.report]}
    if not print_data(ctx.obj, report):
        rows = (
            [
                visible(f"{line.file}:{line.line}" if line.file else str(line.line)),
                line.outcome,
                visible(line.text),
                visible(line.note),
            ]
            for line in lines
        )
        print_table(("line", "result", "text", "note"), rows)
    if dry_run:
        return
    resources = {kind: entries for kind, entries in imported.resources.items() if entries}
    if not resources:
        print_stderr("nothing to import")
        return
    if directory is None:
        done = ctx.obj.post("/files/$apply", {"resources": resources})
        changed = sum(change["action"] not in ("left", "none") for change in done["changes"])
        print_stderr(f"{changed} resources changed, {done['unchanged']} unchanged")
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(yaml_of(resources), "utf-8")
    except OSError as error:
        fail(f"{directory}: {error.strerror or error}")
    print_stderr(f"{len(imported.schedules)} schedules in {directory / name}")
