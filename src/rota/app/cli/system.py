"""`rota slots …`, `rota queue …`, `rota freeze …`, `rota workers` and `rota why`."""

from typing import Annotated
from urllib.parse import quote

import typer

from rota.app.cli.connection import Exit, say
from rota.app.cli.show import as_data, details, listing, local, visible, when

slots = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what became of slots.")
queues = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See, pause and limit queues.")
frozen = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Stop all slots of the org for a while.")

Schedule = Annotated[str | None, typer.Option(help="name or id; else all")]
Since = Annotated[str | None, typer.Option(help="a moment with offset")]
Limit = Annotated[int | None, typer.Option(help="how many at most, up to 200")]
Cursor = Annotated[str | None, typer.Option(help="where the page before ended")]
QueueName = Annotated[str, typer.Argument(help="name of the queue")]
QUEUE = ("name", "paused", "max_running", "oldest_ready_at")
FREEZE = ("frozen", "frozen_at", "until", "reason")


@slots.command("list")
def list_slots(
    ctx: typer.Context,
    schedule: Schedule = None,
    verdict: Annotated[str | None, typer.Option(help="ran, skipped, missed or coalesced")] = None,
    since: Since = None,
    until: Annotated[str | None, typer.Option(help="a moment with offset")] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """What became of slots, newest first. A gap of many is one line."""
    given = {"schedule": schedule, "verdict": verdict, "since": since, "until": until, "limit": limit, "cursor": cursor}
    page = ctx.obj.get("/slots", **given)
    rows = (
        [
            one["schedule_name"], local(one["slot"]), str(one["count"] if one["count"] is not None else "many"),
            one["verdict"] or "-", one["reason"] or one["status"] or "",
        ]
        for one in page["items"]
    )  # fmt: skip
    listing(ctx.obj, page, ("schedule", "slot", "n", "verdict", "why"), rows)


@slots.command()
def audit(ctx: typer.Context, schedule: Schedule = None, since: Since = None) -> None:
    """Prove that every slot has exactly one verdict; exit code 1 if not."""
    told = ctx.obj.get("/slots/$audit", schedule=schedule, since=since)
    if not as_data(ctx.obj, told):
        for problem in told["problems"]:
            print(problem)
        found = "every slot has one verdict" if told["ok"] else f"{len(told['problems'])} problems"
        print(f"{told['slots']} slots of {told['schedules']} schedules: {found}")
    if not told["ok"]:
        raise typer.Exit(Exit.FAILED)


def workers(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List worker processes."""
    page = ctx.obj.get("/workers", limit=limit, cursor=cursor)
    rows = (
        [
            one["id"], one["state"], f"{one['host']}:{one['pid']}" if one["host"] else "",
            f"{one['running']}/{one['concurrency']}",
            when(one["started_at"]), when(one["renewed_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    listing(ctx.obj, page, ("id", "state", "host", "running", "started", "seen"), rows)


@queues.command("list")
def list_queues(ctx: typer.Context) -> None:
    """List queues that have work, a limit or a pause."""
    page = ctx.obj.get("/queues")
    rows = (
        [
            one["name"], "paused" if one["paused"] else "open", str(one["depth"]["ready"]),
            str(one["depth"]["running"]), str(one["max_running"] if one["max_running"] is not None else "-"),
            when(one["oldest_ready_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    listing(ctx.obj, page, ("name", "state", "ready", "running", "limit", "oldest"), rows)


@queues.command("pause")
def pause_queue(ctx: typer.Context, name: QueueName) -> None:
    """Let a queue wait: what runs goes on, nothing new starts."""
    details(ctx.obj, ctx.obj.patch(f"/queues/{quote(name, safe='')}", {"paused": True}), QUEUE)


@queues.command("resume")
def resume_queue(ctx: typer.Context, name: QueueName) -> None:
    """Let a queue go on."""
    details(ctx.obj, ctx.obj.patch(f"/queues/{quote(name, safe='')}", {"paused": False}), QUEUE)


@queues.command("limit")
def limit_queue(
    ctx: typer.Context,
    name: QueueName,
    running: Annotated[int | None, typer.Argument(help="runs at once; nothing lifts the limit")] = None,
) -> None:
    """Limit how many runs of a queue go on at once."""
    details(ctx.obj, ctx.obj.patch(f"/queues/{quote(name, safe='')}", {"max_running": running}), QUEUE)


@frozen.command("show")
def show_freeze(ctx: typer.Context) -> None:
    """Whether the org is frozen."""
    details(ctx.obj, ctx.obj.get("/freeze"), FREEZE)


@frozen.command("on")
def freeze(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="why, for those who wonder later")] = "",
    until: Annotated[str | None, typer.Option(help="a moment at which it ends by itself")] = None,
) -> None:
    """Let every slot of the org pass without firing."""
    details(ctx.obj, ctx.obj.put("/freeze", {"reason": reason, "until": until}), FREEZE)


@frozen.command("off")
def unfreeze(ctx: typer.Context) -> None:
    """End the freeze."""
    ctx.obj.delete("/freeze")
    say("slots fire again")


def why(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(help="id of a run or job, or the name of a schedule with --slot")],
    slot: Annotated[str | None, typer.Option(help="the moment at which the schedule was due")] = None,
) -> None:
    """Why a run is as it is, or what became of a slot."""
    if slot is None:
        told = ctx.obj.get(f"/runs/{quote(what, safe='')}/$why")
    else:
        told = ctx.obj.get("/slots/$why", schedule=what, slot=slot)
    if not as_data(ctx.obj, told):
        print(visible("\n".join(told["sentences"])))
