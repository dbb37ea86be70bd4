"""Workflows: producers and consumers that talk through topics, with effects that are never done twice."""

from rota.kinds.workflows.connectors import Applied, Connectors, NotApplied, Unsure, mutation, not_applied, read
from rota.kinds.workflows.declaration import Mutation, Prepare, Reservation, Workflow, cron, every
from rota.kinds.workflows.host import Context, Event
from rota.kinds.workflows.manager import WorkflowManager, deploy_all
from rota.kinds.workflows.repair import CommandRepairer, Repairer, RepairRunner
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.sandbox import Sandbox

__all__ = [
    "Applied",
    "CommandRepairer",
    "Connectors",
    "Context",
    "Event",
    "Mutation",
    "NotApplied",
    "Prepare",
    "RepairRunner",
    "Repairer",
    "Reservation",
    "Sandbox",
    "Unsure",
    "Workflow",
    "WorkflowManager",
    "WorkflowRunner",
    "cron",
    "deploy_all",
    "every",
    "mutation",
    "not_applied",
    "read",
]
