"""`rota schedule …`"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rota.frame.cli.connection import Answer, ApiRefusal, Connection, Exit, exit_refused, fail, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, exactly_one, read_input
from rota.frame.cli.output import print_data, print_details, print_list, print_table, progress, relative_time
from rota.frame.cli.run_results import wait_for_job
from rota.frame.cli.schedule_options import Input, check_one_trigger, print_schedule, state_of, with_schedule_options
from rota.frame.cli.times import future_option, past_option

app = command_group("Create, list, change and run schedules.")

Name = Annotated[str, typer.Argument(help="name or id of the schedule")]
OneName = Annotated[str | None, typer.Argument(help="name or id of the schedule")]
BACKFILL_CHUNK_SLOTS = 100
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


Task = Annotated[str | None, typer.Option(help="name or id of the task to run")]
OfTag = Annotated[str | None, typer.Option("--tag", help="all schedules with this tag, instead of a name")]
All = Annotated[bool, typer.Option("--all", help="all schedules of the org, instead of a name")]


@app.command()
@with_schedule_options
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="name of the schedule, unique in the org")],
    fields: Answer,
    task: Task = None,
    shell: Annotated[
        str | None, typer.Option(help="shell command to run; creates a shell task with the name of the schedule")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="id of the graph to run, such as langgraph:poet")] = None,
    pipeline: Annotated[str | None, typer.Option(help="pipeline to run: namespace/layer/name")] = None,
    server_instance: Annotated[
        str | None, typer.Option(help="server instance on which a host job runs, or labels:k=v,…")
    ] = None,
    job_type: Annotated[str | None, typer.Option(help="type of the host job; --input is its payload")] = None,
) -> None:
    """Create a schedule."""
    targets = {"task": task, "shell": shell, "graph": graph, "pipeline": pipeline, "server-instance": server_instance}
    exactly_one(**targets)
    check_one_trigger(fields)
    kind = "graph" if graph else "pipeline" if pipeline else "task"
    body = {"name": name, "kind": kind, "target": graph or pipeline or task or server_instance or name, **fields}
    if server_instance is not None:
        if job_type is None:
            fail("--server-instance needs --job-type, such as --job-type shell", Exit.USAGE)
        body |= {"kind": "host_job", "input": {"job_type": job_type, "payload": fields.get("input") or {}}}
    connection: Connection = ctx.obj
    made = connection.post("/schedules", body) if shell is None else add_shell(connection, shell, body)
    print_schedule(connection, made)


@app.command()
@with_schedule_options
def edit(ctx: typer.Context, name: Name, fields: Answer, task: Task = None) -> None:
    """Change the fields given by options; without options, edit the schedule as JSON in $EDITOR.
    Refused if the schedule was changed since it was read."""
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


def edit_text(connection: Connection, before: Answer) -> Answer:
    """Open a schedule in the editor and save the changes; on a refusal, offer to edit again. Returns the schedule."""
    text = editable_json(before)
    while True:
        text = ask_editor(text)
        try:
            changes = changes_of(before, text)
            if not changes:
                print_stderr("no changes")
                return before
            after: Answer = connection.try_call("PATCH", path_of(before["id"]), changes, if_match=before["revision"])
            return after
        except ValueError as error:
            refusal = ApiRefusal(422, {"detail": f"not a JSON object: {error}"})
        except ApiRefusal as error:
            refusal = error
        try:
            exit_refused(refusal)
        except typer.Exit:
            if not (sys.stdin.isatty() and typer.confirm("Edit again?", default=True, err=True)):
                raise
        if refusal.status == 412:  # reload the schedule, with the edits on top
            before = connection.get(path_of(before["id"]))
            text = editable_json({**before, **changes})


def editable_json(schedule: Answer) -> str:
    return json.dumps({field: schedule[field] for field in WRITABLE}, indent=2, ensure_ascii=False) + "\n"


def changes_of(before: Answer, text: str) -> Answer:
    """Return the edited fields. A removed field is None: reset to its default. Raises ValueError if not an object."""
    after = json.loads(text)
    if not isinstance(after, dict):
        raise ValueError(f"it is a {type(after).__name__}")
    known = {field: before[field] for field in WRITABLE}
    return {field: after.get(field) for field in {**known, **after} if after.get(field) != known.get(field)}


def ask_editor(text: str) -> str:
    import os
    import shlex
    import subprocess
    import tempfile

    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "schedule.json"
        file.write_text(text)
        try:
            subprocess.run([*shlex.split(command), str(file)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            fail(f"the editor failed: {error}; set EDITOR to choose another")
        return file.read_text()


def add_shell(connection: Connection, command: str, body: Answer) -> Answer:
    """Create a shell task and its schedule, or neither; an existing task with the same command is reused."""
    task = {"name": body["name"], "task_type": "shell", "command": command}
    created = None
    try:
        created = connection.try_call("POST", "/tasks", {**task, "delete_with_schedule": True})
    except ApiRefusal as refusal:
        if refusal.status != 409 or task.items() - connection.get(item_path("tasks", task["name"])).items():
            exit_refused(refusal)
    try:
        return connection.try_call("POST", "/schedules", body)
    except ApiRefusal as refusal:
        if created is not None:
            connection.delete(f"/tasks/{created['id']}")
        exit_refused(refusal)


@app.command("list")
def list_all(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Option(help="part of the name")] = None,
    tag: Annotated[str | None, typer.Option(help="tag")] = None,
    kind: Annotated[str | None, typer.Option(help="task, graph, pipeline, host_job or workflow")] = None,
    condition: Annotated[str | None, typer.Option(help="ok, broken or finished")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List schedules."""
    filters = {"name": name, "tag": tag, "kind": kind, "condition": condition, "limit": limit, "cursor": cursor}
    page = ctx.obj.get("/schedules", **filters)
    rows = (
        [
            schedule["name"],
            schedule["words"] or "-",
            schedule["target"],
            state_of(schedule),
            relative_time(schedule["next_run_at"]),
            schedule["last_run_status"] or "-",
        ]
        for schedule in page["items"]
    )
    print_list(ctx.obj, page, ("name", "when", "target", "state", "next", "last"), rows)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show a schedule."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), SHOWN)


@app.command("next")
def upcoming(
    ctx: typer.Context,
    name: OneName = None,
    count: Annotated[int, typer.Option(help="number of slots, up to 100")] = 10,
    cron: Annotated[str | None, typer.Option(help="cron expression instead of a name, such as '0 2 * * *'")] = None,
    every: Annotated[str | None, typer.Option(help="interval instead of a name, such as 90m")] = None,
    tz: Annotated[str | None, typer.Option(help="time zone for --cron, such as Europe/Oslo")] = None,
) -> None:
    """Print the next slots of a schedule, or of a cron expression or interval that is not saved."""
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
    reason: Annotated[str, typer.Option(help="reason, shown with the pause")] = "",
    until: Annotated[str | None, future_option(help="resume automatically at: 1h (from now), 13:00, …")] = None,
) -> None:
    """Pause a schedule, all with a tag, or all: their slots do not fire."""
    change(ctx.obj, "pause", name, tag, everything, {"reason": reason, "until": until})


@app.command()
def resume(
    ctx: typer.Context,
    name: OneName = None,
    tag: OfTag = None,
    everything: All = False,
    gap: Annotated[
        str, typer.Option(help="slots that passed during the pause: skip, once (fire the latest) or all")
    ] = "skip",
) -> None:
    """Resume a schedule, all with a tag, or all."""
    change(ctx.obj, "resume", name, tag, everything, {"gap": gap})


@app.command()
def enable(ctx: typer.Context, name: OneName = None, tag: OfTag = None, everything: All = False) -> None:
    """Enable a schedule, all with a tag, or all; slots fire from now on."""
    switch(ctx.obj, name, tag, everything, enabled=True)


@app.command()
def disable(ctx: typer.Context, name: OneName = None, tag: OfTag = None, everything: All = False) -> None:
    """Disable a schedule, all with a tag, or all: they have no slots."""
    switch(ctx.obj, name, tag, everything, enabled=False)


def switch(connection: Connection, name: str | None, tag: str | None, everything: bool, *, enabled: bool) -> None:
    if name is None or tag is not None or everything:
        change(connection, "enable" if enabled else "disable", name, tag, everything, {})
        return
    print_schedule(connection, connection.call("PATCH", path_of(name), {"enabled": enabled}))


def change(
    connection: Connection, verb: str, name: str | None, tag: str | None, everything: bool, body: Answer
) -> None:
    """Pause, resume, enable, disable or delete the selected schedules. Exits with USAGE unless one selection is set."""
    if sum((name is not None, tag is not None, everything)) != 1:
        fail("give exactly one of NAME | --tag | --all", Exit.USAGE)
    if name is not None:
        print_schedule(connection, connection.post(f"{path_of(name)}/${verb}", body))
        return
    selection: Answer = {"filter": {}} if tag is None else {"tag": tag}
    answer = connection.post(f"/schedules/${verb}", {**body, **selection})
    if not print_data(connection, answer):
        print(f"{answer['count']} schedules {verb}d")


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    input: Input = None,
    overlap: Annotated[str | None, typer.Option(help="overlap policy instead of the schedule's")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="wait until the run has ended; exit code 7 if it failed")
    ] = False,
    timeout: Annotated[float, typer.Option(help="maximum seconds to wait; then exit code 6")] = 3600.0,
) -> None:
    """Run a schedule now, in addition to its slots."""
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
    force: Annotated[bool, typer.Option("--force", help="with NAME: delete it even if a program declares it")] = False,
) -> None:
    """Delete a schedule, all with a tag, or all; their slots and runs are kept. Schedules managed by a program, a
    workflow or a trigger are not deleted."""
    if name is None:
        change(ctx.obj, "delete", name, tag, everything, {})
        return
    ctx.obj.call("DELETE", path_of(name), query={"force": True} if force else None)
    print_stderr(f"schedule {name!r} deleted")


@app.command("skip-next")
def skip_next(
    ctx: typer.Context, name: Name, reason: Annotated[str, typer.Option(help="reason, recorded with the slot")] = ""
) -> None:
    """Skip the next slot."""
    print_details(
        ctx.obj, ctx.obj.post(f"{path_of(name)}/$skip-next", {"reason": reason}), ("slot", "verdict", "reason")
    )


@app.command()
def backfill(
    ctx: typer.Context,
    name: Name,
    since: Annotated[str, past_option("--from", help="start of the range: 2d (ago), 2026-11-16, …")],
    until: Annotated[str, past_option("--to", help="end of the range: now, 1h (ago), …")],
    reprocess: Annotated[bool, typer.Option("--reprocess", help="include slots that already ran")] = False,
    limit: Annotated[int | None, typer.Option(help="maximum number of slots")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the slots without firing them")] = False,
) -> None:
    """Fire past slots that did not run."""
    body = {"from": since, "to": until, "reprocess": reprocess, "limit": limit, "dry_run": True}
    answer = ctx.obj.post(f"{path_of(name)}/$backfill", body)
    if not dry_run:
        answer["slots"] = backfill_in_chunks(ctx.obj, name, body, answer["slots"])
    if print_data(ctx.obj, {"count": len(answer["slots"]), "slots": answer["slots"]}):
        return
    for slot in answer["slots"]:
        print(slot)
    print_stderr(f"{len(answer['slots'])} slots{' would fire' if dry_run else ''}")


def backfill_in_chunks(connection: Connection, name: str, body: Answer, slots: list[str]) -> list[str]:
    """Backfill slots in chunks of 100, with a progress bar: a single large request would block other writers."""
    fired: list[str] = []
    with progress(len(slots), "slots") as advance:
        for start in range(0, len(slots), BACKFILL_CHUNK_SLOTS):
            chunk = slots[start : start + BACKFILL_CHUNK_SLOTS]
            part = {**body, "from": chunk[0], "to": chunk[-1], "limit": len(chunk), "dry_run": False}
            fired += connection.post(f"{path_of(name)}/$backfill", part)["slots"]
            advance(len(chunk))
    return fired


def path_of(name: str) -> str:
    return item_path("schedules", name)


def utc(time: str) -> str:
    return time.replace("+00:00", "Z")
