"""`rota plan`, `rota apply`, `rota schema` and `rota export`."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rota.app.cli.schedule_impact import as_text, notes_of, summary_of
from rota.frame.cli.connection import Answer, ApiRefusal, Connection, Exit, exit_refused, fail, print_stderr
from rota.frame.cli.output import print_data
from rota.frame.cli.terminal import visible

if TYPE_CHECKING:
    from rota.app.files.documents import Documents

SIGNS = {"create": "+", "change": "~", "pause": "-", "left": "?", "none": "="}
PLACE = re.compile(r"^(\w+)\[(\d+)\](?:\.([\w.\[\]]+))?")
EXPORT_HEADER = "# Applied with `rota apply -f DIR`; `rota schema` describes the fields.\n"

Source = Annotated[Path, typer.Option("--file", "-f", help="YAML file, or directory with YAML files")]
Prune = Annotated[
    bool, typer.Option("--prune", help="pause schedules and disable tasks that were applied before and are gone")
]


def plan(ctx: typer.Context, source: Source, prune: Prune = False) -> None:
    """Show what an apply of files would change, without storing it. Exit code 8 if there are changes, 0 if not."""
    documents = read(source)
    planned = call(ctx.obj, "plan", {"resources": documents.resources, "prune": prune}, documents)
    changes = [change for change in planned["changes"] if change["action"] not in ("none", "left")]
    if not print_data(ctx.obj, planned):
        print_plan(planned)
        if changes:
            version = planned["version"]
            print_stderr(f"version {version}: `rota apply --version {version}` refuses if the installation has changed")
    if changes:
        raise typer.Exit(Exit.CHANGES)


def apply(
    ctx: typer.Context,
    source: Source,
    prune: Prune = False,
    version: Annotated[
        str | None, typer.Option(help="version of a plan: refuse if the installation has changed since")
    ] = None,
) -> None:
    """Create and change what files describe, all or nothing. Nothing is deleted."""
    documents = read(source)
    body = {"resources": documents.resources, "prune": prune, **({"version": version} if version else {})}
    done = call(ctx.obj, "apply", body, documents)
    if not print_data(ctx.obj, done):
        print_plan(done)


def schema() -> None:
    """Print the JSON Schema of files."""
    from rota.app.files.models import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def export_files(connection: Connection, directory: Path | None, *, secrets: bool) -> None:
    """Write the resources of the org as one YAML file each, or print them as one document."""
    from rota.app.files.documents import yaml_of
    from rota.db.private_files import replacing

    export = connection.get("/files", secrets=secrets or None)
    resources = {name: entries for name, entries in export["resources"].items() if entries}
    exported = {(name, entry.get("name")) for name, entries in resources.items() for entry in entries}
    for item in export["left_out"]:
        state = "is exported" if (item["resource"], item["name"]) in exported else "is left out"
        print_stderr(f"note: {item['resource']}/{item['name']} {state}: {item['reason']}")
    if directory is None:
        if not print_data(connection, export):
            print(yaml_of(resources), end="")
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, entries in resources.items():
            with replacing(directory / f"{name}.yaml") as out:
                out.write((EXPORT_HEADER + yaml_of({name: entries})).encode())
    except OSError as error:
        fail(f"{directory}: {error.strerror or error}")
    count = sum(map(len, resources.values()))
    print_stderr(f"{count} resources in {directory}")


def read(source: Path) -> "Documents":
    from rota.app.files.documents import FileError, read_files

    try:
        return read_files(source)
    except FileError as error:
        fail(str(error), Exit.USAGE)


def call(connection: Connection, verb: str, body: Answer, documents: "Documents") -> Answer:
    """Send files to the server. Prints errors with file, line and field and exits if it refuses them."""
    try:
        return connection.try_call("POST", f"/files/${verb}", body)
    except ApiRefusal as refusal:
        exit_with_places(refusal, documents)


def exit_with_places(refusal: ApiRefusal, documents: "Documents") -> NoReturn:
    """Print a refusal, one line per wrong field, with the place in the files."""
    errors = refusal.problem.get("errors") or []
    texts = [with_place(f"{error['field']}: {error['message']}", documents) for error in errors]
    detail = refusal.problem.get("detail")
    problem = {**refusal.problem, "errors": [], "detail": "\n".join(texts) or with_place(str(detail), documents)}
    exit_refused(ApiRefusal(refusal.status, problem))


def with_place(text: str, documents: "Documents") -> str:
    """Return a message that begins with `schedules[3].retry.max_retries` with file and line in front of it."""
    match = PLACE.match(text)
    if match is None:
        return text
    resource, position, rest = match[1], int(match[2]), match[3] or ""
    fields = [int(part) if part.isdecimal() else part for part in re.split(r"[.\[\]]+", rest) if part]
    place = documents.place_of((resource, position, *fields))
    return text if place is None else f"{place}: {resource}{'.' + rest if rest else ''}{text[match.end() :]}"


def print_plan(planned: Answer) -> None:
    """Print changes with their fields and slots."""
    changes = planned["changes"]
    for change in changes:
        print(visible(f"{SIGNS[change['action']]} {change['resource']}/{change['name']}"))
        for field in change["fields"]:
            before = "" if change["action"] == "create" else f"{as_text(field['before'])} -> "
            print(visible(f"    {field['field']}: {before}{as_text(field['after'])}"))
        if (slots := change["slots"]) is not None:
            print(f"    {summary_of(slots)}")
            for note in notes_of(slots):
                print(visible(f"    note: {note}"))
        if change["note"]:
            print(visible(f"    note: {change['note']}"))
    counts = [
        f"{count} {words}"
        for action, words in (("create", "to create"), ("change", "to change"), ("pause", "to pause"))
        if (count := sum(change["action"] == action for change in changes))
    ]
    print(", ".join(counts) + f", {planned['unchanged']} unchanged" if counts else "no changes")
