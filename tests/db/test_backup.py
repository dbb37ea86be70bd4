"""A backup can be restored into either database, completely or not at all; a file that is not whole is refused."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rota.core.errors import Conflict, DamagedFile, NotFound, Unavailable
from rota.db.backup import LEFT_OUT, backup, restore, verify
from rota.db.dialect import draw_fence
from rota.db.migrate import migrate, rebuild
from rota.db.rows import FENCES_SKIPPED, Progress, TableSum
from rota.db.schema import check
from tests.app.command_line import environment
from tests.databases import copy_sqlite
from tests.db.copies import fill, in_transaction, next_log_line, no_bar, sums
from tests.db.test_migrations import fill_every_table, in_database, rows_of_every_table


@pytest.fixture
def small_file(tmp_path: Path, sqlite_template: Path) -> Path:
    """A backup of a SQLite database with a row of every kind."""
    url = f"sqlite:///{tmp_path / 'small.db'}"
    copy_sqlite(sqlite_template, url)
    fill(url)
    backup(url, tmp_path / "small.backup", no_bar)
    return tmp_path / "small.backup"


def test_a_restored_database_has_the_same_rows(migrated_url: str, empty_url: str, tmp_path: Path) -> None:
    fill(migrated_url, lines=2500)
    file = tmp_path / "backup"
    manifest = backup(migrated_url, file, no_bar)
    assert verify(file, no_bar) == manifest
    assert restore(file, empty_url, no_bar) == manifest
    before, after = sums(migrated_url), sums(empty_url)
    assert {name for name in before if before[name] != after[name]} == set(LEFT_OUT)
    assert after["logs"][0] == 2500
    assert {entry["name"]: (entry["rows"], entry["hash"]) for entry in manifest["tables"]} == {
        name: entry for name, entry in before.items() if name not in LEFT_OUT
    }
    assert in_transaction(empty_url, check) is None
    assert in_transaction(empty_url, draw_fence) > FENCES_SKIPPED + in_transaction(migrated_url, draw_fence) - 2
    assert next_log_line(empty_url) == 2501


def test_a_backup_of_an_older_schema_is_migrated(database_url: str, empty_url: str, tmp_path: Path) -> None:
    in_database(database_url, lambda tx: rebuild(tx, "0001"))
    in_database(database_url, fill_every_table)
    assert backup(database_url, tmp_path / "backup", no_bar)["revision"] == "0001"
    restore(tmp_path / "backup", empty_url, no_bar)
    assert in_transaction(empty_url, check) is None
    migrate(database_url)
    before, after = sums(database_url), sums(empty_url)
    assert {name for name in before if before[name] != after[name]} == {"login_links"}


def test_a_migrated_database_without_rows_is_empty(small_file: Path, migrated_url: str) -> None:
    restore(small_file, migrated_url, no_bar)
    assert sums(migrated_url)["orgs"][0] == 2


def test_a_database_with_rows_is_refused_and_not_changed(small_file: Path, migrated_url: str) -> None:
    fill(migrated_url)
    before = sums(migrated_url)
    with pytest.raises(Conflict, match=r"not empty, it has 7 slots, 5 logs, 2 workf.* and rows of \d+ more tables;"):
        restore(small_file, migrated_url, no_bar)
    assert sums(migrated_url) == before


def test_a_restore_that_fails_leaves_nothing(small_file: Path, empty_url: str, tmp_path: Path) -> None:
    """A row that breaks a foreign key, with the right hash in the manifest."""
    changed = tmp_path / "changed"
    lines = zipfile.ZipFile(small_file).read("clocks.jsonl").splitlines()
    rewrite(small_file, changed, "clocks.jsonl", b"\n".join(line.replace(b"1id", b"9id") for line in lines) + b"\n")
    with pytest.raises(Exception, match="refused a row"):
        restore(changed, empty_url, no_bar)
    assert in_transaction(empty_url, rows_of_every_table) == {}


@pytest.mark.parametrize("part", [0, 1, 100, 0.25, 0.5, 0.75, 0.95, -100, -22, -1])
def test_a_file_that_was_cut_short_is_refused(small_file: Path, part: float) -> None:
    whole = small_file.read_bytes()
    length = part if isinstance(part, int) else int(len(whole) * part)
    small_file.write_bytes(whole[:length])
    with pytest.raises(DamagedFile, match=r"small\.backup is cut short, damaged, or not a backup"):
        verify(small_file, no_bar)


def test_a_changed_byte_is_found_wherever_it_is(small_file: Path, empty_url: str) -> None:
    whole = small_file.read_bytes()
    with zipfile.ZipFile(small_file) as archive:
        starts = [entry.header_offset for entry in archive.infolist()] + [archive.start_dir]
    for start, end in pairwise(starts):
        offset = end - 8  # in the last bytes of the compressed content
        if end > start + 100:
            small_file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 255]) + whole[offset + 1 :])
            with pytest.raises(DamagedFile):
                restore(small_file, empty_url, no_bar)
    if not empty_url.startswith("sqlite"):
        assert in_transaction(empty_url, rows_of_every_table) == {}


def test_no_changed_byte_of_the_directory_causes_another_error(small_file: Path) -> None:
    whole = small_file.read_bytes()
    with zipfile.ZipFile(small_file) as archive:
        first = archive.start_dir
    for offset in (*range(first, first + 46), *range(len(whole) - 22, len(whole))):
        for bits in (1, 255):
            small_file.write_bytes(whole[:offset] + bytes([whole[offset] ^ bits]) + whole[offset + 1 :])
            with suppress(DamagedFile):  # some are not used, such as the date
                verify(small_file, no_bar)


@pytest.mark.parametrize("manifest", [b"{}", b"[1]", b"no JSON", b'{"format": 1}'])
def test_a_zip_archive_of_something_else_is_refused(small_file: Path, tmp_path: Path, manifest: bytes) -> None:
    rewrite(small_file, tmp_path / "other", "manifest.json", manifest, keep_manifest=True)
    with pytest.raises(DamagedFile, match=r"not a backup of Rota: its manifest\.json is that of something else"):
        verify(tmp_path / "other", no_bar)


def test_a_row_that_is_missing_or_changed_is_found(small_file: Path, tmp_path: Path) -> None:
    lines = zipfile.ZipFile(small_file).read("logs.jsonl").splitlines(keepends=True)
    for other in (b"".join(lines[1:]), b"".join(lines).replace(b"2 na", b"3 na"), b"".join([*lines, lines[0]])):
        rewrite(small_file, tmp_path / "changed", "logs.jsonl", other, keep_manifest=True)
        with pytest.raises(DamagedFile, match=r"table logs has . rows that differ from the 5 of its manifest"):
            verify(tmp_path / "changed", no_bar)


@pytest.mark.parametrize("change", [{"format": 2}, {"revision": "9999"}])
def test_a_backup_of_a_newer_version_is_refused(
    small_file: Path, tmp_path: Path, empty_url: str, change: dict[str, Any]
) -> None:
    manifest = json.loads(zipfile.ZipFile(small_file).read("manifest.json")) | change | {"version": "9.9"}
    rewrite(small_file, tmp_path / "newer", "manifest.json", json.dumps(manifest).encode(), keep_manifest=True)
    with pytest.raises(Unavailable, match=r"written by a newer Rota \(9\.9, schema .*\); upgrade"):
        restore(tmp_path / "newer", empty_url, no_bar)


def test_columns_that_its_schema_does_not_have_are_refused(small_file: Path, tmp_path: Path, empty_url: str) -> None:
    manifest = json.loads(zipfile.ZipFile(small_file).read("manifest.json"))
    next(table for table in manifest["tables"] if table["name"] == "logs")["columns"][0] = "other"
    rewrite(small_file, tmp_path / "other", "manifest.json", json.dumps(manifest).encode(), keep_manifest=True)
    with pytest.raises(DamagedFile, match="table logs has other columns than those of its schema"):
        restore(tmp_path / "other", empty_url, no_bar)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing does not exist"):
        verify(tmp_path / "nothing", no_bar)
    (tmp_path / "text").write_text("no backup")
    with pytest.raises(DamagedFile, match="not a backup"):
        verify(tmp_path / "text", no_bar)
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("logs.jsonl", "")
    with pytest.raises(DamagedFile, match=r"has no manifest\.json"):
        verify(tmp_path / "zip", no_bar)


def test_a_missing_table_is_found(small_file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(small_file) as old, zipfile.ZipFile(tmp_path / "less", "w") as new:
        new.writestr("manifest.json", old.read("manifest.json"))
    with pytest.raises(DamagedFile, match=r"it has no acknowledgements\.jsonl, alarm_channels\.jsonl"):
        verify(tmp_path / "less", no_bar)


def test_a_missing_database_is_not_created_by_its_backup(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        backup(f"sqlite:///{tmp_path / 'missing.db'}", tmp_path / "backup", no_bar)
    assert list(tmp_path.iterdir()) == []


def test_a_backup_is_a_snapshot(migrated_url: str, tmp_path: Path) -> None:
    """Rows that are committed while it is written are not in it, and their writers do not wait."""
    fill(migrated_url)
    before = sums(migrated_url)
    written = []

    @contextmanager
    def write_first(_: int) -> Iterator[Progress]:
        with ThreadPoolExecutor(1) as thread:  # this one has an event loop
            written.append(thread.submit(next_log_line, migrated_url).result(10))
        yield lambda _: None

    manifest = backup(migrated_url, tmp_path / "backup", write_first)
    assert written == [6]
    stored = {entry["name"]: (entry["rows"], entry["hash"]) for entry in manifest["tables"]}
    assert stored["logs"] == before["logs"] != sums(migrated_url)["logs"]


def test_a_backup_replaces_an_older_one_and_is_private(small_file: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'small.db'}"
    before = os.umask(0)
    try:
        backup(url, small_file, no_bar)
    finally:
        os.umask(before)
    assert stat.S_IMODE(small_file.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["small.backup"]


def test_an_interrupted_backup_leaves_the_older_one(migrated_url: str, tmp_path: Path) -> None:
    fill(migrated_url, lines=60_000)
    file = tmp_path / "small.backup"
    file.write_text("old")
    process = subprocess.Popen(
        [sys.executable, "-m", "rota.app.cli", "db", "backup", str(file), "--database", migrated_url],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob(f".{file.name}.*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert message.decode() == f"interrupted: {file} was not replaced, or is complete; repeat the command\n"
    assert file.read_text() == "old"
    assert list(tmp_path.glob(f".{file.name}*")) == []


def test_an_interrupted_restore_leaves_an_empty_database(small_file: Path, empty_url: str) -> None:
    steps: list[int] = []  # by bar: the first is that of the check of the file, the second that of the restore

    @contextmanager
    def interrupting(_: int) -> Iterator[Progress]:
        steps.append(0)

        def advance(_: int) -> None:
            steps[-1] += 1
            if len(steps) == 2 and steps[-1] == 20:
                signal.raise_signal(signal.SIGINT)

        yield advance

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            restore(small_file, empty_url, interrupting)
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps[1] >= 20
    restore(small_file, empty_url, no_bar)
    assert sums(empty_url)["logs"][0] == 5


def rewrite(file: Path, to: Path, name: str, content: bytes, *, keep_manifest: bool = False) -> None:
    """Copy a backup with another content of one entry, and with hashes that fit it."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for entry in old.namelist():
            text = content if entry == name else old.read(entry)
            if entry == "manifest.json" and not keep_manifest:
                manifest = json.loads(text)
                result = TableSum()
                result.add(content.splitlines())
                for table in manifest["tables"]:
                    if f"{table['name']}.jsonl" == name:
                        table |= {"rows": result.rows, "hash": result.hash}
                text = json.dumps(manifest).encode()
            new.writestr(entry, text)
