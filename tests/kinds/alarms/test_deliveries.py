"""Messages: when they are sent, that they arrive at real receivers, and what the ledger has of them."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update
from standardwebhooks import Webhook

from rota.core import webhooks
from rota.core.errors import Conflict, GiveUp, Invalid, TransientError
from rota.db.tables import alarm_events, runs, workers
from rota.engine import orgs
from rota.kinds.alarms import senders
from rota.kinds.alarms.evaluation import Evaluation, message_of_test
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.alarms.store import rows
from tests.engine.harness import NINE, at
from tests.kinds.alarms.harness import Alarms, open_alarms
from tests.kinds.alarms.receivers import mail_server, make_certificates, webhook_receiver

SECOND = timedelta(seconds=1)


async def test_a_missed_slot_arrives_by_mail_and_by_webhook(clean_url: str, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with mail_server(certificates) as mail, webhook_receiver() as receiver:
        url = f"smtps://localhost:{mail.port}?ca={certificates.ca}"
        settings = AlarmSettings(
            smtp_url=url, smtp_from="rota@example.org", webhook_private=True, public_url="https://rota.example.org"
        )
        async with open_alarms(clean_url, settings) as alarms:
            harness = alarms.harness
            await alarms.add_channel()
            secret = await alarms.add_channel("hook", type="webhook", address=receiver.url)
            assert secret is not None
            await harness.schedule("nightly")
            await alarms.add("missed", notify=["ops", "hook"])
            await harness.run_until(at("9:10"))
            receiver.statuses = [503]
            await alarms.evaluate(at("9:22"))
            assert len(await alarms.messages()) == 2
            await harness.work()
            (received,) = mail.mails
            assert received["To"] == "ops@example.org"
            assert received["Subject"] == "[firing] missed: nightly"
            assert "nightly has not fired its slot 2026-05-04 09:20:00" in received.get_payload()
            assert "https://rota.example.org/alarms" in received.get_payload()
            await harness.run_until(at("9:24"))  # the second attempt of the webhook
            assert len(receiver.requests) == 2
            (first, body), (second, same) = receiver.requests
            assert (first["webhook-id"], body) == (second["webhook-id"], same)
            signed_at = datetime.fromtimestamp(int(second["webhook-timestamp"]), UTC)
            assert Webhook(secret).sign(second["webhook-id"], signed_at, body.decode()) == second["webhook-signature"]
            message = json.loads(body)
            assert message["type"] == "alarm.firing"
            assert message["data"]["events"][0]["subject"] == "nightly"
            ledger = await harness.rows(select(runs).where(runs.c.kind == "alarm").order_by(runs.c.recorded_at))
            assert [(run.target, run.status) for run in ledger if run.target == "hook"] == [
                ("hook", "paused"),  # a transient failure, which is retried
                ("hook", "success"),
            ]
            (proof,) = [run.outcome for run in ledger if run.target == "ops"]
            assert proof["answer"].startswith("250 ")
            channel = await alarms.manager.channel("hook")
            assert (channel["last_status"], channel["last_answer"]) == ("success", "HTTP 204 No Content")
            assert secret not in json.dumps(channel, default=str)
            await harness.run_until(at("9:30"))
            await alarms.later()
            await harness.work()
            assert [each["Subject"] for each in mail.mails][1:] == ["[resolved] missed: nightly"]


async def test_one_evaluation_per_alarm_and_period_is_enough(alarms: Alarms) -> None:
    harness = alarms.harness
    await alarms.add_channel()
    await harness.schedule("nightly")
    await alarms.add("missed", notify=["ops"])
    await harness.run_until(at("9:10"))
    harness.clock.set(at("9:22"))
    others = [Evaluation(harness.engine, alarms.settings) for _ in range(4)]
    await asyncio.gather(*(evaluation.step() for evaluation in others))
    assert await alarms.open() == ["missed: nightly firing"]
    assert len(await alarms.messages()) == 1
    await alarms.later()  # also when it is evaluated again
    assert len(await alarms.messages()) == 1


async def test_events_are_grouped_repeated_silent_at_night_and_acknowledged(alarms: Alarms) -> None:
    harness = alarms.harness
    await alarms.add_channel()
    for name in ("a", "b"):
        await harness.schedule(name, "30 9 * * *")
    shared = {"notify": ["ops"], "group_seconds": 120, "repeat_seconds": 3600}
    await alarms.add("missed", quiet="10:00-12:00", timezone="UTC", **shared)
    await alarms.evaluate(at("9:32"))
    assert await alarms.messages() == []
    await alarms.evaluate(at("9:35"))
    (message,) = await alarms.messages()
    assert message["title"] == "[firing] missed: a and 1 more"
    assert message["text"].splitlines()[2:] == ["", "What to do: incidents/slots-were-missed"]
    await alarms.evaluate(at("11:00"))  # the repetition waits for the end of the quiet hours
    assert len(await alarms.messages()) == 1
    await alarms.evaluate(at("12:00"))
    assert len(await alarms.messages()) == 2
    (first, *_) = await harness.rows(select(alarm_events.c.id).order_by(alarm_events.c.id))
    system = await harness.db.tx(orgs.system_user, harness.org_id, harness.clock.now())
    event = await alarms.manager.acknowledge(first.id, system, "on it")
    assert (event["state"], event["acknowledged_by"], event["note"]) == ("acknowledged", "system", "on it")
    await alarms.evaluate(at("13:01"))
    assert (await alarms.messages())[2]["title"].count("and 1 more") == 0  # the other one alone
    await harness.start_at(at("13:02"))
    await harness.run_until(at("13:03"))
    assert await alarms.later() == []
    with pytest.raises(Conflict, match="is resolved already"):
        await alarms.manager.acknowledge(first.id, system, None)


async def test_ended_runs_channel_tests_and_the_heartbeat(clean_url: str) -> None:
    with webhook_receiver() as receiver:
        settings = AlarmSettings(webhook_private=True, heartbeat_url=receiver.url)
        async with open_alarms(clean_url, settings) as alarms:
            harness = alarms.harness
            await alarms.add_channel(test_seconds=3600)
            await alarms.add("run.failed", notify=["ops"])
            await harness.schedule("nightly")
            harness.fake_runner.errors = [ValueError("disk full")]
            await harness.run_until(at("9:20"))
            await harness.write(update(workers).values(lease_until=at("10:00")))
            await alarms.later()
            (message,) = await alarms.messages()
            assert (message["type"], message["data"]["schedule"]) == ("run.failed", "nightly")
            assert message["data"]["error"]["message"] == "disk full"
            await alarms.later()
            assert len(await alarms.messages()) == 1
            await harness.work()
            assert len(receiver.requests) == 1  # all was well
            await alarms.evaluate(at("10:30"))
            assert [each["type"] for each in await alarms.messages()] == ["alarm.test"]
            await harness.work()
            assert len(receiver.requests) == 1  # schedules are overdue: silence
            await harness.start_at(at("10:31"))


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_bad_input_is_refused_and_nothing_is_stored(alarms: Alarms) -> None:
    await alarms.add_channel()
    for fields, wrong in (
        ({"when": "sunny > 5m"}, "'sunny > 5m' is not a rule such as late > 5m; the rules are late"),
        ({"when": "late < 5m"}, "late needs > and a span"),
        ({"when": "late > soon"}, "is no limit of late"),
        ({"when": "missed > 3"}, "has a limit, but missed has none"),
        ({"when": "failed_in_a_row >= 0"}, "is no limit of failed_in_a_row"),
        ({"when": "missed", "on": "schedule:none"}, "is not a schedule"),
        ({"when": "queue_age > 1m", "on": "tag:a"}, "is not one of queue:NAME"),
        ({"when": "disk_low < 5%", "on": "tag:a"}, "cannot be set"),
        ({"when": "missed", "notify": ["nobody"]}, "'nobody' is not an alarm channel"),
        ({"when": "missed", "quiet": "07:00-07:00"}, "covers the whole day"),
        ({"when": "missed", "quiet": "00:00-23:59"}, "covers the whole day"),
        ({"when": "missed", "quiet": "late"}, "such as 22:00-07:00"),
        ({"when": "missed", "timezone": "Mars"}, "IANA time zone"),
        ({"when": "missed", "colour": "red"}, "is an unknown field"),
    ):
        with pytest.raises(Invalid, match=wrong):
            await alarms.manager.add({"name": "bad", **fields})
    for address, kind, wrong in (
        ("nobody", "email", "is not an e-mail address"),
        ("a@b\nBcc: c@d", "email", "is not an e-mail address"),
        ("ftp://example.org", "webhook", "is not a URL"),
        ("https://user:secret@example.org", "webhook", "has a password"),
        ("nonsense://x", "apprise", "is not a URL of Apprise"),
        ("x", "pigeon", "is not one of email, webhook, apprise, command"),
    ):
        with pytest.raises(Invalid, match=wrong) as refused:
            await alarms.manager.add_channel({"name": "bad", "type": kind, "address": address})
        assert "secret" not in str(refused.value)
    with pytest.raises(Invalid, match="Base64"):
        await alarms.manager.add_channel(
            {"name": "bad", "type": "webhook", "address": "https://example.org", "secret": "whsec_short"}
        )
    read = alarms.harness.db.read
    assert await read(rows.list_alarms, alarms.harness.org_id) == []
    assert [channel["name"] for channel in await read(rows.list_channels, alarms.harness.org_id)] == ["ops"]


async def test_a_mail_server_without_a_valid_certificate_gets_no_mail(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    message = message_of_test("ops", NINE)
    with mail_server(certificates, starttls=True) as mail:
        known = AlarmSettings(smtp_url=f"smtp://localhost:{mail.port}?ca={certificates.ca}")
        answer = await senders.send_email(known, "ops@example.org", message, "1")
        assert answer.startswith("250")
        unknown = AlarmSettings(smtp_url=f"smtps://localhost:{mail.port}")
        with pytest.raises(TransientError, match="SSL"):
            await senders.send_email(unknown, "ops@example.org", message, "2")
        assert len(mail.mails) == 1


async def test_a_webhook_to_a_private_address_is_refused() -> None:
    with webhook_receiver() as receiver:
        secret, message = webhooks.new_secret(), message_of_test("hook", NINE)
        with pytest.raises(GiveUp, match="is not a public address; ROTA_WEBHOOK_PRIVATE=true allows it"):
            await senders.send_webhook(AlarmSettings(), receiver.url, secret, message, "1", NINE)
        assert receiver.requests == []
        receiver.statuses = [410, 429]
        allowed = AlarmSettings(webhook_private=True)
        with pytest.raises(GiveUp, match="answered HTTP 410 Gone"):
            await senders.send_webhook(allowed, receiver.url, secret, message, "1", NINE)
        with pytest.raises(TransientError, match="answered HTTP 429"):
            await senders.send_webhook(allowed, receiver.url, secret, message, "1", NINE)


SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"


@pytest.mark.parametrize(
    ("url", "private", "wrong"),
    [
        (f"{SLACK}?template=/etc/hostname", True, "names a file or a URL"),
        ("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js/?template=http://127.0.0.1/x", True, "names a file"),
        ("tgram://123456789:abcdefg_hijklmnop/12315544/?template=file:///etc/hostname", True, "names a file"),
        ("fcm://project/device?mode=oauth2&keyfile=/etc/hostname", True, "names a file"),
        ("mailto://user:pass@example.org?pgp=yes&pgpkey=/etc/hostname", True, "names a file"),
        ("vapid://user@example.org/chrome?keyfile=/etc/hostname", True, "reads files or writes"),
        ("syslog://", True, "reads files or writes"),
        (f"nostr://{'1' * 64}?relay=127.0.0.1", False, "names its own host"),
        ("json://127.0.0.1/x", False, "names its own host"),
    ],
)
async def test_services_that_read_files_or_private_addresses_are_refused(url: str, private: bool, wrong: str) -> None:
    if senders.instantiate(url) is None:
        pytest.skip("this service needs a package that is not installed")
    with pytest.raises(Invalid, match=wrong) as refused:
        senders.service_of(url, private=private)
    assert "etc" not in str(refused.value)
    with pytest.raises(GiveUp, match=wrong):  # as stored by an earlier version, or under another setting
        await senders.send_apprise(AlarmSettings(webhook_private=private), url, message_of_test("ops", NINE))


def test_services_at_fixed_hosts_are_accepted() -> None:
    assert senders.service_of(SLACK, private=False) == "Slack"
    assert senders.service_of("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js/", private=False) == "Discord"


async def test_passwords_and_tokens_of_an_address_are_not_shown(clean_url: str) -> None:
    async with open_alarms(clean_url) as alarms:
        url = "https://hooks.example/in?token=abcdef123456"
        shown, _ = await alarms.manager.add_channel({"name": "hook", "type": "webhook", "address": url})
        assert shown["address"] == "https://hooks.example/in?token=***"
        (listed,) = await alarms.harness.db.read(rows.list_channels, alarms.harness.org_id)
        assert listed["address"] == shown["address"]
