"""Permissions of the data directory: its files hold keys, password hashes and results, for their owner only."""

import stat
from collections.abc import Iterator
from pathlib import Path

import structlog

from rota.app.settings import Settings
from rota.db.private_files import make_private_dir, replacing

GROUP_AND_OTHERS = 0o077  # permission bits
FILE_PATTERNS = ("rota.db*", "rota-own.db*", "admin.key", "server.json*", "login.url", "warehouse")

log = structlog.get_logger("rota")


def write_secret(path: Path, text: str) -> None:
    """Write a file with mode 0600, atomically; replaces an existing file or link, which is not followed."""
    make_private_dir(path.parent)
    with replacing(path) as file:
        file.write(text.encode())


def close_to_others(settings: Settings) -> None:
    """Set the data directory to 0700 and Rota's files to 0600; log the paths that were open or stay so."""
    closed, failed = [], []
    for path in open_to_others(settings):
        try:
            path.chmod(
                mode_of(path) & ~GROUP_AND_OTHERS
            )  # not fchmod: closing a descriptor would drop SQLite's POSIX locks
            closed.append(str(path))
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
    if closed:
        log.warning("other users of this machine could read these; closed to them now", paths=closed)
    if failed:
        log.warning("other users of this machine can read these; run `chmod go= PATH` as their owner", paths=failed)
    if is_shared(settings.data_dir):
        log.warning("other users can list the data directory; its files are closed", path=str(settings.data_dir))


def open_to_others(settings: Settings) -> list[Path]:
    """Return the data directory and Rota's files, as far as group or others have permissions on them."""
    paths = [] if is_shared(settings.data_dir) else [settings.data_dir.absolute()]
    return [path for path in (*paths, *files_of(settings)) if mode_of(path) & GROUP_AND_OTHERS]


def is_shared(data_dir: Path) -> bool:
    """Return whether a data directory is shared and must stay open: sticky like /tmp, or the working directory."""
    mode = mode_of(data_dir)
    return bool(mode & GROUP_AND_OTHERS) and (
        bool(mode & stat.S_ISVTX) or Path.cwd().is_relative_to(data_dir.resolve())
    )


def files_of(settings: Settings) -> Iterator[Path]:
    """Return the existing files of an installation."""
    for pattern in FILE_PATTERNS:
        yield from settings.data_dir.absolute().glob(pattern)
    if settings.database_url.startswith("sqlite:///"):
        database = Path(settings.database_url.removeprefix("sqlite:///")).absolute()
        if database.parent != settings.data_dir.absolute() or database.name != "rota.db":
            for suffix in ("", "-wal", "-shm", "-turn", "-next"):
                yield database.with_name(f"{database.name}{suffix}")
            yield from database.parent.glob(f"{database.stem}-own.db*")


def mode_of(path: Path) -> int:
    """Return the permission bits; 0 for missing paths and for links, whose targets are not Rota's."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return 0
    return 0 if stat.S_ISLNK(mode) else stat.S_IMODE(mode)
