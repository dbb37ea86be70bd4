"""Jobs of APScheduler become schedules with the slots that APScheduler computes; what is not literal is reported."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.files.documents import read_files
from rota.app.importing.apscheduler import import_apscheduler
from rota.app.importing.apscheduler_triggers import cron_trigger, from_crontab, timing_of
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.report import Imported
from rota.app.importing.sources import SourceFile
from tests.app.importing.slots import next_slots

NOW = datetime(2026, 11, 18, 19, 0, 10, tzinfo=UTC)
OSLO = ZoneInfo("Europe/Oslo")
TRIGGERS: list[dict[str, Any]] = [
    {"hour": 3}, {"minute": "*/5"}, {"hour": "8-18/2", "minute": 15}, {"day_of_week": 0}, {"day_of_week": 6, "hour": 1},
    {"day_of_week": "mon-fri", "hour": 17}, {"day": "last", "hour": 5}, {"day": "2nd fri"},
    {"day": "last sun", "hour": 4},
    {"day": "1st mon,3rd mon", "hour": 2}, {"month": "6-8,11-12", "day": "3rd fri", "hour": "0-3"},
    {"month": "jan-mar"},
    {"day": "1-7", "day_of_week": "tue,thu", "hour": 4}, {"day": 13, "day_of_week": "fri"}, {"day": "*/2"},
    {"day": "5/10"}, {"year": 2027, "month": 2}, {"year": "2027-2028", "hour": 1}, {"minute": "7/20"}, {"month": "*/2"},
    {"day": "15,last", "hour": 0},
]  # fmt: skip

JOBS = """from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from jobs import clean
import tasks

scheduler = BlockingScheduler(timezone="Europe/Oslo", job_defaults={"coalesce": True, "misfire_grace_time": 300})
def tick(name, n=1): ...
@scheduler.scheduled_job("cron", day_of_week="mon-fri", hour=17, id="close")
def close(): ...
scheduler.add_job(tick, "interval", minutes=5, args=["a", 2], id="tick", max_instances=3, jitter=30)
scheduler.add_job(clean, CronTrigger.from_crontab("0 3 * * 0"))
scheduler.add_job("pkg.mod:func", "cron", day="last", hour=5, second=7, next_run_time=None)
scheduler.add_job(tick, "date", run_date="2027-01-05 10:00:00", args=["x"])
scheduler.add_job(tasks.nightly, "interval", hours=1, start_date="2026-11-01 00:30:00", executor="pool")
scheduler.add_job(tick, OrTrigger([CronTrigger(hour=1)]))
scheduler.add_job(lambda: 1, "interval", hours=1)
scheduler.add_job(tick)
scheduler.add_job(tick, "cron", week=3)
scheduler.add_job(service.tick, "cron", hour=3)
scheduler.add_job(tick, "cron", hour=HOUR)
for hour in range(3):
    scheduler.add_job(tick, "cron", hour=hour)
"""


def jobs(text: str = JOBS) -> Imported:
    return import_apscheduler([SourceFile("jobs.py", text)], now=NOW)


def by_apscheduler(trigger: Any) -> list[datetime]:
    slots: list[datetime] = []
    for _ in range(6):
        last = slots[-1] if slots else None
        slot = trigger.get_next_fire_time(last, last or NOW)
        if slot is None:
            break
        slots.append(slot)
    return slots


@pytest.mark.parametrize("fields", TRIGGERS, ids=str)
def test_slots_of_cron_triggers_are_those_of_apscheduler(fields: dict[str, Any]) -> None:
    expected = by_apscheduler(CronTrigger(**fields, timezone=OSLO))
    assert next_slots(timing_of(cron_trigger(**fields), "Europe/Oslo")[0], NOW, 6) == expected


def test_weekday_0_of_a_crontab_is_monday_as_in_apscheduler() -> None:
    expected = by_apscheduler(CronTrigger.from_crontab("30 3 * * 0,2", timezone=OSLO))
    assert next_slots(timing_of(from_crontab("30 3 * * 0,2"), "Europe/Oslo")[0], NOW, 6) == expected
    assert {slot.astimezone(OSLO).isoweekday() for slot in expected} == {1, 3}


@pytest.mark.parametrize("fields", [{"week": 3}, {"hour": 24}, {"day": "2nd foo"}, {"second": "1,2"}, {"color": "red"}])
def test_triggers_without_a_counterpart_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(NotConvertible):
        timing_of(cron_trigger(**fields), "UTC")


def test_each_job_is_reported() -> None:
    imported = jobs()
    assert [(line.line, line.outcome) for line in imported.report] == [
        (7, "imported"), (7, "imported"), (9, "imported"), (11, "partly"), (12, "imported"), (13, "partly"),
        (14, "imported"), (15, "partly"), (16, "not imported"), (17, "not imported"), (18, "not imported"),
        (19, "not imported"), (20, "not imported"), (21, "not imported"), (23, "not imported"),
    ]  # fmt: skip
    notes = {line.line: line.note for line in imported.report}
    assert notes[21] == "line 21: HOUR is not a literal"
    assert notes[20] == "line 20: the function service.tick belongs to an object"
    assert "loop" in notes[23]
    by_name = {schedule["name"]: schedule for schedule in imported.schedules}
    assert by_name["job-close"] == {
        "name": "job-close", "target": "close", "cron_expression": "0 17 * * 1-5", "timezone": "Europe/Oslo",
        "overlap": "skip", "misfire": "once", "start_deadline_seconds": 300, "tags": ["apscheduler"],
    }  # fmt: skip
    assert by_name["job-tick"]["input"] == {"name": "a", "n": 2}
    assert (by_name["job-tick"]["overlap"], by_name["job-tick"]["jitter_seconds"]) == ("allow", 30)
    assert by_name["job-clean"]["cron_expression"] == "0 3 * * 1"
    assert (by_name["job-func"]["cron_expression"], by_name["job-func"]["enabled"]) == ("* 5 L * *", False)
    assert by_name["job-tick-2"]["run_at"] == "2027-01-05T09:00:00+00:00"
    assert by_name["job-nightly"]["anchor"] == "2026-10-31T23:30:00+00:00"


def test_the_command_writes_files(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    made = CliRunner().invoke(app, ["import", "apscheduler", str(tmp_path / "jobs.py"), "-d", str(tmp_path / "out")])
    assert made.exit_code == 0, made.stderr
    assert read_files(tmp_path / "out").resources["schedules"] == jobs().schedules
