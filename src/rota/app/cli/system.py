"""`rota slots …`, `rota task …` and `rota workers`."""

from typing import Annotated
from urllib.parse import quote

import typer

from rota.app.cli.connection import Exit, say
from rota.app.cli.show import as_json, listing, local, when

slots = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what became of slots.")
tasks = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See what can run.")

Schedule = Annotated[str | None, typer.Option(help="name or id; else all")]
Since = Annotated[str | None, typer.Option(help="a moment with offset")]
Limit = Annotated[int | None, typer.Option(help="how many at most, up to 200")]
Cursor = Annotated[str | None, typer.Option(help="where the page before ended")]


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
    if not as_json(ctx.obj, told):
        for problem in told["problems"]:
            print(problem)
        found = "every slot has one verdict" if told["ok"] else f"{len(told['problems'])} problems"
        print(f"{told['slots']} slots of {told['schedules']} schedules: {found}")
    if not told["ok"]:
        raise typer.Exit(Exit.FAILED)


@tasks.command("list")
def list_tasks(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List tasks."""
    page = ctx.obj.get("/tasks", limit=limit, cursor=cursor)
    rows = ([one["name"], one["task_type"], one["source"], one["command"]] for one in page["items"])
    listing(ctx.obj, page, ("name", "type", "source", "command"), rows)


@tasks.command()
def rm(ctx: typer.Context, name: Annotated[str, typer.Argument(help="name or id of the task")]) -> None:
    """Delete a task that no schedule needs."""
    ctx.obj.delete(f"/tasks/{quote(name, safe='')}")
    say(f"task {name} is deleted")


def workers(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List worker processes."""
    page = ctx.obj.get("/workers", limit=limit, cursor=cursor)
    rows = (
        [
            one["id"], one["state"], f"{one['host']}:{one['pid']}", f"{one['running']}/{one['concurrency']}",
            when(one["started_at"]), when(one["renewed_at"]),
        ]
        for one in page["items"]
    )  # fmt: skip
    listing(ctx.obj, page, ("id", "state", "host", "running", "started", "seen"), rows)
