"""`rota grant …`"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.frame.cli.connection import Output, print_stderr
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import print_details, print_list, relative_time
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import future_option

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The authority that unattended work runs under.")

GrantId = Annotated[str, typer.Argument(help="id of the grant")]
SHOWN = (
    "id", "scopes", "owner_id", "billing_account_id", "schedule_id", "budget", "spent", "expires_at", "revoked_at",
    "created_at",
)  # fmt: skip


@app.command("list")
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List grants, newest first."""
    page = ctx.obj.get("/grants", limit=limit, cursor=cursor)
    rows = ([one["id"], ", ".join(one["scopes"]), state_of(one), str(one["spent"])] for one in page["items"])
    print_list(ctx.obj, page, ("id", "scopes", "state", "spent"), rows)


@app.command()
def create(
    ctx: typer.Context,
    scope: Annotated[list[str], typer.Option(help="such as graph:execute:langgraph:poet; may be given several times")],
    expires_at: Annotated[str | None, future_option("--expires", help="when it ends: 30d, 2027-01-01, …")] = None,
    per_day: Annotated[int | None, typer.Option("--budget-per-day", help="credits")] = None,
    total: Annotated[int | None, typer.Option("--budget-total", help="credits")] = None,
    account: Annotated[str | None, typer.Option(help="id of the billing account; else yours")] = None,
    consent: Annotated[bool, typer.Option("--consent", help="to a scope that allows everything of its kind")] = False,
) -> None:
    """Give work an authority of its own; name it in `rota schedule add --grant`."""
    budget = {name: value for name, value in (("per_day", per_day), ("total", total)) if value is not None}
    body = {
        "scopes": scope, "expires_at": expires_at, "billing_account_id": account, "consent": consent or None,
        "budget": budget or None,
    }  # fmt: skip
    print_details(
        ctx.obj, ctx.obj.post("/grants", {name: value for name, value in body.items() if value is not None}), SHOWN
    )


@app.command()
def show(ctx: typer.Context, grant_id: GrantId) -> None:
    """Everything about one grant, and what would stop if it were revoked."""
    found = ctx.obj.get(path_of(grant_id))
    print_details(ctx.obj, found, SHOWN)
    if ctx.obj.output is Output.TABLE:
        stopped = visible(", ".join(found["schedules"]))
        print(f"\nWithout it these schedules do not run: {stopped}" if stopped else "\nNo schedule needs it.")


@app.command()
def revoke(
    ctx: typer.Context,
    grant_id: GrantId,
    cancel_running: Annotated[bool, typer.Option("--cancel-running", help="also stop what runs under it")] = False,
) -> None:
    """Take a grant back: nothing more starts under it. Twice is as once."""
    revoked = ctx.obj.post(f"{path_of(grant_id)}/$revoke", {"cancel_running": cancel_running})
    print_details(ctx.obj, revoked, ("id", "scopes", "revoked_at"))


@app.command()
def forecast(ctx: typer.Context, days: Annotated[int, typer.Option(help="how far to look, up to 366")] = 30) -> None:
    """The schedules whose grant has lapsed, or will within so many days."""
    page = ctx.obj.get("/grants/$forecast", days=days)
    rows = (
        [one["schedule_name"], one["target"], relative_time(one["lapses_at"]), one["reason"]] for one in page["items"]
    )
    print_list(ctx.obj, page, ("schedule", "target", "lapses", "reason"), rows)
    if not page["items"]:
        print_stderr(f"every schedule keeps its grant for {days} days")


def path_of(grant_id: str) -> str:
    return f"/grants/{quote(grant_id, safe='')}"


def state_of(one: dict[str, Any]) -> str:
    if one["revoked_at"]:
        return f"revoked {relative_time(one['revoked_at'])}"
    return f"until {relative_time(one['expires_at'])}" if one["expires_at"] else "good"
