"""Connection of the command line to a server. A refused request becomes one error message and an exit code."""

import contextlib
import functools
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn
from urllib.parse import quote, urlsplit

import typer

from rota.core.addresses import is_loopback
from rota.frame.cli.terminal import visible

if TYPE_CHECKING:
    from rota.client import Client

QueryValue = str | int | float | bool | Sequence[str] | None  # None is not sent
Answer = dict[str, Any]  # a JSON object of the server; the API describes its members


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"
    WIDE = "wide"


class Exit(IntEnum):
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    REFUSED = 5
    TIMED_OUT = 6
    RUN_FAILED = 7
    CHANGES = 8


EXIT_CODES = {  # by HTTP status
    400: Exit.USAGE, 413: Exit.USAGE, 415: Exit.USAGE, 422: Exit.USAGE, 404: Exit.NOT_FOUND, 409: Exit.CONFLICT,
    412: Exit.CONFLICT, 401: Exit.REFUSED, 403: Exit.REFUSED, 429: Exit.REFUSED,
}  # fmt: skip


NOT_FOUND = re.compile(r"((?!job or run)[\w ]+) '[^']*' not found")
LISTED_BY = {
    **{"API key": "key list", "billing account": "billing accounts", "virtual key": "billing key list"},
    **{"alarm channel": "alarm channel list", "alarm event": "alarm events", "freeze window": "freeze list"},
}


class ApiRefusal(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, problem: Answer) -> None:
        super().__init__(problem.get("detail"))
        self.status, self.problem = status, problem


@dataclass(frozen=True, slots=True)
class Connection:
    """Server, API key and output format of a command. Files are read when a request needs them."""

    server: str | None
    key: str | None
    data_dir: Path
    output: Output
    profile: str | None = None
    query: str | None = None  # JMESPath
    watch: float | None = None  # seconds between repetitions

    @property
    def for_people(self) -> bool:
        """Whether the output is a table or text, not data for programs."""
        return self.output in (Output.TABLE, Output.WIDE) and self.query is None

    def get(self, path: str, **query: QueryValue) -> Answer:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Answer:
        return self.call("POST", path, body or {})

    def put(self, path: str, body: Mapping[str, object]) -> Answer:
        return self.call("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, object]) -> Answer:
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> None:
        self.call("DELETE", path)

    def call(
        self, method: str, path: str, body: object = None, query: Mapping[str, QueryValue] | None = None
    ) -> Answer:
        """Return the answer. Prints an error and exits if the server refuses or cannot be reached."""
        try:
            return self.try_call(method, path, body, query)
        except ApiRefusal as refusal:
            exit_refused(refusal)

    def try_call(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, QueryValue] | None = None,
        if_match: int | None = None,
    ) -> Answer:
        """Return the answer. Raises ApiRefusal if the server refuses; exits if it cannot be reached."""
        with self.client() as client:
            answer: Answer = client.call(method, path, body, if_match=if_match, **(query or {}))
            return answer

    def pages(self, path: str, **query: QueryValue) -> Iterator[Answer]:
        """Yield all items of a list. Prints an error and exits if the server refuses or cannot be reached."""
        try:
            with self.client() as client:
                yield from client.pages(path, **query)
        except ApiRefusal as refusal:
            exit_refused(refusal)

    def download_artifact(self, artifact_id: str, file: BinaryIO) -> int:
        """Write the content of an artifact to a file and return its size. Prints an error and exits if the server
        refuses or cannot be reached, or the content is damaged."""
        try:
            with self.client() as client:
                return client.download_artifact(artifact_id, file)
        except ApiRefusal as refusal:
            exit_refused(refusal)

    @contextlib.contextmanager
    def client(self) -> "Iterator[Client]":
        """Open a client. Raises ApiRefusal if the server refuses; exits if it cannot be reached."""
        import httpx

        from rota.client import ApiError, Client, Damaged, TimedOut, Unreachable

        url, key = self.address()
        try:
            with Client(url, key, tries=3) as client:
                yield client
        except ApiError as error:
            raise ApiRefusal(error.status, dict(error.problem)) from None
        except Damaged as error:
            fail(str(error))
        except TimedOut:
            fail(f"the server at {url} did not answer before the timeout", Exit.TIMED_OUT)
        except (Unreachable, httpx.InvalidURL, UnicodeError) as error:
            fail(f"cannot reach the server at {url}: {error.__cause__ or error}; is it running? (`rota up` starts one)")

    def address(self) -> tuple[str, str]:
        """Return server and key: of the options, else of the profile, else of the data directory."""
        profile = read_profile(self.profile) if self.profile else {}
        key = self.key or profile.get("key")
        server = self.server or profile.get("server") or self.server_of_data_dir(is_own_key=key is None)
        warn_without_tls(server)
        return server, key or self.key_of_data_dir()

    def server_of_data_dir(self, is_own_key: bool) -> str:
        """Return the server that `server.json` names. The file may be part of a cloned repository: a key from
        another source is sent only to a loopback address, or if the directory has an `admin.key` of this user."""
        try:
            server = str(json.loads((self.data_dir / "server.json").read_text())["url"])
        except (OSError, ValueError, KeyError):
            fail(f"no server is running on {self.data_dir.absolute()}; start one with `rota up`, or set --server")
        if not (is_own_key or is_on_this_machine(server) or is_private(self.data_dir / "admin.key")):
            fail(
                f"{self.data_dir / 'server.json'} names {server}, but your key was not made for it and is not sent: "
                "set --server or ROTA_SERVER to confirm",
                Exit.REFUSED,
            )
        return server

    def key_of_data_dir(self) -> str:
        try:
            return (self.data_dir / "admin.key").read_text().strip()
        except OSError:
            fail(f"no API key: {self.data_dir.absolute()} has no admin.key; set --key or ROTA_KEY", Exit.REFUSED)


def item_path(collection: str, key: str, action: str = "") -> str:
    """Return the API path of an item, or of an action on it such as `$cancel`."""
    return f"/{collection}/{quote(key, safe='')}" + (f"/{action}" if action else "")


def id_by_name(
    connection: Connection,
    path: str,
    things: str,
    name: str,
    names: Callable[[Answer], Iterable[object]],
    /,
    **query: QueryValue,
) -> str:
    """Return the id of the only item of a list that has this name among its `names`; the argument if none has it: then
    it is an id. Exits with CONFLICT if several have it."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = connection.get(path, limit=200, cursor=cursor, **query)
        ids += [str(item["id"]) for item in page["items"] if name in names(item)]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    if len(ids) > 1:
        fail(f"{len(ids)} {things} are named {name!r}; use the id of one: {', '.join(ids)}", Exit.CONFLICT)
    return ids[0] if ids else name


def is_on_this_machine(server: str) -> bool:
    return is_loopback(urlsplit(server).hostname or "")


def is_private(path: Path) -> bool:
    """Return whether only this user can read a regular file. A file of a cloned repository never has mode 0600."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.getuid()


@functools.cache  # one warning per server
def warn_without_tls(server: str) -> None:
    """Warn that a key is sent without encryption."""
    if server.startswith("http://") and not is_on_this_machine(server):
        print_stderr(f"warning: keys are sent to {server} without TLS and can be intercepted; use https://")


def profiles_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rota" / "profiles.json"


def read_profiles() -> dict[str, dict[str, str]]:
    """Return servers and keys by profile name."""
    try:
        profiles = json.loads(profiles_file().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        fail(f"{profiles_file()} cannot be read: {error}")
    return profiles if isinstance(profiles, dict) else {}


def read_profile(name: str) -> dict[str, str]:
    profiles = read_profiles()
    if name not in profiles:
        known = ", ".join(profiles) or "none"
        fail(f"profile {name!r} not found in {profiles_file()}; known profiles: {known}", Exit.USAGE)
    return profiles[name]


def exit_refused(refusal: ApiRefusal) -> NoReturn:
    """Print why the server refused, one line per invalid field, and exit with the code for its status."""
    errors = refusal.problem.get("errors") or []
    lines = [f"  {error['field']}: {error['value']} {error['message']}" for error in errors]
    text = "\n".join([f"{len(errors)} invalid values:", *lines]) if len(errors) > 1 else refusal.problem["detail"]
    if match := NOT_FOUND.fullmatch(text):
        text = f"{text}; see `rota {listed_by(match[1])}`"
    fail(text, EXIT_CODES.get(refusal.status, Exit.FAILED))


def listed_by(noun: str) -> str:
    """Return the command that lists resources of a type, such as `server instance`."""
    return LISTED_BY.get(noun, f"{noun.replace(' ', '-')} list")


def fail(message: str, code: Exit = Exit.FAILED) -> NoReturn:
    print_stderr(f"error: {message}")
    raise typer.Exit(code)


def print_stderr(message: str) -> None:
    """Print a message for people to stderr; stdout is for data."""
    print(visible(message), file=sys.stderr)
