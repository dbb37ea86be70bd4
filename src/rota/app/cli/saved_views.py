"""`rota view …`"""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, set_fields, with_fields
from rota.frame.cli.output import print_details, print_list
from rota.frame.cli.times import future_option, past_option

app = command_group("Save filters of runs under a name, and share them.")

VIEW = ("name", "id", "visibility", "owner_name", "filter", "link", "created_at", "updated_at")
Name = Annotated[str, typer.Argument(help="name or id of the view", autocompletion=complete("views"))]


def filter_fields(
    schedule: Annotated[str | None, typer.Option(help="name or id of the schedule")] = None,
    tag: Annotated[str | None, typer.Option(help="tag of the schedule")] = None,
    job: Annotated[str | None, typer.Option(help="id of the job")] = None,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, …")] = None,
    reason: Annotated[str | None, typer.Option(help="reason, such as timeout or budget")] = None,
    kind: Annotated[str | None, typer.Option(help="task, graph, pipeline, host_job or workflow")] = None,
    target: Annotated[str | None, typer.Option(help="name or id of the target")] = None,
    namespace: Annotated[str | None, typer.Option(help="namespace of pipelines")] = None,
    layer: Annotated[str | None, typer.Option(help="layer of pipelines")] = None,
    pipeline: Annotated[str | None, typer.Option(help="last part of the path of a pipeline")] = None,
    input: Annotated[list[str] | None, typer.Option(help="field of the input: customer=42; may be repeated")] = None,
    error: Annotated[str | None, typer.Option(help="part of the type or message of the error")] = None,
    worker: Annotated[str | None, typer.Option(help="id of the worker, or name of its machine")] = None,
    longer_than: Annotated[str | None, typer.Option(help="runs that took at least this long: 5m")] = None,
    shorter_than: Annotated[str | None, typer.Option(help="runs that ended within this time: 30s")] = None,
    since: Annotated[str | None, past_option("--since", "--from", help="start of the range")] = None,
    until: Annotated[str | None, future_option("--until", "--to", help="end of the range")] = None,
    within: Annotated[str | None, typer.Option(help="of the last 24h, say; relative to the time of use")] = None,
    share: Annotated[str | None, typer.Option(help="private, link (all who have its id) or org (all)")] = None,
) -> Answer:
    """Return the fields of a view."""
    filter = set_fields(
        schedule_id=schedule, tag=tag, job_id=job, status=status, reason=reason, kind=kind, target=target,
        namespace=namespace, layer=layer, pipeline=pipeline, input=input or None, error=error, worker=worker,
        longer_than=longer_than, shorter_than=shorter_than, since=since, until=until, within=within,
    )  # fmt: skip
    return set_fields(filter=filter or None, visibility=share)


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List your views and those that others share."""
    page = ctx.obj.get("/views", limit=limit, cursor=cursor)
    rows = ([item["name"], item["visibility"], item["owner_name"] or "", words(item)] for item in page["items"])
    print_list(ctx.obj, page, ("name", "shared", "owner", "filter"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show a view; `rota run list --view NAME` lists its runs."""
    print_details(ctx.obj, ctx.obj.get(item_path("views", name)), VIEW)


@app.command()
@with_fields(filter_fields)
def add(ctx: typer.Context, fields: Answer, name: Annotated[str, typer.Argument(help="name of the view")]) -> None:
    """Save a filter of runs under a name."""
    print_details(ctx.obj, ctx.obj.post("/views", {"filter": {}, **fields, "name": name}), VIEW)


@app.command()
@with_fields(filter_fields)
def edit(
    ctx: typer.Context,
    fields: Answer,
    name: Name,
    rename: Annotated[str | None, typer.Option(help="new name")] = None,
) -> None:
    """Change a view of yours; filters replace all that it had."""
    body = {**fields, **set_fields(name=rename)}
    print_details(ctx.obj, ctx.obj.patch(item_path("views", name), body), VIEW)


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a view."""
    ctx.obj.delete(item_path("views", name))
    print_stderr(f"view {name} deleted")


def words(view: Answer) -> str:
    """Return a filter as `status=failed within=24h`."""
    texts = {name: ",".join(value) if isinstance(value, list) else value for name, value in view["filter"].items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())
