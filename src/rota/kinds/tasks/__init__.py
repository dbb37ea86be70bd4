"""Tasks: Python functions and shell commands."""

from rota.kinds.tasks.manager import TaskIn, TaskManager
from rota.kinds.tasks.registry import Task, TaskRegistry, task_options, task_rows
from rota.kinds.tasks.runner import TaskRunner

__all__ = [
    "Task",
    "TaskIn",
    "TaskManager",
    "TaskRegistry",
    "TaskRunner",
    "task_options",
    "task_rows",
]
