"""The Runner of host jobs: routes jobs to agents, and runs batches.

A job on one server is never run here: its route leads to the host's agent. A job on several servers is a batch: a
worker enqueues a job for each, at most `max_parallel` at a time, and waits until the last has ended.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from rota.core import explain, parse
from rota.core.clock import Clock, real_sleep
from rota.core.errors import Invalid, NotFound
from rota.core.kinds import KindTraits, register
from rota.core.model import Job, NewJob
from rota.core.policy import Failure, FailureClass, Misfire, Overlap
from rota.core.redact import HIDDEN, has_hidden
from rota.core.schedule_form import Defaults
from rota.core.states import Status
from rota.db.connection import Database
from rota.db.dialect import Tx, lock_keys
from rota.db.paging import Record
from rota.engine import jobs, serial_keys
from rota.engine.extensions import Describe
from rota.engine.runner import RunContext, Work, WorkFailed
from rota.kinds.hosts import reports as host_reports
from rota.kinds.hosts.job_types import check_payload, known_type
from rota.kinds.hosts.store import batches, hosts
from rota.kinds.hosts.store.records import ServerRow

BATCH_ROUTE = "host:batch"
ORDER_FIELDS = frozenset({"job_type", "payload", "max_parallel", "stop_on_failure"})
MAX_PARALLEL = 1000
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 30.0  # between checks of the members of a batch


class HostRunner:
    """The Runner of kind `host_job`."""

    kind = hosts.KIND
    defaults = Defaults(misfire=Misfire.SKIP, overlap=Overlap.SKIP)  # a late restart of a server may do harm
    under_grant = False
    describers: Mapping[str, Describe] = MappingProxyType(
        {"hosts": host_reports.described, "server-instances": host_reports.described_server}
    )
    traits = register(
        kind,
        KindTraits(
            grant_action="dispatch",
            grant_resource=re.compile(r"[^\s*]+"),
            orders_hosts=True,
            skip_reason="busy",  # or offline
            shows_skips=True,
        ),
    )

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db, self.clock = db, clock

    def routes(self) -> Collection[str]:
        return {BATCH_ROUTE}

    def why_no_worker(self, tx: Tx, org_id: str, route: str, now: datetime) -> str | None:
        host = host_reports.host_of_route(tx, org_id, route, now)
        if host is None:
            return None
        since = f" since {explain.at(host['last_heartbeat_at'])}" if host["last_heartbeat_at"] else ""
        return f"Host {host['name']} is {host['status']}{since}; the job starts when its agent is connected."

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:
        read_order(payload)
        return await self.db.read(self.route_of, org_id, target, payload)

    def route_of(self, tx: Tx, org_id: str, target: str, order: Record) -> str:
        """Return the route of a job: to the agent of its server, or as a batch to a worker. Raises Invalid if no host
        of the target has the job type; of a batch, only that member fails."""
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
                serial, read_only = hosts.routes_of(server.host_id)
                return read_only if job_type["read_only"] else serial
        if refusals and len(refusals) == len(servers):
            raise refusals[0]
        return BATCH_ROUTE

    def known_as(self, tx: Tx, org_id: str, target: str, payload: Any) -> Collection[str]:  # noqa: ARG002
        """The names that a grant may have for it: the server and the job type. Checked again when the job is handed
        out."""
        return {target, payload["job_type"]}

    async def prepare(self, ctx: RunContext) -> Work:
        ctx.info.name, ctx.info.resource = ctx.job.target, ctx.job.payload["job_type"]
        ctx.info.delegates = True
        return partial(self.execute, ctx)

    async def execute(self, ctx: RunContext) -> object:
        """Run a batch. Its state is in the database, so another worker can take over at any time."""
        wake = ctx.engine.wake
        try:
            while True:
                changed = wake.changed  # read before the query, so that no wake-up is missed
                members, done = await self.db.tx(self.advance, ctx.job)
                if done:
                    return outcome_of(members)
                await real_sleep(MIN_POLL_SECONDS)
                await self.clock.wait(changed, MAX_POLL_SECONDS)
        except asyncio.CancelledError:
            # without a request this worker stops, and another continues the batch
            if await self.db.read(jobs.is_cancel_requested, ctx.job.id):
                await self.db.tx(self.stop, ctx.job)
                wake.signal("cancel")
            raise

    def advance(self, tx: Tx, job: Job) -> tuple[list[Record], bool]:
        """Enqueue the jobs of the next members; returns the members, and whether all have ended."""
        order, now = job.payload, self.clock.now()
        open_batch(tx, job, now)
        members = batches.members_of(tx, job.id)
        counts = batches.count_statuses(members)
        waiting = [
            member["server_instance_id"]
            for member in members
            if member["job_id"] is None and member["status"] == "waiting"
        ]
        busy = counts["running"] + counts["waiting"] - len(waiting)
        if waiting and not (order.get("stop_on_failure") and counts["failed"]):
            room = max(0, order.get("max_parallel", MAX_PARALLEL) - busy)
            for server_id in waiting[:room]:
                batches.update_member(tx, job.id, server_id, **self.enqueue_member(tx, job, server_id))
            return members, False
        if busy:
            return members, False
        for server_id in waiting:  # stop_on_failure: another member failed
            batches.update_member(tx, job.id, server_id, status=Status.SKIPPED)
        members = batches.members_of(tx, job.id)
        succeeded = counts["succeeded"] == counts["total"]
        batches.close(tx, job.id, "completed" if succeeded else "completed_with_failures", members, now)
        return members, True

    def enqueue_member(self, tx: Tx, job: Job, server_id: str) -> dict[str, str]:
        """Enqueue the job of one server; returns its id or, if the server or its job type is gone, the status
        failed."""
        order, now = job.payload, self.clock.now()
        member_order = {name: order[name] for name in ("job_type", "payload") if name in order}
        try:
            route = self.route_of(tx, job.org_id, server_id, member_order)
        except Invalid:
            return {"status": Status.FAILED}
        new = NewJob(
            job.org_id,
            self.kind,
            server_id,
            member_order,
            now,
            f"batch:{job.id}",
            job_key=f"batch:{job.id}:{server_id}",
            queue=job.queue,
            terms=job.terms,
            trace=job.trace,
            route=route,
        )
        return {"job_id": jobs.enqueue(tx, [new], now, "preserve")[0]}

    def stop(self, tx: Tx, job: Job) -> None:
        """Cancel the members of a batch: queued jobs are withdrawn, running ones are asked to stop."""
        members, now = batches.members_of(tx, job.id), self.clock.now()
        ids = [member["job_id"] for member in members if member["job_id"]]
        lock_keys(tx, serial_keys.keys_of(tx, ids))
        jobs.request_cancel(tx, ids, "batch", now)
        jobs.withdraw(tx, jobs.c.id.in_(ids), Status.CANCELED, "batch", now)
        batches.close(tx, job.id, "canceled", batches.members_of(tx, job.id), now)


def open_batch(tx: Tx, job: Job | NewJob, now: datetime) -> None:
    """Store the batch of a job with its members; idempotent."""
    order = job.payload
    batch = {
        "id": job.id, "org_id": job.org_id, "target": job.target, "job_type": order["job_type"],
        "max_parallel": order.get("max_parallel", MAX_PARALLEL), "status": "running", "created_at": now,
        "stop_on_failure": order.get("stop_on_failure", False),
    }  # fmt: skip
    batches.open_batch(tx, batch, servers_of(tx, job.org_id, job.target))


def outcome_of(members: list[Record]) -> Record:
    """Return the counters of a batch. Raises WorkFailed if a member did not succeed."""
    counts = batches.count_statuses(members)
    if counts["succeeded"] < counts["total"]:
        failed = [f"{member['name']} {member['status']}" for member in members if member["status"] != Status.SUCCESS]
        text = f"{len(failed)} of {counts['total']} servers: {', '.join(failed[:10])}"
        raise WorkFailed(Failure(FailureClass.LOGIC, "BatchFailed", text), counts)
    return counts


# orders and targets


def read_order(value: object, field: str = "input") -> None:
    """Validate `{job_type, payload?}`, and for batches `max_parallel?` and `stop_on_failure?`. Raises Invalid."""
    if not isinstance(value, Mapping):
        raise Invalid(field, value, "is not an object like {job_type, payload}")
    form = parse.Form(value, ORDER_FIELDS)
    form.need("job_type", parse.label)
    payload: object = form.take("payload", parse.payload, {})
    form.take("max_parallel", lambda limit, name: parse.whole(limit, name, 1, MAX_PARALLEL), None)
    form.take("stop_on_failure", parse.flag, None)
    form.done()
    if not isinstance(payload, Mapping):
        raise Invalid(f"{field}.payload", payload, "is not an object")
    if has_hidden(payload):
        raise Invalid(
            f"{field}.payload", HIDDEN, "is the placeholder of a hidden secret; send the secret, or omit the input"
        )


def read_selector(target: str) -> dict[str, str]:
    """Return the labels of a target `labels:k=v,k=v`. Raises Invalid."""
    pairs = [part.partition("=") for part in target.removeprefix("labels:").split(",")]
    if not all(name.strip() and eq for name, eq, _ in pairs):
        raise Invalid("target", target, "is not a selector like labels:role=web,zone=eu")
    return {name.strip(): value.strip() for name, _, value in pairs}


def servers_of(tx: Tx, org_id: str, target: str) -> list[ServerRow]:
    """Return the servers of a target: an id, `servers:ID,ID`, or `labels:k=v,…`. Raises Invalid."""
    if target.startswith("labels:"):
        return hosts.servers_with(tx, org_id, read_selector(target))
    try:
        return [hosts.server(tx, org_id, server_id) for server_id in target.removeprefix("servers:").split(",")]
    except NotFound as error:
        raise Invalid("target", target, "is neither a server instance nor labels:k=v,…") from error
