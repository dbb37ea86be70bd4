"""Fake agent with the real protocol, so that a test decides which message is sent when."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.app.harness import Api

TYPES = {
    "restart": {"read_only": False, "schema": {"properties": {}}},
    "look": {"read_only": True, "schema": {"properties": {}}},
}


@dataclass
class FakeAgent:
    """One host with its key. `known` are the claims in its journal."""

    api: Api
    host_id: str
    key: str
    session: str = ""
    known: list[str] = field(default_factory=list)
    stopping: list[str] = field(default_factory=list)

    async def ask(self, verb: str, body: Any, key: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        return await self.api.client.post(f"/api/agent/{verb}", json=body, headers=headers)

    async def register(self, types: Any = None, **journal: str) -> None:
        """Register the agent, with a journal of claims as `JOB_FENCE="running"`."""
        entries = [
            {"job_id": key.split("_")[0], "fence": int(key.split("_")[1]), "state": how} for key, how in journal.items()
        ]
        facts = {
            "version": "1",
            "pid": 7,
            "room": 8,
            "job_types": TYPES if types is None else types,
            "journal": entries,
        }
        answer = await self.ask("register", facts)
        assert answer.status_code == 200, answer.text
        self.session = answer.json()["session"]

    async def poll(self, room: int = 8, **more: Any) -> Any:
        body = {"session": self.session, "room": room, "known": self.known, "stopping": self.stopping, **more}
        answer = await self.ask("poll", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def claim(self, room: int = 8) -> list[Any]:
        """Poll, and record the claims."""
        jobs: list[Any] = (await self.poll(room))["jobs"]
        self.known += [f"{job['job_id']}.{job['fence']}" for job in jobs]
        return jobs

    async def report(self, job: Any, status: str = "success", **more: Any) -> httpx.Response:
        return await self.ask("result", {"job_id": job["job_id"], "fence": job["fence"], "status": status, **more})


async def pair_agent(api: Api, name: str = "alpha", up: bool = True) -> FakeAgent:
    token = (await api.call("POST", "/pairing-tokens", {})).json()["token"]
    answer = await api.client.post("/api/agent/pair", json={"token": token, "name": name})
    assert answer.status_code == 201, answer.text
    agent = FakeAgent(api, answer.json()["host_id"], answer.json()["agent_key"])
    if up:
        await agent.register()
    return agent


async def make_server(api: Api, agent: FakeAgent, name: str = "web", **more: Any) -> str:
    answer = await api.call("POST", "/server-instances", {"host_id": agent.host_id, "name": name, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def run_job(api: Api, server: str, job_type: str = "restart", **more: Any) -> str:
    answer = await api.call("POST", "/host-jobs", {"server_instance_id": server, "job_type": job_type, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])
