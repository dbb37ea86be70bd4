"""The cache of API keys: no statement per request, and no access after a key or its user changed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine as SqlEngine

from rota.access import authentication
from rota.access.authentication import StoredCredentials
from rota.access.store import accounts
from rota.core.clock import real_sleep
from rota.db.connection import open_database
from rota.db.statement import statement_listeners
from rota.db.wake import Wake
from rota.frame.http.auth import Role, Unauthenticated
from tests.access.test_people import ADA, key_of
from tests.app.harness import NINE, Api


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Every statement that reaches the driver."""
    texts: list[str] = []

    def on_core(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        texts.append(statement)

    def on_hot(sql: str, _: object) -> None:
        texts.append(sql)

    event.listen(SqlEngine, "before_cursor_execute", on_core)
    statement_listeners.append(on_hot)
    try:
        yield texts
    finally:
        statement_listeners.remove(on_hot)
        event.remove(SqlEngine, "before_cursor_execute", on_core)


@asynccontextmanager
async def other_process(url: str) -> AsyncIterator[StoredCredentials]:
    """The credentials of another process on the same database, which listens for notifications."""
    db, wake = open_database(url), Wake()
    changes = wake.access_changes
    listening = asyncio.ensure_future(wake.listen(db))
    try:
        while wake.access_changes == changes:  # it signals once when it has begun to listen
            await real_sleep(0.01)
        yield StoredCredentials(db, wake)
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await db.close()


@pytest.mark.parametrize("path", ["/runs", "/schedules", "/schedules?tag=a", "/runs?status=failed"])
async def test_a_list_is_one_statement(api: Api, path: str) -> None:
    await api.schedule("nightly", tags=["a"])
    await api.get(path)
    with counted_statements() as texts:
        await api.get(path)
    assert len([text for text in texts if text != "BEGIN"]) == 1, texts


async def test_a_revoked_key_is_refused_at_once_by_the_server_that_revoked_it(api: Api) -> None:
    key_id, headers = await key_of(api)
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 200
    with_key = {"idempotency-key": "k1"}
    assert (await api.call("DELETE", f"/api-keys/{key_id}", headers=with_key)).status_code == 204
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 401


async def test_a_lower_role_and_the_end_of_a_user_count_at_once(api: Api) -> None:
    user = (await api.call("POST", "/users", {**ADA, "role": "admin"})).json()
    options: Any = {"user_id": user["id"]}
    text = await api.db.tx(lambda tx: accounts.create_key(tx, api.org_id, "ada's", "admin", NINE, **options))
    headers = {"authorization": f"Bearer {text}"}
    assert (await api.call("GET", "/users", headers=headers)).status_code == 200
    assert (await api.call("PATCH", f"/users/{user['id']}", {"role": "viewer"})).status_code == 200
    assert (await api.call("GET", "/users", headers=headers)).status_code == 403
    assert (await api.call("DELETE", f"/users/{user['id']}")).status_code == 204
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 401


async def test_other_processes_are_notified(api: Api, clean_url: str) -> None:
    key_id, headers = await key_of(api)
    text = headers["authorization"].removeprefix("Bearer ")
    now = datetime.now(UTC)
    async with other_process(clean_url) as there:
        caller = await there.caller_by_key(text, now)
        assert caller is not None
        assert caller.role is Role.OPERATOR
        changes = there.wake.access_changes
        await api.call("DELETE", f"/api-keys/{key_id}")
        async with asyncio.timeout(10):
            while there.wake.access_changes == changes:
                await real_sleep(0.01)
        with pytest.raises(Unauthenticated, match="revoked"):
            await there.caller_by_key(text, now)


async def test_without_a_notification_the_cache_ends_by_itself(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 0.0
    monkeypatch.setattr(authentication, "stopwatch", lambda: passed)
    _, headers = await key_of(api)
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 200
    await api.execute("UPDATE api_keys SET revoked_at = created_at WHERE name = 'k'")
    passed = authentication.CACHE_SECONDS - 0.1
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 200
    passed = authentication.CACHE_SECONDS
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 401
    assert authentication.CACHE_SECONDS <= 5


async def test_a_key_that_was_read_before_its_end_is_not_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, headers = await key_of(api)
    text = headers["authorization"].removeprefix("Bearer ")
    credentials = StoredCredentials(api.db, api.engine.wake)
    read = api.db.read

    async def read_then_revoke(*args: Any, **kwargs: Any) -> Any:
        key = await read(*args, **kwargs)
        await api.call("DELETE", f"/api-keys/{key_id}")
        return key

    with monkeypatch.context() as patched:
        patched.setattr(api.db, "read", read_then_revoke)
        assert await credentials.caller_by_key(text, NINE) is not None
    with pytest.raises(Unauthenticated, match="revoked"):
        await credentials.caller_by_key(text, NINE)


async def test_unknown_keys_are_not_kept_and_the_cache_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "CACHED_KEYS", 2)
    credentials = StoredCredentials(api.db, api.engine.wake)
    for number in range(5):
        assert await credentials.caller_by_key(f"rota_unknown{number}", NINE) is None
    assert not credentials._keys
    for _ in range(5):
        _, headers = await key_of(api)
        assert await credentials.caller_by_key(headers["authorization"].removeprefix("Bearer "), NINE) is not None
        assert len(credentials._keys) <= 2
