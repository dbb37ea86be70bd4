"""`rota billing …`"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from rota.access.cli import user_id
from rota.frame.cli.options import Cursor, Limit
from rota.frame.cli.output import print_details, print_list, relative_time
from rota.frame.cli.terminal import output
from rota.frame.cli.times import Since, Until

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Credits: what there is, what moved, and for what.")
keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The names that charges of an account go by.")
app.add_typer(keys, name="key")

Account = Annotated[str | None, typer.Option(help="id of an account of the org (admins); else your own")]
Anyones = Annotated[str | None, typer.Option(help="id of an account; else your own, for admins all of the org")]
AccountId = Annotated[str, typer.Argument(help="id of an account of the org")]
KeyId = Annotated[str, typer.Argument(help="id of the virtual key")]
ACCOUNT = ("id", "owner_name", "owner_id", "balance_credits", "default_virtual_key_id", "created_at", "closed_at")
ENTRY = ("billing_account_id", "amount", "balance_after", "reason", "reference", "created_at")
KEY = ("id", "billing_account_id", "label", "is_default", "active", "created_at")
CREDITS_PER_USD = 10_000_000


@app.command()
def account(
    ctx: typer.Context,
    owner: Annotated[str | None, typer.Option(help="id or e-mail address of a user (admins)")] = None,
) -> None:
    """Your account, or a user's."""
    found = ctx.obj.get("/billing/account", owner_id=user_id(ctx, owner) if owner else None)
    print_details(ctx.obj, found, ACCOUNT)


@app.command()
def accounts(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """All accounts of the org."""
    page = ctx.obj.get("/billing/accounts", limit=limit, cursor=cursor)
    rows = ([one["id"], one["owner_name"], *money(one["balance_credits"])] for one in page["items"])
    print_list(ctx.obj, page, ("id", "owner", "credits", "usd"), rows)


@app.command()
def close(ctx: typer.Context, account_id: AccountId) -> None:
    """Let nothing more begin at an account's expense; its past stays. `reopen` takes it back."""
    print_details(ctx.obj, ctx.obj.post(f"/billing/accounts/{quote(account_id, safe='')}/$close"), ACCOUNT)


@app.command()
def reopen(ctx: typer.Context, account_id: AccountId) -> None:
    """Let a closed account be charged again."""
    print_details(ctx.obj, ctx.obj.post(f"/billing/accounts/{quote(account_id, safe='')}/$reopen"), ACCOUNT)


@app.command()
def ledger(
    ctx: typer.Context, account: Account = None, since: Since = None, until: Until = None, limit: Limit = None,
    cursor: Cursor = None,
) -> None:  # fmt: skip
    """What moved on an account, newest first."""
    given = {"account_id": account, "since": since, "until": until, "limit": limit, "cursor": cursor}
    page = ctx.obj.get("/billing/ledger", **given)
    rows = (
        [
            relative_time(one["created_at"]),
            str(one["amount"]),
            str(one["balance_after"]),
            one["reason"],
            one["reference"],
        ]
        for one in page["items"]
    )
    print_list(ctx.obj, page, ("at", "amount", "after", "reason", "reference"), rows)


@app.command()
def receipts(
    ctx: typer.Context, account: Anyones = None, run: Annotated[str | None, typer.Option(help="id")] = None,
    grant: Annotated[str | None, typer.Option(help="id")] = None,
    schedule: Annotated[str | None, typer.Option(help="name or id")] = None, since: Since = None, until: Until = None,
    limit: Limit = None, cursor: Cursor = None,
) -> None:  # fmt: skip
    """What was charged, a line per unit of work, newest first."""
    page = ctx.obj.get(
        "/billing/receipts", account_id=account, run_id=run, grant_id=grant, schedule_id=schedule, since=since,
        until=until, limit=limit, cursor=cursor,
    )  # fmt: skip
    rows = (
        [relative_time(one["created_at"]), one["target"], f"{one['run_id']} #{one['attempt']}", one["unit"],
         str(one["charged_credits"])]
        for one in page["items"]
    )  # fmt: skip
    print_list(ctx.obj, page, ("at", "target", "run", "unit", "credits"), rows)


@app.command()
def usage(
    ctx: typer.Context, by: Annotated[str, typer.Option(help="schedule, graph, grant or day")] = "schedule",
    account: Anyones = None, since: Since = None, until: Until = None,
    csv: Annotated[bool, typer.Option("--csv", help="all of it, as a file for spreadsheets")] = False,
    limit: Limit = None, cursor: Cursor = None,
) -> None:  # fmt: skip
    """What was charged, summed."""
    given = {"by": by, "account_id": account, "since": since, "until": until, "limit": limit, "cursor": cursor}
    found = ctx.obj.get("/billing/usage", **given, format="csv" if csv else None)
    if csv:
        print(output(found.decode()), end="")
        return
    rows = (
        [one["name"] or one["key"] or "-", str(one["runs"]), str(one["units"]), *money(one["charged_credits"])]
        for one in found["items"]
    )
    print_list(ctx.obj, found, (by, "runs", "units", "credits", "usd"), rows)


@app.command("top-up")
def top_up(
    ctx: typer.Context,
    amount: Annotated[int, typer.Argument(help="credits; 10,000,000 are one US dollar")],
    reference: Annotated[str, typer.Option(help="an invoice, for instance; it counts once")],
    reason: Annotated[str | None, typer.Option(help="else top_up")] = None,
    account: Account = None,
) -> None:
    """Put credits on an account."""
    body = {"amount_credits": amount, "reference": reference, "reason": reason, "account_id": account}
    print_details(ctx.obj, ctx.obj.post("/billing/credits", body), ENTRY)


@keys.command("list")
def list_keys(ctx: typer.Context, account: Account = None, limit: Limit = None, cursor: Cursor = None) -> None:
    """List the virtual keys of an account."""
    page = ctx.obj.get("/billing/virtual-keys", account_id=account, limit=limit, cursor=cursor)
    rows = ([one["id"], one["label"], state_of(one), relative_time(one["created_at"])] for one in page["items"])
    print_list(ctx.obj, page, ("id", "label", "state", "made"), rows)


@keys.command("add")
def add_key(ctx: typer.Context, label: Annotated[str, typer.Argument()], account: Account = None) -> None:
    """Make one more."""
    print_details(ctx.obj, ctx.obj.post("/billing/virtual-keys", {"label": label, "account_id": account}), KEY)


@keys.command("default")
def make_default(ctx: typer.Context, key_id: KeyId) -> None:
    """Let the account be charged by this one."""
    print_details(ctx.obj, ctx.obj.post(f"/billing/virtual-keys/{quote(key_id, safe='')}/$make-default"), KEY)


@keys.command("deactivate")
def deactivate_key(ctx: typer.Context, key_id: KeyId) -> None:
    """Let nothing be charged by it any more."""
    print_details(ctx.obj, ctx.obj.post(f"/billing/virtual-keys/{quote(key_id, safe='')}/$deactivate"), KEY)


def state_of(one: dict[str, Any]) -> str:
    if one["is_default"]:
        return "default"
    return "active" if one["active"] else "inactive"


def money(credits: int) -> tuple[str, str]:
    return str(credits), f"{credits / CREDITS_PER_USD:.4f}"
