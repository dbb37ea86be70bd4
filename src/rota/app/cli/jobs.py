"""`rota job …`"""

from typing import Annotated

import typer

from rota.app.cli.runs import print_steps
from rota.frame.cli.connection import item_path
from rota.frame.cli.options import Cursor, Limit, command_group, read_input
from rota.frame.cli.output import print_details, print_list, relative_time
from rota.frame.cli.times import future_option

app = command_group("Create, list, show and cancel jobs.")

JobId = Annotated[str, typer.Argument(help="id of the job")]
SHOWN = (
    "id", "status", "kind", "target_name", "target", "attempt", "submitted_at", "started_at", "finished_at", "error",
    "artifact_id", "run_ids", "parent_id", "children", "waiting",
)  # fmt: skip


@app.command()
def add(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(help="name or id of a task, graph, pipeline or server instance")],
    kind: Annotated[
        str | None, typer.Option(help="kind of the target: task (default), graph, pipeline or host_job")
    ] = None,
    input: Annotated[str | None, typer.Option(help="input as JSON, or @file")] = None,
    queue: Annotated[str | None, typer.Option(help="queue; default: default")] = None,
    priority: Annotated[int | None, typer.Option(help="from -100 to 100; higher runs first")] = None,
    at: Annotated[str | None, future_option("--at", help="due time: 1h (from now), 13:00, …; default: now")] = None,
    key: Annotated[str | None, typer.Option(help="unique key: at most one unfinished job has it")] = None,
    after: Annotated[list[str] | None, typer.Option(help="id of a job that must have ended first; repeatable")] = None,
    when: Annotated[
        str | None, typer.Option(help="how those must have ended: success (default), failure or any")
    ] = None,
    key_mode: Annotated[
        str | None, typer.Option(help="if an unfinished job has the key: reject (default), preserve or replace it")
    ] = None,
) -> None:
    """Create a job that runs once, without a schedule."""
    fields = {
        "target": target,
        "kind": kind,
        "input": read_input(input),
        "queue": queue,
        "priority": priority,
        "run_at": at,
        "job_key": key,
        "key_mode": key_mode,
        "after": after or None,
        "when": when,
    }
    body = {field: value for field, value in fields.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post("/jobs", body), ("job_id",))


@app.command("list", reads=True)
def list_all(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, …")] = None,
    kind: Annotated[str | None, typer.Option(help="task, graph, pipeline, host_job or workflow")] = None,
    target: Annotated[str | None, typer.Option(help="name or id of the target")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List jobs, newest first."""
    page = ctx.obj.get("/jobs", status=status, kind=kind, target=target, limit=limit, cursor=cursor)
    rows = (
        [job["id"], job["target_name"], job["status"], str(job["attempt"]), relative_time(job["submitted_at"])]
        for job in page["items"]
    )
    print_list(ctx.obj, page, ("id", "target", "status", "try", "submitted"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, job_id: JobId) -> None:
    """Show a job."""
    job = ctx.obj.get(item_path("jobs", job_id))
    print_details(ctx.obj, job, SHOWN)
    print_steps(ctx.obj, job)


@app.command()
def cancel(ctx: typer.Context, job_id: JobId) -> None:
    """Cancel a job: a pending job at once, a running job through its worker."""
    print_details(ctx.obj, ctx.obj.post(item_path("jobs", job_id, "$cancel"), {}), ("job_id",))
