"""The single statements that begin a run of a consumer, in autocommit or as a part of a transaction."""

from sqlalchemy import column

from rota.db.column_types import Instant, Json
from rota.db.statement import Statement
from rota.db.tables import events, handlers, jobs, workflow_runs
from rota.engine.statements import FINISH, INSERTED_RUN, OWNED, RUN_OF_JOB
from rota.kinds.workflows.store.statements import OLDEST_FIRST, PENDING_OF_TOPIC

EVENT_COLUMNS = tuple(events.c.keys())
EVENT_ARRAY = ", ".join(
    f"CAST(extract(epoch FROM {column}) * 1000000 AS bigint)" if isinstance(column.type, Instant) else str(column)
    for column in events.c
)
NO_LIMITS = """
    NOT EXISTS (SELECT 1 FROM queues WHERE queues.org_id = jobs.org_id AND queues.name = jobs.queue
                AND (queues.paused_at IS NOT NULL OR queues.max_running IS NOT NULL OR queues.rate IS NOT NULL))
    AND NOT EXISTS (SELECT 1 FROM orgs WHERE orgs.id = jobs.org_id AND orgs.max_running IS NOT NULL)"""
NO_MORE_URGENT_JOB = """
    NOT EXISTS (SELECT 1 FROM jobs AS waiting WHERE waiting.serial_key = jobs.serial_key AND waiting.state = 'blocked'
                AND waiting.priority >= jobs.priority AND waiting.solo_key IS DISTINCT FROM :workflow_id)"""
COMMITTED_COLUMNS = """
    phase = 'committed', updated_at = :now,
    prepare_result = coalesce(batch.prepare_result, workflow_runs.prepare_result),
    mutation_outcome = coalesce(workflow_runs.mutation_outcome, 'none')"""
RENEWED_COLUMNS = """
    id = batch.next_job_id, payload = NULL, solo_key = NULL, queued_at = :now, run_at = :now, trigger = 'event',
    attempt = 1, tries = 0, crashes = 0, rescues = 0, run_id = batch.next_run_id, last_run_id = NULL,
    started_at = :now, cancel_requested_at = NULL, cancel_reason = NULL, trace = NULL, terms = NULL"""
NEXT_RUN_COLUMNS = "id, workflow_id, handler_id, handler_type, phase, created_at, updated_at"
HAS_EVENTS_ON_SQLITE = """
    EXISTS (SELECT 1 FROM json_each({handler}.subscribe) AS subscribed CROSS JOIN events
            WHERE events.workflow_id = :workflow_id AND events.topic = subscribed.value
                  AND events.status = 'pending' AND events.id NOT IN ({{list:event_ids}}))"""
# in texts for SQLite: the guard of the first text held, in this transaction
JUST_COMMITTED = f"""
    EXISTS (SELECT 1 FROM batch JOIN jobs ON {OWNED} JOIN workflow_runs ON workflow_runs.id = batch.id
            WHERE workflow_runs.phase = 'committed')"""

COMMIT_AND_BEGIN_NEXT = Statement(
    """Commit a run of a consumer that publishes nothing, and begin its next run in the same row of `jobs`; returns the
    new fence and the oldest pending events of each of `topics`, or no row if anything else than
    this consumer may have to run next, or a limit, a pause or a grant has to be checked. As in `first_of`, consumers
    without pending events run after those that have some.

    Alone, without a transaction that locked the workflow before, it sees other tables as they were before it waited
    for that lock. So it then does nothing if the handler is dirty: an event may have been published that it does not
    see. A row that it locks is the latest. There is a head of the serial key at any time, so no blocked job that it
    does not see misses its promotion.""",
    f"""
    WITH workflow AS (
        SELECT workflows.declaration FROM workflows
        WHERE workflows.id = :workflow_id AND workflows.paused_at IS NULL AND workflows.deleted_at IS NULL
        FOR UPDATE
    ), own_handlers AS (
        SELECT handlers.* FROM workflow, handlers WHERE handlers.workflow_id = :workflow_id FOR UPDATE OF handlers
    ), own_job AS (
        SELECT jobs.* FROM workflow, batch JOIN jobs ON {OWNED}
        WHERE jobs.route = CAST(workflow.declaration AS json) ->> 'route'
        FOR UPDATE OF jobs
    ), taken AS (
        SELECT events.id FROM own_job, events
        WHERE events.id IN ({{list:event_ids}}) AND events.workflow_id || '' = :workflow_id
              AND events.status || '' = :held
        FOR UPDATE OF events
    ), with_events AS (
        SELECT own_handlers.name FROM own_handlers
        WHERE EXISTS (
            SELECT 1 FROM json_array_elements_text(CAST(own_handlers.subscribe AS json)) AS subscribed
            CROSS JOIN LATERAL (
                SELECT 1 FROM events
                WHERE {PENDING_OF_TOPIC.format(workflow_id=":workflow_id", topic="subscribed")}
                      AND events.id NOT IN ({{list:event_ids}})
                {OLDEST_FIRST} LIMIT 1) AS pending)
    ), moved AS (
        UPDATE workflow_runs SET {COMMITTED_COLUMNS}
        FROM batch, own_job AS jobs, own_handlers AS own
        WHERE workflow_runs.id = batch.id AND workflow_runs.phase IN ({{list:earlier}})
              AND own.name = :handler AND own.held_run_id IS NULL AND (:locked OR NOT own.dirty)
              AND (SELECT count(*) FROM taken) = :count
              AND (own.dirty OR EXISTS (SELECT 1 FROM with_events WHERE with_events.name = :handler))
              AND NOT EXISTS (SELECT 1 FROM own_handlers AS other WHERE other.name <> :handler
                              AND other.held_run_id IS NULL AND (other.dirty OR other.wake_at <= :now)
                              AND (NOT EXISTS (SELECT 1 FROM with_events WHERE with_events.name = :handler)
                                   OR EXISTS (SELECT 1 FROM with_events WHERE with_events.name = other.name)))
              AND {NO_MORE_URGENT_JOB} AND {NO_LIMITS}
              AND NOT EXISTS (SELECT 1 FROM own_handlers AS producer
                              JOIN schedules ON schedules.id = producer.schedule_id
                              WHERE schedules.grant_id IS NOT NULL)
        RETURNING workflow_runs.id
    ), consumed AS (
        UPDATE events SET status = 'consumed', reserved_by = moved.id, updated_at = :now
        FROM taken, moved WHERE events.id = taken.id
    ), recorded AS (
        INSERT INTO runs ({INSERTED_RUN}) SELECT {RUN_OF_JOB}, :now FROM moved, batch, own_job AS jobs
    ), dropped AS (
        DELETE FROM jobs USING moved WHERE jobs.solo_key = :workflow_id AND jobs.state = 'blocked'
    ), renewed AS (
        UPDATE jobs SET {RENEWED_COLUMNS}, fence = nextval('fences')
        FROM batch, moved WHERE jobs.id = batch.job_id
        RETURNING jobs.fence
    ), added AS (
        INSERT INTO workflow_runs ({NEXT_RUN_COLUMNS})
        SELECT batch.next_run_id, :workflow_id, :handler, 'consumer', 'preparing', :now, :now FROM batch, renewed
    ), cleared AS (
        UPDATE handlers SET state = coalesce(batch.state, handlers.state), dirty = false, wake_at = NULL
        FROM batch, renewed WHERE handlers.workflow_id = :workflow_id AND handlers.name = :handler
    )
    SELECT renewed.fence, CAST((
        SELECT json_agg((
            SELECT coalesce(json_agg(json_build_array({EVENT_ARRAY})), '[]') FROM (
                SELECT events.* FROM events
                WHERE {PENDING_OF_TOPIC.format(workflow_id=":workflow_id", topic="of_topic")}
                      AND events.id NOT IN ({{list:event_ids}})
                {OLDEST_FIRST} LIMIT :most) AS events))
        FROM unnest(CAST(:topics AS text[])) AS of_topic) AS text)
    FROM renewed
    """.replace(":now", "CAST(:now AS timestamptz)"),
    (
        f"""
    UPDATE workflow_runs SET {COMMITTED_COLUMNS}
    FROM batch JOIN jobs ON {OWNED}
    JOIN workflows ON workflows.id = :workflow_id AND jobs.route = json_extract(workflows.declaration, '$.route')
    JOIN handlers AS own ON own.workflow_id = :workflow_id AND own.name = :handler
    WHERE workflow_runs.id = batch.id AND workflow_runs.phase IN ({{list:earlier}})
          AND workflows.paused_at IS NULL AND workflows.deleted_at IS NULL AND own.held_run_id IS NULL
          AND (:locked OR NOT own.dirty)
          AND :count = (SELECT count(*) FROM events WHERE events.id IN ({{list:event_ids}})
                        AND events.workflow_id || '' = :workflow_id AND events.status || '' = :held)
          AND (own.dirty OR {HAS_EVENTS_ON_SQLITE.format(handler="own")})
          AND NOT EXISTS (SELECT 1 FROM handlers AS other WHERE other.workflow_id = :workflow_id
                          AND other.name <> :handler AND other.held_run_id IS NULL
                          AND (other.dirty OR other.wake_at <= :now)
                          AND (NOT {HAS_EVENTS_ON_SQLITE.format(handler="own")}
                               OR {HAS_EVENTS_ON_SQLITE.format(handler="other")}))
          AND {NO_MORE_URGENT_JOB} AND {NO_LIMITS}
          AND NOT EXISTS (SELECT 1 FROM handlers AS producer JOIN schedules ON schedules.id = producer.schedule_id
                          WHERE producer.workflow_id = :workflow_id AND schedules.grant_id IS NOT NULL)
        """,
        f"""
    UPDATE events SET status = 'consumed', reserved_by = (SELECT batch.id FROM batch), updated_at = :now
    WHERE events.id IN ({{list:event_ids}}) AND {JUST_COMMITTED}
        """,
        f"""
    INSERT INTO runs ({INSERTED_RUN})
    SELECT {RUN_OF_JOB}, :now FROM batch JOIN jobs ON {OWNED} WHERE {JUST_COMMITTED}
        """,
        f"""
    DELETE FROM jobs WHERE jobs.solo_key = :workflow_id AND jobs.state = 'blocked' AND {JUST_COMMITTED}
        """,
        f"""
    INSERT INTO workflow_runs ({NEXT_RUN_COLUMNS})
    SELECT batch.next_run_id, :workflow_id, :handler, 'consumer', 'preparing', :now, :now FROM batch
    WHERE {JUST_COMMITTED}
        """,
        f"""
    UPDATE handlers SET state = coalesce((SELECT batch.state FROM batch), handlers.state), dirty = false, wake_at = NULL
    WHERE handlers.workflow_id = :workflow_id AND handlers.name = :handler AND {JUST_COMMITTED}
        """,
        f"UPDATE counters SET value = value + 1 WHERE name = 'fences' AND {JUST_COMMITTED}",
        f"""
    UPDATE jobs SET {RENEWED_COLUMNS}, fence = (SELECT value FROM counters WHERE name = 'fences')
    FROM batch WHERE {OWNED} AND {JUST_COMMITTED}
        """,
        f"""
    SELECT jobs.fence, (
        SELECT json_group_array(json((
            SELECT json_group_array(json_array({", ".join(map(str, events.c))})) FROM (
                SELECT events.* FROM events
                WHERE events.workflow_id = :workflow_id AND events.topic = of_topic.value AND events.status = 'pending'
                ORDER BY events.id LIMIT :most) AS events)))
        FROM json_each(:topics) AS of_topic)
    FROM batch JOIN jobs ON jobs.id = batch.next_job_id
        """,
    ),
    batch={
        **FINISH.batch,
        "prepare_result": workflow_runs.c.prepare_result,
        "state": handlers.c.state,
        "next_job_id": jobs.c.id,
        "next_run_id": workflow_runs.c.id,
    },
    returns={"fence": jobs.c.fence, "events": column("events", Json)},
    single_row=True,
)

NO_GRANT = """
    NOT EXISTS (SELECT 1 FROM {handlers} AS producer JOIN schedules ON schedules.id = producer.schedule_id
                WHERE producer.workflow_id = due.workflow_id AND schedules.grant_id IS NOT NULL)"""
OWN_JOB = "jobs.id = :job_id AND jobs.fence = :fence AND jobs.state || '' = 'running'"
IS_DUE = "type = 'consumer' AND held_run_id IS NULL AND (dirty OR wake_at <= :now)"
# in texts for SQLite: the first text inserted the run, in this transaction
JUST_BEGUN = f"""
    EXISTS (SELECT 1 FROM jobs JOIN workflow_runs ON workflow_runs.id = :run_id
            WHERE {OWN_JOB} AND jobs.run_id IS DISTINCT FROM :run_id)"""

BEGIN_CONSUMER = Statement(
    """Begin the run of the only consumer of a workflow that needs to run, for a job that has not run before; returns
    the consumer, or no row if that is not the case, or a pause or a grant has to be checked. It clears the flags of
    the handler as they are when it has locked it; events are read later.""",
    f"""
    WITH workflow AS (
        SELECT workflows.id FROM workflows
        WHERE workflows.org_id = :org_id AND workflows.name = :name AND workflows.paused_at IS NULL
              AND workflows.deleted_at IS NULL
        FOR UPDATE
    ), own_handlers AS (
        SELECT handlers.* FROM workflow, handlers WHERE handlers.workflow_id = workflow.id FOR UPDATE OF handlers
    ), due AS (
        SELECT * FROM own_handlers WHERE {IS_DUE}
    ), owned AS (
        UPDATE jobs SET run_id = :run_id, attempt = :attempt, started_at = :now
        FROM due WHERE {OWN_JOB} AND (SELECT count(*) FROM due) = 1 AND {NO_GRANT.format(handlers="own_handlers")}
        RETURNING due.workflow_id, due.name, due.state
    ), added AS (
        INSERT INTO workflow_runs ({NEXT_RUN_COLUMNS})
        SELECT :run_id, owned.workflow_id, owned.name, 'consumer', 'preparing', :now, :now FROM owned
        ON CONFLICT DO NOTHING RETURNING workflow_id, handler_id
    ), cleared AS (
        UPDATE handlers SET dirty = false, wake_at = NULL
        FROM added WHERE handlers.workflow_id = added.workflow_id AND handlers.name = added.handler_id
    )
    SELECT owned.workflow_id, owned.name, owned.state FROM owned, added
    """.replace(":now", "CAST(:now AS timestamptz)").replace(":run_id", "CAST(:run_id AS text)"),
    (
        f"""
    INSERT INTO workflow_runs ({NEXT_RUN_COLUMNS})
    SELECT :run_id, due.workflow_id, due.name, 'consumer', 'preparing', :now, :now
    FROM workflows JOIN handlers AS due ON due.workflow_id = workflows.id
    WHERE workflows.org_id = :org_id AND workflows.name = :name AND workflows.paused_at IS NULL
          AND workflows.deleted_at IS NULL AND {IS_DUE} AND {NO_GRANT.format(handlers="handlers")}
          AND 1 = (SELECT count(*) FROM handlers AS other WHERE other.workflow_id = workflows.id
                   AND other.type = 'consumer' AND other.held_run_id IS NULL
                   AND (other.dirty OR other.wake_at <= :now))
          AND EXISTS (SELECT 1 FROM jobs WHERE {OWN_JOB} AND jobs.run_id IS DISTINCT FROM :run_id)
    ON CONFLICT DO NOTHING
        """,
        f"""
    UPDATE handlers SET dirty = false, wake_at = NULL
    WHERE (handlers.workflow_id, handlers.name) IN (SELECT workflow_id, handler_id FROM workflow_runs
                                                    WHERE workflow_runs.id = :run_id)
          AND {JUST_BEGUN}
        """,
        f"""
    SELECT handlers.workflow_id, handlers.name, handlers.state
    FROM workflow_runs AS begun JOIN handlers ON handlers.workflow_id = begun.workflow_id
                                                 AND handlers.name = begun.handler_id
    WHERE begun.id = :run_id AND {JUST_BEGUN}
        """,
        f"""
    UPDATE jobs SET run_id = :run_id, attempt = :attempt, started_at = :now WHERE {OWN_JOB} AND {JUST_BEGUN}
        """,
    ),
    returns={name: handlers.c[name] for name in ("workflow_id", "name", "state")},
)
