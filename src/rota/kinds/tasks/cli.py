"""`rota task …` and `rota artifact …`"""

import json
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Answer, Exit, Output, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit, exactly_one, read_input
from rota.frame.cli.output import plain, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import print_result, show_job_or_result
from rota.frame.cli.schedule_options import check_one_trigger, print_schedule, with_schedule_options
from rota.frame.cli.terminal import json_text, output, visible

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, run, create and schedule tasks.")
artifacts = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and download artifacts of runs.")

Name = Annotated[str, typer.Argument(help="name or id of the task")]
Param = Annotated[list[str] | None, typer.Option(help="NAME=VALUE, the value as JSON or else as text; repeatable")]
Params = Annotated[str | None, typer.Option(help="all parameters as a JSON object, or @file")]
ArtifactId = Annotated[str, typer.Argument(help="id of the artifact, or of a task's run")]
TASK_FIELDS = (
    "id", "name", "task_type", "command", "parameters", "enabled", "source", "version", "retry", "timeout", "isolation",
    "cache_ttl", "env", "cwd", "stdin", "memory_mb", "created_at", "updated_at",
)  # fmt: skip
ARTIFACT_FIELDS = ("id", "run_id", "parent_id", "level", "label", "content_type", "size", "created_at")


@app.command("list")
def list_all(
    ctx: typer.Context,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="only enabled or disabled tasks")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List tasks."""
    enabled_text = None if enabled is None else str(enabled).lower()
    page = ctx.obj.get("/tasks", enabled=enabled_text, limit=limit, cursor=cursor)
    rows = (
        [task["name"], task["task_type"], task["source"], "yes" if task["enabled"] else "no", task["command"]]
        for task in page["items"]
    )
    print_list(ctx.obj, page, ("name", "type", "source", "enabled", "command"), rows)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show a task."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), TASK_FIELDS)


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="name of the new task")],
    command: Annotated[str | None, typer.Option(help="a command for the system's shell")] = None,
    function: Annotated[str | None, typer.Option(help="a function that a running program registered")] = None,
    param: Param = None,
    params: Params = None,
    timeout: Annotated[str | None, typer.Option(help="maximum duration of a run, such as 30s or 5m")] = None,
    retries: Annotated[int | None, typer.Option(help="maximum retries after a failed run")] = None,
    cache_ttl: Annotated[str | None, typer.Option(help="how long a result is cached, such as 1h")] = None,
    isolation: Annotated[str | None, typer.Option(help="`process` runs a function in a process of its own")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="memory limit of its process")] = None,
    cwd: Annotated[str | None, typer.Option(help="working directory of a command")] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="environment variable that a command inherits; repeatable")
    ] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="create it disabled")] = False,
) -> None:
    """Create a task. A command needs an admin's key, or an operator's with the scope shell."""
    exactly_one(command=command, function=function)
    body = {
        "name": name,
        "task_type": "shell" if function is None else "python",
        "command": command or function,
        "parameters": read_params(param, params),
        "timeout": timeout,
        "cache_ttl": cache_ttl,
        "isolation": isolation,
        "retry": None if retries is None else {"max_retries": retries},
        "memory_mb": memory_mb,
        "cwd": cwd,
        "env": env or None,
        "enabled": not disabled,
    }
    fields = {field: value for field, value in body.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post("/tasks", fields), TASK_FIELDS)


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    param: Param = None,
    params: Params = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the result; exit code 7 if the run failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait at most; exit code 6 after that")] = 3600.0,
) -> None:
    """Run a task now. Parameters override the task's own."""
    parameters = read_params(param, params)
    body = None if parameters is None else {"parameters": parameters}
    answer = ctx.obj.post(f"{path_of(name)}/$execute", body)
    show_job_or_result(ctx.obj, answer, wait, timeout)


@app.command()
@with_schedule_options
def schedule(
    ctx: typer.Context,
    task: Name,
    fields: Answer,
    name: Annotated[str | None, typer.Option(help="name of the schedule; default: a generated one")] = None,
) -> None:
    """Create a schedule of a task."""
    check_one_trigger(fields)
    print_schedule(
        ctx.obj, ctx.obj.post(f"{path_of(task)}/$schedule", fields if name is None else {**fields, "name": name})
    )


@app.command()
def enable(ctx: typer.Context, name: Name) -> None:
    """Enable a task."""
    print_details(ctx.obj, ctx.obj.patch(path_of(name), {"enabled": True}), ("name", "enabled"))


@app.command()
def disable(ctx: typer.Context, name: Name) -> None:
    """Disable a task: its slots and jobs are skipped."""
    print_details(ctx.obj, ctx.obj.patch(path_of(name), {"enabled": False}), ("name", "enabled"))


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a task and its schedules; its runs and artifacts stay."""
    ctx.obj.delete(path_of(name))
    print_stderr(f"task {name} deleted")


@app.command()
def schema(ctx: typer.Context, name: Name) -> None:
    """Show the JSON Schema of its parameters."""
    parameters = ctx.obj.get(f"{path_of(name)}/$schema")
    if not print_data(ctx.obj, parameters):
        print(json_text(parameters, indent=2))


@artifacts.command("list")
def list_artifacts(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Option(help="id of the run that saved them")] = None,
    parent: Annotated[str | None, typer.Option(help="id of their parent artifact")] = None,
    label: Annotated[str | None, typer.Option()] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List artifacts, newest first."""
    page = ctx.obj.get("/artifacts", run_id=run, parent_id=parent, label=label, limit=limit, cursor=cursor)
    rows = (
        [
            artifact["id"],
            artifact["label"],
            artifact["content_type"],
            str(artifact["size"]),
            relative_time(artifact["created_at"]),
        ]
        for artifact in page["items"]
    )
    print_list(ctx.obj, page, ("id", "label", "type", "bytes", "saved"), rows)


@artifacts.command("show")
def show_artifact(ctx: typer.Context, artifact_id: ArtifactId) -> None:
    """Show an artifact, with its content if that is JSON or text."""
    artifact = ctx.obj.get(artifact_path(artifact_id))
    print_details(ctx.obj, artifact, ARTIFACT_FIELDS)
    if artifact["data"] is not None and ctx.obj.output is Output.TABLE:
        print()
        print_result(artifact["data"])


@artifacts.command()
def tree(ctx: typer.Context, artifact_id: ArtifactId) -> None:
    """Show an artifact and its descendants."""
    root = ctx.obj.get(f"{artifact_path(artifact_id)}/$tree")
    if not print_data(ctx.obj, root):
        print_tree(root, "")


@artifacts.command()
def get(
    ctx: typer.Context,
    artifact_id: ArtifactId,
    out: Annotated[Path | None, typer.Option("--out", "-O", help="file to write; default: stdout")] = None,
) -> None:
    """Download the content of an artifact, byte for byte."""
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


def read_params(param: list[str] | None, params: str | None) -> Answer | None:
    """Return the parameters of `--params`, overridden by each `--param`; None without either."""
    whole = read_input(params, "--params")
    if whole is not None and not isinstance(whole, dict):
        fail("--params is not a JSON object", Exit.USAGE)
    single = dict(read_param(text) for text in param or [])
    return whole if not single else {**(whole or {}), **single}


def read_param(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--param {text}: write NAME=VALUE", Exit.USAGE)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def print_tree(artifact: Answer, indent: str) -> None:
    line = f"{artifact['label']}  {artifact['id']}  {artifact['content_type']}  {plain(artifact['size'])} bytes"
    print(visible(indent + line))
    for child in artifact["children"]:
        print_tree(child, indent + "  ")
