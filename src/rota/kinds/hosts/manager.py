"""Commands for hosts: run a job on a server, a batch on several, resolve jobs of unknown outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.model import AttemptResult, NewJob
from rota.core.policy import NO_TERMS, RECONCILIATION, Terms
from rota.core.redact import redacted
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import finishing, jobs, runs
from rota.engine.commands import Engine
from rota.kinds.hosts.runner import BATCH_ROUTE, open_batch, servers_of
from rota.kinds.hosts.store import hosts, sessions
from rota.reports import jobs as job_reports


@dataclass(frozen=True, slots=True)
class HostManager:
    """Commands and queries on the hosts of one org."""

    engine: Engine
    org_id: str

    async def run(
        self, server: str, order: Mapping[str, object], terms: Terms = NO_TERMS, trace: str | None = None
    ) -> str:
        """Enqueue a job on a server, by its id or name; returns the id of the job. `order` has `job_type` and
        `payload`. Raises Invalid or NotFound."""
        server_id = await self.engine.db.read(hosts.server_id_of, self.org_id, server)
        if server_id is None:
            raise NotFound(f"server instance '{server}' not found")
        job_ids = await self.engine.enqueue(self.org_id, hosts.KIND, server_id, [order], terms=terms, trace=trace)
        return job_ids[0]

    async def run_batch(
        self,
        order: Mapping[str, object],
        terms: Terms = NO_TERMS,
        *,
        servers: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Enqueue the same job on several servers, by their ids or names or by labels; returns the id of the batch.
        Raises Invalid."""
        if bool(labels) == bool(servers):
            raise Invalid("server_instance_ids", servers, "and labels: exactly one of the two is needed")
        selector = ",".join(f"{name}={value}" for name, value in (labels or {}).items())
        named = await self.target_id(f"servers:{','.join(servers or [])}")
        target = f"labels:{selector}" if labels else f"servers:{','.join(dict.fromkeys(named[8:].split(',')))}"
        await self.engine.runners[hosts.KIND].resolve(self.org_id, target, order)
        if not await self.engine.db.read(servers_of, self.org_id, target):
            raise Invalid("labels", selector, "match no server; only a schedule may have labels without servers")
        now = self.engine.clock.now()
        job = NewJob(self.org_id, hosts.KIND, target, order, now, "manual", route=BATCH_ROUTE, terms=terms)

        def step(tx: Tx) -> str:
            open_batch(tx, job, now)
            return jobs.enqueue(tx, [job], now)[0]

        return await self.engine.write_and_wake(step)

    async def target_id(self, target: str) -> str:
        """Return a target of host jobs (`NAME`, `servers:NAME,…` or `labels:…`) with names of servers replaced by ids.
        Unknown names stay; resolving the target refuses them."""
        if target.startswith("labels:"):
            return target
        prefix = "servers:" if target.startswith("servers:") else ""

        def step(tx: Tx) -> str:
            keys = target.removeprefix(prefix).split(",") if prefix else [target]
            return prefix + ",".join(hosts.server_id_of(tx, self.org_id, key) or key for key in keys)

        return await self.engine.db.read(step)

    async def cancel(self, job_id: str) -> str:
        return await self.engine.cancel(self.org_id, job_id)

    async def resolve(self, job_id: str, applied: bool, outcome: object) -> str:
        """Resolve a job of unknown outcome. Raises NotFound or Conflict."""
        now = self.engine.clock.now()
        return await self.engine.write_and_wake(lambda tx: resolve(tx, self.org_id, job_id, applied, outcome, now))

    async def job(self, job_id: str) -> Record:
        return await self.engine.db.read(host_job, self.org_id, job_id)


def resolve(tx: Tx, org_id: str, job_id: str, applied: bool, outcome: object, now: datetime) -> str:
    """Resolve a job that waits for reconciliation: applied, it has succeeded; else it is tried again. Raises NotFound,
    or Conflict if it does not wait."""
    claimed = sessions.lock_job(tx, org_id, job_id)
    if claimed is None and not runs.of_job(tx, org_id, job_id):
        raise NotFound(f"host job {job_id!r} not found")
    if claimed is None or claimed.parked_reason != RECONCILIATION:
        raise Conflict(f"job {job_id} is not waiting for reconciliation")
    if not applied:
        jobs.resume(tx, job_id, now)
        return job_id
    jobs.adopt(tx, job_id, claimed.job.fence, None, now)
    adopted = sessions.lock_job(tx, org_id, job_id)
    assert adopted is not None
    assert adopted.run_id is not None
    job = adopted.job
    ended = AttemptResult(
        job, Status.SUCCESS, "resolved", now, adopted.run_id, job.attempt, job.queued_at, outcome=redacted(outcome)
    )
    finishing.finish(tx, [ended], None, now)
    return job_id


def host_job(tx: Tx, org_id: str, job_id: str) -> Record:
    """Return a host job: the fields of any job, with its server, job type and payload without secrets."""
    job = job_reports.job(tx, org_id, job_id)
    if job["kind"] != hosts.KIND:
        raise NotFound(f"host job {job_id!r} not found")
    living, ended = jobs.find(tx, org_id, job_id), runs.of_job(tx, org_id, job_id)
    order = living.payload if living is not None else ended[-1].input
    fields = {"job_type": order["job_type"], "payload": redacted(order.get("payload") or {})}
    waits = living.parked_reason if living is not None else None
    server_id = job.pop("target")
    shown = {name: value for name, value in job.items() if name not in job_reports.DURABLE_FIELDS}
    return {**shown, "server_instance_id": server_id, **fields, "waits_for": waits}
