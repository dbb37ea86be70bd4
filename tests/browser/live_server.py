"""A real server and a real browser: `rota up` in a process of its own, and whichever Chromium is there."""

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
        """Ask the API as the first admin, or with the key of an agent what agents ask."""
        data = None if method == "GET" else json.dumps(body or {}).encode()
        headers = {"authorization": f"Bearer {key or self.key}", "content-type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/api/{'agent' if key else 'v1'}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def schedule(self, name: str, target: str, **fields: Any) -> Any:
        return self.call("POST", "/schedules", {"name": name, "target": target, "interval": "1h", **fields})

    def until(self, path: str, such: Any, seconds: float = 20) -> Any:
        """Ask until the answer is such."""
        end = time.monotonic() + seconds
        while True:
            found = self.call("GET", path)
            if such(found):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.1)

    def run(self, schedule: str, **body: Any) -> str:
        """Let a schedule run now; the run's id, when it has begun."""
        job = self.call("POST", f"/schedules/{quote(schedule, safe='')}/$run", body)["job_id"]
        found = self.until(f"/jobs/{job}", lambda one: one["run_ids"])
        return str(found["run_ids"][-1])


@contextmanager
def running_server(home: Path, program: Path = DEMO_APP) -> Iterator[LiveServer]:
    """`rota up`, until it is no longer needed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    env["ROTA_DRAIN_SECONDS"] = "0"
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
        note = json.loads((home / "server.json").read_text())
        live_server = LiveServer(note["url"], (home / "admin.key").read_text().strip(), link)
        live_server.until("/workers?state=alive", lambda found: found["items"], 40)
        yield live_server
    finally:
        process.terminate()
        process.wait(20)


def answers(home: Path) -> bool:
    """Whether the server takes connections already: its note is there a moment before."""
    host, _, port = str(json.loads((home / "server.json").read_text())["url"]).rpartition("//")[2].partition(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


def chrome() -> str | None:
    """Where a browser is; None if there is none."""
    return next((found for name in CHROMES if (found := shutil.which(name))), None)


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome(), args=FLAGS)
        yield browser
        browser.close()
