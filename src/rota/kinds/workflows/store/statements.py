"""The hot statements of workflows."""

from rota.db.statement import Statement
from rota.db.tables import events, handlers, jobs, workflows

READ_WORKFLOW = """
    SELECT {returns} FROM workflows
    WHERE workflows.org_id = :org_id AND (workflows.id = :key OR workflows.name = :key) AND workflows.deleted_at IS NULL
    ORDER BY workflows.id <> :key"""

WORKFLOW = Statement(
    "Return a workflow by its id or, if none has that, by its name.", READ_WORKFLOW, returns=dict(workflows.c.items())
)

LOCK_WORKFLOW = Statement(
    "Return a workflow by its id or name, and lock it.",
    f"{READ_WORKFLOW} FOR UPDATE",
    READ_WORKFLOW,
    returns=dict(workflows.c.items()),
)

HANDLERS = Statement(
    "Return the handlers of a workflow, by name.",
    "SELECT {returns} FROM handlers WHERE handlers.workflow_id = :workflow_id ORDER BY handlers.name",
    returns=dict(handlers.c.items()),
)

CONSUMER_JOB = Statement(
    "Return the waiting job of a workflow's consumers, if there is one.",
    "SELECT {returns} FROM jobs WHERE jobs.solo_key = :workflow_id",
    returns={"id": jobs.c.id, "state": jobs.c.state, "run_at": jobs.c.run_at},
)

PENDING_EVENTS = Statement(
    "Return pending events of a topic, oldest first.",
    """
    SELECT {returns} FROM events
    WHERE events.workflow_id = :workflow_id AND events.topic = :topic AND events.status = 'pending'
    ORDER BY events.id
    LIMIT :count
    """,
    returns=dict(events.c.items()),
)

RESERVE_EVENTS = Statement(
    """Reserve pending events of a topic for a run, or consume them; returns those that were pending. The concatenations
    keep other indexes out of the plan: without statistics PostgreSQL would read all pending events instead of looking
    up each event by its id.""",
    """
    UPDATE events SET status = :status, reserved_by = :run_id, updated_at = :now
    FROM batch
    WHERE events.id = batch.event_id AND events.workflow_id || '' = :workflow_id AND events.topic || '' = :topic
          AND events.status || '' = 'pending'
    RETURNING events.id, events.source
    """,
    batch={"event_id": events.c.id},
    returns={"id": events.c.id, "source": events.c.source},
)
