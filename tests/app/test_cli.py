"""The command line against a real server: `rota up` in a separate process."""

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rota.version import __version__
from tests.app.command_line import Rota, caller, environment, followed, on_terminal, read, run, running_server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_server(tmp_path_factory.mktemp("cli")) as place:
        yield place


@pytest.fixture
def rota(home: Path) -> Rota:
    return caller(home)


def test_a_failed_run_has_an_exit_code(rota: Rota) -> None:
    assert rota("schedule", "add", "breaks", "--task", "fails", "--every", "1h").returncode == 0
    ran = rota("schedule", "run", "breaks", "--wait")
    assert (ran.returncode, ran.stderr) == (7, "error: ValueError: it does\n")
    failed = read(rota("-o", "json", "run", "list", "--status", "failed", "--schedule", "breaks"))["items"][0]
    assert "ValueError: it does" in rota("run", "show", failed["id"]).stdout


def test_a_shell_command_is_scheduled_with_its_task_or_not_at_all(rota: Rota) -> None:
    refused = rota("schedule", "add", "sh", "--shell", "echo hi", "--cron", "61 * * * *", "--tz", "Mars/Olympus")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "cron_expression: '61 * * * *'" in refused.stderr
    assert "timezone: 'Mars/Olympus'" in refused.stderr
    assert "sh " not in rota("task", "list").stdout
    for command in ("echo hi", "echo other"):  # the task goes with its schedule
        assert rota("schedule", "add", "sh", "--shell", command, "--every", "1h").returncode == 0
        assert rota("schedule", "run", "sh", "--wait").returncode == 0
        assert rota("schedule", "rm", "sh").returncode == 0
        assert "sh " not in rota("task", "list").stdout


def test_a_shell_command_reuses_the_task_that_runs_it_already(rota: Rota) -> None:
    assert rota("task", "add", "reused", "--command", "echo hi").returncode == 0
    assert rota("schedule", "add", "reused", "--shell", "echo other", "--every", "1h").returncode == 4
    assert rota("schedule", "add", "reused", "--shell", "echo hi", "--every", "1h").returncode == 0


def test_a_task_is_made_run_scheduled_and_switched_off(rota: Rota) -> None:
    made = rota("task", "add", "forty", "--function", "adds", "--param", "a=40", "--timeout", "1m", "--retries", "1")
    assert made.returncode == 0, made.stderr
    shown = read(rota("-o", "json", "task", "show", "forty"))
    assert (shown["command"], shown["parameters"], shown["timeout"]) == ("adds", {"a": 40}, "1m")
    assert json.loads(rota("task", "run", "forty", "--wait", "--params", '{"b": 1}', "--param", "b=2").stdout) == {
        "sum": 42
    }
    ran = read(rota("-o", "json", "task", "run", "forty", "--wait"))
    assert (ran["status"], ran["outcome"], ran["target_name"]) == ("success", {"sum": 41}, "forty")
    planned = rota(
        "task", "schedule", "forty", "--every", "1h", "--name", "hourly", "--input", '{"b": 9}', "--tag", "t"
    )
    assert planned.stdout.startswith("hourly: every hour")
    assert read(rota("-o", "json", "schedule", "show", "hourly"))["input"] == {"b": 9}
    assert read(rota("-o", "json", "task", "schema", "forty"))["required"] == ["a"]
    assert '"required"' in rota("task", "schema", "adds").stdout
    assert rota("task", "disable", "forty").stdout == "name     forty\nenabled  no\n"
    assert [task["name"] for task in read(rota("-o", "json", "task", "list", "--disabled"))["items"]] == ["forty"]
    assert "forty" not in rota("task", "list", "--enabled").stdout
    assert rota("task", "run", "forty").returncode == 2
    assert rota("task", "enable", "forty").returncode == 0
    assert rota("task", "rm", "forty").returncode == 0
    assert rota("schedule", "show", "hourly").returncode == 3  # gone with its task
    assert rota("run", "show", ran["id"]).returncode == 0


def test_a_command_says_what_it_said_and_ends_as_it_ended(rota: Rota) -> None:
    assert rota("task", "add", "says", "--command", "cat; echo so >&2").returncode == 0
    said = rota("task", "run", "says", "--wait", "--param", "x=a=b")
    assert (said.returncode, said.stdout, said.stderr) == (0, '{"x":"a=b"}', "so\n")
    failed = rota("task", "run", "fails", "--wait")
    assert (failed.returncode, failed.stdout, failed.stderr) == (7, "", "error: ValueError: it does\n")
    assert rota("task", "add", "says", "--command", "true").returncode == 4
    assert rota("task", "rm", "says").returncode == 0


def test_artifacts_are_listed_shown_and_downloaded(rota: Rota, tmp_path: Path) -> None:
    ran = read(rota("-o", "json", "task", "run", "adds", "--wait", "--param", "a=1"))
    picture, page = read(rota("-o", "json", "artifact", "list", "--run", ran["id"]))["items"]
    assert (picture["label"], page["label"], picture["parent_id"], picture["size"]) == (
        "picture",
        "page",
        page["id"],
        256,
    )
    listed = rota("artifact", "list", "--label", "picture", "--parent", page["id"]).stdout
    assert picture["id"] in listed
    assert page["id"] not in listed
    assert rota("artifact", "show", page["id"]).stdout.endswith("\n\na page\n")
    assert read(rota("-o", "json", "artifact", "show", ran["id"]))["data"]["result"] == {"sum": 2}
    tree = rota("artifact", "tree", ran["id"]).stdout.splitlines()
    assert [line.split("  ")[-4] for line in tree] == ["execution", "page", "picture"]
    assert tree[2].startswith("    picture")
    assert rota("artifact", "get", page["id"]).stdout == "a page"
    assert rota("artifact", "get", picture["id"], "-O", str(tmp_path / "picture.png")).returncode == 0
    assert (tmp_path / "picture.png").read_bytes() == bytes(range(256))
    assert rota("artifact", "get", picture["id"], "-O", str(tmp_path / "no" / "where")).returncode == 2


WIDE = "a-schedule-with-a-name-that-is-much-longer-than-anybody-would-think-reasonable-for-a-name"


@pytest.mark.parametrize(
    "args", ["schedule list", "run list", "slots list", "task list", "artifact list", "queue list", "key list",
             "user list", "org list", "audit", "workers", "doctor --data-dir data", "grant list", "grant forecast",
             "billing accounts", "billing ledger", "billing receipts", "billing usage", "billing key list"],
)  # fmt: skip
def test_tables_fit_a_terminal_of_80_columns_and_pipes_get_no_colours(home: Path, rota: Rota, args: str) -> None:
    if rota("schedule", "show", WIDE).returncode:
        assert rota("schedule", "add", WIDE, "--task", "hello", "--every", "1h", "--tag", "x" * 100).returncode == 0
        assert rota("schedule", "run", WIDE, "--wait").returncode == 0
    seen = on_terminal(home, *args.split())
    assert "\x1b[1m" in seen  # a bold header
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    piped = run(home, *args.split())
    assert (piped.returncode, "\x1b" in piped.stdout) == (0, False)


def test_answers_come_as_json_lines_yaml_and_csv_before_and_after_the_command(rota: Rota) -> None:
    first = {"name": "first admin key", "role": "admin"}
    for args in (("-o", "{}", "key", "list"), ("key", "list", "-o", "{}"), ("key", "list", "--output", "{}")):

        def printed(form: str, args: tuple[str, ...] = args) -> str:
            return rota(*(form if arg == "{}" else arg for arg in args)).stdout

        texts: list[Any] = [yaml.safe_load(printed("yaml"))["items"][0], json.loads(printed("jsonl").splitlines()[0])]
        texts += [json.loads(printed("json"))["items"][0], next(csv.DictReader(printed("csv").splitlines()))]
        assert [{name: item[name] for name in first} for item in texts] == [first] * 4
    assert "last used" not in rota("-o", "csv", "key", "list", "-o", "table").stdout
    assert rota("key", "list", "-o", "xml").returncode == 2


def test_a_query_selects_from_the_answer(rota: Rota) -> None:
    assert rota("key", "list", "--query", "items[].name").stdout == "first admin key\n"
    assert rota("key", "list", "--query", "length(items)").stdout == "1\n"
    assert "cannot be applied" in rota("key", "list", "--query", "length(next_cursor)").stderr
    assert rota("key", "list", "--query", "items[].{key: name}").stdout.splitlines()[0].strip() == "KEY"
    assert json.loads(rota("key", "list", "--query", "items[0].scopes", "-o", "json").stdout) == []
    assert rota("key", "list", "--query", "items[].[name, role]", "-o", "csv").stdout == "first admin key,admin\n"
    refused = rota("schedule", "add", "never", "--task", "hello", "--every", "1h", "--query", "items[")
    assert (refused.returncode, rota("schedule", "show", "never").returncode) == (2, 3)  # nothing was created
    assert "'items[' is not a valid JMESPath expression" in refused.stderr


def test_a_wide_table_has_all_fields_in_lines_that_are_not_wrapped(rota: Rota, home: Path) -> None:
    header, line = on_terminal(home, "key", "list", "-o", "wide").splitlines()
    assert "LAST_USED_AT" in header
    assert "EXPIRES_AT" not in header  # no item has a value
    assert len(line) > 80
    assert "prefix" in rota("key", "show", "first admin key", "-o", "wide").stdout


def test_a_grant_is_given_looked_at_and_taken_back(rota: Rota) -> None:
    every = rota("grant", "create", "--scope", "task:execute:*")
    assert (every.returncode, "consent" in every.stderr) == (2, True)
    options = ["--scope", "task:execute:hello", "--scope", "task:execute:fails", "--budget-total", "7"]
    held = read(rota("-o", "json", "grant", "create", *options, "--expires", "2126-01-01T00:00:00Z"))
    assert (len(held["scopes"]), held["budget"]) == (2, {"per_day": None, "total": 7})
    assert "No schedule depends on it." in rota("grant", "show", held["id"]).stdout
    added = rota("schedule", "add", "granted", "--task", "hello", "--every", "1h", "--grant", held["id"])
    assert added.returncode == 0, added.stderr
    assert held["id"] in rota("schedule", "show", "granted").stdout
    assert rota("schedule", "run", "granted", "--wait").returncode == 0
    assert "Schedules that stop if it is revoked: granted" in rota("grant", "show", held["id"]).stdout
    assert "no grant of a schedule lapses" in rota("grant", "forecast", "--days", "7").stderr
    for _ in range(2):
        assert "revoked_at" in rota("grant", "revoke", held["id"], "--cancel-running").stdout
    assert "revoked" in rota("grant", "list", "--limit", "1").stdout
    (lapsed,) = read(rota("-o", "json", "grant", "forecast"))["items"]
    assert (lapsed["schedule_name"], lapsed["reason"]) == ("granted", "grant_revoked")
    assert "granted" in rota("grant", "forecast").stdout
    ran = rota("schedule", "run", "granted", "--wait")
    assert ran.returncode != 0
    skipped = read(rota("-o", "json", "run", "list", "--schedule", "granted"))["items"][0]
    assert (skipped["status"], skipped["reason"]) == ("skipped", "grant_revoked")
    assert "because its grant was revoked" in rota("why", skipped["id"]).stdout
    assert rota("schedule", "rm", "granted").returncode == 0


def test_credits_are_put_on_accounts_and_followed(rota: Rota) -> None:
    account = read(rota("-o", "json", "billing", "account"))
    assert rota("billing", "top-up", "50000000", "--reference", "invoice 7").returncode == 0
    again = rota("billing", "top-up", "50000000", "--reference", "invoice 7", "--account", account["id"])
    assert "50000000" in again.stdout
    assert rota("billing", "top-up", "5", "--reference", "invoice 7").returncode == 4
    assert read(rota("-o", "json", "billing", "account"))["balance_credits"] == 50_000_000
    assert "5.0000" in rota("billing", "accounts").stdout
    assert "invoice 7" in rota("billing", "ledger").stdout
    assert rota("user", "add", "bo@example.org", "--role", "viewer", ROTA_PASSWORD="correct horse").returncode == 0
    theirs = read(rota("-o", "json", "billing", "account", "--owner", "bo@example.org"))
    assert theirs["balance_credits"] == 0
    assert read(rota("-o", "json", "billing", "receipts", "--account", theirs["id"]))["items"] == []
    for by in ("schedule", "graph", "grant", "day"):
        assert read(rota("-o", "json", "billing", "usage", "--by", by))["items"] == []
    header = "key,name,runs,units,input_tokens,output_tokens,charged_credits,cost_usd"
    assert rota("billing", "usage", "--csv").stdout.splitlines() == [header]
    key = read(rota("-o", "json", "billing", "key", "add", "Research"))
    assert rota("billing", "key", "deactivate", account["default_virtual_key_id"]).returncode == 4
    assert rota("billing", "key", "default", key["id"]).returncode == 0
    assert rota("billing", "key", "deactivate", account["default_virtual_key_id"]).returncode == 0
    assert "inactive" in rota("billing", "key", "list").stdout


def test_a_profile_names_a_server(rota: Rota, home: Path, tmp_path: Path) -> None:
    place = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert rota("profile", "set", "here", **place).returncode == 0
    assert (tmp_path / "rota" / "profiles.json").stat().st_mode & 0o777 == 0o600
    assert "here" in rota("profile", "list", **place).stdout
    elsewhere = {**place, "ROTA_DATA_DIR": "elsewhere"}
    assert rota("--profile", "here", "run", "list", **elsewhere).returncode == 0
    assert rota("run", "list", **elsewhere, ROTA_PROFILE="here").returncode == 0
    assert rota("--profile", "there", "run", "list", **place).returncode == 2
    assert rota("profile", "rm", "here", **place).returncode == 0
    assert rota("profile", "rm", "here", **place).returncode == 3


def test_queues_freeze_and_why(rota: Rota) -> None:
    assert "max_running      5" in rota("queue", "limit", "default", "5").stdout
    assert "yes" in rota("queue", "pause", "default").stdout
    assert "paused" in rota("queue", "list").stdout
    assert rota("queue", "resume", "default").returncode == 0
    assert rota("queue", "limit", "default").returncode == 0
    assert "frozen" in rota("freeze", "on", "--reason", "x").stdout
    assert "x" in rota("freeze", "show").stdout
    assert rota("freeze", "off").returncode == 0
    assert rota("schedule", "add", "asked", "--task", "hello", "--every", "1h").returncode == 0
    job = read(rota("-o", "json", "schedule", "run", "asked", "--wait"))
    assert "asked" in rota("why", job["id"]).stdout
    assert rota("run", "wait", job["id"]).returncode == 0


def test_wait_reports_the_outcome_by_its_exit_code(rota: Rota) -> None:
    for name, command in (("ends", "exit 3"), ("lasts", "sleep 30")):
        assert rota("schedule", "add", name, "--shell", command, "--every", "1h").returncode == 0
    failed = read(rota("-o", "json", "schedule", "run", "ends"))["job_id"]
    assert rota("run", "wait", failed).returncode == 7
    running = read(rota("-o", "json", "schedule", "run", "lasts"))["job_id"]
    assert rota("run", "wait", running, "--timeout", "0.1").returncode == 6
    assert rota("run", "cancel", running).returncode == 0
    assert rota("run", "wait", running).returncode == 7


@pytest.mark.parametrize("args", ["--watch queue list", "queue list --watch 0.1", "queue list --watch -o csv"])
def test_watch_appends_to_a_pipe_until_it_is_interrupted(home: Path, args: str) -> None:
    assert run(home, "queue", "limit", "watched", "3").returncode == 0
    process = followed(home, *args.split())
    assert process.stdout is not None
    seen = [process.stdout.readline().lower() for _ in range(4)]
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert sum(line.startswith("name") for line in seen) == 2


def test_watch_redraws_a_terminal_and_repeats_only_what_reads(home: Path, rota: Rota) -> None:
    seen = on_terminal(home, "queue", "list", "--watch", "0.1", until="\x1b[H\x1b[2J", times=3)
    assert "NAME" in seen
    assert rota("queue", "show", "none", "--watch").returncode == 3
    refused = rota("--watch", "schedule", "rm", "none")
    assert (refused.returncode, "only commands that read" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("rota sche", ["schedule"]),
        ("rota schedule show compl", ["completed-1", "completed-2"]),
        ("rota schedule add x --task hel", ["hello"]),
        ("rota run list --schedule completed-2", ["completed-2"]),
        ("rota queue show ", ["completing"]),
        ("rota --data-dir elsewhere schedule show ", []),
        ("rota --server http://127.0.0.1:9 --key x task show ", []),
    ],
)
def test_shells_complete_commands_and_names(home: Path, rota: Rota, typed: str, completed: list[str]) -> None:
    for name in ("completed-1", "completed-2"):
        rota("schedule", "add", name, "--task", "hello", "--every", "1h")
    rota("queue", "limit", "completing", "3")
    env = {"_ROTA_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import sys; sys.argv = ['rota']; from rota.app.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment(**env), capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert set(completed) <= set(answer.stdout.split())
    assert completed or not answer.stdout.strip()


def test_a_server_with_only_its_first_key_stays_on_this_machine(tmp_path: Path) -> None:
    refused = run(tmp_path, "up", "--host", "0.0.0.0", "--port", "0")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "--allow-remote" in refused.stderr
    assert not (tmp_path / "data" / "server.json").exists()


def test_the_doctor_sees_what_is_wrong(tmp_path: Path) -> None:
    missing = run(tmp_path, "doctor")
    assert (missing.returncode, "rota up" in missing.stdout) == (1, True)
    assert run(tmp_path, "migrate").returncode == 0
    result = run(tmp_path, "-o", "json", "doctor")
    assert result.returncode == 0, result.stdout
    verdicts = {finding["what"]: finding["verdict"] for finding in json.loads(result.stdout)["items"]}
    assert verdicts["migrations"] == verdicts["wake-ups"] == verdicts["clock"] == "ok"
    assert verdicts["workers"] == "note"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["schedule", "add", "x", "--task", "hello"], 2),
        (["schedule", "add", "x", "--every", "5m"], 2),
        (["schedule", "add", "x", "--task", "hello", "--every", "5m", "--cron", "* * * * *"], 2),
        (["schedule", "add", "x", "--task", "hello", "--every", "5m", "--input", "{"], 2),
        (["schedule", "add", "x", "--task", "hello", "--every", "5m", "--input", "@nowhere"], 2),
        (["schedule", "add", "x", "--task", "unknown", "--every", "5m"], 2),
        (["schedule", "frobnicate"], 2),
        (["task", "add", "x"], 2),
        (["task", "add", "x", "--command", "true", "--function", "hello"], 2),
        (["task", "add", "x", "--function", "unknown"], 2),
        (["task", "add", "x", "--command", "true", "--timeout", "soon"], 2),
        (["task", "run", "hello", "--param", "name"], 2),
        (["task", "run", "hello", "--params", "[1]"], 2),
        (["task", "run", "hello", "--params", "{"], 2),
        (["task", "run", "hello", "--param", "unknown=1"], 2),
        (["task", "run", "none"], 2),
        (["task", "schedule", "hello"], 2),
        (["task", "schedule", "hello", "--cron", "61 * * * *"], 2),
        (["task", "rm", "hello"], 4),
        (["task", "show", "none"], 3),
        (["artifact", "get", "none"], 3),
        (["run", "show", "none"], 3),
        (["run", "logs", "none"], 3),
        (["run", "list", "--since", "yesterday"], 2),
        (["schedule", "resume", "none"], 3),
        (["--key", "rota_wrong", "run", "list"], 5),
        (["--server", "http://127.0.0.1:9", "run", "list"], 1),
        (["--server", "nonsense", "run", "list"], 1),
        (["--data-dir", "elsewhere", "run", "list"], 1),
        (["grant", "create"], 2),
        (["grant", "create", "--scope", "everything"], 2),
        (["grant", "create", "--scope", "task:execute:x", "--budget-total", "-1"], 2),
        (["grant", "create", "--scope", "task:execute:x", "--expires", "2020-01-01T00:00:00Z"], 2),
        (["grant", "show", "none"], 3),
        (["grant", "revoke", "none"], 3),
        (["grant", "forecast", "--days", "0"], 2),
        (["billing", "top-up", "5"], 2),
        (["billing", "top-up", "--reference", "x", "--", "-5"], 2),
        (["billing", "top-up", "5.5", "--reference", "x"], 2),
        (["billing", "top-up", "9007199254740993", "--reference", "x"], 2),
        (["billing", "usage", "--by", "planet"], 2),
        (["billing", "ledger", "--account", "none"], 3),
        (["billing", "account", "--owner", "none"], 3),
        (["slots", "audit"], 0),
        (["workers"], 0),
    ],
)
def test_exit_codes_mean_something(rota: Rota, args: list[str], code: int) -> None:
    answer = rota(*args)
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    if code:
        assert answer.stdout == ""
        assert answer.stderr


def test_server_and_key_may_come_from_the_environment(rota: Rota, home: Path) -> None:
    url = json.loads((home / "data" / "server.json").read_text())["url"]
    key = (home / "data" / "admin.key").read_text().strip()
    assert (home / "data" / "admin.key").stat().st_mode & 0o777 == 0o600
    assert rota("run", "list", ROTA_DATA_DIR="elsewhere", ROTA_SERVER=url, ROTA_KEY=key).returncode == 0


def test_a_wrong_setting_stops_a_process_before_it_starts(tmp_path: Path) -> None:
    answer = run(tmp_path, "up", ROTA_LEASE_SECONDS="0")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "lease_seconds" in answer.stderr


def test_a_worker_refuses_a_database_without_tables(tmp_path: Path) -> None:
    answer = run(tmp_path, "worker", "--data-dir", "fresh")
    assert answer.returncode == 1
    assert "rota migrate" in answer.stderr
    assert run(tmp_path, "migrate", "--data-dir", "fresh").returncode == 0


def test_help_loads_nothing_heavy() -> None:
    heavy = (
        *("aiosqlite", "alembic", "argon2", "asyncio", "asyncpg", "fastapi", "httpx", "jinja2", "orjson", "pydantic"),
        *("rich.table", "sqlalchemy", "starlette", "structlog", "uvicorn", "uvloop"),
        *("rota.core.policy", "rota.core.timing"),
    )
    code = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", sorted(set(sys.modules) & set({heavy}))))
sys.argv = ["rota", "--help"]
from rota.app.cli import main
main()
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: rota" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "loaded: []"


def test_a_login_link_is_made_at_the_start_and_on_demand(rota: Rota, home: Path) -> None:
    assert "login?token=" not in (home / "up.log").read_text()  # others may read it
    first = (home / "data" / "login.url").read_text().strip()
    asked = rota("login")
    assert asked.returncode == 0
    assert "works once" in asked.stderr
    for url in (first, asked.stdout.strip(), read(rota("-o", "json", "login"))["url"]):
        with httpx.Client(timeout=60) as browser:
            assert browser.get(url).headers["location"] == "/"
            assert "<h1>Now" in browser.get(url.partition("login")[0]).text
            assert browser.get(url).status_code == 403


def test_the_version_is_printed(rota: Rota) -> None:
    assert rota("--version").stdout == f"rota {__version__}\n"


def test_a_run_is_found_by_the_name_of_its_schedule_or_task(rota: Rota) -> None:
    assert rota("schedule", "add", "greeter", "--task", "hello", "--every", "1h").returncode == 0
    assert rota("schedule", "run", "greeter", "--wait").returncode == 0
    assert rota("logs", "greeter").stdout == "hello you\n"
    shown = rota("run", "show", "greeter").stdout
    assert "success" in shown
    assert "hello" in shown
    assert rota("logs", "hello").stdout == "hello you\n"
    assert "greeter" in rota("why", "greeter").stdout
    unknown = rota("logs", "no-such-thing")
    assert unknown.returncode == 3
    assert unknown.stderr.startswith("error: no run found for 'no-such-thing': it is no id of a run or job")


def test_every_field_of_a_schedule_has_an_option(rota: Rota) -> None:
    options = (
        "--queue",
        "slow",
        "--max-runs",
        "3",
        "--start-deadline",
        "90",
        "--starts",
        "2030-01-01T00:00Z",
        "--ends",
        "2031-01-01T00:00Z",
        "--misfire",
        "all",
        "--catch-up-limit",
        "7",
        "--retries",
        "2",
        "--backoff-ms",
        "5000",
        "--max-backoff-ms",
        "60000",
    )
    assert rota("schedule", "add", "full", "--task", "hello", "--every", "1h", *options).returncode == 0
    made = read(rota("-o", "json", "schedule", "show", "full"))
    assert (made["queue"], made["max_runs"], made["start_deadline_seconds"]) == ("slow", 3, 90)
    assert (made["starts_at"], made["ends_at"]) == ("2030-01-01T00:00:00+00:00", "2031-01-01T00:00:00+00:00")
    assert (made["misfire"], made["catch_up_limit"]) == ("all", 7)
    assert {name: made["retry"][name] for name in ("max_retries", "backoff_ms", "max_backoff_ms")} == {
        "max_retries": 2,
        "backoff_ms": 5000,
        "max_backoff_ms": 60000,
    }


def test_tables_in_a_pipe_have_a_line_per_row(rota: Rota) -> None:
    name = "import-orders-of-the-branch-office-in-bergen-every-hour-of-the-working-day"
    assert rota("schedule", "add", name, "--task", "hello", "--every", "1h").returncode == 0
    lines = rota("schedule", "list").stdout.splitlines()
    assert len([line for line in lines if name in line and "every hour" in line]) == 1


def test_times_are_accepted_in_common_forms_and_as_printed(rota: Rota) -> None:
    assert rota("schedule", "add", "hourly", "--task", "hello", "--every", "1h").returncode == 0
    paused = read(rota("-o", "json", "schedule", "pause", "hourly", "--until", "1h"))
    assert paused["paused_until"] is not None
    assert "hourly: every hour, paused, until 2" in rota("schedule", "pause", "hourly", "--until", "1h").stdout
    planned = read(rota("-o", "json", "job", "add", "hello", "--at", "1h"))["job_id"]
    assert "hello" in rota("job", "show", planned).stdout
    assert rota("schedule", "resume", "hourly").returncode == 0
    assert rota("schedule", "backfill", "hourly", "--from", "1d", "--to", "now", "--dry-run").returncode == 0
    assert rota("run", "list", "--since", "2026-01-01").returncode == 0
    printed = rota("schedule", "backfill", "hourly", "--from", "90m", "--to", "now").stdout.split()[0]
    assert (
        rota("schedule", "next", "--cron", "0 2 * * *", "--tz", "Europe/Oslo", "--count", "2").stdout.count("02:00")
        == 2
    )
    assert rota("why", "hourly", "--slot", printed).returncode == 0
    listed = rota("slots", "list", "--schedule", "hourly").stdout.splitlines()[1].split()
    assert rota("why", "hourly", "--slot", f"{listed[1]} {listed[2]}").returncode == 0
    refused = rota("run", "list", "--since", "yesterday")
    assert (refused.returncode, "'yesterday' is not a time; use 1h" in refused.stderr) == (2, True)


def test_the_status_fits_one_screen_and_fails_while_something_is_failing(rota: Rota) -> None:
    assert rota("schedule", "add", "breaking", "--task", "fails", "--every", "1h").returncode == 0
    assert rota("schedule", "run", "breaking", "--wait").returncode == 7
    status = rota("status")
    assert status.returncode == 1
    assert "workers   1 alive" in status.stdout
    assert len(status.stdout.splitlines()) <= 24
    assert max(map(len, status.stdout.splitlines())) <= 80
    assert "breaking: 1 failed" in status.stdout
    assert "ValueError: it does" in status.stdout
    assert rota("run", "acknowledge", "breaking", "--note", "known").returncode == 0
    assert "acknowledged by" in rota("status").stdout
