"""Hot statements use their indexes with any amount of future jobs and history.

The real statements are caught on their way to the database and explained there.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event
from sqlalchemy import text as sql
from sqlalchemy.engine import Engine

import rota.kinds.pipelines.runner  # noqa: F401  registers the kind, whose filter is a literal then
from rota.core.errors import LogicError
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.log_levels import LogLevel
from rota.core.model import AttemptResult, Job
from rota.core.policy import Terms
from rota.core.run_filter import InputField
from rota.core.states import Phase, Status
from rota.core.steps import StepStatus, StepType
from rota.db.connection import open_database
from rota.db.dialect import Tx
from rota.db.paging import write_cursor
from rota.db.postgres import TIMEOUTS
from rota.db.statement import statement_listeners
from rota.engine import claiming, finishing, firing, jobs, runs, schedules, serial_keys, steps, workers
from rota.engine.records import StepRow
from rota.kinds.pipelines import store as pipelines_store
from rota.kinds.workflows import reports as workflows_reports
from rota.kinds.workflows.rules import EventStatus, HandlerKind
from rota.kinds.workflows.store import effects, events, operators, upkeep, workflows
from rota.kinds.workflows.store.consumer_jobs import ensure_consumer_job
from rota.kinds.workflows.store.publishing import publish_inputs
from rota.kinds.workflows.store.records import NewEvent, StartedRun, WorkflowRow
from rota.reports import diagnostics, installation, neighbours, overview, run_logs, run_search
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports
from rota.reports import slots as slot_reports
from rota.reports.audit import list_audit
from rota.reports.run_logs import LogFilter
from tests.databases import copy_sqlite
from tests.postgres import create_database, drop_database

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
MANY = 1_000_000
ORG = "01J00000000000000000000000"
LANES = [Lane(ORG, "default"), Lane(ORG, "other")]
JOBS = [
    Job(
        f"R{n:025}",
        ORG,
        "task",
        "t",
        "task",
        None,
        "default",
        None,
        None,
        None,
        "manual",
        0,
        0,
        0,
        0,
        n,
        NOW,
        NOW,
        None,
        None,
        None,
        None,
        None,
        None,
        Terms(),
    )
    for n in range(500)
]
ENDED = [AttemptResult(job, Status.SUCCESS, None, NOW, new_id(), 1, NOW) for job in JOBS]
RECORDED = [
    (job.fence, StepRow(job.id, "charge", ORG, 1, StepType.STEP, StepStatus.DONE, 1, NOW, new_id())) for job in JOBS
]
TAKEN_AT_ONCE = [replace(result, job=replace(result.job, fence=7)) for result in ENDED]

FILL = """
INSERT INTO jobs (id, org_id, kind, target, route, queue, serial_key, priority, queued_at, run_at, state, trigger,
                  attempt, tries, crashes, rescues, fence)
SELECT 'F' || lpad(n::text, 25, '0'), 'org' || n % 50, 'task', 't', 'task', 'default',
       CASE WHEN n % 2 = 0 THEN 'k' || n END, 0, now(), timestamptz '2027-01-01' + n * interval '1 second', 'later',
       'manual', 0, 0, 0, 0, 0
FROM generate_series(1, {many}) AS n
"""
FILL_OTHERS = """
INSERT INTO jobs (id, org_id, kind, target, route, queue, serial_key, priority, queued_at, run_at, state, trigger,
                  attempt, tries, crashes, rescues, fence, lease_owner)
SELECT 'R' || lpad(n::text, 25, '0'), 'org' || n % 50, 'task', 't', 'task', 'default',
       CASE WHEN n % 4 >= 2 THEN 'b' || n % 100 END, 0, now(), timestamptz '2026-05-04', 
       CASE n % 4 WHEN 0 THEN 'ready' WHEN 1 THEN 'running' ELSE 'blocked' END, 'manual', 0, 0, 0, 0, 0,
       CASE WHEN n % 4 = 1 THEN 'w' || n % 20 END
FROM generate_series(1, 5000) AS n
"""
FILL_BATCH = """
INSERT INTO jobs (id, org_id, kind, target, route, queue, priority, queued_at, run_at, state, trigger, attempt, tries,
                  crashes, rescues, fence, lease_owner)
SELECT 'R' || lpad(n::text, 25, '0'), 'org', 'task', 't', 'task', 'default', 0, now(), now(), 'running', 'manual', 0, 0,
       0, 0, 7, 'w1' FROM generate_series(0, 4999) AS n
"""
FILL_CLOCKS = """
INSERT INTO schedules (id, org_id, name, description, tags, kind, target, route, timing, misfire, catch_up_limit,
                       overlap, priority, queue, enabled, condition, revision, source, created_at, updated_at)
SELECT 'S' || lpad(n::text, 25, '0'), '{org}', 's' || n, '', '[]', 'task', 't', 'task', '{{}}', 'skip', 1, 'skip', 0,
       'default', true, 'ok', 1, 'api', now(), now() FROM generate_series(1, 20000) AS n;
INSERT INTO clocks (schedule_id, org_id, kind, next_slot, next_run_at, fired)
SELECT 'S' || lpad(n::text, 25, '0'), '{org}', 'task', timestamptz '2027-01-01' + n * interval '1 second',
       CASE WHEN n % 10 <> 0 THEN timestamptz '2027-01-01' + n * interval '1 second' END, 0
FROM generate_series(1, 20000) AS n;
INSERT INTO schedule_stats (schedule_id, failure_count, skipped_count) SELECT id, 0, 0 FROM schedules;
"""

FLOW, FLOW_RUN = f"W{1:025}", f"X{1:025}"
RUN = StartedRun(FLOW_RUN, FLOW, "Take", HandlerKind.CONSUMER, Phase.PREPARING, None, NOW)
FILL_FLOWS = """
INSERT INTO workflows (id, org_id, name, description, source, version, declaration, created_at, updated_at)
SELECT 'W' || lpad(n::text, 25, '0'), '{org}', 'flow' || n, '', 'code:x', '1', '{{"topics": ["in"], "route": "r"}}',
       now(), now()
FROM generate_series(1, 200) AS n;
INSERT INTO handlers (workflow_id, name, type, subscribe, dirty)
SELECT id, 'Take', 'consumer', '["in"]', true FROM workflows;
INSERT INTO events (id, workflow_id, topic, message_id, status, source, reserved_by, attempt, created_at, updated_at)
SELECT 'E' || lpad(n::text, 25, '0'), 'W' || lpad((n % 20 + 1)::text, 25, '0'), 'in', n::text,
       CASE WHEN n > 190000 THEN 'pending' WHEN n % 1000 = 0 THEN 'reserved' WHEN n % 1000 = 1 THEN 'skipped'
            ELSE 'consumed' END,
       CASE WHEN n % 2 = 0 THEN 'api' END, CASE WHEN n <= 190000 THEN 'X' || lpad((n % 20 + 1)::text, 25, '0') END, 1,
       timestamptz '2026-01-01' + n * interval '1 second', timestamptz '2026-01-01' + n * interval '1 second'
FROM generate_series(1, 200000) AS n;
INSERT INTO causes (input_id, event_id)
SELECT 'E' || lpad((n - 1)::text, 25, '0'), 'E' || lpad(n::text, 25, '0') FROM generate_series(3, 200000, 2) AS n;
INSERT INTO workflow_runs (id, workflow_id, handler_id, handler_type, phase, created_at, updated_at)
SELECT 'X' || lpad(n::text, 25, '0'), 'W' || lpad((n % 20 + 1)::text, 25, '0'), 'Take', 'consumer', 'committed', now(),
       now()
FROM generate_series(1, 50000) AS n;
INSERT INTO effects (id, workflow_id, run_id, call, params, status, reconcile_attempts, inputs, created_at, updated_at)
SELECT 'Y' || lpad(n::text, 25, '0'), 'W' || lpad((n % 20 + 1)::text, 25, '0'), 'X' || lpad(n::text, 25, '0'), 'a.b',
       '{{}}',
       CASE WHEN n % 5000 = 0 THEN 'indeterminate' ELSE 'applied' END, 0, 1, now(), now()
FROM generate_series(1, 50000) AS n;
"""

STEPS: dict[str, tuple[Callable[[Tx], Any], set[str]]] = {
    "claim": (
        lambda tx: claiming.claim(tx, LANES, worker="v", routes=["task", "shell"], room=50, turn=0),
        {"ix_jobs_ready"},
    ),
    "claim of a sole lane": (
        lambda tx: claiming.claim_sole(LANES[0], worker="v", routes=["task", "shell"], room=50)(tx),
        {"ix_jobs_ready"},
    ),
    "finish": (lambda tx: finishing.finish(tx, ENDED, "w1", NOW), set()),
    "record steps": (lambda tx: steps.recording(RECORDED)(tx), set()),
    "lanes": (lambda tx: claiming.lanes(tx), {"ix_jobs_ready"}),
    "lanes from the middle": (lambda tx: claiming.lanes(tx, None, LANES[0]), {"ix_jobs_ready"}),
    "next due": (lambda tx: jobs.next_due(tx), {"ix_jobs_due"}),
    "due": (lambda tx: jobs.release_due(tx, NOW), {"ix_jobs_due"}),
    "promote": (lambda tx: serial_keys.promote(tx, ["b2", "b3"]), {"ix_jobs_blocked", "ix_jobs_heads"}),
    "rescue": (lambda tx: finishing.rescue(tx, "w1", NOW), {"ix_jobs_held"}),
    "cancels": (lambda tx: jobs.cancel_requests(tx, "w1"), {"ix_jobs_held"}),
    "hand back": (lambda tx: finishing.hand_back(tx, "w1", None), {"ix_jobs_held"}),
    "of schedules": (lambda tx: jobs.of_schedules(tx, ["S1", "S2"]), {"ix_jobs_schedule"}),
    "schedules due": (lambda tx: firing.read_clocks(tx, ["task"], NOW, 200), {"ix_clocks_due"}),
    "next run": (lambda tx: firing.next_due_at(tx, ["task"], NOW), {"ix_clocks_due"}),
    "a schedule by its name": (
        lambda tx: tx.execute(schedule_reports.schedule_query().where(schedules.by_id_or_name(ORG, "x"))),
        {"ix_schedules_name"},
    ),
    "the id of a schedule": (lambda tx: schedule_reports.schedule_id_of(tx, ORG, "x"), {"ix_schedules_name"}),
    "a page of schedules": (lambda tx: schedule_reports.list_schedules(tx, ORG), {"ix_schedules_name"}),
    "schedules with a tag": (lambda tx: schedule_reports.list_schedules(tx, ORG, tag="x"), {"schedule_tags"}),
    "schedules with a tag by id": (
        lambda tx: schedule_reports.list_schedules(tx, ORG, tag="x", sort="-id"),
        {"ix_schedule_tags_id"},
    ),
    "ids of schedules with a tag": (lambda tx: schedules.ids_matching(tx, ORG, tag="x"), {"ix_schedule_tags_id"}),
    "schedules that are paused": (
        lambda tx: schedule_reports.list_schedules(tx, ORG, paused=True),
        {"ix_schedules_paused"},
    ),
    "schedules by a part of their name": (
        lambda tx: schedule_reports.list_schedules(tx, ORG, name="x"),
        {"ix_schedules_name"},
    ),
    "successful runs": (lambda tx: run_reports.list_runs(tx, ORG, status=Status.SUCCESS), {"ix_runs_recorded"}),
    "failed runs": (lambda tx: run_reports.list_runs(tx, ORG, status=Status.FAILED), {"ix_runs_status"}),
    "runs of a time": (
        lambda tx: run_reports.list_runs(tx, ORG, status=Status.SUCCESS, since=NOW, until=NOW),
        {"ix_runs_recorded"},
    ),
    "runs of a schedule": (
        lambda tx: run_reports.list_runs(tx, ORG, schedule_id="S1"),
        {"ix_runs_schedule", "ix_jobs_schedule"},
    ),
    "search by the input": (lambda tx: searched(tx, input=(InputField(("a",), "1"),)), {"ix_runs_recorded"}),
    "search by the error": (lambda tx: searched(tx, error="timeout"), {"ix_runs_error"}),
    "search by the reason": (lambda tx: searched(tx, reason="timeout"), {"ix_runs_recorded"}),
    "search by error and status": (
        lambda tx: searched(tx, error="timeout", status=Status.FAILED),
        {"ix_runs_status"},
    ),
    "search by the worker": (lambda tx: searched(tx, worker="w1"), {"ix_runs_recorded"}),
    "search by the duration": (lambda tx: searched(tx, longer_than=timedelta(hours=1)), {"ix_runs_recorded"}),
    "search by the end of a range": (lambda tx: searched(tx, since=NOW, until=NOW), {"ix_runs_recorded"}),
    "search by the kind": (lambda tx: searched(tx, kind="task"), {"ix_runs_recorded"}),
    "search in a schedule": (lambda tx: searched(tx, schedule_id="S1", error="timeout"), {"ix_runs_schedule"}),
    "search by a tag": (lambda tx: searched(tx, tag="x", schedule_ids=["S1", "S2"]), {"ix_runs_schedule"}),
    "search by a tag of many schedules": (lambda tx: searched(tx, tag="x"), {"ix_runs_recorded"}),
    "runs of a pipeline": (
        lambda tx: run_reports.list_runs(tx, ORG, status=Status.SUCCESS, kind="pipeline", target="a/b/c"),
        {"ix_runs_pipeline"},
    ),
    "successful runs of a target": (
        lambda tx: run_reports.list_runs(tx, ORG, status=Status.SUCCESS, target="t"),
        {"ix_runs_target"},
    ),
    "fire of triggers": (lambda tx: pipelines_store.fire_triggers(tx, ["T1", "T2"], NOW), set()),
    "dead with jobs": (lambda tx: workers.dead_with_jobs(tx), {"ix_jobs_held"}),
    "parked": (lambda tx: overview.parked(tx, ORG), {"ix_jobs_parked"}),
    "running": (lambda tx: overview.running(tx, ORG), set()),
    "slots to come": (lambda tx: overview.due(tx, ORG, ["task"]), {"ix_clocks_due"}),
    "late slots": (lambda tx: overview.late(tx, ORG, ["task"], NOW), {"ix_clocks_due"}),
    "missed slots": (lambda tx: slot_reports.missed(tx, ORG, NOW, 10), {"ix_slots_missed"}),
    "paused schedules": (lambda tx: overview.paused(tx, ORG), {"ix_schedules_paused"}),
    "the last slots of a schedule": (lambda tx: slot_reports.strip(tx, "S1", 30), set()),
    "how late slots started": (lambda tx: overview.lateness(tx, ORG), {"ix_runs_recorded"}),
    "the last run of a schedule": (lambda tx: overview.last_durations(tx, ["S1"]), {"ix_runs_schedule"}),
    "a page of a log": (lambda tx: run_logs.page(tx, "R1", 5, 100, LogFilter()), {"ix_logs_run"}),
    "lines of a log that match": (
        lambda tx: run_logs.page(tx, "R1", 5, 100, LogFilter(level=LogLevel.ERROR)),
        {"ix_logs_run"},
    ),
    "the runs around a run of a schedule": (
        lambda tx: neighbours.neighbours(
            tx, ORG, {"id": "R1", "job_id": "J1", "schedule_id": "S1", "target_name": "t", "kind": "task"}
        ),
        {"ix_runs_schedule"},
    ),
    "who changed a thing": (
        lambda tx: list_audit(tx, ORG, limit=20, resource="schedules", resource_id="S1"),
        {"ix_audit_log_resource"},
    ),
    "workers": (lambda tx: installation.list_workers(tx), set()),
    "schedules with nothing planned": (lambda tx: diagnostics.unplanned(tx, NOW), {"ix_clocks_held"}),
    "a workflow with its handlers": (lambda tx: locked_workflow(tx), set()),
    "the job of the consumers": (lambda tx: ensure_consumer_job(tx, locked_workflow(tx), NOW), {"ix_jobs_solo"}),
    "to publish events from outside": (
        lambda tx: publish_inputs(ORG, "flow1", [NewEvent("in", "new", 1), NewEvent("in", "200000", 1)], NOW)(tx),
        {"ix_jobs_solo"},
    ),
    "pending events": (lambda tx: events.peek(tx, FLOW, {"in": 100}), {"ix_events_pending"}),
    "the oldest pending event": (lambda tx: events.oldest_pending(tx, FLOW, ["in"]), {"ix_events_pending"}),
    "to reserve events": (
        lambda tx: events.reserve(tx, RUN, {"in": pending_ids(tx)}, EventStatus.CONSUMED, NOW),
        set(),
    ),
    "to consume the events of a run": (lambda tx: events.consume(tx, RUN, NOW), {"ix_events_taken"}),
    "inputs of the events of a run": (
        lambda tx: events.inputs_of(tx, events.reserved_events(tx, RUN)),
        {"ix_events_taken"},
    ),
    "to skip an event": (
        lambda tx: [operators.skip_event(tx, ORG, "flow1", event_id, NOW) for event_id in pending_ids(tx)[:1]],
        set(),
    ),
    "an open effect of a run": (lambda tx: effects.open_effect(tx, FLOW_RUN), set()),
    "orphaned events": (lambda tx: upkeep.orphaned_events(tx), {"ix_events_taken"}),
    "to prune events": (lambda tx: upkeep.prune_events(tx, NOW, 500), {"ix_events_done"}),
    "to prune runs": (lambda tx: runs.prune(tx, ORG, None, NOW, ["success"], 500), {"ix_runs_recorded"}),
    "to prune runs since": (lambda tx: runs.prune(tx, ORG, NOW, NOW, ["success"], 500), {"ix_runs_recorded"}),
    "limits of schedules": (lambda tx: runs.schedule_limits(tx), {"ix_schedules_kept"}),
    "schedules to prune": (
        lambda tx: runs.schedules_with_old_runs(tx, 3, NOW),
        {"ix_schedules_kept", "ix_runs_schedule"},
    ),
    "to prune runs of a schedule": (lambda tx: runs.prune_schedule(tx, "S1", NOW, 500), {"ix_runs_schedule"}),
    "a workflow in words": (
        lambda tx: workflows_reports.workflow(tx, ORG, FLOW, NOW),
        {"ix_events_pending", "ix_events_taken", "ix_effects_open", "ix_workflow_runs_workflow"},
    ),
    "inputs that wait": (lambda tx: workflows_reports.list_inputs(tx, ORG, FLOW, NOW, status="pending"), set()),
    "inputs that are done": (lambda tx: workflows_reports.list_inputs(tx, ORG, FLOW, NOW, status="done"), set()),
    "what waits in topics": (lambda tx: workflows_reports.count_pending(tx, ORG, FLOW), {"ix_events_pending"}),
    "events of a workflow": (lambda tx: workflows_reports.list_events(tx, ORG, FLOW), set()),
    "outputs of a workflow": (lambda tx: workflows_reports.list_outputs(tx, ORG, FLOW), set()),
}


def locked_workflow(tx: Tx) -> WorkflowRow:
    return workflows.get(tx, ORG, "flow1", hold=True)


def searched(tx: Tx, schedule_ids: list[str] | None = None, **filters: Any) -> None:
    """Read the first windows of a search, of jobs and of runs, and one in the middle of the runs."""
    plan = run_search.prepare(tx, ORG, run_reports.RunFilters(**filters), NOW)
    plan = replace(plan, schedule_ids=schedule_ids or plan.schedule_ids or None)
    plan = plan if schedule_ids or plan.schedule_ids or "tag" not in filters else replace(plan, tag="x")
    for position in (None, write_cursor("run", ""), run_search.run_position((NOW, ORG))):
        run_search.read_window(tx, plan, position, 51)


def pending_ids(tx: Tx) -> list[str]:
    return [event.id for event in events.peek(tx, FLOW, {"in": 100})]


OURS = ("events", "causes", "handlers", "workflows", "workflow_runs", "effects")
WHOLE_TABLE = (
    *("Seq Scan on jobs", "Seq Scan on clocks", "Seq Scan on schedules"),
    *("SCAN jobs", "SCAN clocks", "SCAN schedules", "SCAN waiting", "SCAN head"),
    *(f"{how} {table}" for how in ("Seq Scan on", "SCAN") for table in OURS),
)


@contextmanager
def caught(engine: Engine, statements: list[tuple[str, Any]]) -> Iterator[None]:
    tables = (
        " jobs",
        " clocks",
        " schedules",
        " audit_log",
        "FROM runs",
        "FROM logs",
        *(f" {table}" for table in OURS),
    )

    def catch(statement: str, parameters: Any) -> None:
        if any(table in statement for table in tables):
            statements.append((statement, tuple(parameters)))

    def heard(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> None:
        catch(statement, parameters)

    event.listen(engine, "before_cursor_execute", heard)
    statement_listeners.append(catch)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", heard)
        statement_listeners.remove(catch)


# PostgreSQL


@pytest.fixture(scope="module")
def large_database(postgres_url: str, postgres_template: str) -> Iterator[str]:
    """A million jobs of the future, some thousands of today's, twenty thousand schedules."""
    url = create_database(postgres_url, template=postgres_template)

    def fill(tx: Tx) -> None:
        tx.execute(sql("SET LOCAL statement_timeout = 0"))
        tx.execute(sql("SET LOCAL synchronous_commit = off"))
        tx.execute(sql(f"INSERT INTO orgs (id, slug, name, created_at) VALUES ('{ORG}', 'o', 'o', now())"))
        tx.execute(sql(FILL.format(many=MANY)))
        tx.execute(sql(FILL_OTHERS))
        for part in [*FILL_CLOCKS.format(org=ORG).split(";")[:3], *FILL_FLOWS.format(org=ORG).split(";")[:6]]:
            tx.exec_driver_sql(part)
        tx.execute(sql("ANALYZE"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(TIMEOUTS, "command_timeout", 240)  # a million rows take longer than a statement of Rota may
        run_in(url, fill)
    yield url
    drop_database(postgres_url, url)


def run_in(url: str, step: Callable[[Tx], Any]) -> Any:
    async def run() -> Any:
        db = open_database(url)
        try:
            return await db.tx(step)
        finally:
            await db.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name_of_step", STEPS)
def test_postgresql_walks_no_table_for(large_database: str, name_of_step: str) -> None:
    step, indexes = STEPS[name_of_step]

    def explained(tx: Connection) -> list[tuple[str, str]]:
        statements: list[tuple[str, Any]] = []
        with caught(tx.engine, statements):
            inner = tx.begin_nested()
            step(tx)
            inner.rollback()
        plans = []
        for mode in ("force_custom_plan", "force_generic_plan"):
            tx.execute(sql(f"SET LOCAL plan_cache_mode = {mode}"))
            for statement, parameters in statements:
                # PostgreSQL shows the subqueries of a recursive term only if it runs it
                explain = "EXPLAIN ANALYZE" if statement.startswith("WITH RECURSIVE") else "EXPLAIN"
                plan = tx.exec_driver_sql(f"{explain} {statement}", parameters).scalars().all()
                plans.append((mode, "\n".join(plan)))
        return plans

    plans = run_in(large_database, explained)
    assert plans
    for mode, plan in plans:
        assert not any(bad in plan for bad in WHOLE_TABLE), f"{mode}:\n{plan}"
    for index in indexes:
        for mode in ("force_custom_plan", "force_generic_plan"):
            text = "\n\n".join(plan for how, plan in plans if how == mode)
            assert index in text, f"{mode} without {index}:\n{text}"


@pytest.mark.parametrize("filled", [True, False])
def test_postgresql_takes_events_by_their_ids(
    large_database: str, postgres_url: str, postgres_template: str, filled: bool
) -> None:
    """Also without statistics of the events: not by a scan of all pending events."""
    url = large_database if filled else create_database(postgres_url, template=postgres_template)

    def explained(tx: Connection) -> list[str]:
        statements: list[tuple[str, Any]] = []
        with caught(tx.engine, statements):
            events.oldest_pending(tx, FLOW, ["in"])
            if filled:
                events.reserve(tx, RUN, {"in": pending_ids(tx)}, EventStatus.CONSUMED, NOW)
            else:
                with pytest.raises(LogicError, match="not pending"):
                    events.reserve(tx, RUN, {"in": [FLOW_RUN]}, EventStatus.CONSUMED, NOW)
        return ["\n".join(tx.exec_driver_sql(f"EXPLAIN {text}", values).scalars()) for text, values in statements]

    plans = run_in(url, explained)
    if not filled:
        drop_database(postgres_url, url)
    (taking,) = [plan for plan in plans if "Update on events" in plan]
    assert "pk_events" in taking, taking
    assert "ix_events" not in taking, taking
    assert "Limit" in plans[0], plans[0]


@pytest.mark.parametrize("filled", ["large", "some batches", "empty"])
@pytest.mark.parametrize("ended", [ENDED, TAKEN_AT_ONCE])
def test_postgresql_finds_a_batch_by_its_ids(
    large_database: str, postgres_url: str, postgres_template: str, filled: str, ended: list[AttemptResult]
) -> None:
    """Also by a plan that was made while there was nothing in the table: connections keep their plans."""
    url = large_database if filled == "large" else create_database(postgres_url, template=postgres_template)

    def explained(tx: Connection) -> list[str]:
        statements: list[tuple[str, Any]] = []
        if filled == "some batches":
            tx.execute(sql(FILL_BATCH))
        with caught(tx.engine, statements):
            finishing.finish(tx, ended, "w1", NOW)
        return ["\n".join(tx.exec_driver_sql(f"EXPLAIN {text}", values).scalars()) for text, values in statements]

    (plan,) = run_in(url, explained)
    if filled != "large":
        drop_database(postgres_url, url)
    assert "Index Scan using pk_jobs" in plan, plan
    assert "ix_jobs_held" not in plan, plan
    assert "Join Filter" not in plan, plan  # the whole batch for each job


# SQLite


@pytest.fixture(scope="module")
def sqlite_file(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "rota.db"
    copy_sqlite(sqlite_template, f"sqlite:///{path}")
    return path


@pytest.mark.parametrize("name_of_step", STEPS)
def test_sqlite_walks_no_table_for(sqlite_file: Path, name_of_step: str) -> None:
    step, indexes = STEPS[name_of_step]
    engine = create_engine(f"sqlite:///{sqlite_file}")
    statements: list[tuple[str, Any]] = []
    plans: list[str] = []
    with engine.connect() as tx:
        tx.execute(
            sql(
                "INSERT INTO jobs (id, org_id, kind, target, route, queue, priority, queued_at, run_at, state, trigger,"
                " attempt, tries, crashes, rescues, fence) VALUES"
                " ('R', :org, 'task', 't', 'task', 'default', 0, 0, 0, 'ready', '', 0, 0, 0, 0, 0),"
                " ('L', :org, 'task', 't', 'task', 'default', 0, 0, 0, 'later', '', 0, 0, 0, 0, 0)"
            ),
            {"org": ORG},
        )
        tx.exec_driver_sql(
            "INSERT INTO workflows (id, org_id, name, description, source, version, declaration, created_at,"
            f""" updated_at) VALUES ('{FLOW}', '{ORG}', 'flow1', '', '', '', '{{"topics": []}}', 0, 0)"""
        )
        with caught(engine, statements):
            step(tx)
        for statement, parameters in statements:
            plans += [row[3] for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        tx.rollback()
    engine.dispose()
    text = "\n".join(plans)
    for line in plans:
        if any(line.startswith(bad) for bad in WHOLE_TABLE):
            assert "INDEX ix_" in line, text
    for index in indexes:
        assert index in text, f"without {index}:\n{text}"


def test_sqlite_skips_a_lane_in_constant_time(sqlite_file: Path) -> None:
    engine = create_engine(f"sqlite:///{sqlite_file}")
    with engine.connect() as tx:
        few, _ = work_of_lanes(tx, count=10)
        many, lanes = work_of_lanes(tx, count=10_000)
        tx.rollback()
    engine.dispose()
    assert [(lane.org_id, lane.queue) for lane in lanes] == [("o1", "a"), ("o1", "b"), ("o2", "a"), ("o2", "b")]
    assert many <= few + 10, f"{few} steps of SQLite with ten jobs in each lane, {many} with ten thousand"


def work_of_lanes(tx: Connection, count: int) -> tuple[int, list[Lane]]:
    """How much SQLite does to find four lanes with so many jobs each, and what it finds."""
    tx.exec_driver_sql(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)"
        " INSERT INTO jobs (id, org_id, kind, target, route, queue, priority, queued_at, run_at, state, trigger,"
        " attempt, tries, crashes, rescues, fence)"
        " SELECT hex(randomblob(13)), org, 'task', 't', 'task', queue, 0, 0, n, 'ready', '', 0, 0, 0, 0, 0 FROM n,"
        " (SELECT 'o1' AS org UNION SELECT 'o2'), (SELECT 'a' AS queue UNION SELECT 'b')",
        (count,),
    )
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = tx.connection.driver_connection
    assert connection is not None
    connection.set_progress_handler(step, 10)
    try:
        lanes = claiming.lanes(tx)
        return steps, lanes
    finally:
        connection.set_progress_handler(None, 0)


def test_the_clock_of_these_plans_lies_before_all_future_work() -> None:
    assert NOW + timedelta(days=1) < datetime(2027, 1, 1, tzinfo=UTC)
