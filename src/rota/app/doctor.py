"""`rota doctor`: what is right and wrong with an installation, looked at from outside."""

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
from rota.core.errors import RotaError
from rota.db import paging, schema
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.engine import diagnostics, jobs, workers
from rota.engine import reports as engine_reports
from rota.kinds.workflows.store import upkeep

OFFSET = timedelta(seconds=2)  # between this machine and the database, from which on it is worth a word
NETWORK = re.compile(r"nfs|cifs|smb|9p|afs|sshfs|gluster|ceph|lustre")


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    verdict: Literal["ok", "note", "wrong"]  # a note is worth knowing; what is wrong must be mended
    detail: str


def examine(settings: Settings) -> list[Finding]:
    return asyncio.run(gather(settings))


async def gather(settings: Settings) -> list[Finding]:
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return [Finding("database", "wrong", f"{path} is not there; `rota up` or `rota migrate` makes it")]
    db = open_database(settings.database_url, pool=2)
    found: list[Finding] = [modes_finding(settings), tls_finding(settings)]
    try:
        async for one in look(db, path):
            found.append(one)
    except RotaError as error:
        found.append(Finding("database", "wrong", error.message))
    finally:
        await db.close()
    return found


async def look(db: Database, path: Path | None, *, patient: bool = True) -> AsyncIterator[Finding]:
    """What is found; listening for wake-ups takes a second, for which not everybody has the patience."""
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
    if patient:
        heard = await diagnostics.wake_up(db)
        told = "nothing was heard: work starts when somebody looks, up to seconds late" if heard is None else ""
        yield Finding("wake-ups", "note" if told else "ok", told or f"heard after {(heard or 0) * 1000:.0f} ms")
    now = (await db.read(workers.measure)).time
    off = system_time() - now
    told = f"this machine is {off.total_seconds():+.2f} s from the database"
    yield Finding("clock", "ok" if abs(off) < OFFSET else "note", f"{told}; Rota goes by the database's clock")
    alive, _ = await db.read(engine_reports.list_workers, state="alive", limit=paging.PAGE_ROWS_MAX)
    yield Finding("workers", "ok" if alive else "note", f"{len(alive)} up" if alive else "none is up: nothing runs")
    later = "a worker takes them over" if alive else "start a worker, which takes them over"
    for what, names, means in (
        ("leases", await db.read(workers.expired, now, None), f"of workers that went silent; {later}"),
        ("orphans", await db.read(workers.dead_with_jobs), f"workers that are gone still hold jobs; {later}"),
        ("serial keys", await db.read(jobs.headless), f"have jobs that wait for nobody; {later}"),
        ("unplanned", await db.read(diagnostics.unplanned, now), f"schedules have nothing planned; {later}"),
        ("producers", await names_of(db, upkeep.lost_producers), f"have lost their schedule; {later}"),
        ("consumers", await names_of(db, upkeep.stranded_consumers), f"do not see events that wait; {later}"),
        ("overdue", await db.read(diagnostics.overdue, now), "schedules were due and did not fire: is a worker up?"),
        ("broken", await db.read(diagnostics.broken), "schedules are broken; `rota schedule show` says why"),
    ):
        more = f"{len(names)} {means}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        yield Finding(what, "wrong" if names else "ok", more if names else "none")


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
    return Finding("tls", "ok", "the server is reached on this machine, or by https")


def sqlite_finding(version: str) -> Finding:
    """https://sqlite.org/wal.html, section 11: the WAL-reset bug."""
    number = tuple(int(part) for part in version.split(".")[:3])
    if (3, 7, 0) <= number <= (3, 51, 2) and number not in ((3, 44, 6), (3, 50, 7)):
        told = (
            f"SQLite {version} has the WAL-reset defect: a checkpoint that races a commit can lose it. Rota's own "
            "processes are safe, because one at a time writes or checkpoints, under a lock; keep other programs from "
            "writing to this file, or use 3.51.3 or newer"
        )
        return Finding("sqlite", "note", told)
    return Finding("sqlite", "ok", f"{version} is free of the WAL-reset defect")


def drive_finding(path: Path, mounts: Path) -> Finding:
    """Locks and shared memory, which SQLite's log needs, do not work between machines."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return Finding("drive", "note", "what kind of drive the file lies on is not known; it must be a local one")
    inside = [(len(line[1]), line[2]) for line in lines if path.is_relative_to(line[1])]
    kind = max(inside)[1] if inside else "unknown"
    if NETWORK.search(kind):
        return Finding("drive", "wrong", f"{path} lies on a network drive ({kind}); move it to a local one")
    return Finding("drive", "ok", f"the file lies on a local drive ({kind})")


def sqlite_path(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")).absolute() if url.startswith("sqlite:///") else None
