"""`rota hook …`: webhooks that send signals."""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, set_fields
from rota.frame.cli.output import print_details, print_list

app = command_group("Add, list, rotate and delete signed webhooks that send signals.")

HOOK = ("name", "id", "topic", "key_field", "path", "previous_until", "created_at")
Name = Annotated[str, typer.Argument(help="name or id of the webhook", autocompletion=complete("signal-hooks"))]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="name of the webhook, such as the system that sends")],
    topic: Annotated[str, typer.Argument(help="topic of its signals, as in ctx.wait_for")],
    key_field: Annotated[
        str | None, typer.Option(help="field of the body that has the key of the signal, such as data.invoice")
    ] = None,
) -> None:
    """Add a webhook. Its secret is shown once."""
    body = {"name": name, "topic": topic, **set_fields(key_field=key_field)}
    print_details(ctx.obj, ctx.obj.post("/signal-hooks", body), ("secret", *HOOK))


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List webhooks."""
    page = ctx.obj.get("/signal-hooks", limit=limit, cursor=cursor)
    rows = ([item["name"], item["topic"], item["key_field"] or "", item["path"]] for item in page["items"])
    print_list(ctx.obj, page, ("name", "topic", "key field", "path"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show a webhook, without its secret."""
    print_details(ctx.obj, ctx.obj.get(item_path("signal-hooks", name)), HOOK)


@app.command()
def rotate(ctx: typer.Context, name: Name) -> None:
    """Give a webhook a new secret; the previous one is valid for another day."""
    print_details(ctx.obj, ctx.obj.post(item_path("signal-hooks", name, "$rotate")), ("secret", *HOOK))


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a webhook."""
    ctx.obj.delete(item_path("signal-hooks", name))
    print_stderr(f"webhook {name} deleted")
