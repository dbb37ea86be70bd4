"""The way to the server, and what its refusals become: one clear message and an exit code."""

import json
import os
import sys
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NoReturn

import typer


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


class Answered(Exception):
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
        except Answered as refusal:
            explain(refusal)

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
            raise Answered(error.status, dict(error.problem)) from None
        except TimedOut:
            fail(f"the server at {url} did not answer in time", Exit.TIMED_OUT)
        except (Unreachable, httpx.InvalidURL, UnicodeError) as error:
            fail(f"cannot reach the server at {url}: {error}; is it running? (`rota up` starts one)")

    def address(self) -> tuple[str, str]:
        """The server and the key: as given, else of the profile, else of the server that runs on the data directory."""
        noted = read_profile(self.profile) if self.profile else {}
        server = self.server or noted.get("server") or self.noted_server()
        return server, self.key or noted.get("key") or self.noted_key()

    def noted_server(self) -> str:
        try:
            return str(json.loads((self.data_dir / "server.json").read_text())["url"])
        except (OSError, ValueError, KeyError):
            fail(f"no server runs on {self.data_dir.absolute()}; start one with `rota up`, or name one with --server")

    def noted_key(self) -> str:
        try:
            return (self.data_dir / "admin.key").read_text().strip()
        except OSError:
            fail(f"no key: {self.data_dir.absolute()} has no admin.key; give one with --key or ROTA_KEY", Exit.REFUSED)


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
        fail(f"profile {name}: there is none in {profiles_file()}; known are {', '.join(known) or 'none'}", Exit.USAGE)
    return known[name]


def explain(refusal: Answered) -> NoReturn:
    """Tell what the server refused, each wrong field on a line of its own."""
    wrong = refusal.problem.get("errors") or []
    lines = [f"  {one['field']}: {one['value']} {one['message']}" for one in wrong]
    text = "\n".join([f"{len(wrong)} values are wrong:", *lines]) if len(wrong) > 1 else refusal.problem["detail"]
    fail(text, CODES.get(refusal.status, Exit.FAILED))


def fail(message: str, code: Exit = Exit.FAILED) -> NoReturn:
    say(f"error: {message}")
    raise typer.Exit(code)


def say(message: str) -> None:
    """Talk goes to stderr."""
    print(message, file=sys.stderr)
