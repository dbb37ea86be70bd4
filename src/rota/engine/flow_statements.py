"""The hot statements of admission: rates, and the places of keys. See `statements.py`."""

from sqlalchemy import BigInteger, column

from rota.db.statement import Statement
from rota.db.tables import jobs, rate_limits
from rota.engine.statements import OWNED

RESERVE_STARTS = Statement(
    """Move the TAT of keys by the starts of a batch, from now on if it has passed; returns it.""",
    """
    INSERT INTO rate_limits (key, tat_us)
    SELECT batch.of_key, CAST(:now_us AS bigint) + batch.span_us FROM batch WHERE batch.of_key IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET tat_us = excluded.tat_us + CASE WHEN rate_limits.tat_us > CAST(:now_us AS bigint)
                                             THEN rate_limits.tat_us - CAST(:now_us AS bigint) ELSE 0 END
    RETURNING key, tat_us
    """,
    batch={"of_key": rate_limits.c.key, "span_us": column("span_us", BigInteger)},
    returns={"key": rate_limits.c.key, "tat_us": rate_limits.c.tat_us},
)

TAKE_PLACES = Statement(
    """Give places to jobs that this worker still owns; returns the ids of these jobs.""",
    f"""
    UPDATE jobs SET place_key = batch.of_place, place_wanted = NULL, place_limit = NULL
    FROM batch WHERE {OWNED}
    RETURNING jobs.id
    """,
    batch={"job_id": jobs.c.id, "of_fence": jobs.c.fence, "of_place": jobs.c.place_key},
    returns={"id": jobs.c.id},
)

SET_ASIDE = Statement(
    """Return jobs that this worker still owns and that may not start yet to the queue; returns them, with a request to
    cancel them if there is one.""",
    f"""
    UPDATE jobs SET state = batch.state, run_at = batch.run_at, reserved_at = batch.reserved_at,
                    place_wanted = batch.place_wanted, place_limit = batch.place_limit, lease_owner = NULL
    FROM batch WHERE {OWNED}
    RETURNING jobs.id, jobs.cancel_requested_at, jobs.cancel_reason
    """,
    batch={
        "job_id": jobs.c.id,
        "of_fence": jobs.c.fence,
        **{name: jobs.c[name] for name in ("state", "run_at", "reserved_at", "place_wanted", "place_limit")},
    },
    returns={name: jobs.c[name] for name in ("id", "cancel_requested_at", "cancel_reason")},
)

HAND_ON_PLACES = Statement(
    """Give one free place of each key to the most urgent job that waits for it, and make that job ready; returns the
    keys of these places.""",
    """
    UPDATE jobs SET state = 'ready', run_at = :now, place_key = jobs.place_wanted, place_wanted = NULL,
                    place_limit = NULL
    WHERE jobs.id IN (
        SELECT (SELECT waiting.id FROM jobs AS waiting
                WHERE waiting.place_wanted = batch.of_place AND waiting.state = 'retry'
                      AND waiting.place_limit > (SELECT count(*) FROM jobs AS holder
                                                 WHERE holder.place_key = batch.of_place)
                ORDER BY waiting.priority DESC, waiting.queued_at, waiting.id LIMIT 1)
        FROM batch)
    RETURNING place_key
    """,
    batch={"of_place": jobs.c.place_key},
    returns={"place_key": jobs.c.place_key},
)

PASS_THROTTLE = Statement(
    """Set the end of the period of a key, if it has passed; returns the key if so.""",
    """
    INSERT INTO rate_limits (key, tat_us) VALUES (:key, CAST(:until_us AS bigint))
    ON CONFLICT (key) DO UPDATE SET tat_us = excluded.tat_us WHERE rate_limits.tat_us <= CAST(:now_us AS bigint)
    RETURNING key
    """,
    returns={"key": rate_limits.c.key},
)
