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
    from rota.core.errors import AuthError, LogicError, PermissionDenied, TransientError
    from rota.core.policy import Retry
    from rota.db.user_session import AsyncSession, Database
    from rota.engine.runner import RunContext
    from rota.kinds.tasks.manager import TaskIn, TaskManager
    from rota.kinds.tasks.registry import TaskRegistry
    from rota.kinds.workflows.connectors.base import Applied, NotApplied, Unsure, mutation, not_applied, read
    from rota.kinds.workflows.declaration import Workflow
    from rota.kinds.workflows.scripts.script_api import Prepare, Reservation, cron, every
    from rota.user_code.services import ArtifactManager, JobScheduler

__all__ = [
    "Applied",
    "ArtifactHierarchy",
    "ArtifactManager",
    "AsyncSession",
    "AuthError",
    "CrudPermissions",
    "Database",
    "JobScheduler",
    "LogicError",
    "NotApplied",
    "PermissionDenied",
    "Prepare",
    "Reservation",
    "Retry",
    "Rota",
    "RunContext",
    "ServiceBuilder",
    "ServiceInfo",
    "TaskIn",
    "TaskManager",
    "TaskRegistry",
    "TransientError",
    "Unsure",
    "Workflow",
    "__version__",
    "cron",
    "every",
    "mounted_lifespan",
    "mutation",
    "not_applied",
    "read",
    "validate_and_disable_orphaned_tasks",
]

HOMES = {
    "Applied": "rota.kinds.workflows.connectors.base",
    "ArtifactHierarchy": "rota.app.service",
    "ArtifactManager": "rota.user_code.services",
    "AsyncSession": "rota.db.user_session",
    "AuthError": "rota.core.errors",
    "CrudPermissions": "rota.app.service",
    "Database": "rota.db.user_session",
    "JobScheduler": "rota.user_code.services",
    "LogicError": "rota.core.errors",
    "NotApplied": "rota.kinds.workflows.connectors.base",
    "PermissionDenied": "rota.core.errors",
    "Prepare": "rota.kinds.workflows.scripts.script_api",
    "Reservation": "rota.kinds.workflows.scripts.script_api",
    "Retry": "rota.core.policy",
    "Rota": "rota.app.application",
    "RunContext": "rota.engine.runner",
    "ServiceBuilder": "rota.app.service",
    "ServiceInfo": "rota.app.service",
    "TaskIn": "rota.kinds.tasks.manager",
    "TaskManager": "rota.kinds.tasks.manager",
    "TaskRegistry": "rota.kinds.tasks.registry",
    "TransientError": "rota.core.errors",
    "Unsure": "rota.kinds.workflows.connectors.base",
    "Workflow": "rota.kinds.workflows.declaration",
    "cron": "rota.kinds.workflows.scripts.script_api",
    "every": "rota.kinds.workflows.scripts.script_api",
    "mounted_lifespan": "rota.app.mounting",
    "mutation": "rota.kinds.workflows.connectors.base",
    "not_applied": "rota.kinds.workflows.connectors.base",
    "read": "rota.kinds.workflows.connectors.base",
    "validate_and_disable_orphaned_tasks": "rota.app.service",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `rota --help` does not wait for a database driver."""
    if name not in HOMES:
        raise AttributeError(f"module 'rota' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
