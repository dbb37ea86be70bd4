"""Tasks: Python functions and shell commands."""

from rota.kinds.tasks.manager import TaskIn, TaskManager, check_own
from rota.kinds.tasks.registry import Task, TaskRegistry, task_options, task_rows
from rota.kinds.tasks.runner import TaskRunner

__all__ = [
    "Task",
    "TaskIn",
    "TaskManager",
    "TaskRegistry",
    "TaskRunner",
    "check_own",
    "task_options",
    "task_rows",
]
