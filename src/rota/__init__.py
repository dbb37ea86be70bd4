"""Rota: a durable rota for code."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rota.version import __version__

if TYPE_CHECKING:
    from rota.app.application import Rota
    from rota.core.errors import AuthError, LogicError, PermissionDenied, TransientError
    from rota.core.policy import Retry
    from rota.engine.runner import RunContext
    from rota.kinds.tasks import TaskRegistry

__all__ = [
    "AuthError",
    "LogicError",
    "PermissionDenied",
    "Retry",
    "Rota",
    "RunContext",
    "TaskRegistry",
    "TransientError",
    "__version__",
]

HOMES = {
    "AuthError": "rota.core.errors",
    "LogicError": "rota.core.errors",
    "PermissionDenied": "rota.core.errors",
    "Retry": "rota.core.policy",
    "Rota": "rota.app.application",
    "RunContext": "rota.engine.runner",
    "TaskRegistry": "rota.kinds.tasks",
    "TransientError": "rota.core.errors",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are asked for: `rota --help` must not wait for a database driver."""
    if name not in HOMES:
        raise AttributeError(f"module 'rota' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
