"""An alarm arrives although the process that should have fired was killed, at a real mail server and a real receiver of
webhooks."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from standardwebhooks import Webhook

from rota.db.tables import alarm_events
from rota.kinds.alarms.manager import AlarmManager
from tests.acceptance.cluster import Cluster, until
from tests.acceptance.test_metrics import Server
from tests.kinds.alarms.receivers import mail_server, make_certificates, webhook_receiver

pytestmark = pytest.mark.long


async def test_a_server_alone_reports_the_slot_that_a_killed_worker_missed(tmp_path: Path, clean_url: str) -> None:
    certificates = make_certificates(tmp_path)
    with mail_server(certificates) as mail, webhook_receiver() as receiver:
        settings: dict[str, Any] = {
            "smtp_url": f"smtps://localhost:{mail.port}?ca={certificates.ca}",
            "webhook_private": "true",
            "alarm_seconds": 1,
            "misfire_grace_seconds": 1,
            "lease_seconds": 2,
        }
        async with Cluster(tmp_path, clean_url, **settings) as cluster:
            alarms = AlarmManager(cluster.engine, cluster.org)
            await alarms.add_channel({"name": "ops", "type": "email", "address": "ops@example.org"})
            _, secret = await alarms.add_channel({"name": "hook", "type": "webhook", "address": receiver.url})
            assert secret is not None
            await alarms.add({"name": "night", "when": "missed", "notify": ["ops", "hook"]})
            (worker,) = await cluster.up()
            server = Server(cluster, 1)
            await server.up()
            await cluster.schedule("nightly", "quick", interval=15)
            await cluster.wait_for_line("end", seconds=60)
            worker.kill()
            await until(lambda: bool(mail.mails and receiver.requests), 90, "the alarm arrives")
            assert server.process.alive
            assert {row.state for row in await cluster.workers() if row.kinds != ["alarm"]} == {"dead"}
            no_worker = await asyncio.to_thread(httpx.get, f"{server.url}/health/ready")
            assert (no_worker.status_code, [*no_worker.json()["details"]]) == (503, ["no_worker"])
            assert mail.mails[0]["Subject"] == "[firing] night: nightly"
            headers, body = receiver.requests[0]
            message = Webhook(secret).verify(body, headers)
            assert message["type"] == "alarm.firing"
            assert message["data"]["events"][0]["subject"] == "nightly"
            await cluster.up()  # a new worker: the alarm resolves by itself

            async def resolved() -> bool:
                return [row.state for row in await cluster.rows(select(alarm_events.c.state))] == ["resolved"]

            await until(resolved, 90, "the alarm resolves")
            await until(lambda: len(mail.mails) == 2, 30, "the end of the alarm arrives")
