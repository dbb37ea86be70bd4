"""`rota catch-up …`: passed slots that wait for an approval."""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, item_path
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import local_time, print_data, print_details, print_list, print_table

app = command_group("Passed slots: what a catch-up takes and costs, and those that wait for an approval.")

CATCH_UP = (
    "id", "schedule", "status", "source", "count", "first_slot", "last_slot", "run_seconds", "credits", "usd",
    "waits_for", "requested_by_name", "requested_at", "decided_by", "decided_at", "gap", "limit", "spread_seconds",
    "fired", "comment",
)  # fmt: skip
CatchUpId = Annotated[str, typer.Argument(help="id of the catch-up")]
Comment = Annotated[str | None, typer.Option(help="comment that is recorded with the decision")]
Spread = Annotated[float | None, typer.Option(help="spread the slots over so many hours from now on")]
SlotLimit = Annotated[int | None, typer.Option("--limit", help="at most so many slots, oldest first")]


@app.command(reads=True)
def plan(
    ctx: typer.Context,
    schedule: Annotated[str, typer.Argument(help="name or id", autocompletion=complete("schedules"))],
    limit: SlotLimit = None,
    spread_hours: Spread = None,
) -> None:
    """Show what the slots that passed since a pause or an outage would take and cost: none, the latest, or all."""
    path = item_path("schedules", schedule, "$catch-up")
    answer = ctx.obj.get(path, limit=limit, spread_hours=spread_hours)
    if print_data(ctx.obj, answer):
        return
    rows = [[gap, *(shown(answer[gap], field) for field in PLAN)] for gap in ("skip", "once", "all")]
    print_table(("gap", "slots", "run time (s)", "credits", "usd", "ends", "waits for an approval"), rows)


PLAN = ("count", "run_seconds", "credits", "usd", "ends_at", "waits_for")


def shown(option: Answer, field: str) -> str:
    value = option[field]
    if field == "ends_at":
        return local_time(value)
    if isinstance(value, list):
        return "; ".join(value)
    return "" if value is None else f"{value:g}"


@app.command("list", reads=True)
def list_all(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="open, approved, rejected or withdrawn")] = None,
    schedule: Annotated[str | None, typer.Option(help="name or id", autocompletion=complete("schedules"))] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List catch-ups, the newest first."""
    page = ctx.obj.get("/catch-ups", status=status, schedule=schedule, limit=limit, cursor=cursor)
    rows = (
        [
            item["id"],
            item["schedule"],
            item["status"],
            str(item["count"]),
            local_time(item["first_slot"]),
            local_time(item["last_slot"]),
            "; ".join(item["waits_for"]),
        ]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("id", "schedule", "status", "slots", "first", "last", "exceeds"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, catch_up: CatchUpId) -> None:
    """Show a catch-up."""
    print_details(ctx.obj, ctx.obj.get(item_path("catch-ups", catch_up)), CATCH_UP)


@app.command()
def approve(
    ctx: typer.Context,
    catch_up: CatchUpId,
    gap: Annotated[str | None, typer.Option(help="which slots run: all (default), once (the latest) or skip")] = None,
    limit: SlotLimit = None,
    spread_hours: Spread = None,
    comment: Comment = None,
) -> None:
    """Fire slots of a catch-up; those left out are missed."""
    decide(ctx, catch_up, "$approve", {"gap": gap, "limit": limit, "spread_hours": spread_hours, "comment": comment})


@app.command()
def reject(ctx: typer.Context, catch_up: CatchUpId, comment: Comment = None) -> None:
    """Leave the slots of a catch-up missed."""
    decide(ctx, catch_up, "$reject", {"comment": comment})


def decide(ctx: typer.Context, catch_up: str, verb: str, fields: Answer) -> None:
    body = {field: value for field, value in fields.items() if value is not None}
    print_details(ctx.obj, ctx.obj.post(item_path("catch-ups", catch_up, verb), body), CATCH_UP)
