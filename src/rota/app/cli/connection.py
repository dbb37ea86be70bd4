"""The way to the server, and what its refusals become: one clear message and an exit code."""

import json
import sys
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NoReturn

import typer

TIMEOUT = 60.0  # seconds for one answer


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


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
    412: Exit.CONFLICT, 401: Exit.REFUSED, 403: Exit.REFUSED,
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

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.call("POST", path, body or {})

    def delete(self, path: str) -> None:
        self.call("DELETE", path)

    def call(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """The answer, or the end of the program with a message."""
        try:
            return self.try_call(method, path, body, query)
        except Answered as refusal:
            explain(refusal)

    def try_call(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """The answer; raises Answered when the server refuses."""
        import httpx

        url = self.server or self.noted_server()
        headers = {"authorization": f"Bearer {self.key or self.noted_key()}"}
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT) as client:
                answer = client.request(method, f"/api/v1{path}", json=body, params=given)
        except httpx.TimeoutException:
            fail(f"the server at {url} did not answer in time", Exit.TIMED_OUT)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            fail(f"cannot reach the server at {url}: {error}; is it running? (`rota up` starts one)")
        if answer.is_success:
            return answer.json() if answer.content else None
        raise Answered(answer.status_code, problem_of(answer))

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


def problem_of(answer: Any) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if isinstance(found, dict) and "detail" in found:
        return found
    return {"detail": f"HTTP {answer.status_code} from {answer.url}: is this a Rota server?"}


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
