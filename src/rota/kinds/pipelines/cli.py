"""`rota pipeline …`"""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, ApiRefusal, Exit, exit_refused, fail, id_by_name, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, exactly_one, read_input
from rota.frame.cli.output import plain, print_data, print_details, print_list, print_table, relative_time
from rota.frame.cli.run_results import exit_with_status, find_run, wait_until_ended

app = command_group("Create, preview and run pipelines (tables built from tables).")
triggers = command_group("List and edit the triggers of a pipeline.")
app.add_typer(triggers, name="trigger")

Name = Annotated[str, typer.Argument(help="namespace/layer/name", autocompletion=complete("pipelines", "path"))]
TriggerId = Annotated[
    str, typer.Argument(help="the trigger: its id or, if no other has the same, its type, upstream or cron expression")
]
Sql = Annotated[str | None, typer.Option(help="one SELECT, or @file")]
PIPELINE_FIELDS = (
    "path", "type", "sql", "function", "reads", "append_by", "merge_by", "partition_by", "description", "version",
    "max_runs", "max_age_days", "source", "owner_id", "created_at", "updated_at",
)  # fmt: skip
TRIGGER_FIELDS = (
    "id",
    "type",
    "upstreams",
    "cron_expression",
    "cooldown_seconds",
    "enabled",
    "token",
    "last_triggered_at",
)


@app.command("list", reads=True)
def list_all(
    ctx: typer.Context,
    namespace: Annotated[str | None, typer.Option(help="only those of this namespace")] = None,
    layer: Annotated[str | None, typer.Option(help="bronze, silver or gold")] = None,
    pipeline_type: Annotated[str | None, typer.Option("--type", help="sql or python")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List pipelines by path."""
    page = ctx.obj.get("/pipelines", namespace=namespace, layer=layer, type=pipeline_type, limit=limit, cursor=cursor)
    rows = (
        [item["path"], item["type"], str(item["version"]), item["source"], item["description"]]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("path", "type", "version", "source", "description"), rows)


@app.command(reads=True)
def namespaces(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List namespaces."""
    page = ctx.obj.get("/pipelines/$namespaces", limit=limit, cursor=cursor)
    print_list(ctx.obj, page, ("name", "pipelines"), ([item["name"], str(item["pipelines"])] for item in page["items"]))


@app.command(reads=True)
def graph(ctx: typer.Context) -> None:
    """Show the dependencies between pipelines: triggers, and tables that are read."""
    dependencies = ctx.obj.get("/pipelines/$graph")
    if not print_data(ctx.obj, dependencies):
        edges = dependencies["edges"]
        print_table(("from", "to", "by"), ([edge["from"], edge["to"], edge["kind"]] for edge in edges))


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show a pipeline."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), PIPELINE_FIELDS)


@app.command(reads=True)
def versions(ctx: typer.Context, name: Name, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the versions of a pipeline, newest first."""
    page = ctx.obj.get(f"{path_of(name)}/versions", limit=limit, cursor=cursor)
    rows = (
        [str(item["version"]), relative_time(item["created_at"]), item["sql"] or item["function"]]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("version", "since", "work"), rows)


@app.command()
def save(
    ctx: typer.Context,
    name: Name,
    sql: Sql = None,
    function: Annotated[str | None, typer.Option(help="a pipeline function that a running program declares")] = None,
    description: Annotated[str | None, typer.Option(help="description")] = None,
    max_runs: Annotated[int | None, typer.Option(help="maximum number of runs kept")] = None,
    max_age_days: Annotated[int | None, typer.Option(help="days that runs are kept")] = None,
    append_by: Annotated[
        str | None, typer.Option(help="column that only grows: rows above its last value are added")
    ] = None,
    merge_by: Annotated[
        list[str] | None, typer.Option(help="key column: rows replace those with the same key; repeatable")
    ] = None,
    partition_by: Annotated[str | None, typer.Option(help="column of days: a run replaces the rows of one day")] = None,
) -> None:
    """Create a pipeline, or replace it as a new version."""
    exactly_one(sql=sql, function=function)
    body = {
        "type": "python" if sql is None else "sql",
        "sql": read_sql(sql),
        "function": function,
        "description": description,
        "max_runs": max_runs,
        "max_age_days": max_age_days,
        "append_by": append_by,
        "merge_by": merge_by or None,
        "partition_by": partition_by,
    }
    fields = {field: value for field, value in body.items() if value is not None}
    namespace, layer, last = parts_of(name)
    try:
        pipeline = ctx.obj.try_call(
            "POST", "/pipelines", {"namespace": namespace, "layer": layer, "name": last, **fields}
        )
    except ApiRefusal as refusal:
        if refusal.status != HTTPStatus.CONFLICT:
            exit_refused(refusal)
        pipeline = ctx.obj.put(path_of(name), fields)
    print_details(ctx.obj, pipeline, PIPELINE_FIELDS)


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a pipeline with its schedules and triggers; its runs and its table stay."""
    ctx.obj.delete(path_of(name))
    print_stderr(f"pipeline {name} deleted")


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    input_text: Annotated[
        str | None, typer.Option("--input", help="parameters of a function, as JSON or @file")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the result; exit code 7 if the run failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait at most; exit code 6 after that")] = 3600.0,
) -> None:
    """Run a pipeline now."""
    body = None if input_text is None else {"input": read_input(input_text)}
    answer = ctx.obj.post(f"{path_of(name)}/$run", body)
    if not wait:
        print_details(ctx.obj, answer, ["job_id"])
        return
    run_record = find_run(ctx.obj, wait_until_ended(ctx.obj, answer["job_id"], timeout)["id"])
    if not print_data(ctx.obj, run_record) and run_record["outcome"]:
        print(f"{run_record['outcome']['rows_written']} rows in {run_record['outcome']['duration_ms']} ms")
    exit_with_status(run_record)


@app.command()
def backfill(
    ctx: typer.Context,
    name: Name,
    first: Annotated[str, typer.Option("--from", help="first day, as YYYY-MM-DD")],
    last: Annotated[str, typer.Option("--to", help="last day")],
) -> None:
    """Run a pipeline with --partition-by for each of these days."""
    answer = ctx.obj.post(f"{path_of(name)}/$backfill", {"from": first, "to": last})
    if not print_data(ctx.obj, answer):
        print(f"{len(answer['job_ids'])} jobs enqueued")


@app.command(reads=True)
def preview(ctx: typer.Context, name: Name, sql: Sql = None) -> None:
    """Show the first rows of its SQL, or of a draft; writes nothing."""
    result = ctx.obj.post(f"{path_of(name)}/$preview", draft(sql))
    if not print_data(ctx.obj, result):
        columns = [column["name"] for column in result["columns"]]
        print_table(columns, ([plain(value) for value in row] for row in result["rows"]))


@app.command()
def validate(ctx: typer.Context, name: Name, sql: Sql = None) -> None:
    """Check whether its SQL, or a draft, could run now."""
    result = ctx.obj.post(f"{path_of(name)}/$validate", draft(sql))
    print_details(ctx.obj, result, ("ok", "error", "reads", "columns"))
    if not result["ok"]:
        raise typer.Exit(Exit.FAILED)


@triggers.command("list", reads=True)
def list_triggers(ctx: typer.Context, name: Name, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the triggers of a pipeline."""
    page = ctx.obj.get(f"{path_of(name)}/triggers", limit=limit, cursor=cursor)
    rows = (
        [
            trigger["id"],
            trigger["type"],
            ", ".join(trigger["upstreams"]),
            plain(trigger["enabled"]),
            relative_time(trigger["last_triggered_at"]),
        ]
        for trigger in page["items"]
    )
    print_list(ctx.obj, page, ("id", "type", "upstreams", "enabled", "fired"), rows)


@triggers.command()
def add(
    ctx: typer.Context,
    name: Name,
    after: Annotated[list[str] | None, typer.Option(help="upstream pipeline; repeatable with --cron")] = None,
    cron: Annotated[
        str | None, typer.Option(help="cron expression: run at a slot, or after it when all upstreams have succeeded")
    ] = None,
    tz: Annotated[str | None, typer.Option(help="time zone of --cron")] = None,
    webhook: Annotated[
        bool, typer.Option("--webhook", help="run on a request with a token, which is shown once")
    ] = False,
    cooldown: Annotated[int | None, typer.Option(help="minimum seconds between two fires")] = None,
) -> None:
    """Add a trigger to a pipeline."""
    trigger_type = "webhook" if webhook else "cron_dependency" if cron else "pipeline_success"
    body = {
        "type": trigger_type,
        "upstreams": after or None,
        "cron_expression": cron,
        "timezone": tz,
        "cooldown_seconds": cooldown,
    }
    fields = {field: value for field, value in body.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post(f"{path_of(name)}/triggers", fields), TRIGGER_FIELDS)


@triggers.command()
def edit(
    ctx: typer.Context,
    name: Name,
    trigger_id: TriggerId,
    cooldown: Annotated[int, typer.Option(help="minimum seconds between two fires")],
) -> None:
    """Change the cooldown of a trigger."""
    trigger = ctx.obj.patch(trigger_path(ctx, name, trigger_id), {"cooldown_seconds": cooldown})
    print_details(ctx.obj, trigger, TRIGGER_FIELDS)


@triggers.command()
def enable(ctx: typer.Context, name: Name, trigger_id: TriggerId) -> None:
    """Enable a trigger."""
    print_details(ctx.obj, ctx.obj.patch(trigger_path(ctx, name, trigger_id), {"enabled": True}), TRIGGER_FIELDS)


@triggers.command()
def disable(ctx: typer.Context, name: Name, trigger_id: TriggerId) -> None:
    """Disable a trigger."""
    print_details(ctx.obj, ctx.obj.patch(trigger_path(ctx, name, trigger_id), {"enabled": False}), TRIGGER_FIELDS)


@triggers.command("rm")
def remove(ctx: typer.Context, name: Name, trigger_id: TriggerId) -> None:
    """Delete a trigger."""
    ctx.obj.delete(trigger_path(ctx, name, trigger_id))
    print_stderr(f"trigger {trigger_id} deleted")


def parts_of(name: str) -> list[str]:
    parts = name.split("/")
    if len(parts) != 3:
        fail(f"{name}: write namespace/layer/name", Exit.USAGE)
    return parts


def path_of(name: str) -> str:
    return "/pipelines/" + "/".join(quote(part, safe="") for part in parts_of(name))


def trigger_path(ctx: typer.Context, name: str, trigger: str) -> str:
    triggers_path = f"{path_of(name)}/triggers"
    trigger_id = id_by_name(ctx.obj, triggers_path, "triggers", trigger, trigger_names)
    return f"{triggers_path}/{quote(trigger_id, safe='')}"


def trigger_names(trigger: Answer) -> tuple[object, ...]:
    return (trigger["type"], trigger["cron_expression"], *trigger["upstreams"])


def draft(sql: str | None) -> Answer | None:
    return None if sql is None else {"sql": read_sql(sql)}


def read_sql(text: str | None) -> str | None:
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--sql {text}: {error}", Exit.USAGE)
