"""Runs the examples as their docstrings describe."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
import pytest

from rota.client import ApiError, Client
from rota.core.errors import Invalid

EXAMPLES = Path(__file__).parents[2] / "examples"


class Service:
    """A running example, reached over its own socket."""

    def __init__(self, socket: Path) -> None:
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://rota/api/v1", timeout=30
        )

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.http.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def execute(self, task: str, **parameters: Any) -> Any:
        """Execute a task; returns its artifact's data when the job has ended."""
        job_id = self.call("POST", f"/tasks/{task}/$execute", {"parameters": parameters}, 202)["job_id"]
        return self.call("GET", f"/artifacts/{self.ended(job_id)['artifact_id']}")["data"]

    def ended(self, job_id: str) -> Any:
        end = time.monotonic() + 30
        while (job := self.call("GET", f"/jobs/{job_id}"))["status"] in ("pending", "running"):
            assert time.monotonic() < end, job
            time.sleep(0.05)
        return job


@contextmanager
def running(place: Path, *command: str) -> Iterator[None]:
    """A process that is asked to stop at the end, and must do so well."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "ROTA_DATA_DIR": str(place / "data")}
    env["ROTA_DRAIN_SECONDS"] = "0"
    log = place / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", *command], cwd=place, env=env, stdout=out, stderr=out)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM), (
            log.read_text()
        )  # uvicorn raises the signal again when all is done
    except BaseException:
        print(log.read_text())
        raise
    finally:
        process.kill()


@contextmanager
def service(name: str, place: Path) -> Iterator[Service]:
    socket = place / "s"
    with running(place, "uvicorn", "--app-dir", str(EXAMPLES), f"{name}:app", "--uds", str(socket)):
        server = Service(socket)
        wait_until(lambda: server.http.get("http://rota/health").status_code == 200)
        yield server


def wait_until(answers: Any) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if answers():
                return
        except (httpx.TransportError, OSError, ValueError):
            pass  # not up yet
        assert time.monotonic() < end
        time.sleep(0.1)


def test_python_tasks(tmp_path: Path) -> None:
    with service("python_tasks", tmp_path) as server:
        assert server.execute("sum")["result"] == {"result": 42}
        assert server.execute("sum", b=60)["result"] == {"result": 100}
        assert server.execute("hello")["result"] == "HELLO"
        assert server.execute("count")["result"] == {"tasks": 4}
        failed = server.execute("failing")
        assert (failed["result"], failed["error"]["type"]) == (None, "ValueError")
        assert "designed to fail" in failed["error"]["traceback"]
        assert [task["name"] for task in server.call("GET", "/tasks?enabled=false")["items"]] == ["orphan"]
        server.call("POST", "/tasks/sum/$execute", {"parameters": {"a": "many"}}, 422)
        server.call("POST", "/tasks/orphan/$execute", {}, 400)


def test_data_frames(tmp_path: Path) -> None:
    """As its docstring says: a result is downloaded, and is the parameter of another task."""
    with running(tmp_path, "rota.app.cli", "up", str(EXAMPLES / "data_frames.py"), "--port", "0"):

        def rota(*words: str) -> str:
            command = [sys.executable, "-m", "rota.app.cli", "--data-dir", str(tmp_path / "data"), *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

        wait_until(lambda: json.loads((tmp_path / "data" / "server.json").read_text()))
        outcome = json.loads(rota("-o", "json", "task", "run", "sales", "--wait"))["outcome"]
        assert (outcome["rows"], outcome["preview"][0]) == (14, {"day": 0, "city": "Oslo", "sold": 0})
        rota("artifact", "get", outcome["artifact_id"], "-O", str(tmp_path / "sales.parquet"))
        assert pyarrow.parquet.read_table(tmp_path / "sales.parquet").num_rows == 14
        run = json.loads(
            rota("-o", "json", "task", "run", "largest", "--param", f"sales={outcome['artifact_id']}", "--wait")
        )
        assert run["outcome"] == {"Bergen": 126}


def test_shell_tasks(tmp_path: Path) -> None:
    with service("shell_tasks", tmp_path) as server:
        assert "/" in server.execute("disk")["stdout"]
        assert server.execute("greet", name="Ada")["stdout"] == "hello Ada\n"
        assert server.execute("where")["stdout"] == "here\n/\n"
        failed = server.execute("failing")
        assert (failed["exit_code"], failed["stderr"]) == (3, "no such report\n")


def test_readonly_api(tmp_path: Path) -> None:
    with service("readonly_api", tmp_path) as server:
        assert {task["name"] for task in server.call("GET", "/tasks")["items"]} == {"report", "uptime"}
        assert server.execute("report", day="today", limit=2)["result"] == {"day": "today", "rows": [0, 1]}
        server.call("POST", "/tasks", {"command": "true"}, 405)
        server.call("PUT", "/tasks/uptime", {"command": "true"}, 405)
        server.call("PATCH", "/tasks/uptime", {"enabled": False}, 405)
        server.call("DELETE", "/tasks/uptime", None, 405)


def test_scheduling(tmp_path: Path) -> None:
    with service("scheduling", tmp_path) as server:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        for body in (
            {"schedule_type": "once", "run_at": soon.isoformat(), "input": {"what": "the start"}},
            {"schedule_type": "interval", "interval_seconds": 300, "overlap": "skip"},
            {"schedule_type": "cron", "cron_expression": "0 6 * * 1-5", "timezone": "Europe/Oslo"},
        ):
            server.call("POST", "/tasks/check/$schedule", body, 201)
        planned = server.call("GET", "/tasks/check/$schedules")["items"]
        assert [schedule["schedule_type"] for schedule in planned] == ["interval", "once", "interval", "cron"]
        once = planned[1]["id"]
        wait_until(lambda: server.call("GET", f"/runs?schedule_id={once}&status=success")["items"])
        (run,) = server.call("GET", f"/runs?schedule_id={once}")["items"]
        assert run["outcome"].startswith("the start is well")


def test_tasks_with_things_injected(tmp_path: Path) -> None:
    with running(tmp_path, "rota.app.cli", "up", str(EXAMPLES / "tasks.py"), "--port", "0"):
        data = tmp_path / "data"
        wait_until(lambda: (data / "server.json").exists() and (data / "admin.key").read_text())
        url = httpx.Response(200, content=(data / "server.json").read_bytes()).json()["url"]
        with Client(url, (data / "admin.key").read_text().strip()) as rota:

            def run(task: str, **parameters: Any) -> Any:
                answer = rota.call("POST", f"/tasks/{task}/$execute", {"parameters": parameters})
                rota.wait(answer["job_id"], 60)
                (run,) = rota.runs(job_id=answer["job_id"])
                return run

            wait_until(lambda: rota.call("GET", "/workers")["items"])
            first, second = run("prices", city="Oslo"), run("prices", city="Oslo")
            assert first["outcome"] == second["outcome"] == {"city": "Oslo", "price": 40}
            assert (first["reason"], second["reason"]) == (None, "cached")
            crunched = run("crunch", numbers=1000)
            assert crunched["outcome"]["sum"] == 499500
            assert crunched["outcome"]["pid"] != rota.call("GET", "/workers")["items"][0]["pid"]
            fanned = run("fan_out")
            assert [rota.wait(job_id, 60)["status"] for job_id in fanned["outcome"]] == ["success", "success"]
            (page,) = rota.call("GET", "/artifacts", run_id=fanned["id"])["items"]
            assert page["content_type"] == "text/markdown"


def test_a_nightly_fan_out_with_a_rate(tmp_path: Path) -> None:
    with running(tmp_path, "rota.app.cli", "up", str(EXAMPLES / "nightly_customers.py"), "--port", "0"):
        data = tmp_path / "data"
        wait_until(lambda: (data / "server.json").exists() and (data / "admin.key").read_text())
        url = httpx.Response(200, content=(data / "server.json").read_bytes()).json()["url"]
        with Client(url, (data / "admin.key").read_text().strip()) as rota:
            wait_until(lambda: rota.call("GET", "/workers")["items"])
            begun = rota.wait(rota.add_job("nightly"), 60)
            (night,) = rota.runs(job_id=begun["id"])
            assert night["outcome"]["jobs"] == 1000
            last = rota.wait(night["outcome"]["report"], 120)
            (report,) = rota.runs(job_id=last["id"])
            assert report["outcome"] == {"imported": 999}
            ended = list(rota.runs(target="import_customer"))
            assert Counter(run["status"] for run in ended) == {"success": 999, "failed": 1, "paused": 1}
            (given_up,) = (run for run in ended if run["status"] == "failed")
            assert (given_up["error"] or {})["message"] == "customer 13 was deleted"
            starts = sorted(datetime.fromisoformat(run["started_at"] or "").timestamp() for run in ended)
            most = max(bisect_left(starts, start + 1) - position for position, start in enumerate(starts))
            assert most <= 300 + 50 + 300  # a start may be a second late


def test_a_kind_of_work_that_a_program_adds(tmp_path: Path) -> None:
    with running(tmp_path, "rota.app.cli", "up", str(EXAMPLES / "sixth_kind.py"), "--port", "0"):
        data = tmp_path / "data"
        wait_until(lambda: (data / "server.json").exists() and (data / "admin.key").read_text())
        url = httpx.Response(200, content=(data / "server.json").read_bytes()).json()["url"]
        with Client(url, (data / "admin.key").read_text().strip()) as rota:
            wait_until(lambda: rota.call("GET", "/workers")["items"])
            (schedule,) = rota.call("GET", "/schedules", kind="sql_report")["items"]
            assert (schedule["name"], schedule["source"]) == ("totals", "code")
            scheduled = rota.call("POST", "/schedules/totals/$run")["job_id"]
            body = {"input": {"minimum": 50}, "overlap": "queue_all"}
            limited = rota.call("POST", "/schedules/totals/$run", body)["job_id"]
            rows = {}
            for job_id in (scheduled, limited):
                assert rota.wait(job_id, 60)["status"] == "success"
                (run,) = rota.runs(job_id=job_id)
                rows[job_id] = run["outcome"]["rows"]
            oslo = {"shop": "Oslo", "total": 70}
            assert rows == {scheduled: [{"shop": "Bergen", "total": 45}, oslo], limited: [oslo]}
            with pytest.raises(ApiError, match="is not one of totals"):
                rota.call("POST", "/schedules", {"kind": "sql_report", "target": "unknown", "interval": "1h"})


def test_a_kind_is_added_once() -> None:
    spec = importlib.util.spec_from_file_location("sixth_kind", EXAMPLES / "sixth_kind.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    runner = example.app.runners["sql_report"]
    with pytest.raises(Invalid, match="declared twice"):
        example.app.kind(runner)
    runner.kind = "task"
    with pytest.raises(Invalid, match="declared twice"):
        example.app.kind(runner)


def test_pipelines_in_three_layers(tmp_path: Path) -> None:
    with running(tmp_path, "rota.app.cli", "up", str(EXAMPLES / "pipelines.py"), "--port", "0"):
        data = tmp_path / "data"
        wait_until(lambda: (data / "server.json").exists() and (data / "admin.key").read_text())
        url = httpx.Response(200, content=(data / "server.json").read_bytes()).json()["url"]
        with Client(url, (data / "admin.key").read_text().strip()) as rota:
            wait_until(lambda: rota.call("GET", "/workers")["items"])
            job_id = rota.call("POST", "/pipelines/sales/bronze/orders/$run")["job_id"]
            assert rota.wait(job_id, 60)["status"] == "success"
            wait_until(lambda: rota.call("GET", "/runs", layer="gold", status="success")["items"])
            rows = {run["target"]: run["outcome"]["rows_written"] for run in rota.runs(kind="pipeline")}
            assert rows == {"sales/bronze/orders": 100_000, "sales/silver/daily_totals": 630, "sales/gold/report": 7}
            report = "/pipelines/sales/gold/new/$preview"
            shown = rota.call("POST", report, {"sql": "SELECT * FROM sales.gold.report"})["rows"]
    # the same, counted by hand
    orders: dict[str, int] = {}
    revenue: dict[tuple[str, int], int] = {}
    for number in range(100_000):
        if number % 100:
            shop, day = f"shop-{number % 7}", number % 90
            orders[shop] = orders.get(shop, 0) + 1
            price = (number % 5 + 1) * (100 + number * 7919 % 900)
            revenue[shop, day] = revenue.get((shop, day), 0) + price
    totals = {shop: sum(cents for (name, _), cents in revenue.items() if name == shop) for shop in orders}
    best = {shop: max((cents, day) for (name, day), cents in revenue.items() if name == shop)[1] for shop in orders}
    assert {row[0]: row[1:] for row in shown} == {
        shop: [orders[shop], totals[shop], str(date(2026, 1, 1) + timedelta(days=best[shop]))] for shop in orders
    }
    assert [row[2] for row in shown] == sorted(totals.values(), reverse=True)


def test_workflows(tmp_path: Path) -> None:
    """Over the command line: publish, look, pause, resume."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "ROTA_DATA_DIR": str(tmp_path / "data")}

    def rota(*words: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "rota.app.cli", "-o", "json", "workflow", *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    with running(tmp_path, "rota.app.cli", "up", str(EXAMPLES / "workflows.py"), "--port", "0"):
        wait_until(lambda: (tmp_path / "data" / "server.json").exists())
        names = [workflow["name"] for workflow in rota("list")["items"]]
        assert names == ["batches", "cooling", "digest", "feed", "matching", "orders"]
        assert rota("publish", "orders", "orders", "1001", "--payload", '{"total": 30}')["result"] == "created"
        wait_until(lambda: rota("inputs", "orders", "--status", "done")["items"])
        assert (tmp_path / "orders.csv").read_text().startswith("1001,30,")
        assert rota("publish", "orders", "orders", "1001")["result"] == "kept"
        (output,) = rota("outputs", "orders")["items"]
        assert (output["call"], output["status"], output["warning"]) == ("files.append_csv", "applied", None)
        assert rota("events", "orders")["items"][0]["status"] == "consumed"
        assert rota("show", "orders")["recent"][0]["text"] == "order 1001"
        assert rota("pause", "orders", "--reason", "demo")["issue"] == "paused: demo"
        rota("run", "orders", code=4)
        lines = tmp_path / "orders.jsonl"
        lines.write_text('{"message_id": "1001"}\n\n{"message_id": "1002", "payload": {"total": 5}}\n')
        published = rota("publish", "orders", "orders", "--file", str(lines))["items"]
        assert [event["result"] for event in published] == ["kept", "created"]
        (waiting,) = rota("inputs", "orders", "--status", "pending")["items"]
        assert rota("skip", "orders", waiting["id"])["pending"] == 0
        rota("skip", "orders", waiting["id"], code=4)
        assert rota("inputs", "orders", "--status", "skipped")["items"][0]["message_id"] == "1002"
        assert rota("resume", "orders")["status"] in ("idle", "running")  # it checks for events published in between
        wait_until(lambda: rota("show", "orders")["status"] == "idle")
        rota("resolve", "orders", "skip", code=4)
        assert len(rota("run", "feed")["job_ids"]) == 2
        rota("show", "nothing", code=3)


@contextmanager
def up(name: str, place: Path, database_url: str) -> Iterator[tuple[Client, dict[str, str]]]:
    """`rota up` with an example; yields a client and the environment of programs beside it."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "ROTA_DATA_DIR": str(place / "data")}
    env |= {"ROTA_DATABASE_URL": database_url, "DATABASE_URL": database_url, "ROTA_DRAIN_SECONDS": "0"}
    log = place / "up.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "rota.app.cli", "up", str(EXAMPLES / name), "--port", "0"]
        process = subprocess.Popen(command, cwd=place, env=env, stdout=out, stderr=out)
    try:
        wait_until(lambda: (place / "data" / "server.json").exists())
        server = json.loads((place / "data" / "server.json").read_text())
        yield Client(server["url"], (place / "data" / "admin.key").read_text().strip()), env
    except BaseException:
        print(log.read_text())
        raise
    finally:
        process.terminate()
        process.wait(30)


def test_the_outbox_commits_orders_with_their_jobs(database_url: str, tmp_path: Path) -> None:
    with up("outbox.py", tmp_path, database_url) as (client, env):
        program = [sys.executable, str(EXAMPLES / "outbox.py")]
        options: Any = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
        placed = subprocess.run([*program, "A1", "A2"], check=True, **options)
        for line in placed.stdout.splitlines():
            order, job_id = line.split()
            assert outcome(client, job_id) == order
        refused = subprocess.run([*program, "bad"], check=False, **options)
        assert "bad is no order" in refused.stderr
        assert len(placed.stdout.splitlines()) == len(list(client.runs(target="shop.confirm"))) == 2


def test_flask_enqueues_in_its_session_and_tasks_have_its_context(database_url: str, tmp_path: Path) -> None:
    with up("flask_orders.py", tmp_path, database_url) as (client, env):
        flask = ["flask", "--app", f"{EXAMPLES / 'flask_orders.py'}:web"]
        subprocess.run([sys.executable, "-m", *flask, "create-tables"], env=env, cwd=tmp_path, check=True)
        port = free_port()
        server = subprocess.Popen([sys.executable, "-m", *flask, "run", "--port", str(port)], env=env, cwd=tmp_path)
        try:
            url = f"http://127.0.0.1:{port}/orders"
            wait_until(lambda: httpx.get(url).status_code == 404)
            placed = httpx.post(f"{url}/A1")
            assert placed.status_code == 201, placed.text
            assert outcome(client, placed.json()["job_id"]) == "thank you for A1"
            assert httpx.post(f"{url}/bad1").status_code == 422
            assert httpx.post(f"{url}/bad1").status_code == 422  # not 500: the order was rolled back
            assert len(list(client.runs(target="orders.thank"))) == 1
        finally:
            server.terminate()
            server.wait(10)


def outcome(client: Client, job_id: str) -> object:
    """Return the outcome of a job when it has ended."""
    return client.run(client.wait(job_id, 20)["run_ids"][-1])["outcome"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
