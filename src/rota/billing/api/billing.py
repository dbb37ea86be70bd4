"""Billing: accounts in credits, their ledgers, what was charged for what, and by which key."""

import csv
import io
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from rota.access.store import logins
from rota.billing import reports, store
from rota.core import parse
from rota.core.errors import Refused
from rota.db.connection import Database
from rota.engine import billing_accounts
from rota.engine.billing_accounts import MAX_CREDITS
from rota.frame.http.auth import Admin, Caller, Operator, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, Moment, answer, answer_page, engine_of, read_body, time_span

router = APIRouter(prefix="/billing", tags=["billing"])

AccountId = Annotated[str | None, Query(description="an admin may name any account of the org")]
Schedule = Annotated[str | None, Query(description="id or name")]
WHOLE = 1_000_000  # lines of an export
COLUMNS = ("key", "name", "runs", "units", "input_tokens", "output_tokens", "charged_credits", "cost_usd")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets take for a command


# accounts


@router.get("/account")
async def read_account(request: Request, caller: Viewer, owner_id: str | None = None) -> Response:
    """The caller's own account, made when it is first asked for. Admins may ask for that of any user of their org."""
    if owner_id not in (None, caller.user_id):
        caller.check(Role.ADMIN, "billing")
    account_id = await account_of(request, caller, owner_id or caller.user_id)
    return answer(await engine_of(request).db.read(reports.account, caller.org_id, account_id))


@router.get("/accounts")
async def list_accounts(request: Request, caller: Admin, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """All accounts of the org, oldest first."""
    db = engine_of(request).db
    return answer_page(await db.read(reports.list_accounts, caller.org_id, limit=limit, cursor=cursor))


@router.post("/accounts/{account_id}/$close")
async def close(request: Request, caller: Admin, account_id: str) -> Response:
    """Nothing more begins at its expense: runs are skipped, top-ups refused. What is in its books stays to be read."""
    return await change_account(request, caller, account_id, engine_of(request).clock.now())


@router.post("/accounts/{account_id}/$reopen")
async def reopen(request: Request, caller: Admin, account_id: str) -> Response:
    """Let it be charged again."""
    return await change_account(request, caller, account_id, None)


async def change_account(request: Request, caller: Caller, account_id: str, closed_at: datetime | None) -> Response:
    db = engine_of(request).db
    await db.read(reports.account, caller.org_id, account_id)
    await db.tx(store.close, caller.org_id, account_id, closed_at)
    return answer(await db.read(reports.account, caller.org_id, account_id))


@router.post("/credits", status_code=201)
async def top_up(request: Request, caller: Admin) -> Response:
    """Put credits on an account: `{amount_credits, reference, reason?, account_id?}`; 10,000,000 are one US dollar. The
    reference, an invoice's number for instance, counts once for each account: a repeat changes nothing. Where there are
    several orgs it needs the first key of the installation, which may name an account of any org."""
    engine = engine_of(request)
    form = parse.Form(await read_body(request), frozenset({"amount_credits", "reason", "reference", "account_id"}))
    amount = form.need("amount_credits", lambda value, field: parse.whole(value, field, 1, MAX_CREDITS)) or 0
    reason = form.take("reason", lambda value, field: parse.text(value, field, 40, required=True), None) or "top_up"
    reference = form.need("reference", parse.label) or ""
    account_id = form.take("account_id", parse.ulid, None)
    form.done()
    if not caller.instance_admin and await engine.db.read(logins.several_orgs):
        raise Refused(
            "where there are several orgs, credits need the key of the installation: admin.key in its data directory"
        )
    named = await engine.db.read(store.org_of, account_id) if account_id and caller.instance_admin else None
    org_id = named or caller.org_id
    account_id = account_id if named and account_id else await seen(request, caller, account_id)
    now = engine.clock.now()
    await engine.db.tx(store.credit, org_id, account_id, amount, reason, reference, now)
    return answer(await engine.db.read(reports.credited, account_id, reference), 201)


# what moved, and for what


@router.get("/ledger")
async def list_ledger(
    request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None, account_id: AccountId = None,
    since: Moment = None, until: Moment = None,
) -> Response:  # fmt: skip
    """What moved on an account, by default the caller's own, newest first: top-ups, and charges below zero."""
    given: dict[str, Any] = {"limit": limit, "cursor": cursor, **time_span(since, until)}
    account_id = await seen(request, caller, account_id)
    return answer_page(await engine_of(request).db.read(reports.list_ledger, account_id, **given))


@router.get("/receipts")
async def list_receipts(
    request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None, account_id: AccountId = None,
    run_id: str | None = None, grant_id: str | None = None, schedule_id: Schedule = None, since: Moment = None,
    until: Moment = None,
) -> Response:  # fmt: skip
    """What was charged, a line per unit of work, newest first. Admins see all of their org, others their account."""
    given: dict[str, Any] = {
        "limit": limit, "cursor": cursor, "run_id": run_id, "grant_id": grant_id, "schedule_id": schedule_id,
        **time_span(since, until),
    }  # fmt: skip
    chosen = await seen_by_admin(request, caller, account_id)
    return answer_page(await engine_of(request).db.read(reports.list_receipts, caller.org_id, chosen, **given))


@router.get("/usage")
async def usage(
    request: Request, caller: Viewer, by: reports.By = "schedule", limit: Limit = 50, cursor: Cursor = None,
    account_id: AccountId = None, since: Moment = None, until: Moment = None,
    format: Literal["json", "csv"] | None = None,
) -> Response:  # fmt: skip
    """What was charged, summed by schedule, graph or grant, the dearest first, or by day in UTC. Admins see all of
    their org, others their account. `format=csv`, or `Accept: text/csv`, gives all of it as a file."""
    chosen = await seen_by_admin(request, caller, account_id)
    db = engine_of(request).db
    given: dict[str, Any] = {"limit": limit, "cursor": cursor, **time_span(since, until)}
    if format == "csv" or (format is None and request.headers.get("accept", "").startswith("text/csv")):
        rows, _ = await db.read(reports.usage, caller.org_id, chosen, by, **{**given, "limit": WHOLE})
        name = {"content-disposition": f'attachment; filename="usage-by-{by}.csv"'}
        return Response(csv_text(rows), media_type="text/csv", headers=name)
    return answer_page(await db.read(reports.usage, caller.org_id, chosen, by, **given))


def csv_text(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    lines = csv.writer(file)
    lines.writerow(COLUMNS)
    lines.writerows([harmless(row[column]) for column in COLUMNS] for row in rows)
    return file.getvalue()


def harmless(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


# virtual keys


@router.get("/virtual-keys")
async def list_keys(
    request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None, account_id: AccountId = None
) -> Response:
    """The names that charges of an account go by; there is no secret in them."""
    account_id = await seen(request, caller, account_id)
    return answer_page(await engine_of(request).db.read(reports.list_keys, account_id, limit=limit, cursor=cursor))


@router.post("/virtual-keys", status_code=201)
async def add_key(request: Request, caller: Operator) -> Response:
    """One more for an account: `{label, account_id?}`."""
    engine = engine_of(request)
    form = parse.Form(await read_body(request), frozenset({"label", "account_id"}))
    label, account_id = form.need("label", parse.label) or "", form.take("account_id", parse.ulid, None)
    form.done()
    account_id = await seen(request, caller, account_id)
    key_id = await engine.db.tx(store.add_key, caller.org_id, account_id, label, engine.clock.now())
    return answer(await engine.db.read(reports.key, caller.org_id, key_id), 201)


@router.post("/virtual-keys/{virtual_key_id}/$make-default")
async def make_default(request: Request, caller: Operator, virtual_key_id: str) -> Response:
    """From now on the account is charged by this key."""
    return await change_key(request, caller, virtual_key_id, store.make_default)


@router.post("/virtual-keys/{virtual_key_id}/$deactivate")
async def deactivate(request: Request, caller: Operator, virtual_key_id: str) -> Response:
    """Let nothing be charged by a key any more. Not the default one: make another the default first."""
    return await change_key(request, caller, virtual_key_id, store.deactivate)


async def change_key(request: Request, caller: Caller, key_id: str, change: Any) -> Response:
    db = engine_of(request).db
    before = await db.read(reports.key, caller.org_id, key_id)
    await seen(request, caller, before["billing_account_id"])
    await db.tx(change, caller.org_id, key_id)
    return answer(await db.read(reports.key, caller.org_id, key_id))


# whose


async def account_of(request: Request, caller: Caller, user_id: str) -> str:
    """The account of a user. That it is made when it is first needed is no act of the caller's: it is not audited."""
    db: Database = request.app.state.db
    found = await db.read(reports.account_of, caller.org_id, user_id)
    if found is None:
        found = (await db.tx(billing_accounts.account_of, caller.org_id, user_id, engine_of(request).clock.now())).id
    return str(found)


async def seen(request: Request, caller: Caller, account_id: str | None) -> str:
    """The account that is asked for, by default the caller's own; only admins see others of their org."""
    own = await account_of(request, caller, caller.user_id)
    if account_id in (None, own):
        return own
    caller.check(Role.ADMIN, "billing")
    return str((await engine_of(request).db.read(reports.account, caller.org_id, account_id))["id"])


async def seen_by_admin(request: Request, caller: Caller, account_id: str | None) -> str | None:
    """The same, but admins who name none see all of their org."""
    return None if account_id is None and caller.role >= Role.ADMIN else await seen(request, caller, account_id)
