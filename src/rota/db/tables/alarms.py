"""Alarms, where they are sent, and what they found."""

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from rota.db.column_types import Instant, Json
from rota.db.tables.base import Id, Name, metadata, partial_index

alarm_channels = Table(
    "alarm_channels",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("type", String(20), nullable=False),
    Column("address", Text, nullable=False),  # as it is shown: without secrets
    Column("secret", Text),  # key of signatures, or the whole URL of a service; never shown
    Column("test_seconds", Integer),  # how often it is tested; none: on request
    Column("test_at", Instant),  # next test
    Column("last_delivery_at", Instant),
    Column("last_status", String(10)),
    Column("last_answer", Text),
    Column("source", String(200), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)
partial_index("ix_alarm_channels_test", alarm_channels.c.test_at, where=text("test_at IS NOT NULL"))

alarms = Table(
    "alarms",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("description", Text, nullable=False),
    Column("rule", String(100), nullable=False),  # such as late > 5m
    Column("scope", Text),  # what it watches; none: all of the org
    Column("notify", Json, nullable=False),  # ids of channels
    Column("quiet", String(20)),  # local times
    Column("timezone", String(100), nullable=False),
    Column("group_seconds", Integer, nullable=False),
    Column("repeat_seconds", Integer),
    Column("enabled", Boolean, nullable=False),
    Column("source", String(200), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("org_id", "name"),
)

alarm_checks = Table(  # when an alarm is evaluated next; the row decides which process does it
    "alarm_checks",
    metadata,
    Column("alarm_id", Id, primary_key=True),  # or the name of another step that is due from time to time
    Column("place", Name, primary_key=True),  # a machine, for what is measured on each; else empty
    Column("next_at", Instant, nullable=False),
    Column("read_until", Instant, nullable=False),  # runs that were recorded before are read
)
Index("ix_alarm_checks_next", alarm_checks.c.next_at)

alarm_events = Table(
    "alarm_events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org_id", Id, ForeignKey("orgs.id"), nullable=False),
    Column("alarm_id", Id, ForeignKey("alarms.id"), nullable=False),
    Column("subject", Text, nullable=False),  # key, such as schedule:ID
    Column("name", Text, nullable=False),  # of the subject
    Column("state", String(20), nullable=False),
    Column("text", Text, nullable=False),
    Column("place", Name, nullable=False),
    Column("measured_at", Instant),
    Column("fired_at", Instant, nullable=False),
    Column("notify_at", Instant),  # next message about it
    Column("notified_at", Instant),
    Column("notified", Integer, nullable=False),  # messages about it
    Column("acknowledged_at", Instant),
    Column("acknowledged_by", Name),
    Column("note", Text),
    Column("resolved_at", Instant),
    Column("job_ids", Json, nullable=False),  # of its newest deliveries
)
partial_index(  # one per rule and subject
    "ix_alarm_events_open",
    alarm_events.c.alarm_id,
    alarm_events.c.subject,
    where=text("state <> 'resolved'"),
    unique=True,
)
Index("ix_alarm_events_subject", alarm_events.c.alarm_id, alarm_events.c.subject, alarm_events.c.id)
Index("ix_alarm_events_org", alarm_events.c.org_id, alarm_events.c.id)
partial_index(
    "ix_alarm_events_notify", alarm_events.c.alarm_id, alarm_events.c.notify_at, where=text("notify_at IS NOT NULL")
)
