"""Commands `rota workflow …`."""

from collections import Counter
from http import HTTPStatus
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, ApiRefusal, Exit, exit_refused, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, read_input, set_fields
from rota.frame.cli.output import print_data, print_details, print_list, relative_time
from rota.frame.cli.terminal import output, visible

app = command_group("Producers and consumers that talk through topics.")

Key = Annotated[str, typer.Argument(help="id or name of the workflow", autocompletion=complete("workflows"))]
Script = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="a Python file")]
Version = Annotated[str, typer.Argument(help="version number, such as 1.1")]
EVENTS_PER_REQUEST = 1000  # the most that the server takes
WORKFLOW_FIELDS = (
    "id",
    "name",
    "status",
    "issue",
    "schedule",
    "next_check",
    "pending",
    "stale_inputs",
    "version",
    "description",
)


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List workflows, by name."""
    page = ctx.obj.get("/workflows", limit=limit, cursor=cursor)
    rows = (
        [item["name"], item["status"].replace("_", " "), item["issue"] or item["schedule"] or "", str(item["pending"])]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("name", "status", "issue or schedule", "pending"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, key: Key) -> None:
    """Show a workflow: status, issue, schedule, pending events, recent runs."""
    workflow = ctx.obj.get(path_of(key))
    print_details(ctx.obj, workflow, WORKFLOW_FIELDS)
    if ctx.obj.for_people and workflow["recent"]:
        print("\nRecent runs:")
        for run in workflow["recent"]:
            print(f"  {relative_time(run['at'])}  {visible(run['text'])}")


@app.command()
def deploy(
    ctx: typer.Context,
    file: Script,
    name: Annotated[str | None, typer.Option(help="name that the script of a new workflow must declare")] = None,
) -> None:
    """Deploy a script: a new workflow, or the next version of the one that it declares."""
    script = file.read_text()
    try:
        workflow = ctx.obj.try_call("POST", "/workflows", {"script": script, **set_fields(name=name)})
    except ApiRefusal as refusal:
        if refusal.status != HTTPStatus.CONFLICT:
            exit_refused(refusal)
        name = ctx.obj.post("/workflows/$check", {"script": script})["name"]
        workflow = ctx.obj.put(path_of(name), {"script": script})
    print_details(ctx.obj, workflow, WORKFLOW_FIELDS)


@app.command()
def check(ctx: typer.Context, file: Script) -> None:
    """Show what a script declares, if it can be deployed; stores nothing."""
    declared = ctx.obj.post("/workflows/$check", {"script": file.read_text()})
    print_details(ctx.obj, declared, declared)


@app.command(reads=True)
def handlers(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the producers and consumers of a workflow."""
    page = ctx.obj.get(path_of(key, "handlers"), limit=limit, cursor=cursor)
    rows = (
        [
            handler["name"],
            handler["type"],
            ", ".join(handler["subscribe"]),
            ", ".join(handler["publishes"]),
            relative_time(handler["next_run_at"]),
        ]
        for handler in page["items"]
    )
    print_list(ctx.obj, page, ("name", "type", "reads", "publishes", "next"), rows)


@app.command(reads=True)
def runs(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the runs of a workflow with their phases, newest first."""
    page = ctx.obj.get(path_of(key, "runs"), limit=limit, cursor=cursor)
    rows = (
        [run["id"] or "-", run["handler_id"], run["phase"], run["status"], relative_time(run["started_at"])]
        for run in page["items"]
    )
    print_list(ctx.obj, page, ("id", "handler", "phase", "status", "started"), rows)


@app.command(reads=True)
def versions(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the versions of a script, newest first."""
    show_versions(ctx, ctx.obj.get(path_of(key, "versions"), limit=limit, cursor=cursor))


@app.command(reads=True)
def repairs(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the repairs of a script with their outcomes, newest first."""
    show_versions(ctx, ctx.obj.get(path_of(key, "versions"), repairs=True, limit=limit, cursor=cursor))


@app.command(reads=True)
def diff(
    ctx: typer.Context,
    key: Key,
    version: Annotated[str | None, typer.Argument(help="version number; the live one if omitted")] = None,
    against: Annotated[
        str | None, typer.Option(help="version to compare with; by default the one live before it")
    ] = None,
) -> None:
    """Show what a version changed."""
    number = version or ctx.obj.get(path_of(key))["version"]
    shown = ctx.obj.get(path_of(key, f"versions/{quote(number, safe='')}"), against=against)
    if not print_data(ctx.obj, shown):
        print(output(shown["diff"]))


@app.command()
def accept(ctx: typer.Context, key: Key, version: Version) -> None:
    """Accept a repair: it becomes live and the failed run is retried."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, f"versions/{quote(version, safe='')}/$accept")), WORKFLOW_FIELDS)


@app.command()
def reject(
    ctx: typer.Context, key: Key, version: Version, reason: Annotated[str, typer.Option(help="why")] = ""
) -> None:
    """Reject a repair; another one is asked for, up to two per failure."""
    workflow = ctx.obj.post(path_of(key, f"versions/{quote(version, safe='')}/$reject"), {"reason": reason})
    print_details(ctx.obj, workflow, WORKFLOW_FIELDS)


@app.command()
def rollback(ctx: typer.Context, key: Key, version: Version) -> None:
    """Deploy the file of an earlier version as the next version."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$rollback"), {"version": version}), WORKFLOW_FIELDS)


@app.command("rm")
def remove(ctx: typer.Context, key: Key) -> None:
    """Delete a script workflow; its runs are kept."""
    ctx.obj.delete(path_of(key))
    print_stderr(f"workflow {key!r} deleted")


@app.command()
def run(ctx: typer.Context, key: Key) -> None:
    """Run all producers of a workflow now."""
    queued = ctx.obj.post(path_of(key, "$run"))
    if not print_data(ctx.obj, queued):
        print_stderr(f"queued: {len(queued['job_ids'])}")


@app.command()
def pause(ctx: typer.Context, key: Key, reason: Annotated[str, typer.Option(help="why")] = "") -> None:
    """Pause a workflow: the active run finishes, no other begins, new events stay pending."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$pause"), {"reason": reason}), WORKFLOW_FIELDS)


@app.command()
def resume(ctx: typer.Context, key: Key) -> None:
    """End a pause, or retry the failed run."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$resume")), WORKFLOW_FIELDS)


@app.command()
def resolve(
    ctx: typer.Context,
    key: Key,
    resolution: Annotated[str, typer.Argument(help="approve, reject, applied, not_applied, skip or try_again")],
    result: Annotated[str | None, typer.Option(help="result of an applied mutation: JSON, or @file")] = None,
) -> None:
    """Decide about the run that needs an operator."""
    body = {"resolution": resolution, **({} if result is None else {"result": read_input(result, "--result")})}
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$resolve"), body), WORKFLOW_FIELDS)


@app.command()
def skip(
    ctx: typer.Context,
    key: Key,
    event: Annotated[str, typer.Argument(help="id of the event; see `rota workflow events`")],
) -> None:
    """Skip a pending event, and the events derived from it alone."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, f"events/{quote(event, safe='')}/$skip")), WORKFLOW_FIELDS)


@app.command()
def publish(
    ctx: typer.Context,
    key: Key,
    topic: str,
    message_id: Annotated[
        str | None, typer.Argument(help="identifies the event in its topic; the same id again is the same event")
    ] = None,
    payload: Annotated[str, typer.Option(help="JSON, or @file")] = "null",
    title: Annotated[str | None, typer.Option(help="title for people")] = None,
    file: Annotated[
        typer.FileText | None,
        typer.Option(help="JSON lines {message_id, payload?, title?}, instead of one event; - for stdin"),
    ] = None,
) -> None:
    """Put an event, or those of a file, into a topic."""
    path = path_of(key, f"topics/{quote(topic, safe='')}/events")
    if (message_id is None) == (file is None):
        fail("pass either a message id or --file", Exit.USAGE)
    if file is None:
        body = {"message_id": message_id, "payload": read_input(payload, "--payload"), **set_fields(title=title)}
        published = ctx.obj.post(path, body)
        if not print_data(ctx.obj, published):
            print_stderr(published["result"])
        return
    results = []
    events = [read_input(line, "--file") for line in file if line.strip()]
    for start in range(0, len(events), EVENTS_PER_REQUEST):
        results += ctx.obj.post(f"{path}/$bulk", {"items": events[start : start + EVENTS_PER_REQUEST]})["items"]
    if not print_data(ctx.obj, {"items": results}):
        counts = Counter(event["result"] for event in results)
        print_stderr(", ".join(f"{result}: {count}" for result, count in counts.items()) or "no events")


@app.command(reads=True)
def events(
    ctx: typer.Context,
    key: Key,
    topic: Annotated[str | None, typer.Option(help="only those of this topic")] = None,
    status: Annotated[str | None, typer.Option(help="pending, reserved, consumed or skipped")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List the events of a workflow, newest first."""
    page = ctx.obj.get(path_of(key, "events"), topic=topic, status=status, limit=limit, cursor=cursor)
    rows = (
        [event["id"], event["topic"], event["message_id"], event["status"], relative_time(event["created_at"])]
        for event in page["items"]
    )
    print_list(ctx.obj, page, ("id", "topic", "message", "status", "since"), rows)


@app.command(reads=True)
def inputs(
    ctx: typer.Context,
    key: Key,
    status: Annotated[str | None, typer.Option(help="pending, done or skipped")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List the inputs of a workflow, newest first."""
    page = ctx.obj.get(path_of(key, "inputs"), status=status, limit=limit, cursor=cursor)
    rows = (
        [
            item["id"],
            item["title"] or item["message_id"],
            item["source"],
            item["status"] + (", stale" if item["stale"] else ""),
            relative_time(item["created_at"]),
        ]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("id", "input", "source", "status", "since"), rows)


@app.command(reads=True)
def outputs(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the mutations of a workflow, newest first."""
    page = ctx.obj.get(path_of(key, "outputs"), limit=limit, cursor=cursor)
    rows = (
        [
            item["title"] or item["call"],
            item["call"],
            item["warning"] or item["status"],
            relative_time(item["created_at"]),
        ]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("title", "call", "status", "since"), rows)


def show_versions(ctx: typer.Context, page: Answer) -> None:
    rows = (
        [
            version["version"] + (" (live)" if version["live"] else ""),
            version["outcome"],
            relative_time(version["created_at"]),
            version["why"] or "",
        ]
        for version in page["items"]
    )
    print_list(ctx.obj, page, ("version", "outcome", "since", "why"), rows)


def path_of(key: str, tail: str = "") -> str:
    return f"/workflows/{quote(key, safe='')}" + (f"/{tail}" if tail else "")
