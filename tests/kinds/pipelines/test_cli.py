"""Executes the examples of docs/pipelines.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.app.command_line import caller, read, running_server

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()


INCREMENTAL = PAGE[PAGE.index("## Incremental tables") : PAGE.index("## On PostgreSQL")]  # has a program of its own
BASIC = PAGE[: PAGE.index("## Incremental tables")] + PAGE[PAGE.index("## When they run") :]


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_page_about_pipelines_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = blocks("python", BASIC)
    monkeypatch.setattr("tests.app.command_line.APP", program)
    with running_server(tmp_path):
        rota = caller(tmp_path)
        for line in "".join(blocks("sh", BASIC)).splitlines():
            done = rota(*shlex.split(line)[1:])
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        report = read(rota("-o", "json", "pipeline", "show", "sales/gold/report"))
        assert (report["version"], report["max_runs"], report["reads"]) == (2, 100, ["sales/silver/daily_totals"])
        edges = read(rota("-o", "json", "pipeline", "graph"))["edges"]
        assert {edge["kind"] for edge in edges} == {"reads", "pipeline_success", "cron_dependency"}
        triggers = read(rota("-o", "json", "pipeline", "trigger", "list", "sales/gold/report"))["items"]
        assert [trigger["type"] for trigger in triggers] == ["pipeline_success", "cron_dependency", "webhook"]
        ran = read(rota("-o", "json", "pipeline", "run", "sales/gold/report", "--wait"))
        assert (ran["status"], ran["outcome"]["rows_written"], ran["trigger"]) == ("success", 1, "manual")
        assert "sales/gold/report: 1 rows in" in rota("run", "logs", ran["id"]).stdout
        shown = read(rota("-o", "json", "pipeline", "preview", "sales/gold/report"))
        assert shown["rows"] == [[max(sum(n % 7 for n in range(500) if n % 30 == day) for day in range(30))]]
        assert rota("pipeline", "trigger", "disable", "sales/gold/report", triggers[0]["id"]).returncode == 0
        assert rota("pipeline", "trigger", "enable", "sales/gold/report", "pipeline_success").returncode == 0
        several = rota("pipeline", "trigger", "rm", "sales/gold/report", "sales/silver/daily_totals")
        assert (several.returncode, "2 triggers are named" in several.stderr) == (4, True)
        assert rota("pipeline", "trigger", "rm", "sales/gold/report", "webhook").returncode == 0
        assert rota("pipeline", "trigger", "rm", "sales/gold/report", "webhook").returncode == 3
        assert rota("pipeline", "trigger", "rm", "sales/gold/report", triggers[0]["id"]).returncode == 0
        assert "sales" in rota("pipeline", "namespaces").stdout
        assert rota("pipeline", "rm", "sales/gold/report").returncode == 0


def test_the_example_of_incremental_tables_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = blocks("python", INCREMENTAL)
    monkeypatch.setattr("tests.app.command_line.APP", program)
    with running_server(tmp_path):
        rota = caller(tmp_path)
        for path in ("shop/bronze/visits", "shop/silver/visits"):
            assert rota("pipeline", "run", path, "--wait", "--input", "{}").returncode == 0
        for line in "".join(blocks("sh", INCREMENTAL)).splitlines():
            done = rota(*shlex.split(line)[1:])
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_the_commands_of_pipelines_report_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.app.command_line.APP", "from rota import Rota\n\napp = Rota()\n")
    with running_server(tmp_path):
        rota = caller(tmp_path)
        (tmp_path / "one.sql").write_text("SELECT 1 AS one")
        assert rota("pipeline", "save", "sales/gold/one", "--sql", f"@{tmp_path / 'one.sql'}").returncode == 0
        for code, line in (
            (2, "pipeline save sales/gold/two --sql 'SELEC'"),
            (2, "pipeline save Sales/gold/two --sql 'SELECT 1 AS a'"),
            (2, "pipeline save sales/gold --sql 'SELECT 1 AS a'"),
            (2, "pipeline save sales/gold/two"),
            (2, "pipeline save sales/gold/two --sql @missing.sql"),
            (3, "pipeline show sales/gold/two"),
            (3, "pipeline run sales/gold/two"),
            (1, "pipeline validate sales/gold/one --sql 'SELECT nothing'"),
            (2, "pipeline trigger add sales/gold/one --after sales/gold/one"),
            (2, "pipeline trigger add sales/gold/one"),
        ):
            done = rota(*shlex.split(line))
            assert done.returncode == code, f"{line}: {done.returncode} {done.stderr}"
        failed = rota("pipeline", "save", "sales/gold/bad", "--sql", "SELECT error('no') AS x")
        assert failed.returncode == 0
        ended = rota("-o", "json", "pipeline", "run", "sales/gold/bad", "--wait")
        assert (ended.returncode, json.loads(ended.stdout)["status"]) == (7, "failed")
