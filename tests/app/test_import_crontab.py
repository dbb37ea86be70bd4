"""A crontab as on a Debian server becomes files, and each of its lines is reported."""

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota.app.cli import app
from rota.app.files.documents import read_files
from rota.app.importing.crontab import import_crontab
from rota.core.errors import Invalid
from tests.app.harness import Api

CRONTAB = r"""# Edit this file to introduce tasks to be run by cron.
#
SHELL=/bin/bash
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
MAILTO="ops@example.com"
HOME=/srv/app

# m h  dom mon dow   command
#0 1 * * * /usr/local/bin/disabled
*/5 * * * * /usr/bin/php /srv/app/artisan schedule:run >> /dev/null 2>&1
0 2 * * * pg_dump shop > /backup/shop-$(date +\%F).sql
15 3 * * 1-5 /usr/local/bin/report --mode=full
30 4 1,15 * * /usr/local/bin/invoices
0 0 * * sun /usr/local/bin/weekly
0 8-18/2 * * mon-fri /usr/local/bin/poll
0 9 * jan,jul * /usr/local/bin/halfyear
@daily /usr/local/bin/rotate
@hourly /usr/local/bin/rotate
@weekly cd /srv/app && ./vacuum.sh
@monthly /usr/local/bin/monthly
@yearly /usr/local/bin/yearly
@reboot /usr/local/bin/start-tunnel
0 7 * * * mail -s "Good morning" ops@example.com%Hello%The server is up.
CRON_TZ=Europe/Oslo
30 6 * * 1-5 /usr/local/bin/market-open
0 17 * * 5 /usr/local/bin/market-close
CRON_TZ=Mars/Base
5 5 * * * /usr/local/bin/after-mars
RANDOM_DELAY=30
61 * * * * /usr/local/bin/wrong
0 0 31 2 * /usr/local/bin/never
* * * * *
not a cron line
	10 1 * * *	/usr/local/bin/tabbed	--x
59 23 31 12 * /usr/local/bin/newyear
0 */6 * * * /usr/bin/certbot -q renew
0 22 * * 7 /usr/local/bin/sunday
17 * * * * cd / && run-parts --report /etc/cron.hourly
NAME = value with spaces
1 2 3 4 * /usr/local/bin/once-a-year
"""

SYSTEM = """SHELL=/bin/sh
17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6\t* * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
@daily www-data /usr/local/bin/clean
0 1 * * * root
"""


def test_each_line_of_a_crontab_is_reported_and_none_is_dropped() -> None:
    report = import_crontab(CRONTAB)
    lines = CRONTAB.splitlines()
    assert len(lines) >= 40
    assert [(line.line, line.text) for line in report.report] == list(enumerate(lines, start=1))
    counts = Counter(line.outcome for line in report.report)
    assert counts == {"imported": 27, "not imported": 8, "no schedule": 5}
    by_name = {schedule["name"]: schedule for schedule in report.schedules}
    assert len(by_name) == len(report.schedules) == len(report.tasks)
    assert by_name["cron-poll"]["cron_expression"].lower() == "0 8-18/2 * * mon-fri"
    assert by_name["cron-market-open"]["timezone"] == "Europe/Oslo"
    assert by_name["cron-php"]["timezone"] == "UTC"
    assert {"cron-rotate", "cron-rotate-2"} <= by_name.keys()
    tasks = {task["name"]: task for task in report.tasks}
    assert tasks["cron-mail"]["stdin"] == "Hello\nThe server is up.\n"
    assert "date +%F" in tasks["cron-pg_dump"]["command"]
    assert tasks["cron-php"]["command"].startswith("/bin/bash -c ")
    assert (tasks["cron-php"]["cwd"], tasks["cron-php"]["env"]["PATH"][:10]) == ("/srv/app", "/usr/local")
    notes = {line.text: line.note for line in report.report}
    assert "@reboot has no time" in notes["@reboot /usr/local/bin/start-tunnel"]
    assert "minute" in notes["61 * * * * /usr/local/bin/wrong"]


def test_a_system_crontab_has_users() -> None:
    report = import_crontab(SYSTEM, system=True, timezone="Europe/Oslo")
    assert [line.outcome for line in report.report] == ["imported", "partly", "partly", "partly", "not imported"]
    assert "ran as root" in report.report[1].note
    assert report.tasks[0]["command"] == "cd / && run-parts --report /etc/cron.hourly"


def test_a_crontab_is_bounded_and_its_zone_is_checked() -> None:
    with pytest.raises(Invalid, match="too many"):
        import_crontab("\n" * 5_001)
    with pytest.raises(Invalid, match="IANA"):
        import_crontab("", timezone="Mars/Base")


async def test_what_is_imported_can_be_applied(api: Api) -> None:
    answer = await api.call("POST", "/files/$apply", {"resources": import_crontab(CRONTAB).resources})
    assert answer.status_code == 200, answer.text
    assert (await api.get("/schedules/cron-market-open"))["overlap"] == "allow"


def test_the_command_writes_files_or_only_a_report(tmp_path: Path) -> None:
    (tmp_path / "tab").write_text(CRONTAB)
    printed = CliRunner().invoke(app, ["import", "crontab", str(tmp_path / "tab"), "--dry-run"])
    assert (printed.exit_code, "start-tunnel" in printed.stdout) == (0, True)
    assert not (tmp_path / "out").exists()
    made = CliRunner().invoke(app, ["import", "crontab", str(tmp_path / "tab"), "-d", str(tmp_path / "out")])
    assert made.exit_code == 0, made.stderr
    assert read_files(tmp_path / "out").resources == import_crontab(CRONTAB).resources
    missing = CliRunner().invoke(app, ["import", "crontab", str(tmp_path / "none")])
    assert missing.exit_code == 2
