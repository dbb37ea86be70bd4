"""`rota run …`"""

from typing import Annotated

import typer

from rota.frame.cli.connection import Answer, Connection, Exit, Output, fail, item_path, print_stderr
from rota.frame.cli.follow import follow as stream
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import duration, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import find_run, sleep, wait_for_job
from rota.frame.cli.terminal import output, visible
from rota.frame.cli.times import Since, Until

app = command_group("List, show, cancel and retry runs.")

RunId = Annotated[str, typer.Argument(help="id of a run or job, or name of a schedule or task for its newest run")]
SHOWN = (
    "id", "job_id", "status", "reason", "kind", "target_name", "target", "target_version", "input", "schedule_id",
    "slot", "trigger", "attempt", "retry_of", "queued_at", "started_at", "finished_at", "worker", "outcome",
    "artifact_id", "trace_id", "usage",
)  # fmt: skip


@app.command("list")
def list_all(
    ctx: typer.Context,
    schedule: Annotated[str | None, typer.Option(help="name or id of the schedule")] = None,
    job: Annotated[str | None, typer.Option(help="id of the job")] = None,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, retried, …")] = None,
    reason: Annotated[str | None, typer.Option(help="reason, such as timeout or budget")] = None,
    kind: Annotated[str | None, typer.Option(help="task, graph, pipeline, host_job or workflow")] = None,
    target: Annotated[str | None, typer.Option(help="name or id of the target")] = None,
    namespace: Annotated[str | None, typer.Option(help="namespace of pipelines")] = None,
    layer: Annotated[str | None, typer.Option(help="layer of pipelines")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List runs, newest first."""
    if status in ("retried", "retrying"):  # derived statuses, as the list shows them
        status, reason = "paused", "transient"
    page = ctx.obj.get(
        "/runs",
        schedule_id=schedule,
        job_id=job,
        status=status,
        reason=reason,
        kind=kind,
        target=target,
        namespace=namespace,
        layer=layer,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    )
    rows = (
        [
            run["id"] or f"({run['job_id']})",
            run["target_name"] or run["target"],
            status_of(run),
            str(run["attempt"]),
            relative_time(run["started_at"] or run["finished_at"]),
            duration(run["started_at"], run["finished_at"]),
        ]
        for run in page["items"]
    )
    print_list(ctx.obj, page, ("id", "target", "status", "try", "started", "took"), rows)


@app.command()
def show(ctx: typer.Context, run_id: RunId) -> None:
    """Show a run."""
    run = find_run(ctx.obj, run_id)
    print_details(ctx.obj, run, SHOWN)
    if run["error"] and ctx.obj.output is Output.TABLE:
        print(f"\n{visible(run['error'].get('traceback') or run['error'].get('message') or '')}")


@app.command()
def logs(
    ctx: typer.Context,
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="follow the log until the run has ended")] = False,
) -> None:
    """Print the log of a run."""
    connection: Connection = ctx.obj
    run = find_run(connection, run_id)
    while follow and run["id"] is None:
        sleep()
        run = find_run(connection, run["job_id"])
    if run["id"] is None:
        fail(f"job {run['job_id']} has not started yet; -f waits for it", Exit.CONFLICT)
    if follow:
        stream_logs(connection, run["id"])
    else:
        print_logs(connection, run["id"])


@app.command()
def wait(
    ctx: typer.Context,
    run_id: RunId,
    timeout: Annotated[float, typer.Option(help="maximum seconds to wait; then exit code 6")] = 3600.0,
) -> None:
    """Wait until a run has ended. Exit code 0 if it succeeded, 7 if it failed, 6 after the timeout."""
    wait_for_job(ctx.obj, find_run(ctx.obj, run_id)["job_id"], timeout)


@app.command()
def cancel(ctx: typer.Context, run_id: RunId) -> None:
    """Cancel a run or a pending job."""
    print_details(ctx.obj, ctx.obj.post(item_path("runs", run_id, "$cancel")), ["job_id"])


@app.command()
def retry(ctx: typer.Context, run_id: RunId) -> None:
    """Retry a run that has ended."""
    print_details(ctx.obj, ctx.obj.post(f"/runs/{find_run(ctx.obj, run_id)['id']}/$retry"), ["job_id"])


@app.command()
def acknowledge(
    ctx: typer.Context,
    run_id: RunId,
    note: Annotated[str, typer.Option(help="note for others, such as the cause")] = "",
) -> None:
    """Acknowledge the failure of a run's schedule or task: until the next success it no longer counts as failing."""
    ctx.obj.post(f"/runs/{find_run(ctx.obj, run_id)['id']}/$acknowledge", {"note": note})
    print_stderr("acknowledged until the next success")


@app.command()
def unacknowledge(ctx: typer.Context, run_id: RunId) -> None:
    """Withdraw an acknowledgement."""
    ctx.obj.post(f"/runs/{find_run(ctx.obj, run_id)['id']}/$unacknowledge")


def print_logs(connection: Connection, run_id: str) -> None:
    """Print the log lines written so far."""
    after: int | None = 0
    while after is not None:
        page = connection.get(f"/runs/{run_id}/logs", after=after)
        if page["items"] and not print_data(connection, page):
            for line in page["items"]:
                print(output(line["text"]), flush=True)
        after = page["next_cursor"]


def stream_logs(connection: Connection, run_id: str) -> None:
    """Print lines as the server sends them, until the run has ended."""
    known: set[int] = set()  # the server resends the last lines after a reconnect
    for name, _, line in stream(connection, f"/runs/{run_id}/logs"):
        if name == "end":
            return
        if line["id"] not in known:
            known.add(line["id"])
            if not print_data(connection, line):
                print(output(line["text"]), flush=True)


def status_of(run: Answer) -> str:
    """Return the status of a run with its reason; `retrying` and `retried` have none."""
    from rota.core.states import shown_status

    status = shown_status(run)
    return f"{status}: {run['reason']}" if run["reason"] and status == run["status"] else status
