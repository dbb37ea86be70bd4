"""Timers of systemd become files: their slots are those that systemd computes, and each setting is reported."""

import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.files.documents import FileError, read_files
from rota.app.importing.on_calendar import calendar_fields
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.report import Imported
from rota.app.importing.sources import SourceFile, read_sources
from rota.app.importing.systemd import import_timers
from rota.app.importing.systemd_units import shell_word, span_of, words_of
from tests.app.harness import Api
from tests.app.importing.slots import next_slots

NOW = datetime(2026, 11, 18, 19, 0, 10, tzinfo=UTC)
EXPRESSIONS = [
    "minutely", "hourly", "daily", "monthly", "weekly", "yearly", "quarterly", "semiannually", "weekly Europe/Oslo",
    "hourly UTC", "Mon..Fri *-*-* 09..17:00/15", "*-*~01", "*-*~07/1", "*-*~1..3", "Mon *-05~07/1", "Sun *-*~07/1 3:00",
    "*-02~03", "*-02-29", "*-*-1..7", "Sat *-*-1..7 18:00", "Sat *-*-8..14 18:00", "Mon,Tue *-*-01..04 12:00:00",
    "Mon *-*~05..06 7,8:00", "Fri *-*-13", "*:0/5", "*:2/3", "00:00..20", "10-15", "9..11/2:00", "Mon-Fri 9:00",
    "12,14,13,12:20,10,30", "*-1/2-1..7/3", "2027..2028-*-*", "2027-03-04 05:06", "27-*-01 05:06", "08:05",
    "Sat,Mon *-*-* 5:00", "weekly America/New_York", "*-*-29..31 1:00", "*-2,4-30", "Wed..Sat,Tue 11-12 6:30",
]  # fmt: skip
REFUSED = [
    "Sun..Mon", "Fri..Mon", "*-*-* 5", "monthly now", "*:*/5", "25:00", "*-13-01", "2027,2029-01-01 *:00", "",
    "*-*-* 00:00:00.5", "*-*-* *:*:7,9", "nonsense",
]  # fmt: skip

BACKUP_TIMER = """[Unit]
Description=Nightly backup

[Timer]
OnCalendar=
OnCalendar=*-*-* 02:30:00
OnCalendar=Sun *-*-1..7 04:00:20
RandomizedDelaySec=15min
Persistent=true
AccuracySec=1s
WakeSystem=true
OnBootSec=5min
[Install]
WantedBy=timers.target
"""
BACKUP_SERVICE = r"""# comment
[Unit]
After=network.target
[Service]
Type=oneshot
User=backup
WorkingDirectory=/srv/backup
Environment="MODE=full run" LEVEL=3
EnvironmentFile=/etc/default/backup
ExecStartPre=-/bin/mkdir -p /srv/out
ExecStart=/usr/bin/backup --unit %n --to "${MODE} x" $LEVEL \
    --percent 100%% 'a b'
TimeoutStartSec=1h 30min
ProtectSystem=strict
not a setting
"""


def backup(**more: str) -> Imported:
    files = {"backup.timer": BACKUP_TIMER, "backup.service": BACKUP_SERVICE, **more}
    return import_timers([SourceFile(name, text) for name, text in files.items()], now=NOW)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_slots_of_calendar_expressions_are_those_of_systemd(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    expected = by_systemd(EXPRESSIONS)
    ours = {}
    for expression in EXPRESSIONS:
        fields, lost = calendar_fields(expression, "UTC")
        assert not lost
        ours[expression] = next_slots(fields, now, 6)
    assert (
        {key: slots[1:] for key, slots in ours.items()}
        == {  # the first may pass between the two
            key: [slot for slot in slots if slot in ours[key][1:]] for key, slots in expected.items()
        }
    )
    assert all(len(slots) in (1, 6) for slots in expected.values())


def by_systemd(expressions: list[str]) -> dict[str, list[datetime]]:
    slots = {}
    for expression in expressions:
        command = ["systemd-analyze", "calendar", "--iterations=6", expression]
        env = {"TZ": "UTC", "PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        printed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
        times = [line.partition(": ")[2] for line in printed.splitlines() if line.endswith(" UTC") and "-" in line]
        times = [time for time in times if time[:3].isalpha() and time[3] == " " and time[4].isdigit()]
        slots[expression] = list(
            dict.fromkeys(datetime.strptime(time[4:23], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for time in times)
        )
    return slots


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_not_a_calendar_expression_or_has_no_counterpart_is_refused(expression: str) -> None:
    with pytest.raises(NotConvertible):
        calendar_fields(expression, "UTC")


def test_a_second_is_lost_and_several_seconds_are_an_interval() -> None:
    assert calendar_fields("08:05:40", "UTC")[1] == "second 40: the slots are at second 0"
    assert calendar_fields("*:*:0/10", "UTC")[0]["interval_seconds"] == 10


def test_each_setting_is_reported_and_none_is_dropped() -> None:
    imported = backup()
    lines = {
        (file, number)
        for file, text in (("backup.timer", BACKUP_TIMER), ("backup.service", BACKUP_SERVICE))
        for number, line in enumerate(text.splitlines(), start=1)
        if line and line[0] not in "[# "
    }
    assert [(line.file, line.line) for line in imported.report] == sorted(lines)
    by_text = {line.text.partition("=")[0]: line for line in imported.report}
    assert by_text["User"].outcome == "not imported"
    assert by_text["EnvironmentFile"].outcome == "not imported"
    assert by_text["RandomizedDelaySec"].outcome == "partly"
    assert by_text["not a setting"].note == "is not NAME=VALUE in a section"
    counts = Counter(line.outcome for line in imported.report)
    assert counts == {"imported": 12, "partly": 2, "not imported": 7}


def test_a_timer_becomes_schedules_of_one_task() -> None:
    imported = backup()
    (task,) = imported.tasks
    assert task == {
        "name": "timer-backup",
        "command": "{ /bin/mkdir -p /srv/out || true; } && /usr/bin/backup --unit backup.service "
        "--to \"${MODE} x\" $LEVEL --percent 100% 'a b'",
        "env": {"MODE": "full run", "LEVEL": "3"},
        "cwd": "/srv/backup",
        "timeout": 5400.0,
    }
    first, second = imported.schedules
    assert (first["cron_expression"], second["cron_expression"]) == ("30 2 * * *", "0 4 * * 0#1")
    assert (second["target"], first["overlap"], first["misfire"]) == ("timer-backup", "skip", "once")
    assert first["jitter_seconds"] == 900
    changed = backup(
        **{"/etc/systemd/system/backup.timer.d/override.conf": "[Timer]\nOnCalendar=\nOnCalendar=hourly\n"}
    )
    assert [schedule["cron_expression"] for schedule in changed.schedules] == ["0 * * * *"]


def test_commands_that_would_not_be_the_same_are_not_imported() -> None:
    for command, reason in (
        ("%h/bin/poll", "%h"),
        ("@/bin/sh -sh", "argv"),
        ("/bin/a ; /bin/b", "several commands"),
        ('/bin/a "x', "quote"),
    ):
        files = {"a.timer": "[Timer]\nOnUnitActiveSec=10min\n", "a.service": f"[Service]\nExecStart={command}\n"}
        imported = import_timers([SourceFile(name, text) for name, text in files.items()], now=NOW)
        assert imported.schedules == imported.tasks == []
        assert all(line.outcome == "not imported" and reason in line.note for line in imported.report)
    alone = import_timers([SourceFile("b.timer", "[Timer]\nOnCalendar=daily\n")], now=NOW)
    assert alone.report[0].note == "b.service is not among the files"


def test_words_variables_and_spans_are_those_of_systemd() -> None:
    assert words_of(r"""a "b c" 'd "e' f\x41\s g\"h """) == ["a", "b c", 'd "e', "fA ", 'g"h']
    assert shell_word("$FOO") == "$FOO"
    assert shell_word("$$FOO") == "'$FOO'"
    assert shell_word('${FOO}"`x`') == '"${FOO}\\"\\`x\\`"'
    assert [span and span.total_seconds() for span in map(span_of, ("90", "1h 30min", "2min30s", "infinity"))] == [
        90, 5400, 150, None,
    ]  # fmt: skip
    with pytest.raises(NotConvertible):
        span_of("soon")


def test_a_unit_of_too_many_settings_is_refused() -> None:
    with pytest.raises(FileError, match="more than 1000 settings"):
        import_timers([SourceFile("a.timer", "[Timer]\n" + "OnCalendar=daily\n" * 1001)], now=NOW)


async def test_imported_timers_can_be_applied(api: Api) -> None:
    answer = await api.call("POST", "/files/$apply", {"resources": backup().resources})
    assert answer.status_code == 200, answer.text
    assert (await api.get("/schedules/timer-backup-2"))["jitter_seconds"] == 900


def test_the_command_reads_directories_and_writes_nothing_for_bad_files(tmp_path: Path) -> None:
    units, out = tmp_path / "units", tmp_path / "out"
    units.mkdir()
    (units / "backup.timer").write_text(BACKUP_TIMER)
    (units / "backup.service").write_text(BACKUP_SERVICE)
    made = CliRunner().invoke(app, ["import", "systemd-timers", str(units), "-d", str(out)])
    assert made.exit_code == 0, made.stderr
    assert len(read_files(out).resources["schedules"]) == 2
    assert CliRunner().invoke(app, ["import", "systemd-timers", str(units), "--tz", "Mars/Base"]).exit_code == 2
    (units / "backup.service").write_bytes(b"\xff")
    assert CliRunner().invoke(app, ["import", "systemd-timers", str(units)]).exit_code == 2
    (units / "backup.service").write_text("x" * (2 * 1024 * 1024 + 1))
    with pytest.raises(FileError, match="larger"):
        read_sources([units], (".service",))
    with pytest.raises(FileError, match=r"has no file \*\.timer"):
        read_sources([out], (".timer",))
