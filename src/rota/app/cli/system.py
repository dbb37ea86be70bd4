"""`rota slots …`, `rota queue …`, `rota freeze …`, `rota workers`, `rota status` and `rota why`."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.core.explain import error_text
from rota.frame.cli.connection import Connection, Exit, print_stderr
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import local_time, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import find_run
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import Since, Until, future_option, past_option

slots = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what became of slots.")
queues = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See, pause and limit queues.")
frozen = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Stop all slots of the org for a while.")

Schedule = Annotated[str | None, typer.Option(help="name or id; else all")]
QueueName = Annotated[str, typer.Argument(help="name of the queue")]
QUEUE = ("name", "paused", "max_running", "oldest_ready_at")
FREEZE = ("frozen", "frozen_at", "until", "reason")


@slots.command("list")
def list_slots(
    ctx: typer.Context,
    schedule: Schedule = None,
    verdict: Annotated[str | None, typer.Option(help="ran, skipped, missed or coalesced")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """What became of slots, newest first. A gap of many is one line."""
    given = {"schedule": schedule, "verdict": verdict, "since": since, "until": until, "limit": limit, "cursor": cursor}
    page = ctx.obj.get("/slots", **given)
    rows = (
        [
            one["schedule_name"], local_time(one["slot"]), str(one["count"] if one["count"] is not None else "many"),
            one["verdict"] or "-", one["reason"] or one["status"] or "",
        ]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("schedule", "slot", "n", "verdict", "why"), rows)


@slots.command()
def audit(ctx: typer.Context, schedule: Schedule = None, since: Since = None) -> None:
    """Prove that every slot has exactly one verdict, and list schedules that are overdue; exit code 1 if something is
    wrong or overdue."""
    told = ctx.obj.get("/slots/$audit", schedule=schedule, since=since)
    if not print_data(ctx.obj, told):
        for problem in [*told["problems"], *told["overdue"]]:
            print(visible(problem))
        found = "every slot has one verdict" if told["ok"] else f"{len(told['problems'])} problems"
        late = f"; {len(told['overdue'])} schedules are overdue: is a worker up?" if told["overdue"] else ""
        print(f"{told['slots']} slots of {told['schedules']} schedules: {found}{late}")
    if not told["ok"] or told["overdue"]:
        raise typer.Exit(Exit.FAILED)


def workers(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List worker processes."""
    page = ctx.obj.get("/workers", limit=limit, cursor=cursor)
    rows = (
        [
            one["id"], one["state"], f"{one['host']}:{one['pid']}" if one["host"] else "",
            f"{one['running']}/{one['concurrency']}",
            relative_time(one["started_at"]), relative_time(one["renewed_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("id", "state", "host", "running", "started", "seen"), rows)


@queues.command("list")
def list_queues(ctx: typer.Context) -> None:
    """List queues that have work, a limit or a pause."""
    page = ctx.obj.get("/queues")
    rows = (
        [
            one["name"], "paused" if one["paused"] else "open", str(one["depth"]["ready"]),
            str(one["depth"]["running"]), str(one["max_running"] if one["max_running"] is not None else "-"),
            relative_time(one["oldest_ready_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("name", "state", "ready", "running", "limit", "oldest"), rows)


@queues.command("pause")
def pause_queue(ctx: typer.Context, name: QueueName) -> None:
    """Let a queue wait: what runs goes on, nothing new starts."""
    print_details(ctx.obj, ctx.obj.patch(f"/queues/{quote(name, safe='')}", {"paused": True}), QUEUE)


@queues.command("resume")
def resume_queue(ctx: typer.Context, name: QueueName) -> None:
    """Let a queue go on."""
    print_details(ctx.obj, ctx.obj.patch(f"/queues/{quote(name, safe='')}", {"paused": False}), QUEUE)


@queues.command("limit")
def limit_queue(
    ctx: typer.Context,
    name: QueueName,
    running: Annotated[int | None, typer.Argument(help="runs at once; nothing lifts the limit")] = None,
) -> None:
    """Limit how many runs of a queue go on at once."""
    print_details(ctx.obj, ctx.obj.patch(f"/queues/{quote(name, safe='')}", {"max_running": running}), QUEUE)


@frozen.command("show")
def show_freeze(ctx: typer.Context) -> None:
    """Whether the org is frozen."""
    print_details(ctx.obj, ctx.obj.get("/freeze"), FREEZE)


@frozen.command("on")
def freeze(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="why, for those who wonder later")] = "",
    until: Annotated[str | None, future_option(help="when it ends by itself: 2h, 13:00, …")] = None,
) -> None:
    """Let every slot of the org pass without firing."""
    print_details(ctx.obj, ctx.obj.put("/freeze", {"reason": reason, "until": until}), FREEZE)


@frozen.command("off")
def unfreeze(ctx: typer.Context) -> None:
    """End the freeze."""
    ctx.obj.delete("/freeze")
    print_stderr("slots fire again")


def why(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="id of a run or job; or a schedule or task, for its newest run")],
    slot: Annotated[str | None, past_option(help="the slot of the schedule, as `rota slots list` prints it")] = None,
) -> None:
    """Why a run is as it is, or what became of a slot."""
    if slot is None:
        run = find_run(ctx.obj, key)
        answer = ctx.obj.get(f"/runs/{run['id'] or run['job_id']}/$why")
    else:
        answer = ctx.obj.get("/slots/$why", schedule=key, slot=slot)
    if not print_data(ctx.obj, answer):
        print(visible("\n".join(answer["sentences"])))


def status(ctx: typer.Context) -> None:
    """The installation in one screen: workers, what runs, what is failing, what is due next. Exit code 1 if something
    is failing or no worker is alive."""
    connection: Connection = ctx.obj
    workers = connection.get("/workers", state="alive", limit=200)["items"]
    running = connection.get("/runs", status="running", limit=200)["items"]
    failing = connection.get("/failing")["items"]
    queues = connection.get("/queues")["items"]
    freeze = connection.get("/freeze")
    unacknowledged = [row for row in failing if not row["acknowledged"]]
    answer = {
        "workers": workers, "running": len(running), "failing": failing, "queues": queues, "freeze": freeze,
        "ok": bool(workers) and not unacknowledged,
    }  # fmt: skip
    if not print_data(connection, answer):
        print_status(answer)
    if not answer["ok"]:
        raise typer.Exit(Exit.FAILED)


def print_status(answer: dict[str, Any]) -> None:
    workers, places = answer["workers"], sum(worker["concurrency"] for worker in answer["workers"])
    ready = sum(queue["depth"]["ready"] for queue in answer["queues"])
    print(f"workers  {len(workers)} alive, {answer['running']} of {places} places in use")
    print(f"queues   {ready} jobs ready")
    for queue in answer["queues"]:
        if queue["paused"] or queue["oldest_ready_at"]:
            state = "paused" if queue["paused"] else f"oldest ready {relative_time(queue['oldest_ready_at'])}"
            print(f"         {visible(queue['name'])}: {queue['depth']['ready']} ready, {state}")
    if answer["freeze"]["frozen"]:
        print(f"frozen   {visible(answer['freeze']['reason'] or '')}")
    print(f"failing  {len(answer['failing']) or 'nothing'}")
    for row in answer["failing"]:
        error = error_text(row["error"] or {}).partition("\n")[0][:100]
        by = f" (acknowledged by {row['acknowledged']['by']})" if row["acknowledged"] else ""
        name = row["schedule"] or row["target_name"]
        print(visible(f"         {name}: {row['times']} failed, last {relative_time(row['finished_at'])}: {error}{by}"))
