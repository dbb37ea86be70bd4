"""Commands for workflows: deploy declarations of programs and uploaded scripts, publish, run, pause, resolve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rota.core.errors import Conflict, Invalid
from rota.core.model import Schedule
from rota.core.policy import choice
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.engine.compute import compute
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.handler_host import read_event
from rota.kinds.workflows.rules import WORKFLOW, Resolution
from rota.kinds.workflows.runner import WorkflowRunner, route_of
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.scripts.diff import script_diff
from rota.kinds.workflows.scripts.library import Scripts
from rota.kinds.workflows.store import deployment, operators, publishing, workflows
from rota.kinds.workflows.store import events as events_store
from rota.kinds.workflows.store.records import NewEvent


@dataclass(frozen=True, slots=True)
class WorkflowManager:
    """The commands for the workflows of one org. Each raises NotFound, Invalid or Conflict."""

    engine: Engine
    org_id: str

    async def publish(
        self, key: str, topic: str, *, message_id: str, payload: object = None, title: str | None = None
    ) -> tuple[str, str]:
        """Publish an event from outside; returns its id, and `created`, `replaced` or `kept`."""
        ((event_id, result),) = await self.publish_many(key, [read_event(topic, message_id, payload, title)])
        return event_id, result

    async def publish_many(self, key: str, events: Sequence[NewEvent]) -> list[tuple[str, str]]:
        """Publish events from outside, in one transaction and in this order; returns the id and the result of each. Of
        several with one topic and message id, the last counts."""
        db, now = self.engine.db, self.engine.clock.now()
        published = await db.statement(publishing.publish_inputs(self.org_id, key, events, now))
        if published:
            results, wakes = await self.results_of(published, events), published[0].queued
        else:
            results, wakes = await db.tx(operators.publish, self.org_id, key, events, now)
        if wakes:
            self.engine.signal("ready")
        return results

    async def results_of(
        self, published: Sequence[publishing.Published], events: Sequence[NewEvent]
    ) -> list[tuple[str, str]]:
        """Return the id and the result of each event; reads the ids of those that were kept."""
        written = {
            (event.topic, event.message_id): (event.event_id, "created" if event.is_new else "replaced")
            for event in published
            if event.event_id is not None
        }
        kept = [(event.topic, event.message_id) for event in published if event.event_id is None]
        if kept:
            ids = await self.engine.db.read(events_store.ids_of, published[0].workflow_id, kept)
            written |= {key: (event_id, "kept") for key, event_id in ids.items()}
        return [written[event.topic, event.message_id] for event in events]

    async def run(self, key: str) -> list[str]:
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: operators.run_now(tx, self.org_id, key, now))

    async def pause(self, key: str, reason: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: operators.pause(tx, self.org_id, key, reason, now))

    async def resume(self, key: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: operators.resume(tx, self.org_id, key, now))

    async def skip(self, key: str, event_id: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: operators.skip_event(tx, self.org_id, key, event_id, now))

    async def resolve(self, key: str, resolution: str, result: object, by: str) -> str:
        chosen, now = choice(Resolution, resolution, "resolution"), self.engine.clock.now()
        return await self.engine.write_and_wake(
            lambda tx: operators.resolve(tx, self.org_id, key, chosen, result, by, now)
        )

    async def deploy(self, workflow: Workflow, source: str, org: str) -> str | None:
        """Make the database match a program's declaration; returns the workflow's id, or None if it matches already."""
        declaration = workflow.dump() | {"route": route_of(org, workflow.name)}
        fields, producers = self.declared_rows(workflow, source, declaration)
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: deployment.deploy(tx, self.org_id, fields, producers, now))

    def declared_rows(self, workflow: Workflow, source: str, declaration: Record) -> tuple[Record, dict[str, Schedule]]:
        """Return the columns of a workflow, and the schedules of its producers by handler."""
        now = self.engine.clock.now()
        producers = {
            handler["name"]: deployment.producer_schedule(
                self.org_id, workflow.name, source, declaration["route"], handler, now
            )
            for handler in declaration["handlers"]
            if handler["schedule"] is not None
        }
        fields = {
            "name": workflow.name,
            "description": workflow.description,
            "source": source,
            "version": workflow.version,
            "declaration": declaration,
        }
        return fields, producers

    # scripts

    @property
    def scripts(self) -> Scripts:
        runner = self.engine.runners[WORKFLOW]
        assert isinstance(runner, WorkflowRunner)
        return runner.scripts

    async def check(self, script: str) -> Workflow:
        """Return what a script declares; stores nothing. Raises Invalid with the line and the reason."""
        return await self.scripts.declared_in(script, self.org_id)

    async def upload(self, key: str | None, script: str, by: str | None, *, name: str | None = None) -> str:
        """Deploy a script: a new workflow, or the next major version of the one named by `key`; returns its id. Raises
        Invalid if the script declares another `name`."""
        if key is not None:
            await self.engine.db.read(workflows.get, self.org_id, key)
        workflow = await self.check(script)
        if name not in (None, workflow.name):
            raise Invalid("name", name, f"is not the name that the script declares: {workflow.name}")
        route = await self.engine.db.read(scripts_store.route_for, self.org_id, workflow.dump())
        fields, producers = self.declared_rows(workflow, workflows.SCRIPT, workflow.dump() | {"route": route})
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(
            lambda tx: scripts_store.deploy(tx, self.org_id, key, fields, producers, script, by, now)
        )

    async def roll_back(self, key: str, version: str, by: str | None) -> str:
        """Deploy the file of an earlier version as the next major version."""
        row = await self.engine.db.read(
            lambda tx: scripts_store.get_version(tx, workflows.get(tx, self.org_id, key), version)
        )
        if row.source is None:
            raise Conflict(f"version {version} of workflow {key!r} has no file")
        return await self.upload(key, row.source, by)

    async def version(self, key: str, version: str, against: str | None = None) -> Record:
        """Return a version with its file, and its diff against the one that was live before it, or another."""

        def read(tx: Tx) -> tuple[Record, str | None, str, str]:
            workflow = workflows.get(tx, self.org_id, key)
            row = scripts_store.get_version(tx, workflow, version)
            if against is None:
                other = scripts_store.previous_version(tx, workflow, row)
            else:
                other = scripts_store.get_version(tx, workflow, against)
            fields = scripts_store.describe_version(row, workflow)
            old_name = None if other is None else other.number
            return fields, old_name, "" if other is None else other.source or "", row.source or ""

        fields, old_name, old, new = await self.engine.db.read(read)
        return {**fields, "against": old_name, "diff": await compute(script_diff, old, new, old_name or "", version)}

    async def delete(self, key: str) -> str:
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: scripts_store.delete(tx, self.org_id, key, now))

    async def decide(self, key: str, version: str, accept: bool, reason: str, by: str) -> str:
        """Accept or reject a repair that waits for an operator."""
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(
            lambda tx: scripts_store.decide(tx, self.org_id, key, version, accept, reason, by, now)
        )


async def deploy_all(engine: Engine, org: str, app: str | None, workflows: Mapping[str, Workflow]) -> None:
    """Deploy a program's workflows at start, and pause those that it no longer declares. Safe in several processes."""
    org_id = await engine.db.read(orgs.org_by_slug, org)
    assert org_id is not None  # the program's tasks were declared in it
    source, now = f"code:{Path(app).stem if app else 'app'}", engine.clock.now()
    system = await engine.db.tx(orgs.system_user, org_id, now)
    for workflow in workflows.values():
        audited_as = engine.audited_as(AuditEntry(org_id, system, "workflows", "deploy", workflow.name))
        await WorkflowManager(audited_as, org_id).deploy(workflow, source, org)
    if app is not None:
        await engine.db.tx(deployment.pause_undeclared, org_id, source, list(workflows), now)
