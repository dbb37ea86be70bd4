"""Run every command of the command line against a recorder in place of a server, once per option.

The recorder answers with an example of the response that the OpenAPI document describes.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.testing
from typer.testing import CliRunner

from rota.app.cli import app
from rota.frame.cli.connection import ApiRefusal, Connection

Schema = dict[str, Any]

# values that are tried for an option until the command accepts one; "1" is also the name of a file with an object
VALUES = ("1", "1h", "a=b", "a/b/c", '{"a": 1}', "22:00-06:00")
PREFIX = "/api/v1"


@dataclass
class Recorder:
    """Which operations were called, with which fields of the body and which query parameters."""

    document: Schema
    operations: set[str] = field(default_factory=set)  # of the command that runs
    fields: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    queries: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    everything_exists: bool = False  # creating something is a conflict

    def call(self, method: str, path: str, body: object = None, query: Mapping[str, Any] | None = None) -> Any:
        operation = self.operation_of(method, path)
        self.operations.add(operation)
        self.fields[operation] |= flat_names(body)
        self.queries[operation] |= {name for name, value in (query or {}).items() if value is not None}
        if self.everything_exists and method == "POST" and "$" not in path:
            raise ApiRefusal(409, {"detail": "already exists"})
        route = operation.partition(" ")[2]
        responses = self.document["paths"][PREFIX + route][method.lower()]["responses"]
        response = next(answer for status, answer in responses.items() if status.startswith("2"))
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        if schema is None or (query or {}).get("format"):
            return b""
        return example_of(schema, self.document["components"]["schemas"])

    def operation_of(self, method: str, path: str) -> str:
        """Return method and route of a request; a literal part is preferred to a parameter."""
        routes = [
            route.removeprefix(PREFIX)
            for route, methods in self.document["paths"].items()
            if route.startswith(PREFIX) and method.lower() in methods
        ]
        fitting = [route for route in routes if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)), path)]
        assert fitting, f"no route for {method} {path}"
        return f"{method} {min(fitting, key=lambda route: route.count('{'))}"


def flat_names(body: object, prefix: str = "") -> set[str]:
    """Return the names of the members of an object, and those of objects in it as `outer.inner`."""
    if not isinstance(body, Mapping):
        return set()
    named = {prefix + name for name, value in body.items() if value is not None}
    return named.union(*(flat_names(value, f"{prefix}{name}.") for name, value in body.items()))


def example_of(schema: Schema, components: Schema, name: str = "") -> Any:
    """Return an instance of a schema. Jobs and runs in it have ended, pages are the last, texts are short."""
    if "$ref" in schema:
        return example_of(components[schema["$ref"].rpartition("/")[2]], components, name)
    if "anyOf" in schema:
        if name == "next_cursor":
            return None
        return example_of(schema["anyOf"][0], components, name)
    match schema.get("type"):
        case "object":
            members = schema.get("properties", {})
            return {member: example_of(part, components, member) for member, part in members.items()}
        case "array":
            item = example_of(schema.get("items", {}), components, name)
            return [] if item in ({}, None) else [item]
        case "boolean":
            return True
        case "integer" | "number":
            return 1
        case "string" if schema.get("format") == "date-time":
            return "2026-05-04T09:00:00+00:00"
        case "string" if name == "status":
            return "success"
        case "string":
            return schema.get("enum", ["x"])[0]
        case _:
            return None


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all commands with their names, such as `schedule add`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@dataclass
class CommandLine:
    """What all commands did: `operations` by command, and the recorder's fields and queries by operation."""

    recorder: Recorder
    operations: dict[str, set[str]]
    options: dict[str, set[str]]


def record(
    document: Schema, place: Path, patch: pytest.MonkeyPatch, local: set[str], base: Mapping[str, tuple[str, ...]]
) -> CommandLine:
    """Run all commands but `local` with what they require (`base` has lines of it for commands whose required options
    depend on each other), then with each option, first in an
    empty organisation, then as if everything existed already."""
    recorder = Recorder(document)
    patch.chdir(place)

    def call(
        _: Connection, method: str, path: str, body: object = None, query: Any = None, if_match: Any = None
    ) -> Any:
        return recorder.call(method, path, body, query)

    @contextmanager
    def stream(method: str, url: str, **_: object) -> Iterator[httpx.Response]:
        recorder.call(method, url.removeprefix("http://rota/api/v1"))
        raise KeyboardInterrupt
        yield

    patch.setattr(Connection, "try_call", call)
    patch.setattr(Connection, "address", lambda _: ("http://rota", "key"))
    patch.setattr(httpx, "stream", stream)
    patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))  # else built for each call
    patch.setenv("EDITOR", "true")
    patch.setattr("rota.core.clock.blocking_sleep", lambda _: None)
    done: dict[str, set[str]] = {}
    options: dict[str, set[str]] = {}
    for name, command in leaves(typer.main.get_command(app)):
        if name.split()[0] in local:
            continue
        (place / "1").write_text('{"cron_expression": "* * * * *"}')  # again: a command may have replaced it
        recorder.operations = set()
        for line in [line.split() for line in base.get(name, ())] or [required_words(command)]:
            recorder.everything_exists = False
            words = accepted(name, line)
            assert words is not None, f"`rota {name} {' '.join(line)}` is not accepted"
            for recorder.everything_exists in (False, True):
                for parameter in command.params:
                    run_with(name, words, parameter)
        done[name] = recorder.operations
        options[name] = {opt for parameter in command.params for opt in parameter.opts}
    return CommandLine(recorder, done, options)


def required_words(command: Any) -> list[str]:
    """Return the arguments and options that a command requires, with `?` for values."""
    words = []
    for parameter in command.params:
        if parameter.required:
            words += [parameter.opts[0], "?"] if parameter.opts[0].startswith("--") else ["?"]
    return words


def run_with(name: str, words: list[str], parameter: Any) -> None:
    """Run a command with an option; with both forms of a flag."""
    for option in (*parameter.opts[:1], *parameter.secondary_opts):
        if option.startswith("--") and option not in ("--help", "--watch", "--output", "--query"):
            if parameter.is_flag:
                invoke(name, [*words, option])
            else:
                accepted(name, [*words, option, "?"])


def accepted(name: str, words: list[str]) -> list[str] | None:
    """Run a command with each of VALUES for `?` until one is accepted. Returns the words, None if none is."""
    for value in VALUES if "?" in words else VALUES[:1]:
        tried = [value if word == "?" else word for word in words]
        if invoke(name, tried).exit_code != 2:
            return tried
    return None


def invoke(name: str, words: list[str]) -> Any:
    result = CliRunner().invoke(app, [*name.split(), *words], input="secret-1\nsecret-1\n")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"`rota {name} {' '.join(words)}`") from result.exception
    return result
