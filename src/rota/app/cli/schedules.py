"""`rota schedule …`"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import ApiRefusal, Connection, Exit, exit_refused, fail, print_stderr
from rota.frame.cli.options import Cursor, Limit, exactly_one, read_input
from rota.frame.cli.output import print_data, print_details, print_list, print_table, progress, relative_time
from rota.frame.cli.run_results import wait_for_job
from rota.frame.cli.schedule_options import Input, check_one_trigger, print_schedule, state_of, with_schedule_options
from rota.frame.cli.times import future_option, past_option

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Say when things run, and see what is planned.")

Name = Annotated[str, typer.Argument(help="name or id of the schedule")]
OneName = Annotated[str | None, typer.Argument(help="name or id of the schedule")]
CHUNK = 100
WRITABLE = (
    "name", "description", "target", "input", "schedule_type", "cron_expression", "interval_seconds", "anchor",
    "run_at", "timezone", "window_start", "window_end", "starts_at", "ends_at", "jitter_seconds", "max_runs", "misfire",
    "catch_up_limit", "overlap", "start_deadline_seconds", "timeout_seconds", "retry", "priority", "queue", "tags",
    "enabled", "grant_id",
)  # fmt: skip
SHOWN = (
    "id", "name", "description", "words", "kind", "target", "input", "next_run_at", "timezone", "enabled", "paused",
    "pause_reason", "paused_until", "condition", "condition_reason", "overlap", "misfire", "retry", "timeout_seconds",
    "priority", "queue", "tags", "grant_id", "run_count", "failure_count", "skipped_count", "last_run_at",
    "last_run_status", "last_run_id", "source", "source_ref", "owner_id", "created_by", "revision", "created_at",
    "updated_at",
)  # fmt: skip


Task = Annotated[str | None, typer.Option(help="the task to run")]
OfTag = Annotated[str | None, typer.Option("--tag", help="all schedules with this tag, instead of a name")]
All = Annotated[bool, typer.Option("--all", help="all schedules of the org, instead of a name")]


@app.command()
@with_schedule_options
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="a name of its own")],
    fields: dict[str, Any],
    task: Task = None,
    shell: Annotated[str | None, typer.Option(help="a command to run; makes a shell task of the same name")] = None,
    graph: Annotated[str | None, typer.Option(help="the graph to run, such as langgraph:poet")] = None,
    pipeline: Annotated[str | None, typer.Option(help="the pipeline to run: namespace/layer/name")] = None,
    server_instance: Annotated[str | None, typer.Option(help="on a host: a server, or labels:k=v,…")] = None,
    job_type: Annotated[str | None, typer.Option(help="what is done there; --input is its payload")] = None,
) -> None:
    """Make a schedule."""
    targets = {"task": task, "shell": shell, "graph": graph, "pipeline": pipeline, "server-instance": server_instance}
    exactly_one(**targets)
    check_one_trigger(fields)
    kind = "graph" if graph else "pipeline" if pipeline else "task"
    body = {"name": name, "kind": kind, "target": graph or pipeline or task or server_instance or name, **fields}
    if server_instance is not None:
        if job_type is None:
            fail("say what is done there: --job-type", Exit.USAGE)
        body |= {"kind": "host_job", "input": {"job_type": job_type, "payload": fields.get("input") or {}}}
    connection: Connection = ctx.obj
    made = connection.post("/schedules", body) if shell is None else add_shell(connection, shell, body)
    print_schedule(connection, made)


@app.command()
@with_schedule_options
def edit(ctx: typer.Context, name: Name, fields: dict[str, Any], task: Task = None) -> None:
    """Change what the options say; without options, open it as JSON in $EDITOR and change what was changed there.
    Refused if somebody else changed it meanwhile."""
    changes = fields if task is None else {**fields, "target": task}
    connection: Connection = ctx.obj
    before = connection.get(path_of(name))
    if not changes:
        print_schedule(connection, edit_text(connection, before))
        return
    try:
        print_schedule(
            connection, connection.try_call("PATCH", path_of(before["id"]), changes, if_match=before["revision"])
        )
    except ApiRefusal as refusal:
        exit_refused(refusal)


def edit_text(connection: Connection, before: dict[str, Any]) -> dict[str, Any]:
    """Let a person edit a schedule, again and again while it is wrong and they want to; as it is then."""
    text = written(before)
    while True:
        text = ask_editor(text)
        try:
            changes = changed(before, text)
            if not changes:
                print_stderr("nothing was changed")
                return before
            after: dict[str, Any] = connection.try_call(
                "PATCH", path_of(before["id"]), changes, if_match=before["revision"]
            )
            return after
        except ValueError as error:
            refusal = ApiRefusal(422, {"detail": f"this is not a JSON object: {error}"})
        except ApiRefusal as error:
            refusal = error
        try:
            exit_refused(refusal)
        except typer.Exit:
            if not (sys.stdin.isatty() and typer.confirm("Edit again?", default=True, err=True)):
                raise
        if refusal.status == 412:  # what somebody else changed, and on top what this person did
            before = connection.get(path_of(before["id"]))
            text = written({**before, **changes})


def written(one: dict[str, Any]) -> str:
    return json.dumps({field: one[field] for field in WRITABLE}, indent=2, ensure_ascii=False) + "\n"


def changed(before: dict[str, Any], text: str) -> dict[str, Any]:
    """What a person changed; a field that they took out is as in a new schedule."""
    after = json.loads(text)
    if not isinstance(after, dict):
        raise ValueError("it is something else")
    known = {field: before[field] for field in WRITABLE}
    return {field: after.get(field) for field in {**known, **after} if after.get(field) != known.get(field)}


def ask_editor(text: str) -> str:
    import os
    import shlex
    import subprocess
    import tempfile

    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "schedule.json"
        file.write_text(text)
        try:
            subprocess.run([*shlex.split(command), str(file)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            fail(f"the editor failed: {error}; choose one with EDITOR")
        return file.read_text()


def add_shell(connection: Connection, command: str, body: dict[str, Any]) -> Any:
    """A shell task that goes with its schedule, and the schedule; or neither. The same task that is there will do."""
    wanted = {"name": body["name"], "task_type": "shell", "command": command}
    fresh = None
    try:
        fresh = connection.try_call("POST", "/tasks", {**wanted, "delete_with_schedule": True})
    except ApiRefusal as refusal:
        if refusal.status != 409 or wanted.items() - connection.get(f"/tasks/{quote(wanted['name'], safe='')}").items():
            exit_refused(refusal)
    try:
        return connection.try_call("POST", "/schedules", body)
    except ApiRefusal as refusal:
        if fresh is not None:
            connection.delete(f"/tasks/{fresh['id']}")
        exit_refused(refusal)


@app.command("list")
def list_all(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Option(help="a part of the name")] = None,
    tag: Annotated[str | None, typer.Option()] = None,
    kind: Annotated[str | None, typer.Option()] = None,
    condition: Annotated[str | None, typer.Option(help="ok, broken or finished")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List schedules."""
    given = {"name": name, "tag": tag, "kind": kind, "condition": condition, "limit": limit, "cursor": cursor}
    page = ctx.obj.get("/schedules", **given)
    rows = (
        [
            one["name"], one["words"] or "-", one["target"], state_of(one), relative_time(one["next_run_at"]),
            one["last_run_status"] or "-",
        ]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("name", "when", "target", "state", "next", "last"), rows)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Everything about one schedule."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), SHOWN)


@app.command("next")
def upcoming(
    ctx: typer.Context,
    name: OneName = None,
    count: Annotated[int, typer.Option(help="up to 100")] = 10,
    cron: Annotated[str | None, typer.Option(help="instead of a name: an expression, such as '0 2 * * *'")] = None,
    every: Annotated[str | None, typer.Option(help="instead of a name: an interval, such as 90m")] = None,
    tz: Annotated[str | None, typer.Option(help="time zone for --cron, such as Europe/Oslo")] = None,
) -> None:
    """The coming slots of a schedule, or of an expression or interval before anything is saved."""
    exactly_one(NAME=name, cron=cron, every=every)
    if name is not None:
        coming = ctx.obj.get(f"{path_of(name)}/$next", count=count)
    else:
        fields = {"cron_expression": cron, "interval": every, "timezone": tz, "count": count}
        body = {field: value for field, value in fields.items() if value is not None}
        coming = ctx.obj.post("/schedules/$preview", body)
    if print_data(ctx.obj, coming):
        return
    print_table(
        ("utc", "local", "note"), ([utc(slot["at"]), slot["local"], slot["note"] or ""] for slot in coming["slots"])
    )
    for warning in coming["warnings"]:
        print_stderr(f"note: {warning}")


@app.command()
def pause(
    ctx: typer.Context,
    name: OneName = None,
    tag: OfTag = None,
    everything: All = False,
    reason: Annotated[str, typer.Option(help="why, for those who wonder later")] = "",
    until: Annotated[str | None, future_option(help="when it resumes by itself: 1h, 13:00, …")] = None,
) -> None:
    """Let slots pass without firing: of one schedule, of all with a tag, or of all."""
    change(ctx.obj, "pause", name, tag, everything, {"reason": reason, "until": until})


@app.command()
def resume(
    ctx: typer.Context,
    name: OneName = None,
    tag: OfTag = None,
    everything: All = False,
    gap: Annotated[str, typer.Option(help="what becomes of the slots that passed: skip, once or all")] = "skip",
) -> None:
    """End a pause: of one schedule, of all with a tag, or of all."""
    change(ctx.obj, "resume", name, tag, everything, {"gap": gap})


@app.command()
def enable(ctx: typer.Context, name: OneName = None, tag: OfTag = None, everything: All = False) -> None:
    """Enable one schedule, all with a tag, or all; slots are planned from now."""
    switch(ctx.obj, name, tag, everything, enabled=True)


@app.command()
def disable(ctx: typer.Context, name: OneName = None, tag: OfTag = None, everything: All = False) -> None:
    """Disable one schedule, all with a tag, or all; no slot of theirs is planned."""
    switch(ctx.obj, name, tag, everything, enabled=False)


def switch(connection: Connection, name: str | None, tag: str | None, everything: bool, *, enabled: bool) -> None:
    if name is None or tag is not None or everything:
        change(connection, "enable" if enabled else "disable", name, tag, everything, {})
        return
    print_schedule(connection, connection.call("PATCH", path_of(name), {"enabled": enabled}))


def change(
    connection: Connection, verb: str, name: str | None, tag: str | None, everything: bool, body: dict[str, Any]
) -> None:
    """Pause or resume the one or the many that are meant."""
    if sum((name is not None, tag is not None, everything)) != 1:
        fail("give exactly one of NAME | --tag | --all", Exit.USAGE)
    if name is not None:
        print_schedule(connection, connection.post(f"{path_of(name)}/${verb}", body))
        return
    which: dict[str, Any] = {"filter": {}} if tag is None else {"tag": tag}
    told = connection.post(f"/schedules/${verb}", {**body, **which})
    if not print_data(connection, told):
        print(f"{told['count']} schedules {verb}d")


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    input: Input = None,
    overlap: Annotated[str | None, typer.Option(help="instead of the schedule's policy")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="until the run has ended; exit code 7 if it failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait; exit code 6 after that")] = 3600.0,
) -> None:
    """Run it now, beside its slots."""
    body = {"input": read_input(input), "overlap": overlap}
    answer = ctx.obj.post(f"{path_of(name)}/$run", {field: value for field, value in body.items() if value is not None})
    if not wait:
        print_details(ctx.obj, answer, ["job_id"])
        return
    wait_for_job(ctx.obj, answer["job_id"], timeout)


@app.command()
def rm(
    ctx: typer.Context,
    name: OneName = None,
    tag: OfTag = None,
    everything: All = False,
    force: Annotated[bool, typer.Option("--force", help="with NAME: also if a program declares it")] = False,
) -> None:
    """Delete a schedule, all with a tag, or all; their slots and runs stay. Schedules that a program, a workflow or a
    trigger manages are left alone."""
    if name is None:
        change(ctx.obj, "delete", name, tag, everything, {})
        return
    ctx.obj.call("DELETE", path_of(name), query={"force": True} if force else None)
    print_stderr(f"schedule {name} is deleted")


@app.command("skip-next")
def skip_next(ctx: typer.Context, name: Name, reason: Annotated[str, typer.Option(help="why")] = "") -> None:
    """Skip the next slot, once."""
    print_details(
        ctx.obj, ctx.obj.post(f"{path_of(name)}/$skip-next", {"reason": reason}), ("slot", "verdict", "reason")
    )


@app.command()
def backfill(
    ctx: typer.Context,
    name: Name,
    since: Annotated[str, past_option("--from", help="first slot: 2d (ago), 2026-11-16, …")],
    until: Annotated[str, past_option("--to", help="last slot: now, 1h (ago), …")],
    reprocess: Annotated[bool, typer.Option("--reprocess", help="also slots that ran")] = False,
    limit: Annotated[int | None, typer.Option(help="slots at most")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only tell which slots")] = False,
) -> None:
    """Fire slots of the past that did not run."""
    body = {"from": since, "to": until, "reprocess": reprocess, "limit": limit, "dry_run": True}
    told = ctx.obj.post(f"{path_of(name)}/$backfill", body)
    if not dry_run:
        told["slots"] = fire(ctx.obj, name, body, told["slots"])
    if print_data(ctx.obj, {"count": len(told["slots"]), "slots": told["slots"]}):
        return
    for slot in told["slots"]:
        print(slot)
    print_stderr(f"{len(told['slots'])} slots{' would fire' if dry_run else ''}")


def fire(connection: Connection, name: str, body: dict[str, Any], wanted: list[str]) -> list[str]:
    """Fire these slots, a hundred at a time: a long backfill holds up nobody, and shows how far it is."""
    fired: list[str] = []
    with progress(len(wanted), "slots") as advance:
        for start in range(0, len(wanted), CHUNK):
            chunk = wanted[start : start + CHUNK]
            part = {**body, "from": chunk[0], "to": chunk[-1], "limit": len(chunk), "dry_run": False}
            fired += connection.post(f"{path_of(name)}/$backfill", part)["slots"]
            advance(len(chunk))
    return fired


def path_of(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


def utc(moment: str) -> str:
    return moment.replace("+00:00", "Z")
