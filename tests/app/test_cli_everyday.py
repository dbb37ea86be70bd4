"""Everyday commands, on both databases: create, edit, pause, run, follow."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.command_line import Rota, caller, environment, followed, on_terminal, read, run, running_server
from tests.app.forms import fill, form_on
from tests.app.tcp_proxy import TcpProxy
from tests.postgres import create_database, drop_database


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("cli")
    if request.param == "sqlite":
        with running_server(place):
            yield place
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    (place / "database-url").write_text(url)
    with running_server(place, ROTA_DATABASE_URL=url):
        yield place
    drop_database(server, url)


@pytest.fixture
def rota(home: Path) -> Rota:
    return caller(home)


@pytest.fixture
def proxy(home: Path) -> Iterator[TcpProxy]:
    """A way to the server that can be cut."""
    with TcpProxy(json.loads((home / "data" / "server.json").read_text())["url"]) as proxy:
        yield proxy


def editor(home: Path, *texts: str) -> str:
    """An editor that leaves one Python expression's value after the other; `one` is what it was given."""
    script = home / "editor.py"
    script.write_text(
        "import json, pathlib, sys\n"
        f"texts, seen, file = {texts!r}, pathlib.Path('edits'), pathlib.Path(sys.argv[1])\n"
        "turn = len(seen.read_text()) if seen.exists() else 0\n"
        "seen.write_text('.' * (turn + 1))\n"
        "one = json.loads(file.read_text()) if turn == 0 else None\n"
        "made = eval(texts[turn])\n"
        "file.write_text(made if isinstance(made, str) else json.dumps(made))\n"
    )
    (home / "edits").unlink(missing_ok=True)
    return f"{sys.executable} {script}"


def test_schedules_are_deleted_by_their_tag(rota: Rota) -> None:
    for name in ("one", "two"):
        assert rota("schedule", "add", name, "--task", "hello", "--every", "1h", "--tag", "going").returncode == 0
    assert rota("schedule", "rm").returncode == 2  # which one?
    assert rota("schedule", "rm", "--tag", "going").stdout == "2 schedules deleted\n"
    assert rota("schedule", "show", "one").returncode == 3


def test_a_schedule_lives_and_dies(rota: Rota, home: Path) -> None:
    trigger = ["--cron", "0 2 * * *", "--tz", "Europe/Oslo", "--window", "01:00-03:00"]
    policies = ["--tag", "a", "--input", '{"name": "Ada"}', "--retries", "2", "--timeout", "9"]
    added = rota("schedule", "add", "life", "--task", "hello", *trigger, *policies)
    assert added.returncode == 0, added.stderr
    assert "every day at 02:00 (Europe/Oslo)" in added.stdout
    shown = read(rota("-o", "json", "schedule", "show", "life"))
    assert (shown["input"], shown["tags"], shown["retry"]["max_retries"]) == ({"name": "Ada"}, ["a"], 2)
    assert (shown["window_start"], shown["window_end"], shown["timeout_seconds"]) == ("01:00", "03:00", 9)
    listed = run(home, "schedule", "list", "--tag", "a")  # through a pipe: no colours, a line per row
    assert "life" in listed.stdout
    assert len(listed.stdout.splitlines()) == 2
    assert "\x1b" not in listed.stdout
    assert len(read(rota("-o", "json", "schedule", "next", "life", "--count", "3"))["slots"]) == 3
    assert rota("schedule", "next", "life").returncode == 0
    assert "paused" in rota("schedule", "pause", "life", "--reason", "why").stdout
    assert "enabled" in rota("schedule", "resume", "life", "--gap", "once").stdout
    assert read(rota("-o", "json", "schedule", "skip-next", "life", "--reason", "x"))["verdict"] == "skipped"
    assert "skipped" in rota("slots", "list", "--schedule", "life").stdout
    dry = rota(
        "schedule", "backfill", "life", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-03T00:00:00Z", "--dry-run"
    )
    assert len(dry.stdout.splitlines()) == 2
    assert rota("schedule", "show", "life").stdout.startswith("id ")
    assert rota("schedule", "rm", "life").returncode == 0
    assert rota("schedule", "show", "life").returncode == 3


def test_a_run_is_waited_for_and_read(rota: Rota) -> None:
    assert rota("schedule", "add", "greets", "--task", "hello", "--every", "1h").returncode == 0
    ran = read(rota("-o", "json", "schedule", "run", "greets", "--input", '{"name": "Bo"}', "--wait"))
    assert ran["status"] == "success"
    shown = read(rota("-o", "json", "run", "show", ran["id"]))  # by the job's id
    assert shown["outcome"] == "Bo"
    assert rota("run", "logs", "-f", shown["id"]).stdout == "hello Bo\n"
    assert shown["id"] in rota("run", "list", "--schedule", "greets").stdout
    again = read(rota("-o", "json", "run", "retry", shown["id"]))
    assert again["job_id"]
    assert rota("run", "cancel", shown["id"]).returncode == 4


def test_a_graph_is_run_under_a_grant_that_an_account_pays_for(rota: Rota) -> None:
    assert "Say it again." in rota("graph", "list").stdout
    ran = rota("graph", "run", "python:echo", "--input", '{"say": "spring"}', "--wait")
    assert (ran.returncode, ran.stdout) == (0, "spring\n"), ran.stderr
    held = read(rota("-o", "json", "grant", "create", "--scope", "graph:execute:python:*"))
    asked = read(rota("-o", "json", "graph", "run", "python:echo", "--grant", held["id"], "--input", "{}"))
    assert rota("run", "wait", asked["job_id"]).returncode == 7  # it has nothing to say
    failed = rota("graph", "run", "python:echo", "--grant", held["id"], "--wait")
    assert (failed.returncode, failed.stdout, "KeyError" in failed.stderr or "say" in failed.stderr) == (7, "", True)
    assert "20000" in rota("billing", "usage", "--by", "graph").stdout
    weekdays = ["--cron", "0 9 * * 1-5", "--tz", "Europe/Oslo", "--input", '{"say": "good morning"}']
    assert "09:00" in rota("schedule", "add", "poem", "--graph", "python:echo", *weekdays).stdout
    minted = read(rota("-o", "json", "grant", "show", "poem"))  # the grant of this schedule
    assert minted["id"] == read(rota("-o", "json", "schedule", "show", "poem"))["grant_id"]
    assert (minted["scopes"], minted["schedules"]) == (["graph:execute:python:echo"], ["poem"])
    assert rota("schedule", "run", "poem", "--wait").returncode == 0
    assert rota("schedule", "rm", "poem").returncode == 0
    assert "revoked" in rota("grant", "list", "--limit", "1").stdout
    assert rota("billing", "close", held["billing_account_id"]).returncode == 0
    said = ["--input", '{"say": "x"}']
    closed = rota("graph", "run", "python:echo", "--grant", held["id"], *said, "--wait")
    assert (closed.returncode, "is closed" in closed.stderr) == (7, True)
    (skipped, *_) = read(rota("-o", "json", "run", "list", "--kind", "graph"))["items"]
    assert (skipped["status"], skipped["error"]["code"]) == ("skipped", "billing_account_closed")
    assert "the account that pays for it is closed" in rota("why", skipped["id"]).stdout
    assert rota("graph", "run", "python:echo").returncode == 4  # its minted grant has no account that can pay
    assert rota("billing", "reopen", held["billing_account_id"]).returncode == 0
    assert rota("graph", "run", "python:echo", "--grant", held["id"], *said, "--wait").returncode == 0
    assert rota("grant", "revoke", held["id"]).returncode == 0
    for wrong, code in ((["echo"], 3), (["python:none"], 3), (["python:echo", "--grant", held["id"]], 2),
                        (["python:echo", "--input", "[1]"], 2), (["python:echo", "--input", "{"], 2)):  # fmt: skip
        assert rota("graph", "run", *wrong).returncode == code, wrong


def test_people_and_keys_are_managed_from_the_shell(rota: Rota, home: Path) -> None:
    made = rota("user", "add", "ada@example.org", "--role", "operator", ROTA_PASSWORD="correct horse")
    assert made.returncode == 0, made.stderr
    assert "admin" in rota("user", "edit", "ada@example.org", "--role", "admin").stdout
    key = read(rota("-o", "json", "key", "add", "ci", "--role", "viewer", "--scope", "runs:read"))
    assert rota("--key", key["key"], "run", "list").returncode == 0
    assert rota("--key", key["key"], "schedule", "list").returncode == 5
    assert rota("key", "rm", key["id"]).returncode == 0
    assert rota("--key", key["key"], "run", "list").returncode == 5
    assert rota("user", "rm", "ada@example.org").returncode == 0
    assert read(rota("-o", "json", "org", "add", "acme", "--name", "Acme"))["admin_key"].startswith("rota_")
    allowed = read(rota("-o", "json", "org", "set", "acme", "--shell", "--max-running", "5"))
    assert (allowed["shell"], allowed["max_running"]) == (True, 5)
    assert "yes" in next(line for line in rota("org", "list").stdout.splitlines() if "acme" in line)
    changed = read(rota("-o", "json", "org", "set", "acme", "--no-shell", "--max-running", "none"))
    assert (changed["shell"], changed["max_running"]) == (False, None)
    assert rota("org", "set", "acme", "--max-running", "many").returncode == 2
    assert rota("org", "set", "nowhere", "--shell").returncode == 3
    assert "api-keys.delete" in rota("audit").stdout


async def test_a_password_is_changed_and_login_sessions_are_listed_and_ended(rota: Rota, home: Path) -> None:
    made = rota("user", "add", "grace@example.org", "--role", "admin", ROTA_PASSWORD="correct horse")
    assert made.returncode == 0, made.stderr
    async with at_dashboard(home) as browser, at_dashboard(home) as second:
        await log_in(browser, "correct horse")
        page = await fill(browser, "/settings", "/api-keys", name="own", role="admin")
        (key,) = set(re.findall(r"rota_[\w-]{43}", page.text))
        own = {"ROTA_KEY": key}  # a key acts for the user who created it
        await second.get(rota("login").stdout.strip())  # a session of another user
        second.cookies.clear()
        await log_in(second, "correct horse")
        listed = rota("session", "list", "--user", "grace@example.org")
        heading = ["ID", "USER", "BY", "DEVICE", "ADDRESS", "CREATED", "LAST", "USED", "EXPIRES"]
        assert listed.stdout.splitlines()[0].split() == heading
        rows = [line.split() for line in listed.stdout.splitlines()[1:]]
        assert [(row[1], row[2], "127.0.0.1" in row) for row in rows] == [("grace@example.org", "password", True)] * 2
        newest = rows[0][0]
        several = rota("session", "rm", "grace@example.org")
        assert (several.returncode, f"use the id of one: {newest}" in several.stderr) == (4, True)
        ended = rota("session", "rm", newest)
        assert (ended.returncode, ended.stderr) == (0, f"session {newest} has ended\n")
        assert (await second.get("/")).status_code == 303
        assert (await browser.get("/")).status_code == 200
        assert rota("session", "rm", newest).returncode == 3
        left = read(rota("-o", "json", "session", "list", "--user", "grace@example.org"))["items"]
        assert [session["id"] for session in left] == [rows[1][0]]
        assert rota("session", "rm", "Grace@example.org").returncode == 0
        assert rota("session", "rm", "grace@example.org").returncode == 3
        assert (await browser.get("/")).status_code == 303
        await log_in(browser, "correct horse")

        wrong = rota("user", "password", **own, ROTA_PASSWORD="wrong horse", ROTA_NEW_PASSWORD="battery staple")
        assert (wrong.returncode, wrong.stderr) == (5, "error: the current password is wrong\n")
        weak = rota("user", "password", **own, ROTA_PASSWORD="correct horse", ROTA_NEW_PASSWORD="password1")
        assert weak.returncode == 2
        assert "new_password" in weak.stderr
        first = rota("user", "password", ROTA_PASSWORD="correct horse", ROTA_NEW_PASSWORD="battery staple")
        assert first.returncode == 4  # the first key acts for no person
        assert (await browser.get("/")).status_code == 200
        changed = rota("user", "password", **own, ROTA_PASSWORD="correct horse", ROTA_NEW_PASSWORD="battery staple")
        assert (changed.returncode, changed.stdout) == (0, "")
        assert changed.stderr == "password changed; all your login sessions have ended\n"
        assert (await browser.get("/")).status_code == 303
        await log_in(browser, "correct horse", status=403)
        await log_in(browser, "battery staple")


async def test_a_first_key_that_was_lost_is_replaced_on_the_machine_of_the_server(rota: Rota, home: Path) -> None:
    file = home / "data" / "admin.key"
    old, link = file.read_text().strip(), rota("login").stdout.strip()
    other = read(rota("-o", "json", "key", "add", "other", "--role", "admin"))["key"]
    database = home / "database-url"
    env = {"ROTA_DATABASE_URL": database.read_text()} if database.exists() else {}
    async with at_dashboard(home) as browser:
        await browser.get(link)
        assert (await browser.get("/")).status_code == 200
        reset = run(home, "admin", "reset-key", **env)
        assert (reset.returncode, reset.stdout) == (0, "")
        assert reset.stderr == f"the new key is in {file}; earlier instance admin keys are revoked\n"
        assert (await browser.get("/")).status_code == 303  # a session of the old key
    new = file.read_text().strip()
    assert new != old
    assert file.stat().st_mode & 0o777 == 0o600
    assert rota("--key", old, "org", "list").returncode == 5
    assert rota("--key", other, "org", "list").returncode == 0  # an admin of the org, not of the instance
    assert rota("org", "add", "made-with-the-new-key").returncode == 0


def at_dashboard(home: Path) -> httpx.AsyncClient:
    """A browser at the server of a data directory, not logged in."""
    return httpx.AsyncClient(base_url=json.loads((home / "data" / "server.json").read_text())["url"], timeout=60)


async def log_in(browser: httpx.AsyncClient, password: str, status: int = 303) -> None:
    fields = form_on((await browser.get("/login")).text, "/login").fields
    typed = {"org": "default", "email": "grace@example.org", "password": password}  # of several orgs one is asked for
    answer = await browser.post("/login", data=fields | typed)
    assert answer.status_code == status, answer.text


def test_a_schedule_is_edited_by_options(rota: Rota) -> None:
    assert rota("schedule", "add", "edited", "--task", "hello", "--every", "1h", "--tag", "a").returncode == 0
    changed = rota("schedule", "edit", "edited", "--cron", "0 3 * * *", "--retries", "4", "--disabled")
    assert "every day at 03:00" in changed.stdout
    shown = read(rota("-o", "json", "schedule", "show", "edited"))
    assert (shown["retry"]["max_retries"], shown["enabled"], shown["tags"], shown["revision"]) == (4, False, ["a"], 2)
    again = read(rota("-o", "json", "schedule", "edit", "edited", "--enabled", "--tag", "b", "--tag", "c"))
    assert (again["enabled"], again["tags"]) == (True, ["b", "c"])
    refused = rota("schedule", "edit", "edited", "--cron", "61 * * * *")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert rota("schedule", "edit", "unknown", "--enabled").returncode == 3
    assert rota("schedule", "rm", "edited").returncode == 0


def test_a_schedule_is_edited_in_an_editor(rota: Rota, home: Path) -> None:
    assert rota("schedule", "add", "text", "--task", "hello", "--every", "1h", "--timeout", "9").returncode == 0
    same = run(home, "schedule", "edit", "text", EDITOR="true")
    assert (same.returncode, same.stderr) == (0, "no changes\n")
    edit = (
        "{key: value for key, value in (one | {'description': 'x', 'priority': 7}).items() if key != 'timeout_seconds'}"
    )
    edited = run(home, "-o", "json", "schedule", "edit", "text", EDITOR=editor(home, edit))
    shown = read(edited)
    assert (shown["description"], shown["priority"], shown["timeout_seconds"]) == ("x", 7, None)
    wrong = run(home, "schedule", "edit", "text", EDITOR=editor(home, "one | {'priority': 700}"))
    assert (wrong.returncode, "priority" in wrong.stderr) == (2, True)
    assert run(home, "schedule", "edit", "text", EDITOR="false").returncode == 1
    assert rota("schedule", "rm", "text").returncode == 0


def test_a_person_whose_edit_is_wrong_may_edit_again(rota: Rota, home: Path) -> None:
    assert rota("schedule", "add", "again", "--task", "hello", "--every", "1h").returncode == 0
    writes = editor(home, "one | {'misfire': 'never'}", "'{'", "{'name': 'again', 'target': 'hello', 'interval': '2h'}")
    seen = on_terminal(home, "schedule", "edit", "again", typed="y\ny\n", EDITOR=writes)
    assert "misfire" in seen
    assert "not a JSON object" in seen
    assert "every 2 hours" in seen
    assert rota("schedule", "rm", "again").returncode == 0


def test_an_edit_does_not_overwrite_a_concurrent_change(rota: Rota, home: Path) -> None:
    assert rota("schedule", "add", "both", "--task", "hello", "--every", "1h").returncode == 0
    other = f"__import__('os').system('{sys.executable} -m rota.app.cli schedule edit both --description theirs')"
    edited = run(home, "schedule", "edit", "both", EDITOR=editor(home, f"({other}, one | {{'priority': 5}})[1]"))
    assert edited.returncode == 4
    shown = read(rota("-o", "json", "schedule", "show", "both"))
    assert (shown["description"], shown["priority"]) == ("theirs", 0)
    assert rota("schedule", "rm", "both").returncode == 0


def test_many_schedules_are_paused_and_resumed_at_once(rota: Rota) -> None:
    for number in range(3):
        tags = ["--tag", "bulk"] if number else []
        assert rota("schedule", "add", f"bulk-{number}", "--task", "hello", "--every", "1h", *tags).returncode == 0
    assert rota("schedule", "pause", "--tag", "bulk", "--reason", "why").stdout == "2 schedules paused\n"
    assert read(rota("-o", "json", "schedule", "show", "bulk-1"))["pause_reason"] == "why"
    assert not read(rota("-o", "json", "schedule", "show", "bulk-0"))["paused"]
    assert read(rota("-o", "json", "schedule", "resume", "--tag", "bulk", "--gap", "once")) == {"count": 2}
    assert json.loads(rota("-o", "jsonl", "schedule", "pause", "--all").stdout)["count"] >= 3
    assert "schedules resumed" in rota("schedule", "resume", "--all").stdout
    for wrong in ([], ["bulk-0", "--all"], ["--all", "--tag", "bulk"]):
        assert rota("schedule", "pause", *wrong).returncode == 2
    for alone in (["--enabled"], ["--not-paused"], ["--kind", "task"], ["--condition", "ok"]):
        refused = rota("schedule", "rm", *alone)
        assert refused.returncode == 2
        assert "add --tag, --name or --all" in refused.stderr
    assert rota("schedule", "disable", "--all", "--kind", "graph").stdout == "0 schedules disabled\n"
    for number in range(3):
        assert rota("schedule", "rm", f"bulk-{number}").returncode == 0


def test_a_log_that_is_cut_in_the_middle_loses_and_doubles_no_line(rota: Rota, home: Path, proxy: TcpProxy) -> None:
    lines = [f"line {number}" for number in range(60)]
    command = "for i in $(seq 0 59); do echo line $i; sleep 0.05; done"
    assert rota("schedule", "add", "long", "--shell", command, "--every", "1h").returncode == 0
    job = read(rota("-o", "json", "schedule", "run", "long"))["job_id"]
    follow = [sys.executable, "-m", "rota.app.cli", "--server", proxy.url, "run", "logs", "-f", job]
    process = subprocess.Popen(follow, cwd=home, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line.rstrip())
        if len(seen) in (5, 25, 45):
            proxy.cut()
    assert (process.wait(30), seen, proxy.cuts) == (0, lines, 3)


def test_events_are_followed_through_a_break(rota: Rota, home: Path, proxy: TcpProxy) -> None:
    process = followed(home, "--server", proxy.url, "-o", "jsonl", "events", "--since", "2026-01-01T00:00:00Z")
    assert process.stdout is not None
    names = [f"event-{number}" for number in range(4)]
    seen: list[tuple[str, int]] = []
    for number, name in enumerate(names):
        if number % 2:
            proxy.cut()
        assert rota("schedule", "add", name, "--task", "hello", "--every", "1h").returncode == 0
        while (event := json.loads(process.stdout.readline())).get("name") != name:
            seen.append((event["id"], event.get("revision")))
        assert event["type"] == "schedule.created"
        seen.append((event["id"], event["revision"]))
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert proxy.cuts == 2
    repeated = [event for event in seen if seen.count(event) > 1 and event[1] is not None]
    assert repeated == []
    assert rota("events", "--since", "yesterday").returncode == 2
    assert rota("--key", "rota_wrong", "events").returncode == 5


def test_a_job_is_added_shown_listed_and_canceled(rota: Rota) -> None:
    assert rota("task", "add", "later", "--command", "echo later").returncode == 0
    options = ("--at", "2099-01-01T00:00:00Z", "--key", "k", "--queue", "night")
    job_id = read(rota("-o", "json", "job", "add", "later", *options))["job_id"]
    assert rota("job", "add", "later", "--key", "k").returncode == 4
    assert read(rota("-o", "json", "job", "show", job_id))["status"] == "pending"
    assert job_id in rota("job", "list", "--target", "later").stdout
    assert rota("job", "cancel", job_id).returncode == 0
    assert read(rota("-o", "json", "job", "show", job_id))["status"] == "canceled"


def test_schedules_are_disabled_and_enabled(rota: Rota) -> None:
    for name in ("first", "second"):
        assert rota("schedule", "add", name, "--shell", "true", "--every", "1h", "--tag", "switched").returncode == 0
    assert "2 schedules disabled" in rota("schedule", "disable", "--tag", "switched").stdout
    assert rota("schedule", "enable", "first").returncode == 0
    shown = [read(rota("-o", "json", "schedule", "show", name))["enabled"] for name in ("first", "second")]
    assert shown == [True, False]


def test_schedules_are_created_from_files(rota: Rota, tmp_path: Path) -> None:
    file = tmp_path / "schedule.yaml"
    file.write_text("target: hello\ninterval: 5m\nwindow_start: 22:00\nwindow_end: 06:00\nretry: {max_retries: 3}\n")
    made = read(rota("schedule", "add", "filed", "-f", str(file), "--priority", "7", "-o", "json"))
    fields = ("target", "interval_seconds", "window_start", "priority")
    assert [made[field] for field in fields] == ["hello", 300, "22:00", 7]
    file.write_text(json.dumps({"description": "at night", "window_start": None, "window_end": None}))
    edited = read(rota("schedule", "edit", "filed", "-f", str(file), "--name", "unfiled", "-o", "json"))
    assert (edited["name"], edited["description"], edited["window_start"]) == ("unfiled", "at night", None)
    file.write_text("- {name: listed-1, target: hello, interval: 1h}\n- {name: listed-2, target: none, interval: 1h}\n")
    assert rota("schedule", "bulk", str(file)).returncode == 2
    file.write_text(file.read_text().replace("none", "hello"))
    assert rota("schedule", "bulk", str(file)).stdout == "2 schedules created\n"
    assert rota("schedule", "list", "--name", "listed", "--sort=-name", "--query", "items[].name").stdout == (
        "listed-2\nlisted-1\n"
    )
    assert rota("schedule", "rm", "--name", "listed", "--kind", "task").stdout == "2 schedules deleted\n"
    assert rota("schedule", "rm", "unfiled").returncode == 0
    for text in ("[1]", "a: ["):
        file.write_text(text)
        refused = rota("schedule", "add", "x", "-f", str(file))
        assert (refused.returncode, "schedule.yaml" in refused.stderr) == (2, True)


def test_a_timing_is_previewed(rota: Rota) -> None:
    timing = ("--cron", "30 2 * * *", "--tz", "Europe/Oslo", "--after", "2027-03-27T00:00Z")
    slots = read(rota("schedule", "preview", *timing, "--count", "2", "-o", "json"))["slots"]
    assert [slot["at"][:16] for slot in slots] == ["2027-03-27T01:30", "2027-03-28T01:00"]
    assert rota("schedule", "preview", "--tz", "Europe/Oslo").returncode == 2


def test_a_task_is_edited_and_its_schedules_are_listed(rota: Rota) -> None:
    assert rota("task", "add", "edited", "--command", "cat; echo $A", "--env", "A=1").returncode == 0
    changed = read(
        rota("task", "edit", "edited", "--stdin", "in ", "--retries", "2", "--name", "renamed", "-o", "json")
    )
    assert (changed["stdin"], changed["retry"]["max_retries"], changed["env"]) == ("in ", 2, {"A": "1"})
    assert rota("task", "run", "renamed", "--wait").stdout == "in 1\n"
    assert rota("task", "schedule", "renamed", "--every", "1h", "--name", "of-task").returncode == 0
    assert rota("task", "schedules", "renamed", "--query", "items[].name").stdout == "of-task\n"
    assert rota("task", "edit", "renamed").stderr == "error: nothing to change: give an option, or --file\n"
    assert rota("task", "edit", "renamed", "--env", "A", "--env", "B=2").returncode == 2
    assert rota("task", "rm", "renamed").returncode == 0


def test_hosts_and_servers_are_changed_by_name(rota: Rota, home: Path) -> None:
    url = json.loads((home / "data" / "server.json").read_text())["url"]
    token = rota("host", "token").stdout.strip()
    assert httpx.post(f"{url}/api/agent/pair", json={"token": token, "name": "old"}).status_code == 201
    host = read(rota("host", "edit", "old", "--name", "new", "--label", "site=oslo", "-o", "json"))
    assert (host["name"], host["labels"]) == ("new", {"site": "oslo"})
    assert rota("server-instance", "add", "web", "--host", "new", "--label", "role=web").returncode == 0
    edited = rota("server-instance", "edit", "web", "--name", "web-1", "--config", '{"port": 80}', "--type", "nginx")
    assert edited.returncode == 0
    server = read(rota("server-instance", "show", "web-1", "-o", "json"))
    assert (server["type"], server["config"], server["labels"]) == ("nginx", {"port": 80}, {"role": "web"})
    ran = rota("host-job", "run", "web-1", "shell", "--payload", '{"command": "true"}', "--retries", "1", "-o", "json")
    job = read(ran)["job_id"]
    assert job in rota("host-job", "list", "--server", "web-1", "--status", "pending").stdout
    assert rota("host-job", "cancel", job).returncode == 0
    assert rota("server-instance", "rm", "web-1").returncode == 0
    assert rota("host", "rm", "new").returncode == 0
    assert rota("host", "show", "new").stderr == "error: host 'new' not found; see `rota host list`\n"


def test_scopes_of_a_service_account_are_removed(rota: Rota) -> None:
    assert rota("service-account", "add", "deploy", "--role", "viewer", "--scope", "runs:read").returncode == 0
    assert rota("service-account", "edit", "deploy", "--scope", "runs", "--no-scopes").returncode == 2
    edited = read(rota("-o", "json", "service-account", "edit", "deploy", "--no-scopes"))
    assert (edited["scopes"], edited["role"]) == ([], "viewer")
    assert rota("service-account", "rm", "deploy").returncode == 0
    assert rota("service-account", "show", "deploy").returncode == 3


def test_keys_and_accounts_are_found_by_name(rota: Rota) -> None:
    assert rota("key", "add", "ci", "--role", "viewer").returncode == 0
    assert rota("key", "show", "ci", "--query", "role").stdout == "viewer\n"
    assert rota("key", "add", "ci", "--role", "viewer").returncode == 0
    refused = rota("key", "rm", "ci")
    assert (refused.returncode, "2 API keys are named 'ci'" in refused.stderr) == (4, True)
    for key in rota("key", "list", "--query", "items[?name == 'ci'].id").stdout.split():
        assert rota("key", "rm", key).returncode == 0
    assert rota("key", "rm", "ci").returncode == 3
    assert rota("user", "add", "pays@x.org", "--role", "viewer", ROTA_PASSWORD="correct horse").returncode == 0
    assert rota("billing", "top-up", "500", "--reference", "r-1", "--account", "pays@x.org").returncode == 0
    assert rota("billing", "account", "--owner", "pays@x.org", "--query", "balance_credits").stdout == "500\n"
    assert rota("billing", "ledger", "--account", "pays@x.org", "--query", "items[].amount").stdout == "500\n"
    assert rota("user", "show", "pays@x.org", "--query", "role").stdout == "viewer\n"
    assert rota("user", "rm", "pays@x.org").returncode == 0


def test_commands_of_the_page_about_finding_runs(rota: Rota, home: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "finding-runs.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    for line in lines:
        words = shlex.split(line)
        if words[0] == "rota":
            answer = rota(*words[1:])
            assert answer.returncode == 0, (line, answer.stderr)
        else:
            server = json.loads((home / "data" / "server.json").read_text())["url"]
            key = (home / "data" / "admin.key").read_text().strip()
            url = words[-1].replace("$ROTA_SERVER", server)
            assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == 200, line

    read(rota("-o", "json", "job", "add", "hello", "--input", '{"name": "Ada"}'))
    (ada,) = read(rota("-o", "json", "run", "list", "--input", "name=Ada", "--within", "1h"))["items"]
    assert ada["input"] == {"name": "Ada"}
    wrong = rota("run", "list", "--input", "name")
    assert wrong.returncode == 2
    assert "FIELD=VALUE" in wrong.stderr
