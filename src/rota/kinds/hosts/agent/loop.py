"""Between a server and the runs of a host: fetches orders, starts runs, takes what they say and how they ended back.

All that must not be lost is in the journal: this process may be killed at any moment, and the server be away for days.
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
from typing import Any

import httpx
import structlog

from rota.core.clock import SystemClock, real_sleep, system_time_ms
from rota.kinds.hosts.agent.job_types import Allowed
from rota.kinds.hosts.agent.journal import Claim, Journal, write_down
from rota.version import __version__

LOOK = 0.2  # seconds between looks at what runs
BACKOFF = (0.5, 30.0)  # seconds between tries while the server is away: at first, and at the most
LOST = ("never", "unknown")  # states of claims that did not come to an end here
LINES = 1000  # that are sent at a time
RECONCILE_LIMIT = 300.0  # seconds that a job type may look whether its work was done
ANSWER = 15.0  # seconds that an answer may take beyond what it was asked to wait

log = structlog.get_logger("rota.agent")


class Refusal(Exception):
    """The server answered no."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail", f"status {status}"))
        self.status, self.code = status, problem.get("code", "")

    @property
    def final(self) -> bool:
        """Whether asking again would bring the same answer."""
        return self.status in (404, 409, 413, 422)


class Courier:
    def __init__(self, home: Path, allowed: Allowed, room: int = 8) -> None:
        self.home, self.allowed, self.room = home, allowed, room
        self.journal, self.clock = Journal(home), SystemClock()
        self.types = allowed.load()
        self.session: dict[str, Any] | None = None
        self.stopping: set[str] = set()
        self.runs: dict[str, subprocess.Popen[bytes]] = {}
        self.read: dict[str, int] = {}  # how far the logs of runs were sent
        self.asked: set[str] = set()  # claims whose end only a person can tell
        self.full = False
        self.busy = asyncio.Event()
        self.back = asyncio.Event()  # the server answers
        self.nudge = asyncio.Event()  # do not wait for the server: there is something to tell it
        self.stop = asyncio.Event()
        self.http = httpx.AsyncClient()

    async def run(self) -> None:
        """Until told to stop. What runs goes on then, and is found again."""
        loops = [asyncio.ensure_future(one()) for one in (self.polling, self.tending, self.stop.wait)]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in loops:
                one.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.http.aclose()

    # the server

    async def polling(self) -> None:
        tries = 0
        while True:
            try:
                if self.session is None:
                    await self.register()
                await self.poll()
                tries = 0
                self.back.set()
            except Refusal as error:
                if error.code == "session_over":
                    self.session = None
                    continue
                tries += 1
                self.back.clear()
                log.error("the server refuses", status=error.status, error=str(error))
                await self.wait_long(tries + 3)
            except httpx.HTTPError as error:
                tries += 1
                self.back.clear()
                log.warning("the server is away; trying again", error=str(error) or type(error).__name__)
                await self.wait_long(tries)

    async def wait_long(self, tries: int) -> None:
        """Longer each time, and never all agents at once; not longer than until the server is heard of again."""
        first, most = BACKOFF
        await self.clock.wait(self.back, min(most, first * 2 ** min(tries - 1, 10)) * random.uniform(0.3, 1))

    async def register(self) -> None:
        """Come up, and answer for what was begun before."""
        claims = self.journal.open_claims()
        states = {one.home.name: await asyncio.to_thread(self.answer, one) for one in claims}
        told = [{"job_id": one.job_id, "fence": one.fence, "state": states[one.home.name]} for one in claims]
        types = {one.name: {"read_only": one.read_only, "schema": one.schema} for one in self.types.values()}
        facts = {"version": __version__, "pid": os.getpid(), "room": self.room, "job_types": types, "journal": told}
        self.session = await self.ask("register", facts)
        lost = {one.home.name for one in claims if states[one.home.name] in LOST}
        self.asked = lost & set(self.session["asked"])
        for one in claims:
            if one.home.name in lost - self.asked:
                one.close()  # the server knows what it wants to know
        self.journal.prune()
        self.busy.set()
        self.back.set()
        log.info("connected", server=self.config()["server"], session=self.session["session"])

    def answer(self, claim: Claim) -> str:
        """What happened to a claim; a job type that can look whether its work was done is asked."""
        state = claim.state()
        if state != "unknown":
            return state
        order = claim.order()
        known = self.types.get(order["job_type"])
        if known is None or known.reconcile is None:
            return state
        try:
            subprocess.run([*shim(claim), "reconcile"], check=False, timeout=RECONCILE_LIMIT, env=environment())
            happened = json.loads((claim.home / "answer").read_bytes())
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return state
        if happened is True:
            result = {
                "status": "success",
                "outcome": {"reconciled": True},
                "duration_ms": 0,
                "ended_at_ms": system_time_ms(),
            }
            write_down(claim.home / "result.json", json.dumps(result).encode())
            return "ended"
        return "never" if happened is False else "unknown"

    async def poll(self) -> None:
        assert self.session is not None
        wait = min(30.0, self.session["lease_seconds"] / 3) * random.uniform(0.6, 1)  # else all come back at once
        claims = self.journal.open_claims()
        room = max(0, self.room - sum(not self.changes(one) for one in claims if one.state() == "running"))
        self.full = room == 0
        body = {
            "session": self.session["session"], "room": room, "stopping": sorted(self.stopping),
            "known": [one.home.name for one in claims], "wait_seconds": wait, "metrics": metrics(self.home),
        }  # fmt: skip
        found = await self.unless_nudged(self.ask("poll", body, wait))
        for order in found["jobs"]:
            self.begin(order)
        self.stopping.update(found["cancel"])
        self.busy.set()

    async def unless_nudged(self, asking: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """An answer; or none, if it is better to ask anew. One that gets lost so comes again."""
        task, nudged = asyncio.ensure_future(asking), asyncio.ensure_future(self.nudge.wait())
        try:
            await asyncio.wait([task, nudged], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else {"jobs": [], "cancel": []}
        finally:
            self.nudge.clear()
            task.cancel()
            nudged.cancel()

    async def ask(self, verb: str, body: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        config = self.config()  # read each time: a new key takes effect at once
        answer = await self.http.post(
            f"{config['server']}/api/agent/{verb}", json=body, timeout=wait + ANSWER,
            headers={"authorization": f"Bearer {config['key']}"},
        )  # fmt: skip
        if answer.status_code >= 500:
            raise httpx.HTTPError(f"status {answer.status_code}")
        try:
            told = dict(answer.json())
        except ValueError as error:
            raise httpx.HTTPError(f"status {answer.status_code}, not JSON") from error
        if answer.status_code >= 300:
            raise Refusal(answer.status_code, told)
        return told

    def config(self) -> dict[str, str]:
        return dict(json.loads((self.home / "agent.json").read_bytes()))

    # runs

    def begin(self, order: dict[str, Any]) -> None:
        """Write an order down, then start its run. One that is there already was started before."""
        assert self.session is not None
        more = {
            "allowed": asdict(self.allowed),
            "grace_seconds": self.session["cancel_grace_seconds"],
            "cwd": os.getcwd(),
        }
        claim = self.journal.add({**order, **more})
        if claim is None:
            return
        log.info("a run begins", job=claim.job_id, type=order["job_type"], server=order["server"]["name"])
        lock = claim.lock()
        try:
            self.runs[claim.home.name] = subprocess.Popen(
                shim(claim), pass_fds=[lock], start_new_session=True, stdin=subprocess.DEVNULL, env=environment()
            )
        except OSError as error:
            told = {"code": "transient", "type": type(error).__name__, "message": f"the run cannot start: {error}"}
            result = {"status": "failed", "error": told, "duration_ms": 0, "ended_at_ms": system_time_ms()}
            write_down(claim.home / "result.json", json.dumps(result).encode())
        finally:
            os.close(lock)

    async def tending(self) -> None:
        """See to what was begun: send what it says and how it ended, stop what is to be stopped."""
        tries = 0
        while True:
            claims = self.journal.open_claims()
            if all(one.home.name in self.asked for one in claims):
                self.busy.clear()
                await self.busy.wait()
                continue
            try:
                for one in claims:
                    await self.tend(one)
                tries = 0
                await real_sleep(LOOK)
            except (httpx.HTTPError, Refusal) as error:  # it is kept, and told later
                tries += 1
                log.warning("results are kept until the server is back", error=str(error) or type(error).__name__)
                self.back.clear()
                await self.wait_long(tries)

    async def tend(self, claim: Claim) -> None:
        name, state = claim.home.name, claim.state()
        if (child := self.runs.get(name)) is not None and child.poll() is not None:
            del self.runs[name]
        if state == "running":
            if claim.job_id in self.stopping and (pid := claim.pid()) is not None:
                os.kill(pid, signal.SIGTERM)
            await self.send_lines(claim)
        elif state == "ended":
            await self.deliver(claim)
        elif name not in self.asked and self.session is not None:  # its run died under us: say so, and be asked
            self.session = None
            self.nudge.set()

    async def send_lines(self, claim: Claim) -> None:
        """What a run said since the last time."""
        name = claim.home.name
        lines, end = lines_of(claim, self.read.setdefault(name, 0))
        while lines:
            try:
                await self.ask("progress", {"job_id": claim.job_id, "fence": claim.fence, "lines": lines})
            except Refusal as error:
                if not error.final:
                    raise
            self.read[name] = end
            lines, end = lines_of(claim, end)

    async def deliver(self, claim: Claim) -> None:
        """Take the result to the server, until it has it."""
        await self.send_lines(claim)
        result = claim.result() or {}
        ago = max(0, system_time_ms() - result.pop("ended_at_ms"))
        body = {"job_id": claim.job_id, "fence": claim.fence, **result, "ended_ms_ago": ago}
        try:
            try:
                await self.ask("result", {name: value for name, value in body.items() if value is not None})
            except Refusal as error:
                if error.status not in (413, 422):
                    raise
                log.error("the server cannot read a result", job=claim.job_id, error=str(error))
                told = {"code": "internal", "type": "Unreadable", "message": f"the result cannot be kept: {error}"}
                await self.ask(
                    "result", {"job_id": claim.job_id, "fence": claim.fence, "status": "failed", "error": told}
                )
        except Refusal as error:
            if not error.final:
                raise
            log.error("the server does not take a result", job=claim.job_id, error=str(error))
        claim.close()
        self.read.pop(claim.home.name, None)
        self.stopping.discard(claim.job_id)
        if self.full:
            self.nudge.set()
        log.info("a run ended", job=claim.job_id, status=result["status"])

    def changes(self, claim: Claim) -> bool:
        known = self.types.get(claim.order()["job_type"])
        return known is None or not known.read_only


def lines_of(claim: Claim, start: int) -> tuple[list[Any], int]:
    """Whole lines of a run's log from a position on, and where they end."""
    try:
        with (claim.home / "log").open("rb") as file:
            file.seek(start)
            whole, _, _ = file.read(1024 * 1024).rpartition(b"\n")
    except FileNotFoundError:
        return [], start
    lines = whole.split(b"\n")[:LINES] if whole else []
    return [json.loads(line) for line in lines], start + sum(len(line) + 1 for line in lines)


def shim(claim: Claim) -> list[str]:
    return [sys.executable, "-P", "-m", "rota.kinds.hosts.agent.supervisor", str(claim.home)]


def environment() -> dict[str, str]:
    """What a run inherits; where this package lies, too."""
    here = str(Path(__file__).parents[4])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))}


def metrics(home: Path) -> dict[str, Any]:
    disk = shutil.disk_usage(home)
    return {"load": [round(one, 2) for one in os.getloadavg()], "disk_free_bytes": disk.free, "cpus": os.cpu_count()}
