"""`rota db …` and `rota migrate --sql` as an operator calls them."""

import stat
from pathlib import Path

import pytest

from tests.app.command_line import caller, on_terminal, read, run
from tests.databases import copy_sqlite
from tests.db.copies import fill, sums


@pytest.fixture
def home(tmp_path: Path, sqlite_template: Path) -> Path:
    """A data directory with rows of every kind."""
    (tmp_path / "data").mkdir(mode=0o700)
    url = f"sqlite:///{tmp_path / 'data' / 'rota.db'}"
    copy_sqlite(sqlite_template, url)
    fill(url)
    (tmp_path / "data" / "admin.key").write_text("key")
    return tmp_path


def test_backup_verify_and_restore(home: Path) -> None:
    written = run(home, "db", "backup", "here.backup")
    assert written.returncode == 0, written.stderr
    assert "rows" in written.stdout
    assert "not in the file; save them beside it: data/admin.key, settings (ROTA_…), your programs" in written.stderr
    assert stat.S_IMODE((home / "here.backup").stat().st_mode) == 0o600
    report = read(run(home, "-o", "json", "db", "verify", "here.backup"))
    assert report["file"] == "here.backup"
    assert report["rows"] == sum(entry["rows"] for entry in report["tables"]) > 80
    restored = run(home, "db", "restore", "here.backup", "--database", f"sqlite:///{home / 'other.db'}")
    assert restored.returncode == 0, restored.stderr
    assert "rota admin reset-key" in restored.stderr
    assert sums(f"sqlite:///{home / 'other.db'}")["runs"] == sums(f"sqlite:///{home / 'data' / 'rota.db'}")["runs"]
    again = run(home, "db", "restore", "here.backup")
    assert again.returncode == 4
    assert again.stderr.startswith("error: the database is not empty, it has 7 slots, 5 logs, 2 workflows, ")


def test_a_progress_bar_is_shown_on_a_terminal(home: Path) -> None:
    assert "backup" in on_terminal(home, "db", "backup", "here.backup")


def test_errors_are_one_sentence(home: Path) -> None:
    rota = caller(home)
    missing = rota("db", "verify", str(home / "missing"))
    assert (missing.returncode, missing.stderr) == (3, f"error: {home / 'missing'} does not exist\n")
    (home / "cut").write_bytes(b"PK\x03\x04")
    cut = run(home, "db", "verify", "cut")
    assert cut.returncode == 1
    assert cut.stderr == "error: cut is cut short, damaged, or not a backup of Rota: File is not a zip file\n"
    nowhere = run(home, "db", "backup", "no/such/directory/file")
    assert nowhere.returncode == 1
    assert "No such file or directory" in nowhere.stderr
    wrong = run(home, "db", "move", "--to", "mysql://x")
    assert wrong.returncode == 2
    assert "use sqlite:///path or postgresql://" in wrong.stderr


def test_move_says_what_to_change(home: Path) -> None:
    target = f"sqlite:///{home / 'moved.db'}"
    moved = run(home, "db", "move", "--to", target)
    assert moved.returncode == 0, moved.stderr
    assert "Set ROTA_DATABASE_URL of all processes" in moved.stderr
    assert sums(target) == sums(f"sqlite:///{home / 'data' / 'rota.db'}")


def test_the_sql_of_a_migration_is_printed(home: Path) -> None:
    printed = run(home, "migrate", "--sql", "--database-url", f"sqlite:///{home / 'new.db'}")
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith("BEGIN IMMEDIATE;\n\nCREATE TABLE alembic_version")
    assert not (home / "new.db").exists()
    assert run(home, "migrate", "--sql").stdout == ""
