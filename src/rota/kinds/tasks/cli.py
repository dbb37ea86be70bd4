"""`rota task …` and `rota artifact …`"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO
from urllib.parse import quote

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Exit, fail, print_stderr
from rota.frame.cli.options import (
    Cursor,
    Limit,
    command_group,
    exactly_one,
    read_input,
    set_fields,
    some_changes,
    with_fields,
)  # fmt: skip
from rota.frame.cli.output import plain, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import print_result, show_job_or_result
from rota.frame.cli.schedule_options import (
    check_one_trigger,
    print_schedule,
    retry_fields,
    state_of,
    with_schedule_options,
)  # fmt: skip
from rota.frame.cli.terminal import json_text, output, visible

app = command_group("List, run, create and schedule tasks.")
artifacts = command_group("List and download artifacts of runs.")

Name = Annotated[str, typer.Argument(help="name or id of the task", autocompletion=complete("tasks"))]
Param = Annotated[list[str] | None, typer.Option(help="NAME=VALUE, the value as JSON or else as text; repeatable")]
Params = Annotated[str | None, typer.Option(help="all parameters as a JSON object, or @file")]
ArtifactId = Annotated[str, typer.Argument(help="id of the artifact, or of a task's run")]
TASK_FIELDS = (
    "id", "name", "task_type", "command", "parameters", "enabled", "source", "version", "retry", "timeout", "isolation",
    "executor", "container", "cache_ttl", "env", "cwd", "stdin", "memory_mb", "queue", "priority", "rate", "burst",
    "rate_key", "max_running", "max_running_key", "heartbeat", "debounce", "debounce_key", "debounce_max", "throttle",
    "throttle_key", "on_new_version", "created_at", "updated_at",
)  # fmt: skip
ARTIFACT_FIELDS = ("id", "run_id", "parent_id", "level", "label", "content_type", "size", "created_at")


@app.command("list", reads=True)
def list_all(
    ctx: typer.Context,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="only enabled or disabled tasks")] = None,
    task_type: Annotated[str | None, typer.Option("--type", help="shell or python")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List tasks."""
    page = ctx.obj.get("/tasks", enabled=enabled, task_type=task_type, limit=limit, cursor=cursor)
    rows = (
        [task["name"], task["task_type"], task["source"], "yes" if task["enabled"] else "no", task["command"]]
        for task in page["items"]
    )
    print_list(ctx.obj, page, ("name", "type", "source", "enabled", "command"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show a task."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), TASK_FIELDS)


def task_fields(
    command: Annotated[str | None, typer.Option(help="a command for the system's shell")] = None,
    function: Annotated[str | None, typer.Option(help="a function that a running program registered")] = None,
    param: Param = None,
    params: Params = None,
    timeout: Annotated[str | None, typer.Option(help="maximum duration of a run, such as 30s or 5m")] = None,
    cache_ttl: Annotated[str | None, typer.Option(help="how long a result is cached, such as 1h")] = None,
    isolation: Annotated[str | None, typer.Option(help="`process` runs a function in a process of its own")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="memory limit of its process")] = None,
    cwd: Annotated[str | None, typer.Option(help="working directory of a command")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="environment variable that a command inherits, or NAME=VALUE for all; repeatable"),
    ] = None,
    stdin: Annotated[str | None, typer.Option(help="text that a command reads from stdin")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="whether it may run")] = None,
    delete_with_schedule: Annotated[
        bool | None,
        typer.Option("--delete-with-schedule/--keep", help="whether it is deleted with its last schedule"),
    ] = None,
) -> Answer:
    """Return the fields of a task. Exits with USAGE if both a command and a function are set."""
    if command is not None or function is not None:
        exactly_one(command=command, function=function)
    return set_fields(
        task_type=("shell" if function is None else "python") if command or function else None,
        command=command or function,
        parameters=read_params(param, params),
        timeout=timeout,
        cache_ttl=cache_ttl,
        isolation=isolation,
        memory_mb=memory_mb,
        cwd=cwd,
        env=read_environment(env or []),
        stdin=stdin,
        enabled=enabled,
        delete_with_schedule=delete_with_schedule,
    )


def flow_fields(
    queue: Annotated[str | None, typer.Option(help="queue of its jobs, unless a request names one")] = None,
    priority: Annotated[int | None, typer.Option(help="priority of its jobs, unless a request has one")] = None,
    rate: Annotated[str | None, typer.Option(help="starts per span of time, such as 100/1m")] = None,
    burst: Annotated[int | None, typer.Option(help="how many may start at once after a pause")] = None,
    rate_key: Annotated[str | None, typer.Option(help="parameter whose values have a rate each")] = None,
    max_running: Annotated[int | None, typer.Option(help="maximum concurrent runs")] = None,
    max_running_key: Annotated[str | None, typer.Option(help="parameter whose values have a limit each")] = None,
    heartbeat: Annotated[str | None, typer.Option(help="how often a function must call ctx.heartbeat()")] = None,
    debounce: Annotated[str | None, typer.Option(help="jobs enqueued within this span become one")] = None,
    debounce_key: Annotated[str | None, typer.Option(help="parameter whose values are debounced apart")] = None,
    debounce_max: Annotated[str | None, typer.Option(help="how long a job may be postponed by debounce")] = None,
    throttle: Annotated[str | None, typer.Option(help="at most one job is enqueued per span")] = None,
    throttle_key: Annotated[str | None, typer.Option(help="parameter whose values are throttled apart")] = None,
    on_new_version: Annotated[
        str | None, typer.Option(help="runs with steps whose version no worker has: continue, restart or park")
    ] = None,
) -> Answer:
    """Return the fields of a task that control its flow."""
    return set_fields(
        queue=queue,
        priority=priority,
        rate=rate,
        burst=burst,
        rate_key=rate_key,
        max_running=max_running,
        max_running_key=max_running_key,
        heartbeat=heartbeat,
        debounce=debounce,
        debounce_key=debounce_key,
        debounce_max=debounce_max,
        throttle=throttle,
        throttle_key=throttle_key,
        on_new_version=on_new_version,
    )


with_task_options = with_fields(task_fields, retry_fields, flow_fields)


@app.command()
@with_task_options
def add(
    ctx: typer.Context,
    fields: Answer,
    name: Annotated[str | None, typer.Argument(help="name of the new task; default: a generated one")] = None,
) -> None:
    """Create a task. A command needs an admin's key, or an operator's with the scope shell."""
    if "command" not in fields:
        fail("give exactly one of --command | --function", Exit.USAGE)
    print_details(ctx.obj, ctx.obj.post("/tasks", {**fields, **set_fields(name=name)}), TASK_FIELDS)


@app.command()
@with_task_options
def edit(
    ctx: typer.Context,
    name: Name,
    fields: Answer,
    new_name: Annotated[str | None, typer.Option("--name", help="new name")] = None,
) -> None:
    """Change the fields given by options or a file; the others stay."""
    changes = some_changes({**fields, **set_fields(name=new_name)})
    print_details(ctx.obj, ctx.obj.patch(path_of(name), changes), TASK_FIELDS)


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
    print_schedule(ctx.obj, ctx.obj.post(f"{path_of(task)}/$schedule", {**fields, **set_fields(name=name)}))


@app.command(reads=True)
def schedules(ctx: typer.Context, name: Name, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the schedules of a task."""
    page = ctx.obj.get(f"{path_of(name)}/$schedules", limit=limit, cursor=cursor)
    rows = (
        [schedule["name"], schedule["words"] or "-", state_of(schedule), relative_time(schedule["next_run_at"])]
        for schedule in page["items"]
    )
    print_list(ctx.obj, page, ("name", "when", "state", "next"), rows)


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


@app.command(reads=True)
def schema(ctx: typer.Context, name: Name) -> None:
    """Show the JSON Schema of its parameters."""
    parameters = ctx.obj.get(f"{path_of(name)}/$schema")
    if not print_data(ctx.obj, parameters):
        print(json_text(parameters, indent=2))


@artifacts.command("list", reads=True)
def list_artifacts(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Option(help="id of the run that saved them")] = None,
    parent: Annotated[str | None, typer.Option(help="id of their parent artifact")] = None,
    label: Annotated[str | None, typer.Option(help="only those with this label")] = None,
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


@artifacts.command("show", reads=True)
def show_artifact(ctx: typer.Context, artifact_id: ArtifactId) -> None:
    """Show an artifact, with its content if that is JSON or text."""
    artifact = ctx.obj.get(artifact_path(artifact_id))
    print_details(ctx.obj, artifact, ARTIFACT_FIELDS)
    if artifact["data"] is not None and ctx.obj.for_people:
        print()
        print_result(artifact["data"])


@artifacts.command(reads=True)
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
    if out is None:
        if sys.stdout.isatty():
            content: bytes = ctx.obj.get(f"{artifact_path(artifact_id)}/$content")
            print(output(content.decode(errors="replace")))
        else:
            ctx.obj.download_artifact(artifact_id, sys.stdout.buffer)
        return
    try:
        with writing_whole(out) as file:
            size = ctx.obj.download_artifact(artifact_id, file)
    except OSError as error:
        fail(f"--out {out}: {error.strerror}", Exit.USAGE)
    print_stderr(f"{out}: {size} bytes")


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a file under another name, which it loses when the block ends, so that a download that breaks off leaves
    nothing. What is no file, such as a pipe, is written directly."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def read_environment(env: list[str]) -> list[str] | dict[str, str] | None:
    """Return names of variables to inherit, or values by name; None without any. Exits with USAGE if mixed."""
    with_values = [text.partition("=") for text in env if "=" in text]
    if with_values and len(with_values) < len(env):
        fail("--env: give either names of variables or NAME=VALUE, not both", Exit.USAGE)
    return {name: value for name, _, value in with_values} or env or None


def print_tree(artifact: Answer, indent: str) -> None:
    line = f"{artifact['label']}  {artifact['id']}  {artifact['content_type']}  {plain(artifact['size'])} bytes"
    print(visible(indent + line))
    for child in artifact["children"]:
        print_tree(child, indent + "  ")
