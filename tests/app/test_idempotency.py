"""`Idempotency-Key`: one effect, however often and by however many it is asked for."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from rota.core.errors import Unavailable
from rota.engine.maintenance import Maintenance
from rota.store import accounts, idempotency
from tests.app.conftest import NINE, Api

KEY = {"idempotency-key": "one"}
CREATE = {"name": "nightly", "target": "hello", "cron_expression": "0 12 * * *"}


async def test_whoever_asks_again_gets_the_first_answer(api: Api) -> None:
    first = await api.call("POST", "/schedules", CREATE, headers=KEY)
    again = await api.call("POST", "/schedules", CREATE, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    for name in ("etag", "location", "content-type"):
        assert again.headers[name] == first.headers[name]
    assert await api.count("schedules") == 1


async def test_a_refusal_is_an_answer_too(api: Api) -> None:
    await api.schedule("nightly")
    first = await api.call("POST", "/schedules", CREATE, headers=KEY)
    await api.call("DELETE", "/schedules/nightly")
    again = await api.call("POST", "/schedules", CREATE, headers=KEY)
    assert (first.status_code, again.status_code) == (409, 409)
    assert again.content == first.content


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
    asked = (api.call("POST", "/schedules/nightly/$run", {"overlap": "allow"}, headers=KEY) for _ in range(20))
    answers = await asyncio.gather(*asked)
    assert await api.count("jobs") == 1
    assert {answer.status_code for answer in answers} <= {202, 409}
    ran = [answer for answer in answers if answer.status_code == 202]
    assert len({answer.content for answer in ran}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in ran) == 1
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["code"] == "idempotency_in_progress"
            assert answer.headers["retry-after"] == "1"


async def test_a_request_that_died_lets_go_of_its_key_in_the_end(api: Api) -> None:
    await api.call("POST", "/schedules", CREATE, headers=KEY)
    await api.call("DELETE", "/schedules/nightly")
    await api.execute("UPDATE idempotency_keys SET state = 'running'")
    assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 409
    api.clock.set(NINE + idempotency.LEASE)
    assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 201


async def test_a_failure_of_ours_is_not_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(type(api.engine)):  # type: ignore[misc]
        async def create_schedules(self, *_: Any, **__: Any) -> Any:
            raise Unavailable("the database is out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(type(api.engine), "create_schedules", Broken.create_schedules)
        assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 503
    assert (await api.call("POST", "/schedules", CREATE, headers=KEY)).status_code == 201


async def test_each_org_has_keys_of_its_own(api: Api) -> None:
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


async def test_a_secret_is_told_once_and_not_stored(api: Api) -> None:
    body = {"name": "deploy", "role": "viewer"}
    first = await api.call("POST", "/api-keys", body, headers=KEY)
    again = await api.call("POST", "/api-keys", body, headers=KEY)
    assert (again.status_code, again.json()["code"]) == (409, "idempotency_secret")
    stored = await api.db.read(lambda tx: [tuple(row) for row in tx.exec_driver_sql("SELECT * FROM idempotency_keys")])
    assert first.json()["key"] not in str(stored)


async def test_keys_are_forgotten_after_a_day(api: Api) -> None:
    await api.call("POST", "/schedules/$preview", {"interval": "5m"}, headers=KEY)
    await Maintenance(api.engine).prune(NINE + timedelta(hours=23))
    assert await api.count("idempotency_keys") == 1
    await Maintenance(api.engine).prune(NINE + timedelta(hours=25))
    assert await api.count("idempotency_keys") == 0


async def test_a_get_has_no_use_for_it(api: Api) -> None:
    assert (await api.call("GET", "/schedules", headers=KEY)).status_code == 200
    assert await api.count("idempotency_keys") == 0
