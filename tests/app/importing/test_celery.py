"""Periodic tasks of Celery become schedules with the slots that Celery computes; what is not literal is reported."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.files.documents import FileError
from rota.app.importing.celery import import_celery
from rota.app.importing.celery_schedules import crontab as stand_in
from rota.app.importing.celery_schedules import timing_of
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.report import Imported
from rota.app.importing.sources import SourceFile
from tests.app.importing.slots import next_slots

NOW = datetime(2026, 11, 18, 19, 0, 10, tzinfo=UTC)
CRONTABS: list[dict[str, Any]] = [
    {}, {"minute": 0, "hour": 0}, {"minute": "*/15"}, {"minute": 0, "hour": "*/3,8-17"}, {"minute": "30", "hour": 7},
    {"minute": 0, "hour": 0, "day_of_week": "sun"}, {"minute": 0, "hour": "22-5/2", "day_of_week": "fri-mon"},
    {"minute": 0, "hour": 0, "day_of_month": "2-30/2"}, {"minute": 0, "hour": 0, "day_of_month": "1-7,15-21"},
    {"minute": 0, "hour": 0, "day_of_month": "11", "month_of_year": "4,10"},
    {"minute": 5, "hour": 4, "day_of_month": "13", "day_of_week": "friday"},
    {"minute": 5, "hour": 4, "day_of_month": "1-7", "day_of_week": [1, 3]},
    {"minute": {1, 59}, "hour": (1, 2), "month_of_year": "*/3"},
    {"minute": "10-20", "month_of_year": "november-january"},
]  # fmt: skip

BEAT = """from datetime import timedelta
from celery import Celery
from celery.schedules import crontab, schedule, solar

app = Celery("shop")
app.conf.update(timezone="Europe/Oslo")
SECONDS = 15 * 2.0
@app.task(name="shop.add")
def add(x, y): ...
app.conf.beat_schedule = {
    "add": {"task": "shop.add", "schedule": SECONDS, "args": (16, 4)},
    "unknown": {"task": "other.add", "schedule": 60, "args": (16, 4)},
    "report": {
        "task": "shop.report", "schedule": crontab(hour=7, minute=30, day_of_week="mon-fri"),
        "kwargs": {"full": True}, "options": {"queue": "slow", "expires": 60, "exchange": "x"},
    },
    "sunset": {"task": "shop.sun", "schedule": solar("sunset", 59.9, 10.7)},
    "dynamic": {"task": "shop.dynamic", "schedule": get_schedule()},
    "span": {"task": "shop.span", "schedule": timedelta(minutes=5) + timedelta(seconds=1)},
    **others(),
}
app.conf.beat_schedule["later"] = dict(task="shop.later", schedule=schedule(run_every=60))
@app.on_after_configure.connect
def setup(sender, **kwargs):
    sender.add_periodic_task(crontab(), add.s(1, y=2), name="each minute", expires=10)
    for number in range(3):
        sender.add_periodic_task(number, add.s(1, 2))
open("/tmp/executed", "w")
"""


def beat(text: str = BEAT) -> Imported:
    return import_celery([SourceFile("beat.py", text)], now=NOW)


@pytest.mark.parametrize("fields", CRONTABS, ids=str)
def test_slots_of_crontabs_are_those_of_celery(fields: dict[str, Any]) -> None:
    zone = ZoneInfo("Europe/Oslo")
    theirs, at = [], NOW.astimezone(zone)
    entry = crontab(**fields)
    entry.tz = zone
    for _ in range(6):
        entry.nowfun = lambda: at  # noqa: B023
        start, delta, _ = entry.remaining_delta(at, tz=zone)
        at = start + delta
        theirs.append(at)
    assert next_slots(timing_of(stand_in(**fields), "Europe/Oslo")[0], NOW, 6) == theirs


@pytest.mark.parametrize(
    "fields", [{"minute": "60"}, {"day_of_week": "7"}, {"minute": "1/5"}, {"hour": "a"}, {"hour": ""}]
)
def test_a_crontab_that_celery_refuses_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011
        crontab(**fields)
    with pytest.raises(NotConvertible):
        timing_of(stand_in(**fields), "UTC")


def test_each_periodic_task_is_reported() -> None:
    imported = beat()
    report = {line.text: (line.outcome, line.note) for line in imported.report}
    assert {text: outcome for text, (outcome, _) in report.items()} == {
        "timezone = 'Europe/Oslo'": "imported",
        "add": "not imported",  # of the loop, see below
        "unknown": "partly",
        "report": "partly",
        "sunset": "not imported",
        "dynamic": "not imported",
        "span": "imported",
        "others()": "not imported",
        "later": "imported",
        "each minute": "partly",
    }
    assert [line.outcome for line in imported.report if line.text == "add"] == ["imported", "not imported"]
    assert report["dynamic"][1] == "line 18: get_schedule() is not a literal"
    assert "exchange" in report["report"][1]
    assert "positional arguments [16, 4]" in report["unknown"][1]
    assert "function setup" in report["each minute"][1]
    by_name = {schedule["name"]: schedule for schedule in imported.schedules}
    assert by_name["celery-add"]["input"] == {"x": 16, "y": 4}
    assert by_name["celery-report"] == {
        "name": "celery-report", "target": "shop.report", "cron_expression": "30 7 * * 1-5", "timezone": "Europe/Oslo",
        "input": {"full": True}, "queue": "slow", "start_deadline_seconds": 60, "overlap": "allow", "misfire": "once",
        "tags": ["celery"],
    }  # fmt: skip
    assert by_name["celery-each-minute"]["target"] == "shop.add"
    assert by_name["celery-span"]["interval_seconds"] == timedelta(minutes=5, seconds=1).total_seconds()


def test_fixtures_of_django_celery_beat_are_imported() -> None:
    rows = [
        {"model": "django_celery_beat.crontabschedule", "pk": 1,
         "fields": {"minute": "0", "hour": "7", "day_of_week": "*", "day_of_month": "*", "month_of_year": "*",
                    "timezone": "Europe/Oslo"}},
        {"model": "django_celery_beat.intervalschedule", "pk": 1, "fields": {"every": 5, "period": "minutes"}},
        {"model": "django_celery_beat.solarschedule", "pk": 1, "fields": {"event": "sunset"}},
        {"model": "django_celery_beat.periodictask", "pk": 1,
         "fields": {"name": "Morning", "task": "shop.report", "crontab": 1, "kwargs": '{"full": true}', "args": "[]",
                    "enabled": False, "one_off": True, "exchange": "x"}},
        {"model": "django_celery_beat.periodictask", "pk": 2,
         "fields": {"name": "often", "task": "shop.poll", "interval": 1, "args": "[1]"}},
        {"model": "django_celery_beat.periodictask", "pk": 3, "fields": {"name": "sun", "task": "a", "solar": 1}},
        {"model": "auth.user", "pk": 1, "fields": {}},
    ]  # fmt: skip
    imported = import_celery([SourceFile("beat.json", json.dumps(rows))], now=NOW)
    assert [line.outcome for line in imported.report] == ["partly", "partly", "not imported", "not imported"]
    morning, often = imported.schedules
    assert (morning["cron_expression"], morning["timezone"]) == ("0 7 * * *", "Europe/Oslo")
    assert (morning["enabled"], morning["max_runs"], morning["input"]) == (False, 1, {"full": True})
    assert often["interval_seconds"] == 300
    with pytest.raises(FileError, match="is not a fixture"):
        import_celery([SourceFile("beat.json", "{}")], now=NOW)


def test_the_command_executes_nothing_and_refuses_what_is_not_python(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "beat.py").write_text(BEAT.replace("/tmp/executed", str(marker)))
    made = CliRunner().invoke(app, ["import", "celery", str(tmp_path / "beat.py"), "-d", str(tmp_path / "out")])
    assert (made.exit_code, marker.exists()) == (0, False), made.stderr
    assert (tmp_path / "out" / "celery.yaml").exists()
    (tmp_path / "wrong.py").write_text("def f(:\n")
    refused = CliRunner().invoke(app, ["import", "celery", str(tmp_path / "wrong.py"), "-d", str(tmp_path / "other")])
    assert (refused.exit_code, (tmp_path / "other").exists()) == (2, False)
    assert "wrong.py:1: is not Python" in refused.stderr
