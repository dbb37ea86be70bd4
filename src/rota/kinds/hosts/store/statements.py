"""The hot statements of hosts: each serves all agents of a batch.

On SQLite, rows are returned as one JSON array (see `Statement`).
"""

from sqlalchemy import Integer, column

from rota.db.statement import Columns, Statement
from rota.db.tables import hosts, jobs, orgs, queues, server_instances, workers
from rota.engine.statements import JOB

CLAIM_COLUMNS = (
    *("state", "run_id", "started_at", "parked_reason", "lease_owner", "cancel_requested_at", "cancel_reason"),
)
CLAIMED: Columns = {**JOB, **{name: jobs.c[name] for name in CLAIM_COLUMNS}}
OF_SESSION: Columns = {"of_host": hosts.c.id, "of_version": hosts.c.key_version, "session": workers.c.id}

NOT_PAUSED = """
    NOT EXISTS (SELECT 1 FROM queues WHERE queues.org_id = jobs.org_id AND queues.name = jobs.queue
                                           AND queues.paused_at IS NOT NULL)"""


def reading(summary: str, source: str, locks: str = "", *, batch: Columns, returns: Columns) -> Statement:
    """Return a statement that reads rows, `source` being what follows its SELECT list."""
    array = f"SELECT json_group_array(json_array({{returns}})) AS json_rows {source}"
    return Statement(summary, f"SELECT {{returns}} {source} {locks}", array, batch=batch, returns=returns)


WORK = Statement(
    """Return the routes of hosts with ready jobs, and the jobs that are to be canceled with their routes.""",
    f"""
    SELECT DISTINCT jobs.route, CAST(NULL AS text) AS id FROM jobs
    WHERE jobs.kind = 'host_job' AND jobs.state = 'ready' AND {NOT_PAUSED}
    UNION ALL
    SELECT jobs.route, jobs.id FROM jobs
    WHERE jobs.kind = 'host_job' AND jobs.state = 'running' AND jobs.cancel_requested_at IS NOT NULL
    """,
    f"""
    SELECT json_group_array(json_array(route, id)) AS json_rows FROM (
        SELECT DISTINCT jobs.route, NULL AS id FROM jobs
        WHERE jobs.kind = 'host_job' AND jobs.state = 'ready' AND {NOT_PAUSED}
        UNION ALL
        SELECT jobs.route, jobs.id FROM jobs
        WHERE jobs.kind = 'host_job' AND jobs.state = 'running' AND jobs.cancel_requested_at IS NOT NULL)
    """,
    returns={"route": jobs.c.route, "id": jobs.c.id},
)

SEEN = Statement(
    """Record that hosts were seen, with their metrics, as far as their keys and sessions are current.""",
    """
    UPDATE hosts SET last_heartbeat_at = :now, metrics = coalesce(batch.metrics, hosts.metrics)
    FROM batch
    WHERE hosts.id = batch.of_host AND hosts.key_version = batch.of_version
          AND EXISTS (SELECT 1 FROM workers WHERE workers.id = batch.session AND workers.host_id = hosts.id
                                                  AND workers.state || '' = 'alive')
    """,
    batch={**OF_SESSION, "metrics": hosts.c.metrics},
)

RENEW = Statement(
    """Renew the leases of sessions and lock them; returns the hosts whose session is alive and whose key is current.
    Locked in the order of their ids, so that two batches do not wait for each other.""",
    """
    WITH alive AS (
        SELECT workers.id FROM batch JOIN workers ON workers.id = batch.session JOIN hosts ON hosts.id = batch.of_host
        WHERE workers.host_id = hosts.id AND workers.state || '' = 'alive' AND hosts.key_version = batch.of_version
        ORDER BY workers.id
        FOR UPDATE OF workers)
    UPDATE workers SET renewed_at = :now, lease_until = :lease_until FROM alive WHERE workers.id = alive.id
    RETURNING workers.host_id
    """,
    (
        """
    UPDATE workers SET renewed_at = :now, lease_until = :lease_until
    WHERE workers.id IN (
        SELECT workers.id
        FROM batch CROSS JOIN workers ON workers.id = batch.session JOIN hosts ON hosts.id = batch.of_host
        WHERE workers.host_id = hosts.id AND workers.state || '' = 'alive' AND hosts.key_version = batch.of_version)
        """,
        """
    SELECT json_group_array(json_array(workers.host_id)) AS json_rows
    FROM batch CROSS JOIN workers ON workers.id = batch.session JOIN hosts ON hosts.id = batch.of_host
    WHERE workers.host_id = hosts.id AND workers.state || '' = 'alive' AND hosts.key_version = batch.of_version
        """,
    ),
    batch=OF_SESSION,
    returns={"host_id": workers.c.host_id},
)

HELD = reading(
    """Return the started jobs of sessions.""",
    """
    FROM batch CROSS JOIN jobs
    WHERE jobs.lease_owner = batch.session AND jobs.state = 'running' AND jobs.run_id IS NOT NULL
    """,
    batch={"session": jobs.c.lease_owner},
    returns=CLAIMED,
)

READY = Statement(
    """Return the most urgent ready jobs of each route, up to its room, with the limits of their queues and orgs, and
    lock them.""",
    f"""
    SELECT ready.id, ready.route, ready.org_id, ready.queue, ready.priority, ready.run_at,
           queues.max_running AS queue_limit, orgs.max_running AS org_limit
    FROM batch CROSS JOIN LATERAL (
        SELECT jobs.id, jobs.route, jobs.org_id, jobs.queue, jobs.priority, jobs.run_at FROM jobs
        WHERE jobs.kind = 'host_job' AND jobs.state = 'ready' AND jobs.route = batch.of_route
              AND jobs.org_id = batch.of_org AND {NOT_PAUSED}
        ORDER BY jobs.priority DESC, jobs.run_at, jobs.id
        LIMIT batch.room
        FOR UPDATE SKIP LOCKED) AS ready
    JOIN orgs ON orgs.id = ready.org_id
    LEFT JOIN queues ON queues.org_id = ready.org_id AND queues.name = ready.queue
    """,
    f"""
    SELECT json_group_array(json_array(ready.id, ready.route, ready.org_id, ready.queue, ready.priority, ready.run_at,
                                       queues.max_running, orgs.max_running)) AS json_rows
    FROM (SELECT jobs.id, jobs.route, jobs.org_id, jobs.queue, jobs.priority, jobs.run_at, batch.room,
                 row_number() OVER (PARTITION BY jobs.route ORDER BY jobs.priority DESC, jobs.run_at, jobs.id) AS place
          FROM batch CROSS JOIN jobs
          WHERE jobs.kind = 'host_job' AND jobs.state = 'ready' AND jobs.route = batch.of_route
                AND jobs.org_id = batch.of_org AND {NOT_PAUSED}) AS ready
    JOIN orgs ON orgs.id = ready.org_id
    LEFT JOIN queues ON queues.org_id = ready.org_id AND queues.name = ready.queue
    WHERE ready.place <= ready.room
    """,
    batch={"of_route": jobs.c.route, "of_org": jobs.c.org_id, "room": column("room", Integer)},
    returns={
        **{name: jobs.c[name] for name in ("id", "route", "org_id", "queue", "priority", "run_at")},
        "queue_limit": queues.c.max_running,
        "org_limit": orgs.c.max_running,
    },
)

START = Statement(
    """Lease ready jobs to sessions and record that their runs started; returns them.""",
    """
    UPDATE jobs SET state = 'running', lease_owner = batch.session, fence = :fence, solo_key = NULL,
                    run_id = batch.run_id, attempt = jobs.attempt + 1, started_at = :now
    FROM batch WHERE jobs.id = batch.job_id AND jobs.state || '' = 'ready'
    RETURNING {returns}
    """,
    (
        """
    UPDATE jobs SET state = 'running', lease_owner = batch.session, fence = :fence, solo_key = NULL,
                    run_id = batch.run_id, attempt = jobs.attempt + 1, started_at = :now
    FROM batch WHERE jobs.id = batch.job_id AND jobs.state || '' = 'ready'
        """,
        """
    SELECT json_group_array(json_array({returns})) AS json_rows
    FROM batch CROSS JOIN jobs WHERE jobs.id = batch.job_id AND jobs.fence = :fence AND jobs.state || '' = 'running'
        """,
    ),
    batch={"job_id": jobs.c.id, "session": jobs.c.lease_owner, "run_id": jobs.c.run_id},
    returns=CLAIMED,
)

LOCK_JOBS = reading(
    """Return host jobs that have not ended, and lock them.""",
    "FROM batch CROSS JOIN jobs WHERE jobs.id = batch.job_id AND jobs.kind || '' = 'host_job'",
    "ORDER BY jobs.id FOR UPDATE OF jobs",
    batch={"job_id": jobs.c.id},
    returns=CLAIMED,
)

SERVERS = reading(
    """Return server instances by their ids.""",
    "FROM batch CROSS JOIN server_instances WHERE server_instances.id = batch.server_id",
    batch={"server_id": server_instances.c.id},
    returns=dict(server_instances.c.items()),
)

KEY_VERSIONS = reading(
    """Return the current versions of the keys of hosts.""",
    "FROM batch CROSS JOIN hosts WHERE hosts.id = batch.of_host",
    batch={"of_host": hosts.c.id},
    returns={"id": hosts.c.id, "key_version": hosts.c.key_version},
)

LOCK_HOSTS = reading(
    """Return the current versions of the keys of hosts, and lock the hosts.""",
    "FROM batch CROSS JOIN hosts WHERE hosts.id = batch.of_host",
    "ORDER BY hosts.id FOR UPDATE OF hosts",
    batch={"of_host": hosts.c.id},
    returns={"id": hosts.c.id, "key_version": hosts.c.key_version},
)

ADOPT_RUNNING = Statement(
    """Lease running jobs to the new sessions of their agents, with the same fences.""",
    """
    UPDATE jobs SET lease_owner = batch.session
    FROM batch WHERE jobs.id = batch.job_id AND jobs.fence = batch.of_fence AND jobs.state || '' = 'running'
    """,
    batch={"job_id": jobs.c.id, "of_fence": jobs.c.fence, "session": jobs.c.lease_owner},
)

CONNECTED = Statement(
    """Record what the agents of hosts said when they registered.""",
    """
    UPDATE hosts SET agent_version = batch.agent_version, job_types = batch.job_types, last_heartbeat_at = :now
    FROM batch WHERE hosts.id = batch.of_host
    """,
    batch={"of_host": hosts.c.id, "agent_version": hosts.c.agent_version, "job_types": hosts.c.job_types},
)
