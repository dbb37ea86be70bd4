"""`rota_enqueue`: the SQL function of PostgreSQL enqueues as `app.enqueue` does, and refuses what that refuses."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rota import JobScheduler, ServiceBuilder, ServiceInfo
from rota.core.parse import ULID
from tests.app.test_own_transaction import prepare, program, ran
from tests.databases import empty_postgres

Connection = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def url(shared_postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    empty_postgres(shared_postgres)
    asyncio.run(prepare(shared_postgres))
    monkeypatch.setenv("ROTA_DATABASE_URL", shared_postgres)
    ran.clear()
    return shared_postgres


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection
        connection.rollback()


def enqueue(connection: Connection, payload: object = None, org: str | None = "default", **options: object) -> str:
    target = options.pop("target", "orders.confirm")
    row = connection.execute(
        "SELECT rota_enqueue(%s, %s, %s, %s) AS id", (org, target, Jsonb(payload), Jsonb(options))
    ).fetchone()
    assert row is not None
    return str(row["id"])


def job(connection: Connection, job_id: str) -> dict[str, Any]:
    row = connection.execute("SELECT * FROM jobs WHERE id = %s", (job_id,)).fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "mail", "priority": -7},
        {"run_at": "2099-01-01T01:00:00+01:00"},
        {"job_key": "order 1"},
        {"serial_key": "customer 1"},
        {"serial_key": "customer 1", "run_at": "2099-01-01T00:00:00Z"},
    ],
)
def test_its_row_equals_that_of_the_program(connection: Connection, options: dict[str, Any]) -> None:
    by_sql = job(connection, enqueue(connection, {"order": "A1"}, **options))
    connection.rollback()
    by_program = job(connection, program().enqueue("orders.confirm", order="A1", connection=connection, **options))
    assert ULID.fullmatch(by_sql["id"])
    assert abs(by_sql["queued_at"] - by_program["queued_at"]).total_seconds() < 60
    if "run_at" not in options:
        assert (by_sql.pop("run_at"), by_program.pop("run_at")) == (by_sql["queued_at"], by_program["queued_at"])
    by_sql["payload"] = by_sql["payload"].replace(" ", "")  # JSON, written by another program
    for row in (by_sql, by_program):
        del row["id"], row["queued_at"]
    assert by_sql == by_program


def test_its_ids_are_ulids_in_the_order_of_their_time(connection: Connection) -> None:
    ids = []
    for number in range(20):
        ids.append(enqueue(connection, {"order": str(number)}))
        connection.execute("SELECT pg_sleep(0.002)")
    assert len(set(ids)) == 20
    assert ids == sorted(ids)
    own = program().enqueue("orders.confirm", order="last", connection=connection)
    assert ids[-1][:6] == own[:6]  # the same time


def test_a_job_key_rejects_preserves_or_replaces(connection: Connection) -> None:
    first = enqueue(connection, {"order": "A1"}, job_key="k", serial_key="s")
    second = enqueue(connection, {"order": "A2"}, serial_key="s")
    assert enqueue(connection, {"order": "A3"}, job_key="k", key_mode="preserve") == first
    with (
        pytest.raises(psycopg.errors.UniqueViolation, match=f"job {first} already has the key k"),
        savepoint(connection),
    ):
        enqueue(connection, {"order": "A4"}, job_key="k")
    assert [job(connection, each)["state"] for each in (first, second)] == ["ready", "blocked"]
    third = enqueue(connection, {"order": "A5"}, job_key="k", key_mode="replace")
    assert [job(connection, each)["state"] for each in (second, third)] == ["ready", "ready"]
    ended = connection.execute("SELECT job_id, status, reason, attempt, input FROM runs").fetchall()
    assert ended == [
        {"job_id": first, "status": "skipped", "reason": "superseded", "attempt": 1, "input": '{"order": "A1"}'}
    ]
    connection.execute("UPDATE jobs SET state = 'running', attempt = 1 WHERE id = %s", (third,))
    assert enqueue(connection, {"order": "A6"}, job_key="k", key_mode="replace") == third  # it has started
    own = program().enqueue("orders.confirm", order="A7", job_key="k", key_mode="preserve", connection=connection)
    assert own == third


@pytest.mark.parametrize(
    ("arguments", "state", "message"),
    [
        ({"org": "nowhere"}, "P0002", "organisation 'nowhere' not found"),
        ({"org": None}, "P0002", "organisation NULL not found"),
        ({"target": "unknown"}, "P0002", "task 'unknown' not found"),
        ({"payload": [1]}, "22023", "input is not an object of parameters"),
        ({"payload": "text"}, "22023", "input is not an object of parameters"),
        ({"payload": {"order": "x" * 1_048_576}}, "22023", "input has 10485.. bytes; at most 1048576 are allowed"),
        ({"retries": 3, "after": []}, "22023", "unknown option 'after', 'retries'"),
        ({"kind": "graph"}, "22023", 'kind "graph" cannot be enqueued by SQL, only task'),
        ({"queue": 7}, "22023", "queue 7 is not text"),
        ({"queue": "a/b"}, "22023", 'queue "a/b" has a `/`'),
        ({"queue": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "22023", "looks like an id"),
        ({"queue": " "}, "22023", "is empty"),
        ({"job_key": "x" * 201}, "22023", "is longer than 200 characters"),
        ({"serial_key": "a\nb"}, "22023", "has control characters"),
        ({"priority": 101}, "22023", "priority 101 is not a whole number from -100 to 100"),
        ({"priority": 1.5}, "22023", "priority 1.5 is not a whole number"),
        ({"priority": "1"}, "22023", 'priority "1" is not a whole number'),
        ({"priority": True}, "22023", "priority true is not a whole number"),
        ({"run_at": "tomorrow"}, "22023", 'run_at "tomorrow" is not a time with an offset'),
        ({"run_at": "2026-05-04T09:00:00"}, "22023", "is not a time with an offset"),
        ({"run_at": 7}, "22023", "run_at 7 is not a time"),
        ({"key_mode": "maybe"}, "22023", "key_mode 'maybe' is not reject, preserve or replace"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(
    connection: Connection, arguments: dict[str, Any], state: str, message: str
) -> None:
    with pytest.raises(psycopg.DatabaseError, match=message) as caught:
        enqueue(connection, **arguments)
    assert caught.value.sqlstate == state


def test_options_must_be_an_object_and_may_be_null(connection: Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="options is not an object"), savepoint(connection):
        connection.execute("SELECT rota_enqueue('default', 'orders.confirm', NULL, '[]')")
    connection.execute("SELECT rota_enqueue('default', 'orders.confirm')")
    connection.execute("""SELECT rota_enqueue('default', 'orders.confirm', 'null', '{"queue": null}')""")
    rows = connection.execute("SELECT payload, queue FROM jobs").fetchall()
    assert rows == [{"payload": None, "queue": "default"}] * 2


def test_a_disabled_task_is_refused(connection: Connection) -> None:
    connection.execute("UPDATE tasks SET enabled = false")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r"task 'orders.confirm' is disabled"):
        enqueue(connection, {"order": "A1"})


def test_it_acts_with_the_rights_and_outside_the_search_path_of_its_caller(connection: Connection) -> None:
    """A role that may not insert jobs cannot do it by the function, and no table of the caller takes their place."""
    connection.execute("CREATE SCHEMA mine")
    connection.execute("CREATE TABLE mine.jobs (id int)")
    connection.execute("CREATE TEMP TABLE orgs (id int)")
    connection.execute("SET LOCAL search_path = mine")
    row = connection.execute("""SELECT public.rota_enqueue('default', 'orders.confirm', '{"order": "A1"}') AS id""")
    assert len((row.fetchone() or {})["id"]) == 26
    connection.execute("CREATE ROLE rota_test_stranger")
    connection.execute("GRANT USAGE ON SCHEMA public TO rota_test_stranger")
    connection.execute("SET LOCAL ROLE rota_test_stranger")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("""SELECT public.rota_enqueue('default', 'orders.confirm', '{"order": "A1"}')""")


async def test_its_job_runs_once_after_the_commit_and_parameters_are_checked_then(url: str) -> None:
    service = ServiceBuilder(ServiceInfo("shop"), database_url=url, program=program()).with_tasks().build()
    async with service.router.lifespan_context(service):
        with psycopg.connect(url, row_factory=dict_row) as connection:
            enqueue(connection, {"order": "A1"})
            connection.rollback()
            right, wrong = enqueue(connection, {"order": "A2"}), enqueue(connection, {"unknown": "A3"})
            connection.commit()
        scheduler: JobScheduler = service.state.jobs
        assert await scheduler.wait(right, timeout=10) == "success"
        assert await scheduler.wait(wrong, timeout=10) == "failed"
    assert ran == ["A2"]


@contextlib.contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    with connection.transaction():
        yield
