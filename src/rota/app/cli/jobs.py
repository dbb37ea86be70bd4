"""`rota job …`"""

from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.options import Cursor, Limit, read_input
from rota.frame.cli.output import print_details, print_list, relative_time
from rota.frame.cli.times import future_option

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make jobs beside schedules, and see them.")

JobId = Annotated[str, typer.Argument(help="id of the job")]
SHOWN = (
    "id", "status", "kind", "target_name", "target", "attempt", "submitted_at", "started_at", "finished_at", "error",
    "artifact_id", "run_ids",
)  # fmt: skip


@app.command()
def add(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(help="a task, graph, pipeline or server instance, as in schedules")],
    kind: Annotated[str | None, typer.Option(help="task (the default), graph, pipeline or host_job")] = None,
    input: Annotated[str | None, typer.Option(help="input as JSON, or @file")] = None,
    queue: Annotated[str | None, typer.Option(help="the queue; default: default")] = None,
    priority: Annotated[int | None, typer.Option(help="from -100 to 100; higher goes first")] = None,
    at: Annotated[str | None, future_option("--at", help="when it runs: 1h (ahead), 13:00, …; default: now")] = None,
    key: Annotated[str | None, typer.Option(help="at most one job with this key at a time")] = None,
    key_mode: Annotated[
        str | None, typer.Option(help="where a job has the key: reject, preserve that job, or replace it")
    ] = None,
) -> None:
    """Make a job of something that can run."""
    fields = {
        "target": target, "kind": kind, "input": read_input(input), "queue": queue, "priority": priority, "run_at": at,
        "job_key": key, "key_mode": key_mode,
    }  # fmt: skip
    body = {field: value for field, value in fields.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post("/jobs", body), ("job_id",))


@app.command("list")
def list_all(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, …")] = None,
    kind: Annotated[str | None, typer.Option()] = None,
    target: Annotated[str | None, typer.Option(help="name or id")] = None,
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


@app.command()
def show(ctx: typer.Context, job_id: JobId) -> None:
    """Everything about one job."""
    print_details(ctx.obj, ctx.obj.get(f"/jobs/{quote(job_id, safe='')}"), SHOWN)


@app.command()
def cancel(ctx: typer.Context, job_id: JobId) -> None:
    """Stop a job: at once if it waits, through its worker if it runs."""
    print_details(ctx.obj, ctx.obj.post(f"/jobs/{quote(job_id, safe='')}/$cancel", {}), ("job_id",))
