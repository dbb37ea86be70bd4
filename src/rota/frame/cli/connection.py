"""The way to the server, and what its refusals become: one clear message and an exit code."""

import functools
import json
import os
import stat
import sys
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import typer

from rota.core.addresses import is_loopback
from rota.frame.cli.terminal import visible


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"


class Exit(IntEnum):
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    REFUSED = 5
    TIMED_OUT = 6
    RUN_FAILED = 7


CODES = {
    400: Exit.USAGE, 413: Exit.USAGE, 415: Exit.USAGE, 422: Exit.USAGE, 404: Exit.NOT_FOUND, 409: Exit.CONFLICT,
    412: Exit.CONFLICT, 401: Exit.REFUSED, 403: Exit.REFUSED, 429: Exit.REFUSED,
}  # fmt: skip


class ApiRefusal(Exception):
    """The server refused."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail"))
        self.status, self.problem = status, problem


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the server is, who asks, and how answers are written. Nothing is looked up before it is needed."""

    server: str | None
    key: str | None
    data_dir: Path
    output: Output
    profile: str | None = None

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.call("POST", path, body or {})

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self.call("PUT", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> None:
        self.call("DELETE", path)

    def call(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """The answer, or the end of the program with a message."""
        try:
            return self.try_call(method, path, body, query)
        except ApiRefusal as refusal:
            exit_refused(refusal)

    def try_call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        if_match: int | None = None,
    ) -> Any:
        """The answer; raises Answered when the server refuses."""
        import httpx

        from rota.client import ApiError, Client, TimedOut, Unreachable

        url, key = self.address()
        try:
            with Client(url, key, tries=3) as client:
                return client.call(method, path, body, if_match=if_match, **(query or {}))
        except ApiError as error:
            raise ApiRefusal(error.status, dict(error.problem)) from None
        except TimedOut:
            fail(f"the server at {url} did not answer in time", Exit.TIMED_OUT)
        except (Unreachable, httpx.InvalidURL, UnicodeError) as error:
            fail(f"cannot reach the server at {url}: {error.__cause__ or error}; is it running? (`rota up` starts one)")

    def address(self) -> tuple[str, str]:
        """The server and the key: as given, else of the profile, else of the server that runs on the data directory."""
        noted = read_profile(self.profile) if self.profile else {}
        key = self.key or noted.get("key")
        server = self.server or noted.get("server") or self.noted_server(is_own_key=key is None)
        warn_without_tls(server)
        return server, key or self.noted_key()

    def noted_server(self, is_own_key: bool) -> str:
        """The server that `server.json` names. It may have come with a folder of somebody else, such as a cloned
        repository: a key from elsewhere goes only to this machine, or where the folder has a key of this user."""
        try:
            server = str(json.loads((self.data_dir / "server.json").read_text())["url"])
        except (OSError, ValueError, KeyError):
            fail(f"no server runs on {self.data_dir.absolute()}; start one with `rota up`, or name one with --server")
        if not (is_own_key or is_on_this_machine(server) or is_private(self.data_dir / "admin.key")):
            fail(
                f"{self.data_dir / 'server.json'} names {server}, and your key is not sent there unasked: "
                "name the server with --server or ROTA_SERVER",
                Exit.REFUSED,
            )
        return server

    def noted_key(self) -> str:
        try:
            return (self.data_dir / "admin.key").read_text().strip()
        except OSError:
            fail(f"no key: {self.data_dir.absolute()} has no admin.key; give one with --key or ROTA_KEY", Exit.REFUSED)


def is_on_this_machine(server: str) -> bool:
    return is_loopback(urlsplit(server).hostname or "")


def is_private(path: Path) -> bool:
    """Whether a regular file belongs to this user alone: version control gives nobody a file of mode 0600."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.getuid()


@functools.cache  # once per server
def warn_without_tls(server: str) -> None:
    """Warn that a key can be read on the way to a server."""
    if server.startswith("http://") and not is_on_this_machine(server):
        print_stderr(f"warning: keys go to {server} without TLS, and can be read on the way; use https://")


def profiles_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rota" / "profiles.json"


def read_profiles() -> dict[str, dict[str, str]]:
    """Servers and keys that the user has given names."""
    try:
        found = json.loads(profiles_file().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        fail(f"{profiles_file()} cannot be read: {error}")
    return found if isinstance(found, dict) else {}


def read_profile(name: str) -> dict[str, str]:
    known = read_profiles()
    if name not in known:
        fail(f"profile {name!r} not found in {profiles_file()}; known are {', '.join(known) or 'none'}", Exit.USAGE)
    return known[name]


def exit_refused(refusal: ApiRefusal) -> NoReturn:
    """Tell what the server refused, each wrong field on a line of its own."""
    wrong = refusal.problem.get("errors") or []
    lines = [f"  {one['field']}: {one['value']} {one['message']}" for one in wrong]
    text = "\n".join([f"{len(wrong)} values are wrong:", *lines]) if len(wrong) > 1 else refusal.problem["detail"]
    fail(text, CODES.get(refusal.status, Exit.FAILED))


def fail(message: str, code: Exit = Exit.FAILED) -> NoReturn:
    print_stderr(f"error: {message}")
    raise typer.Exit(code)


def print_stderr(message: str) -> None:
    """Talk goes to stderr."""
    print(visible(message), file=sys.stderr)
