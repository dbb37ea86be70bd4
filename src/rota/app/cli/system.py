"""`rota slots …`, `rota queue …`, `rota freeze …`, `rota workers`, `rota status` and `rota why`."""

from typing import Annotated

import typer

from rota.core.explain import error_text
from rota.frame.cli.connection import Answer, Connection, Exit, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import local_time, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import find_run
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import Since, Until, future_option, past_option

slots = command_group("List slots and prove that each has one verdict.")
queues = command_group("List, pause, resume and limit queues.")
frozen = command_group("Suspend all schedules of the org.")

Schedule = Annotated[str | None, typer.Option(help="name or id of the schedule; default: all")]
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
    """List slots with their verdicts, newest first. A range of missed slots is one line."""
    filters = {
        "schedule": schedule,
        "verdict": verdict,
        "since": since,
        "until": until,
        "limit": limit,
        "cursor": cursor,
    }
    page = ctx.obj.get("/slots", **filters)
    rows = (
        [
            slot["schedule_name"],
            local_time(slot["slot"]),
            str(slot["count"] if slot["count"] is not None else "many"),
            slot["verdict"] or "-",
            slot["reason"] or slot["status"] or "",
        ]
        for slot in page["items"]
    )
    print_list(ctx.obj, page, ("schedule", "slot", "n", "verdict", "why"), rows)


@slots.command()
def audit(ctx: typer.Context, schedule: Schedule = None, since: Since = None) -> None:
    """Prove that every slot has exactly one verdict, and list overdue schedules. Exit code 1 if there is a problem or
    an overdue schedule."""
    report = ctx.obj.get("/slots/$audit", schedule=schedule, since=since)
    if not print_data(ctx.obj, report):
        for problem in [*report["problems"], *report["overdue"]]:
            print(visible(problem))
        result = "every slot has one verdict" if report["ok"] else f"{len(report['problems'])} problems"
        late = f"; {len(report['overdue'])} schedules are overdue: is a worker up?" if report["overdue"] else ""
        print(f"{report['slots']} slots of {report['schedules']} schedules: {result}{late}")
    if not report["ok"] or report["overdue"]:
        raise typer.Exit(Exit.FAILED)


def workers(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List worker processes."""
    page = ctx.obj.get("/workers", limit=limit, cursor=cursor)
    rows = (
        [
            worker["id"],
            worker["state"],
            f"{worker['host']}:{worker['pid']}" if worker["host"] else "",
            f"{worker['running']}/{worker['concurrency']}",
            relative_time(worker["started_at"]),
            relative_time(worker["renewed_at"]),
        ]
        for worker in page["items"]
    )
    print_list(ctx.obj, page, ("id", "state", "host", "running", "started", "seen"), rows)


@queues.command("list")
def list_queues(ctx: typer.Context) -> None:
    """List queues that have jobs, a limit or a pause."""
    page = ctx.obj.get("/queues")
    rows = (
        [
            queue["name"],
            "paused" if queue["paused"] else "open",
            str(queue["depth"]["ready"]),
            str(queue["depth"]["running"]),
            str(queue["max_running"] if queue["max_running"] is not None else "-"),
            relative_time(queue["oldest_ready_at"]),
        ]
        for queue in page["items"]
    )
    print_list(ctx.obj, page, ("name", "state", "ready", "running", "limit", "oldest"), rows)


@queues.command("pause")
def pause_queue(ctx: typer.Context, name: QueueName) -> None:
    """Pause a queue: running jobs continue, no job is started."""
    print_details(ctx.obj, ctx.obj.patch(item_path("queues", name), {"paused": True}), QUEUE)


@queues.command("resume")
def resume_queue(ctx: typer.Context, name: QueueName) -> None:
    """Resume a paused queue."""
    print_details(ctx.obj, ctx.obj.patch(item_path("queues", name), {"paused": False}), QUEUE)


@queues.command("limit")
def limit_queue(
    ctx: typer.Context,
    name: QueueName,
    running: Annotated[int | None, typer.Argument(help="maximum concurrent runs; omit to remove the limit")] = None,
) -> None:
    """Set or remove the maximum number of concurrent runs of a queue."""
    print_details(ctx.obj, ctx.obj.patch(item_path("queues", name), {"max_running": running}), QUEUE)


@frozen.command("show")
def show_freeze(ctx: typer.Context) -> None:
    """Show whether the org is frozen."""
    print_details(ctx.obj, ctx.obj.get("/freeze"), FREEZE)


@frozen.command("on")
def freeze(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="reason, shown with the freeze")] = "",
    until: Annotated[str | None, future_option(help="end automatically at: 2h (from now), 13:00, …")] = None,
) -> None:
    """Freeze the org: no slot fires."""
    print_details(ctx.obj, ctx.obj.put("/freeze", {"reason": reason, "until": until}), FREEZE)


@frozen.command("off")
def unfreeze(ctx: typer.Context) -> None:
    """End the freeze."""
    ctx.obj.delete("/freeze")
    print_stderr("the freeze has ended; slots fire again")


def why(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="id of a run or job, or name of a schedule or task for its newest run")],
    slot: Annotated[str | None, past_option(help="slot of the schedule, as printed by `rota slots list`")] = None,
) -> None:
    """Explain the status of a run, or the verdict of a slot."""
    if slot is None:
        run = find_run(ctx.obj, key)
        answer = ctx.obj.get(f"/runs/{run['id'] or run['job_id']}/$why")
    else:
        answer = ctx.obj.get("/slots/$why", schedule=key, slot=slot)
    if not print_data(ctx.obj, answer):
        print(visible("\n".join(answer["sentences"])))


def status(ctx: typer.Context) -> None:
    """Show workers, running jobs, queues and failing schedules. Exit code 1 if something is failing or no worker is
    alive."""
    connection: Connection = ctx.obj
    workers = connection.get("/workers", state="alive", limit=200)["items"]
    running = connection.get("/runs", status="running", limit=200)["items"]
    failing = connection.get("/failing")["items"]
    queues = connection.get("/queues")["items"]
    freeze = connection.get("/freeze")
    unacknowledged = [row for row in failing if not row["acknowledged"]]
    answer = {
        "workers": workers,
        "running": len(running),
        "failing": failing,
        "queues": queues,
        "freeze": freeze,
        "ok": bool(workers) and not unacknowledged,
    }
    if not print_data(connection, answer):
        print_status(answer)
    if not answer["ok"]:
        raise typer.Exit(Exit.FAILED)


def print_status(answer: Answer) -> None:
    workers, capacity = answer["workers"], sum(worker["concurrency"] for worker in answer["workers"])
    ready = sum(queue["depth"]["ready"] for queue in answer["queues"])
    print(f"workers  {len(workers)} alive, running {answer['running']} of {capacity}")
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
