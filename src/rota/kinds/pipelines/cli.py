"""`rota pipeline …`"""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import ApiRefusal, Exit, exit_refused, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit, exactly_one, read_input
from rota.frame.cli.output import plain, print_data, print_details, print_list, print_table, relative_time
from rota.frame.cli.run_results import exit_with_status, find_run, wait_until_ended

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Tables made out of tables, in layers.")
triggers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What makes a pipeline run.")
app.add_typer(triggers, name="trigger")

Name = Annotated[str, typer.Argument(help="namespace/layer/name")]
TriggerId = Annotated[str, typer.Argument(help="id of the trigger")]
Sql = Annotated[str | None, typer.Option(help="one SELECT, or @file")]
SHOWN = (
    "path", "type", "sql", "function", "reads", "description", "version", "max_runs", "max_age_days", "source",
    "owner_id", "created_at", "updated_at",
)  # fmt: skip
TRIGGER = ("id", "type", "upstreams", "cron_expression", "cooldown_seconds", "enabled", "token", "last_triggered_at")


@app.command("list")
def list_all(
    ctx: typer.Context,
    namespace: Annotated[str | None, typer.Option()] = None,
    layer: Annotated[str | None, typer.Option(help="bronze, silver or gold")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="sql or python")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List pipelines by their paths."""
    page = ctx.obj.get("/pipelines", namespace=namespace, layer=layer, type=kind, limit=limit, cursor=cursor)
    rows = ([one["path"], one["type"], str(one["version"]), one["source"], one["description"]] for one in page["items"])
    print_list(ctx.obj, page, ("path", "type", "version", "source", "description"), rows)


@app.command()
def namespaces(ctx: typer.Context) -> None:
    """List namespaces."""
    page = ctx.obj.get("/pipelines/$namespaces")
    print_list(ctx.obj, page, ("name", "pipelines"), ([one["name"], str(one["pipelines"])] for one in page["items"]))


@app.command()
def graph(ctx: typer.Context) -> None:
    """What hangs on what: by triggers, and by tables that are read."""
    found = ctx.obj.get("/pipelines/$graph")
    if not print_data(ctx.obj, found):
        print_table(("from", "to", "by"), ([one["from"], one["to"], one["kind"]] for one in found["edges"]))


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Everything about one pipeline."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), SHOWN)


@app.command()
def versions(ctx: typer.Context, name: Name) -> None:
    """What it ran, newest first."""
    page = ctx.obj.get(f"{path_of(name)}/versions")
    rows = (
        [str(one["version"]), relative_time(one["created_at"]), one["sql"] or one["function"]] for one in page["items"]
    )
    print_list(ctx.obj, page, ("version", "since", "work"), rows)


@app.command()
def save(
    ctx: typer.Context,
    name: Name,
    sql: Sql = None,
    function: Annotated[str | None, typer.Option(help="a pipeline function that a running program declares")] = None,
    description: Annotated[str | None, typer.Option()] = None,
    max_runs: Annotated[int | None, typer.Option(help="how many of its runs are kept")] = None,
    max_age_days: Annotated[int | None, typer.Option(help="how long its runs are kept")] = None,
) -> None:
    """Make a pipeline, or write the next version of the one there is."""
    exactly_one(sql=sql, function=function)
    body = {
        "type": "python" if sql is None else "sql", "sql": read_sql(sql), "function": function,
        "description": description, "max_runs": max_runs, "max_age_days": max_age_days,
    }  # fmt: skip
    given = {field: value for field, value in body.items() if value is not None}
    namespace, layer, last = parts_of(name)
    try:
        made = ctx.obj.try_call("POST", "/pipelines", {"namespace": namespace, "layer": layer, "name": last, **given})
    except ApiRefusal as refusal:
        if refusal.status != HTTPStatus.CONFLICT:
            exit_refused(refusal)
        made = ctx.obj.put(path_of(name), given)
    print_details(ctx.obj, made, SHOWN)


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a pipeline with its schedules and triggers; its runs and its table stay."""
    ctx.obj.delete(path_of(name))
    print_stderr(f"pipeline {name} is deleted")


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    given: Annotated[str | None, typer.Option("--input", help="parameters of a function, as JSON or @file")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="for its result; exit code 7 if the run failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait; exit code 6 after that")] = 3600.0,
) -> None:
    """Run it now."""
    body = None if given is None else {"input": read_input(given)}
    answer = ctx.obj.post(f"{path_of(name)}/$run", body)
    if not wait:
        print_details(ctx.obj, answer, ["job_id"])
        return
    ended = find_run(ctx.obj, wait_until_ended(ctx.obj, answer["job_id"], timeout)["id"])
    if not print_data(ctx.obj, ended) and ended["outcome"]:
        print(f"{ended['outcome']['rows_written']} rows in {ended['outcome']['duration_ms']} ms")
    exit_with_status(ended)


@app.command()
def preview(ctx: typer.Context, name: Name, sql: Sql = None) -> None:
    """The first rows of its SQL, or of a draft; nothing is written."""
    found = ctx.obj.post(f"{path_of(name)}/$preview", draft(sql))
    if not print_data(ctx.obj, found):
        print_table([one["name"] for one in found["columns"]], ([plain(one) for one in row] for row in found["rows"]))


@app.command()
def validate(ctx: typer.Context, name: Name, sql: Sql = None) -> None:
    """Whether its SQL, or a draft, could run now."""
    found = ctx.obj.post(f"{path_of(name)}/$validate", draft(sql))
    print_details(ctx.obj, found, ("ok", "error", "reads", "columns"))
    if not found["ok"]:
        raise typer.Exit(Exit.FAILED)


@triggers.command("list")
def list_triggers(ctx: typer.Context, name: Name) -> None:
    """List what makes it run."""
    page = ctx.obj.get(f"{path_of(name)}/triggers")
    rows = (
        [
            one["id"],
            one["type"],
            ", ".join(one["upstreams"]),
            plain(one["enabled"]),
            relative_time(one["last_triggered_at"]),
        ]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("id", "type", "upstreams", "enabled", "fired"), rows)


@triggers.command()
def add(
    ctx: typer.Context,
    name: Name,
    after: Annotated[list[str] | None, typer.Option(help="on its success, or with --cron: on all of these")] = None,
    cron: Annotated[str | None, typer.Option(help="at these moments, once all upstreams succeeded anew")] = None,
    tz: Annotated[str | None, typer.Option(help="of --cron")] = None,
    webhook: Annotated[bool, typer.Option("--webhook", help="on a call with a token, which is shown once")] = False,
    cooldown: Annotated[int | None, typer.Option(help="seconds in which it does not fire again")] = None,
) -> None:
    """Let something make it run."""
    kind = "webhook" if webhook else "cron_dependency" if cron else "pipeline_success"
    body = {
        "type": kind, "upstreams": after or None, "cron_expression": cron, "timezone": tz, "cooldown_seconds": cooldown
    }  # fmt: skip
    given = {field: value for field, value in body.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post(f"{path_of(name)}/triggers", given), TRIGGER)


@triggers.command()
def enable(ctx: typer.Context, name: Name, trigger_id: TriggerId) -> None:
    """Let it fire again."""
    print_details(ctx.obj, ctx.obj.patch(trigger_path(name, trigger_id), {"enabled": True}), TRIGGER)


@triggers.command()
def disable(ctx: typer.Context, name: Name, trigger_id: TriggerId) -> None:
    """Let it fire no more."""
    print_details(ctx.obj, ctx.obj.patch(trigger_path(name, trigger_id), {"enabled": False}), TRIGGER)


@triggers.command("rm")
def remove(ctx: typer.Context, name: Name, trigger_id: TriggerId) -> None:
    """Delete a trigger."""
    ctx.obj.delete(trigger_path(name, trigger_id))
    print_stderr(f"trigger {trigger_id} is deleted")


def parts_of(name: str) -> list[str]:
    parts = name.split("/")
    if len(parts) != 3:
        fail(f"{name}: write namespace/layer/name", Exit.USAGE)
    return parts


def path_of(name: str) -> str:
    return "/pipelines/" + "/".join(quote(part, safe="") for part in parts_of(name))


def trigger_path(name: str, trigger_id: str) -> str:
    return f"{path_of(name)}/triggers/{quote(trigger_id, safe='')}"


def draft(sql: str | None) -> dict[str, Any] | None:
    return None if sql is None else {"sql": read_sql(sql)}


def read_sql(text: str | None) -> str | None:
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--sql {text}: {error}", Exit.USAGE)
