"""`rota freeze …`: the freeze of the org, and freeze windows announced ahead."""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, set_fields, some_changes, with_fields
from rota.frame.cli.output import local_time, print_details, print_list
from rota.frame.cli.times import future_option

app = command_group("Freeze the org now, or announce freeze windows: time ranges in which slots do not fire.")

FREEZE = ("frozen", "frozen_at", "until", "reason")
WINDOW = (
    "name", "id", "state", "words", "starts_at", "ends_at", "mode", "reason", "kind", "queue", "tag",
    "created_by_name", "created_at", "schedules",
)  # fmt: skip
Name = Annotated[str, typer.Argument(help="name of the freeze window", autocompletion=complete("freeze-windows"))]


def window_fields(
    starts_at: Annotated[str | None, future_option("--from", help="start: 2h (from now), 2026-12-20, …")] = None,
    ends_at: Annotated[str | None, future_option("--to", help="end: 12h (from now), 2027-01-02, …")] = None,
    reason: Annotated[str | None, typer.Option(help="reason, shown with the window and its slots")] = None,
    mode: Annotated[
        str | None, typer.Option(help="skip its slots, or hold them: they are due at its end; default: skip")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="covers schedules of this kind; default: of all kinds")] = None,
    queue: Annotated[
        str | None,
        typer.Option(help="covers schedules of this queue; default: of all", autocompletion=complete("queues")),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="covers schedules with this tag; default: all")] = None,
) -> Answer:
    """Return the fields of a freeze window."""
    return set_fields(
        starts_at=starts_at, ends_at=ends_at, reason=reason, mode=mode, kind=kind, queue=queue, tag=tag
    )  # fmt: skip


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List freeze windows, the latest first."""
    page = ctx.obj.get("/freeze-windows", limit=limit, cursor=cursor)
    rows = (
        [
            item["name"],
            item["state"],
            local_time(item["starts_at"]),
            local_time(item["ends_at"]),
            item["mode"],
            " ".join(f"{field}={item[field]}" for field in ("kind", "queue", "tag") if item[field]) or "all",
            item["reason"],
        ]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("name", "state", "from", "to", "mode", "covers", "reason"), rows)


@app.command(reads=True)
def show(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="name of a freeze window; default: whether the org is frozen"),
    ] = None,
) -> None:
    """Show a freeze window with the schedules that it covers, or whether the org is frozen."""
    if name is None:
        print_details(ctx.obj, ctx.obj.get("/freeze"), FREEZE)
    else:
        print_details(ctx.obj, ctx.obj.get(item_path("freeze-windows", name)), WINDOW)


@app.command()
@with_fields(window_fields)
def add(
    ctx: typer.Context, fields: Answer, name: Annotated[str, typer.Argument(help="name of the freeze window")]
) -> None:
    """Announce a freeze window; without --from it begins now."""
    print_details(ctx.obj, ctx.obj.post("/freeze-windows", {**fields, "name": name}), WINDOW)


@app.command()
@with_fields(window_fields)
def edit(ctx: typer.Context, fields: Answer, name: Name) -> None:
    """Change a freeze window that has not ended."""
    print_details(ctx.obj, ctx.obj.patch(item_path("freeze-windows", name), some_changes(fields)), WINDOW)


@app.command()
def delete(ctx: typer.Context, name: Name) -> None:
    """Delete a freeze window, which ends it: slots that it holds are due now."""
    ctx.obj.delete(item_path("freeze-windows", name))
    print_stderr(f"freeze window {name} deleted")


@app.command("on")
def freeze(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="reason, shown with the freeze")] = "",
    until: Annotated[str | None, future_option(help="end automatically at: 2h (from now), 13:00, …")] = None,
) -> None:
    """Freeze the org: no slot fires."""
    print_details(ctx.obj, ctx.obj.put("/freeze", {"reason": reason, "until": until}), FREEZE)


@app.command("off")
def unfreeze(ctx: typer.Context) -> None:
    """End the freeze."""
    ctx.obj.delete("/freeze")
    print_stderr("the freeze has ended; slots fire again")
