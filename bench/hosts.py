"""Cost of 500 agents: waiting at one server, dispatch of a job, and reconnecting after a restart of the server.

The agents are simulated in the driver's process over raw connections, as in `api`; they use the real protocol, and
back off after an error like real agents.
"""

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from bench.api import wire
from bench.figures import Figure, Size, percentile
from bench.installation import DatabaseKind, Installation, cpu_seconds, installation, used_since
from rota.core.ids import new_id
from rota.core.model import NewJob
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import hosts as host_rows
from rota.db.tables import server_instances
from rota.engine import jobs
from rota.kinds.hosts.agent.loop import FIRST_BACKOFF_SECONDS, HTTP_TIMEOUT_SECONDS, MAX_BACKOFF_SECONDS
from rota.kinds.hosts.store import hosts as fleet

AGENTS = 500
IDLE = 20.0  # seconds
SINGLE = 300  # jobs, one after the other
CONNECT_SECONDS, HAND_OUT_SECONDS, SINGLES_SECONDS = 40.0, 30.0, 30.0  # limits of the waits
LOOKS = {"look": {"read_only": True, "schema": {}}}


@dataclass
class Agent:
    """One simulated agent."""

    port: int
    host_id: str
    server_id: str
    key: str
    session: str = ""
    sessions: int = 0
    got: dict[str, float] = field(default_factory=dict)  # when each job arrived
    tries: int = 0

    async def live(self) -> None:
        while True:
            try:
                await self.speak()
            except (OSError, EOFError, AssertionError, LookupError, ValueError):  # offline, or not an answer
                self.tries += 1
                first, most = FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS
                await asyncio.sleep(min(most, first * 2 ** min(self.tries - 1, 10)) * random.uniform(0.3, 1))

    async def speak(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            facts = {"version": "1", "pid": 1, "room": 8, "job_types": LOOKS, "journal": []}
            self.session = (await self.ask(reader, writer, "register", facts))["session"]
            self.sessions += 1
            self.tries = 0
            while True:
                poll: dict[str, Any] = {"session": self.session, "room": 8, "known": [], "stopping": []}
                poll["wait_seconds"] = 30 * random.uniform(0.6, 1)
                for order in (await self.ask(reader, writer, "poll", poll))["jobs"]:
                    self.got.setdefault(order["job_id"], time.perf_counter())
                    result = {"job_id": order["job_id"], "fence": order["fence"], "status": "success"}
                    await self.ask(reader, writer, "result", result)
        finally:
            writer.close()

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, verb: str, body: Any) -> Any:
        writer.write(wire("POST", f"/api/agent/{verb}", json.dumps(body).encode(), self.key))
        async with asyncio.timeout(body.get("wait_seconds", 0) + HTTP_TIMEOUT_SECONDS):  # as long as a real agent waits
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            answer = await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        assert head.startswith("http/1.1 20"), answer
        return json.loads(answer)


async def hosts(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    async with installation(kind) as here:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        agents = await here.db.tx(make_agents, here, port)
        command = ("-m", "rota.app.cli", "server", "--port", str(port))
        server = here.start_process(*command)
        await listening(here, port)
        lives = [asyncio.ensure_future(agent.live()) for agent in agents]
        try:
            yield Figure("agents: all of 500 connect", await connected(here, agents, 1), "s")
            before, begun = cpu_seconds([server.process.pid]), time.perf_counter()
            await asyncio.sleep(IDLE)
            used = used_since(before, cpu_seconds([server.process.pid]))
            yield Figure("agents: CPU of the server, 500 waiting", 100 * used / (time.perf_counter() - begun), "%")
            spans = []
            async with asyncio.timeout(SINGLES_SECONDS):
                for _ in range(SINGLE):
                    spans += await handed_out(here, [random.choice(agents)])
            yield Figure("agents: a job reaches its agent, p50", percentile(spans, 0.5), "ms")
            yield Figure("agents: a job reaches its agent, p99", percentile(spans, 0.99), "ms")
            spans = await handed_out(here, agents)
            yield Figure("agents: 500 jobs at once reach 500 agents, p99", percentile(spans, 0.99), "ms")
            server.stop()
            here.processes.remove(server)
            await asyncio.sleep(5)
            here.start_process(*command)
            yield Figure("agents: all back after 5 s without a server", await connected(here, agents, 2), "s")
        finally:
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)


async def listening(here: Installation, port: int) -> None:
    async def answers() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    await here.until(answers, "the server listens", CONNECT_SECONDS, 0.02)


async def connected(here: Installation, agents: list[Agent], times: int) -> float:
    begun = time.perf_counter()

    async def all_there() -> bool:
        return all(agent.sessions >= times for agent in agents)

    await here.until(all_there, "all agents connected", CONNECT_SECONDS, 0.02)
    return time.perf_counter() - begun


async def handed_out(here: Installation, to: list[Agent]) -> list[float]:
    """Return the milliseconds from the commit of a job for each of these agents until it arrived."""
    now = here.engine.clock.now()
    made = {
        agent.host_id: NewJob(
            here.org_id,
            fleet.KIND,
            agent.server_id,
            {"job_type": "look"},
            now,
            "manual",
            route=fleet.routes_of(agent.host_id)[1],
        )
        for agent in to
    }
    await here.db.tx(jobs.enqueue, list(made.values()), now)
    begun = time.perf_counter()

    async def came() -> bool:
        return all(made[agent.host_id].id in agent.got for agent in to)

    await here.until(came, "the jobs came", HAND_OUT_SECONDS, 0.0005)
    return [max(0.0, (agent.got[made[agent.host_id].id] - begun) * 1000) for agent in to]


def make_agents(tx: Tx, here: Installation, port: int) -> list[Agent]:
    now = here.engine.clock.now()
    agents, machines, servers = [], [], []
    for number in range(AGENTS):
        host_id, server_id = new_id(), new_id()
        key, hashed = fleet.make_key(host_id, 1)
        born: dict[str, Any] = {"org_id": here.org_id, "labels": {}, "created_at": now, "updated_at": now}
        machines.append({"id": host_id, "name": f"host-{number}", "key_hash": hashed, "key_version": 1, **born})
        servers.append(
            {"id": server_id, "host_id": host_id, "name": f"web-{number}", "type": "x", "config": {}, **born}
        )
        agents.append(Agent(port, host_id, server_id, key))
    insert_rows(tx, host_rows, machines)
    insert_rows(tx, server_instances, servers)
    return agents
