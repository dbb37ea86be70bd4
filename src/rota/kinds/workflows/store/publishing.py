"""Publish events from outside with a single statement, which also queues the job of the consumers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Boolean, column

from rota.core.ids import new_id
from rota.core.states import HEADS
from rota.db.dialect import CHANNEL
from rota.db.statement import BoundStatement, Statement
from rota.db.tables import events, workflows
from rota.db.tables.base import where_state
from rota.kinds.workflows.rules import WORKFLOW
from rota.kinds.workflows.store.consumer_jobs import CONSUMER_PRIORITY
from rota.kinds.workflows.store.records import NewEvent
from rota.kinds.workflows.store.statements import BY_KEY, EVENT_INSERTED, EVENT_REPLACED, awaited

API_SOURCE = "api"  # of events from outside

JOB_INSERTED = """
    id, org_id, kind, target, route, queue, serial_key, solo_key, priority, queued_at, run_at, state, trigger, attempt,
    tries, crashes, rescues, fence"""


def consumer_job(workflow: str, route: str, state: str) -> str:
    """Return the columns of the job of a workflow's consumers, as `ensure_consumer_job` inserts it."""
    return f"""
    :job_id, {workflow}.org_id, '{WORKFLOW}', {workflow}.name, {route}, 'default',
    '{WORKFLOW}:' || {workflow}.org_id || ':' || {workflow}.name, {workflow}.id, {CONSUMER_PRIORITY}, :now, :now,
    {state}, 'event', 0, 0, 0, 0, 0"""


NEW_HEAD, BEHIND_HEAD = (
    consumer_job("needed", "CAST(needed.declaration AS json) ->> 'route'", state) for state in ("'ready'", "'blocked'")
)
IS_HEAD = f"serial_key IS NOT NULL AND {where_state(*HEADS)}"

# in texts for SQLite: the workflow, if it has these topics, and its consumers have no job that waits for a time
PUBLISHES_ON_SQLITE = f"""
    workflows.id = (SELECT workflows.id FROM workflows WHERE {BY_KEY} ORDER BY workflows.id <> :key LIMIT 1)
    AND NOT EXISTS (SELECT 1 FROM json_each(:topics) AS used
                    WHERE used.value NOT IN (SELECT value FROM json_each(workflows.declaration, '$.topics')))
    AND NOT EXISTS (SELECT 1 FROM jobs AS delayed WHERE delayed.solo_key = workflows.id AND delayed.state = 'later')
    AND NOT EXISTS (SELECT 1 FROM batch AS sent WHERE {awaited(":org_id", "sent", "char(10)")})"""
SUBSCRIBES_ON_SQLITE = """
    EXISTS (SELECT 1 FROM json_each(handlers.subscribe) AS subscribed
            CROSS JOIN batch ON batch.topic = subscribed.value
            CROSS JOIN events ON events.workflow_id = handlers.workflow_id AND events.topic = batch.topic
                                 AND events.message_id = batch.message_id AND events.status = 'pending')"""

PUBLISH_INPUTS = Statement(
    """Publish events from outside and queue the job of the consumers, if one needs to run and none waits; returns a
    row for each event, with its id if it was written (NULL: the earlier event is not pending), and whether a job was
    queued. Returns no row and writes nothing if the workflow or a topic does not exist, if the job has to be moved, or
    if a durable run waits for one of these events.

    On PostgreSQL this waits for the lock of the workflow and then sees other tables as they were before. So it
    decides by the rows of the workflow and its handlers, which it has locked, and does nothing if a deployment changed
    the workflow. A consumer that is dirty has a job already, or one that runs and checks again when it commits: each
    change of the flag is made under this lock, together with its job. Whether the serial key has a head is decided by
    the unique index, which is never out of date: if the job cannot be inserted as the head, the head stays locked
    until the job behind it is committed. A claim that skipped a locked job is repeated: this statement notifies.""",
    f"""
    WITH locked AS (
        SELECT workflows.*, workflows.xmin AS row_version FROM workflows
        WHERE {BY_KEY} ORDER BY workflows.id <> :key LIMIT 1 FOR UPDATE
    ), workflow AS (
        SELECT locked.id, locked.org_id, locked.name, locked.declaration
        FROM locked JOIN workflows AS seen ON seen.id = locked.id AND seen.xmin = locked.row_version
        WHERE NOT EXISTS (
            SELECT 1 FROM unnest(CAST(:topics AS text[])) AS used WHERE used NOT IN (
                SELECT json_array_elements_text(CAST(locked.declaration AS json) -> 'topics')))
    ), own_handlers AS (
        SELECT handlers.* FROM workflow, handlers WHERE handlers.workflow_id = workflow.id FOR UPDATE OF handlers
    ), consumers AS (
        SELECT own_handlers.*, EXISTS (
            SELECT 1 FROM json_array_elements_text(CAST(own_handlers.subscribe AS json)) AS subscribed
            WHERE subscribed = ANY (CAST(:topics AS text[]))) AS subscribes
        FROM own_handlers WHERE own_handlers.type = 'consumer' AND own_handlers.held_run_id IS NULL
    ), waiting AS (
        SELECT jobs.state FROM workflow, jobs WHERE jobs.solo_key = workflow.id
    ), chosen AS (
        SELECT workflow.* FROM workflow
        WHERE NOT EXISTS (SELECT 1 FROM waiting WHERE waiting.state = 'later')
              AND (NOT EXISTS (SELECT 1 FROM consumers WHERE subscribes AND NOT dirty)
                   OR NOT (EXISTS (SELECT 1 FROM waiting)
                           OR EXISTS (SELECT 1 FROM consumers WHERE wake_at IS NOT NULL)))
              AND NOT EXISTS (SELECT 1 FROM batch WHERE {awaited("workflow.org_id", "batch", "chr(10)")})
    ), written AS (
        INSERT INTO events ({EVENT_INSERTED})
        SELECT batch.id, chosen.id, batch.topic, batch.message_id, batch.payload, batch.title, 'pending',
               '{API_SOURCE}', NULL, 1, :now, :now
        FROM chosen, batch
        {EVENT_REPLACED}
        RETURNING events.id, events.topic, events.message_id
    ), marked AS (
        UPDATE handlers SET dirty = true
        FROM chosen, own_handlers AS own
        WHERE handlers.workflow_id = chosen.id AND handlers.name = own.name AND NOT own.dirty
              AND EXISTS (SELECT 1 FROM json_array_elements_text(CAST(own.subscribe AS json)) AS subscribed
                          WHERE subscribed IN (SELECT topic FROM written))
    ), needed AS MATERIALIZED (
        SELECT chosen.*, pg_advisory_xact_lock(
                   hashtextextended('{WORKFLOW}:' || chosen.org_id || ':' || chosen.name, 0)) AS key_lock
        FROM chosen
        WHERE NOT EXISTS (SELECT 1 FROM waiting)
              AND EXISTS (SELECT 1 FROM consumers WHERE consumers.dirty OR EXISTS (
                  SELECT 1 FROM json_array_elements_text(CAST(consumers.subscribe AS json)) AS subscribed
                  WHERE subscribed IN (SELECT topic FROM written)))
    ), head AS (
        INSERT INTO jobs ({JOB_INSERTED}) SELECT {NEW_HEAD} FROM needed
        ON CONFLICT (serial_key) WHERE {IS_HEAD} DO UPDATE SET fence = jobs.fence WHERE false
        RETURNING jobs.id
    ), behind_head AS (
        INSERT INTO jobs ({JOB_INSERTED})
        SELECT {BEHIND_HEAD} FROM needed WHERE NOT EXISTS (SELECT 1 FROM head)
        ON CONFLICT (solo_key) WHERE solo_key IS NOT NULL DO NOTHING
    )
    SELECT chosen.id, batch.topic, batch.message_id, written.id,
           (SELECT count(pg_notify('{CHANNEL}', 'ready')) FROM needed) > 0
    FROM chosen, batch
    LEFT JOIN written ON written.topic = batch.topic AND written.message_id = batch.message_id
    """.replace(":now", "CAST(:now AS timestamptz)").replace(":job_id", "CAST(:job_id AS text)"),
    (
        f"""
    INSERT INTO events ({EVENT_INSERTED})
    SELECT batch.id, workflows.id, batch.topic, batch.message_id, batch.payload, batch.title, 'pending',
           '{API_SOURCE}', NULL, 1, :now, :now
    FROM batch CROSS JOIN workflows WHERE batch.id IS NOT NULL AND {PUBLISHES_ON_SQLITE}
    {EVENT_REPLACED}
        """,
        f"""
    INSERT INTO jobs ({JOB_INSERTED})
    SELECT {
            consumer_job(
                "workflows",
                "json_extract(workflows.declaration, '$.route')",
                f'''CASE WHEN EXISTS (
                    SELECT 1 FROM jobs AS head
                    WHERE head.serial_key = '{WORKFLOW}:' || workflows.org_id || ':' || workflows.name
                          AND {IS_HEAD}) THEN 'blocked' ELSE 'ready' END''',
            )
        }
    FROM workflows
    WHERE {PUBLISHES_ON_SQLITE} AND NOT EXISTS (SELECT 1 FROM jobs AS waiting WHERE waiting.solo_key = workflows.id)
          AND EXISTS (SELECT 1 FROM handlers WHERE handlers.workflow_id = workflows.id AND handlers.type = 'consumer'
                      AND handlers.held_run_id IS NULL AND (handlers.dirty OR {SUBSCRIBES_ON_SQLITE}))
        """,
        f"""
    UPDATE handlers SET dirty = true
    WHERE handlers.workflow_id = (SELECT workflows.id FROM workflows WHERE {PUBLISHES_ON_SQLITE})
          AND NOT handlers.dirty AND {SUBSCRIBES_ON_SQLITE}
        """,
        f"""
    SELECT json_group_array(json_array(
        workflows.id, batch.topic, batch.message_id,
        (SELECT events.id FROM events WHERE events.workflow_id = workflows.id AND events.topic = batch.topic
                AND events.message_id = batch.message_id AND events.status || '' = 'pending'),
        EXISTS (SELECT 1 FROM jobs WHERE jobs.id = :job_id))) AS json_rows
    FROM batch CROSS JOIN workflows WHERE batch.topic IS NOT NULL AND {PUBLISHES_ON_SQLITE}
        """,
    ),
    batch={name: events.c[name] for name in ("id", "topic", "message_id", "payload", "title")},
    returns={
        "workflow_id": workflows.c.id,
        "topic": events.c.topic,
        "message_id": events.c.message_id,
        "event_id": events.c.id,
        "queued": column("queued", Boolean),
    },
)


class Published(NamedTuple):
    """An event that was published. `event_id` is None if an earlier event with its message id is not pending."""

    workflow_id: str
    topic: str
    message_id: str
    event_id: str | None
    is_new: bool
    queued: bool  # the statement queued the job of the consumers


def publish_inputs(
    org_id: str, key: str, new_events: Sequence[NewEvent], now: datetime
) -> BoundStatement[list[Published]]:
    """Return the statement that publishes events from outside, at least one; of several with one topic and message id,
    the last counts. It returns an empty list, and has done nothing, if `operators.publish` has to decide."""
    latest = {(event.topic, event.message_id): event for event in new_events}
    new_ids = {key: new_id() for key in latest}
    rows = [(new_ids[key], *key, event.payload, event.title) for key, event in latest.items()]

    def read(columns: Mapping[str, Sequence[Any]]) -> list[Published]:
        return [
            Published(workflow_id, topic, message_id, event_id, event_id == new_ids[topic, message_id], queued)
            for workflow_id, topic, message_id, event_id, queued in zip(*columns.values(), strict=True)
        ]

    return PUBLISH_INPUTS.bound(
        read,
        list(zip(*rows, strict=True)),
        org_id=org_id,
        key=key,
        topics=sorted({event.topic for event in new_events}),
        job_id=new_id(),
        now=now,
    )
