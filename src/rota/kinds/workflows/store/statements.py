"""The hot statements of workflows."""

from sqlalchemy import Boolean, Integer, Text, column

from rota.db.statement import Columns, Statement
from rota.db.tables import events, handlers, jobs, workflow_runs, workflows
from rota.engine.statements import OWNED

RUN_COLUMNS: Columns = dict(workflow_runs.c.items())
KEPT_COLUMNS = ("prepare_result", "mutation_outcome", "mutation_result")  # of a run; NULL until they are known
MOVED_COLUMNS = "phase = batch.phase, updated_at = batch.updated_at, " + ", ".join(
    f"{name} = coalesce(batch.{name}, workflow_runs.{name})" for name in KEPT_COLUMNS
)
WORKFLOW_WITH_HANDLER: Columns = {
    **dict(workflows.c.items()),
    **{f"handler_{name}": column for name, column in handlers.c.items()},
}
LISTED = ", ".join(str(column) for column in WORKFLOW_WITH_HANDLER.values())
BY_KEY = """
    workflows.org_id = :org_id AND (workflows.id = :key OR workflows.name = :key) AND workflows.deleted_at IS NULL"""

EVENT_INSERTED = """
    id, workflow_id, topic, message_id, payload, title, status, source, created_by, attempt, created_at, updated_at"""
EVENT_REPLACED = """
    ON CONFLICT (workflow_id, topic, message_id) DO UPDATE
        SET payload = excluded.payload, title = coalesce(nullif(excluded.title, ''), events.title),
            updated_at = excluded.updated_at
        WHERE events.status = 'pending'"""


def awaited(org_id: str, event: str, line_break: str) -> str:
    """Return the condition that a step waits for the signal of an event: by its topic, without a key or with its
    message id as key. See `signals.subject_of`."""
    subject = f"'signal:' || {org_id} || ':' || {event}.topic || {line_break}"
    return f"""EXISTS (
        SELECT 1 FROM steps WHERE steps.status = 'waiting' AND steps.waits_for IS NOT NULL
                                  AND steps.waits_for IN ({subject}, {subject} || {event}.message_id))"""


WORKFLOW = Statement(
    """Return a workflow by its id or, if none has that, by its name: a row for each of its handlers, or one.""",
    f"""
    SELECT {LISTED} FROM workflows LEFT JOIN handlers ON handlers.workflow_id = workflows.id
    WHERE {BY_KEY}
    ORDER BY workflows.id <> :key, workflows.id, handlers.name
    """,
    returns=WORKFLOW_WITH_HANDLER,
)

LOCK_WORKFLOW = Statement(
    """The same, and lock the workflow, then its handlers and, with `of_kind`, its serial key. The rows are the latest,
    also if this waited for them, but it then misses handlers that a deployment added: `is_current` is false if the
    row of the workflow changed.""",
    f"""
    WITH locked AS (
        SELECT workflows.*, workflows.xmin AS row_version FROM workflows
        WHERE {BY_KEY} ORDER BY workflows.id <> :key LIMIT 1 FOR UPDATE
    )
    SELECT {LISTED},
           (SELECT seen.xmin = workflows.row_version FROM workflows AS seen WHERE seen.id = workflows.id) AS is_current,
           CASE WHEN :of_kind <> '' THEN
               pg_advisory_xact_lock(hashtextextended(:of_kind || ':' || workflows.org_id || ':' || workflows.name, 0))
           END
    FROM locked AS workflows LEFT JOIN LATERAL (
        SELECT handlers.* FROM handlers WHERE handlers.workflow_id = workflows.id ORDER BY handlers.name FOR UPDATE
    ) AS handlers ON true
    """,
    f"""
    SELECT {LISTED}, 1, :of_kind FROM workflows LEFT JOIN handlers ON handlers.workflow_id = workflows.id
    WHERE {BY_KEY}
    ORDER BY workflows.id <> :key, workflows.id, handlers.name
    """,
    returns={**WORKFLOW_WITH_HANDLER, "is_current": column("is_current", Boolean), "key_locked": column("key", Text)},
)

HANDLERS = Statement(
    "Return the handlers of a workflow, by name.",
    "SELECT {returns} FROM handlers WHERE handlers.workflow_id = :workflow_id ORDER BY handlers.name",
    returns=dict(handlers.c.items()),
)

CONSUMER_JOB = Statement(
    """Return the waiting job of a workflow's consumers, or NULLs, and whether the serial key of the workflow has a
    head.""",
    """
    SELECT jobs.id, jobs.state, jobs.run_at,
           EXISTS (SELECT 1 FROM jobs AS head WHERE head.serial_key = :serial_key
                   AND head.state IN ('ready', 'running', 'retry', 'waiting', 'parked')) AS has_head
    FROM (SELECT 1) AS always LEFT JOIN jobs ON jobs.solo_key = :workflow_id
    """,
    returns={
        **{name: jobs.c[name] for name in ("id", "state", "run_at")},
        "has_head": column("has_head", Boolean),
    },
)

PUBLISH = Statement(
    """Insert events, or replace payload and title of pending events with the same message id, and mark the handlers
    that subscribe to their topics dirty; returns the events written, and whether a durable run waits for each.
    The caller holds the workflow.""",
    f"""
    WITH written AS (
        INSERT INTO events ({EVENT_INSERTED})
        SELECT batch.id, :workflow_id, batch.topic, batch.message_id, batch.payload, batch.title, 'pending', :source,
               :run_id, 1, CAST(:now AS timestamptz), CAST(:now AS timestamptz)
        FROM batch
        {EVENT_REPLACED}
        RETURNING events.id, events.topic, events.message_id
    ), marked AS (
        UPDATE handlers SET dirty = true
        WHERE handlers.workflow_id = :workflow_id AND NOT handlers.dirty
              AND EXISTS (SELECT 1 FROM json_array_elements_text(handlers.subscribe::json) AS subscribed
                          WHERE subscribed IN (SELECT topic FROM written))
    )
    SELECT id, topic, message_id, {awaited("CAST(:org_id AS text)", "written", "chr(10)")} FROM written
    """,
    (
        f"""
    INSERT INTO events ({EVENT_INSERTED})
    SELECT batch.id, :workflow_id, batch.topic, batch.message_id, batch.payload, batch.title, 'pending', :source,
           :run_id, 1, :now, :now
    FROM batch WHERE batch.id IS NOT NULL
    {EVENT_REPLACED}
        """,
        """
    UPDATE handlers SET dirty = true
    WHERE handlers.workflow_id = :workflow_id AND NOT handlers.dirty
          AND EXISTS (SELECT 1 FROM json_each(handlers.subscribe) AS subscribed
                      CROSS JOIN batch ON batch.topic = subscribed.value
                      CROSS JOIN events ON events.workflow_id = :workflow_id AND events.topic = batch.topic
                                           AND events.message_id = batch.message_id AND events.status = 'pending')
        """,
        f"""
    SELECT json_group_array(json_array(events.id, events.topic, events.message_id,
                                       {awaited(":org_id", "events", "char(10)")})) AS json_rows
    FROM batch CROSS JOIN events ON events.workflow_id = :workflow_id AND events.topic = batch.topic
                                    AND events.message_id = batch.message_id
    WHERE events.status || '' = 'pending'
        """,
    ),
    batch={name: events.c[name] for name in ("id", "topic", "message_id", "payload", "title")},
    returns={
        **{name: events.c[name] for name in ("id", "topic", "message_id")},
        "awaited": column("awaited", Boolean),
    },
)

# In texts for PostgreSQL: the pending events of a topic, oldest first. A topic that is a range and not a constant is
# part of the order, which only `ix_events_pending` has. With `topic = {topic} ORDER BY id` and statistics of a time
# when most events were pending, PostgreSQL reads all events by their id, consumed ones too.
PENDING_OF_TOPIC = """
    events.workflow_id = {workflow_id} AND events.status = 'pending'
    AND events.topic >= {topic} AND events.topic <= {topic}"""
OLDEST_FIRST = "ORDER BY events.topic, events.id"

PENDING_EVENTS = Statement(
    "Return pending events of topics, each topic up to a number, oldest first.",
    f"""
    SELECT {{returns}} FROM batch CROSS JOIN LATERAL (
        SELECT events.* FROM events
        WHERE {PENDING_OF_TOPIC.format(workflow_id=":workflow_id", topic="batch.of_topic")}
        {OLDEST_FIRST}
        LIMIT batch.most) AS events
    """,
    """
    SELECT {returns} FROM events
    WHERE events.workflow_id = :workflow_id AND events.topic = :of_topic AND events.status = 'pending'
    ORDER BY events.id
    LIMIT :most
    """,
    batch={"of_topic": events.c.topic, "most": column("most", Integer)},
    returns=dict(events.c.items()),
)

TAKE_EVENTS = Statement(
    """Reserve pending events of topics for a run, or consume them; returns those that were pending. The concatenations
    keep other indexes out of the plan: without statistics PostgreSQL would read all pending events instead of looking
    up each event by its id.""",
    """
    UPDATE events SET status = :status, reserved_by = :run_id, updated_at = :now
    FROM batch
    WHERE events.id = batch.event_id AND events.topic || '' = batch.of_topic
          AND events.workflow_id || '' = :workflow_id AND events.status || '' = 'pending'
    RETURNING events.id, events.source
    """,
    batch={"of_topic": events.c.topic, "event_id": events.c.id},
    returns={"id": events.c.id, "source": events.c.source},
)

MOVE_PHASE = Statement(
    """Move a run to a later phase, if this worker still owns its job, and set those columns that are not NULL; returns
    its id if it moved.""",
    f"""
    WITH owned AS (SELECT jobs.id FROM jobs JOIN batch ON {OWNED} FOR UPDATE OF jobs)
    UPDATE workflow_runs SET {MOVED_COLUMNS}
    FROM batch, owned WHERE workflow_runs.id = batch.run_id AND workflow_runs.phase IN ({{list:earlier}})
    RETURNING workflow_runs.id
    """,
    f"""
    UPDATE workflow_runs SET {MOVED_COLUMNS}
    FROM batch JOIN jobs ON {OWNED}
    WHERE workflow_runs.id = batch.run_id AND workflow_runs.phase IN ({{list:earlier}})
    RETURNING id
    """,
    batch={
        "job_id": jobs.c.id,
        "of_fence": jobs.c.fence,
        "run_id": workflow_runs.c.id,
        **{name: workflow_runs.c[name] for name in ("phase", "updated_at", *KEPT_COLUMNS)},
    },
    returns={"id": workflow_runs.c.id},
)

BEGIN_RUN = Statement(
    """Record that an attempt began, if this worker still owns its job, and insert its run unless it exists; a run that
    `prepares` clears the flags of its handler. Returns whether the run is new.""",
    f"""
    WITH owned AS (
        UPDATE jobs SET run_id = batch.id, attempt = batch.attempt, started_at = batch.created_at
        FROM batch WHERE {OWNED} RETURNING jobs.id
    ), added AS (
        INSERT INTO workflow_runs ({", ".join(RUN_COLUMNS)})
        SELECT {", ".join(f"batch.{name}" for name in RUN_COLUMNS)} FROM batch, owned
        ON CONFLICT DO NOTHING RETURNING id, workflow_id, handler_id
    ), cleared AS (
        UPDATE handlers SET dirty = false, wake_at = NULL
        FROM added WHERE :prepares AND handlers.workflow_id = added.workflow_id AND handlers.name = added.handler_id
    )
    SELECT added.id IS NOT NULL AS is_new FROM owned LEFT JOIN added ON true
    """,
    (
        f"""
    SELECT NOT EXISTS (SELECT 1 FROM workflow_runs WHERE workflow_runs.id = batch.id) AS is_new
    FROM batch JOIN jobs ON {OWNED}
        """,
        f"""
    UPDATE handlers SET dirty = false, wake_at = NULL
    FROM batch JOIN jobs ON {OWNED}
    WHERE :prepares AND handlers.workflow_id = batch.workflow_id AND handlers.name = batch.handler_id
          AND NOT EXISTS (SELECT 1 FROM workflow_runs WHERE workflow_runs.id = batch.id)
        """,
        f"""
    UPDATE jobs SET run_id = batch.id, attempt = batch.attempt, started_at = batch.created_at FROM batch WHERE {OWNED}
        """,
        f"""
    INSERT INTO workflow_runs ({", ".join(RUN_COLUMNS)})
    SELECT {", ".join(f"batch.{name}" for name in RUN_COLUMNS)} FROM batch JOIN jobs ON {OWNED}
    WHERE true ON CONFLICT DO NOTHING
        """,
    ),
    batch={
        "job_id": jobs.c.id,
        "of_fence": jobs.c.fence,
        "attempt": jobs.c.attempt,
        **RUN_COLUMNS,
    },
    returns={"is_new": column("is_new", Boolean)},
)

END_OF_HANDLER = Statement(
    """Set state and wake-up time of a handler whose run commits. It is dirty if it was, or if `takes` events and others
    are pending in its topics. Returns whether it is.""",
    f"""
    UPDATE handlers SET state = batch.state, wake_at = batch.wake_at,
        dirty = handlers.dirty OR (:takes AND EXISTS (
            SELECT 1 FROM unnest(CAST(:topics AS text[])) AS of_topic CROSS JOIN LATERAL (
                SELECT 1 FROM events
                WHERE {PENDING_OF_TOPIC.format(workflow_id="batch.workflow_id", topic="of_topic")}
                {OLDEST_FIRST}
                LIMIT 1) AS pending))
    FROM batch WHERE handlers.workflow_id = batch.workflow_id AND handlers.name = batch.name
    RETURNING handlers.dirty
    """,
    """
    UPDATE handlers SET state = batch.state, wake_at = batch.wake_at,
        dirty = handlers.dirty OR (:takes AND EXISTS (
            SELECT 1 FROM events WHERE events.workflow_id = batch.workflow_id AND events.status = 'pending'
                                       AND events.topic IN ({list:topics})))
    FROM batch WHERE handlers.workflow_id = batch.workflow_id AND handlers.name = batch.name
    RETURNING handlers.dirty
    """,
    batch={name: handlers.c[name] for name in ("workflow_id", "name", "state", "wake_at")},
    returns={"dirty": handlers.c.dirty},
)
