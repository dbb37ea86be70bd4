"""`rota billing …`"""

from typing import Annotated

import typer

from rota.access.cli import user_id
from rota.frame.cli.connection import Answer, item_path
from rota.frame.cli.options import Cursor, Limit, command_group
from rota.frame.cli.output import print_details, print_list, relative_time
from rota.frame.cli.terminal import output
from rota.frame.cli.times import Since, Until

app = command_group("Billing accounts: balance, ledger, receipts, usage, top-ups.")
keys = command_group("Virtual keys: labels under which an account is charged.")
app.add_typer(keys, name="key")

Account = Annotated[
    str | None,
    typer.Option(
        help="billing account of the org (admins): its id, or the e-mail address of its owner; default: your own"
    ),
]
AnyAccount = Annotated[
    str | None,
    typer.Option(help="billing account: its id, or the e-mail address of its owner; default: your own, for admins all"),
]
AccountId = Annotated[
    str, typer.Argument(help="billing account of the org: its id, or the e-mail address of its owner")
]
KeyId = Annotated[str, typer.Argument(help="id of the virtual key")]
ACCOUNT = ("id", "owner_name", "owner_id", "balance_credits", "default_virtual_key_id", "created_at", "closed_at")
ENTRY = ("billing_account_id", "amount", "balance_after", "reason", "reference", "created_at")
KEY = ("id", "billing_account_id", "label", "is_default", "active", "created_at")
CREDITS_PER_USD = 10_000_000


@app.command(reads=True)
def account(
    ctx: typer.Context,
    owner: Annotated[str | None, typer.Option(help="id or e-mail address of a user (admins)")] = None,
) -> None:
    """Show your billing account, or a user's."""
    record = ctx.obj.get("/billing/account", owner_id=user_id(ctx, owner) if owner else None)
    print_details(ctx.obj, record, ACCOUNT)


@app.command(reads=True)
def accounts(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the billing accounts of the org."""
    page = ctx.obj.get("/billing/accounts", limit=limit, cursor=cursor)
    rows = ([record["id"], record["owner_name"], *money(record["balance_credits"])] for record in page["items"])
    print_list(ctx.obj, page, ("id", "owner", "credits", "usd"), rows)


@app.command()
def close(ctx: typer.Context, account: AccountId) -> None:
    """Close a billing account: no run is started at its expense. Its ledger is kept; `reopen` reverses this."""
    print_details(ctx.obj, ctx.obj.post(item_path("billing/accounts", account_id(ctx, account), "$close")), ACCOUNT)


@app.command()
def reopen(ctx: typer.Context, account: AccountId) -> None:
    """Reopen a closed billing account."""
    print_details(ctx.obj, ctx.obj.post(item_path("billing/accounts", account_id(ctx, account), "$reopen")), ACCOUNT)


@app.command(reads=True)
def ledger(
    ctx: typer.Context,
    account: Account = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List ledger entries of an account, newest first."""
    filters = {
        "account_id": account_id(ctx, account) if account else None,
        "since": since,
        "until": until,
        "limit": limit,
        "cursor": cursor,
    }
    page = ctx.obj.get("/billing/ledger", **filters)
    rows = (
        [
            relative_time(entry["created_at"]),
            str(entry["amount"]),
            str(entry["balance_after"]),
            entry["reason"],
            entry["reference"],
        ]
        for entry in page["items"]
    )
    print_list(ctx.obj, page, ("time", "amount", "balance", "reason", "reference"), rows)


@app.command(reads=True)
def receipts(
    ctx: typer.Context,
    account: AnyAccount = None,
    run: Annotated[str | None, typer.Option(help="id of the run")] = None,
    grant: Annotated[str | None, typer.Option(help="id of the grant")] = None,
    schedule: Annotated[str | None, typer.Option(help="name or id of the schedule")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """List charge receipts, one per unit of work, newest first."""
    page = ctx.obj.get(
        "/billing/receipts",
        account_id=account_id(ctx, account) if account else None,
        run_id=run,
        grant_id=grant,
        schedule_id=schedule,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    )
    rows = (
        [
            relative_time(receipt["created_at"]),
            receipt["target"],
            f"{receipt['run_id']} #{receipt['attempt']}",
            receipt["unit"],
            str(receipt["charged_credits"]),
        ]
        for receipt in page["items"]
    )
    print_list(ctx.obj, page, ("time", "target", "run", "unit", "credits"), rows)


@app.command(reads=True)
def usage(
    ctx: typer.Context,
    by: Annotated[str, typer.Option(help="group by schedule, graph, grant or day")] = "schedule",
    account: AnyAccount = None,
    since: Since = None,
    until: Until = None,
    csv: Annotated[bool, typer.Option("--csv", help="print all rows as CSV")] = False,
    limit: Limit = None,
    cursor: Cursor = None,
) -> None:
    """Sum charges by schedule, graph, grant or day."""
    filters = {
        "by": by,
        "account_id": account_id(ctx, account) if account else None,
        "since": since,
        "until": until,
        "limit": limit,
        "cursor": cursor,
    }
    page = ctx.obj.get("/billing/usage", **filters, format="csv" if csv else None)
    if csv:
        print(output(page.decode()), end="")
        return
    rows = (
        [row["name"] or row["key"] or "-", str(row["runs"]), str(row["units"]), *money(row["charged_credits"])]
        for row in page["items"]
    )
    print_list(ctx.obj, page, (by, "runs", "units", "credits", "usd"), rows)


@app.command("top-up")
def top_up(
    ctx: typer.Context,
    amount: Annotated[int, typer.Argument(help="credits; 10,000,000 equal one US dollar")],
    reference: Annotated[
        str, typer.Option(help="unique reference, such as an invoice number; a repeated reference has no effect")
    ],
    reason: Annotated[str | None, typer.Option(help="reason; default: top_up")] = None,
    account: Account = None,
) -> None:
    """Add credits to an account."""
    body = {
        "amount_credits": amount,
        "reference": reference,
        "reason": reason,
        "account_id": account_id(ctx, account) if account else None,
    }
    print_details(ctx.obj, ctx.obj.post("/billing/credits", body), ENTRY)


@keys.command("list", reads=True)
def list_keys(ctx: typer.Context, account: Account = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the virtual keys of an account."""
    page = ctx.obj.get(
        "/billing/virtual-keys", account_id=account_id(ctx, account) if account else None, limit=limit, cursor=cursor
    )
    rows = ([key["id"], key["label"], state_of(key), relative_time(key["created_at"])] for key in page["items"])
    print_list(ctx.obj, page, ("id", "label", "state", "created"), rows)


@keys.command("add")
def add_key(
    ctx: typer.Context, label: Annotated[str, typer.Argument(help="label of the key")], account: Account = None
) -> None:
    """Create a virtual key."""
    print_details(
        ctx.obj,
        ctx.obj.post(
            "/billing/virtual-keys", {"label": label, "account_id": account_id(ctx, account) if account else None}
        ),
        KEY,
    )


@keys.command("default")
def make_default(ctx: typer.Context, key_id: KeyId) -> None:
    """Make a virtual key the default of its account."""
    print_details(ctx.obj, ctx.obj.post(item_path("billing/virtual-keys", key_id, "$make-default")), KEY)


@keys.command("deactivate")
def deactivate_key(ctx: typer.Context, key_id: KeyId) -> None:
    """Deactivate a virtual key. The default key cannot be deactivated."""
    print_details(ctx.obj, ctx.obj.post(item_path("billing/virtual-keys", key_id, "$deactivate")), KEY)


def account_id(ctx: typer.Context, account: str) -> str:
    """Return the id of a billing account by the e-mail address of its owner; an id as it is."""
    return str(ctx.obj.get("/billing/account", owner_id=user_id(ctx, account))["id"]) if "@" in account else account


def state_of(key: Answer) -> str:
    if key["is_default"]:
        return "default"
    return "active" if key["active"] else "inactive"


def money(credits: int) -> tuple[str, str]:
    return str(credits), f"{credits / CREDITS_PER_USD:.4f}"
