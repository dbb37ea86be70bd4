"""Host jobs as schedules and people ask for them, and batches, which a worker sees to.

A job on one server is never run here: its route leads to the host's agent. A job for all servers with some labels is a
batch; a worker makes a job for each of them, so many at a time, and waits until the last has ended.
"""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from rota.core import explain, parse
from rota.core.clock import Clock, real_sleep
from rota.core.errors import Invalid, NotFound
from rota.core.model import Job, NewJob
from rota.core.parse import Defaults
from rota.core.policy import Failure, FailureClass, Misfire, Overlap
from rota.core.redact import HIDDEN, has_hidden
from rota.core.states import Status
from rota.db.connection import Database
from rota.db.dialect import Tx, lock_keys
from rota.db.paging import Record
from rota.engine import jobs
from rota.engine.extensions import Describe
from rota.engine.runner import RunContext, WorkFailed
from rota.kinds.hosts.job_types import check_payload, known_type
from rota.kinds.hosts.store import batches, hosts

BATCH_ROUTE = "host:batch"
FIELDS = frozenset({"job_type", "payload", "max_parallel", "stop_on_failure"})
MOST_AT_ONCE = 1000
BREATH, SAFETY_LOOK = 0.1, 30.0  # seconds between looks at the members: at the least, and at the most


class HostRunner:
    kind = hosts.KIND
    defaults = Defaults(misfire=Misfire.SKIP, overlap=Overlap.SKIP)  # nobody wants last night's restart at noon
    under_grant = False
    describers: Mapping[str, Describe] = MappingProxyType(
        {"hosts": hosts.described, "server-instances": hosts.described_server}
    )

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db, self.clock = db, clock

    def routes(self) -> Collection[str]:
        return {BATCH_ROUTE}

    def why_no_worker(self, tx: Tx, org_id: str, route: str, now: datetime) -> str | None:
        host = hosts.host_of_route(tx, org_id, route, now)
        if host is None:
            return None
        since = f" since {explain.at(host['last_heartbeat_at'])}" if host["last_heartbeat_at"] else ""
        return f"Host {host['name']} is {host['status']}{since}; the job starts when its agent is connected."

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:
        read_order(payload)
        return await self.db.read(self.route_of, org_id, target, payload)

    def route_of(self, tx: Tx, org_id: str, target: str, order: Mapping[str, Any]) -> str:
        """Where a job goes. Raises Invalid if no host of the target can do it; in a batch, a host fails alone."""
        servers = servers_of(tx, org_id, target)
        refusals: list[Invalid] = []
        for server in servers:
            try:
                job_type = known_type(hosts.get(tx, org_id, server.host_id), order["job_type"])
                check_payload(job_type["schema"], order.get("payload") or {})
            except Invalid as error:
                refusals.append(error)
                continue
            if server.id == target:
                changes, looks = hosts.routes_of(server.host_id)
                return looks if job_type["read_only"] else changes
        if refusals and len(refusals) == len(servers):
            raise refusals[0]
        return BATCH_ROUTE

    def known_as(self, tx: Tx, org_id: str, target: str, payload: Any) -> Collection[str]:  # noqa: ARG002
        """A grant names job types; it is looked at again when the job is handed out."""
        return {target, payload["job_type"]}

    async def prepare(self, ctx: RunContext) -> None:
        ctx.info.name, ctx.info.resource = ctx.job.target, ctx.job.payload["job_type"]
        ctx.info.delegates = True

    async def execute(self, ctx: RunContext) -> Any:
        """See to a batch. Its jobs stand in the queue: a worker that takes over goes on where the last one was."""
        wake = ctx.engine.wake
        try:
            while True:
                changed = wake.changed  # asked before the look: what happens meanwhile is not missed
                members, over = await self.db.tx(self.further, ctx.job)
                if over:
                    return ended(members)
                await real_sleep(BREATH)
                await self.clock.wait(changed, SAFETY_LOOK)
        except asyncio.CancelledError:
            if await self.db.read(jobs.is_unwanted, ctx.job.id):  # else this worker stops, and another goes on
                await self.db.tx(self.stop, ctx.job)
                wake.signal("cancel")
            raise

    def further(self, tx: Tx, job: Job) -> tuple[list[Record], bool]:
        """Make the jobs whose turn has come; the members, and whether all is over."""
        order, now = job.payload, self.clock.now()
        open_batch(tx, job, now)
        members = batches.standing(tx, job.id)
        counts = batches.counted(members)
        waiting = [one["server_instance_id"] for one in members if one["job_id"] is None and one["status"] == "waiting"]
        busy = counts["running"] + counts["waiting"] - len(waiting)
        if waiting and not (order.get("stop_on_failure") and counts["failed"]):
            room = max(0, order.get("max_parallel", MOST_AT_ONCE) - busy)
            for server_id in waiting[:room]:
                batches.note(tx, job.id, server_id, **self.member(tx, job, server_id))
            return members, False
        if busy:
            return members, False
        for server_id in waiting:  # another one failed first
            batches.note(tx, job.id, server_id, status=Status.SKIPPED)
        members = batches.standing(tx, job.id)
        fine = counts["succeeded"] == counts["total"]
        batches.close(tx, job.id, "completed" if fine else "completed_with_failures", members, now)
        return members, True

    def member(self, tx: Tx, job: Job, server_id: str) -> dict[str, str]:
        """The job of one server; or that it failed already, because the server or what it can do is gone."""
        order, now = job.payload, self.clock.now()
        plain = {name: order[name] for name in ("job_type", "payload") if name in order}
        try:
            route = self.route_of(tx, job.org_id, server_id, plain)
        except Invalid:
            return {"status": Status.FAILED}
        new = NewJob(
            job.org_id, self.kind, server_id, plain, now, f"batch:{job.id}", job_key=f"batch:{job.id}:{server_id}",
            queue=job.queue, terms=job.terms, trace=job.trace, route=route,
        )  # fmt: skip
        return {"job_id": jobs.enqueue(tx, [new], now, "preserve")[0]}

    def stop(self, tx: Tx, job: Job) -> None:
        """Cancel a batch: what waits leaves the queue, what runs is told."""
        members, now = batches.standing(tx, job.id), self.clock.now()
        ids = [one["job_id"] for one in members if one["job_id"]]
        lock_keys(tx, jobs.keys_of(tx, ids))
        jobs.request_cancel(tx, ids, "batch", now)
        jobs.withdraw(tx, jobs.c.id.in_(ids), Status.CANCELED, "batch", now)
        batches.close(tx, job.id, "canceled", batches.standing(tx, job.id), now)


def open_batch(tx: Tx, job: Job | NewJob, now: datetime) -> None:
    order = job.payload
    batch = {
        "id": job.id, "org_id": job.org_id, "target": job.target, "job_type": order["job_type"],
        "max_parallel": order.get("max_parallel", MOST_AT_ONCE), "status": "running", "created_at": now,
        "stop_on_failure": order.get("stop_on_failure", False),
    }  # fmt: skip
    batches.open_batch(tx, batch, servers_of(tx, job.org_id, job.target))


def ended(members: list[Record]) -> Record:
    """What a batch came to; it failed if one of its jobs did not succeed."""
    counts = batches.counted(members)
    if counts["succeeded"] < counts["total"]:
        bad = [f"{one['name']} {one['status']}" for one in members if one["status"] != Status.SUCCESS]
        text = f"{len(bad)} of {counts['total']} servers: {', '.join(bad[:10])}"
        raise WorkFailed(Failure(FailureClass.LOGIC, "BatchFailed", text), counts)
    return counts


# what is asked of a host


def read_order(value: Any, field: str = "input") -> None:
    """`{job_type, payload?}`, and for batches `max_parallel?` and `stop_on_failure?`."""
    if not isinstance(value, Mapping):
        raise Invalid(field, value, "is not an object like {job_type, payload}")
    form = parse.Form(value, FIELDS)
    form.need("job_type", parse.label)
    given: Any = form.take("payload", parse.payload, {})
    form.take("max_parallel", lambda one, name: parse.whole(one, name, 1, MOST_AT_ONCE), None)
    form.take("stop_on_failure", parse.flag, None)
    form.done()
    if not isinstance(given, Mapping):
        raise Invalid(f"{field}.payload", given, "is not an object")
    if has_hidden(given):
        raise Invalid(f"{field}.payload", HIDDEN, "stands for a secret that is not shown; send the secret, or no input")


def read_selector(target: str) -> dict[str, str]:
    """`labels:k=v,k=v`"""
    pairs = [part.partition("=") for part in target.removeprefix("labels:").split(",")]
    if not all(name.strip() and eq for name, eq, _ in pairs):
        raise Invalid("target", target, "is not a selector like labels:role=web,zone=eu")
    return {name.strip(): value.strip() for name, _, value in pairs}


def servers_of(tx: Tx, org_id: str, target: str) -> list[Any]:
    """The servers that a job is for: one by its id, several as `servers:ID,ID`, or all with some labels."""
    if target.startswith("labels:"):
        return hosts.servers_with(tx, org_id, read_selector(target))
    try:
        return [hosts.server(tx, org_id, one) for one in target.removeprefix("servers:").split(",")]
    except NotFound as error:
        raise Invalid("target", target, "is neither a server instance nor labels:k=v,…") from error
