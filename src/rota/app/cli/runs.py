"""`rota run …`"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Connection, Exit, Output, fail, print_stderr
from rota.frame.cli.follow import follow as stream
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import duration, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import find_run, sleep, wait_for_job
from rota.frame.cli.terminal import output, visible
from rota.frame.cli.times import Since, Until

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what ran, and what is running.")

RunId = Annotated[str, typer.Argument(help="id of the run or its job; or a schedule or task, for its newest run")]
SHOWN = (
    "id", "job_id", "status", "reason", "kind", "target_name", "target", "target_version", "input", "schedule_id",
    "slot", "trigger", "attempt", "retry_of", "queued_at", "started_at", "finished_at", "worker", "outcome",
    "artifact_id", "trace_id", "usage",
)  # fmt: skip


@app.command("list")
def list_all(
    ctx: typer.Context,
    schedule: Annotated[str | None, typer.Option(help="name or id")] = None,
    job: Annotated[str | None, typer.Option(help="id")] = None,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, retried, …")] = None,
    reason: Annotated[str | None, typer.Option()] = None,
    kind: Annotated[str | None, typer.Option()] = None,
    target: Annotated[str | None, typer.Option()] = None,
    namespace: Annotated[str | None, typer.Option(help="of pipelines")] = None,
    layer: Annotated[str | None, typer.Option(help="of pipelines")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List runs, newest first."""
    if status in ("retried", "retrying"):  # as the list shows them
        status, reason = "paused", "transient"
    page = ctx.obj.get(
        "/runs", schedule_id=schedule, job_id=job, status=status, reason=reason, kind=kind, target=target,
        namespace=namespace, layer=layer, since=since, until=until, limit=limit, cursor=cursor,
    )  # fmt: skip
    rows = (
        [
            one["id"] or f"({one['job_id']})", one["target_name"] or one["target"], status_of(one), str(one["attempt"]),
            relative_time(one["started_at"] or one["finished_at"]), duration(one["started_at"], one["finished_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("id", "target", "status", "try", "started", "took"), rows)


@app.command()
def show(ctx: typer.Context, run_id: RunId) -> None:
    """Everything about one run."""
    found = find_run(ctx.obj, run_id)
    print_details(ctx.obj, found, SHOWN)
    if found["error"] and ctx.obj.output is Output.TABLE:
        print(f"\n{visible(found['error'].get('traceback') or found['error'].get('message') or '')}")


@app.command()
def logs(
    ctx: typer.Context,
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="until the run has ended")] = False,
) -> None:
    """What a run wrote."""
    connection: Connection = ctx.obj
    found = find_run(connection, run_id)
    while follow and found["id"] is None:
        sleep()
        found = find_run(connection, found["job_id"])
    if found["id"] is None:
        fail(f"job {found['job_id']} has not started yet; -f waits for it", Exit.CONFLICT)
    if follow:
        stream_logs(connection, found["id"])
    else:
        print_logs(connection, found["id"])


@app.command()
def wait(
    ctx: typer.Context,
    run_id: RunId,
    timeout: Annotated[float, typer.Option(help="seconds to wait; exit code 6 after that")] = 3600.0,
) -> None:
    """Wait until a run has ended. Exit code 0 if it succeeded, 7 if not, 6 if it takes too long."""
    wait_for_job(ctx.obj, find_run(ctx.obj, run_id)["job_id"], timeout)


@app.command()
def cancel(ctx: typer.Context, run_id: RunId) -> None:
    """Stop a run, or a job that waits."""
    print_details(ctx.obj, ctx.obj.post(f"/runs/{quote(run_id, safe='')}/$cancel"), ["job_id"])


@app.command()
def retry(ctx: typer.Context, run_id: RunId) -> None:
    """Another attempt of a run that ended."""
    print_details(ctx.obj, ctx.obj.post(f"/runs/{find_run(ctx.obj, run_id)['id']}/$retry"), ["job_id"])


@app.command()
def acknowledge(
    ctx: typer.Context, run_id: RunId, note: Annotated[str, typer.Option(help="why it may wait")] = ""
) -> None:
    """Acknowledge the failure of a run's schedule or task: the first page lists it apart until the next success."""
    ctx.obj.post(f"/runs/{find_run(ctx.obj, run_id)['id']}/$acknowledge", {"note": note})
    print_stderr("acknowledged until the next success")


@app.command()
def unacknowledge(ctx: typer.Context, run_id: RunId) -> None:
    """Withdraw an acknowledgement."""
    ctx.obj.post(f"/runs/{find_run(ctx.obj, run_id)['id']}/$unacknowledge")


def print_logs(connection: Connection, run_id: str) -> None:
    """Print the lines that are there."""
    after: int | None = 0
    while after is not None:
        page = connection.get(f"/runs/{run_id}/logs", after=after)
        if page["items"] and not print_data(connection, page):
            for line in page["items"]:
                print(output(line["text"]), flush=True)
        after = page["next_cursor"]


def stream_logs(connection: Connection, run_id: str) -> None:
    """Print lines as the server sends them, until the run has ended."""
    known: set[int] = set()  # after a break, the last ones come again
    for name, _, line in stream(connection, f"/runs/{run_id}/logs"):
        if name == "end":
            return
        if line["id"] not in known:
            known.add(line["id"])
            if not print_data(connection, line):
                print(output(line["text"]), flush=True)


def status_of(run: dict[str, Any]) -> str:
    """The status and reason of a run as people read it; `retrying` and `retried` need no reason."""
    from rota.core.states import shown_status

    status = shown_status(run)
    return f"{status}: {run['reason']}" if run["reason"] and status == run["status"] else status
