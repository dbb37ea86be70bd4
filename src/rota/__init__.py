"""Rota: a durable scheduler. Public names are imported on first use, from the modules in `HOMES`."""

from importlib import import_module
from typing import TYPE_CHECKING

from rota.version import __version__

if TYPE_CHECKING:
    from rota.app.application import Rota
    from rota.app.mounting import mounted_lifespan
    from rota.app.service import (
        ArtifactHierarchy,
        CrudPermissions,
        ServiceBuilder,
        ServiceInfo,
        validate_and_disable_orphaned_tasks,
    )
    from rota.core.effects import Applied, NotApplied, Unsure, not_applied
    from rota.core.errors import AuthError, GiveUp, LogicError, PermissionDenied, RetryAfter, TransientError
    from rota.core.policy import Retry
    from rota.core.steps import Approval, ChildFailed, StepFailed
    from rota.db.user_session import AsyncSession, Database
    from rota.engine.runner import RunContext
    from rota.kinds.alarms.manager import email, tag, webhook
    from rota.kinds.pipelines.tables import PipelineTables
    from rota.kinds.tasks.manager import TaskIn, TaskManager
    from rota.kinds.tasks.registry import TaskRegistry
    from rota.kinds.workflows.connectors.base import mutation, read
    from rota.kinds.workflows.declaration import Workflow
    from rota.kinds.workflows.scripts.script_api import Prepare, Reservation, cron, every
    from rota.user_code.services import ArtifactManager, JobScheduler

__all__ = [
    "Applied",
    "Approval",
    "ArtifactHierarchy",
    "ArtifactManager",
    "AsyncSession",
    "AuthError",
    "ChildFailed",
    "CrudPermissions",
    "Database",
    "GiveUp",
    "JobScheduler",
    "LogicError",
    "NotApplied",
    "PermissionDenied",
    "PipelineTables",
    "Prepare",
    "Reservation",
    "Retry",
    "RetryAfter",
    "Rota",
    "RunContext",
    "ServiceBuilder",
    "ServiceInfo",
    "StepFailed",
    "TaskIn",
    "TaskManager",
    "TaskRegistry",
    "TransientError",
    "Unsure",
    "Workflow",
    "__version__",
    "cron",
    "email",
    "every",
    "mounted_lifespan",
    "mutation",
    "not_applied",
    "read",
    "tag",
    "validate_and_disable_orphaned_tasks",
    "webhook",
]

HOMES = {
    "PipelineTables": "rota.kinds.pipelines.tables",
    "StepFailed": "rota.core.steps",
    "ChildFailed": "rota.core.steps",
    "Approval": "rota.core.steps",
    "Applied": "rota.core.effects",
    "ArtifactHierarchy": "rota.app.service",
    "ArtifactManager": "rota.user_code.services",
    "AsyncSession": "rota.db.user_session",
    "AuthError": "rota.core.errors",
    "CrudPermissions": "rota.app.service",
    "Database": "rota.db.user_session",
    "GiveUp": "rota.core.errors",
    "JobScheduler": "rota.user_code.services",
    "LogicError": "rota.core.errors",
    "NotApplied": "rota.core.effects",
    "PermissionDenied": "rota.core.errors",
    "Prepare": "rota.kinds.workflows.scripts.script_api",
    "Reservation": "rota.kinds.workflows.scripts.script_api",
    "Retry": "rota.core.policy",
    "RetryAfter": "rota.core.errors",
    "Rota": "rota.app.application",
    "RunContext": "rota.engine.runner",
    "ServiceBuilder": "rota.app.service",
    "ServiceInfo": "rota.app.service",
    "TaskIn": "rota.kinds.tasks.manager",
    "TaskManager": "rota.kinds.tasks.manager",
    "TaskRegistry": "rota.kinds.tasks.registry",
    "TransientError": "rota.core.errors",
    "Unsure": "rota.core.effects",
    "Workflow": "rota.kinds.workflows.declaration",
    "email": "rota.kinds.alarms.manager",
    "tag": "rota.kinds.alarms.manager",
    "webhook": "rota.kinds.alarms.manager",
    "cron": "rota.kinds.workflows.scripts.script_api",
    "every": "rota.kinds.workflows.scripts.script_api",
    "mounted_lifespan": "rota.app.mounting",
    "mutation": "rota.kinds.workflows.connectors.base",
    "not_applied": "rota.core.effects",
    "read": "rota.kinds.workflows.connectors.base",
    "validate_and_disable_orphaned_tasks": "rota.app.service",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `rota --help` does not wait for a database driver."""
    if name not in HOMES:
        raise AttributeError(f"module 'rota' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
