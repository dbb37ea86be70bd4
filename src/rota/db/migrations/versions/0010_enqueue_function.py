"""`rota_enqueue`: programs in any language enqueue a task in their own transaction on PostgreSQL.

It does in SQL what `engine/jobs.py` does for one job; tests compare the rows of both. Within a generation of the schema
columns of `jobs` have defaults, so a later migration replaces the function only if it shall set them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

NEW_ID = """
CREATE FUNCTION rota_new_id() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    digits CONSTANT text := '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
    random_bytes CONSTANT bytea := uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());
    milliseconds bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    id text := '';
BEGIN
    FOR place IN 1..10 LOOP
        id := substr(digits, (milliseconds % 32)::int + 1, 1) || id;
        milliseconds := milliseconds / 32;
    END LOOP;
    FOR place IN 0..16 LOOP
        CONTINUE WHEN place = 6;  -- it contains the version of the UUID
        id := id || substr(digits, get_byte(random_bytes, place) % 32 + 1, 1);
    END LOOP;
    RETURN id;
END $function$
"""

CHECK_LABEL = """
CREATE FUNCTION rota_check_label(field text, value jsonb, is_name boolean) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    label CONSTANT text := value #>> '{}';
    problem text;
BEGIN
    problem := CASE
        WHEN jsonb_typeof(value) <> 'string' THEN 'is not text'
        WHEN btrim(label) = '' THEN 'is empty'
        WHEN length(label) > 200 THEN 'is longer than 200 characters'
        WHEN label ~ '[[:cntrl:]]' OR label <> btrim(label) THEN 'has control characters or blanks at its ends'
        WHEN is_name AND label LIKE '%/%' THEN 'has a `/`'
        WHEN is_name AND upper(label) ~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}$' THEN 'looks like an id (a ULID)'
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'rota_enqueue: % % %', field, left(value::text, 100), problem
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN label;
END $function$
"""

ENQUEUE = """
CREATE FUNCTION rota_enqueue(org text, target text, input jsonb DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY INVOKER AS $function$
DECLARE
    new_id CONSTANT text := rota_new_id();
    enqueued_at CONSTANT timestamptz := clock_timestamp();
    parameters CONSTANT jsonb := nullif(rota_enqueue.input, 'null');
    chosen CONSTANT jsonb := jsonb_strip_nulls(coalesce(rota_enqueue.options, '{}'));
    mode CONSTANT text := coalesce(chosen ->> 'key_mode', 'reject');
    unknown text;
    org_row orgs%ROWTYPE;
    task_row tasks%ROWTYPE;
    holder jobs%ROWTYPE;
    queue_name text := 'default';
    urgency int := 0;
    due_at timestamptz := enqueued_at;
    unique_key text;
    order_key text;
BEGIN
    IF jsonb_typeof(chosen) <> 'object' THEN
        RAISE EXCEPTION 'rota_enqueue: options is not an object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT string_agg(quote_literal(option), ', ') INTO unknown FROM jsonb_object_keys(chosen) AS option
    WHERE option NOT IN ('kind', 'queue', 'priority', 'run_at', 'serial_key', 'job_key', 'key_mode');
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'rota_enqueue: unknown option %', unknown USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Options are kind, queue, priority, run_at, serial_key, job_key and key_mode.';
    END IF;
    IF coalesce(chosen -> 'kind', '"task"') <> '"task"' THEN
        RAISE EXCEPTION 'rota_enqueue: kind % cannot be enqueued by SQL, only task', chosen -> 'kind'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF chosen ? 'queue' THEN
        queue_name := rota_check_label('queue', chosen -> 'queue', true);
    END IF;
    IF chosen ? 'priority' THEN
        IF (chosen ->> 'priority') !~ '^-?[0-9]{1,3}$' OR jsonb_typeof(chosen -> 'priority') <> 'number'
           OR (chosen ->> 'priority')::int NOT BETWEEN -100 AND 100 THEN
            RAISE EXCEPTION 'rota_enqueue: priority % is not a whole number from -100 to 100', chosen -> 'priority'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        urgency := (chosen ->> 'priority')::int;
    END IF;
    IF chosen ? 'run_at' THEN
        IF jsonb_typeof(chosen -> 'run_at') <> 'string'
           OR (chosen ->> 'run_at') !~ '^\\d{4}-\\d\\d-\\d\\d[T ]\\d\\d:\\d\\d[:.0-9]*(Z|[+-]\\d\\d:?\\d\\d)$' THEN
            RAISE EXCEPTION 'rota_enqueue: run_at % is not a time with an offset, such as 2026-05-04T09:00:00Z',
                left((chosen -> 'run_at')::text, 100) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        due_at := (chosen ->> 'run_at')::timestamptz;
    END IF;
    IF mode NOT IN ('reject', 'preserve', 'replace') THEN
        RAISE EXCEPTION 'rota_enqueue: key_mode % is not reject, preserve or replace', left(quote_literal(mode), 100)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(parameters) <> 'object' THEN
        RAISE EXCEPTION 'rota_enqueue: input is not an object of parameters'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(parameters::text) > 1048576 THEN
        RAISE EXCEPTION 'rota_enqueue: input has % bytes; at most 1048576 are allowed', octet_length(parameters::text)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO org_row FROM orgs WHERE orgs.slug = rota_enqueue.org;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rota_enqueue: organisation % not found', coalesce(quote_literal(rota_enqueue.org), 'NULL')
            USING ERRCODE = 'no_data_found';
    END IF;
    SELECT * INTO task_row FROM tasks
    WHERE tasks.org_id = org_row.id AND (tasks.id = rota_enqueue.target OR tasks.name = rota_enqueue.target)
    ORDER BY tasks.id <> rota_enqueue.target LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rota_enqueue: task % not found', coalesce(quote_literal(rota_enqueue.target), 'NULL')
            USING ERRCODE = 'no_data_found';
    ELSIF NOT task_row.enabled THEN
        RAISE EXCEPTION 'rota_enqueue: task % is disabled', quote_literal(task_row.name)
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF chosen ? 'serial_key' THEN
        order_key := org_row.id || ':' || rota_check_label('serial_key', chosen -> 'serial_key', false);
    END IF;
    IF chosen ? 'job_key' THEN
        unique_key := rota_check_label('job_key', chosen -> 'job_key', false);
    END IF;

    -- the keys are locked in the same order as by Rota itself
    PERFORM pg_advisory_xact_lock(lock)
    FROM (SELECT DISTINCT hashtextextended(key, 0) AS lock
          FROM unnest(ARRAY[order_key, 'job:' || org_row.id || ':' || unique_key]) AS key
          WHERE key IS NOT NULL ORDER BY lock) AS ordered;
    IF unique_key IS NOT NULL THEN
        SELECT * INTO holder FROM jobs WHERE jobs.org_id = org_row.id AND jobs.job_key = unique_key FOR UPDATE;
        IF FOUND AND mode = 'reject' THEN
            RAISE EXCEPTION 'rota_enqueue: job % already has the key %', holder.id, unique_key
                USING ERRCODE = 'unique_violation';
        ELSIF FOUND AND (mode = 'preserve' OR holder.state = 'running' OR holder.attempt > 0) THEN
            RETURN holder.id;
        ELSIF FOUND AND holder.schedule_id IS NOT NULL THEN
            RAISE EXCEPTION 'rota_enqueue: job % has the key % and belongs to a schedule', holder.id, unique_key
                USING ERRCODE = 'unique_violation';
        ELSIF FOUND THEN
            PERFORM pg_advisory_xact_lock(hashtextextended(holder.serial_key, 0)) WHERE holder.serial_key IS NOT NULL;
            DELETE FROM jobs WHERE jobs.id = holder.id;
            INSERT INTO runs (id, job_id, org_id, kind, target, route, input, trigger, attempt, retry_of, status,
                              reason, queued_at, finished_at, recorded_at, fence)
            VALUES (rota_new_id(), holder.id, holder.org_id, holder.kind, holder.target, holder.route, holder.payload,
                    holder.trigger, holder.attempt + 1, holder.last_run_id, 'skipped', 'superseded', holder.queued_at,
                    enqueued_at, enqueued_at, holder.fence);
        END IF;
    END IF;

    INSERT INTO jobs (id, org_id, kind, target, route, payload, queue, serial_key, job_key, priority, queued_at, run_at,
                      state, trigger, attempt, tries, crashes, rescues, fence)
    VALUES (new_id, org_row.id, 'task', rota_enqueue.target,
            CASE WHEN task_row.source = 'code' THEN 'task:' || org_row.slug || ':' || task_row.name
                 WHEN task_row.task_type = 'shell' THEN 'shell:' || org_row.slug
                 ELSE 'row:' || org_row.slug || ':' || task_row.command END,
            parameters::text, queue_name, order_key, unique_key, urgency, enqueued_at, due_at,
            CASE WHEN due_at > enqueued_at THEN 'later' WHEN order_key IS NOT NULL THEN 'blocked' ELSE 'ready' END,
            'manual', 0, 0, 0, 0, 0);
    -- the most urgent blocked job of each serial key without a head becomes its head
    UPDATE jobs SET state = 'ready'
    WHERE jobs.id IN (
        SELECT (SELECT waiting.id FROM jobs AS waiting
                WHERE waiting.serial_key = key AND waiting.state = 'blocked'
                ORDER BY waiting.priority DESC, waiting.run_at, waiting.id LIMIT 1)
        FROM unnest(ARRAY[order_key, holder.serial_key]) AS key
        WHERE NOT EXISTS (SELECT 1 FROM jobs AS head WHERE head.serial_key = key
                                                           AND head.state IN ('ready', 'running', 'retry', 'parked')));
    PERFORM pg_notify('rota', CASE WHEN due_at > enqueued_at THEN 'later' ELSE 'ready' END);
    RETURN new_id;
END $function$
"""

# The functions find the tables of the schema that they are created in, whatever the search path of their caller.
PIN_SEARCH_PATH = """
DO $do$ BEGIN
    EXECUTE format('ALTER FUNCTION rota_enqueue(text, text, jsonb, jsonb) SET search_path = pg_catalog, %I, pg_temp',
                   current_schema());
END $do$
"""


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for statement in (NEW_ID, CHECK_LABEL, ENQUEUE, PIN_SEARCH_PATH):
            op.execute(sa.text(statement.replace(":", "\\:")))


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION rota_enqueue(text, text, jsonb, jsonb)")
        op.execute("DROP FUNCTION rota_check_label(text, jsonb, boolean)")
        op.execute("DROP FUNCTION rota_new_id()")
