"""`rota schedule …`"""

from typing import Annotated

import typer

from rota.app.cli.backfill import backfill, print_waiting, print_warnings
from rota.app.cli.schedule_editor import edit_text
from rota.app.cli.schedule_impact import print_impact
from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, ApiRefusal, Connection, Exit, exit_refused, fail, item_path, print_stderr
from rota.frame.cli.options import (
    Cursor,
    Limit,
    command_group,
    exactly_one,
    read_document,
    read_input,
    set_fields,
    with_fields,
)  # fmt: skip
from rota.frame.cli.output import items_of, print_data, print_details, print_list, print_table, relative_time
from rota.frame.cli.run_results import wait_for_job
from rota.frame.cli.schedule_options import (
    Input,
    check_one_trigger,
    print_schedule,
    state_of,
    timing_fields,
    with_schedule_options,
)  # fmt: skip
from rota.frame.cli.times import future_option

app = command_group("Create, list, change and run schedules.")

Name = Annotated[str, typer.Argument(help="name or id of the schedule", autocompletion=complete("schedules"))]
OneName = Annotated[str | None, typer.Argument(help="name or id of the schedule", autocompletion=complete("schedules"))]
WIDE = ("kind", "id", "tags", "queue", "priority", "overlap", "run_count", "failure_count", "last_run_at")
SHOWN = (
    "id", "name", "description", "words", "kind", "target", "input", "next_run_at", "timezone",
    "calendar", "on_holiday", "dst_gap", "dst_repeat", "enabled", "paused",
    "pause_reason", "paused_until", "condition", "condition_reason", "overlap", "misfire", "retry", "timeout_seconds",
    "priority", "queue", "after", "when", "tags", "grant_id", "keep_runs_days", "catch_up_spread_hours",
    "catch_up_approval_slots", "pause_after_failures", "run_count",
    "failure_count", "skipped_count", "last_run_at", "last_run_status", "last_run_id", "source", "source_ref",
    "owner_id", "created_by",
    "revision", "created_at", "updated_at",
)  # fmt: skip


Task = Annotated[str | None, typer.Option(help="name or id of the task to run", autocompletion=complete("tasks"))]
Kind = Annotated[str | None, typer.Option(help="task, graph, pipeline, host_job or workflow")]
Enabled = Annotated[bool | None, typer.Option("--enabled/--disabled", help="only enabled or disabled schedules")]
Paused = Annotated[bool | None, typer.Option("--paused/--not-paused", help="only paused schedules, or only others")]
Condition = Annotated[str | None, typer.Option(help="ok, broken or finished")]


def selection(
    tag: Annotated[str | None, typer.Option(help="instead of a name: all schedules with this tag")] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="instead of a name: all schedules of the org, or all that --kind, --enabled, "
            "--paused and --condition leave",
        ),
    ] = False,
    part: Annotated[str | None, typer.Option("--name", help="instead of a name: all with this part of a name")] = None,
    kind: Kind = None,
    enabled: Enabled = None,
    paused: Paused = None,
    condition: Condition = None,
) -> Answer:
    """Return the fields that select many schedules; none if a name is needed. Exits with USAGE if --all stands beside
    --tag or --name, or if options that only narrow a selection stand alone."""
    named, narrowing = (
        set_fields(tag=tag, name=part),
        set_fields(kind=kind, enabled=enabled, paused=paused, condition=condition),
    )
    if everything and named:
        fail("--all selects every schedule: leave it out, or --tag and --name", Exit.USAGE)
    if narrowing and not (named or everything):
        fail("--kind, --enabled, --paused and --condition narrow a selection: add --tag, --name or --all", Exit.USAGE)
    filters = {**named, **narrowing}
    if filters.keys() == {"tag"}:
        return filters
    return {"filter": filters} if filters or everything else {}


with_selection = with_fields(selection, file=False)


@app.command()
@with_schedule_options
def add(
    ctx: typer.Context,
    fields: Answer,
    name: Annotated[
        str | None, typer.Argument(help="name of the schedule, unique in the org; default: a generated one")
    ] = None,
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
    if "target" not in fields or any(targets.values()):
        exactly_one(**targets)
        kind = "graph" if graph else "pipeline" if pipeline else "task"
        fields |= {"kind": kind, "target": graph or pipeline or task or server_instance or name}
    check_one_trigger(fields)
    body = {**fields, **set_fields(name=name)}
    if server_instance is not None:
        if job_type is None:
            fail("--server-instance needs --job-type, such as --job-type shell", Exit.USAGE)
        body |= {"kind": "host_job", "input": {"job_type": job_type, "payload": fields.get("input") or {}}}
    if shell is not None and "name" not in body:
        fail("--shell needs NAME, which also names its task", Exit.USAGE)
    connection: Connection = ctx.obj
    made = connection.post("/schedules", body) if shell is None else add_shell(connection, shell, body)
    print_schedule(connection, made)


@app.command()
def bulk(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(help="list of schedules as the API takes them, as JSON or YAML; - reads stdin")
    ],
) -> None:
    """Create up to 10,000 schedules, or none if one is invalid."""
    document = read_document(file)
    answer = ctx.obj.post("/schedules/$bulk", {"items": items_of(document)})
    if not print_data(ctx.obj, answer):
        print(f"{len(answer['items'])} schedules created")


@app.command()
@with_schedule_options
def edit(
    ctx: typer.Context,
    name: Name,
    fields: Answer,
    new_name: Annotated[str | None, typer.Option("--name", help="new name")] = None,
    task: Task = None,
    target: Annotated[str | None, typer.Option(help="target, of the kind that the schedule has")] = None,
) -> None:
    """Change the fields given by options; without options, edit the schedule as JSON in $EDITOR.
    Refused if the schedule was changed since it was read."""
    changes = {**fields, **set_fields(name=new_name, target=task or target)}
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


def add_shell(connection: Connection, command: str, body: Answer) -> Answer:
    """Create a shell task and its schedule, or neither; an existing task with the same command is reused."""
    task = {"name": body["name"], "task_type": "shell", "command": command}
    created = None
    try:
        created = connection.try_call("POST", "/tasks", {**task, "delete_with_schedule": True})
    except ApiRefusal as refusal:
        existing = connection.get(item_path("tasks", task["name"])) if refusal.status == 409 else {}
        if any(existing.get(field) != value for field, value in task.items()):
            exit_refused(refusal)
    try:
        return connection.try_call("POST", "/schedules", body)
    except ApiRefusal as refusal:
        if created is not None:
            connection.delete(f"/tasks/{created['id']}")
        exit_refused(refusal)


@app.command("list", reads=True)
def list_all(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Option(help="part of the name")] = None,
    tag: Annotated[str | None, typer.Option(help="tag")] = None,
    kind: Kind = None,
    enabled: Enabled = None,
    paused: Paused = None,
    condition: Condition = None,
    sort: Annotated[str | None, typer.Option(help="name or id (by creation); -name and -id reverse the order")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List schedules."""
    filters = {"name": name, "tag": tag, "kind": kind, "enabled": enabled, "paused": paused, "condition": condition}
    page = ctx.obj.get("/schedules", **filters, sort=sort, limit=limit, cursor=cursor)
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
    print_list(ctx.obj, page, ("name", "when", "target", "state", "next", "last"), rows, WIDE)


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show a schedule."""
    print_details(ctx.obj, ctx.obj.get(path_of(name)), SHOWN)


@app.command("next", reads=True)
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
        print_coming(ctx.obj, ctx.obj.get(f"{path_of(name)}/$next", count=count))
        return
    body = set_fields(cron_expression=cron, interval=every, timezone=tz, count=count)
    print_coming(ctx.obj, ctx.obj.post("/schedules/$preview", body))


@app.command(reads=True)
@with_fields(timing_fields)
def preview(
    ctx: typer.Context,
    fields: Answer,
    count: Annotated[int, typer.Option(help="number of slots, up to 100")] = 10,
    after: Annotated[str | None, future_option(help="first time to consider; default: now")] = None,
    name: Annotated[str | None, typer.Option(help="name of the schedule, which decides what H means")] = None,
    kind: Annotated[str | None, typer.Option(help="kind of the schedule, for freeze windows")] = None,
    queue: Annotated[str | None, typer.Option(help="queue of the schedule, for freeze windows")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="tag of the schedule, for freeze windows; repeatable")] = None,
) -> None:
    """Print the slots of a timing that is not saved, with a note where a clock change or a freeze affects one."""
    check_one_trigger(fields)
    body = {**fields, **set_fields(count=count, after=after, name=name, kind=kind, queue=queue, tags=tag or None)}
    print_coming(ctx.obj, ctx.obj.post("/schedules/$preview", body))


@app.command(reads=True)
@with_schedule_options
def diff(
    ctx: typer.Context,
    name: Name,
    fields: Answer,
    days: Annotated[int | None, typer.Option(help="days to compare, up to 366; default: 30")] = None,
    new_name: Annotated[str | None, typer.Option("--name", help="new name")] = None,
    task: Task = None,
    target: Annotated[str | None, typer.Option(help="target, of the kind that the schedule has")] = None,
) -> None:
    """Show what an edit with the same options would change, without saving it: slots that are added, removed and moved,
    clashes with calendars and freezes, usual duration and cost."""
    changes = {**fields, **set_fields(name=new_name, target=task or target, days=days)}
    impact = ctx.obj.post(f"{path_of(name)}/$diff", changes)
    if not print_data(ctx.obj, impact):
        print_impact(impact)


def print_coming(connection: Connection, coming: Answer) -> None:
    if print_data(connection, coming):
        return
    print_table(
        ("utc", "local", "note"), ([utc(slot["at"]), slot["local"], slot["note"] or ""] for slot in coming["slots"])
    )
    if coming["cron_resolved"]:
        print_stderr(f"note: H is resolved: {coming['cron_resolved']}")
    for holiday in coming["left_out"]:
        moved = f"moved to {holiday['moved_to']}" if holiday["moved_to"] else "left out"
        print_stderr(f"note: {holiday['date']} is a holiday: {moved}")
    if (changes := coming["clock_changes"]) is not None:
        chosen = "as chosen" if changes["chosen_by"] == "schedule" else "by the set of hours"
        print_stderr(f"note: clock changes: gap {changes['gap']}, repeated hour {changes['repeat']} ({chosen})")
    for warning in coming["warnings"]:
        print_stderr(f"note: {warning}")


@app.command()
@with_selection
def pause(
    ctx: typer.Context,
    fields: Answer,
    name: OneName = None,
    reason: Annotated[str, typer.Option(help="reason, shown with the pause")] = "",
    until: Annotated[str | None, future_option(help="resume automatically at: 1h (from now), 13:00, …")] = None,
) -> None:
    """Pause a schedule, all with a tag, or all: their slots do not fire."""
    change(ctx.obj, "pause", name, fields, {"reason": reason, "until": until})


@app.command()
@with_selection
def resume(
    ctx: typer.Context,
    fields: Answer,
    name: OneName = None,
    gap: Annotated[
        str, typer.Option(help="slots that passed during the pause: skip, once (fire the latest) or all")
    ] = "skip",
    limit: Annotated[int | None, typer.Option(help="with --gap all: at most so many slots, oldest first")] = None,
    spread_hours: Annotated[
        float | None, typer.Option(help="with --gap all: spread the slots over so many hours from now on")
    ] = None,
) -> None:
    """Resume a schedule, all with a tag, or all."""
    if (limit is not None or spread_hours is not None) and name is None:
        raise typer.BadParameter("--limit and --spread-hours go with the name of one schedule")
    how = {field: value for field, value in (("limit", limit), ("spread_hours", spread_hours)) if value is not None}
    change(ctx.obj, "resume", name, fields, {"gap": gap, **how})


@app.command()
@with_selection
def enable(ctx: typer.Context, fields: Answer, name: OneName = None) -> None:
    """Enable a schedule, all with a tag, or all; slots fire from now on."""
    switch(ctx.obj, name, fields, enabled=True)


@app.command()
@with_selection
def disable(ctx: typer.Context, fields: Answer, name: OneName = None) -> None:
    """Disable a schedule, all with a tag, or all: they have no slots."""
    switch(ctx.obj, name, fields, enabled=False)


def switch(connection: Connection, name: str | None, selected: Answer, *, enabled: bool) -> None:
    if name is None or selected:
        change(connection, "enable" if enabled else "disable", name, selected, {})
        return
    print_schedule(connection, connection.call("PATCH", path_of(name), {"enabled": enabled}))


def change(connection: Connection, verb: str, name: str | None, selected: Answer, body: Answer) -> None:
    """Pause, resume, enable, disable or delete the selected schedules. Exits with USAGE unless they are selected by
    name, or by options."""
    if (name is None) == (not selected):
        fail("give exactly one of NAME | --tag | --all, or other options that select schedules", Exit.USAGE)
    if name is not None:
        answer = connection.post(f"{path_of(name)}/${verb}", body)
        print_schedule(connection, answer)
        if answer.get("catch_up") is not None:
            print_waiting(answer["catch_up"])
        return
    answer = connection.post(f"/schedules/${verb}", {**body, **selected})
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
    answer = ctx.obj.post(f"{path_of(name)}/$run", set_fields(input=read_input(input), overlap=overlap))
    print_warnings(answer)
    if not wait:
        print_details(ctx.obj, answer, ["job_id"])
        return
    wait_for_job(ctx.obj, answer["job_id"], timeout)


@app.command()
@with_selection
def rm(
    ctx: typer.Context,
    fields: Answer,
    name: OneName = None,
    force: Annotated[bool, typer.Option("--force", help="with NAME: delete it even if a program declares it")] = False,
) -> None:
    """Delete a schedule, all with a tag, or all; their slots and runs are kept. Schedules managed by a program, a
    workflow or a trigger are not deleted."""
    if name is None or fields:
        change(ctx.obj, "delete", name, fields, {})
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


app.command()(backfill)


def path_of(name: str) -> str:
    return item_path("schedules", name)


def utc(time: str) -> str:
    return time.replace("+00:00", "Z")
