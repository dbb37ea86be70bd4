"""An installation works for a while; then its tables and its logs are searched for what only its owners may know."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from rota.db.connection import open_database
from rota.db.tables import metadata
from rota.frame.web.sessions import SESSION_COOKIE
from tests.app.command_line import caller, environment, read, running_server
from tests.postgres import create_database, drop_database

TOKEN = "service-token-that-must-not-leak"
PASSWORD = "correct horse battery"
GUESSES = ("rota_guess-of-a-key", "guess-of-a-service-token", "guess-of-a-session", "guess-of-a-link")


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A server that leaves the queue `far` to others, and where its database is."""
    env = {"ROTA_SERVICE_TOKEN": TOKEN, "ROTA_LOG_LEVEL": "debug", "ROTA_QUEUES": "default"}
    if request.param == "sqlite":
        with running_server(tmp_path, **env):
            yield tmp_path, f"sqlite:///{tmp_path / 'data' / 'rota.db'}"
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    with running_server(tmp_path, ROTA_DATABASE_URL=url, **env):
        yield tmp_path, url
    drop_database(server, url)


def test_no_session_token_or_key_is_in_any_table_or_log_line(home: tuple[Path, str]) -> None:
    place, url = home
    rota, server = caller(place), json.loads((place / "data" / "server.json").read_text())["url"]
    secrets = [TOKEN, PASSWORD, (place / "data" / "admin.key").read_text().strip(), *GUESSES]

    # users: a password, keys, a login link, the session that it opens
    assert rota("user", "add", "ada@example.org", "--role", "operator", ROTA_PASSWORD=PASSWORD).returncode == 0
    key = read(rota("-o", "json", "key", "add", "ci", "--role", "operator"))["key"]
    link = read(rota("-o", "json", "login"))["url"]
    with httpx.Client(base_url=server, timeout=60) as browser:
        assert browser.get(link).status_code == 303
        assert browser.get("/").status_code == 200
        sessions = list(browser.cookies.values())
        assert browser.get(f"/login?token={GUESSES[3]}").status_code == 403
    assert httpx.get(f"{server}/", cookies={SESSION_COOKIE: GUESSES[2]}, timeout=60).status_code == 303
    assert rota("--key", GUESSES[0], "run", "list").returncode == 5
    start_link = (place / "data" / "login.url").read_text().strip()  # stderr is a file, which others may read
    secrets += [key, link.partition("token=")[2], start_link.partition("token=")[2], *sessions]

    # graphs: by a key, by a schedule and its grant, by the service token, and by a worker elsewhere
    say = ["--input", '{"say": "spring"}']
    assert rota("--key", key, "graph", "run", "python:echo", *say, "--wait").returncode == 0
    assert rota("schedule", "add", "poem", "--graph", "python:echo", "--every", "1h", *say).returncode == 0
    assert rota("schedule", "run", "poem", "--wait").returncode == 0
    grant = read(rota("-o", "json", "schedule", "show", "poem"))["grant_id"]
    order: dict[str, Any] = {"json": {"grant_id": grant, "input": {"say": "x"}}}
    for token, status in ((TOKEN, 200), (GUESSES[1], 401)):
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "once"}
        answer = httpx.post(f"{server}/api/internal/graphs/python:echo:run", headers=headers, timeout=60, **order)
        assert answer.status_code == status
    with elsewhere(place, url, server):
        body = {"name": "far", "kind": "graph", "target": "python:echo", "interval": "1h", "queue": "far"}
        made = httpx.post(
            f"{server}/api/v1/schedules", json={**body, "input": {"say": "far"}}, headers={"x-api-key": key}
        )
        assert made.status_code == 201, made.text
        assert rota("schedule", "run", "far", "--wait", "--timeout", "30").returncode == 0
    assert rota("grant", "revoke", grant).returncode == 0
    assert rota("schedule", "run", "poem", "--wait").returncode == 7

    tables = asyncio.run(dump(url))
    lines = (place / "up.log").read_text() + (place / "far.log").read_text()
    for known in (grant, "ada@example.org", "spring"):
        assert known in tables  # it is all of them
    assert lines.count("run ended") >= 3
    assert len({secret for secret in secrets if len(secret) > 12}) == len(secrets) == 11
    assert [secret for secret in secrets if secret in tables] == []
    assert [secret for secret in secrets if secret in lines] == []


@contextmanager
def elsewhere(place: Path, url: str, server: str) -> Iterator[None]:
    """A worker for the queue `far`, which has no graphs itself."""
    env = environment(
        ROTA_DATABASE_URL=url,
        ROTA_GRAPH_ENDPOINT=server,
        ROTA_SERVICE_TOKEN=TOKEN,
        ROTA_QUEUES="far",
        ROTA_LOG_LEVEL="debug",
    )
    with (place / "far.log").open("wb") as log:
        command = [sys.executable, "-m", "rota.app.cli", "worker"]
        process = subprocess.Popen(command, cwd=place, env=env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (place / "far.log").read_text()


async def dump(url: str) -> str:
    """All that the database has."""
    db = open_database(url)
    try:
        contents = await db.read(lambda tx: [list(tx.execute(select(table))) for table in metadata.sorted_tables])
    finally:
        await db.close()
    return "\n".join(str(row) for rows in contents for row in rows)
