"""The commands for workflows: deploy what a program declares or somebody uploads, publish, run, pause, resolve."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.core import parse
from rota.core.errors import Conflict, Invalid
from rota.core.model import WORKFLOW, Schedule
from rota.core.policy import choice
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs
from rota.engine.audit_log import Act
from rota.engine.commands import Engine
from rota.engine.compute import compute
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.handler_host import read_event
from rota.kinds.workflows.rules import Resolution
from rota.kinds.workflows.runner import WorkflowRunner, route_of
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.scripts.diff import script_diff
from rota.kinds.workflows.scripts.library import Scripts
from rota.kinds.workflows.scripts.sandbox import SCRIPT_LIMIT
from rota.kinds.workflows.store import workflows as store
from rota.kinds.workflows.store.upkeep import producer_schedule


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
            self.engine.signal("ready")
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
        declaration = workflow.dump() | {"route": route_of(org, workflow.name)}
        fields, producers = self.wanted(workflow, source, declaration)
        now = self.engine.clock.now()
        return await self.engine.clocked(lambda tx: store.deploy(tx, self.org_id, fields, producers, now))

    def wanted(
        self, workflow: Workflow, source: str, declaration: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Schedule]]:
        """The row of a workflow, and the schedules of its producers."""
        now = self.engine.clock.now()
        producers = {
            handler["name"]: producer_schedule(self.org_id, workflow.name, source, declaration["route"], handler, now)
            for handler in declaration["handlers"]
            if handler["schedule"] is not None
        }
        fields = {
            "name": workflow.name, "description": workflow.description, "source": source, "version": workflow.version,
            "declaration": declaration,
        }  # fmt: skip
        return fields, producers

    # scripts

    @property
    def scripts(self) -> Scripts:
        runner = self.engine.runners[WORKFLOW]
        assert isinstance(runner, WorkflowRunner)
        return runner.scripts

    async def check(self, source: Any) -> Workflow:
        """What a script declares; stores nothing. Raises Invalid, with the line and the reason."""
        return await self.scripts.declared_in(parse.text(source, "script", SCRIPT_LIMIT, required=True), self.org_id)

    async def upload(self, key: str | None, body: Mapping[str, Any], by: str | None) -> str:
        """A new workflow, or the next major version of the one named by `key`, from the file that declares it."""
        if key is not None:
            await self.engine.db.read(store.get, self.org_id, key)
        workflow = await self.check(body.get("script"))
        if body.get("name") not in (None, workflow.name):
            raise Invalid("name", body["name"], f"is not the name that the script declares: {workflow.name}")
        route = await self.engine.db.read(scripts_store.route_for, self.org_id, workflow.dump())
        fields, producers = self.wanted(workflow, store.SCRIPT, workflow.dump() | {"route": route})
        now, source = self.engine.clock.now(), str(body["script"])
        return await self.engine.clocked(
            lambda tx: scripts_store.deploy(tx, self.org_id, key, fields, producers, source, by, now)
        )

    async def roll_back(self, key: str, version: Any, by: str | None) -> str:
        """An earlier version's file, as the next major version."""
        wanted = parse.text(version, "version", 20, required=True)
        one = await self.engine.db.read(lambda tx: scripts_store.version(tx, store.get(tx, self.org_id, key), wanted))
        if one.source is None:
            raise Conflict(f"workflow {key}: version {wanted} has no file")
        return await self.upload(key, {"script": one.source}, by)

    async def version(self, key: str, version: str, against: str | None = None) -> Record:
        """One version with its file, and what it changed: against the one that was live before it, or another."""

        def read(tx: Tx) -> tuple[Record, str | None, str, str]:
            flow = store.get(tx, self.org_id, key)
            one = scripts_store.version(tx, flow, version)
            other = scripts_store.before(tx, flow, one) if against is None else scripts_store.version(tx, flow, against)
            found = scripts_store.told(one, flow)
            old, new = ("" if row is None else row.source or "" for row in (other, one))
            name = None if other is None else f"{other.major}.{other.minor}"
            del found["declaration"]
            return found, name, old, new

        found, name, old, new = await self.engine.db.read(read)
        return {**found, "against": name, "diff": await compute(script_diff, old, new, name or "", version)}

    async def delete(self, key: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.clocked(lambda tx: scripts_store.delete(tx, self.org_id, key, now))

    async def decide(self, key: str, version: str, accept: bool, why: Any, by: str) -> str:
        """Accept or reject a repair that waits for a person."""
        now, reason = self.engine.clock.now(), parse.text(why or "", "reason", 1000)
        return await self.engine.clocked(
            lambda tx: scripts_store.decide(tx, self.org_id, key, version, accept, reason, by, now)
        )


async def deploy_all(engine: Engine, org: str, app: str | None, workflows: Mapping[str, Workflow]) -> None:
    """At start: deploy a program's workflows, and pause those that vanished from it. Any number of processes may."""
    org_id = await engine.db.read(orgs.org_by_slug, org)
    assert org_id is not None  # the program's tasks were declared in it
    source, now = f"code:{Path(app).stem if app else 'app'}", engine.clock.now()
    system = await engine.db.tx(orgs.system_user, org_id, now)
    for workflow in workflows.values():
        acting = engine.acting(Act(org_id, system, "workflows", "deploy", workflow.name))
        await WorkflowManager(acting, org_id).deploy(workflow, source, org)
    if app is not None:
        await engine.db.tx(store.retire, org_id, source, list(workflows), now)
