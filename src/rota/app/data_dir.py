"""Files of the data directory: they hold keys, password hashes and results, and only their owner may read them."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import structlog

from rota.app.settings import Settings
from rota.db.private_files import make_private_dir

OTHERS = 0o077  # what group and others may do
PATTERNS = ("rota.db*", "rota-own.db*", "admin.key", "server.json*", "login.url", "warehouse")

log = structlog.get_logger("rota")


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read. It replaces what has its name; a link is not followed."""
    make_private_dir(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()  # left by a process that had the same id and died
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask takes away
        file.write(text)
    fresh.replace(path)


def close_to_others(settings: Settings) -> None:
    """Set the data directory to 0700 and Rota's files to 0600; logs what was open, and what could not be closed."""
    closed, failed = [], []
    for path in open_to_others(settings):
        try:
            path.chmod(mode_of(path) & ~OTHERS)  # not by a handle: to close one would drop the locks of SQLite
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
    """The data directory and those of Rota's files that others than their owner can reach."""
    paths = [] if is_shared(settings.data_dir) else [settings.data_dir.absolute()]
    return [path for path in (*paths, *files_of(settings)) if mode_of(path) & OTHERS]


def is_shared(data_dir: Path) -> bool:
    """Whether a data directory that is open to others must stay so: one like /tmp, or where the process works."""
    mode = mode_of(data_dir)
    return bool(mode & OTHERS) and (bool(mode & stat.S_ISVTX) or Path.cwd().is_relative_to(data_dir.resolve()))


def files_of(settings: Settings) -> Iterator[Path]:
    """Rota's files of an installation, as far as they exist."""
    for pattern in PATTERNS:
        yield from settings.data_dir.absolute().glob(pattern)
    if settings.database_url.startswith("sqlite:///"):
        database = Path(settings.database_url.removeprefix("sqlite:///")).absolute()
        if database.parent != settings.data_dir.absolute() or database.name != "rota.db":
            for suffix in ("", "-wal", "-shm", "-turn", "-next"):
                yield database.with_name(f"{database.name}{suffix}")
            yield from database.parent.glob(f"{database.stem}-own.db*")


def mode_of(path: Path) -> int:
    """0 for what does not exist, and for links: whoever made the link decides about its target."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return 0
    return 0 if stat.S_ISLNK(mode) else stat.S_IMODE(mode)
