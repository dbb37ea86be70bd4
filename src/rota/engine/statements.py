"""The hot statements of the queue, of firing and of grants: one text, or one per database where they differ.

A worker may write about a job only while it owns it: the job's id, its fence and the state `running` are in the WHERE
of each such statement. The state is compared as `jobs.state || ''` there, which no index serves: PostgreSQL knows
little about a table that changes so fast, and would read all running jobs instead of looking up each job of the batch
by its id (300 ms instead of 10 for 500 jobs). A test compares the states in these texts with `MOVES`.
"""

from dataclasses import fields

from sqlalchemy import Boolean, Integer, column

from rota.core.model import Job
from rota.db.statement import Columns, Statement
from rota.db.tables import (
    billing_accounts,
    clocks,
    grants,
    jobs,
    orgs,
    queues,
    runs,
    schedule_stats,
    schedules,
    steps,
    virtual_keys,
)

JOB: Columns = {field.name: jobs.c[field.name] for field in fields(Job)}

INSERTED_RUN = """
    job_id, org_id, kind, target, route, input, schedule_id, slot, trigger, retry_of, queued_at, fence, parent_id,
    id, attempt, status, reason, error, outcome, started_at, finished_at, target_name, target_version, artifact_id,
    usage, trace_id, grant_id, cpu_seconds, peak_memory_bytes, worker, recorded_at"""
RUN_OF_JOB = """
    jobs.id AS job_id, jobs.org_id, jobs.kind, jobs.target, jobs.route, jobs.payload AS input, jobs.schedule_id,
    jobs.slot, jobs.trigger, jobs.last_run_id AS retry_of, jobs.queued_at, jobs.fence, jobs.parent_id,
    batch.id, batch.attempt, batch.status, batch.reason, batch.error, batch.outcome, batch.started_at,
    batch.finished_at, batch.target_name, batch.target_version, batch.artifact_id, batch.usage, batch.trace_id,
    batch.grant_id, batch.cpu_seconds, batch.peak_memory_bytes, coalesce(:worker, jobs.lease_owner) AS worker"""
ENDED_RUN = ", ".join(f"ended.{name.strip()}" for name in INSERTED_RUN.split(",")[:-1])  # without `recorded_at`
OWNED = "jobs.id = batch.job_id AND jobs.fence = batch.of_fence AND jobs.state || '' = 'running'"

LANES = Statement(
    """Step from lane to lane, starting after (org_id, queue); returns lanes with ready jobs that are not paused, and
    their limits. Each step is two look-ups in the index of ready jobs. Comparing org and queue as a pair would be
    shorter, but SQLite then reads the whole lane that it stands in.""",
    """
    WITH RECURSIVE lane (org_id, queue) AS (
        SELECT CAST(:org_id AS text), CAST(:queue AS text)
        UNION ALL
        SELECT CASE WHEN (SELECT min(jobs.queue) FROM jobs
                          WHERE jobs.state = 'ready' AND jobs.org_id = lane.org_id AND jobs.queue > lane.queue) IS NULL
                    THEN (SELECT CAST(min(jobs.org_id) AS text) FROM jobs
                          WHERE jobs.state = 'ready' AND jobs.org_id > lane.org_id)
                    ELSE lane.org_id END,
               coalesce((SELECT CAST(min(jobs.queue) AS text) FROM jobs
                         WHERE jobs.state = 'ready' AND jobs.org_id = lane.org_id AND jobs.queue > lane.queue),
                        (SELECT CAST(jobs.queue AS text) FROM jobs
                         WHERE jobs.state = 'ready' AND jobs.org_id > lane.org_id
                         ORDER BY jobs.org_id, jobs.queue LIMIT 1))
        FROM lane WHERE lane.org_id IS NOT NULL
    )
    SELECT chosen.org_id, chosen.queue, queues.max_running AS queue_limit, orgs.max_running AS org_limit
    FROM (SELECT lane.org_id, lane.queue FROM lane
          WHERE lane.org_id IS NOT NULL AND NOT (lane.org_id = :org_id AND lane.queue = :queue)
                AND (:any_queue OR lane.queue IN ({list:queues})) AND (:any_org OR lane.org_id IN ({list:org_ids}))
                AND (SELECT paused_at FROM queues
                     WHERE queues.org_id = lane.org_id AND queues.name = lane.queue) IS NULL
          LIMIT :count) AS chosen
    LEFT JOIN queues ON queues.org_id = chosen.org_id AND queues.name = chosen.queue
    LEFT JOIN orgs ON orgs.id = chosen.org_id
    ORDER BY chosen.org_id, chosen.queue
    """,
    returns={
        "org_id": jobs.c.org_id,
        "queue": jobs.c.queue,
        "queue_limit": queues.c.max_running,
        "org_limit": orgs.c.max_running,
    },
)

# The lane (:org_id, :queue) has no limit, is not paused, and no other lane has ready jobs. One look-up in each
# direction: PostgreSQL would read all jobs just claimed if it compared (org_id, queue) as a pair.
IS_SOLE_LANE = """
    NOT EXISTS (SELECT 1 FROM jobs AS other WHERE other.state = 'ready' AND other.org_id < {org})
    AND NOT EXISTS (SELECT 1 FROM jobs AS other WHERE other.state = 'ready' AND other.org_id > {org})
    AND NOT EXISTS (SELECT 1 FROM jobs AS other
                    WHERE other.state = 'ready' AND other.org_id = {org} AND other.queue < {queue})
    AND NOT EXISTS (SELECT 1 FROM jobs AS other
                    WHERE other.state = 'ready' AND other.org_id = {org} AND other.queue > {queue})
    AND NOT EXISTS (SELECT 1 FROM queues WHERE queues.org_id = {org} AND queues.name = {queue}
                    AND (queues.paused_at IS NOT NULL OR queues.max_running IS NOT NULL))
    AND NOT EXISTS (SELECT 1 FROM orgs WHERE orgs.id = {org} AND orgs.max_running IS NOT NULL)"""

CLAIM = Statement(
    """Lease the most urgent ready jobs of these lanes to a worker, of each lane up to its room; with `sole`, only if no
    other lane has ready jobs. One fence for all: no two ready jobs have the same serial key. SQLite has no sequences:
    the fence is the next value of a counter, which is drawn if a job was claimed.""",
    f"""
    WITH chosen AS (
        SELECT ready.id
        FROM batch CROSS JOIN LATERAL (
            SELECT jobs.id FROM jobs
            WHERE jobs.state = 'ready' AND jobs.org_id = batch.org_id AND jobs.queue = batch.queue
                  AND jobs.route = ANY (:routes)
            ORDER BY jobs.priority DESC, jobs.run_at, jobs.id
            LIMIT batch.room
            FOR UPDATE SKIP LOCKED) AS ready
        WHERE NOT :sole OR ({IS_SOLE_LANE.format(org="batch.org_id", queue="batch.queue")})
    )
    UPDATE jobs SET state = 'running', lease_owner = :worker, fence = (SELECT nextval('fences')), solo_key = NULL
    FROM chosen WHERE jobs.id = chosen.id AND jobs.state || '' = 'ready'
    RETURNING {{returns}}
    """,
    (
        f"""
    UPDATE jobs SET state = 'running', lease_owner = :worker, solo_key = NULL,
                    fence = (SELECT value + 1 FROM counters WHERE name = 'fences')
    WHERE id IN (SELECT jobs.id FROM jobs
                 WHERE jobs.state = 'ready' AND jobs.org_id = :org_id AND jobs.queue = :queue
                       AND jobs.route IN ({{list:routes}})
                       AND (NOT :sole OR ({IS_SOLE_LANE.format(org=":org_id", queue=":queue")}))
                 ORDER BY jobs.priority DESC, jobs.run_at, jobs.id
                 LIMIT :room)
        """,
        """
    SELECT json_group_array(json_array({returns})) AS json_rows FROM jobs
    WHERE jobs.lease_owner = :worker AND jobs.state = 'running'
          AND jobs.fence = (SELECT value + 1 FROM counters WHERE name = 'fences')
        """,
        """
    UPDATE counters SET value = value + 1
    WHERE name = 'fences' AND EXISTS (SELECT 1 FROM jobs WHERE jobs.lease_owner = :worker AND jobs.state = 'running'
                                                               AND jobs.fence = counters.value + 1)
        """,
    ),
    batch={"org_id": jobs.c.org_id, "queue": jobs.c.queue, "room": column("room", Integer)},
    returns={**JOB, "priority": jobs.c.priority},
)

CLAIM_NEXT = Statement(
    """Lease the head of a serial key to a worker, if it has the same org, queue and route as the job before it, and its
    lane has no limit and is not paused.""",
    """
    UPDATE jobs SET state = 'running', lease_owner = :worker, fence = nextval('fences'), solo_key = NULL
    WHERE jobs.serial_key = :serial_key AND jobs.state = 'ready' AND jobs.route = :route AND jobs.org_id = :org_id
          AND jobs.queue = :queue
          AND NOT EXISTS (SELECT 1 FROM queues WHERE queues.org_id = :org_id AND queues.name = :queue
                          AND (queues.paused_at IS NOT NULL OR queues.max_running IS NOT NULL
                               OR queues.rate IS NOT NULL))
          AND NOT EXISTS (SELECT 1 FROM orgs WHERE orgs.id = :org_id AND orgs.max_running IS NOT NULL)
    RETURNING {returns}
    """,
    (
        """
    UPDATE jobs SET state = 'running', lease_owner = :worker, solo_key = NULL,
                    fence = (SELECT value + 1 FROM counters WHERE name = 'fences')
    WHERE jobs.serial_key = :serial_key AND jobs.state = 'ready' AND jobs.route = :route AND jobs.org_id = :org_id
          AND jobs.queue = :queue
          AND NOT EXISTS (SELECT 1 FROM queues WHERE queues.org_id = :org_id AND queues.name = :queue
                          AND (queues.paused_at IS NOT NULL OR queues.max_running IS NOT NULL
                               OR queues.rate IS NOT NULL))
          AND NOT EXISTS (SELECT 1 FROM orgs WHERE orgs.id = :org_id AND orgs.max_running IS NOT NULL)
    RETURNING {returns}
        """,
        """
    UPDATE counters SET value = value + 1
    WHERE name = 'fences' AND EXISTS (SELECT 1 FROM jobs WHERE jobs.serial_key = :serial_key AND jobs.state = 'running'
                                                               AND jobs.fence = counters.value + 1)
        """,
    ),
    returns=JOB,
)

MARK_STARTED = Statement(
    """Record that attempts began, of jobs that this worker still owns; returns the ids of those runs.""",
    f"""
    UPDATE jobs SET run_id = batch.run_id, attempt = batch.attempt, started_at = batch.started_at, waiting = NULL
    FROM batch WHERE {OWNED}
    RETURNING jobs.run_id
    """,
    batch={
        "job_id": jobs.c.id,
        "of_fence": jobs.c.fence,
        "run_id": jobs.c.run_id,
        "attempt": jobs.c.attempt,
        "started_at": jobs.c.started_at,
    },
    returns={"run_id": jobs.c.run_id},
)

FINISH = Statement(
    """Delete ended jobs that this worker still owns and append their runs; returns the ids of those runs, and whether
    other jobs wait for the end of theirs. Without a worker, each run has the lease owner of its job.""",
    f"""
    WITH ended AS (DELETE FROM jobs USING batch WHERE {OWNED} RETURNING jobs.followed, {RUN_OF_JOB}),
         added AS (INSERT INTO runs ({INSERTED_RUN})
                   SELECT {ENDED_RUN}, coalesce(:recorded_at, ended.finished_at) FROM ended)
    SELECT ended.id, ended.job_id, ended.followed FROM ended
    """,
    (
        f"""
    INSERT INTO runs ({INSERTED_RUN})
    SELECT {RUN_OF_JOB}, coalesce(:recorded_at, batch.finished_at) FROM batch CROSS JOIN jobs ON {OWNED}
        """,
        f"""
    SELECT json_group_array(json_array(batch.id, jobs.id, jobs.followed)) AS json_rows
    FROM batch CROSS JOIN jobs ON {OWNED}
        """,
        """
    DELETE FROM jobs WHERE (jobs.id, jobs.fence) IN (SELECT batch.job_id, batch.of_fence FROM batch)
                           AND jobs.state || '' = 'running'
        """,
    ),
    batch={
        "job_id": jobs.c.id,
        "of_fence": jobs.c.fence,
        **{
            name: runs.c[name]
            for name in (
                *("id", "attempt", "status", "reason", "error", "outcome", "started_at", "finished_at", "target_name"),
                *("target_version", "artifact_id", "usage", "trace_id", "grant_id", "cpu_seconds", "peak_memory_bytes"),
            )
        },
    },
    returns={"id": runs.c.id, "job_id": jobs.c.id, "followed": jobs.c.followed},
)

MOVE = Statement(
    """Move jobs that this worker still owns to where they wait for their next attempt; returns them, with a request to
    cancel them if there is one.""",
    f"""
    UPDATE jobs SET state = batch.state, run_at = batch.run_at, last_run_id = batch.last_run_id,
                    attempt = batch.attempt, tries = batch.tries, crashes = batch.crashes,
                    parked_reason = batch.parked_reason, run_id = batch.run_id, started_at = batch.started_at,
                    waiting = batch.waiting, route = batch.route, lease_owner = NULL, reserved_at = NULL,
                    place_key = NULL
    FROM batch WHERE {OWNED}
    RETURNING jobs.id, jobs.cancel_requested_at, jobs.cancel_reason
    """,
    batch={
        "job_id": jobs.c.id,
        "of_fence": jobs.c.fence,
        **{
            name: jobs.c[name]
            for name in (
                *("state", "run_at", "last_run_id", "attempt", "tries", "crashes", "parked_reason"),
                *("run_id", "started_at", "waiting", "route"),
            )
        },
    },
    returns={name: jobs.c[name] for name in ("id", "cancel_requested_at", "cancel_reason")},
)

STEP: Columns = dict(steps.c.items())
UPDATED_STEP = ", ".join(f"{name} = excluded.{name}" for name in STEP if name not in ("job_id", "name", "org_id"))
STEP_OF_BATCH = ", ".join(f"batch.{name}" for name in STEP)

RECORD_STEPS = Statement(
    """Insert or update steps of jobs that this worker still owns; returns their keys. PostgreSQL locks the jobs, so
    that a rescue waits until the steps are visible to the next worker.""",
    f"""
    WITH owned AS (SELECT {STEP_OF_BATCH} FROM batch JOIN jobs ON {OWNED} FOR SHARE OF jobs)
    INSERT INTO steps ({", ".join(STEP)}) SELECT {", ".join(STEP)} FROM owned
    ON CONFLICT (job_id, name) DO UPDATE SET {UPDATED_STEP}
    RETURNING job_id, name
    """,
    (
        f"""
    INSERT INTO steps ({", ".join(STEP)})
    SELECT {STEP_OF_BATCH} FROM batch CROSS JOIN jobs ON {OWNED} WHERE true
    ON CONFLICT (job_id, name) DO UPDATE SET {UPDATED_STEP}
        """,
        f"""
    SELECT json_group_array(json_array(batch.job_id, batch.name)) AS json_rows FROM batch CROSS JOIN jobs ON {OWNED}
        """,
    ),
    batch={"of_fence": jobs.c.fence, **STEP},
    returns={"job_id": steps.c.job_id, "name": steps.c.name},
)

PROMOTE = Statement(
    """Make the most urgent blocked job of each serial key without a head its head.""",
    """
    UPDATE jobs SET state = 'ready'
    WHERE jobs.id IN (
        SELECT (SELECT waiting.id FROM jobs AS waiting
                WHERE waiting.serial_key = batch.serial_key AND waiting.state = 'blocked'
                ORDER BY waiting.priority DESC, waiting.run_at, waiting.id LIMIT 1)
        FROM batch
        WHERE NOT EXISTS (SELECT 1 FROM jobs AS head
                          WHERE head.serial_key = batch.serial_key
                                AND head.state IN ('ready', 'running', 'retry', 'waiting', 'parked')))
    RETURNING id
    """,
    batch={"serial_key": jobs.c.serial_key},
    returns={"id": jobs.c.id},
)

JOBS_OF_SCHEDULES = Statement(
    """Return the jobs of schedules, in any state, most urgent first.""",
    """
    SELECT {returns} FROM batch CROSS JOIN jobs WHERE jobs.schedule_id = batch.of_schedule
    ORDER BY jobs.run_at, jobs.id
    """,
    batch={"of_schedule": jobs.c.schedule_id},
    returns={
        name: jobs.c[name] for name in ("id", "schedule_id", "state", "solo_key", "slot", "serial_key", "trigger")
    },
)

DUE_SCHEDULES = Statement(
    """Return the schedules of these kinds that are due, with their clocks and the freezes of their orgs, longest
    overdue first.""",
    """
    SELECT {returns}
    FROM clocks JOIN schedules ON schedules.id = clocks.schedule_id JOIN orgs ON orgs.id = schedules.org_id
    WHERE clocks.kind IN ({list:kinds}) AND clocks.next_run_at <= :now AND (:any_org OR orgs.slug IN ({list:slugs}))
    ORDER BY clocks.next_run_at
    LIMIT :count
    """,
    returns={
        **dict(schedules.c.items()),
        "fired": clocks.c.fired,
        "next_slot": clocks.c.next_slot,
        "frozen_at": orgs.c.frozen_at,
        "frozen_until": orgs.c.frozen_until,
        "next_run_at": clocks.c.next_run_at,
        "freeze_revision": orgs.c.freeze_revision,
    },
)

READ_CLOCKS = """
    SELECT clocks.schedule_id,
           orgs.max_running IS NOT NULL OR queues.max_running IS NOT NULL OR queues.paused_at IS NOT NULL AS limited,
           clocks.next_slot, schedules.revision, schedules.enabled, orgs.frozen_at, orgs.frozen_until,
           orgs.freeze_revision
    FROM batch CROSS JOIN clocks
    JOIN schedules ON schedules.id = clocks.schedule_id
    JOIN orgs ON orgs.id = schedules.org_id
    LEFT JOIN queues ON queues.org_id = schedules.org_id AND queues.name = schedules.queue
    WHERE clocks.schedule_id = batch.of_schedule
    ORDER BY clocks.schedule_id"""

LOCK_CLOCKS = Statement(
    """Lock the clocks of schedules and return what a plan depends on; leaves out clocks that are locked, because they
    are being fired or edited. `limited`: the org or queue has a limit or a pause.""",
    f"{READ_CLOCKS} FOR UPDATE OF clocks SKIP LOCKED",
    READ_CLOCKS,
    batch={"of_schedule": clocks.c.schedule_id},
    returns={
        "schedule_id": clocks.c.schedule_id,
        "limited": column("limited", Boolean),
        "next_slot": clocks.c.next_slot,
        "revision": schedules.c.revision,
        "enabled": schedules.c.enabled,
        "frozen_at": orgs.c.frozen_at,
        "frozen_until": orgs.c.frozen_until,
        "freeze_revision": orgs.c.freeze_revision,
    },
)

ADVANCE_CLOCKS = Statement(
    """Set clocks to their next slots and increase their number of fired slots.""",
    """
    UPDATE clocks SET next_slot = batch.next_slot, next_run_at = batch.next_run_at, fired = clocks.fired + batch.fires
    FROM batch WHERE clocks.schedule_id = batch.of_schedule
    """,
    batch={
        "of_schedule": clocks.c.schedule_id,
        "next_slot": clocks.c.next_slot,
        "next_run_at": clocks.c.next_run_at,
        "fires": clocks.c.fired,
    },
)

ADD_TO_STATS = Statement(
    """Add ended runs to the statistics of their schedules.""",
    """
    UPDATE schedule_stats SET
        last_run_at = coalesce(batch.last_run_at, schedule_stats.last_run_at),
        last_run_id = coalesce(batch.last_run_id, schedule_stats.last_run_id),
        last_job_id = coalesce(batch.last_job_id, schedule_stats.last_job_id),
        last_run_status = coalesce(batch.last_run_status, schedule_stats.last_run_status),
        failure_count = schedule_stats.failure_count + batch.failure_count,
        skipped_count = schedule_stats.skipped_count + batch.skipped_count
    FROM batch WHERE schedule_stats.schedule_id = batch.of_schedule
    """,
    batch={
        "of_schedule": schedule_stats.c.schedule_id,
        **{
            name: schedule_stats.c[name]
            for name in (
                *("last_run_at", "last_run_id", "last_job_id", "last_run_status"),
                *("failure_count", "skipped_count"),
            )
        },
    },
)

GRANT: Columns = dict(grants.c.items())

FIND_GRANT = Statement(
    """Return a grant of an org.""",
    "SELECT {returns} FROM grants WHERE grants.org_id = :org_id AND grants.id = :grant_id",
    returns=GRANT,
)

FIND_AUTHORITY = Statement(
    """Return a grant of an org with its account, if that belongs to the org, and the default key of the account.""",
    """
    SELECT {returns} FROM grants
    LEFT JOIN billing_accounts
        ON billing_accounts.id = grants.billing_account_id AND billing_accounts.org_id = grants.org_id
    LEFT JOIN virtual_keys ON virtual_keys.billing_account_id = billing_accounts.id AND virtual_keys.is_default
    WHERE grants.org_id = :org_id AND grants.id = :grant_id
    """,
    returns={
        **GRANT,
        "balance_credits": billing_accounts.c.balance_credits,
        "closed_at": billing_accounts.c.closed_at,
        "key_id": virtual_keys.c.id,
    },
)
