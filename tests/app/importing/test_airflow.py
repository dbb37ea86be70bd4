"""DAGs of shell tasks of Airflow become a task and a schedule; other operators are reported."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.files.documents import FileError
from rota.app.importing.airflow import import_airflow
from rota.app.importing.report import Imported
from rota.app.importing.sources import SourceFile

NOW = datetime(2026, 11, 18, 19, 0, 10, tzinfo=UTC)
SINGLE = """from datetime import datetime, timedelta
import pendulum
from airflow import DAG
from airflow.operators.bash import BashOperator

default_args = {"owner": "data", "retries": 2, "retry_delay": timedelta(minutes=1), "email_on_failure": True}
with DAG(
    "nightly", schedule_interval="30 2 * * *", start_date=pendulum.datetime(2024, 1, 1, tz="Europe/Oslo"),
    catchup=False, max_active_runs=1, default_args=default_args, tags=["etl"], description="Nightly load",
    on_failure_callback=alert,
) as dag:
    load = BashOperator(
        task_id="load", bash_command="load --all", cwd="/srv", env={"MODE": "full"},
        execution_timeout=timedelta(hours=1), pool="db",
    )
"""
SEVERAL = """from airflow.sdk import dag
from airflow.providers.standard.operators.bash import BashOperator
from airflow.operators.empty import EmptyOperator
from datetime import datetime, timedelta

@dag(schedule=timedelta(hours=6), start_date=datetime(2024, 1, 1), catchup=True)
def etl():
    done = EmptyOperator(task_id="done")
    load = BashOperator(task_id="load", bash_command="load")
    extract = BashOperator(task_id="extract", bash_command="extract 'a b'", cwd="/in")
    check = BashOperator(task_id="check", bash_command="check", retries=1)
    extract >> [load, check] >> done
etl()
"""


def read(text: str) -> Imported:
    return import_airflow([SourceFile("dag.py", text)], now=NOW)


def test_a_dag_of_one_shell_task_becomes_a_task_and_a_schedule() -> None:
    imported = read(SINGLE)
    assert imported.schedules == [
        {
            "name": "dag-nightly", "target": "dag-nightly", "cron_expression": "30 2 * * *", "timezone": "Europe/Oslo",
            "misfire": "once", "overlap": "queue_all", "tags": ["airflow", "etl"], "description": "Nightly load",
        }
    ]  # fmt: skip
    assert imported.tasks == [
        {
            "name": "dag-nightly", "command": "exec bash -c 'load --all'", "cwd": "/srv", "env": {"MODE": "full"},
            "timeout": 3600.0, "retry": {"max_retries": 2, "backoff_ms": 60_000},
        }
    ]  # fmt: skip
    assert [(line.line, line.outcome, line.text) for line in imported.report] == [
        (7, "partly", "DAG nightly"),
        (12, "partly", "task load"),
    ]
    assert "on_failure_callback" in imported.report[0].note
    assert "pool" in imported.report[1].note
    assert "email_on_failure of default_args" in imported.report[1].note


def test_shell_tasks_of_a_dag_run_in_the_order_of_their_dependencies() -> None:
    imported = read(SEVERAL)
    (schedule,), (task,) = imported.schedules, imported.tasks
    assert (schedule["interval_seconds"], schedule["anchor"]) == (21_600, "2024-01-01T00:00:00+00:00")
    assert (schedule["misfire"], schedule["overlap"], task["max_running"]) == ("all", "allow", 16)
    first, *others = task["command"].split(" && (")
    assert first == "(cd /in && bash -c 'extract '\"'\"'a b'\"'\"'')"
    assert sorted(others) == ["bash -c check)", "bash -c load)"]
    assert imported.report[0].text == "DAG etl"
    assert {line.text for line in imported.report[1:]} == {"task load", "task extract", "task check", "task done"}
    assert "a retry repeats all" in imported.report[0].note


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('"30 2 * * *"', "None"), "has no times"),
        (('"30 2 * * *"', "[dataset]"), "is not a literal"),
        (('"30 2 * * *"', '"61 2 * * *"'), "minute"),
        (('"load --all"', '"load {{ ds }}"'), "template"),
        (('"load --all"', '"run.sh"'), "template"),
        (('"load --all"', "COMMAND"), "is not a literal"),
        (("load = Bash", "x = PythonOperator(task_id='x')\n    load = Bash"), "PythonOperator"),
        (("load = Bash", "load << other\n    load = Bash"), "is not read"),
        (("    load = Bash", "    @task\n    def py(): ...\n    load = Bash"), "Python function"),
        (("with DAG", "DAG('other')\nwith DAG"), "several DAGs"),
        (('{"MODE": "full"}', '{"MODE=1; rm -r ~; X": "full"}'), "not the name of a variable"),
    ],
)
def test_a_dag_that_would_be_another_program_is_not_imported(change: tuple[str, str], reason: str) -> None:
    text = SINGLE.replace(*change)
    assert text != SINGLE
    imported = read(text)
    assert imported.schedules == imported.tasks == []
    assert {line.outcome for line in imported.report} == {"not imported"}
    assert any(reason in line.note for line in imported.report)
    assert any(line.text == "task load" for line in imported.report) or "several" in reason


def test_presets_and_files_without_a_dag() -> None:
    daily = read(SINGLE.replace('"30 2 * * *"', '"@quarterly"'))
    assert daily.schedules[0]["cron_expression"] == "0 0 1 */3 *"
    assert read("x = 1").report[0].note == "has no DAG"
    with pytest.raises(FileError):
        read("def f(:")


def test_the_command_writes_files(tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text(SINGLE)
    made = CliRunner().invoke(app, ["import", "airflow", str(tmp_path / "dag.py"), "-d", str(tmp_path / "out")])
    assert made.exit_code == 0, made.stderr
    assert "exec bash -c" in (tmp_path / "out" / "airflow.yaml").read_text()
