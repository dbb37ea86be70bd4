"""Billing over HTTP: whose account, what moved, what was charged for what, and sums that can be taken along."""

import asyncio
import csv
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from rota.access.store import accounts
from rota.billing import store as billing_store
from rota.billing.store import Charge, Usage
from rota.core.ids import new_id
from tests.app.harness import NINE, Api

DAY = timedelta(days=1)
CENT = Decimal("0.01")  # costs 200,000 credits
PRICE = 200_000


async def charge(api: Api, account_id: str, *, cost: Decimal = CENT, **overrides: Any) -> str:
    """A unit of a new run is charged, as a graph would have it; returns the run's id."""
    fields = {
        "grant_id": None,
        "schedule_id": None,
        "target": "python:poet",
        "run_id": new_id(),
        "attempt": 1,
        **overrides,
    }
    unit = Usage("call-1", "small", 10, 20, cost)
    await api.db.tx(billing_store.charge, Charge(api.org_id, account_id, **fields), unit, Decimal(2), api.clock.now())
    return str(fields["run_id"])


async def new_user(api: Api, name: str, role: str = "viewer") -> tuple[str, dict[str, str]]:
    """The id of a new user, and headers to call as them."""
    user = await api.db.tx(accounts.create_user, api.org_id, f"{name}@example.org", name, "x", role, NINE)
    key = await api.db.tx(accounts.create_key, api.org_id, name, role, NINE, user_id=user)
    return user, {"authorization": f"Bearer {key}"}


async def top_up(api: Api, amount: Any, reference: Any, **more: Any) -> Any:
    return await api.call("POST", "/billing/credits", {"amount_credits": amount, "reference": reference, **more})


async def test_an_account_is_there_when_it_is_first_asked_for(api: Api) -> None:
    own = await api.get("/billing/account")
    assert (own["balance_credits"], own["owner_name"], own["closed_at"]) == (0, "system", None)
    assert await api.get("/billing/account") == own
    ada, headers = await new_user(api, "ada")
    hers = (await api.call("GET", "/billing/account", headers=headers)).json()
    assert (hers["owner_id"], await api.get("/billing/account", owner_id=ada)) == (ada, hers)
    assert [account["id"] for account in (await api.get("/billing/accounts"))["items"]] == [own["id"], hers["id"]]
    assert (await api.call("GET", f"/billing/account?owner_id={new_id()}")).status_code == 404
    assert await api.count("audit_log") == 0  # reads are not logged


async def test_a_top_up_is_in_the_balance_the_ledger_and_the_audit_log_once(api: Api) -> None:
    first = await top_up(api, 500, "invoice 7")
    assert (first.status_code, first.json()["balance_after"], first.json()["reason"]) == (201, 500, "top_up")
    again = await top_up(api, 500, "invoice 7")
    assert (again.status_code, again.json()) == (201, first.json())
    for other in (await top_up(api, 501, "invoice 7"), await top_up(api, 500, "invoice 7", reason="gift")):
        assert (other.status_code, "invoice 7" in other.json()["detail"]) == (409, True)
    assert (await api.get("/billing/account"))["balance_credits"] == 500
    (entry,) = (await api.get("/billing/ledger"))["items"]
    assert entry == first.json()
    (line,) = (await api.get("/audit"))["items"]
    assert (line["action"], line["resource_id"]) == ("billing.create", entry["id"])
    assert (line["after"]["amount"], line["after"]["reference"]) == (500, "invoice 7")


@pytest.mark.parametrize("amount", [0, -1, 2**53 + 1, 2**64, 10**30, True, 1.5, 1e3, "5", None, [], {"n": 1}])
async def test_an_amount_that_is_no_number_of_credits_is_refused_by_name(api: Api, amount: Any) -> None:
    refused = await top_up(api, amount, "x")
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["amount_credits"]
    assert await api.count("credit_ledger") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("reference", ""), ("reference", "x" * 201), ("reference", 7), ("reason", "x" * 41), ("reason", "charge"),
     ("account_id", "mine"), ("account_id", 7), ("credits", 5)],
)  # fmt: skip
async def test_a_wrong_field_of_a_top_up_is_named(api: Api, field: str, value: Any) -> None:
    refused = await top_up(api, 5, **{"reference": "x", field: value})
    assert refused.status_code == 422, refused.text
    assert [error["field"] for error in refused.json()["errors"]] == [field]


async def test_no_top_up_takes_a_balance_beyond_what_json_carries(api: Api) -> None:
    assert (await top_up(api, 2**53, "most")).status_code == 201
    refused = await top_up(api, 1, "more")
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "amount_credits")
    assert (await api.get("/billing/account"))["balance_credits"] == 2**53


async def test_no_credit_is_lost_when_many_top_up_and_charge_at_once(api: Api) -> None:
    account = (await api.get("/billing/account"))["id"]
    same = [top_up(api, 7, "the same") for _ in range(10)]
    answers, *_ = await asyncio.gather(
        asyncio.gather(*same, *(top_up(api, 1_000_000 + n, f"invoice {n}") for n in range(50))),
        *(charge(api, account) for _ in range(50)),
    )
    assert {answer.status_code for answer in answers} == {201}
    expected = 7 + 50 * 1_000_000 + sum(range(50)) - 50 * PRICE
    assert (await api.get("/billing/account"))["balance_credits"] == expected
    ledger = (await api.get("/billing/ledger", limit=200))["items"]
    assert (len(ledger), sum(entry["amount"] for entry in ledger)) == (101, expected)
    before = 0
    for entry in sorted(ledger, key=lambda entry: str(entry["id"])):
        before += entry["amount"]
        assert entry["balance_after"] == before  # each line follows the one before it


async def test_a_closed_account_pays_for_nothing_until_it_is_opened_again(api: Api) -> None:
    account = (await api.get("/billing/account"))["id"]
    assert (await top_up(api, 500, "before")).status_code == 201
    held = (await api.call("POST", "/grants", {"scopes": ["task:execute:hello"]})).json()
    close, reopen = f"/billing/accounts/{account}/$close", f"/billing/accounts/{account}/$reopen"
    closed = (await api.call("POST", close)).json()
    assert (closed["closed_at"], closed["balance_credits"]) == (NINE.isoformat(), 500)
    await api.clock.advance(DAY)
    assert (await api.call("POST", close)).json() == closed  # idempotent
    weekly = {"kind": "graph", "target": "python:echo", "cron_expression": "0 9 * * 1"}
    for path, body in (
        ("/billing/credits", {"amount_credits": 1, "reference": "after"}), ("/grants", {"scopes": held["scopes"]}),
        ("/grants", {"scopes": held["scopes"], "billing_account_id": account}), ("/schedules", weekly),
        ("/graphs/python:echo/$run", {}), ("/billing/virtual-keys", {"label": "x"}),
    ):  # fmt: skip
        refused = await api.call("POST", path, body)
        assert (refused.status_code, "it is closed" in refused.text) == (409, True), refused.text
    assert await api.count("grants") == 1
    assert len((await api.get("/billing/ledger"))["items"]) == 1  # its past stays to be read
    assert (await api.call("POST", reopen)).json()["closed_at"] is None
    assert (await api.call("POST", "/schedules", weekly)).status_code == 201
    lines = [entry for entry in (await api.get("/audit"))["items"] if entry["resource_id"] == account]
    assert [line["action"] for line in lines] == ["billing.reopen", "billing.close", "billing.close"]
    assert lines[-1]["after"] == {"closed_at": NINE.isoformat(), "result": account}
    assert (await api.call("POST", f"/billing/accounts/{new_id()}/$close")).status_code == 404


async def test_each_sees_their_own_account_and_admins_all_of_their_org(api: Api) -> None:
    ada, hers = await new_user(api, "ada", "operator")
    account = (await api.get("/billing/account", owner_id=ada))["id"]
    own = (await api.get("/billing/account"))["id"]
    run, other = await charge(api, account), await charge(api, own)
    assert (await top_up(api, 9, "x", account_id=account)).json()["billing_account_id"] == account
    for path, expected, all_of_it in (("receipts", [run], [other, run]), ("ledger", [9, -PRICE], [-PRICE])):
        seen = [
            [row["run_id"] if path == "receipts" else row["amount"] for row in page["items"]]
            for page in (
                (await api.call("GET", f"/billing/{path}", headers=hers)).json(),
                await api.get(f"/billing/{path}", account_id=account),
                await api.get(f"/billing/{path}"),
            )
        ]
        assert seen == [expected, expected, all_of_it]
    refused = await api.call("GET", f"/billing/receipts?account_id={own}", headers=hers)
    assert refused.status_code == 403
    assert (await api.call("GET", "/billing/usage", headers=hers)).json()["items"][0]["charged_credits"] == PRICE
    assert (await api.get("/billing/usage"))["items"][0]["charged_credits"] == 2 * PRICE
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()["admin_key"]
    for path in (f"ledger?account_id={account}", f"usage?account_id={account}", f"account?owner_id={ada}"):
        headers = {"authorization": f"Bearer {theirs}"}
        assert (await api.call("GET", f"/billing/{path}", headers=headers)).status_code == 404
    stolen = {"amount_credits": 5, "reference": "x", "account_id": account}
    assert (await api.call("POST", "/billing/credits", stolen, headers=headers)).status_code == 403


async def test_receipts_are_found_by_what_they_are_for_page_by_page(api: Api) -> None:
    account = (await api.get("/billing/account"))["id"]
    nightly = (await api.schedule("nightly"))["id"]
    grant = (await api.call("POST", "/grants", {"scopes": ["task:execute:hello"]})).json()["id"]
    runs = []
    for _ in range(3):
        runs.append(await charge(api, account, schedule_id=nightly, grant_id=grant))
        await api.clock.advance(DAY)
    runs += [await charge(api, account) for _ in range(2)]  # two with the same timestamp
    whole = (await api.get("/billing/receipts"))["items"]
    assert [receipt["run_id"] for receipt in whole] == runs[::-1]
    newest = whole[0]
    assert (newest["cost_usd"], newest["charged_credits"], newest["unit"]) == ("0.01", PRICE, "call-1")
    assert (newest["source_system"], newest["source_reference"]) == ("rota", f"{runs[4]}/1/call-1")
    paged: list[Any] = []
    cursor = None
    for _ in range(3):
        page = await api.get("/billing/receipts", limit=2, **({"cursor": cursor} if cursor else {}))
        paged, cursor = paged + page["items"], page["next_cursor"]
    assert (paged, cursor) == (whole, None)
    second = (NINE + DAY).isoformat()
    for wanted, expected in (
        ({"run_id": runs[1]}, [runs[1]]),
        ({"schedule_id": "nightly"}, runs[2::-1]),
        ({"schedule_id": nightly, "since": second}, runs[2:0:-1]),
        ({"grant_id": grant, "until": second}, runs[:1]),
        ({"grant_id": new_id()}, []),
    ):
        assert [receipt["run_id"] for receipt in (await api.get("/billing/receipts", **wanted))["items"]] == expected
    ledger = await api.get("/billing/ledger", limit=4)
    rest = await api.get("/billing/ledger", cursor=ledger["next_cursor"])
    assert [entry["balance_after"] for entry in ledger["items"] + rest["items"]] == [
        -PRICE * n for n in (5, 4, 3, 2, 1)
    ]


async def test_usage_is_summed_by_what_is_asked_for(api: Api) -> None:
    account = (await api.get("/billing/account"))["id"]
    poems, essays = (await api.schedule("poems"))["id"], (await api.schedule("essays"))["id"]
    run = await charge(api, account, schedule_id=poems)
    await charge(api, account, schedule_id=poems, run_id=run, attempt=2, cost=Decimal("0.02"))
    await api.clock.advance(DAY)
    await charge(api, account, schedule_id=essays, target="langgraph:essay", cost=Decimal("0.1"))
    await charge(api, account, cost=Decimal("0.00000001"))

    async def sums(by: str, **wanted: Any) -> list[tuple[Any, ...]]:
        rows = (await api.get("/billing/usage", by=by, **wanted))["items"]
        return [(row["key"], row["charged_credits"], row["runs"], row["units"]) for row in rows]

    assert await sums("schedule") == [(essays, 2_000_000, 1, 1), (poems, 600_000, 1, 2), (None, 1, 1, 1)]
    assert await sums("graph") == [("langgraph:essay", 2_000_000, 1, 1), ("python:poet", 600_001, 2, 3)]
    assert await sums("grant") == [(None, 2_600_001, 3, 4)]
    assert await sums("day") == [("2026-05-05", 2_000_001, 2, 2), ("2026-05-04", 600_000, 1, 2)]
    assert await sums("day", until=(NINE + DAY).isoformat()) == [("2026-05-04", 600_000, 1, 2)]
    first = (await api.get("/billing/usage"))["items"][0]
    assert (first["name"], first["cost_usd"], first["input_tokens"]) == ("essays", "0.1000000000", 10)
    for by in ("schedule", "day"):
        whole, cursor = await sums(by), None
        paged: list[Any] = []
        while cursor is not None or not paged:
            page = await api.get("/billing/usage", by=by, limit=1, **({"cursor": cursor} if cursor else {}))
            paged, cursor = paged + page["items"], page["next_cursor"]
        assert [item["key"] for item in paged] == [item[0] for item in whole]
    wrong = await api.call("GET", "/billing/usage?by=planet")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "by")


async def test_an_export_is_a_file_that_no_spreadsheet_runs(api: Api) -> None:
    account = (await api.get("/billing/account"))["id"]
    for name in ('=cmd|"x"!A1', "+1", "-1", "@sum", "plain, with a comma"):
        await charge(api, account, schedule_id=(await api.schedule(name))["id"])
    for answer in (
        await api.call("GET", "/billing/usage?format=csv&limit=1"),
        await api.call("GET", "/billing/usage", headers={"accept": "text/csv"}),
    ):
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        lines = list(csv.DictReader(answer.text.splitlines()))
        assert {line["name"] for line in lines} == {'\'=cmd|"x"!A1', "'+1", "'-1", "'@sum", "plain, with a comma"}
        assert {line["charged_credits"] for line in lines} == {str(PRICE)}


async def test_charges_go_by_the_default_key_of_the_moment(api: Api) -> None:
    account = await api.get("/billing/account")
    (default,) = (await api.get("/billing/virtual-keys"))["items"]
    assert (default["id"], default["label"]) == (account["default_virtual_key_id"], "Default")
    made = await api.call("POST", "/billing/virtual-keys", {"label": "Research"})
    key = made.json()
    assert (made.status_code, key["is_default"], key["active"]) == (201, False, True)
    chosen = await api.call("POST", f"/billing/virtual-keys/{key['id']}/$make-default")
    assert chosen.json()["is_default"] is True
    assert (await api.get("/billing/account"))["default_virtual_key_id"] == key["id"]
    await charge(api, account["id"])
    assert (await api.get("/billing/receipts"))["items"][0]["virtual_key_id"] == key["id"]
    refused = await api.call("POST", f"/billing/virtual-keys/{key['id']}/$deactivate")
    assert (refused.status_code, "default" in refused.json()["detail"]) == (409, True)
    for _ in range(2):
        gone = await api.call("POST", f"/billing/virtual-keys/{default['id']}/$deactivate")
        assert (gone.status_code, gone.json()["active"]) == (200, False)
    assert (await api.call("POST", f"/billing/virtual-keys/{default['id']}/$make-default")).status_code == 409
    entries = (await api.get("/audit", action="billing.make-default"))["items"]
    assert [(entry["resource_id"], entry["before"], entry["after"]) for entry in entries] == [
        (key["id"], {"is_default": False}, {"is_default": True, "result": key["id"]})
    ]
    for label in ("", "x" * 201, 7, None):
        wrong = await api.call("POST", "/billing/virtual-keys", {"label": label})
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "label")
