"""The Runner of repairs: asks a repairer for a new file of a script that failed with a logic error, and checks it.

A repair is a job like any other, inserted by the transaction that ends the failed run: it has a run with a log, and is
rescued if its worker dies. A proposal is trusted no more than an uploaded script.
"""

import asyncio
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Protocol

import orjson

from rota.core.errors import Invalid, LogicError
from rota.core.process_groups import describe_exit
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.retry import retry_until_available
from rota.engine.runner import RunContext, Work
from rota.kinds.workflows.rules import VersionOutcome, forbidden_change
from rota.kinds.workflows.scripts import store
from rota.kinds.workflows.scripts.library import Scripts
from rota.user_code import processes

HOST_FIELDS = ("declaration", "org_id")  # of a failure: not for the repairer


class Repairer(Protocol):
    """Proposes a new file for a script that failed, or None. Raises LogicError with the reason."""

    async def propose(self, ctx: RunContext, failure: Record) -> str | None: ...


class CommandRepairer:
    """Runs a command that reads the failure as JSON from stdin and writes the new file to stdout; its stderr is in the
    log of the repair."""

    def __init__(self, command: str, limit: timedelta = timedelta(minutes=10)) -> None:
        self.command, self.limit = command, limit

    async def propose(self, ctx: RunContext, failure: Record) -> str | None:
        process = await processes.start(
            ctx, self.command, processes.environment(ctx, ["*"]), user=ctx.engine.settings.user_of("")
        )
        try:
            async with asyncio.timeout(self.limit.total_seconds()):
                output = await processes.supervise(ctx, process, orjson.dumps(failure))
        except TimeoutError as error:
            raise LogicError(f"the repairer gave no answer in {self.limit.total_seconds():g} s") from error
        if process.returncode != 0:
            raise LogicError(f"the repairer failed ({describe_exit(process.returncode)})")
        return output["stdout"] if output["stdout"].strip() else None


class RepairRunner:
    kind = store.REPAIR
    defaults = None  # a repair follows a run that failed
    under_grant = False

    def __init__(self, scripts: Scripts, repairer: Repairer | None) -> None:
        self.scripts, self.repairer = scripts, repairer

    def routes(self) -> Collection[str]:
        return {store.REPAIR} if self.repairer is not None else set()

    async def resolve(self, org_id: str, target: str, payload: object) -> str:  # noqa: ARG002
        raise Invalid("kind", self.kind, "cannot be scheduled: a repair follows a run that failed")

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        ctx.info.name = ctx.job.target
        ctx.info.marks_first = True
        return partial(self.execute, ctx)

    async def execute(self, ctx: RunContext) -> object:
        """Ask for one proposal, check it and settle the repair. Idempotent."""
        repair_id, db = ctx.job.payload["id"], self.scripts.db
        failure = await retry_until_available(lambda: db.read(store.failure, repair_id))
        base = "" if failure is None else failure["version"]
        outcome, why, source, declaration = VersionOutcome.SUPERSEDED, None, None, None
        if failure is not None:
            outcome, why, source, declaration = await self.propose(ctx, failure)
        now = ctx.engine.clock.now()
        settled = await retry_until_available(
            lambda: db.tx(store.settle_repair, repair_id, base, outcome, why, source, declaration, now)
        )
        ctx.engine.wake.signal("ready")
        return {"outcome": settled, "why": why}

    async def propose(
        self, ctx: RunContext, failure: Record
    ) -> tuple[VersionOutcome, str | None, str | None, Record | None]:
        """Ask for a proposal and check it; returns its outcome, the reason, the file and its declaration."""
        assert self.repairer is not None
        shown = {name: failure[name] for name in failure if name not in HOST_FIELDS}
        old, source = failure["declaration"], None
        try:
            source = await self.repairer.propose(ctx, shown)
            if source is None:
                return VersionOutcome.REFUSED, "the repairer had no proposal", None, None
            workflow = await self.scripts.declared_in(source, ctx.org_id)
            new = {**workflow.dump(), "route": old["route"]}
            change = forbidden_change({**old, "name": failure["workflow"]}, {**new, "name": workflow.name})
        except (Invalid, LogicError) as error:
            return VersionOutcome.REFUSED, error.message, source, None
        if change is not None:
            return VersionOutcome.REFUSED, change, source, new
        return (VersionOutcome.WAITING if old["repair"] == "ask" else VersionOutcome.ACCEPTED), None, source, new
