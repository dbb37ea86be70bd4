"""What scopes look like, what they cover, and credits that are neither lost nor charged twice."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import func, select

import rota.app.application  # noqa: F401  # registers the kinds, with the forms of their scopes
from rota.access.store import accounts
from rota.billing import store as billing_store
from rota.billing.store import Charge, Usage
from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.db.connection import Database
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.tables import charge_receipts, credit_ledger
from rota.engine import billing_accounts, grants, orgs

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
CENT = Usage("call-1", "small", 10, 20, Decimal("0.01"))


@pytest.mark.parametrize(
    "scope",
    [
        "graph:execute:langgraph:poet",
        "graph:execute:langgraph:*",
        "graph:execute:python:a/b:c",
        "task:execute:billing.sum",
        "task:execute:two words",
        "pipeline:run:sales/gold/report",
        "host_job:dispatch:shell",
        "workflow:run:inbox-to-sheet",
    ],
)
def test_a_scope_that_names_something_is_taken(scope: str) -> None:
    assert grants.parse_scopes([scope], consent=False) == [scope]


@pytest.mark.parametrize(
    "scope",
    [
        "", "*", "graph", "graph:execute", "graph:execute:", "graph:execute:poet", "graph:execute::poet",
        "graph:execute:langgraph:", "graph:execute:*:poet", "graph:execute:lang*:poet", "graph:run:langgraph:poet",
        "pipeline:run:sales", "pipeline:run:Sales/gold/x", "task:execute:", "task:execute:a*", "email:send:all", 7,
        None, "graph:execute:langgraph:" + "x" * 300,
    ],
)  # fmt: skip
def test_a_malformed_scope_is_refused(scope: Any) -> None:
    with pytest.raises(Invalid, match="scopes"):
        grants.parse_scopes([scope], consent=True)


def test_everything_of_a_kind_needs_consent() -> None:
    with pytest.raises(Invalid, match="consent"):
        grants.parse_scopes(["graph:execute:*"], consent=False)
    assert grants.parse_scopes(["graph:execute:*"], consent=True) == ["graph:execute:*"]


@pytest.mark.parametrize(
    ("scopes", "kind", "target", "allowed"),
    [
        (["graph:execute:langgraph:poet"], "graph", "langgraph:poet", True),
        (["graph:execute:langgraph:poet"], "graph", "langgraph:poets", False),
        (["graph:execute:langgraph:*"], "graph", "langgraph:poet", True),
        (["graph:execute:langgraph:*"], "graph", "langgraph2:poet", False),
        (["graph:execute:a:*"], "graph", "a:b:c", True),  # the provider ends at the first colon
        (["graph:execute:a:b:*"], "graph", "a:b:c", False),
        (["graph:execute:*"], "graph", "python:any", True),
        (["graph:execute:*"], "task", "python:any", False),
        (["task:execute:sum"], "task", "sum", True),
        (["task:execute:*"], "task", "sum", True),
        ([], "task", "sum", False),
    ],
)
def test_what_a_scope_covers(scopes: list[str], kind: str, target: str, allowed: bool) -> None:
    assert grants.covers(scopes, kind, [target]) is allowed


async def test_grant_errors_are_reported_in_one_order(db: Database) -> None:
    org, user = await db.tx(settled)

    def step(tx: Tx) -> list[str | None]:
        held = grants.mint(tx, org, user, ["task:execute:a"], NOW, expires_at=NOW + timedelta(hours=1))
        later, other = NOW + timedelta(hours=1), accounts.create_org(tx, "Other", "other", NOW)[0]
        reasons = [
            grants.trouble(tx, org, held, "task", ["a"], NOW),
            grants.trouble(tx, org, held, "task", ["b"], NOW),
            grants.trouble(tx, org, held, "task", ["b"], later),
            grants.trouble(tx, other, held, "task", ["a"], NOW),
            grants.trouble(tx, org, new_id(), "task", ["a"], NOW),
        ]
        grants.revoke(tx, org, held, NOW)
        grants.revoke(tx, org, held, later)
        assert grants.get(tx, org, held).revoked_at == NOW
        return [*reasons, grants.trouble(tx, org, held, "task", ["b"], later)]

    assert await db.tx(step) == [
        None,
        "grant_scope",
        "grant_expired",
        "grant_not_found",
        "grant_not_found",
        "grant_revoked",
    ]


async def test_a_unit_is_charged_once_however_often_it_is_reported(db: Database) -> None:
    org, user = await db.tx(settled)
    account = await db.tx(billing_accounts.account_of, org, user, NOW)
    unit_charge = Charge(org, account.id, None, None, "python:poet", new_id(), 1)
    for _ in range(3):
        await db.tx(billing_store.charge, unit_charge, CENT, Decimal(2), NOW)
    await db.tx(billing_store.charge, unit_charge, Usage("call-2", cost_usd=Decimal("0.00000001")), Decimal(2), NOW)

    def look(tx: Tx) -> tuple[int, int, int]:
        receipts = tx.execute(select(func.count()).select_from(charge_receipts)).scalar_one()
        return (
            receipts,
            billing_accounts.get(tx, org, account.id).balance_credits,
            billing_store.balance_of_ledger(tx, account.id),
        )

    assert await db.read(look) == (2, -200_001, -200_001)  # a cent is 100,000 credits, doubled; the rest is rounded up


class Died(Exception):
    """The process ends here."""


async def test_a_charge_that_is_cut_off_before_any_statement_is_charged_once_by_its_repetition(db: Database) -> None:
    org, user = await db.tx(settled)
    account = await db.tx(billing_accounts.account_of, org, user, NOW)
    grant = await db.tx(grants.mint, org, user, ["graph:execute:python:poet"], NOW)
    left = 0  # statements until the end

    def reached(text: str) -> None:
        nonlocal left
        left -= text not in ("BEGIN IMMEDIATE", "COMMIT")
        if left < 0:
            raise Died

    def look(tx: Tx) -> tuple[object, ...]:
        receipts = tx.execute(select(func.count()).select_from(charge_receipts)).scalar_one()
        balance = billing_accounts.get(tx, org, account.id).balance_credits
        return (
            receipts,
            balance,
            billing_store.balance_of_ledger(tx, account.id),
            grants.get(tx, org, grant).spent_total,
        )

    for statements in range(20):
        unit_charge = Charge(org, account.id, grant, None, "python:poet", new_id(), 1)
        before, left = await db.read(look), statements
        try:
            with at_each_statement(reached):
                await db.tx(billing_store.charge, unit_charge, CENT, Decimal(2), NOW)
        except Died:
            assert await db.read(look) == before
        for _ in range(2):
            await db.tx(billing_store.charge, unit_charge, CENT, Decimal(2), NOW)
        charged = 200_000 * (statements + 1)
        assert await db.read(look) == (statements + 1, -charged, -charged, charged)
        if left >= 0:
            break
    assert statements == (2 if db.survives_partition else 6)


async def test_no_credit_is_lost_when_many_charge_at_once(db: Database) -> None:
    org, user = await db.tx(settled)
    account = await db.tx(billing_accounts.account_of, org, user, NOW)
    grant = await db.tx(grants.mint, org, user, ["graph:execute:python:poet"], NOW, budget={"total": 1_000_000})
    await db.tx(billing_store.credit, org, account.id, 50_000_000, "top_up", "first", NOW)
    charges = [Charge(org, account.id, grant, None, "python:poet", new_id(), 1) for _ in range(40)]
    results = await asyncio.gather(
        *(db.tx(billing_store.charge, unit_charge, CENT, Decimal(2), NOW) for unit_charge in charges)
    )
    assert results.count(None) == 4  # five use the budget up, and the fifth is refused

    def look(tx: Tx) -> tuple[int, int, list[int]]:
        after = tx.execute(select(credit_ledger.c.balance_after).order_by(credit_ledger.c.id)).scalars()
        return (
            billing_accounts.get(tx, org, account.id).balance_credits,
            grants.get(tx, org, grant).spent_total,
            list(after),
        )

    balance, spent, steps = await db.read(look)
    assert (balance, spent) == (42_000_000, 8_000_000)
    assert sorted(steps, reverse=True) == [50_000_000 - 200_000 * n for n in range(41)]


async def test_a_daily_budget_is_reset_the_next_day(db: Database) -> None:
    org, user = await db.tx(settled)
    account = await db.tx(billing_accounts.account_of, org, user, NOW)
    grant = await db.tx(grants.mint, org, user, ["graph:execute:python:poet"], NOW, budget={"per_day": 200_000})
    unit_charge = Charge(org, account.id, grant, None, "python:poet", new_id(), 1)
    assert await db.tx(billing_store.charge, unit_charge, CENT, Decimal(2), NOW) == "per_day"
    assert await db.read(grants.used_up, grant, NOW + timedelta(days=1)) is None


async def test_a_top_up_counts_once(db: Database) -> None:
    org, user = await db.tx(settled)
    account = await db.tx(billing_accounts.account_of, org, user, NOW)
    for _ in range(2):
        await db.tx(billing_store.credit, org, account.id, 500, "top_up", "invoice-7", NOW)
    assert (await db.read(billing_accounts.get, org, account.id)).balance_credits == 500
    with pytest.raises(Conflict, match="invoice-7"):
        await db.tx(billing_store.credit, org, account.id, 501, "top_up", "invoice-7", NOW)
    for wrong in (0, -1, 2**53 + 1):
        with pytest.raises(Invalid):
            await db.tx(billing_store.credit, org, account.id, wrong, "top_up", "x", NOW)
    with pytest.raises(NotFound):
        await db.tx(billing_store.credit, new_id(), account.id, 1, "top_up", "x", NOW)


def settled(tx: Tx) -> tuple[str, str]:
    org, _ = accounts.ensure_default_org(tx, NOW)
    return org, orgs.system_user(tx, org, NOW)
