"""`rota doctor`: checks of an installation from outside its processes."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from rota.app.data_dir import is_shared, open_to_others
from rota.app.settings import Settings
from rota.app.transport import TLS_REMEDY, without_tls
from rota.core.clock import system_time
from rota.core.errors import ObjectStoreUnavailable, RotaError
from rota.core.incidents import PAGES_OF_CHECKS, with_page
from rota.db import paging, schema
from rota.db.blocking import sqlite_path
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.engine import serial_keys, workers
from rota.engine.object_store import ObjectStore
from rota.kinds.workflows.store import upkeep
from rota.reports import diagnostics, installation

CLOCK_OFFSET_NOTED = timedelta(seconds=2)  # between this machine and the database
NETWORK_FILESYSTEMS = re.compile(r"nfs|cifs|smb|9p|afs|sshfs|gluster|ceph|lustre")


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    verdict: Literal["ok", "note", "wrong"]  # a note needs no action, a wrong one does
    detail: str

    @property
    def advice(self) -> str:
        """The detail, with the page of the handbook if something is to be done."""
        return self.detail if self.verdict == "ok" else with_page(self.detail, PAGES_OF_CHECKS.get(self.what))


def examine(settings: Settings) -> list[Finding]:
    """Run all checks on the installation that the settings name."""
    return asyncio.run(gather(settings))


async def gather(settings: Settings) -> list[Finding]:
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return [Finding("database", "wrong", f"{path} does not exist; `rota up` or `rota migrate` creates it")]
    db = open_database(settings.database_url, pool=2)
    findings: list[Finding] = [modes_finding(settings), tls_finding(settings), await artifacts_finding(settings)]
    try:
        async for finding in check_database(db, path):
            findings.append(finding)
    except RotaError as error:
        findings.append(Finding("database", "wrong", error.message))
    finally:
        await db.close()
    return findings


async def check_database(db: Database, path: Path | None, *, wake_ups: bool = True) -> AsyncIterator[Finding]:
    """Yield a finding per check. `wake_ups` includes the test of wake-ups, which takes up to a second."""
    version = await db.read(diagnostics.version)
    if path is None:
        yield Finding("database", "ok", f"PostgreSQL {version} answers")
    else:
        yield Finding("database", "ok", f"{path} can be read, by SQLite {version}")
        yield sqlite_finding(version)
        yield drive_finding(path, Path("/proc/mounts"))
    stale = await db.read(schema.check)
    yield Finding("migrations", "wrong" if stale else "ok", stale or "the schema is what this version needs")
    if stale:
        return
    if wake_ups:
        delay = await diagnostics.wake_up(db)
        if delay is None:
            yield Finding("wake-ups", "note", "no wake-up arrived: jobs start at the next poll, up to seconds late")
        else:
            yield Finding("wake-ups", "ok", f"received after {delay * 1000:.0f} ms")
    now = (await db.read(workers.measure)).time
    offset = system_time() - now
    difference = f"this machine is {offset.total_seconds():+.2f} s from the database"
    yield Finding(
        "clock", "ok" if abs(offset) < CLOCK_OFFSET_NOTED else "note", f"{difference}; Rota uses the database's clock"
    )
    alive, _ = await db.read(installation.list_workers, state="alive", limit=paging.PAGE_ROWS_MAX)
    yield Finding(
        "workers",
        "ok" if alive else "note",
        f"{len(alive)} alive" if alive else "no worker is alive: nothing fires or runs",
    )
    remedy = "a worker repairs this within seconds" if alive else "start a worker, which repairs this"
    for check, names, meaning in (
        ("leases", await db.read(workers.expired, now, None), f"expired leases of workers; {remedy}"),
        ("orphans", await db.read(workers.dead_with_jobs), f"dead workers still own jobs; {remedy}"),
        ("serial keys", await db.read(serial_keys.headless), f"serial keys have blocked jobs but no head; {remedy}"),
        ("unplanned", await db.read(diagnostics.unplanned, now), f"enabled schedules have no next run; {remedy}"),
        ("producers", await names_of(db, upkeep.lost_producers), f"producers have lost their schedule; {remedy}"),
        (
            "consumers",
            await names_of(db, upkeep.stranded_consumers),
            f"consumers miss pending events; {remedy}",
        ),
        ("overdue", await db.read(diagnostics.overdue, now), "schedules are overdue: is a worker alive?"),
        ("broken", await db.read(diagnostics.broken), "schedules are broken; `rota schedule show` gives the reason"),
    ):
        detail = f"{len(names)} {meaning}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        yield Finding(check, "wrong" if names else "ok", detail if names else "none")


async def names_of(db: Database, step: Callable[[Tx], Sequence[upkeep.HandlerRef]]) -> list[str]:
    return [handler.name for handler in await db.read(step)]


def modes_finding(settings: Settings) -> Finding:
    open_paths = [str(path) for path in open_to_others(settings)]
    if open_paths:
        return Finding("modes", "wrong", f"other users can read {', '.join(open_paths)}; run `chmod go=` on them")
    if is_shared(settings.data_dir):
        return Finding(
            "modes", "note", f"other users can list {settings.data_dir}; Rota's files in it are closed to them"
        )
    return Finding("modes", "ok", "only their owner can read Rota's files")


def tls_finding(settings: Settings) -> Finding:
    if without_tls(settings):
        return Finding("tls", "note", f"keys and passwords reach {settings.host} without TLS; {TLS_REMEDY}")
    return Finding("tls", "ok", "the server listens on loopback, or its public URL is https")


async def artifacts_finding(settings: Settings) -> Finding:
    objects = settings.object_store_settings()
    if objects is None:
        return Finding("artifacts", "ok", "in the database")
    try:
        await ObjectStore(objects).check()
    except ObjectStoreUnavailable as error:
        return Finding("artifacts", "wrong", error.message)
    limit = f"above {settings.artifacts_inline_kb} KB"
    return Finding("artifacts", "ok", f"{limit} in {objects.url}, where a small object was written, read and deleted")


def sqlite_finding(version: str) -> Finding:
    """https://sqlite.org/wal.html, section 11: the WAL-reset bug."""
    number = tuple(int(part) for part in version.split(".")[:3])
    if (3, 7, 0) <= number <= (3, 51, 2) and number not in ((3, 44, 6), (3, 50, 7)):
        detail = (
            f"SQLite {version} has the WAL-reset defect: a checkpoint that races a commit can lose it. Rota's own "
            "processes are safe, because one at a time writes or checkpoints, under a lock; keep other programs from "
            "writing to this file, or use 3.51.3 or newer"
        )
        return Finding("sqlite", "note", detail)
    return Finding("sqlite", "ok", f"{version} is free of the WAL-reset defect")


def drive_finding(path: Path, mounts: Path) -> Finding:
    """SQLite's WAL needs locks and shared memory, which network filesystems lack."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return Finding("drive", "note", "the filesystem of the database file is unknown; it must be a local one")
    inside = [(len(line[1]), line[2]) for line in lines if path.is_relative_to(line[1])]
    filesystem = max(inside)[1] if inside else "unknown"
    if NETWORK_FILESYSTEMS.search(filesystem):
        return Finding("drive", "wrong", f"{path} is on a network filesystem ({filesystem}); move it to a local one")
    return Finding("drive", "ok", f"the database file is on a local filesystem ({filesystem})")
