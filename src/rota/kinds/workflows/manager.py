"""The commands for workflows: deploy what a program declares, publish, run, pause, resume, skip, resolve."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rota.core import parse
from rota.core.model import WORKFLOW
from rota.core.parse import Defaults
from rota.core.policy import choice
from rota.core.workflows import Resolution
from rota.engine.engine import Engine
from rota.engine.trail import Act
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.host import read_event
from rota.kinds.workflows.runner import route_of
from rota.store import accounts
from rota.store import workflows as store


@dataclass(frozen=True, slots=True)
class WorkflowManager:
    """What can be asked of the workflows of one org."""

    engine: Engine
    org_id: str

    async def publish(self, key: str, topic: str, body: Mapping[str, Any]) -> tuple[str, str]:
        """An event from outside: its id, and `created`, `replaced` or `kept`."""
        form = parse.Form(body, frozenset({"message_id", "payload", "title"}))
        form.done()
        new = read_event(topic, body.get("message_id"), body.get("payload"), body.get("title"))
        given = (self.org_id, key, topic, new, self.engine.clock.now())
        event_id, became, wakes = await self.engine.db.tx(store.publish_outside, *given)
        if wakes:
            self.engine.wake.signal("ready")
        return event_id, became

    async def run(self, key: str) -> list[str]:
        now = self.engine.clock.now()
        return await self.engine.clocked(lambda tx: store.run_now(tx, self.org_id, key, now))

    async def pause(self, key: str, reason: str) -> str:
        why, now = parse.text(reason, "reason", 1000), self.engine.clock.now()
        return await self.engine.clocked(lambda tx: store.pause(tx, self.org_id, key, why, now))

    async def resume(self, key: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.clocked(lambda tx: store.resume(tx, self.org_id, key, now))

    async def skip(self, key: str, event_id: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.clocked(lambda tx: store.skip(tx, self.org_id, key, event_id, now))

    async def resolve(self, key: str, resolution: Any, result: Any, by: str) -> str:
        how, now = choice(Resolution, resolution, "resolution"), self.engine.clock.now()
        found = parse.payload(result, "result")
        return await self.engine.clocked(lambda tx: store.resolve(tx, self.org_id, key, how, found, by, now))

    async def deploy(self, workflow: Workflow, source: str, org: str) -> str | None:
        """Make the database say what a program declares; the id of what changed."""
        now, declaration = self.engine.clock.now(), workflow.dump() | {"route": route_of(org, workflow.name)}
        producers = {
            one["name"]: replace(
                parse.parse_schedule(
                    {**one["schedule"], "name": f"{workflow.name}.{one['name']}", "kind": WORKFLOW,
                     "target": workflow.name, "input": {"handler": one["name"]}},
                    org_id=self.org_id, defaults={WORKFLOW: Defaults()}, now=now, source=source, by=None,
                ),
                route=declaration["route"],
            )
            for one in declaration["handlers"]
            if one["schedule"] is not None
        }  # fmt: skip
        fields = {
            "name": workflow.name, "description": workflow.description, "source": source, "version": workflow.version,
            "declaration": declaration,
        }  # fmt: skip
        return await self.engine.clocked(lambda tx: store.deploy(tx, self.org_id, fields, producers, now))


async def deploy_all(engine: Engine, org: str, app: str | None, workflows: Mapping[str, Workflow]) -> None:
    """At start: deploy a program's workflows, and pause those that vanished from it. Any number of processes may."""
    org_id = await engine.db.read(accounts.org_by_slug, org)
    assert org_id is not None  # the program's tasks were declared in it
    source, now = f"code:{Path(app).stem if app else 'app'}", engine.clock.now()
    system = await engine.db.tx(accounts.system_user, org_id, now)
    for workflow in workflows.values():
        acting = engine.acting(Act(org_id, system, "workflows", "deploy", workflow.name))
        await WorkflowManager(acting, org_id).deploy(workflow, source, org)
    if app is not None:
        await engine.db.tx(store.retire, org_id, source, list(workflows), now)
