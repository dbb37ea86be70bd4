"""What a worker process does when it starts."""

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from rota.app import api_thread, main
from rota.app import node as node_module
from rota.app.application import Rota
from rota.app.settings import Settings
from rota.app.signals import Shutdown
from rota.core.errors import Unavailable
from rota.engine import warmup
from rota.kinds.tasks.declare import declare
from tests.app.command_line import run


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> node_module.Node:
    monkeypatch.setattr(node_module, "WARM_UP_POLL_SECONDS", 0.01)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # objects of tests must stay collectable
    return node_module.Node(Settings.load(data_dir=tmp_path), Rota(), None)


async def test_the_warm_up_waits_until_the_worker_is_not_full(
    node: node_module.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    worker: Any = SimpleNamespace(prefetch=SimpleNamespace(free_places=0))
    node.worker = worker

    async def warm_up(*_: Any) -> None:
        begun.set()

    monkeypatch.setattr(warmup, "warm_up", warm_up)
    engine: Any = None
    warming = asyncio.ensure_future(node.warm_up(engine))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(begun.wait(), 0.1)
    worker.prefetch.free_places = 1
    await asyncio.wait_for(begun.wait(), 5)
    await warming


async def test_an_interrupted_warm_up_does_not_stop_the_node(
    node: node_module.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def warm_up(*_: Any) -> None:
        raise Unavailable("the database is out of reach")

    monkeypatch.setattr(warmup, "warm_up", warm_up)
    engine: Any = None
    await node.warm_up(engine)


def test_a_worker_loads_no_more_than_it_needs() -> None:
    heavy = "alembic", "duckdb", "fastapi", "httpx", "jinja2", "sqlalchemy.orm"
    script = f"import sys, rota.app.cli, rota.app.main; print([one for one in {heavy} if one in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("command", ["migrate", "up", "worker"])
def test_a_missing_database_is_one_sentence_and_exit_code_1(command: str, tmp_path: Path, postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    user = parts.username or "postgres"
    there = f"{user}:secret-word@{parts.hostname}:{parts.port}"
    url = urlunsplit(parts._replace(netloc=there, path="/no_such_database"))
    answer = run(tmp_path, command, "--database-url", url, ROTA_PORT="0")
    assert answer.returncode == 1, answer.stderr
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("error: the database cannot be used: ")
    assert "no_such_database" in last
    assert "Traceback" not in answer.stderr
    assert "secret-word" not in answer.stderr


async def test_a_start_survives_a_short_outage_of_the_database(
    node: node_module.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(main.migrate, node.settings)
    failures = [Unavailable("the connection was lost"), Unavailable("connection refused")]
    prepared = asyncio.Event()

    async def blinking(*args: Any) -> None:
        if failures:
            raise failures.pop()
        await declare(*args)

    monkeypatch.setattr(node_module, "declare", blinking)
    node.on_prepared = prepared.set
    shutdown = Shutdown()
    running = asyncio.ensure_future(node.run(shutdown))
    await asyncio.wait_for(prepared.wait(), 30)
    shutdown.drain.set()
    await asyncio.wait_for(running, 30)
    assert not failures


APP = """from rota import Rota
import helper

app = Rota()

@app.task
def hello(name: str) -> None: ...

{declaration}
"""


def start(place: Path, declaration: str = "", helper: str = "") -> str:
    """What `rota up` prints of a program that is wrong."""
    (place / "app.py").write_text(APP.format(declaration=declaration))
    (place / "helper.py").write_text(helper)
    answer = run(place, "up", "app.py", ROTA_PORT="0")
    assert answer.returncode == 2, answer.stderr
    assert "Rota is up" not in answer.stderr
    assert "src/rota" not in answer.stderr
    assert "typer" not in answer.stderr
    return answer.stderr


def test_a_schedule_that_is_refused_is_reported_with_its_name_file_and_line(tmp_path: Path) -> None:
    shown = start(tmp_path, 'app.schedule(\n    "nightly", hello, every="1h"\n)')
    assert f"error: {tmp_path}/app.py:9: schedule 'nightly': " in shown
    assert "name" in shown.partition("schedule 'nightly': ")[2]


def test_a_mistake_in_a_declaration_is_reported_with_file_and_line(tmp_path: Path) -> None:
    twice = 'app.schedule("nightly", hello, every="1h")\napp.schedule("nightly", hello, every="2h")'
    assert f"error: {tmp_path}/app.py:10: name: 'nightly' is declared twice" in start(tmp_path, twice)


def test_an_import_that_fails_shows_the_frames_of_the_program_only(tmp_path: Path) -> None:
    shown = start(tmp_path, helper="import no_such_module")
    assert "error: app.py cannot be loaded:" in shown
    assert 'app.py", line 2' in shown
    assert 'helper.py", line 1' in shown
    assert shown.rstrip().endswith("ModuleNotFoundError: No module named 'no_such_module'")
    assert shown.count("File ") == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_server_says_whether_its_data_directory_has_the_first_key(
    first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if first:
        (tmp_path / "admin.key").write_text("rota_x\n")
    api_thread.announce(Settings(data_dir=tmp_path), "http://127.0.0.1:8420", None)
    last = capsys.readouterr().err.splitlines()[-1]
    expected = f"data and admin key: {tmp_path}" if first else f"data: {tmp_path}; {api_thread.NO_FIRST_KEY}"
    assert last == expected
