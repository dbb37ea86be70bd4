"""The whole OpenAPI document, fuzzed: no 5xx, no undocumented status, no answer that breaks its schema."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rota.access.store import accounts
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult
from rota.core.states import Status
from rota.db.connection import open_database
from rota.db.dialect import Tx
from rota.engine import claiming, finishing, orgs, runs, workers
from rota.kinds.alarms.store import rows as alarm_rows
from rota.kinds.hosts.hand_out import PollRequest, hand_out
from rota.kinds.hosts.store import hosts, sessions
from tests.app.live_api import LiveApi

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
EXAMPLES = 8  # per operation, of what the document allows and of what it does not
ORDER = {"get": 1, "post": 2, "put": 3, "patch": 4, "delete": 5}  # while things are there


@pytest.fixture
def live(clean_url: str) -> Iterator[LiveApi]:
    with LiveApi(clean_url) as live:
        live.app.state.closing = True  # streams end after their first look
        yield live


@pytest.mark.long
@pytest.mark.timeout(600)  # it asks some two thousand times, for minutes on a loaded machine
def test_the_document_is_kept(live: LiveApi) -> None:
    known = populate(live)
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    operations = sorted(
        (operation.ok() for operation in schema.get_all_operations() if isinstance(operation, Ok)),
        key=lambda operation: ORDER[operation.method],
    )
    assert len(operations) > 50
    wrong: list[str] = []
    for operation in operations:
        for mode in GenerationMode:
            try:
                fuzz(operation, mode, live, known)
            except FailureGroup as error:
                wrong.append(f"{operation.label}: {error}")
    assert not wrong, "\n\n".join(wrong)


def test_the_examples_of_the_document_work(live: LiveApi) -> None:
    known = populate(live)
    document = httpx.get(f"{live.url}/openapi.json", timeout=60).json()
    paths = [
        (path, methods_of_path) for path, methods_of_path in document["paths"].items() if path.startswith("/api/v1")
    ]
    calls = [
        (path, method, operation)
        for path, methods in paths
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    with httpx.Client(base_url=live.url, headers=live.headers, timeout=60) as client:
        client.post("/api/v1/tasks", json={"name": "report", "command": "true"})
        for path, method, operation in sorted(calls, key=lambda call: ORDER[call[1]]):
            client.delete("/api/v1/schedules/nightly")  # its name is in more than one example
            if path.endswith("{key}/$resume"):
                client.post("/api/v1/schedules/real/$pause")
            example = operation["requestBody"]["content"]["application/json"]["example"]
            example |= {name: known[name] for name in ("host_id", "server_instance_id") if name in example}
            if path.endswith("/users/me/$password"):
                continue  # the user of the first key has none: tests/security/test_passwords.py changes one
            if path.endswith(("/$approve", "/$reject", "/$resolve")):
                continue  # no run of this server waits for a person: see tests/app/test_api_durable.py
            if path.startswith("/api/v1/workflows"):
                continue  # a workflow is declared by a program, and this server has none: see tests/kinds/workflows
            if path.startswith("/api/v1/pipelines") and path.endswith("/$backfill"):
                continue  # this pipeline has no partitions: see tests/kinds/pipelines/test_increments.py
            path = path.format(**known)
            if method in ("put", "patch"):
                example = {field: value for field, value in example.items() if field != "name"}
            answer = client.request(method, path, json=example)
            assert answer.is_success, f"{method} {path}: {answer.text}"


def fuzz(operation: Any, mode: GenerationMode, live: LiveApi, known: dict[str, str]) -> None:
    @seed(1)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=False,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def ask(case: Any, real: bool) -> None:
        if real:  # things that are there: else every path is a 404
            case.path_parameters = {name: known.get(name, value) for name, value in case.path_parameters.items()}
            case.headers.pop("If-Match", None)
            if isinstance(case.body, dict) and "target" in case.body:
                case.body["target"] = "hello"
        response = case.call(headers=live.headers, timeout=20)
        documented = operation.path == "/health/ready"  # 503 is an answer there
        checks = [check for check in CHECKS if not (documented and check is not_a_server_error)]
        case.validate_response(response, checks=checks)

    with contextlib.suppress(Unsatisfiable):  # an operation that takes nothing cannot be asked wrongly
        ask()


def populate(live: LiveApi) -> dict[str, str]:
    """One of each thing, and what its path parameter is."""
    body = {"name": "real", "target": "hello", "cron_expression": "0 2 * * *", "overlap": "allow"}
    with httpx.Client(base_url=f"{live.url}/api/v1", headers=live.headers, timeout=60) as client:
        assert client.post("/schedules", json=body).status_code == 201
        for _ in range(3):
            assert client.post("/schedules/real/$run").status_code == 202
        client.post("/schedules/real/$skip-next")
        assert client.post("/orgs", json={"name": "Real", "slug": "real"}).status_code == 201
        person = {"email": "grace@example.org", "password": "correct horse", "role": "viewer"}
        user_id = client.post("/users", json=person).json()["id"]
        key_id = client.post("/api-keys", json={"name": "x", "role": "viewer"}).json()["id"]
        assert client.post("/tasks", json={"name": "real", "command": "true"}).status_code == 201
        assert client.post("/views", json={"name": "real", "filter": {}}).status_code == 201
        assert client.post("/calendars", json={"name": "real", "dates": ["2027-05-17"]}).status_code == 201
        window = {"name": "real", "starts_at": "2098-05-17T00:00:00Z", "ends_at": "2098-05-18T00:00:00Z"}
        assert client.post("/freeze-windows", json=window).status_code == 201
        channel = {"name": "real", "type": "email", "address": "ops@example.org"}
        assert client.post("/alarm-channels", json=channel).status_code == 201
        assert client.post("/alarms", json={"name": "real", "when": "missed"}).status_code == 201
        failures = {
            "schedule_id": client.post("/tasks/real/$schedule", json={"cron_expression": "0 2 * * *"}),
            "grant_id": client.post("/grants", json={"scopes": ["task:execute:hello"]}),
            "virtual_key_id": client.post("/billing/virtual-keys", json={"label": "real"}),
            "hook_id": client.post("/signal-hooks", json={"name": "real", "topic": "paid"}),
            "account_id": client.post("/service-accounts", json={"name": "real", "role": "viewer"}),
        }
        for name in ("orders", "default"):
            made = {"namespace": "sales", "layer": "bronze", "name": name, "sql": "SELECT 1 AS day, 2 AS amount"}
            assert client.post("/pipelines", json=made).status_code == 201
        failures["trigger_id"] = client.post("/pipelines/sales/bronze/default/triggers", json={"type": "webhook"})
        ids = {name: answer.json()["id"] for name, answer in failures.items()}
        ids |= asyncio.run(make_host(live.database_url))
        server = client.post("/server-instances", json={"host_id": ids["host_id"], "name": "real"}).json()["id"]
        order = {"job_type": "shell", "payload": {"command": "true"}}
        ids["host_job_id"] = client.post("/host-jobs", json={"server_instance_id": server, **order}).json()["job_id"]
        batch = client.post("/batches", json={"server_instance_ids": [server], **order}).json()["batch_id"]
        ids |= {"server_instance_id": server, "batch_id": batch}
    ids |= asyncio.run(work(live.database_url))
    ids["event_id"] = asyncio.run(fire_alarm(live.database_url))
    asyncio.run(lose(live.database_url, ids["host_id"]))
    named = {
        "graph_id": "python:echo",
        "key": "real",
        "name": "default",
        "user_id": user_id,
        "key_id": key_id,
        "slug": "real",
    }
    return {**named, **ids, "artifact_id": ids["run_id"], "namespace": "sales", "layer": "bronze"}


async def fire_alarm(url: str) -> str:
    """The alarm fires; returns the id of its event."""
    db, now, event_id = open_database(url), datetime.now(UTC), new_id()

    def step(tx: Tx) -> None:
        alarm = alarm_rows.alarm(tx, accounts.ensure_default_org(tx, now)[0], "real")
        ids = {"id": event_id, "org_id": alarm.org_id, "alarm_id": alarm.id, "subject": "real", "name": "real"}
        state = {"state": "firing", "text": "is late", "place": "", "fired_at": now, "notified": 0, "job_ids": []}
        alarm_rows.insert_event(tx, {**ids, **state})

    try:
        await db.tx(step)
    finally:
        await db.close()
    return event_id


async def make_host(url: str) -> dict[str, str]:
    db, now = open_database(url), datetime.now(UTC)

    def step(tx: Tx) -> dict[str, str]:
        org_id, _ = accounts.ensure_default_org(tx, now)
        _, text = hosts.make_token(tx, org_id, orgs.system_user(tx, org_id, now), timedelta(hours=1), now)
        token = hosts.find_token(tx, text)
        assert token is not None
        return {"host_id": hosts.pair(tx, token, "real", now)[0]}

    try:
        return await db.tx(step)
    finally:
        await db.close()


async def lose(url: str, host_id: str) -> None:
    """An agent claimed the host's job, and its outcome is unknown."""
    db, now = open_database(url), datetime.now(UTC)

    def step(tx: Tx) -> None:
        host = hosts.get(tx, accounts.ensure_default_org(tx, now)[0], host_id)
        types = {"shell": {"read_only": False, "schema": {}}}
        facts = {"version": "1", "pid": 1, "room": 1, "job_types": types}
        agent = sessions.Registration(host, facts, {})
        session = sessions.register(tx, [agent], timedelta(hours=1), now)[host_id].id
        request = PollRequest(host, session, 1, frozenset(), frozenset(), None)
        hand_out(tx, [request], {host_id}, {host_id}, timedelta(hours=1), now)
        finishing.rescue(tx, session, now)

    try:
        await db.tx(step)
    finally:
        await db.close()


async def work(url: str) -> dict[str, str]:
    """A worker came up, ended one run, has another under way and a third before it."""
    db, now = open_database(url), datetime.now(UTC)

    def step(tx: Tx) -> dict[str, str]:
        workers.register(
            tx,
            worker=new_id(),
            pid=1,
            version="1",
            concurrency=2,
            kinds=["task"],
            routes=["task:default:hello"],
            queues=None,
            lease=workers.LEASE_AHEAD_MAX,
            now=now,
        )
        taken = claiming.claim(tx, claiming.lanes(tx), worker=new_id(), routes=["task:default:hello"], room=2, turn=0)
        first, second = (Attempt(job, new_id(), 1, now) for job in taken)
        error = {"code": "logic", "type": "ValueError", "message": "no", "traceback": None}
        ended = AttemptResult(first.job, Status.FAILED, "logic", now, first.run_id, 1, now, error)
        finishing.finish(tx, [ended], None, now)
        finishing.mark_started(tx, [second])
        runs.write_logs(tx, [(first.run_id, now, "stdout", "hello")])
        return {"run_id": first.run_id, "job_id": first.job.id}

    try:
        return await db.tx(step)
    finally:
        await db.close()
