"""`rota export`: the resources of an org as YAML files; `rota export runs`: its ledger, for analysis elsewhere."""

import csv
import io
import json
import tempfile
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from rota.app.cli.files import export_files
from rota.frame.cli.connection import Answer, Exit, fail, print_stderr
from rota.frame.cli.options import CommandGroup
from rota.frame.cli.times import past_option

app = CommandGroup(rich_markup_mode=None)

PAGE_ROWS = 200
COLUMNS = {  # with their types in Parquet, where JSON is written as text: not every reader knows the type
    "id": "VARCHAR", "job_id": "VARCHAR", "kind": "VARCHAR", "target": "VARCHAR", "target_name": "VARCHAR",
    "target_version": "VARCHAR", "schedule_id": "VARCHAR", "slot": "TIMESTAMPTZ", "trigger": "VARCHAR",
    "attempt": "INTEGER", "retry_of": "VARCHAR", "status": "VARCHAR", "reason": "VARCHAR", "queued_at": "TIMESTAMPTZ",
    "started_at": "TIMESTAMPTZ", "finished_at": "TIMESTAMPTZ", "worker": "VARCHAR", "artifact_id": "VARCHAR",
    "trace_id": "VARCHAR", "input": "JSON", "outcome": "JSON", "error": "JSON", "usage": "JSON",
    "cpu_seconds": "DOUBLE", "peak_memory_bytes": "BIGINT",
}  # fmt: skip


class Format(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


@app.callback(invoke_without_command=True)
def export(
    ctx: typer.Context,
    directory: Annotated[
        Path | None, typer.Option("--dir", "-d", help="directory for one YAML file per resource; default: stdout")
    ] = None,
    secrets: Annotated[
        bool, typer.Option("--secrets", help="with secrets of tasks, instead of ***; needs the scope shell")
    ] = False,
) -> None:
    """Export the resources of the org as YAML files for `rota plan` and `rota apply`.

    `rota export runs` exports the ledger.
    """
    if ctx.invoked_subcommand is None:
        export_files(ctx.obj, directory, secrets=secrets)


@app.command()
def runs(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="file to write; an existing one is replaced")],
    format: Annotated[Format | None, typer.Option(help="default: the file's suffix")] = None,
    since: Annotated[str | None, past_option("--from", help="runs that started at or after this time")] = None,
    until: Annotated[str | None, past_option("--to", help="runs that started before this time")] = None,
) -> None:
    """Export the ended runs of the org, newest first. Parquet needs the extra `duckdb`."""
    format = format or next((known for known in Format if file.suffix == f".{known}"), None)
    if format is None:
        fail(f"{file}: the suffix names no format; add --format parquet, csv or jsonl", Exit.USAGE)
    if format is Format.PARQUET:
        check_duckdb()
    from rota.db.private_files import replacing

    listed = ctx.obj.pages("/runs", since=since, until=until, limit=PAGE_ROWS)
    ended = (run for run in listed if run["finished_at"] is not None)  # also if it ended since the export began
    try:
        with replacing(file) as out:
            count = write_parquet(ended, out.name) if format is Format.PARQUET else write_text(ended, out, format)
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    print_stderr(f"{count} runs in {file}")


def write_text(runs: Iterable[Answer], out: BinaryIO, format: Format) -> int:
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    table = csv.writer(text)
    if format is Format.CSV:
        table.writerow(COLUMNS)
    count = 0
    for run in runs:
        count += 1
        if format is Format.CSV:
            table.writerow([as_text(run[name]) for name in COLUMNS])
        else:
            text.write(json.dumps({name: run[name] for name in COLUMNS}, ensure_ascii=False) + "\n")
    text.detach()
    return count


def as_text(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def write_parquet(runs: Iterable[Answer], path: str) -> int:
    """Write the runs as JSON Lines to a temporary file, which DuckDB converts without loading all of it."""
    import duckdb

    with tempfile.NamedTemporaryFile(suffix=".jsonl", dir=Path(path).parent) as lines, duckdb.connect() as connection:
        count = write_text(runs, cast(BinaryIO, lines), Format.JSONL)
        lines.flush()
        columns = ", ".join(f"'{name}': '{type}'" for name, type in COLUMNS.items())
        texts = ", ".join(f"{name}::VARCHAR AS {name}" for name, type in COLUMNS.items() if type == "JSON")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            f"COPY (SELECT * REPLACE ({texts}) "
            f"FROM read_json($lines, format = 'newline_delimited', columns = {{{columns}}})) "
            "TO $path (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)",
            {"lines": lines.name, "path": path},
        )
    return count


def check_duckdb() -> None:
    try:
        import duckdb  # noqa: F401
    except ImportError:
        fail("Parquet needs DuckDB: `pip install 'rota-scheduler[duckdb]'`, or use --format csv or jsonl")
