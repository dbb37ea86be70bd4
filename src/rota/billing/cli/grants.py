"""`rota grant …`"""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, Exit, fail, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import print_details, print_list, relative_time
from rota.frame.cli.terminal import visible
from rota.frame.cli.times import future_option

app = command_group("Grants: the authority under which unattended work runs.")

GrantId = Annotated[
    str,
    typer.Argument(
        help="id of the grant, or name of a schedule that runs under it", autocompletion=complete("schedules")
    ),
]
SHOWN = (
    "id", "scopes", "owner_id", "billing_account_id", "schedule_id", "budget", "spent", "expires_at", "revoked_at",
    "created_at",
)  # fmt: skip


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List grants, newest first."""
    page = ctx.obj.get("/grants", limit=limit, cursor=cursor)
    rows = ([grant["id"], ", ".join(grant["scopes"]), state_of(grant), str(grant["spent"])] for grant in page["items"])
    print_list(ctx.obj, page, ("id", "scopes", "state", "spent"), rows)


@app.command()
def create(
    ctx: typer.Context,
    scope: Annotated[list[str], typer.Option(help="scope, such as graph:execute:langgraph:poet; repeatable")],
    expires_at: Annotated[
        str | None, future_option("--expires", help="expiry: 30d (from now), 2027-01-01, …; default: never")
    ] = None,
    per_day: Annotated[int | None, typer.Option("--budget-per-day", help="maximum credits per day")] = None,
    total: Annotated[int | None, typer.Option("--budget-total", help="maximum credits in total")] = None,
    account: Annotated[str | None, typer.Option(help="id of the billing account; default: your own")] = None,
    consent: Annotated[
        bool, typer.Option("--consent", help="consent to a wildcard scope, such as graph:execute:*")
    ] = False,
) -> None:
    """Create a grant. Use its id in `rota schedule add --grant`."""
    budget = {name: value for name, value in (("per_day", per_day), ("total", total)) if value is not None}
    body = {
        "scopes": scope,
        "expires_at": expires_at,
        "billing_account_id": account,
        "consent": consent or None,
        "budget": budget or None,
    }
    print_details(
        ctx.obj, ctx.obj.post("/grants", {name: value for name, value in body.items() if value is not None}), SHOWN
    )


@app.command(reads=True)
def show(ctx: typer.Context, grant_id: GrantId) -> None:
    """Show a grant and the schedules that depend on it."""
    grant = ctx.obj.get(path_of(ctx, grant_id))
    print_details(ctx.obj, grant, SHOWN)
    if ctx.obj.for_people:
        stopped = visible(", ".join(grant["schedules"]))
        print(f"\nSchedules that stop if it is revoked: {stopped}" if stopped else "\nNo schedule depends on it.")


@app.command()
def revoke(
    ctx: typer.Context,
    grant_id: GrantId,
    cancel_running: Annotated[
        bool, typer.Option("--cancel-running", help="cancel running jobs of the grant, too")
    ] = False,
) -> None:
    """Revoke a grant: no run is started under it. Idempotent."""
    revoked = ctx.obj.post(f"{path_of(ctx, grant_id)}/$revoke", {"cancel_running": cancel_running})
    print_details(ctx.obj, revoked, ("id", "scopes", "revoked_at"))


@app.command(reads=True)
def forecast(
    ctx: typer.Context,
    days: Annotated[int, typer.Option(help="number of days, up to 366")] = 30,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List schedules whose grant has lapsed, or lapses within the given days."""
    page = ctx.obj.get("/grants/$forecast", days=days, limit=limit, cursor=cursor)
    rows = (
        [lapse["schedule_name"], lapse["target"], relative_time(lapse["lapses_at"]), lapse["reason"]]
        for lapse in page["items"]
    )
    print_list(ctx.obj, page, ("schedule", "target", "lapses", "reason"), rows)
    if not page["items"]:
        print_stderr(f"no grant of a schedule lapses within {days} days")


def path_of(ctx: typer.Context, grant: str) -> str:
    """Return the API path of a grant. Exits with NOT_FOUND if it is the name of a schedule without a grant."""
    from rota.core.parse import ULID  # here: it loads what `rota --help` does not need

    if ULID.fullmatch(grant):
        return item_path("grants", grant)
    grant_id = ctx.obj.get(item_path("schedules", grant))["grant_id"]
    if grant_id is None:
        fail(f"schedule {grant!r} runs under no grant", Exit.NOT_FOUND)
    return item_path("grants", grant_id)


def state_of(grant: Answer) -> str:
    if grant["revoked_at"]:
        return f"revoked {relative_time(grant['revoked_at'])}"
    return f"until {relative_time(grant['expires_at'])}" if grant["expires_at"] else "valid"
