"""`rota run …`"""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Connection, Exit, fail, item_path, print_stderr
from rota.frame.cli.follow import follow as stream
from rota.frame.cli.options import Cursor, Limit, command_group, read_input
from rota.frame.cli.output import duration, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import find_run, sleep, wait_for_job
from rota.frame.cli.terminal import json_text, output, visible
from rota.frame.cli.times import future_option, past_option

app = command_group("List, show, cancel and retry runs.")

RunId = Annotated[
    str,
    typer.Argument(
        help="id of a run or job, or name of a schedule or task for its newest run",
        autocompletion=complete("schedules"),
    ),
]
PAGE_ROWS = 50  # that the server answers without --limit
WIDE = ("kind", "job_id", "schedule_id", "slot", "trigger", "worker", "queued_at")
SHOWN = (
    "id", "job_id", "status", "reason", "kind", "target_name", "target", "target_version", "input", "schedule_id",
    "slot", "trigger", "attempt", "retry_of", "queued_at", "started_at", "finished_at", "worker", "outcome",
    "artifact_id", "trace_id", "usage", "cpu_seconds", "peak_memory_bytes",
)  # fmt: skip


@app.command("list", reads=True)
def list_all(
    ctx: typer.Context,
    schedule: Annotated[
        str | None, typer.Option(help="name or id of the schedule", autocompletion=complete("schedules"))
    ] = None,
    job: Annotated[str | None, typer.Option(help="id of the job")] = None,
    status: Annotated[str | None, typer.Option(help="pending, running, success, failed, retried, …")] = None,
    reason: Annotated[str | None, typer.Option(help="reason, such as timeout or budget")] = None,
    kind: Annotated[str | None, typer.Option(help="task, graph, pipeline, host_job or workflow")] = None,
    target: Annotated[str | None, typer.Option(help="name or id of the target")] = None,
    namespace: Annotated[str | None, typer.Option(help="namespace of pipelines")] = None,
    layer: Annotated[str | None, typer.Option(help="layer of pipelines")] = None,
    pipeline: Annotated[str | None, typer.Option(help="last part of the path of a pipeline")] = None,
    tag: Annotated[str | None, typer.Option(help="tag of the schedule")] = None,
    input: Annotated[
        list[str] | None, typer.Option(help="field of the input: customer=42, customer.id=42; may be repeated")
    ] = None,
    error: Annotated[str | None, typer.Option(help="part of the type or message of the error")] = None,
    worker: Annotated[str | None, typer.Option(help="id of the worker, or name of its machine")] = None,
    longer_than: Annotated[str | None, typer.Option(help="runs that took at least this long: 5m")] = None,
    shorter_than: Annotated[str | None, typer.Option(help="runs that ended within this time: 30s")] = None,
    since: Annotated[
        str | None, past_option("--since", "--from", help="start of the range: 1h (ago), 13:00, 2026-11-16, …")
    ] = None,
    until: Annotated[str | None, future_option("--until", "--to", help="end of the range")] = None,
    within: Annotated[str | None, typer.Option(help="runs of the last 24h, say; like --since")] = None,
    view: Annotated[
        str | None, typer.Option(help="saved view; other options override it", autocompletion=complete("views"))
    ] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List runs, newest first, or search them."""
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
        pipeline=pipeline,
        tag=tag,
        input=input or None,
        error=error,
        worker=worker,
        longer_than=longer_than,
        shorter_than=shorter_than,
        since=since,
        until=until,
        within=within,
        view=view,
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
    print_list(ctx.obj, page, ("id", "target", "status", "try", "started", "took"), rows, WIDE)
    if page["next_cursor"] and len(page["items"]) < (limit or PAGE_ROWS):
        print_stderr(
            "the search stopped after 2 seconds: these are the runs that it has found so far. Narrow the range of time "
            "(--from, --to), or go on with --cursor"
        )


@app.command(reads=True)
def show(ctx: typer.Context, run_id: RunId) -> None:
    """Show a run."""
    run = find_run(ctx.obj, run_id)
    print_details(ctx.obj, run, SHOWN)
    if ctx.obj.for_people and run["kind"] == "task":
        print_steps(ctx.obj, ctx.obj.get(item_path("jobs", run["job_id"])))
    if run["error"] and ctx.obj.for_people:
        print(f"\n{visible(run['error'].get('traceback') or run['error'].get('message') or '')}")


@app.command()
def logs(
    ctx: typer.Context,
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="follow the log until the run has ended")] = False,
    level: Annotated[str | None, typer.Option(help="lines of at least this level: error, warning, info, debug")] = None,
    stream: Annotated[str | None, typer.Option(help="lines of this stream: stdout, stderr, log, system")] = None,
    contains: Annotated[str | None, typer.Option("--contains", "--grep", help="lines with this text")] = None,
) -> None:
    """Print the log of a run, or its lines that match."""
    connection: Connection = ctx.obj
    filters = {"level": level, "stream": stream, "contains": contains}
    if follow and any(filters.values()):
        fail("--follow prints all lines: leave out --level, --stream and --contains", Exit.USAGE)
    run = find_run(connection, run_id)
    while follow and run["id"] is None:
        sleep()
        run = find_run(connection, run["job_id"])
    if run["id"] is None:
        fail(f"job {run['job_id']} has not started yet; -f waits for it", Exit.CONFLICT)
    if follow:
        stream_logs(connection, run["id"])
    else:
        print_logs(connection, run["id"], **filters)


@app.command(reads=True)
def diff(
    ctx: typer.Context,
    a: RunId,
    b: RunId,
    all_fields: Annotated[bool, typer.Option("--all", help="list equal fields, too")] = False,
) -> None:
    """Compare two runs: input, output, code version, durations, error."""
    from rota.core.run_diff import compare

    differences = compare(*(find_run(ctx.obj, key) for key in (a, b)))
    listed = [item for item in differences if item.differs or all_fields]
    items = [
        {"section": item.section, "field": item.name, "a": item.a, "b": item.b, "change": item.change or None}
        for item in listed
    ]
    rows = ([item.section, item.name, shown(item.a), shown(item.b), item.change] for item in listed)
    print_list(ctx.obj, {"items": items, "next_cursor": None}, ("section", "field", "a", "b", "change"), rows)


def shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text(value)


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
    print_details(ctx.obj, ctx.obj.post(item_path("runs", find_run(ctx.obj, run_id)["job_id"], "$cancel")), ["job_id"])


@app.command()
def retry(
    ctx: typer.Context,
    run_id: RunId,
    from_step: Annotated[
        str | None, typer.Option("--from", help="first step to repeat; results of the steps before it are kept")
    ] = None,
    input: Annotated[str | None, typer.Option(help="another input as JSON, or @file")] = None,
) -> None:
    """Retry a run that has ended, or let a parked one go on."""
    fields = {"from_step": from_step, "input": read_input(input)}
    body = {field: value for field, value in fields.items() if value is not None}
    run = find_run(ctx.obj, run_id)
    print_details(ctx.obj, ctx.obj.post(item_path("runs", run["id"] or run["job_id"], "$retry"), body), ["job_id"])


Where = Annotated[
    list[str] | None,
    typer.Option(help="field of the list and its value: status=failed, within=24h, input=customer=42; may be repeated"),
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="id of a run; may be repeated")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only count the runs")]


@app.command("retry-many")
def retry_many(
    ctx: typer.Context,
    where: Where = None,
    ids: Ids = None,
    input: Annotated[str | None, typer.Option(help="another input for all as JSON, or @file")] = None,
    dry_run: DryRun = False,
) -> None:
    """Retry the runs that match, of their last attempts those that ended without success; at most 1000 at once."""
    act_on_many(ctx.obj, "$retry", where, ids, dry_run, {"input": read_input(input)})


@app.command("cancel-many")
def cancel_many(ctx: typer.Context, where: Where = None, ids: Ids = None, dry_run: DryRun = False) -> None:
    """Cancel the runs that match and wait or run; at most 1000 at once."""
    act_on_many(ctx.obj, "$cancel", where, ids, dry_run, {})


@app.command("delete-many")
def delete_many(
    ctx: typer.Context,
    where: Where = None,
    ids: Ids = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete the runs that match and have ended, with all attempts of their jobs, logs and artifacts; at most 1000 at
    once. Slots keep their verdicts. Shows the number and asks first."""
    if not dry_run and not yes:
        count = select_many(ctx.obj, "$delete", where, ids, True, {})["count"]
        typer.confirm(f"Delete {count} runs? This cannot be undone.", abort=True, err=True)
    act_on_many(ctx.obj, "$delete", where, ids, dry_run, {})


def act_on_many(
    connection: Connection, verb: str, where: list[str] | None, ids: list[str] | None, dry_run: bool, more: Answer
) -> None:
    """Act on runs by ids or by a filter; print the count and what was refused."""
    result = select_many(connection, verb, where, ids, dry_run, more)
    print_details(connection, result, ["count", "more"])
    for refusal in result["refused"]:
        print_stderr(visible(f"{refusal['id']}: {refusal['detail']}"))


def select_many(
    connection: Connection, verb: str, where: list[str] | None, ids: list[str] | None, dry_run: bool, more: Answer
) -> Answer:
    filter: Answer = {}
    for text in where or []:
        field, equals, value = text.partition("=")
        if not equals:
            fail(f"--where {text}: write FIELD=VALUE, such as status=failed", Exit.USAGE)
        if field == "input":
            filter.setdefault("input", []).append(value)
        else:
            filter[field] = value
    fields = {"ids": ids or None, "filter": filter or None, "dry_run": dry_run or None, **more}
    body = {field: value for field, value in fields.items() if value is not None}
    result: Answer = connection.post(f"/runs/{verb}", body)
    return result


Comment = Annotated[str | None, typer.Option(help="comment that is recorded with the decision")]
StepName = Annotated[str | None, typer.Option(help="step that waits, if there are several")]


@app.command()
def approve(ctx: typer.Context, run_id: RunId, comment: Comment = None, step: StepName = None) -> None:
    """Approve what a run waits for."""
    decide(ctx, run_id, "$approve", comment, step)


@app.command()
def reject(ctx: typer.Context, run_id: RunId, comment: Comment = None, step: StepName = None) -> None:
    """Reject what a run waits for."""
    decide(ctx, run_id, "$reject", comment, step)


def decide(ctx: typer.Context, run_id: str, verb: str, comment: str | None, step: str | None) -> None:
    body = {field: value for field, value in {"comment": comment, "step": step}.items() if value is not None}
    path = item_path("runs", find_run(ctx.obj, run_id)["job_id"], verb)
    print_details(ctx.obj, ctx.obj.post(path, body), ["job_id"])


@app.command()
def resolve(
    ctx: typer.Context,
    run_id: RunId,
    resolution: Annotated[str, typer.Argument(help="applied, not_applied (it is tried again) or skip")],
    result: Annotated[str | None, typer.Option(help="result of an applied effect as JSON, or @file")] = None,
    step: StepName = None,
) -> None:
    """Decide an effect of a task whose outcome is unknown."""
    fields = {"resolution": resolution, "result": read_input(result, "--result"), "step": step}
    body = {field: value for field, value in fields.items() if value is not None}
    path = item_path("runs", find_run(ctx.obj, run_id)["job_id"], "$resolve")
    print_details(ctx.obj, ctx.obj.post(path, body), ["job_id"])


def signal(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(help="topic that runs wait for")],
    key: Annotated[str | None, typer.Option(help="key that the run waits for")] = None,
    payload: Annotated[str | None, typer.Option(help="payload as JSON, or @file")] = None,
    id: Annotated[str | None, typer.Option(help="id of the signal; the same id is one signal")] = None,
) -> None:
    """Send a signal to a run that waits for it; without one it is kept."""
    fields = {"topic": topic, "key": key, "payload": read_input(payload, "--payload"), "id": id}
    body = {field: value for field, value in fields.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post("/signals", body), ["id", "delivered"])


def print_steps(connection: Connection, job: Answer) -> None:
    """Print the recorded steps of a job, and what it waits for."""
    if not job["steps"] or not connection.for_people:
        return
    print()
    headings = ("step", "type", "status", "tries", "started", "took")
    rows = (
        [
            step["name"],
            step["type"],
            step["status"]
            if step["until"] is None or step["finished_at"]
            else f"{step['status']} until {step['until']}",
            str(step["attempts"]),
            relative_time(step["started_at"]),
            duration(step["started_at"], step["finished_at"]),
        ]
        for step in job["steps"]
    )
    print_list(connection, {"items": job["steps"], "next_cursor": None}, headings, rows)


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


def print_logs(connection: Connection, run_id: str, **filters: str | None) -> None:
    """Print the log lines written so far that match."""
    after: int | None = 0
    while after is not None:
        page = connection.get(f"/runs/{run_id}/logs", after=after, **filters)
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
        if name == "log" and line["id"] not in known:
            known.add(line["id"])
            if not print_data(connection, line):
                print(output(line["text"]), flush=True)


def status_of(run: Answer) -> str:
    """Return the status of a run with its reason; `retrying` and `retried` have none."""
    from rota.core.states import shown_status

    status = shown_status(run)
    return f"{status}: {run['reason']}" if run["reason"] and status == run["status"] else status
