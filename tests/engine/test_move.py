"""An installation can move to another database; a move that was interrupted continues, and what differs is found."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update

from rota.access.store import accounts
from rota.core.errors import Conflict, DataRefused, Unavailable
from rota.db.blocking import reading, run_blocking
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx, database_now, draw_fence
from rota.db.migrate import migrate
from rota.db.rows import FENCES_SKIPPED, PAGE_ROWS
from rota.db.schema import check
from rota.db.tables import logs, metadata, orgs, workers
from rota.engine.move import copied, move, processes_on, reopen
from tests.app.command_line import environment
from tests.db.copies import fill, in_transaction, next_log_line, no_bar, sums
from tests.postgres import create_database, drop_database

PAGES = 15  # so many that a move is killed before its end


@pytest.fixture
def source(migrated_url: str) -> str:
    """A database with rows in every table, and no live worker."""
    fill(migrated_url, lines=PAGES * PAGE_ROWS - 1)
    return migrated_url


class Killed(BaseException):
    """The process ends here."""


def test_both_sides_are_equal_afterwards(source: str, empty_url: str) -> None:
    moved = move(source, empty_url, no_bar)
    assert sums(source) == sums(empty_url)
    assert moved.tables == len(metadata.tables) - 1  # without counters
    assert moved.rows == sum(rows for rows, _ in sums(source).values())
    assert in_transaction(empty_url, check) is None
    assert not in_transaction(empty_url, has_progress)
    assert in_transaction(empty_url, draw_fence) > FENCES_SKIPPED + in_transaction(source, draw_fence) - 2
    assert next_log_line(empty_url) == PAGES * PAGE_ROWS
    reopen(source)
    with pytest.raises(Conflict, match="not empty"):
        move(source, empty_url, no_bar)


@pytest.mark.long
def test_a_move_can_be_interrupted_before_any_statement_and_repeated(source: str, empty_url: str) -> None:
    """The crash is tried ever later; every part that was committed is kept."""
    position, done = 0, False
    while not done:
        position += 60
        seen = 0

        def reached(_: str, limit: int = position) -> None:
            nonlocal seen
            seen += 1
            if seen == limit:
                raise Killed

        try:
            with at_each_statement(reached):
                move(source, empty_url, no_bar)
            done = True
        except Killed:
            state = in_transaction(empty_url, check)
            assert state is not None
            assert "rota migrate" in state or "interrupted" in state
    assert position > 300
    assert sums(source) == sums(empty_url)
    assert in_transaction(empty_url, check) is None


def test_no_process_starts_on_the_source_of_a_move(source: str, empty_url: str, tmp_path: Path) -> None:
    target = empty_url.replace("postgres@", "postgres:secret@")
    rows = sums(source)
    move(source, target, no_bar)
    command = [sys.executable, "-m", "rota.app.cli"]
    env = environment(ROTA_DATABASE_URL=source, ROTA_PORT="0")
    for verb in ("up", "server", "worker", "migrate"):
        answer = subprocess.run(
            [*command, verb], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert answer.returncode == 1, answer.stderr
        assert "this installation has moved to" in answer.stderr
        assert "--force" in answer.stderr
        assert "secret" not in answer.stderr
        assert empty_url.rpartition("@")[2] in answer.stderr
    with pytest.raises(Unavailable, match="has moved to"):
        move(source, f"sqlite:///{tmp_path / 'third.db'}", no_bar)
    reopen(source)
    assert in_transaction(source, check) is None
    assert sums(source) == rows


@pytest.mark.long
def test_a_process_can_be_forced_to_use_the_source(migrated_url: str, empty_url: str, tmp_path: Path) -> None:
    source = migrated_url
    in_transaction(source, lambda tx: accounts.ensure_default_org(tx, database_now(tx)))
    move(source, empty_url, no_bar)
    command = [sys.executable, "-m", "rota.app.cli", "worker", "--force"]
    env = environment(ROTA_DATABASE_URL=source)
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not in_transaction(source, has_live_worker):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert in_transaction(source, check) is None


def has_live_worker(tx: Tx) -> bool:
    return bool(tx.execute(select(workers.c.id).where(workers.c.state == "alive")).all())


@pytest.mark.long
def test_a_killed_move_continues(source: str, empty_url: str, tmp_path: Path) -> None:
    process = start_move(source, empty_url, tmp_path)
    deadline = time.monotonic() + 60
    while not lines_in(empty_url):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    copied_lines = lines_in(empty_url)
    assert copied_lines % PAGE_ROWS == 0
    assert 0 < copied_lines < PAGES * PAGE_ROWS, "it was too fast for this test"
    with pytest.raises(Unavailable, match="a move into this database was interrupted"):
        migrate(empty_url)
    with pytest.raises(Conflict, match="incomplete"):
        restore_nothing(empty_url)
    again = start_move(source, empty_url, tmp_path)
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert "equal on both sides" in errors
    assert sums(source) == sums(empty_url)


def test_a_source_that_changed_during_an_interruption_is_found(source: str, empty_url: str) -> None:
    interrupt_after_logs(source, empty_url)
    change = update(logs).where(logs.c.id == 1).values(text="changed")
    in_transaction(source, lambda tx: tx.execute(change) and None)
    with pytest.raises(Conflict, match=f"table logs has {PAGES * PAGE_ROWS - 1} rows in the source and"):
        move(source, empty_url, no_bar)
    state = in_transaction(empty_url, check)
    assert state is not None
    assert "interrupted" in state


def test_live_workers_are_named(source: str, empty_url: str, tmp_path: Path) -> None:
    def lease(seconds: float) -> Callable[[Tx], None]:
        def write(tx: Tx) -> None:
            alive = {"state": "alive", "lease_until": database_now(tx) + timedelta(seconds=seconds)}
            tx.execute(update(workers).where(workers.c.id == "1id").values(**alive, host="red", pid=7))

        return write

    in_transaction(source, lease(600))
    with pytest.raises(Conflict, match=r"in use by worker 1id \(process 7 on red\)"):
        move(source, empty_url, no_bar)
    process = start_move(source, empty_url, tmp_path, "--wait")
    assert process.stderr is not None
    while "waiting for worker 1id (process 7 on red)" not in (line := process.stderr.readline()):
        assert line, "the move ended without waiting"
    in_transaction(source, lease(-1))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_a_connected_process_is_found(source: str, tmp_path: Path) -> None:
    """A server has no registration, but it is connected."""
    assert processes_on(source) == []
    program = (
        "import asyncio, sys\nfrom rota.db.connection import open_database\nfrom rota.db.schema import check\n"
        "async def main():\n    db = open_database(sys.argv[1])\n    await db.read(check)\n"
        "    print('open', flush=True)\n"
        "    await asyncio.get_running_loop().create_future()\nasyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, source], env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        expected = "a process that has the file open" if source.startswith("sqlite") else "a Rota process on 127.0.0.1"
        assert processes_on(source) == [expected]
    finally:
        process.kill()
        process.wait()
    until = time.monotonic() + 10
    while processes_on(source):
        assert time.monotonic() < until


@pytest.mark.long
def test_no_other_process_can_write_to_the_source_during_a_move(source: str, empty_url: str, tmp_path: Path) -> None:
    """Another process that writes waits until the move has ended."""
    program = (
        "import sys\nfrom tests.db.copies import next_log_line\nprint('go', flush=True)\n"
        "next_log_line(sys.argv[1])\nprint('written', flush=True)\n"
    )
    writer: list[subprocess.Popen[str]] = []

    def reached(statement: str) -> None:
        if "copied" in statement and not writer:
            command = [sys.executable, "-c", program, source]
            path = {"PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
            writer.append(subprocess.Popen(command, env=environment(**path), stdout=subprocess.PIPE, text=True))
            assert writer[0].stdout is not None
            assert writer[0].stdout.readline() == "go\n"

    before = sums(source)
    with at_each_statement(reached):
        move(source, empty_url, no_bar)
    assert writer[0].wait(60) == 0
    assert sums(empty_url) == before
    assert sums(source)["logs"][0] == before["logs"][0] + 1


def test_a_source_of_an_old_schema_is_refused(source: str, empty_url: str) -> None:
    in_transaction(source, lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '0001'")) and None)
    with pytest.raises(Unavailable, match="old schema"):
        move(source, empty_url, no_bar)


def test_a_row_that_the_target_refuses_ends_the_move(sqlite_template: Path, postgres_url: str, tmp_path: Path) -> None:
    """SQLite stores text of any length; PostgreSQL does not."""
    source = f"sqlite:///{tmp_path / 'source.db'}"
    migrate(source)
    row = {"id": "1id", "slug": "x" * 61, "name": "long", "created_at": None}

    def store(tx: Tx) -> None:
        tx.execute(insert(orgs).values(row | {"created_at": database_now(tx)}))

    in_transaction(source, store)
    target = create_database(postgres_url)
    try:
        with pytest.raises(DataRefused, match="value too long"):
            move(source, target, no_bar)
    finally:
        drop_database(postgres_url, target)


def start_move(source: str, target: str, place: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rota.app.cli", "db", "move", "--from", source, "--to", target, *options]
    return subprocess.Popen(command, cwd=place, env=environment(), stderr=subprocess.PIPE, text=True)


def interrupt_after_logs(source: str, target: str) -> None:
    """Interrupt a move when some log lines are copied."""
    batches = 0

    def reached(statement: str) -> None:
        nonlocal batches
        batches += statement.startswith("INSERT INTO logs")
        if batches == 3:
            raise Killed

    with pytest.raises(Killed), at_each_statement(reached):
        move(source, target, no_bar)
    assert lines_in(target) == 2 * PAGE_ROWS


def lines_in(url: str) -> int:
    """Return the number of log lines in a database, 0 if it has no table of them."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite") and not (path.exists() and path.stat().st_size):
        return 0

    def count() -> int:
        with reading(url) as tx:
            if not tx.dialect.has_table(tx, "logs"):
                return 0
            return int(tx.execute(text("SELECT count(*) FROM logs")).scalar_one())

    return run_blocking(count)


def has_progress(tx: Tx) -> bool:
    return bool(tx.dialect.has_table(tx, copied.name))


def restore_nothing(url: str) -> None:
    from rota.db.rows import create_empty

    in_transaction(url, lambda tx: create_empty(tx, "0001"))
