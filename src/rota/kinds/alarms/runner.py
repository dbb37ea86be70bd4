"""The Runner of deliveries: each message to a channel is a job, whose run in the ledger has the receiver's answer.

Servers run these jobs too, except commands: an alarm that no worker is alive must arrive.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import orjson

from rota.core.errors import GiveUp, Invalid, NotFound, Refused, TransientError
from rota.core.kinds import KindTraits, register
from rota.core.model import AttemptResult
from rota.core.process_groups import describe_exit
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import orgs
from rota.engine.commands import Engine
from rota.engine.extensions import prune_in_chunks
from rota.engine.runner import RunContext, Work
from rota.kinds.alarms import senders
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.alarms.store import changes, rows
from rota.user_code import processes

HEARTBEAT = "heartbeat"  # target of the jobs of the outgoing heartbeat


class AlarmRunner:
    kind = changes.KIND
    defaults = None  # deliveries follow from alarms
    under_grant = False
    traits = register(kind, KindTraits(in_servers=True))

    def __init__(self, db: Database, settings: AlarmSettings, runs_commands: bool = True) -> None:
        self.db, self.settings, self.runs_commands = db, settings, runs_commands
        self.describers = {
            "alarms": rows.describe_alarm,
            "alarm-channels": rows.describe_channel,
            "alarm-events": rows.event,
        }

    def routes(self) -> Collection[str]:
        return {changes.ROUTE, changes.COMMAND_ROUTE} if self.runs_commands else {changes.ROUTE}

    async def resolve(self, org_id: str, target: str, payload: object) -> str:  # noqa: ARG002
        raise Invalid("kind", self.kind, "cannot be scheduled: deliveries follow from alarms")

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prune(self, engine: Engine, now: datetime) -> None:
        """Delete events that were resolved longer ago than failed runs are kept."""
        await prune_in_chunks(engine.db, rows.prune_events, now - engine.settings.keep_failed)

    async def prepare(self, ctx: RunContext) -> Work:
        ctx.info.name = ctx.job.target
        if ctx.job.target == HEARTBEAT and ctx.job.payload is None:
            return partial(self.send_heartbeat, ctx)
        try:
            channel = await self.db.read(rows.channel, ctx.org_id, ctx.job.payload["channel_id"])
        except NotFound as error:
            raise GiveUp("the channel was deleted after the delivery was enqueued") from error
        return partial(self.send, ctx, channel)

    async def send_heartbeat(self, ctx: RunContext) -> object:
        if not self.settings.heartbeat_url:
            raise GiveUp("ROTA_HEARTBEAT_URL is not set in this process")
        return {"answer": await senders.send_heartbeat(self.settings), "message_id": ctx.job.id}

    async def send(self, ctx: RunContext, channel: Any) -> object:
        """Deliver a message; the outcome has the receiver's answer. The message id is the job's: the same in all
        attempts."""
        message, message_id = ctx.job.payload["message"], ctx.job.id
        match channel.type:
            case "email":
                answer = await senders.send_email(self.settings, channel.address, message, message_id)
            case "webhook":
                now = ctx.engine.clock.now()
                answer = await senders.send_webhook(
                    self.settings, channel.address, channel.secret, message, message_id, now
                )
            case "apprise":
                answer = await senders.send_apprise(self.settings, channel.secret, message)
            case _:
                answer = await self.run_command(ctx, channel.address, message)
        return {"answer": answer, "message_id": message_id, "type": message["type"]}

    async def run_command(self, ctx: RunContext, command: str, message: Any) -> str:
        """Run a command with the message as JSON on stdin."""
        try:
            await self.db.read(orgs.check_shell, ctx.org_id)
        except Refused as error:
            raise GiveUp(error.message) from error
        user = ctx.engine.settings.user_of(await self.db.read(orgs.slug_of, ctx.org_id))
        process = await processes.start(ctx, command, processes.environment(ctx), user=user)
        await processes.supervise(ctx, process, orjson.dumps(message))
        if process.returncode != 0:
            raise TransientError(f"the command failed ({describe_exit(process.returncode)})")
        return "exit code 0"

    def follow(self, tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
        """Record with each channel how its last delivery ended."""
        for result in ended:
            if result.job.payload is None or not result.ended:
                continue
            outcome = result.outcome if isinstance(result.outcome, dict) else {}
            answer = outcome.get("answer") or (result.error or {}).get("message") or result.reason or ""
            rows.record_delivery(tx, result.job.payload["channel_id"], result.status.value, str(answer), now)
