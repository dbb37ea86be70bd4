"""Assembles the engine of a process: the runners of all kinds, and the reports that the audit log and events need."""

from datetime import timedelta
from typing import TYPE_CHECKING

from rota.access import reports as access_reports
from rota.app.settings import Settings
from rota.billing import reports as billing_reports
from rota.core.clock import SystemClock
from rota.db.connection import Database
from rota.db.wake import Wake
from rota.engine import orgs
from rota.engine.commands import Engine
from rota.engine.extensions import Extensions
from rota.engine.metrics import Metrics
from rota.engine.runner import Runner
from rota.frame.http.maintenance import prune_idempotency_keys
from rota.kinds.alarms.runner import AlarmRunner
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.hosts.runner import HostRunner
from rota.kinds.pipelines.executor import executor_here
from rota.kinds.pipelines.runner import PipelineRunner
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.runner import TaskRunner
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.repair import CommandRepairer, RepairRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.reports import calendars as calendar_reports
from rota.reports import catch_ups as catch_up_reports
from rota.reports import freezes as freeze_reports
from rota.reports import installation
from rota.reports import schedules as schedule_reports

if TYPE_CHECKING:
    from rota.app.application import Rota

BUILT_IN_RUNNERS = (*(TaskRunner, GraphRunner, PipelineRunner, WorkflowRunner, RepairRunner, HostRunner, AlarmRunner),)
BUILT_IN_KINDS = frozenset(runner.kind for runner in BUILT_IN_RUNNERS)

EXTENSIONS = Extensions(
    describers={
        "schedules": schedule_reports.schedule,
        "calendars": calendar_reports.calendar,
        "freeze-windows": freeze_reports.change_of,
        "catch-ups": catch_up_reports.change_of,
        "queues": installation.queue,
        "orgs": lambda tx, _, key: access_reports.org(tx, key),
        "users": access_reports.user,
        "service-accounts": access_reports.service_account,
        "api-keys": access_reports.api_key,
        "grants": billing_reports.grant,
        "billing": billing_reports.changed,
    },
    prunes=(prune_idempotency_keys,),
)


def make_engine(
    settings: Settings, program: "Rota", app: str | None, db: Database, clock: SystemClock, wake: Wake, metrics: Metrics
) -> Engine:
    """Create the engine of a process, with the runners of all kinds."""
    warehouse = settings.warehouse_dir or settings.data_dir / "warehouse"
    executor = executor_here(
        warehouse, settings.pipeline_slots, settings.pipelines_url, lambda org_id: db.read(orgs.slug_of, org_id)
    )
    remote = None
    if settings.graph_endpoint:
        from rota.kinds.graphs.remote import Remote  # imported here: its HTTP client takes long to load

        remote = Remote(settings.graph_endpoint, settings.service_token)
    command, limit = settings.repair_command, timedelta(seconds=settings.repair_timeout_seconds)
    repairer = CommandRepairer(command, limit) if command else None
    workflows = WorkflowRunner(
        program.workflows, program.connectors, db, program.org, Sandbox(settings.trust_scripts), repairer is not None
    )
    runners: tuple[Runner, ...] = (
        TaskRunner(
            program.registry,
            db,
            app,
            settings.concurrency,
            program.injector,
            program.org,
            settings.orgs,
            Executors(settings.executor_settings()),
        ),
        GraphRunner(program.graphs, db, clock, program.org, remote, app),
        PipelineRunner(program.pipelines, db, executor, program.org, program.injector),
        workflows,
        RepairRunner(workflows.scripts, repairer),
        HostRunner(db, clock),
        AlarmRunner(db, settings.alarm_settings()),
        *program.runners.values(),
    )
    return Engine(
        db, clock, wake, {runner.kind: runner for runner in runners}, settings.engine_settings(), metrics, EXTENSIONS
    )
