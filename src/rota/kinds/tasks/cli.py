"""`rota task …` and `rota artifact …`"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Exit, Output, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit, exactly_one, read_input
from rota.frame.cli.output import plain, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import print_result, show_job_or_result
from rota.frame.cli.schedule_options import check_one_trigger, print_schedule, with_schedule_options
from rota.frame.cli.terminal import json_text, output, visible

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what can run, and run it.")
artifacts = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what runs left behind.")

Name = Annotated[str, typer.Argument(help="name or id of the task")]
Param = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE, the value as JSON or else as text; may be given several times")
]
Params = Annotated[str | None, typer.Option(help="all parameters as a JSON object, or @file")]
ArtifactId = Annotated[str, typer.Argument(help="id of the artifact, or of a task's run")]
TASK = (
    "id", "name", "task_type", "command", "parameters", "enabled", "source", "version", "retry", "timeout", "isolation",
    "cache_ttl", "env", "cwd", "stdin", "memory_mb", "created_at", "updated_at",
)  # fmt: skip
ARTIFACT = ("id", "run_id", "parent_id", "level", "label", "content_type", "size", "created_at")


@app.command("list")
def list_all(
    ctx: typer.Context,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="only those; else all")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List tasks."""
    wanted = None if enabled is None else str(enabled).lower()
    page = ctx.obj.get("/tasks", enabled=wanted, limit=limit, cursor=cursor)
    rows = (
        [one["name"], one["task_type"], one["source"], "yes" if one["enabled"] else "no", one["command"]]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("name", "type", "source", "enabled", "command"), rows)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Everything about one task."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), TASK)


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="a name of its own")],
    command: Annotated[str | None, typer.Option(help="a command for the system's shell")] = None,
    function: Annotated[str | None, typer.Option(help="a function that a running program registered")] = None,
    param: Param = None,
    params: Params = None,
    timeout: Annotated[str | None, typer.Option(help="how long a run may take, such as 30s or 5m")] = None,
    retries: Annotated[int | None, typer.Option(help="attempts after a failed one")] = None,
    cache_ttl: Annotated[str | None, typer.Option(help="how long a result is used again, such as 1h")] = None,
    isolation: Annotated[str | None, typer.Option(help="process: a function runs in a process of its own")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="how much memory its process may have")] = None,
    cwd: Annotated[str | None, typer.Option(help="where a command runs")] = None,
    env: Annotated[list[str] | None, typer.Option(help="a variable that a command may see; several times")] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="make it, but let nobody run it yet")] = False,
) -> None:
    """Make a task. A command needs an admin's key, or an operator's with the scope shell."""
    exactly_one(command=command, function=function)
    body = {
        "name": name, "task_type": "shell" if function is None else "python", "command": command or function,
        "parameters": read_params(param, params), "timeout": timeout, "cache_ttl": cache_ttl, "isolation": isolation,
        "retry": None if retries is None else {"max_retries": retries}, "memory_mb": memory_mb, "cwd": cwd,
        "env": env or None, "enabled": not disabled,
    }  # fmt: skip
    given = {field: value for field, value in body.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post("/tasks", given), TASK)


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    param: Param = None,
    params: Params = None,
    wait: Annotated[bool, typer.Option("--wait", help="for its result; exit code 7 if the run failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait; exit code 6 after that")] = 3600.0,
) -> None:
    """Run it now. Parameters stand over the task's own."""
    given = read_params(param, params)
    answer = ctx.obj.post(f"{path_of(name)}/$execute", None if given is None else {"parameters": given})
    show_job_or_result(ctx.obj, answer, wait, timeout)


@app.command()
@with_schedule_options
def schedule(
    ctx: typer.Context,
    task: Name,
    fields: dict[str, Any],
    name: Annotated[str | None, typer.Option(help="of the schedule; else one is made up")] = None,
) -> None:
    """Say when it runs."""
    check_one_trigger(fields)
    print_schedule(
        ctx.obj, ctx.obj.post(f"{path_of(task)}/$schedule", fields if name is None else {**fields, "name": name})
    )


@app.command()
def enable(ctx: typer.Context, name: Name) -> None:
    """Let it run again."""
    print_details(ctx.obj, ctx.obj.patch(path_of(name), {"enabled": True}), ("name", "enabled"))


@app.command()
def disable(ctx: typer.Context, name: Name) -> None:
    """Switch it off: slots and jobs of it are skipped."""
    print_details(ctx.obj, ctx.obj.patch(path_of(name), {"enabled": False}), ("name", "enabled"))


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a task and its schedules; what it ran and left stays."""
    ctx.obj.delete(path_of(name))
    print_stderr(f"task {name} is deleted")


@app.command()
def schema(ctx: typer.Context, name: Name) -> None:
    """The JSON Schema of its parameters."""
    told = ctx.obj.get(f"{path_of(name)}/$schema")
    if not print_data(ctx.obj, told):
        print(json_text(told, indent=2))


@artifacts.command("list")
def list_artifacts(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Option(help="id of the run that saved them")] = None,
    parent: Annotated[str | None, typer.Option(help="id of the artifact above them")] = None,
    label: Annotated[str | None, typer.Option()] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List what runs saved, newest first."""
    page = ctx.obj.get("/artifacts", run_id=run, parent_id=parent, label=label, limit=limit, cursor=cursor)
    rows = (
        [one["id"], one["label"], one["content_type"], str(one["size"]), relative_time(one["created_at"])]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("id", "label", "type", "bytes", "saved"), rows)


@artifacts.command("show")
def show_artifact(ctx: typer.Context, artifact_id: ArtifactId) -> None:
    """An artifact with its content, where that is JSON or text."""
    found = ctx.obj.get(artifact_path(artifact_id))
    print_details(ctx.obj, found, ARTIFACT)
    if found["data"] is not None and ctx.obj.output is Output.TABLE:
        print()
        print_result(found["data"])


@artifacts.command()
def tree(ctx: typer.Context, artifact_id: ArtifactId) -> None:
    """An artifact with all that hangs below it."""
    found = ctx.obj.get(f"{artifact_path(artifact_id)}/$tree")
    if not print_data(ctx.obj, found):
        print_branch(found, "")


@artifacts.command()
def get(
    ctx: typer.Context,
    artifact_id: ArtifactId,
    out: Annotated[Path | None, typer.Option("--out", "-O", help="a file to write to; else stdout")] = None,
) -> None:
    """The content as it was saved, byte for byte."""
    content: bytes = ctx.obj.get(f"{artifact_path(artifact_id)}/$content")
    if out is None:
        if sys.stdout.isatty():
            print(output(content.decode(errors="replace")))
        else:
            sys.stdout.buffer.write(content)
        return
    try:
        out.write_bytes(content)
    except OSError as error:
        fail(f"--out {out}: {error.strerror}", Exit.USAGE)
    print_stderr(f"{out}: {len(content)} bytes")


def path_of(name: str) -> str:
    return f"/tasks/{quote(name, safe='')}"


def artifact_path(artifact_id: str) -> str:
    return f"/artifacts/{quote(artifact_id, safe='')}"


def read_params(param: list[str] | None, params: str | None) -> dict[str, Any] | None:
    """`--params`, and over it each `--param`; None if there are none."""
    whole = read_input(params, "--params")
    if whole is not None and not isinstance(whole, dict):
        fail("--params is not a JSON object", Exit.USAGE)
    single = dict(read_param(one) for one in param or [])
    return whole if not single else {**(whole or {}), **single}


def read_param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--param {text}: write NAME=VALUE", Exit.USAGE)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def print_branch(one: dict[str, Any], indent: str) -> None:
    print(visible(f"{indent}{one['label']}  {one['id']}  {one['content_type']}  {plain(one['size'])} bytes"))
    for child in one["children"]:
        print_branch(child, indent + "  ")
