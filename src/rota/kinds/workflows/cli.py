"""`rota workflow …`"""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import ApiRefusal, Output, exit_refused, print_stderr
from rota.frame.cli.options import Cursor, Limit, read_input
from rota.frame.cli.output import print_data, print_details, print_list, relative_time
from rota.frame.cli.terminal import output, visible

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Producers and consumers that talk through topics.")

Key = Annotated[str, typer.Argument(help="id or name of the workflow")]
Version = Annotated[str, typer.Argument(help="like 1.1")]
SHOWN = ("id", "name", "status", "issue", "schedule", "next_check", "pending", "stale_inputs", "version", "description")


@app.command("list")
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List workflows, by name."""
    page = ctx.obj.get("/workflows", limit=limit, cursor=cursor)
    rows = (
        [one["name"], one["status"].replace("_", " "), one["issue"] or one["schedule"] or "", str(one["pending"])]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("name", "status", "what", "pending"), rows)


@app.command()
def show(ctx: typer.Context, key: Key) -> None:
    """How one stands: status, issue, schedule, what waits, what it did lately."""
    found = ctx.obj.get(path_of(key))
    print_details(ctx.obj, found, SHOWN)
    if ctx.obj.output is Output.TABLE and found["recent"]:
        print("\nLately:")
        for one in found["recent"]:
            print(f"  {relative_time(one['at'])}  {visible(one['text'])}")


@app.command()
def deploy(
    ctx: typer.Context, file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="a Python file")]
) -> None:
    """Deploy a workflow from the file that declares it: a new one, or its next version."""
    script = file.read_text()
    try:
        made = ctx.obj.try_call("POST", "/workflows", {"script": script})
    except ApiRefusal as refusal:
        if refusal.status != HTTPStatus.CONFLICT:
            exit_refused(refusal)
        name = ctx.obj.post("/workflows/$check", {"script": script})["name"]
        made = ctx.obj.put(path_of(name), {"script": script})
    print_details(ctx.obj, made, SHOWN)


@app.command()
def versions(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """The versions of a script, newest first."""
    show_versions(ctx, ctx.obj.get(path_of(key, "versions"), limit=limit, cursor=cursor))


@app.command()
def repairs(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """What repairers proposed, and what became of it."""
    show_versions(ctx, ctx.obj.get(path_of(key, "versions"), repairs=True, limit=limit, cursor=cursor))


@app.command()
def diff(
    ctx: typer.Context,
    key: Key,
    version: Annotated[str | None, typer.Argument(help="the live one, where none is named")] = None,
    against: Annotated[str | None, typer.Option(help="the one that was live before it, where none is named")] = None,
) -> None:
    """What a version changed."""
    wanted = version or ctx.obj.get(path_of(key))["version"]
    found = ctx.obj.get(path_of(key, f"versions/{quote(wanted, safe='')}"), against=against)
    if not print_data(ctx.obj, found):
        print(output(found["diff"]))


@app.command()
def accept(ctx: typer.Context, key: Key, version: Version) -> None:
    """Let a repair become live, and what failed be tried again with it."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, f"versions/{quote(version, safe='')}/$accept")), SHOWN)


@app.command()
def reject(
    ctx: typer.Context, key: Key, version: Version, reason: Annotated[str, typer.Option(help="why")] = ""
) -> None:
    """Do not take a repair; another one is asked for while the budget lasts."""
    found = ctx.obj.post(path_of(key, f"versions/{quote(version, safe='')}/$reject"), {"reason": reason})
    print_details(ctx.obj, found, SHOWN)


@app.command()
def rollback(ctx: typer.Context, key: Key, version: Version) -> None:
    """Deploy the file of an earlier version again."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$rollback"), {"version": version}), SHOWN)


@app.command("rm")
def remove(ctx: typer.Context, key: Key) -> None:
    """Delete a workflow that is a script; what it ran stays."""
    ctx.obj.delete(path_of(key))
    print_stderr(f"workflow {key} is deleted")


@app.command()
def run(ctx: typer.Context, key: Key) -> None:
    """Run all its producers now."""
    found = ctx.obj.post(path_of(key, "$run"))
    if not print_data(ctx.obj, found):
        print_stderr(f"queued: {len(found['job_ids'])}")


@app.command()
def pause(ctx: typer.Context, key: Key, reason: Annotated[str, typer.Option(help="why")] = "") -> None:
    """Start nothing more; what comes meanwhile waits."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$pause"), {"reason": reason}), SHOWN)


@app.command()
def resume(ctx: typer.Context, key: Key) -> None:
    """End a pause, or try again what failed."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$resume")), SHOWN)


@app.command()
def resolve(
    ctx: typer.Context,
    key: Key,
    resolution: Annotated[str, typer.Argument(help="approve, reject, applied, not_applied, skip or try_again")],
    result: Annotated[str | None, typer.Option(help="of a mutation that was applied: JSON, or @file")] = None,
) -> None:
    """Decide about the run that waits for a person."""
    body = {"resolution": resolution, **({} if result is None else {"result": read_input(result, "--result")})}
    print_details(ctx.obj, ctx.obj.post(path_of(key, "$resolve"), body), SHOWN)


@app.command()
def skip(ctx: typer.Context, key: Key, event: Annotated[str, typer.Argument(help="its id; `events` has them")]) -> None:
    """Leave out an event that is pending, with what came of it alone."""
    print_details(ctx.obj, ctx.obj.post(path_of(key, f"events/{quote(event, safe='')}/$skip")), SHOWN)


@app.command()
def publish(
    ctx: typer.Context,
    key: Key,
    topic: str,
    message_id: Annotated[str, typer.Argument(help="what makes it one of its kind")],
    payload: Annotated[str, typer.Option(help="JSON, or @file")] = "null",
) -> None:
    """Put an event into a topic."""
    body = {"message_id": message_id, "payload": read_input(payload, "--payload")}
    found = ctx.obj.post(path_of(key, f"topics/{quote(topic, safe='')}/events"), body)
    if not print_data(ctx.obj, found):
        print_stderr(found["result"])


@app.command()
def events(
    ctx: typer.Context,
    key: Key,
    topic: Annotated[str | None, typer.Option()] = None,
    status: Annotated[str | None, typer.Option(help="pending, reserved, consumed or skipped")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """What lies and lay in its topics, newest first."""
    page = ctx.obj.get(path_of(key, "events"), topic=topic, status=status, limit=limit, cursor=cursor)
    rows = (
        [one["id"], one["topic"], one["message_id"], one["status"], relative_time(one["created_at"])]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("id", "topic", "message", "status", "since"), rows)


@app.command()
def inputs(
    ctx: typer.Context,
    key: Key,
    status: Annotated[str | None, typer.Option(help="pending, done or skipped")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """What came in, newest first."""
    page = ctx.obj.get(path_of(key, "inputs"), status=status, limit=limit, cursor=cursor)
    rows = (
        [
            one["id"], one["title"] or one["message_id"], one["source"],
            one["status"] + (", stale" if one["stale"] else ""), relative_time(one["created_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("id", "what", "source", "status", "since"), rows)


@app.command()
def outputs(ctx: typer.Context, key: Key, limit: Limit = None, cursor: Cursor = None) -> None:
    """What it did to the world outside, newest first."""
    page = ctx.obj.get(path_of(key, "outputs"), limit=limit, cursor=cursor)
    rows = (
        [one["title"] or one["call"], one["call"], one["warning"] or one["status"], relative_time(one["created_at"])]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("what", "call", "status", "since"), rows)


def show_versions(ctx: typer.Context, page: dict[str, Any]) -> None:
    rows = (
        [
            one["version"] + (" (live)" if one["live"] else ""),
            one["outcome"],
            relative_time(one["created_at"]),
            one["why"] or "",
        ]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("version", "outcome", "since", "why"), rows)


def path_of(key: str, tail: str = "") -> str:
    return f"/workflows/{quote(key, safe='')}" + (f"/{tail}" if tail else "")
