"""A real server and a real browser: `rota up` in its own process, and an installed Chromium."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

from rota.core.process_groups import die_with_parent

CHROMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEMO_APP = Path(__file__).with_name("demo_app.py")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # as root, and in small containers, it starts only so


@dataclass
class LiveServer:
    """A server, with the first key to it."""

    url: str
    key: str
    link: str  # that it wrote to login.url when it started

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Call the API as the first admin; with the key of an agent, the agents' API."""
        data = None if method == "GET" else json.dumps(body or {}).encode()
        headers = {"authorization": f"Bearer {key or self.key}", "content-type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/api/{'agent' if key else 'v1'}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def schedule(self, name: str, target: str, **fields: Any) -> Any:
        return self.call("POST", "/schedules", {"name": name, "target": target, "interval": "1h", **fields})

    def until(self, path: str, condition: Any, seconds: float = 20) -> Any:
        """Poll a route until its answer meets the condition; return it."""
        end = time.monotonic() + seconds
        while True:
            answer = self.call("GET", path)
            if condition(answer):
                return answer
            assert time.monotonic() < end, answer
            time.sleep(0.1)

    def run(self, schedule: str, **body: Any) -> str:
        """Run a schedule now; return the id of its run when that has started."""
        job = self.call("POST", f"/schedules/{quote(schedule, safe='')}/$run", body)["job_id"]
        started = self.until(f"/jobs/{job}", lambda job: job["run_ids"])
        return str(started["run_ids"][-1])


@contextmanager
def running_server(home: Path, program: Path = DEMO_APP) -> Iterator[LiveServer]:
    """Run `rota up` inside the block."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    env |= {"ROTA_DRAIN_SECONDS": "0", "ROTA_ALARM_SECONDS": "1"}
    command = [sys.executable, "-m", "rota.app.cli", "up", str(program), "--data-dir", str(home), "--port", "0"]
    log = home / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, preexec_fn=die_with_parent)
    try:
        end = time.monotonic() + 40
        while "dashboard" not in log.read_text() or not answers(home):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        link = (home / "login.url").read_text().strip()
        address = json.loads((home / "server.json").read_text())
        live_server = LiveServer(address["url"], (home / "admin.key").read_text().strip(), link)
        live_server.until("/workers?state=alive", lambda workers: workers["items"], 40)
        yield live_server
    finally:
        process.terminate()
        process.wait(20)


def answers(home: Path) -> bool:
    """Return whether the server accepts connections: server.json is written just before."""
    host, _, port = str(json.loads((home / "server.json").read_text())["url"]).rpartition("//")[2].partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def chrome() -> str | None:
    """Return the path of a browser; None if none is installed."""
    return next((path for name in CHROMES if (path := shutil.which(name))), None)


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome(), args=FLAGS)
        yield browser
        browser.close()
