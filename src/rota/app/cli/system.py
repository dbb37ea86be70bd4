"""`rota slots …`, `rota queue …`, `rota workers`, `rota failing` and `rota why`."""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Exit, fail, item_path
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import local_time, print_data, print_details, print_list, relative_time
from rota.frame.cli.run_results import find_run
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import Since, Until, past_option

slots = command_group("List slots and prove that each has one verdict.")
queues = command_group("List, show, pause, resume and limit queues.")

Schedule = Annotated[
    str | None,
    typer.Option(help="name or id of the schedule; default: all", autocompletion=complete("schedules")),
]
QueueName = Annotated[str, typer.Argument(help="name of the queue", autocompletion=complete("queues"))]
QUEUE = ("name", "paused", "max_running", "rate", "burst", "depth", "oldest_ready_at")


@slots.command("list", reads=True)
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


@slots.command(reads=True)
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


def workers(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="alive, stopped or dead")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List worker processes."""
    page = ctx.obj.get("/workers", state=state, limit=limit, cursor=cursor)
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


@queues.command("list", reads=True)
def list_queues(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List queues that have jobs, a limit or a pause."""
    page = ctx.obj.get("/queues", limit=limit, cursor=cursor)
    rows = (
        [
            queue["name"],
            "paused" if queue["paused"] else "open",
            str(queue["depth"]["ready"]),
            str(queue["depth"]["running"]),
            str(queue["max_running"] if queue["max_running"] is not None else "-"),
            queue["rate"] or "-",
            relative_time(queue["oldest_ready_at"]),
        ]
        for queue in page["items"]
    )
    print_list(ctx.obj, page, ("name", "state", "ready", "running", "limit", "rate", "oldest"), rows)


@queues.command("show", reads=True)
def show_queue(ctx: typer.Context, name: QueueName) -> None:
    """Show a queue."""
    print_details(ctx.obj, ctx.obj.get(item_path("queues", name)), QUEUE)


@queues.command("wanted", reads=True)
def wanted_workers(
    ctx: typer.Context,
    queues: Annotated[str | None, typer.Option(help="queues, separated by commas; default: all")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="of a worker; default: that of the workers that are alive")
    ] = None,
    within: Annotated[str | None, typer.Option(help="span in which due jobs should be done; default: 60s")] = None,
    ahead: Annotated[
        str | None, typer.Option(help="what becomes due within this span counts as due; default: 60s")
    ] = None,
) -> None:
    """Show how many workers the due jobs need, of each queue; for autoscalers."""
    options = {"queues": queues, "concurrency": concurrency, "within": within, "ahead": ahead}
    wanted = ctx.obj.get("/queues/$wanted", **options)
    rows = [
        [
            queue["queue"],
            str(queue["due"]),
            str(queue["running"]),
            f"{queue['places']:g}",
            str(queue["concurrency"]),
            str(queue["wanted_workers"]),
        ]
        for queue in wanted["queues"]
    ]
    if not print_data(ctx.obj, wanted):
        table = {"items": wanted["queues"], "next_cursor": None}
        print_list(ctx.obj, table, ("queue", "due", "running", "places", "concurrency", "workers"), rows)
        more = ", or more: more is due than was counted" if wanted["capped"] else ""
        print(f"workers for all of these queues together: {wanted['wanted_workers']}{more}")


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


@queues.command("set")
def set_queue(
    ctx: typer.Context,
    name: QueueName,
    max_running: Annotated[str | None, typer.Option(help="maximum concurrent runs; `none` removes the limit")] = None,
    rate: Annotated[str | None, typer.Option(help="starts per span of time, such as 100/1m; `none`: no limit")] = None,
    burst: Annotated[int | None, typer.Option(help="how many may start at once after a pause; default: 1")] = None,
    paused: Annotated[bool | None, typer.Option("--pause/--resume", help="pause or resume the queue")] = None,
) -> None:
    """Change limits, rate and pause of a queue; what is not named stays."""
    body: dict[str, object] = {}
    if max_running is not None:
        try:
            body["max_running"] = None if max_running == "none" else int(max_running)
        except ValueError:
            fail(f"--max-running {max_running} is neither an integer nor `none`", Exit.USAGE)
    if rate is not None:
        body |= {"rate": None, "burst": None} if rate == "none" else {"rate": rate}
    body |= {field: value for field, value in (("burst", burst), ("paused", paused)) if value is not None}
    print_details(ctx.obj, ctx.obj.patch(item_path("queues", name), body), QUEUE)


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


def failing(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List schedules and tasks whose last run failed."""
    from rota.core.explain import error_text

    page = ctx.obj.get("/failing", limit=limit, cursor=cursor)
    rows = (
        [
            row["schedule"] or row["target_name"],
            str(row["times"]),
            relative_time(row["finished_at"]),
            error_text(row["error"] or {}).partition("\n")[0][:100],
            row["acknowledged"]["by"] if row["acknowledged"] else "",
        ]
        for row in page["items"]
    )
    print_list(ctx.obj, page, ("name", "failed", "last", "error", "acknowledged"), rows)
