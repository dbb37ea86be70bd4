"""The API refuses attacks by its addresses, filters and bodies with an answer below 500, and answers nothing of another
org or of the database."""

import base64
import gzip
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import httpx
import pytest

from rota.db.paging import write_cursor
from tests.access.test_access import (
    CANARY,
    ask,
    make_account,
    make_batch,
    make_grant,
    make_host,
    make_host_job,
    make_key,
    make_run,
    make_server,
    make_skipped,
    make_task,
    make_user,
    make_workflow,
)
from tests.app.harness import Api

on_sqlite = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # where the database has no part

INJECTIONS = ["' OR '1'='1", '"; DROP TABLE jobs; --', "1) UNION ALL SELECT key_hash FROM api_keys --", "\\%_*(){}[]:^"]
DATABASE_WORDS = (
    "sqlalchemy", "sqlite", "psycopg", "syntax error", "unterminated", "unrecognized token", "no such column",
    "no such table", "does not exist in", "operationalerror", "programmingerror", "dataerror", "traceback",
)  # fmt: skip
COUNTED = ("jobs", "runs", "schedules", "tasks", "api_keys", "users", "orgs")


def get_operations(api: Api) -> list[tuple[str, list[str], list[str]]]:
    """Path, parameters of the path and of the query of each GET of the document."""
    operations = []
    for path, methods in api.app.openapi()["paths"].items():
        if "get" in methods and not path.startswith("/health"):
            parameters = methods["get"].get("parameters", [])
            names = {place: [p["name"] for p in parameters if p["in"] == place] for place in ("path", "query")}
            operations.append((path, names["path"], names["query"]))
    assert len(operations) > 50
    return operations


def faults(answer: httpx.Response) -> list[str]:
    text = answer.text.lower()
    named = [word for word in DATABASE_WORDS if word in text]
    return [*named, *([f"status {answer.status_code}"] if answer.status_code >= 500 else [])]


async def test_sql_in_ids_and_filters_of_each_get_is_plain_text(api: Api) -> None:
    api.app.state.closing = True  # streams end after their first read
    run = await make_run(api, CANARY)
    before = [await api.count(table) for table in COUNTED]
    wrong: list[str] = []
    evaluated = 0
    for path, in_path, in_query in get_operations(api):
        real = path.format(**dict.fromkeys(in_path, run))
        for number, text in enumerate(INJECTIONS):
            addresses = [path.format(**dict.fromkeys(in_path, quote(text, safe="")))] if in_path else []
            # each filter meets two of the texts: the others differ only in their quotes
            addresses += [f"{real}?{name}={quote(text)}" for n, name in enumerate(in_query) if (n + number) % 2]
            for address in addresses:
                answer = await api.client.get(address)
                evaluated += answer.status_code in (200, 404, 422)
                wrong += [f"{address}: {fault}" for fault in faults(answer)]
    assert wrong == []
    assert evaluated > 300
    assert [await api.count(table) for table in COUNTED] == before


async def test_forged_cursors_are_refused_or_find_nothing(api: Api) -> None:
    await make_run(api, CANARY)
    forged = [
        "x",
        "%00",
        "0",
        "null",
        write_cursor("' OR '1'='1"),
        write_cursor("run", "' OR 1=1", "x"),
        write_cursor("job", "9999-12-31T23:59:59Z", "\x00"),
        write_cursor("9" * 400),
        write_cursor("-1", "1e999"),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        base64.urlsafe_b64encode(b"[" * 300).decode(),
        base64.urlsafe_b64encode(json.dumps([None, {"a": 1}, True]).encode()).decode(),
    ]
    wrong: list[str] = []
    for path, in_path, in_query in get_operations(api):
        if "cursor" in in_query and not in_path:
            for cursor in forged:
                answer = await api.client.get(path, params={"cursor": cursor})
                wrong += [f"{path} {cursor}: {fault}" for fault in faults(answer)]
                if answer.status_code not in (200, 403, 422):
                    wrong.append(f"{path} {cursor}: {answer.status_code}")
    assert wrong == []


async def test_filters_and_streams_answer_nothing_of_another_org(api: Api) -> None:
    run = await make_run(api, f"{CANARY}-run")
    record = await api.get(f"/runs/{run}")
    makers = (
        make_skipped,
        make_task,
        make_grant,
        make_user,
        make_account,
        make_host,
        make_server,
        make_host_job,
        make_batch,
        make_workflow,
        make_key,
    )
    things = [await make(api, f"{CANARY}-{number}") for number, make in enumerate(makers)]
    things += [run, record["job_id"], record["schedule_id"], api.org_id, CANARY, f"{CANARY}-run"]
    await api.execute(
        "INSERT INTO logs (run_id, at, stream, text) SELECT id, started_at, 'stdout', :text FROM runs", text=CANARY
    )
    acme = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()["admin_key"]
    headers = {"authorization": f"Bearer {acme}"}
    for path in ("/events", f"/runs/{run}/logs", f"/jobs/{record['job_id']}/$stream"):
        stream = {"last_event_id": "0", "accept": "text/event-stream"}
        marks = (CANARY, run, record["job_id"])
        ours = await ask(api, "GET", f"/api/v1{path}", api.key, None, until=(*marks, "success"), **stream)
        theirs = await ask(api, "GET", f"/api/v1{path}", acme, None, **stream)
        assert any(mark in ours[1] for mark in marks) or "success" in ours[1], (path, ours)
        assert not any(mark in theirs[1] for mark in marks) or theirs[0] == 404, (path, theirs)
    asked = await api.client.get("/api/v1/queues/$wanted", params={"queues": CANARY}, headers=headers)
    assert [queue["due"] for queue in asked.json()["queues"]] == [0]  # the answer repeats the names that were asked for
    wrong: list[str] = []
    for path, in_path, in_query in get_operations(api):
        for name in in_query if not in_path else ():
            if path.endswith(("/events", "/queues/$wanted")) or name in (
                "limit",
                "cursor",
                "since",
                "until",
                "from",
                "to",
            ):
                continue
            for thing in things:
                answer = await api.client.get(path, params={name: thing}, headers=headers)
                leaked = answer.is_success and CANARY in answer.text
                if leaked or answer.status_code >= 500:
                    wrong.append(f"{path}?{name}={thing}: {answer.status_code}")
    assert wrong == []


@on_sqlite
async def test_odd_bodies_are_refused_quickly(api: Api) -> None:
    deep = b'{"input": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001
    bombs: dict[str, bytes] = {
        "deep objects": deep,
        "deep lists": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "a long number": b'{"priority": ' + b"9" * 1_000_000 + b"}",
        "a large exponent": b'{"priority": 1e999999}',
        "a lone surrogate": b'{"name": "\\ud800"}',
        "UTF-16": '{"name": "x"}'.encode("utf-16"),
        "a byte order mark": b'\xef\xbb\xbf{"name": "x"}',
        "many keys": json.dumps({f"k{n}": n for n in range(50_000)}).encode(),
        "a prototype": b'{"__proto__": {"admin": true}, "constructor": 1}',
        "NUL": b'{"name": "a\\u0000b"}',
        "two documents": b"{}{}",
        "a comment": b"{/**/}",
        "gzip": gzip.compress(b" " * 1_000_000),
    }
    routes = ("/schedules", "/tasks", "/pipelines", "/users")
    for name, raw in bombs.items():
        for path in routes:
            start = time.process_time()
            answer = await api.call("POST", path, content=raw, headers={"content-type": "application/json"})
            assert 400 <= answer.status_code < 500, (name, path, answer.text[:200])
            assert len(answer.content) < 20_000, (name, path)
            assert time.process_time() - start < 5, (name, path)
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert (await api.call("POST", "/schedules", content=bombs["gzip"], headers=packed)).status_code in (415, 422)
    large = b'{"name": "' + b"x" * 9_000_000 + b'"}'
    headers = {"content-type": "application/json", "authorization": ""}
    assert (await api.call("POST", "/schedules", content=large, headers=headers)).status_code in (401, 413)
    assert await api.count("schedules") == 0


@on_sqlite
async def test_hostile_cron_expressions_are_refused_or_fast(api: Api) -> None:
    hostile: list[Any] = [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 29 2 1",
        "* * * * * * *",
        "*/0 * * * *",
        "*/-1 * * * *",
        "60 * * * *",
        "1-99999999 * * * *",
        "0-59/99999999999999999999 * * * *",
        ",".join(["*"] * 5000) + " * * * *",
        "* " * 5000,
        "9" * 100_000 + " * * * *",
        "٣ * * * *",
        "* * * * *\n0 0 * * *",
        "* * * * *; rm -rf /",
        "$(id) * * * *",
        "\u202e* * * * *",
        "L * * * *",
        "* * W * *",
        "* * * * 5#99",
        "H H * * *",
        "@reboot",
        "",
        [],
        {},
        5,
    ]
    for expression in hostile:
        start = time.process_time()
        answer = await api.call("POST", "/schedules/$preview", {"cron_expression": expression})
        assert answer.status_code in (200, 422), (str(expression)[:80], answer.text[:200])
        assert len(answer.content) < 20_000, str(expression)[:80]
        assert time.process_time() - start < 3, str(expression)[:80]
    for expression in ("0 0 31 2 *", "*/0 * * * *", "* * * * *; rm -rf /", "$(id) * * * *", "* * * * *\n0 0 * * *"):
        answer = await api.call("POST", "/schedules/$preview", {"cron_expression": expression})
        assert answer.status_code == 422, expression


@on_sqlite
async def test_an_odd_host_header_changes_no_right(api: Api) -> None:
    made = (await api.call("POST", "/api-keys", {"name": "k", "role": "viewer", "scopes": ["runs:read"]})).json()
    narrow = {"authorization": f"Bearer {made['key']}"}
    for host in ("rota/api/v1/runs?", "rota/api/v1/runs#", "x@rota", "rota\\..", "", "rota:80/api/v1/runs"):
        for path in ("/schedules", "/tasks"):
            answer = await api.call("GET", path, headers={**narrow, "host": host})
            assert 400 <= answer.status_code < 500, (host, path)
    assert (await api.call("GET", "/runs", headers=narrow)).status_code == 200


@on_sqlite
async def test_a_key_that_reads_changes_nothing(api: Api) -> None:
    scopes = ["schedules:read", "tasks:read", "runs:read", "queues:read", "hosts:read", "users:read", "api-keys:read"]
    made = await api.call("POST", "/api-keys", {"name": "k", "role": "admin", "scopes": scopes})
    assert made.status_code == 201, made.text
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    before = [await api.count(table) for table in COUNTED]
    wrong: list[str] = []
    for path, methods in api.app.openapi()["paths"].items():
        for method, operation in methods.items():
            if method == "get" or not path.startswith("/api/v1/") or path.endswith(("$preview", "$diff")):
                continue
            names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
            address = path.format(**dict.fromkeys(names, "x"))
            body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
            answer = await api.client.request(method.upper(), address, headers=headers, **body)
            if answer.status_code != 403 and "webhooks" not in path:
                wrong.append(f"{method} {path}: {answer.status_code}")
    assert wrong == []
    assert [await api.count(table) for table in COUNTED] == before


@on_sqlite
async def test_a_pipeline_reads_no_table_of_another_org(api: Api, tmp_path: Path) -> None:
    ours = {"namespace": "sales", "layer": "bronze", "name": "orders", "sql": "SELECT 1 AS a"}
    assert (await api.call("POST", "/pipelines", ours)).status_code == 201
    made = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    headers = {"authorization": f"Bearer {made['admin_key']}"}
    secret = tmp_path / "warehouse" / api.org_id / "sales" / "bronze" / "orders.csv"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text(f"a\n{CANARY}\n")
    duckdb.sql(f"COPY (SELECT '{CANARY}' AS a) TO '{secret.with_suffix('.parquet')}'")
    all_orders = {"sql": "SELECT * FROM sales.bronze.orders"}
    shown = await api.call("POST", "/pipelines/sales/bronze/orders/$preview", all_orders)
    assert CANARY in shown.text, shown.text  # its own org reads it
    name = {"namespace": "theirs", "layer": "gold", "name": "steal"}
    assert (await api.call("POST", "/pipelines", {**name, "sql": "SELECT 1 AS a"}, headers=headers)).status_code == 201
    path = "/pipelines/theirs/gold/steal/$preview"
    assert (await api.call("POST", path, {"sql": "SELECT 2 AS b"}, headers=headers)).status_code == 200
    for sql in (
        "SELECT * FROM sales.bronze.orders",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_csv('{tmp_path}/warehouse/{made['id']}/../{api.org_id}/sales/bronze/orders.csv')",
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM query_table('{secret}')",
    ):
        answer = await api.call("POST", path, {"sql": sql}, headers=headers)
        assert 400 <= answer.status_code < 500, (sql, answer.text)
        assert CANARY not in answer.text, sql
