"""Routes of billing: accounts, ledger, receipts, usage, virtual keys."""

import csv
import io
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from rota.access.store import logins
from rota.billing import reports, store
from rota.billing.api import models
from rota.core.errors import Refused
from rota.db.connection import Database
from rota.db.paging import Record
from rota.engine import billing_accounts
from rota.frame.http.auth import Admin, Caller, Operator, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, Timestamp, answer, answer_page, engine_of, time_span
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of

router = APIRouter(prefix="/billing", tags=["billing"], route_class=BodyRoute)

AccountId = Annotated[str | None, Query(description="id of a billing account; admins may use any account of the org")]
Schedule = Annotated[str | None, Query(description="id or name of the schedule")]
MAX_EXPORT_ROWS = 1_000_000  # of a CSV export
CSV_COLUMNS = ("key", "name", "runs", "units", "input_tokens", "output_tokens", "charged_credits", "cost_usd")
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # cells that spreadsheets evaluate


# accounts


@router.get("/account", response_model=models.Account)
async def read_account(request: Request, caller: Viewer, owner_id: str | None = None) -> Response:
    """Return the caller's billing account, which is created on first use; for admins, of any user of the org."""
    if owner_id not in (None, caller.user_id):
        caller.check(Role.ADMIN, "billing")
    account_id = await account_of(request, caller, owner_id or caller.user_id)
    return answer(await engine_of(request).db.read(reports.account, caller.org_id, account_id))


@router.get("/accounts", response_model=page_of(models.Account))
async def list_accounts(request: Request, caller: Admin, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the billing accounts of the org, oldest first."""
    db = reports_of(request, caller)
    return answer_page(await db.read(reports.list_accounts, caller.org_id, limit=limit, cursor=cursor))


@router.post("/accounts/{account_id}/$close", response_model=models.Account)
async def close(request: Request, caller: Admin, account_id: str) -> Response:
    """Close an account: its runs are skipped and top-ups refused. Its ledger is kept. Idempotent."""
    return await change_account(request, caller, account_id, engine_of(request).clock.now())


@router.post("/accounts/{account_id}/$reopen", response_model=models.Account)
async def reopen(request: Request, caller: Admin, account_id: str) -> Response:
    """Reopen a closed account. Idempotent."""
    return await change_account(request, caller, account_id, None)


async def change_account(request: Request, caller: Caller, account_id: str, closed_at: datetime | None) -> Response:
    db = engine_of(request).db
    await db.read(reports.account, caller.org_id, account_id)
    await db.tx(store.close, caller.org_id, account_id, closed_at)
    return answer(await db.read(reports.account, caller.org_id, account_id))


@router.post("/credits", status_code=201, response_model=models.Entry)
async def top_up(request: Request, caller: Admin, body: models.CreditBody) -> Response:
    """Add credits to an account: `{amount_credits, reference, reason?, account_id?}`; 10,000,000 equal one US dollar.
    Idempotent by `reference`, such as an invoice number: a repeat has no effect. In an installation with several orgs
    this needs an instance admin key, which may use an account of any org."""
    engine = engine_of(request)
    if not caller.instance_admin and await engine.db.read(logins.several_orgs):
        raise Refused(
            "in an installation with several orgs, credits need an instance admin key, such as admin.key in the "
            "data directory of the server"
        )
    account_id = body.account_id
    named_org_id = await engine.db.read(store.org_of, account_id) if account_id and caller.instance_admin else None
    org_id = named_org_id or caller.org_id
    account_id = account_id if named_org_id and account_id else await readable_account(request, caller, account_id)
    now = engine.clock.now()
    await engine.db.tx(
        store.credit, org_id, account_id, body.amount_credits, body.reason or "top_up", body.reference, now
    )
    return answer(await engine.db.read(reports.top_up_entry, account_id, body.reference), 201)


# ledger, receipts, usage


@router.get("/ledger", response_model=page_of(models.Entry))
async def list_ledger(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    account_id: AccountId = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """List ledger entries of an account, by default the caller's, newest first; charges have negative amounts."""
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, **time_span(since, until)}
    account_id = await readable_account(request, caller, account_id)
    return answer_page(await reports_of(request, caller).read(reports.list_ledger, account_id, **filters))


@router.get("/receipts", response_model=page_of(models.Receipt))
async def list_receipts(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    account_id: AccountId = None,
    run_id: str | None = None,
    grant_id: str | None = None,
    schedule_id: Schedule = None,
    since: Timestamp = None,
    until: Timestamp = None,
) -> Response:
    """List charge receipts, one per unit of work, newest first. Admins see all of their org, others their account."""
    filters: dict[str, Any] = {
        "limit": limit,
        "cursor": cursor,
        "run_id": run_id,
        "grant_id": grant_id,
        "schedule_id": schedule_id,
        **time_span(since, until),
    }
    account = await readable_account_or_all(request, caller, account_id)
    return answer_page(await reports_of(request, caller).read(reports.list_receipts, caller.org_id, account, **filters))


@router.get("/usage", response_model=page_of(models.Usage))
async def usage(
    request: Request,
    caller: Viewer,
    by: reports.By = "schedule",
    limit: Limit = 50,
    cursor: Cursor = None,
    account_id: AccountId = None,
    since: Timestamp = None,
    until: Timestamp = None,
    format: Literal["json", "csv"] | None = None,
) -> Response:
    """Sum charges by schedule, graph or grant, highest first, or by day in UTC. Admins see all of their org, others
    their account. `format=csv` or `Accept: text/csv` returns all rows as CSV."""
    account = await readable_account_or_all(request, caller, account_id)
    db = reports_of(request, caller)
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, **time_span(since, until)}
    if format == "csv" or (format is None and request.headers.get("accept", "").startswith("text/csv")):
        rows, _ = await db.read(reports.usage, caller.org_id, account, by, **{**filters, "limit": MAX_EXPORT_ROWS})
        name = {"content-disposition": f'attachment; filename="usage-by-{by}.csv"'}
        return Response(csv_text(rows), media_type="text/csv", headers=name)
    return answer_page(await db.read(reports.usage, caller.org_id, account, by, **filters))


def csv_text(rows: list[Record]) -> str:
    file = io.StringIO()
    lines = csv.writer(file)
    lines.writerow(CSV_COLUMNS)
    lines.writerows([escape_formula(row[column]) for column in CSV_COLUMNS] for row in rows)
    return file.getvalue()


def escape_formula(cell: object) -> object:
    """Return a cell that spreadsheets do not evaluate as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_PREFIXES) else cell


# virtual keys


@router.get("/virtual-keys", response_model=page_of(models.VirtualKey))
async def list_keys(
    request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None, account_id: AccountId = None
) -> Response:
    """List the virtual keys of an account: labels of its charges, not secrets."""
    account_id = await readable_account(request, caller, account_id)
    return answer_page(
        await reports_of(request, caller).read(reports.list_keys, account_id, limit=limit, cursor=cursor)
    )


@router.post("/virtual-keys", status_code=201, response_model=models.VirtualKey)
async def add_key(request: Request, caller: Operator, body: models.VirtualKeyBody) -> Response:
    """Create a virtual key `{label, account_id?}`."""
    engine = engine_of(request)
    account_id = await readable_account(request, caller, body.account_id)
    key_id = await engine.db.tx(store.add_key, caller.org_id, account_id, body.label, engine.clock.now())
    return answer(await engine.db.read(reports.key, caller.org_id, key_id), 201)


@router.post("/virtual-keys/{virtual_key_id}/$make-default", response_model=models.VirtualKey)
async def make_default(request: Request, caller: Operator, virtual_key_id: str) -> Response:
    """Make a virtual key the default for new charges of its account."""
    return await change_key(request, caller, virtual_key_id, store.make_default)


@router.post("/virtual-keys/{virtual_key_id}/$deactivate", response_model=models.VirtualKey)
async def deactivate(request: Request, caller: Operator, virtual_key_id: str) -> Response:
    """Deactivate a virtual key (409 for the default key). Idempotent."""
    return await change_key(request, caller, virtual_key_id, store.deactivate)


async def change_key(request: Request, caller: Caller, key_id: str, change: Any) -> Response:
    db = engine_of(request).db
    before = await db.read(reports.key, caller.org_id, key_id)
    await readable_account(request, caller, before["billing_account_id"])
    await db.tx(change, caller.org_id, key_id)
    return answer(await db.read(reports.key, caller.org_id, key_id))


# access to accounts


async def account_of(request: Request, caller: Caller, user_id: str) -> str:
    """Return the account id of a user. Creates it on first use, which is not recorded in the audit log."""
    db: Database = request.app.state.db
    account_id = await db.read(reports.account_of, caller.org_id, user_id)
    if account_id is None:
        account_id = (
            await db.tx(billing_accounts.account_of, caller.org_id, user_id, engine_of(request).clock.now())
        ).id
    return str(account_id)


async def readable_account(request: Request, caller: Caller, account_id: str | None) -> str:
    """Return the requested account id, by default the caller's own. Raises Refused for another one unless admin."""
    own = await account_of(request, caller, caller.user_id)
    if account_id in (None, own):
        return own
    caller.check(Role.ADMIN, "billing")
    return str((await engine_of(request).db.read(reports.account, caller.org_id, account_id))["id"])


async def readable_account_or_all(request: Request, caller: Caller, account_id: str | None) -> str | None:
    """Like `readable_account`, but None (all accounts of the org) for an admin without `account_id`."""
    return (
        None
        if account_id is None and caller.role >= Role.ADMIN
        else await readable_account(request, caller, account_id)
    )
