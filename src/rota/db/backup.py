"""Backups: one file for both databases, with the lines of each table and a manifest, which is written last.

It is a zip archive, whose directory is at its end: a file that was cut short cannot be opened.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypedDict

import orjson

from rota.core.errors import DamagedFile, NotFound, Unavailable
from rota.db import rows
from rota.db.blocking import reading, run_blocking, writing
from rota.db.dialect import database_now, last_fence, set_sequences
from rota.db.migrate import upgrade
from rota.db.private_files import replacing
from rota.db.rows import Progress, TableSum
from rota.db.schema import check, revision_of, revisions
from rota.version import __version__

FORMAT = 1
MANIFEST = "manifest.json"
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = 0x61  # flags of a zip entry: encrypted, a patch, strongly encrypted
LEFT_OUT = ("login_links", "login_sessions")  # a login that ended after the backup must not be valid again

Bar = Callable[[int], AbstractContextManager[Progress]]  # a progress bar for a number of rows


class TableEntry(TypedDict):
    name: str
    columns: list[str]
    rows: int
    hash: str


class Manifest(TypedDict):
    """What a backup has."""

    format: int
    version: str
    revision: str
    database: str
    created_at: str
    fence: int
    tables: list[TableEntry]


def backup(url: str, path: Path, bar: Bar) -> Manifest:
    """Write a consistent copy of the database to a file, while its processes continue."""
    return run_blocking(backup_blocking, url, path, bar)


def verify(path: Path, bar: Bar) -> Manifest:
    """Read a whole backup and compare it with its manifest. Raises DamagedFile or Unavailable."""
    with archive_of(path) as archive:
        manifest = read_manifest(archive, path)
        with bar(sum(entry["rows"] for entry in manifest["tables"])) as advance:
            for entry in manifest["tables"]:
                found = TableSum()
                for line in lines_of(archive, entry):
                    found.add([line])
                    advance(1)
                if (found.rows, found.hash) != (entry["rows"], entry["hash"]):
                    raise DamagedFile(
                        f"{path} is damaged: table {entry['name']} has {found.rows} rows that differ from the "
                        f"{entry['rows']} of its manifest"
                    )
    return manifest


def restore(path: Path, url: str, bar: Bar) -> Manifest:
    """Fill an empty database from a backup and migrate it, in one transaction. Raises Conflict if it is not empty,
    DamagedFile or Unavailable for a file that cannot be used."""
    manifest = verify(path, bar)
    run_blocking(restore_blocking, path, url, manifest, bar)
    return manifest


def backup_blocking(url: str, path: Path, bar: Bar) -> Manifest:
    with reading(url) as tx:
        revision = revision_of(tx)
        if revision not in revisions():
            raise Unavailable(check(tx) or f"the database has the newer schema {revision}; use that version of Rota")
        tables = [table for table in rows.tables_of(tx, revision) if table.name not in LEFT_OUT]
        manifest: Manifest = {
            "format": FORMAT, "version": __version__, "revision": revision, "database": tx.dialect.name,
            "created_at": database_now(tx).isoformat(), "fence": last_fence(tx), "tables": [],
        }  # fmt: skip
        with (
            bar(rows.count_rows(tx, tables)) as advance,
            replacing(path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            for table in tables:
                written = TableSum()
                with archive.open(f"{table.name}.jsonl", "w", force_zip64=True) as entry:
                    for page in rows.read_pages(tx, table):
                        entry.write(b"\n".join(page) + b"\n")
                        written.add(page)
                        advance(len(page))
                columns = [column.name for column in rows.columns_of(table)]
                manifest["tables"].append(
                    {"name": table.name, "columns": columns, "rows": written.rows, "hash": written.hash}
                )
            archive.writestr(MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return manifest


def restore_blocking(path: Path, url: str, manifest: Manifest, bar: Bar) -> None:
    entries = {entry["name"]: entry for entry in manifest["tables"]}
    with archive_of(path) as archive, writing(url) as tx:
        rows.create_empty(tx, manifest["revision"])
        tables = [table for table in rows.tables_of(tx, manifest["revision"]) if table.name in entries]
        with bar(2 * sum(entry["rows"] for entry in entries.values())) as advance:
            for table in tables:
                if [column.name for column in rows.columns_of(table)] != entries[table.name]["columns"]:
                    raise DamagedFile(f"{path}: table {table.name} has other columns than those of its schema")
                rows.write_lines(tx, table, lines_of(archive, entries[table.name]), advance)
            for table in tables:
                compare(table.name, rows.sum_of(tx, table, advance), entries[table.name])
        set_sequences(tx, manifest["fence"] + rows.FENCES_SKIPPED)
        upgrade(tx, "head")


def compare(table: str, stored: TableSum, entry: TableEntry) -> None:
    if (stored.rows, stored.hash) != (entry["rows"], entry["hash"]):
        raise DamagedFile(
            f"table {table} has {stored.rows} rows after the restore, which differ from the {entry['rows']} of the "
            "backup; nothing was stored"
        )


@contextmanager
def archive_of(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a backup. Raises NotFound, or DamagedFile also for errors of the block that reads it."""
    try:
        with zipfile.ZipFile(path) as archive:
            if not all(map(readable, archive.infolist())):
                raise zipfile.BadZipFile("a part has an impossible place, or is encrypted or compressed in another way")
            yield archive
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DamagedFile(f"{path} is cut short, damaged, or not a backup of Rota: {error}") from error


def readable(part: zipfile.ZipInfo) -> bool:
    """Whether a part of an archive may be one that `backup` wrote: `zipfile` has other errors for most others."""
    return part.header_offset >= 0 and part.compress_type in METHODS and not part.flag_bits & UNREADABLE


def read_manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    """Return the manifest of a backup that this version can read. Raises DamagedFile or Unavailable."""
    if MANIFEST not in archive.namelist():
        raise DamagedFile(f"{path} has no {MANIFEST}: it is not a complete backup of Rota")
    manifest: Manifest = json_object(archive.read(MANIFEST))
    if not {"format", "version", "revision"} <= manifest.keys():
        raise DamagedFile(f"{path} is not a backup of Rota: its {MANIFEST} is that of something else")
    if manifest["format"] > FORMAT or manifest["revision"] not in revisions():
        raise Unavailable(
            f"{path} was written by a newer Rota ({manifest['version']}, schema {manifest['revision']}); upgrade this "
            "one"
        )
    if missing := {f"{entry['name']}.jsonl" for entry in manifest["tables"]} - set(archive.namelist()):
        raise DamagedFile(f"{path} is damaged: it has no {', '.join(sorted(missing))}")
    return manifest


def json_object(text: bytes) -> Any:
    """Parse a JSON object; return an empty one if the text is something else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def lines_of(archive: zipfile.ZipFile, entry: TableEntry) -> Iterator[bytes]:
    with archive.open(f"{entry['name']}.jsonl") as lines:
        for line in lines:
            yield line.rstrip(b"\n")
