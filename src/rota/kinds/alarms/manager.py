"""Commands for alarms and their channels; what a program declares."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rota.core import webhooks
from rota.core.alarms import INSTALLATION_RULES, parse_scope, parse_when
from rota.core.errors import Conflict, Invalid, NotFound
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import orgs, schedules
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.kinds.alarms import senders
from rota.kinds.alarms.evaluation import message_of_test
from rota.kinds.alarms.models import AlarmBody, AlarmChanges, ChannelBody, ChannelChanges
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.alarms.store import changes, rows

DEFAULTS: Mapping[str, Any] = {
    "scope": None, "notify": [], "quiet": None, "timezone": "UTC", "group_seconds": 0, "repeat_seconds": None,
    "enabled": True, "description": "",
}  # fmt: skip
CLEARABLE = ("on", "quiet", "repeat_seconds", "test_seconds")
DEFAULT_SETTINGS = AlarmSettings()
COLUMN_NAMES = {"when": "rule", "on": "scope"}


@dataclass(frozen=True, slots=True)
class DeclaredChannel:
    """A channel of a program; see `email` and `webhook`."""

    name: str
    type: str
    address: str
    secret: str | None = field(default=None, repr=False)


def email(address: str) -> DeclaredChannel:
    """Return the channel to an e-mail address, for `app.alarm(notify=[…])`. Raises Invalid."""
    return DeclaredChannel(senders.check_address(address), "email", address)


def webhook(url: str, *, secret: str | None = None, name: str | None = None) -> DeclaredChannel:
    """Return the channel to a URL. `secret` is the key of its signatures: `whsec_…`. Raises Invalid."""
    senders.check_url(url, "url")
    default = f"{urlsplit(url).hostname} {hashlib.sha256(url.encode()).hexdigest()[:8]}"
    return DeclaredChannel(name or default, "webhook", url, None if secret is None else webhooks.check_secret(secret))


def tag(name: str) -> str:
    """Return the scope of an alarm: the schedules with a tag."""
    return f"tag:{name}"


@dataclass(frozen=True, slots=True)
class AlarmManager:
    """Commands on the alarms of one org."""

    engine: Engine
    org_id: str
    settings: AlarmSettings = DEFAULT_SETTINGS
    source: str = "api"

    # channels

    async def add_channel(self, body: ChannelBody | Mapping[str, object]) -> tuple[Record, str | None]:
        """Store a channel; returns it and the key of its signatures. Raises Invalid, Conflict, or Refused for a command
        that the org may not run."""
        form = ChannelBody.read(body)
        columns = self.address_columns(form.type, form.address, form.secret)
        if form.type == "webhook" and columns["secret"] is None:
            columns["secret"] = webhooks.new_secret()
        fields = {
            "name": form.name,
            "type": form.type,
            **columns,
            "test_seconds": form.test_seconds,
            "source": self.source,
        }
        now = self.engine.clock.now()

        def step(tx: Tx) -> str:
            if form.type == "command":
                orgs.check_shell(tx, self.org_id)
            return rows.insert_channel(tx, self.org_id, fields, now)

        channel_id = await self.engine.db.tx(step)
        shown = columns["secret"] if form.type == "webhook" else None
        return await self.channel(channel_id), shown

    async def edit_channel(self, key: str, body: ChannelChanges | Mapping[str, object]) -> Record:
        """Change a channel: absent fields stay. Raises Invalid."""
        form, now = ChannelChanges.read(body), self.engine.clock.now()
        old = await self.engine.db.read(rows.channel, self.org_id, key)
        fields: dict[str, Any] = {}
        if form.address is not None or form.secret is not None:
            address = form.address or (old.secret if old.type == "apprise" else old.address)
            fields = self.address_columns(old.type, address, form.secret)
            if old.type == "webhook" and fields["secret"] is None:
                del fields["secret"]
        if "test_seconds" in form.sent():
            fields["test_seconds"] = form.test_seconds

        def step(tx: Tx) -> str:
            if old.type == "command" and "address" in fields:
                orgs.check_shell(tx, self.org_id)
            return rows.change_channel(tx, self.org_id, old.id, fields, now)

        return await self.channel(await self.engine.db.tx(step))

    def address_columns(self, kind: str, address: str, secret: str | None) -> dict[str, Any]:
        """Return what is stored of an address: what is shown, and what is secret. Raises Invalid."""
        if secret is not None and kind != "webhook":
            raise Invalid("secret", "…", f"is the key of a webhook's signatures; a channel of type {kind} has none")
        match kind:
            case "email":
                return {"address": senders.check_address(address), "secret": None}
            case "webhook":
                return {
                    "address": senders.check_url(address),
                    "secret": None if secret is None else webhooks.check_secret(secret),
                }
            case "apprise":
                name = senders.service_of(address, private=self.settings.webhook_private, field="address")
                return {"address": name, "secret": address}
            case _:
                return {"address": address, "secret": None}

    async def channel(self, key: str) -> Record:
        return await self.engine.db.read(rows.describe_channel, self.org_id, key)

    async def test_channels(self, keys: Sequence[str]) -> list[str]:
        """Enqueue a test message to each channel; returns the ids of the jobs. Raises NotFound."""
        now = self.engine.clock.now()

        def step(tx: Tx) -> list[str]:
            job_ids = []
            for key in keys:
                channel = rows.channel(tx, self.org_id, key)
                message = message_of_test(channel.name, now)
                job_ids += changes.deliver(tx, self.org_id, [channel], message, "test", now)
            return job_ids

        return await self.engine.write_and_wake(step)

    # alarms

    async def add(self, body: AlarmBody | Mapping[str, object]) -> Record:
        """Store an alarm. Raises Invalid or Conflict."""
        form, now = AlarmBody.read(body), self.engine.clock.now()
        fields = {**DEFAULTS, **columns_of(form), "name": form.name, "source": self.source}

        def step(tx: Tx) -> str:
            return rows.insert_alarm(tx, self.org_id, self.checked(tx, fields), now)

        return await self.find(await self.engine.db.tx(step))

    async def edit(self, key: str, body: AlarmChanges | Mapping[str, object]) -> Record:
        """Change an alarm: absent fields stay. Raises Invalid, or Conflict if a program declares it."""
        fields, now = columns_of(AlarmChanges.read(body)), self.engine.clock.now()

        def step(tx: Tx) -> str:
            old = rows.alarm(tx, self.org_id, key, lock=True)
            self.check_source(old)
            merged = {"rule": old.rule, "scope": old.scope, **fields}
            checked = self.checked(tx, merged)
            return rows.change_alarm(tx, self.org_id, old.id, checked, now)

        return await self.find(await self.engine.db.tx(step))

    async def delete(self, key: str) -> None:
        def step(tx: Tx) -> None:
            self.check_source(rows.alarm(tx, self.org_id, key))
            rows.remove_alarm(tx, self.org_id, key)

        await self.engine.db.tx(step)

    async def find(self, key: str) -> Record:
        return await self.engine.db.read(rows.describe_alarm, self.org_id, key)

    def check_source(self, row: Any) -> None:
        if row.source != self.source:
            raise Conflict(
                f"alarm {row.name!r} is declared by program {row.source.partition(':')[2]!r}; change it there"
            )

    def checked(self, tx: Tx, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of an alarm, with the ids of its channels. Raises Invalid for a scope that does not fit
        the rule, an unknown schedule or channel, or a rule of the installation in another org."""
        rule = parse_when(fields["rule"])
        scope = parse_scope(fields["scope"], rule)
        if scope is not None and scope[0] == "schedule":
            try:
                schedules.get(tx, self.org_id, scope[1])
            except NotFound:
                raise Invalid("on", fields["scope"], "is not a schedule; see `rota schedule list`") from None
        if rule.name in INSTALLATION_RULES and orgs.slug_of(tx, self.org_id) != "default":
            raise Invalid("when", fields["rule"], "is a rule about the installation, for org `default` alone")
        if "notify" not in fields:
            return dict(fields)
        ids = rows.channel_ids(tx, self.org_id, fields["notify"])
        for name in fields["notify"]:
            if name not in ids:
                raise Invalid("notify", name, "is not an alarm channel; see `rota alarm channel list`")
        return {**fields, "notify": [ids[name] for name in fields["notify"]]}

    async def acknowledge(self, event_id: str, user_id: str, note: str | None) -> Record:
        """Acknowledge a firing event in the name of a user. Raises NotFound or Conflict."""
        await self.engine.db.tx(rows.acknowledge, self.org_id, event_id, user_id, note, self.engine.clock.now())
        return await self.engine.db.read(rows.event, self.org_id, event_id)


def columns_of(form: AlarmChanges) -> dict[str, Any]:
    """Return the columns that a body sets; null clears a field that may be empty."""
    sent = {name: value for name, value in form.sent().items() if value is not None or name in CLEARABLE}
    return {COLUMN_NAMES.get(name, name): value for name, value in sent.items() if name != "name"}


# what a program declares


async def declare_alarms(
    engine: Engine, org: str, app: str | None, wanted: Sequence[tuple[Mapping[str, Any], Sequence[DeclaredChannel]]]
) -> None:
    """Create, change and delete alarms so that they are as the program declares them. Any number of processes may do
    this at once."""
    if app is None:
        return
    org_id = await engine.db.read(orgs.org_by_slug, org)
    assert org_id is not None  # `declare` has stored the program's tasks in it
    source = f"code:{app}"
    known = await engine.db.read(rows.declared, org_id, source)
    if not wanted and not known:
        return
    system = await engine.db.tx(orgs.system_user, org_id, engine.clock.now())

    def manager(resource: str, verb: str, target: str | None) -> AlarmManager:
        act = AuditEntry(org_id, system, resource, verb, target, admin=True)
        return AlarmManager(engine.audited_as(act), org_id, source=source)

    for body, channels in wanted:
        for channel in channels:
            await declare_channel(manager("alarm-channels", "create", None), channel)
        name = str(body["name"])
        if name not in known:
            try:
                await manager("alarms", "create", None).add(body)
            except Conflict:
                taken = await engine.db.read(rows.alarm, org_id, name)
                if taken.source != source:
                    raise
        else:
            fresh = {**WIRE_DEFAULTS, **AlarmBody.read(body).present()}
            if any(known[name][field] != value for field, value in fresh.items()):
                await manager("alarms", "edit", name).edit(name, {key: fresh[key] for key in fresh if key != "name"})
    for name in sorted(set(known) - {str(body["name"]) for body, _ in wanted}):
        await manager("alarms", "delete", name).delete(name)


WIRE_DEFAULTS = {**{name: value for name, value in DEFAULTS.items() if name not in ("scope", "enabled")}, "on": None}


async def declare_channel(manager: AlarmManager, channel: DeclaredChannel) -> None:
    """Store a channel of a program, or bring it in line."""
    body = {"name": channel.name, "type": channel.type, "address": channel.address}
    body |= {} if channel.secret is None else {"secret": channel.secret}
    try:
        old = await manager.engine.db.read(rows.channel, manager.org_id, channel.name)
    except NotFound:
        try:
            await manager.add_channel(body)
        except Conflict:  # another process was faster
            return
        return
    same_secret = channel.secret is None or channel.secret == old.secret
    if old.type != channel.type:
        raise Conflict(f"alarm channel {channel.name!r} exists with type {old.type}; choose another name")
    if old.address != channel.address or not same_secret:
        await manager.edit_channel(channel.name, {name: body[name] for name in ("address", "secret") if name in body})
