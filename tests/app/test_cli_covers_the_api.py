"""The command line does all that the API does: every operation, field of a body and query parameter."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rota
from rota.frame.cli.connection import NOT_FOUND, listed_by
from tests.app.harness import Api
from tests.app.recorded_commands import PREFIX, CommandLine, Schema, record

# commands that start a process, or read and write files
LOCAL = {"up", "server", "worker", "migrate", "doctor", "admin", "agent", "profile", "db", "export", "demo", "init"}
LOCAL |= {"plan", "apply", "schema", "import"}
TRIGGERS = ("--every 1h", "--cron *", "--at 1h", "--rrule FREQ=DAILY")
RUN_FIELDS = {
    **dict.fromkeys(
        (
            "schedule_id",
            "tag",
            "job_id",
            "status",
            "reason",
            "kind",
            "target",
            "namespace",
            "layer",
            "pipeline",
            "error",
        ),
        "a",
    ),
    **{"worker": "a", "input": "a=1", "longer_than": "1s", "shorter_than": "1h", "within": "1d"},
    **{"since": "2026-05-04T09:00:00Z", "until": "2026-05-04T10:00:00Z"},
}
BASE = {  # commands whose required arguments and options depend on each other
    "schedule add": (*(f"a --task t {trigger}" for trigger in TRIGGERS), "a --every 1h --shell x"),
    "schedule preview": TRIGGERS,
    "schedule next": ("a", "--cron *"),
    **{
        f"schedule {verb}": ("a", "--tag t", "--all --kind k")
        for verb in ("pause", "resume", "enable", "disable", "rm")
    },
    "calendar add": ("a --dates 2026-12-24",),
    "calendar edit": ("a --dates 2026-12-24",),
    "freeze show": ("", "a"),
    "simulate": ("--to 1d", "--to 1d --outage 02:00/05:00"),
    "freeze edit": ("a --reason b",),
    "alarm add": ("a --when missed --group 1m --repeat 1h",),
    "alarm edit": ("a --when missed --group 1m --repeat 1h",),
    "alarm channel add": ("a --type email --address b --test-every 1d",),
    "alarm channel edit": ("a --address b --test-every 1d",),
    "task add": ("a --command x", "a --function x"),
    "task edit": ("a --stdin x",),
    "task schedule": tuple(f"a {trigger}" for trigger in TRIGGERS),
    "pipeline save": ("a/b/c --sql x", "a/b/c --function x"),
    "pipeline trigger add": ("a/b/c --after d/e/f", "a/b/c --cron *"),
    "pipeline trigger edit": ("a/b/c t --cooldown 1",),
    "workflow publish": ("a t m", "a t --file 1"),
    "host edit": ("a --name b",),
    "server-instance add": ("a --host h",),
    "server-instance edit": ("a --name b",),
    "queue limit": ("a 1",),
    "user show": ("a", "a@b.c"),
    "session rm": ("a", "--all", "--all --user a"),
    "why": ("a", "a --slot 1h"),
    "run logs": ("a", "a -f"),
    "logs": ("a", "a -f"),
}
WHERE = " ".join(f"--where {name}={value}" for name, value in RUN_FIELDS.items())
BASE |= {"run retry-many": (WHERE, "--id a"), "run cancel-many": (WHERE, "--id a")}
BASE |= {"run delete-many": (f"--yes {WHERE}", "--yes --id a")}
NO_COMMAND = {
    "GET /files": "`rota export`, which writes files",
    "POST /files/$plan": "`rota plan`, which reads files",
    "POST /files/$apply": "`rota apply`, which reads files",
    "POST /webhooks": "called by other systems, with the token of a trigger",
    "POST /webhooks/{hook_id}": "called by other systems, with a signature",
    "GET /jobs/{job_id}/$stream": "an event stream: `rota run wait`, `rota run logs -f`",
    "DELETE /jobs/{job_id}": "the same as $cancel",
    "GET /schedules/{key}/runs": "`rota run list --schedule`",
    "GET /schedules/{key}/slots": "`rota slots list --schedule`",
    "PUT /schedules/{key}": "the same as PATCH",
    "PATCH /tasks/{key}/$schedules/{schedule_id}": "`rota schedule edit`",
    "DELETE /tasks/{key}/$schedules/{schedule_id}": "`rota schedule rm`",
    "PUT /tasks/{key}": "`rota task edit`, which keeps the other fields",
    "PUT /queues/{name}": "the same as PATCH",
    "GET /artifacts/{artifact_id}/$content": "`rota artifact get`, which reads it in parts",
    "GET /artifacts/{artifact_id}/$expand": "`rota artifact show`",
}
NO_OPTION = {  # of a body or query, in all operations
    "interval_seconds": "--every",
    "schedule_type": "follows from the trigger",
    "upstream": "--after",
    "filter.ids": "for rows selected on a page; names on the command line",
}
NO_OPTION_OF = {
    "PATCH /schedules/{key}": {"kind": "cannot change"},
    "POST /schedules/{key}/$diff": {"kind": "cannot change", "replace": "for editors: options name what changes"},
    "POST /tasks": {
        "id": "for programs; --file",
        "executor": "declared by programs",
        "container": "declared by programs",
    },
    "PATCH /tasks/{key}": {
        "id": "cannot change",
        "executor": "declared by programs",
        "container": "declared by programs",
    },
    "GET /runs/{run_id}/logs": {"limit": "all lines are printed"},
}
WATCHED = {
    "simulate",
    "schedule preview",
    "schedule diff",
    "schedule next",
    "pipeline preview",
}  # POST, but nothing is stored
NOT_WATCHED = {"logs", "run logs", "events", "run wait", "artifact get"}  # end by themselves, follow, or write a file


@pytest.fixture
def line(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return record(api.app.openapi(), tmp_path, monkeypatch, LOCAL, BASE)


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
def test_the_command_line_does_all_that_the_api_does(line: CommandLine) -> None:
    document = line.recorder.document
    operations = dict(operations_of(document))
    called = set().union(*line.operations.values())
    assert set(operations) - called - NO_COMMAND.keys() == set(), "operations without a command"
    assert called & NO_COMMAND.keys() == set(), "there is a command"
    missing = {
        operation: fields_of(document, operations[operation])
        - (line.recorder.fields[operation] | line.recorder.queries[operation])
        - NO_OPTION.keys()
        - NO_OPTION_OF.get(operation, {}).keys()
        for operation in sorted(called)
    }
    assert {operation: sorted(names) for operation, names in missing.items() if names} == {}, "without an option"


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
def test_every_command_has_output_options_and_those_that_read_can_be_watched(line: CommandLine) -> None:
    assert [name for name, options in line.options.items() if not {"-o", "--query"} <= options] == []
    reads = {name for name, called in line.operations.items() if all(each.startswith("GET ") for each in called)}
    named = {listed_by(match[1]) for match in map(NOT_FOUND.fullmatch, messages_of_missing_resources()) if match}
    assert {"schedule list", "server-instance list", "key list"} <= named <= reads, "commands that error messages name"
    watched = {name for name, options in line.options.items() if "--watch" in options}
    assert watched == (reads | WATCHED) - NOT_WATCHED


def messages_of_missing_resources() -> Iterator[str]:
    for path in Path(rota.__file__).parent.rglob("*.py"):
        for message in re.findall(r'NotFound\(f"([^"]*)"', path.read_text()):
            yield re.sub(r"'?\{[^}]*\}'?", "'x'", message)


def operations_of(document: Schema) -> Iterator[tuple[str, Schema]]:
    for path, methods in document["paths"].items():
        if path.startswith(PREFIX):
            for method, operation in methods.items():
                yield f"{method.upper()} {path.removeprefix(PREFIX)}", operation


def fields_of(document: Schema, operation: Schema) -> set[str]:
    """Return the names of query parameters and of the fields of the body, of objects in it as `outer.inner`."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    query = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}
    return query | names_of(body, document["components"]["schemas"])


def names_of(schema: Schema, components: dict[str, Any], prefix: str = "") -> set[str]:
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return names_of(schema["anyOf"][0], components, prefix)
    properties = schema.get("properties", {})
    inner = (names_of(part, components, f"{prefix}{name}.") for name, part in properties.items())
    return {prefix + name for name in properties}.union(*inner)
