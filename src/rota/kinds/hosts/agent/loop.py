"""The loop of an agent: polls the server for orders, starts a supervisor for each, sends logs and results back.

All that must not be lost is in the journal: this process may be killed at any time, and the server be down for days.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path

import httpx
import structlog

from rota.core.clock import SystemClock, real_sleep, system_time_ms
from rota.kinds.hosts.agent.job_types import Allowed
from rota.kinds.hosts.agent.journal import Claim, Journal, JsonObject, write_durably
from rota.version import __version__

CLAIMS_POLL_SECONDS = 0.2  # between checks of the open claims
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0  # between attempts while the server does not answer
LOST_STATES = ("never", "unknown")  # of claims that did not end here
LOG_BATCH_LINES = 1000  # per request
LOG_READ_BYTES = 1024 * 1024
RECONCILE_TIMEOUT_SECONDS = 300.0
HTTP_TIMEOUT_SECONDS = 15.0  # of a request, beyond the time that the server is asked to wait

log = structlog.get_logger("rota.agent")


class Refusal(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, problem: JsonObject) -> None:
        super().__init__(problem.get("detail", f"status {status}"))
        self.status, self.code = status, problem.get("code", "")

    @property
    def final(self) -> bool:
        """Whether a retry would get the same answer."""
        return self.status in (404, 409, 413, 422)


class AgentLoop:
    """Two tasks: one polls the server for orders, one sends what the runs wrote and how they ended."""

    def __init__(self, home: Path, allowed: Allowed, room: int = 8) -> None:
        self.home, self.allowed, self.room = home, allowed, room
        self.journal, self.clock = Journal(home), SystemClock()
        self.types = allowed.load()
        self.session: JsonObject | None = None
        self.stopping: set[str] = set()  # ids of jobs to be canceled
        self.runs: dict[str, subprocess.Popen[bytes]] = {}
        self.sent_bytes: dict[str, int] = {}  # of the logs of claims
        self.unresolved: set[str] = set()  # claims of unknown outcome, which wait for a person
        self.full = False
        self.busy = asyncio.Event()  # there are claims to attend to
        self.server_up = asyncio.Event()
        self.poll_again = asyncio.Event()  # end the current long poll: room or session changed
        self.stop = asyncio.Event()
        self.http = httpx.AsyncClient()

    async def run(self) -> None:
        """Run until `stop` is set. Runs go on without the agent; the next one finds them in the journal."""
        tasks = [asyncio.ensure_future(loop()) for loop in (self.poll_server, self.attend_claims, self.stop.wait)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.http.aclose()

    # the server

    async def poll_server(self) -> None:
        """Register and poll, without end; back off while the server refuses or does not answer."""
        failures = 0
        while True:
            try:
                if self.session is None:
                    await self.register()
                await self.poll()
                failures = 0
                self.server_up.set()
            except Refusal as error:
                if error.code == "session_over":
                    self.session = None
                    continue
                failures += 1
                self.server_up.clear()
                log.error("the server refused the poll", status=error.status, error=str(error))
                await self.back_off(failures + 3)
            except httpx.HTTPError as error:
                failures += 1
                self.server_up.clear()
                log.warning("the server does not answer; retrying", error=str(error) or type(error).__name__)
                await self.back_off(failures)

    async def back_off(self, failures: int) -> None:
        """Wait with exponential backoff and jitter, at most until the server answers again."""
        seconds = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 10))
        await self.clock.wait(self.server_up, seconds * random.uniform(0.3, 1))

    async def register(self) -> None:
        """Register a session with the states of all open claims."""
        claims = self.journal.open_claims()
        states = {claim.home.name: await asyncio.to_thread(self.reconcile, claim) for claim in claims}
        journal = [{"job_id": claim.job_id, "fence": claim.fence, "state": states[claim.home.name]} for claim in claims]
        types = {name: {"read_only": kind.read_only, "schema": kind.schema} for name, kind in self.types.items()}
        facts = {"version": __version__, "pid": os.getpid(), "room": self.room, "job_types": types, "journal": journal}
        self.session = await self.request("register", facts)
        lost = {claim.home.name for claim in claims if states[claim.home.name] in LOST_STATES}
        self.unresolved = lost & set(self.session["asked"])
        for claim in claims:
            if claim.home.name in lost - self.unresolved:
                claim.mark_done()  # the server has its state
        self.journal.prune()
        self.busy.set()
        self.server_up.set()
        log.info("connected", server=self.config()["server"], session=self.session["session"])

    def reconcile(self, claim: Claim) -> str:
        """Return the state of a claim; where that is `unknown`, the `reconcile` function of its job type decides."""
        state = claim.state()
        if state != "unknown":
            return state
        order = claim.order()
        job_type = self.types.get(order["job_type"])
        if job_type is None or job_type.reconcile is None:
            return state
        command = [*supervisor_command(claim), "reconcile"]
        try:
            subprocess.run(command, check=False, timeout=RECONCILE_TIMEOUT_SECONDS, env=environment())
            applied = json.loads((claim.home / "answer").read_bytes())
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return state
        if applied is True:
            result = {
                "status": "success",
                "outcome": {"reconciled": True},
                "duration_ms": 0,
                "ended_at_ms": system_time_ms(),
            }
            write_durably(claim.home / "result.json", json.dumps(result).encode())
            return "ended"
        return "never" if applied is False else "unknown"

    async def poll(self) -> None:
        """One long poll, which is also the heartbeat: start the orders and note the cancellations that it returns."""
        assert self.session is not None
        wait = min(30.0, self.session["lease_seconds"] / 3) * random.uniform(0.6, 1)  # jitter between agents
        claims = self.journal.open_claims()
        running = [claim for claim in claims if claim.state() == "running"]
        room = max(0, self.room - sum(self.is_read_only(claim) for claim in running))
        self.full = room == 0
        body = {
            "session": self.session["session"],
            "room": room,
            "stopping": sorted(self.stopping),
            "known": [claim.home.name for claim in claims],
            "wait_seconds": wait,
            "metrics": metrics(self.home),
        }
        answer = await self.until_poll_again(self.request("poll", body, wait))
        for order in answer["jobs"]:
            self.start_run(order)
        self.stopping.update(answer["cancel"])
        self.busy.set()

    async def until_poll_again(self, request: Coroutine[object, None, JsonObject]) -> JsonObject:
        """Return the answer of a long poll, or an empty one as soon as `poll_again` is set. The server repeats orders
        of an answer that is lost this way."""
        answer, again = asyncio.ensure_future(request), asyncio.ensure_future(self.poll_again.wait())
        try:
            await asyncio.wait([answer, again], return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else {"jobs": [], "cancel": []}
        finally:
            self.poll_again.clear()
            answer.cancel()
            again.cancel()

    async def request(self, verb: str, body: JsonObject, wait: float = 0.0) -> JsonObject:
        """POST to the server. Raises Refusal for a 4xx status, HTTPError if there is no usable answer."""
        config = self.config()  # read each time: a new key takes effect at once
        response = await self.http.post(
            f"{config['server']}/api/agent/{verb}",
            json=body,
            timeout=wait + HTTP_TIMEOUT_SECONDS,
            headers={"authorization": f"Bearer {config['key']}"},
        )
        if response.status_code >= 500:
            raise httpx.HTTPError(f"status {response.status_code}")
        try:
            answer = dict(response.json())
        except ValueError as error:
            raise httpx.HTTPError(f"status {response.status_code}, not JSON") from error
        if response.status_code >= 300:
            raise Refusal(response.status_code, answer)
        return answer

    def config(self) -> dict[str, str]:
        return dict(json.loads((self.home / "agent.json").read_bytes()))

    # runs

    def start_run(self, order: JsonObject) -> None:
        """Store an order in the journal, then start its supervisor. A no-op for an order that is stored already."""
        assert self.session is not None
        settings = {
            "allowed": asdict(self.allowed),
            "grace_seconds": self.session["cancel_grace_seconds"],
            "cwd": os.getcwd(),
        }
        claim = self.journal.add({**order, **settings})
        if claim is None:
            return
        log.info("run started", job=claim.job_id, type=order["job_type"], server=order["server"]["name"])
        lock = claim.lock()
        try:
            self.runs[claim.home.name] = subprocess.Popen(
                supervisor_command(claim),
                pass_fds=[lock],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env=environment(),
            )
        except OSError as error:
            failure = {"code": "transient", "type": type(error).__name__, "message": f"the run cannot start: {error}"}
            result = {"status": "failed", "error": failure, "duration_ms": 0, "ended_at_ms": system_time_ms()}
            write_durably(claim.home / "result.json", json.dumps(result).encode())
        finally:
            os.close(lock)

    async def attend_claims(self) -> None:
        """Send logs and results of the open claims, and stop canceled runs, without end."""
        failures = 0
        while True:
            claims = self.journal.open_claims()
            if all(claim.home.name in self.unresolved for claim in claims):
                self.busy.clear()
                await self.busy.wait()
                continue
            try:
                for claim in claims:
                    await self.attend(claim)
                failures = 0
                await real_sleep(CLAIMS_POLL_SECONDS)
            except (httpx.HTTPError, Refusal) as error:  # the journal keeps what was not sent
                failures += 1
                log.warning("results are kept until the server answers", error=str(error) or type(error).__name__)
                self.server_up.clear()
                await self.back_off(failures)

    async def attend(self, claim: Claim) -> None:
        """One step for a claim: forward its log, cancel it, send its result, or register anew if its run was lost."""
        name, state = claim.home.name, claim.state()
        if (child := self.runs.get(name)) is not None and child.poll() is not None:
            del self.runs[name]
        if state == "running":
            if claim.job_id in self.stopping and (pid := claim.pid()) is not None:
                os.kill(pid, signal.SIGTERM)
            await self.send_log(claim)
        elif state == "ended":
            await self.send_result(claim)
        elif name not in self.unresolved and self.session is not None:  # its run died: report that by a new session
            self.session = None
            self.poll_again.set()

    async def send_log(self, claim: Claim) -> None:
        """Send the lines that a run wrote since the last call."""
        name = claim.home.name
        lines, end = log_lines(claim, self.sent_bytes.setdefault(name, 0))
        while lines:
            try:
                await self.request("progress", {"job_id": claim.job_id, "fence": claim.fence, "lines": lines})
            except Refusal as error:
                if not error.final:
                    raise
            self.sent_bytes[name] = end
            lines, end = log_lines(claim, end)

    async def send_result(self, claim: Claim) -> None:
        """Send the rest of the log and the result of a claim, then mark it done. Raises HTTPError or Refusal to be
        retried."""
        await self.send_log(claim)
        result = claim.result() or {}
        ago = max(0, system_time_ms() - result.pop("ended_at_ms"))
        body = {"job_id": claim.job_id, "fence": claim.fence, **result, "ended_ms_ago": ago}
        try:
            try:
                await self.request("result", {name: value for name, value in body.items() if value is not None})
            except Refusal as error:
                if error.status not in (413, 422):
                    raise
                log.error("the server rejected a result as invalid", job=claim.job_id, error=str(error))
                failure = {"code": "internal", "type": "Unreadable", "message": f"the result cannot be kept: {error}"}
                await self.request(
                    "result", {"job_id": claim.job_id, "fence": claim.fence, "status": "failed", "error": failure}
                )
        except Refusal as error:
            if not error.final:
                raise
            log.error("the server refused a result", job=claim.job_id, error=str(error))
        claim.mark_done()
        self.sent_bytes.pop(claim.home.name, None)
        self.stopping.discard(claim.job_id)
        if self.full:
            self.poll_again.set()
        log.info("run ended", job=claim.job_id, status=result["status"])

    def is_read_only(self, claim: Claim) -> bool:
        job_type = self.types.get(claim.order()["job_type"])
        return job_type is not None and job_type.read_only


def log_lines(claim: Claim, start: int) -> tuple[list[list[str]], int]:
    """Return the complete lines of a run's log from byte `start` on, and the byte where they end."""
    try:
        with (claim.home / "log").open("rb") as file:
            file.seek(start)
            whole, _, _ = file.read(LOG_READ_BYTES).rpartition(b"\n")
    except FileNotFoundError:
        return [], start
    lines = whole.split(b"\n")[:LOG_BATCH_LINES] if whole else []
    return [json.loads(line) for line in lines], start + sum(len(line) + 1 for line in lines)


def supervisor_command(claim: Claim) -> list[str]:
    return [sys.executable, "-P", "-m", "rota.kinds.hosts.agent.supervisor", str(claim.home)]


def environment() -> dict[str, str]:
    """The environment of a supervisor, with the directory of this package on its PYTHONPATH."""
    package_dir = str(Path(__file__).parents[4])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package_dir, os.environ.get("PYTHONPATH")]))}


def metrics(home: Path) -> JsonObject:
    disk = shutil.disk_usage(home)
    return {
        "load": [round(average, 2) for average in os.getloadavg()],
        "disk_free_bytes": disk.free,
        "cpus": os.cpu_count(),
    }
