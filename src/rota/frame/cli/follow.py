"""What happens, as it happens: the server's streams, taken up again where they broke, and `rota events`."""

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from rota.frame.cli.connection import ApiRefusal, Connection, Exit, exit_refused, fail
from rota.frame.cli.output import local_time, print_data
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import past_option

PATIENCE = 60.0  # seconds without a word from the server
PAUSE = 0.5  # seconds before the next try
MOST = 10_000  # events that are known again when they come twice

Event = tuple[str, str, Any]  # its name, its id, its data


def events(
    ctx: typer.Context,
    since: Annotated[str | None, past_option(help="also what happened since: 1h, 13:00, …")] = None,
) -> None:
    """What changes in the org, as it happens, until Ctrl-C. Takes up again where a connection broke."""
    connection: Connection = ctx.obj
    known: dict[tuple[Any, ...], None] = {}  # after a break, the last ones come again
    try:
        for name, _, data in follow(connection, "/events", None if since is None else position(since)):
            if name == "open" or (key := (name, data["id"], data.get("revision"), data["at"])) in known:
                continue
            known[key] = None
            if len(known) > MOST:
                del known[next(iter(known))]
            if not print_data(connection, data):
                print(f"{local_time(data['at'])}  {name:<17} {visible(words(data))}", flush=True)
    except KeyboardInterrupt:
        pass  # that is how it ends


def follow(connection: Connection, path: str, last: str | None = None) -> Iterator[Event]:
    """The events of a stream, for as long as somebody reads. After a break it goes on behind the last one; those that
    were told just before may come again."""
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
        except (httpx.TransportError, Busy) as error:
            broken_at = broken_at or stopwatch()
            if stopwatch() - broken_at > PATIENCE:
                fail(f"cannot reach the server at {server}: {error}; is it running?")
        blocking_sleep(PAUSE)


class Busy(Exception):
    """The server cannot answer now."""


def check(answer: Any) -> None:
    if answer.status_code == 200:
        return
    text = answer.read()
    if answer.status_code >= 500:
        raise Busy(f"HTTP {answer.status_code}")
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


def position(moment: str) -> str:
    """Where the stream stood at a moment."""
    from datetime import datetime, timedelta

    from rota.core.errors import Invalid
    from rota.core.timing.triggers import parse_instant

    try:
        at = parse_instant(moment, "--since")
    except Invalid as error:
        fail(error.message, Exit.USAGE)
    return str((at - datetime.fromtimestamp(0, at.tzinfo)) // timedelta(microseconds=1))


def words(data: dict[str, Any]) -> str:
    """What happened, to which thing."""
    kind = data["type"].partition(".")[0]
    if kind == "run":
        status = f" {data['status']}" if "status" in data else ""
        return f"{data['id']} {data['target']}{status}" + (f": {data['reason']}" if data.get("reason") else "")
    if kind == "worker":
        return f"{data['id']} {data['host']}:{data['pid']}"
    if kind == "freeze":
        return str((data["after"] or {}).get("reason", ""))
    return str(data.get("name") or data["id"]) + (" (paused)" if data.get("paused") else "")
