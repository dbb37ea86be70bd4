"""`Idempotency-Key`: repeated and concurrent requests have one effect."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import httpx
import pytest

from rota.access.store import accounts
from rota.core.errors import Unavailable
from rota.db.crash_points import at_each_statement
from rota.db.transactions import Deadlock, Transaction
from rota.engine.maintenance import Maintenance
from rota.frame.http import store as http_store
from tests.app.harness import NINE, Api

KEY = {"idempotency-key": "one"}
CREATE = {"name": "nightly", "target": "hello", "cron_expression": "0 12 * * *"}


async def test_a_repeated_request_gets_the_first_answer(api: Api) -> None:
    first = await api.call("POST", "/schedules", CREATE, headers=KEY)
    again = await api.call("POST", "/schedules", CREATE, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    for name in ("etag", "location", "content-type"):
        assert again.headers[name] == first.headers[name]
    assert await api.count("schedules") == 1


async def test_a_refusal_is_evaluated_again(api: Api) -> None:
    await api.schedule("nightly")
    first = await api.call("POST", "/schedules", CREATE, headers=KEY)
    assert (first.status_code, await api.count("idempotency_keys")) == (409, 0)
    await api.call("DELETE", "/schedules/nightly")
    again = await api.call("POST", "/schedules", CREATE, headers=KEY)
    assert (again.status_code, "idempotency-replayed" in again.headers) == (201, False)


async def test_a_task_without_its_program_runs_once_the_program_is_up(api: Api) -> None:
    await api.execute("UPDATE tasks SET enabled = :off", off=False)
    first = await api.call("POST", "/tasks/hello/$execute", {}, headers=KEY)
    await api.execute("UPDATE tasks SET enabled = :on", on=True)
    again = await api.call("POST", "/tasks/hello/$execute", {}, headers=KEY)
    assert (first.status_code // 100, again.status_code) == (4, 202)


@pytest.mark.parametrize(
    ("path", "body"), [("/schedules", {**CREATE, "name": "x"}), ("/schedules/$preview", CREATE), ("/tasks", CREATE)]
)
async def test_another_request_with_the_same_key_is_refused(api: Api, path: str, body: Any) -> None:
    await api.call("POST", "/schedules", CREATE, headers=KEY)
    answer = await api.call("POST", path, body, headers=KEY)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
    assert await api.count("schedules") == 1


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "é"])
async def test_a_key_is_printable(api: Api, key: str) -> None:
    answer = await api.call("POST", "/schedules", CREATE, headers=[("idempotency-key", key.encode())])
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Idempotency-Key")


async def test_many_at_once_have_one_effect(api: Api) -> None:
    await api.schedule("nightly")

    async def send() -> httpx.Response:
        while True:
            answer = await api.call("POST", "/schedules/nightly/$run", {"overlap": "allow"}, headers=KEY)
            if answer.status_code != 503:  # a busy server asks the client to repeat the request
                return answer
            await asyncio.sleep(int(answer.headers["retry-after"]))

    answers = await asyncio.gather(*(send() for _ in range(20)))
    assert await api.count("jobs") == 1
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1


async def test_a_name_that_the_first_of_two_requests_took_is_no_refusal_for_the_second(api: Api) -> None:
    body = {"name": "copy", "command": "true"}
    answers = await asyncio.gather(*(api.call("POST", "/tasks", body, headers=KEY) for _ in range(5)))
    assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}


async def test_loops_are_woken_after_the_commit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    await api.schedule("nightly")
    woken = asyncio.Event()
    monkeypatch.setattr(api.engine.wake, "signal", lambda _: woken.set())

    async def look() -> None:
        await woken.wait()
        seen.append(await api.count("jobs"))

    looking = asyncio.create_task(look())
    await api.call("POST", "/schedules/nightly/$run", headers=KEY)
    async with asyncio.timeout(20):
        await looking
    assert seen == [1]


async def test_schedules_changed_by_tag_are_answered_again(api: Api) -> None:
    await api.schedule("nightly", tags=["night"])
    body = {"tag": "night", "reason": "x"}
    first = await api.call("POST", "/schedules/$pause", body, headers=KEY)
    again = await api.call("POST", "/schedules/$pause", body, headers=KEY)
    assert (first.json(), again.json(), again.headers["idempotency-replayed"]) == ({"count": 1}, {"count": 1}, "true")


@pytest.mark.parametrize("answer", ["lost", "refused"])
async def test_a_commit_without_an_answer_leaves_one_job(
    api: Api, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    await api.schedule("nightly")
    opened = type(await begun_and_ended(api))
    commit = opened.commit

    async def lose(self: Any) -> None:
        if answer == "lost":
            await commit(self)
        raise Unavailable("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(opened, "commit", lose)
        first = await api.call("POST", "/schedules/nightly/$run", {"overlap": "allow"}, headers=KEY)
    assert (first.status_code, await api.count("jobs")) == ((202, 1) if answer == "lost" else (503, 0))
    again = await api.call("POST", "/schedules/nightly/$run", {"overlap": "allow"}, headers=KEY)
    assert (again.status_code, await api.count("jobs")) == (202, 1)


async def begun_and_ended(api: Api) -> Transaction:
    transaction = await api.db.begin()
    await transaction.rollback()
    return transaction


async def test_a_server_that_dies_at_any_statement_leaves_one_job_per_key(api: Api) -> None:
    await api.schedule("nightly")

    class Died(Exception):
        """Stands for the end of the process: what was not committed is rolled back."""

    for number in range(1, 100):
        key = {"idempotency-key": f"key-{number}"}
        left = number

        def die(statement: str) -> None:
            nonlocal left
            left -= statement != "COMMIT"  # the test above has what a commit can come to
            if left == 0 and statement != "COMMIT":
                raise Died

        with at_each_statement(die):
            await api.call("POST", "/schedules/nightly/$run", {"overlap": "allow"}, headers=key)
        await api.call("POST", "/schedules/nightly/$run", {"overlap": "allow"}, headers=key)
        assert await api.count("jobs") == number, f"died at statement {number}"
        if left > 0:
            break  # it had fewer statements
    assert left > 0
    assert number > 5


async def test_a_request_that_lost_to_a_deadlock_runs_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = type(await begun_and_ended(api))
    run, deadlocks = opened.run, 2

    async def lose(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal deadlocks
        result = await run(self, *args, **kwargs)
        if deadlocks:
            deadlocks -= 1
            raise Deadlock("the database ended this transaction")
        return result

    monkeypatch.setattr(opened, "run", lose)
    answer = await api.call("POST", "/schedules", CREATE, headers=KEY)
    assert (answer.status_code, deadlocks, await api.count("schedules")) == (201, 0, 1)


async def test_a_request_that_died_lets_go_of_its_key_in_the_end(api: Api) -> None:
    await api.call("POST", "/schedules", CREATE, headers=KEY)
    await api.call("DELETE", "/schedules/nightly")
    await api.execute("UPDATE idempotency_keys SET state = 'running'")
    assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 409
    api.clock.set(NINE + http_store.KEY_LEASE)
    assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 201


async def test_a_failure_of_ours_is_not_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(type(api.engine)):  # type: ignore[misc]
        async def create_schedules(self, *_: Any, **__: Any) -> Any:
            raise Unavailable("the database is out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(type(api.engine), "create_schedules", Broken.create_schedules)
        assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 503
    assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 201


async def test_idempotency_keys_are_separate_by_org(api: Api) -> None:
    await api.call("POST", "/schedules", CREATE, headers=KEY)
    org = await api.call("POST", "/orgs", {"name": "Other", "slug": "other"})
    headers = {**KEY, "authorization": f"Bearer {org.json()['admin_key']}"}
    answer = await api.call("POST", "/schedules/$preview", {"interval": "5m"}, headers=headers)
    assert answer.status_code == 200


async def test_a_smaller_role_does_not_get_the_answer(api: Api) -> None:
    await api.call("POST", "/schedules", CREATE, headers=KEY)
    viewer = await api.db.tx(accounts.create_key, api.org_id, "viewer", "viewer", NINE)
    answer = await api.call("POST", "/schedules", CREATE, headers={**KEY, "authorization": f"Bearer {viewer}"})
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")


async def test_a_secret_is_returned_once_and_not_stored(api: Api) -> None:
    body = {"name": "deploy", "role": "viewer"}
    first = await api.call("POST", "/api-keys", body, headers=KEY)
    again = await api.call("POST", "/api-keys", body, headers=KEY)
    assert (again.status_code, again.json()["code"]) == (409, "idempotency_secret")
    stored = await api.db.read(lambda tx: [tuple(row) for row in tx.exec_driver_sql("SELECT * FROM idempotency_keys")])
    assert first.json()["key"] not in str(stored)


async def test_a_request_that_only_reads_stores_no_key(api: Api) -> None:
    viewer = await api.db.tx(accounts.create_key, api.org_id, "viewer", "viewer", NINE)
    headers = {**KEY, "authorization": f"Bearer {viewer}"}
    answer = await api.call("POST", "/schedules/$preview", {"interval": "5m"}, headers=headers)
    assert (answer.status_code, await api.count("idempotency_keys")) == (200, 0)


async def test_an_org_keeps_its_newest_keys(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_store, "KEYS_PER_ORG", 2)
    for number in range(4):
        api.clock.set(NINE + timedelta(seconds=number))
        headers = {"idempotency-key": f"key-{number}"}
        await api.call("POST", "/schedules", {**CREATE, "name": f"n{number}"}, headers=headers)
    await Maintenance(api.engine).prune(NINE + timedelta(minutes=1))
    keys = await api.db.read(lambda tx: sorted(tx.exec_driver_sql("SELECT key FROM idempotency_keys").scalars()))
    assert keys == ["key-2", "key-3"]


async def test_a_webhook_token_with_a_key_is_no_guess(api: Api) -> None:
    for number in range(25):
        headers = {"idempotency-key": f"key-{number}", "authorization": "Bearer a-good-webhook-token"}
        with contextlib.suppress(KeyError):
            api.app.state.failures.seen.clear()
        answer = await api.call("POST", "/webhooks", headers=headers)
        assert answer.status_code == 404
        assert not [counted for counted in api.app.state.failures.seen if counted.startswith(("address", "prefix"))]


async def test_keys_are_forgotten_after_a_day(api: Api) -> None:
    await api.call("POST", "/schedules", CREATE, headers=KEY)
    await Maintenance(api.engine).prune(NINE + timedelta(hours=23))
    assert await api.count("idempotency_keys") == 1
    await Maintenance(api.engine).prune(NINE + timedelta(hours=25))
    assert await api.count("idempotency_keys") == 0


async def test_a_get_has_no_use_for_it(api: Api) -> None:
    assert (await api.call("GET", "/schedules", headers=KEY)).status_code == 200
    assert await api.count("idempotency_keys") == 0
