"""Hosts with real processes: a server and two agents, each killed at critical points.

The witness is a file that the commands themselves write: whatever the ledger says, what changes something must have
happened once, unless a person resolved it as not applied.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from rota.kinds.hosts.agent.journal import Journal
from tests.acceptance.cluster import Process, until
from tests.acceptance.networks import Network, possible

LEASE = 2  # seconds; an agent's is three times as long
KILLED = """
import os, sys
from rota.kinds.hosts.agent import journal, loop
from rota.app.cli import app
def die(*_, **__): os._exit(9)
{patch}
app()
"""
POINTS = {  # where an agent dies, by what it does next
    "before it journals the job": "journal.Journal.add = die",
    "before it starts the run": "loop.subprocess.Popen = die",
    "when the run has ended, before it reports": "loop.AgentLoop.send_result = die",
    "when it has reported, before it marks the claim as done": "journal.Claim.mark_done = die",
}
REPEATS = """
request, past = loop.AgentLoop.request, []
async def ask(self, verb, body, wait=0.0):
    answer = await request(self, verb, body, wait)
    if verb in ("progress", "result"):
        past.insert(0, (verb, body))
        for which, old in past:  # twice, and earlier reports are repeated, the last first
            try:
                again = await request(self, which, old)
                assert which != "result" or again["repeated"], again
            except loop.Refusal as refusal:
                assert which == "progress" and refusal.status == 409, (which, refusal)
    return answer
loop.AgentLoop.request = ask
"""
TYPES = """
from rota.agent import job_type

@job_type("touch", schema={}, reconcile=lambda order: happened(order))
def touch(order):
    import time
    with open(order.payload["path"], "a") as file:
        print("begin", order.job_id, file=file, flush=True)
    time.sleep(order.payload.get("seconds", 0))
    return {"at": order.server["name"]}

def happened(order):
    try:
        return order.job_id in open(order.payload["path"]).read()
    except FileNotFoundError:
        return False
"""


class Fleet:
    """A server and its agents, as an operator would run them. Leaves nothing running behind."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self.url = home, url
        self.witness = home / "witness"
        self.types = home / "types.py"
        self.types.write_text(TYPES)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.processes: list[Process] = []
        self.agents: dict[str, Process] = {}
        self.networks: dict[str, Network] = {}  # of agents that do not live on loopback
        self.server: Process | None = None
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}/api/v1", timeout=20)

    def process(
        self, name: str, *command: str, program: list[str] | None = None, within: Sequence[str] = ()
    ) -> Process:
        env = {
            **os.environ,
            "ROTA_LEASE_SECONDS": str(LEASE),
            "ROTA_DATA_DIR": str(self.home / "data"),
            "ROTA_DATABASE_URL": self.url,
            "ROTA_CANCEL_GRACE_SECONDS": "2",
        }
        start = [*within, sys.executable, *(program or ["-m", "rota.app.cli"]), *command]
        made = Process(start, env, self.home / f"{name}-{len(self.processes)}.log")
        self.processes.append(made)
        return made

    async def up(self, *verbs: str) -> None:
        """Start the server, in one process or several, and wait until it is ready."""
        for verb in verbs or ("up",):
            where = ("--host", "0.0.0.0", "--allow-remote") if self.networks else ()
            more = () if verb == "worker" else ("--port", str(self.port), *where)
            self.server = self.process(verb, verb, *more)
        ready = f"http://127.0.0.1:{self.port}/health/ready"

        async def answers() -> bool:
            try:
                return (await self.http.get(ready)).status_code == 200
            except httpx.TransportError:
                return False

        await until(answers, 60, "the server is ready")
        key = (self.home / "data" / "admin.key").read_text().strip()
        self.http.headers["authorization"] = f"Bearer {key}"

    async def pair(self, name: str) -> str:
        """A host with one server on it; the server's id."""
        token = (await self.call("POST", "/pairing-tokens"))["token"]
        network = self.networks.get(name)
        url = f"http://{network.here if network else '127.0.0.1'}:{self.port}"
        command = ("agent", "pair", "--server", url, "--token", token, "--dir", str(self.home / name))
        paired = self.process("pair", *command, within=network.within if network else ())
        assert await paired.ended(30) == 0, paired.log_text()
        host = json.loads((self.home / name / "agent.json").read_text())["host_id"]
        made = await self.call("POST", "/server-instances", {"host_id": host, "name": f"{name}-web"})
        return str(made["id"])

    def start(self, name: str, patch: str | None = None) -> Process:
        program = None if patch is None else ["-c", KILLED.format(patch=patch)]
        options = ("--dir", str(self.home / name), "--allow-any-shell", "--types", str(self.types))
        within = self.networks[name].within if name in self.networks else ()
        self.agents[name] = self.process(name, "agent", "run", *options, program=program, within=within)
        return self.agents[name]

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    async def shell(self, server: str, command: str, **more: Any) -> str:
        body = {"server_instance_id": server, "job_type": "shell", "payload": {"command": command}, **more}
        return str((await self.call("POST", "/host-jobs", body))["job_id"])

    def witnessed(self, seconds: float = 0) -> str:
        """A command that changes something, and can be seen to."""
        return f"echo begin $ROTA_JOB_ID >> {self.witness}; sleep {seconds}; echo end $ROTA_JOB_ID >> {self.witness}"

    def witness_lines(self, event: str, job: str) -> int:
        return self.witness.read_text().splitlines().count(f"{event} {job}") if self.witness.exists() else 0

    async def wait_for_line(self, event: str, job: str) -> None:
        await until(lambda: self.witness_lines(event, job) > 0, 30, f"{event} {job}")

    async def job(self, job: str) -> Any:
        return await self.call("GET", f"/host-jobs/{job}")

    async def ended(self, job: str, seconds: float = 60) -> list[str]:
        """How a job ended, attempt by attempt."""

        async def over() -> bool:
            return (await self.job(job))["status"] not in ("pending", "running")

        await until(over, seconds, f"job {job} ends")
        return await self.ledger(job)

    async def ledger(self, job: str) -> list[str]:
        runs = [run for run in (await self.call("GET", f"/runs?job_id={job}"))["items"] if run["finished_at"]]
        runs.sort(key=lambda run: run["attempt"])
        return [run["status"] + (f": {run['reason']}" if run["reason"] else "") for run in runs]

    async def close(self, failed: bool) -> None:
        await self.http.aclose()
        for process in self.processes:
            process.kill()
        for started in self.home.glob("*/runs/*/started"):  # runs outlive their agents
            try:
                os.kill(int(started.read_text()), signal.SIGTERM)
            except (OSError, ValueError):
                continue
        if failed:
            for process in self.processes:
                print(f"--- {process.log.name}\n{process.log_text()[-3000:]}")


@pytest.fixture
async def fleet(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    new_fleet = Fleet(tmp_path, database_url)
    yield new_fleet
    await new_fleet.close(failed=True)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_an_agent_killed_at_any_point_runs_and_reports_each_job_once(fleet: Fleet) -> None:
    await fleet.up()
    alpha, beta = await fleet.pair("alpha"), await fleet.pair("beta")
    fleet.start("beta")
    for point, patch in POINTS.items():
        doomed = fleet.start("alpha", patch)
        job = await fleet.shell(alpha, fleet.witnessed())
        other = await fleet.shell(beta, fleet.witnessed())
        assert await doomed.ended(30) == 9, point
        assert await fleet.ended(other) == ["success"]  # another host has nothing to do with it
        fleet.start("alpha")
        assert (await fleet.ended(job))[-1] == "success", point
        assert (fleet.witness_lines("begin", job), fleet.witness_lines("end", job)) == (1, 1), point
        fleet.agents["alpha"].kill()
    audit = await fleet.call("GET", "/slots/$audit")
    assert audit["ok"]


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_an_agent_killed_during_a_command_finds_it_again_running_or_ended(fleet: Fleet) -> None:
    await fleet.up()
    alpha = await fleet.pair("alpha")
    fleet.start("alpha")
    running = await fleet.shell(alpha, fleet.witnessed(4))
    behind = await fleet.shell(alpha, fleet.witnessed())
    await fleet.wait_for_line("begin", running)
    fleet.agents["alpha"].kill()
    fleet.start("alpha")  # at once: it keeps what it has in hand
    await until(lambda: "connected" in fleet.agents["alpha"].log_text(), 20, "it is back")
    assert fleet.witness_lines("begin", behind) == 0  # and the next one waits its turn
    assert await fleet.ended(running) == ["success"]
    assert await fleet.ended(behind) == ["success"]

    lost = await fleet.shell(alpha, fleet.witnessed(4 * LEASE))
    await fleet.wait_for_line("begin", lost)
    fleet.agents["alpha"].kill()
    await until_async(lambda: asked(fleet, lost), 30, "the agent is lost, and is asked about")
    assert await fleet.ledger(lost) == ["paused: reconciliation"]
    fleet.start("alpha")
    assert await fleet.ended(lost) == ["paused: reconciliation", "success"]
    for job in (running, behind, lost):
        assert (fleet.witness_lines("begin", job), fleet.witness_lines("end", job)) == (1, 1)


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_when_the_machine_dies_only_an_answer_lets_it_run_again(fleet: Fleet) -> None:
    await fleet.up()
    alpha = await fleet.pair("alpha")
    fleet.start("alpha")
    job = await fleet.shell(alpha, fleet.witnessed(600))
    await fleet.wait_for_line("begin", job)
    power_cut(fleet)
    fleet.start("alpha")
    await until_async(lambda: asked(fleet, job), 30, "it is asked about")
    fleet.agents["alpha"].kill()
    fleet.start("alpha")  # asking again brings no other answer
    await until(lambda: "connected" in fleet.agents["alpha"].log_text(), 20, "it is back")
    await asyncio.sleep(1)
    assert fleet.witness_lines("begin", job) == 1
    await fleet.call("POST", f"/host-jobs/{job}/$resolve", {"resolution": "applied"})
    assert await fleet.ended(job) == ["paused: reconciliation", "success: resolved"]

    body = {"server_instance_id": alpha, "job_type": "touch", "payload": {"path": str(fleet.witness), "seconds": 600}}
    reconciled = str((await fleet.call("POST", "/host-jobs", body))["job_id"])  # a job type with `reconcile`
    await fleet.wait_for_line("begin", reconciled)
    power_cut(fleet)
    fleet.start("alpha")
    assert (await fleet.ended(reconciled))[-1] == "success"
    assert (await fleet.call("GET", f"/runs?job_id={reconciled}"))["items"][0]["outcome"] == {"reconciled": True}
    assert fleet.witness_lines("begin", reconciled) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_runs_continue_and_results_are_kept_while_the_server_is_unreachable(fleet: Fleet) -> None:
    """For a minute, and on the other database for longer than the agents' leases. All that the agents report they
    report several times, and in another order."""
    away = 60 if fleet.url.startswith("sqlite") else 4 * LEASE
    await fleet.up()
    alpha, beta = await fleet.pair("alpha"), await fleet.pair("beta")
    for name in ("alpha", "beta"):
        fleet.start(name, REPEATS)
    ends = await fleet.shell(alpha, f"echo one; {fleet.witnessed(2)}; echo two")
    lasts = await fleet.shell(beta, fleet.witnessed(away + 2 * LEASE))
    waits = await fleet.shell(alpha, fleet.witnessed())
    for job in (ends, lasts):
        await fleet.wait_for_line("begin", job)
    assert fleet.server is not None
    fleet.server.kill()
    await fleet.wait_for_line("end", ends)
    await asyncio.sleep(away)
    await fleet.up()
    for job in (ends, lasts, waits):
        ledger = await fleet.ended(job, 90)
        assert (ledger[-1], ledger.count("success")) == ("success", 1)
        assert (fleet.witness_lines("begin", job), fleet.witness_lines("end", job)) == (1, 1)
    assert {"one", "two"} <= {line["text"] for line in await logs(fleet, ends)}
    assert all(agent.alive for agent in fleet.agents.values())  # what they were answered is what they expected
    assert (await fleet.call("GET", "/slots/$audit"))["ok"]


@pytest.mark.timeout(180)
@pytest.mark.skipif(not possible(), reason="only root can cut an agent off from its network")
async def test_an_agent_that_is_cut_off_from_the_network_ends_its_job_once(fleet: Fleet) -> None:
    with Network(0) as first, Network(1) as second:
        fleet.networks = {"alpha": first, "beta": second}
        await fleet.up()
        alpha, beta = await fleet.pair("alpha"), await fleet.pair("beta")
        for name in ("alpha", "beta"):
            fleet.start(name)
        job = await fleet.shell(alpha, fleet.witnessed(5 * LEASE))
        await fleet.wait_for_line("begin", job)
        first.cut()
        assert await fleet.ended(await fleet.shell(beta, fleet.witnessed())) == ["success"]
        await until_async(lambda: asked(fleet, job), 40, "the agent is lost, and is asked about")
        await fleet.wait_for_line("end", job)
        first.reconnect()
        assert await fleet.ended(job) == ["paused: reconciliation", "success"]
        assert (fleet.witness_lines("begin", job), fleet.witness_lines("end", job)) == (1, 1)
        for agent in fleet.agents.values():
            agent.kill()  # before their networks go


@pytest.mark.timeout(120)
async def test_server_and_worker_in_processes_of_their_own_wake_agents_at_once(fleet: Fleet) -> None:
    await fleet.up()
    server = await fleet.pair("alpha")
    assert fleet.server is not None
    fleet.server.kill()
    await fleet.up("worker", "server")
    fleet.start("alpha")
    await fleet.ended(await fleet.shell(server, "true"))
    body = {
        "name": "often",
        "kind": "host_job",
        "target": server,
        "interval": "1s",
        "max_runs": 3,
        "input": {"job_type": "shell", "payload": {"command": "echo $ROTA_SLOT"}},
    }
    made = await fleet.call("POST", "/schedules", body)

    async def three() -> bool:
        page = await fleet.call("GET", f"/schedules/{made['id']}/runs")
        return [run["status"] for run in page["items"]] == ["success"] * 3

    await until(three, 30, "three slots ran")
    runs = (await fleet.call("GET", f"/schedules/{made['id']}/runs"))["items"]
    late = [span(run["slot"], run["started_at"]) for run in runs]
    assert max(late) < 5, late  # the server was notified of the fire and answered the agent's long poll
    assert {run["target_name"] for run in runs} == {"alpha-web"}


@pytest.mark.timeout(120)
async def test_cancel_timeout_and_refusal_end_a_command_with_everything_it_started(fleet: Fleet) -> None:
    await fleet.up()
    alpha = await fleet.pair("alpha")
    fleet.start("alpha")
    marker = f"sleep 4{os.getpid() % 1000:03}"
    stopped = await fleet.shell(alpha, f"trap '' TERM; ({marker}) & {fleet.witnessed(600)}")
    await fleet.wait_for_line("begin", stopped)
    await fleet.call("POST", f"/host-jobs/{stopped}/$cancel")
    assert await fleet.ended(stopped, 30) == ["canceled: operator"]
    assert marker not in processes()
    slow = await fleet.shell(alpha, f"{marker} & {marker}", timeout_seconds=1)
    assert await fleet.ended(slow, 30) == ["failed: timeout"]
    assert marker not in processes()
    fleet.agents["alpha"].kill()
    strict = fleet.process("strict", "agent", "run", "--dir", str(fleet.home / "alpha"), "--allow-shell", "systemctl *")
    await until(lambda: "connected" in strict.log_text(), 20, "it is back")
    refused = await fleet.shell(alpha, f"touch {fleet.home / 'proof'}")
    assert await fleet.ended(refused) == ["failed: logic"]
    assert not (fleet.home / "proof").exists()
    assert "does not allow" in (await fleet.job(refused))["error"]["message"]


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_the_newest_key_is_the_only_one_and_takes_effect_while_the_agent_runs(fleet: Fleet) -> None:
    await fleet.up()
    alpha = await fleet.pair("alpha")
    agent = fleet.start("alpha")
    await fleet.ended(await fleet.shell(alpha, "true"))
    host = json.loads((fleet.home / "alpha" / "agent.json").read_text())["host_id"]
    key = (await fleet.call("POST", f"/hosts/{host}/$rotate-key"))["agent_key"]
    job = await fleet.shell(alpha, "true")
    await until(lambda: "missing or outdated key" in agent.log_text(), 30, "its old key is refused")
    assert (await fleet.job(job))["status"] == "pending"
    process = fleet.process("key", "agent", "key", "--dir", str(fleet.home / "alpha"), "--key", key)
    assert await process.ended(30) == 0
    assert await fleet.ended(job) == ["success"]


# helpers


async def until_async(true: Callable[[], Any], seconds: float, condition: str) -> None:
    await until(true, seconds, condition, every=0.2)


async def asked(fleet: Fleet, job: str) -> bool:
    return bool((await fleet.job(job))["waits_for"] == "reconciliation")


async def logs(fleet: Fleet, job: str) -> list[Any]:
    """Return the logs of all runs of a job."""
    runs = [run["id"] for run in (await fleet.call("GET", f"/runs?job_id={job}"))["items"]]
    return [line for run in runs for line in (await fleet.call("GET", f"/runs/{run}/logs"))["items"]]


def power_cut(fleet: Fleet) -> None:
    """Everything on the host dies at once."""
    fleet.agents["alpha"].kill()
    for claim in Journal(fleet.home / "alpha").open_claims():
        if (pid := claim.pid()) is not None:
            os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 10
            while not claim.is_dead():
                assert time.monotonic() < end
                time.sleep(0.02)


def processes() -> str:
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command_lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return "\n".join(
        command_line for command_line in command_lines if "pytest" not in command_line and "rota" not in command_line
    )


def span(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
