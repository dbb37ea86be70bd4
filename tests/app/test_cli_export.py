"""`rota export runs` writes the ledger of an org as Parquet, CSV or JSON Lines."""

import csv
import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from rota.client import Client
from tests.app.command_line import caller, read, running_server

JOBS = 230  # more than a page


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with runs that ended, failed ones among them."""
    with running_server(tmp_path_factory.mktemp("export")) as place:
        url = json.loads((place / "data" / "server.json").read_text())["url"]
        with Client(url, (place / "data" / "admin.key").read_text().strip()) as client:
            ids = [client.add_job("hello", input={"name": f'naïve, "{n}"\n'}) for n in range(JOBS)]
            ids.append(client.add_job("fails"))
            for job_id in ids:
                client.wait(job_id)
        yield place


def export(home: Path, *args: str) -> Path:
    rota = caller(home)
    answer = rota("export", "runs", *args)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.endswith(f" in {args[0]}\n")
    return Path(args[0])


def by_id(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows}


def test_the_formats_have_the_same_runs(home: Path, tmp_path: Path) -> None:
    lines = export(home, str(tmp_path / "runs.jsonl")).read_text().splitlines()
    runs = by_id([json.loads(line) for line in lines])
    assert len(lines) == len(runs) == JOBS + 1
    first = read(caller(home)("-o", "json", "run", "show", next(iter(runs))))
    assert runs[first["id"]] == {name: first[name] for name in runs[first["id"]]}

    with export(home, str(tmp_path / "runs.csv")).open(newline="") as file:
        table = by_id(list(csv.DictReader(file)))
    assert table.keys() == runs.keys()
    for key, run in runs.items():
        assert table[key]["started_at"] == run["started_at"]
        assert table[key]["status"] == run["status"]
        assert json.loads(table[key]["input"] or "null") == run["input"]

    parquet = export(home, str(tmp_path / "data"), "--format", "parquet")
    query = f"SELECT id, status, input->>'name', error->>'type' FROM read_parquet('{parquet}')"
    rows = duckdb.connect().execute(query).fetchall()
    assert {row[0]: row[1] for row in rows} == {key: run["status"] for key, run in runs.items()}
    assert {row[2] for row in rows} == {f'naïve, "{n}"\n' for n in range(JOBS)} | {None}
    assert [row[3] for row in rows if row[1] == "failed"] == ["ValueError"]
    types = duckdb.connect().execute(f"SELECT finished_at, attempt, outcome FROM read_parquet('{parquet}')").description
    assert [str(column[1]) for column in types] == ["TIMESTAMP WITH TIME ZONE", "INTEGER", "VARCHAR"]
    outcomes = dict(polars.read_parquet(parquet).select("id", "outcome").iter_rows())
    assert {key: json.loads(text or "null") for key, text in outcomes.items()} == {
        key: run["outcome"] for key, run in runs.items()
    }
    assert stat.S_IMODE(parquet.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "runs.csv", "runs.jsonl"]


def test_a_range_of_time_limits_the_export(home: Path, tmp_path: Path) -> None:
    assert export(home, str(tmp_path / "none.jsonl"), "--to", "1h").read_text() == ""
    assert len(export(home, str(tmp_path / "all.jsonl"), "--from", "1h").read_text().splitlines()) == JOBS + 1
    empty = export(home, str(tmp_path / "none.parquet"), "--to", "1h")
    assert duckdb.connect().execute(f"SELECT count(*) FROM '{empty}'").fetchall() == [(0,)]


def test_wrong_use_is_one_sentence(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rota = caller(home)
    unknown = rota("export", "runs", str(tmp_path / "runs.xls"))
    assert unknown.returncode == 2
    assert "the suffix names no format; add --format parquet, csv or jsonl" in unknown.stderr
    nowhere = rota("export", "runs", str(tmp_path / "no" / "runs.csv"))
    assert nowhere.returncode == 1
    assert "No such file or directory" in nowhere.stderr
    refused = rota("--key", "wrong", "export", "runs", str(tmp_path / "runs.csv"))
    assert refused.returncode == 5
    monkeypatch.setitem(sys.modules, "duckdb", None)
    missing = rota("export", "runs", str(tmp_path / "runs.parquet"))
    assert missing.returncode == 1
    assert missing.stderr == (
        "error: Parquet needs DuckDB: `pip install 'rota-scheduler[duckdb]'`, or use --format csv or jsonl\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_import_count_what_changed_and_say_that_secrets_are_hidden(home: Path, tmp_path: Path) -> None:
    rota = caller(home)
    for name in ("old", "new"):
        (tmp_path / name).write_text(f"PATH=/usr/bin\n0 2 * * * {name}-backup\n")
    assert rota("import", "crontab", str(tmp_path / "old")).returncode == 0
    assert rota("import", "crontab", str(tmp_path / "new")).stderr.endswith("2 resources changed, 0 unchanged\n")
    assert rota("import", "crontab", str(tmp_path / "new")).stderr.endswith("0 resources changed, 2 unchanged\n")
    exported = rota("export", "-d", str(tmp_path / "conf"))
    assert exported.returncode == 0, exported.stderr
    assert "tasks/cron-new-backup is exported: its secrets are hidden as ***; --secrets" in exported.stderr
    assert "cron-new-backup" in (tmp_path / "conf" / "tasks.yaml").read_text()
    assert "tasks/hello is left out: " in exported.stderr
