"""Server-sent event streams that reconnect and resume after the last event, and `rota events`."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rota.frame.cli.connection import Answer, ApiRefusal, Connection, Exit, exit_refused, fail
from rota.frame.cli.output import local_time, print_data
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import past_option

if TYPE_CHECKING:
    import httpx

RECONNECT_TIMEOUT_SECONDS = 60.0
RECONNECT_DELAY_SECONDS = 0.5
MAX_SEEN_EVENTS = 10_000  # remembered to drop duplicates after a reconnect

Event = tuple[str, str, Answer]  # name, id, data


def events(
    ctx: typer.Context,
    since: Annotated[str | None, past_option(help="include past events since: 1h (ago), 13:00, …")] = None,
) -> None:
    """Follow changes in the org until Ctrl-C. Reconnects and resumes after a lost connection."""
    connection: Connection = ctx.obj
    known: dict[tuple[object, ...], None] = {}  # the server resends the last events after a reconnect
    try:
        for name, _, data in follow(connection, "/events", None if since is None else stream_position(since)):
            if name == "open" or (key := (name, data["id"], data.get("revision"), data["at"])) in known:
                continue
            known[key] = None
            if len(known) > MAX_SEEN_EVENTS:
                del known[next(iter(known))]
            if not print_data(connection, data):
                print(f"{local_time(data['at'])}  {name:<17} {visible(summary(data))}", flush=True)
    except KeyboardInterrupt:
        pass  # the normal way to end it


def follow(connection: Connection, path: str, last: str | None = None) -> Iterator[Event]:
    """Yield the events of a stream. Reconnects with `Last-Event-ID`; the last events may be repeated after that."""
    import httpx

    from rota.core.clock import blocking_sleep, stopwatch

    server, key = connection.address()
    headers = {"authorization": f"Bearer {key}", "accept": "text/event-stream"}
    broken_at: float | None = None
    while True:
        if last is not None:
            headers["last-event-id"] = last
        try:
            with httpx.stream("GET", f"{server}/api/v1{path}", headers=headers, timeout=30) as answer:
                check(answer)
                broken_at = None
                for event in parsed(answer.iter_lines()):
                    last = event[1]
                    yield event
        except (httpx.TransportError, ServerUnavailable) as error:
            broken_at = broken_at or stopwatch()
            if stopwatch() - broken_at > RECONNECT_TIMEOUT_SECONDS:
                fail(f"cannot reach the server at {server}: {error}; is it running?")
        blocking_sleep(RECONNECT_DELAY_SECONDS)


class ServerUnavailable(Exception):
    """The server answered with a 5xx status."""


def check(answer: "httpx.Response") -> None:
    if answer.status_code == 200:
        return
    text = answer.read()
    if answer.status_code >= 500:
        raise ServerUnavailable(f"HTTP {answer.status_code}")
    try:
        exit_refused(ApiRefusal(answer.status_code, json.loads(text)))
    except ValueError:
        fail(f"HTTP {answer.status_code}: is this a Rota server?")


def parsed(lines: Iterable[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}


def stream_position(time: str) -> str:
    """Return the id of the stream's position at a time."""
    from datetime import datetime, timedelta

    from rota.core.errors import Invalid
    from rota.core.timing.triggers import parse_instant

    try:
        at = parse_instant(time, "--since")
    except Invalid as error:
        fail(error.message, Exit.USAGE)
    return str((at - datetime.fromtimestamp(0, at.tzinfo)) // timedelta(microseconds=1))


def summary(data: Answer) -> str:
    """Return an event in one line: the resource and what changed."""
    kind = data["type"].partition(".")[0]
    if kind == "run":
        status = f" {data['status']}" if "status" in data else ""
        return f"{data['id']} {data['target']}{status}" + (f": {data['reason']}" if data.get("reason") else "")
    if kind == "worker":
        return f"{data['id']} {data['host']}:{data['pid']}"
    if kind == "freeze":
        return str((data["after"] or {}).get("reason", ""))
    return str(data.get("name") or data["id"]) + (" (paused)" if data.get("paused") else "")
