"""Other users of the machine can read nothing of an installation, also not one that was made with an open umask."""

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rota.app.data_dir import close_to_others, is_shared, open_to_others
from rota.app.doctor import examine
from rota.app.settings import Settings
from rota.db.user_session import Database
from rota.kinds.pipelines.duckdb import DuckDB
from rota.kinds.pipelines.executor import Materialisation
from tests.app.command_line import running_server


def open_paths(directory: Path) -> list[str]:
    """Everything under a directory, itself included, that others than its owner can reach."""
    paths = [directory, *directory.rglob("*")]
    return [str(path) for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_a_new_installation_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with running_server(tmp_path):
            names = {path.name for path in (tmp_path / "data").iterdir()}
            assert {"rota.db", "rota.db-wal", "rota.db-shm", "admin.key", "server.json"} <= names
            assert open_paths(tmp_path / "data") == []
    finally:
        os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing_of_the_database() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        settings = installation(Path(place) / "data", 0o755, 0o644)
        code = f"import os; os.setuid(65534); open({str(Path(place) / 'data' / 'rota.db')!r}).read()"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        close_to_others(settings)
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "PermissionError" in answer.stderr


def test_an_open_installation_is_closed_at_the_start_and_the_log_names_what_was_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = installation(data, 0o755, 0o644)
    (data / "warehouse").mkdir(mode=0o755)
    outside = tmp_path / "notes.txt"
    outside.write_text("")
    outside.chmod(0o644)
    (data / "login.url").symlink_to(outside)
    with capture_logs() as logs:
        close_to_others(settings)
    assert open_to_others(settings) == []
    assert [log_entry["event"] for log_entry in logs] == [
        "other users of this machine could read these; closed to them now"
    ]
    assert str(data / "rota.db-wal") in logs[0]["paths"]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644  # a link is not followed
    with capture_logs() as logs:
        close_to_others(settings)
    assert logs == []


def test_a_database_elsewhere_is_closed_too(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    settings = Settings(data_dir=tmp_path / "data", database_url=f"sqlite:///{other}")
    for name in ("other.db", "other.db-wal", "other-own.db", "other.txt"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(0o644)
    close_to_others(settings)
    assert [name for name in open_paths(tmp_path) if not name.endswith("other.txt") and name != str(tmp_path)] == []
    assert stat.S_IMODE((tmp_path / "other.txt").stat().st_mode) == 0o644


def test_a_directory_that_others_use_keeps_its_mode_and_the_files_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = installation(tmp_path, 0o755, 0o644)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text("")
    (tmp_path / "main.py").chmod(0o644)
    with capture_logs() as logs:
        close_to_others(settings)
    assert logs[-1]["event"] == "other users can list the data directory; its files are closed"
    assert is_shared(tmp_path)
    assert open_paths(tmp_path) == [str(tmp_path), str(tmp_path / "main.py")]


def test_the_doctor_complains_about_open_files(tmp_path: Path) -> None:
    settings = installation(tmp_path / "data", 0o755, 0o644)
    (complaint,) = [finding for finding in examine(settings) if finding.what == "modes"]
    assert complaint.verdict == "wrong"
    assert re.search(r"data, .*/rota\.db.*chmod go=", complaint.detail)
    close_to_others(settings)
    assert [finding.verdict for finding in examine(settings) if finding.what == "modes"] == ["ok"]


async def test_tables_of_pipelines_and_databases_of_tasks_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = tmp_path / "data" / "warehouse"
        await DuckDB(place, 1).submit(Materialisation("run", "org", "shop/raw/one", (), "SELECT 1 AS a"))
        async with Database(f"sqlite:///{tmp_path / 'data' / 'rota.db'}").session():
            pass
    finally:
        os.umask(before)
    assert (place / "org" / "shop" / "raw" / "one.parquet").exists()
    assert (tmp_path / "data" / "rota-own.db").exists()
    assert open_paths(tmp_path / "data") == []


def installation(data: Path, directory_mode: int, file_mode: int) -> Settings:
    """A data directory as an older version, or another program, left it."""
    data.mkdir(exist_ok=True)
    data.chmod(directory_mode)
    for name in ("rota.db", "rota.db-wal", "rota.db-shm", "rota-own.db", "admin.key"):
        (data / name).write_bytes(b"")
        (data / name).chmod(file_mode)
    return Settings(data_dir=data)
