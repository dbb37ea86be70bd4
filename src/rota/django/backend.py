"""Backend of Django's Tasks framework: `TASKS = {"default": {"BACKEND": "rota.django.backend.RotaBackend"}}`.

A task of Django is a task of Rota with the path of its function as name. Its job has `{"args": […], "kwargs": {…}}` as
input. For Django 5.2 the framework is the package django-tasks.
"""

import builtins
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from django.utils import timezone

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ModuleNotFoundError:  # Django 5.2
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

from rota.core.errors import NotFound
from rota.core.states import Status
from rota.db.paging import Record
from rota.django.program import app, closing_connections, enqueue
from rota.engine.runner import RunContext
from rota.kinds.tasks.registry import Task as RotaTask
from rota.kinds.tasks.registry import task_options

LAST_LINE_OF_TRACEBACK = re.compile(r"^([\w.]+)(?::|$)", re.MULTILINE)
LIVE = {Status.PENDING: TaskResultStatus.READY, Status.RUNNING: TaskResultStatus.RUNNING}


class RotaBackend(BaseTaskBackend):
    """Enqueues tasks in the current transaction of Django's connection; `manage.py rota worker` runs them. OPTIONS are
    those of `Rota.task`: retry, timeout."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.task_options = task_options(self.options)

    def validate_task(self, task: Task) -> None:
        """Check a task, which Django does when it is declared, and register its function. Raises InvalidTask."""
        super().validate_task(task)
        if app.registry.find(task.module_path) is None:
            work = closing_connections(
                async_work(self, task) if iscoroutinefunction(task.func) else work_of(self, task)
            )
            app.registry.add(RotaTask(task.module_path, function=work, **self.task_options))
            declared_tasks[task.module_path] = task

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Enqueue a task: inside `transaction.atomic()` as part of it, else at once."""
        self.validate_task(task)
        result = TaskResult(
            task=task, id="", status=TaskResultStatus.READY, enqueued_at=timezone.now(), started_at=None,
            finished_at=None, last_attempted_at=None, args=list(args), kwargs=dict(kwargs), backend=self.alias,
            errors=[], worker_ids=[],
        )  # fmt: skip
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        payload = {"args": result.args, "kwargs": result.kwargs}
        job_id = enqueue(task.module_path, payload, run_at=run_at, queue=task.queue_name, priority=task.priority)
        object.__setattr__(result, "id", job_id)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a task by its id. Raises TaskResultDoesNotExist."""
        try:
            attempts = app.read_job(result_id)
        except NotFound as error:
            raise TaskResultDoesNotExist(result_id) from error
        task = declared_tasks.get(attempts[-1]["target"])
        if task is None:  # of Rota itself, or one that this process has not imported
            raise TaskResultDoesNotExist(result_id)
        return result_of(self, task, result_id, attempts)


declared_tasks: dict[str, Task] = {}  # by the path of their function


def result_of(backend: RotaBackend, task: Task, job_id: str, attempts: Sequence[Record]) -> TaskResult:
    """Return a job as a result of Django's."""
    last, payload = attempts[-1], attempts[-1]["input"] or {}
    status = LIVE.get(last["status"], TaskResultStatus.FAILED)
    if last["status"] == Status.SUCCESS:
        status = TaskResultStatus.SUCCESSFUL
    started = [attempt for attempt in attempts if attempt["started_at"] is not None]
    result = TaskResult(
        task=task, id=job_id, status=status, enqueued_at=attempts[0]["queued_at"],
        started_at=started[0]["started_at"] if started else None,
        last_attempted_at=started[-1]["started_at"] if started else None,
        finished_at=last["finished_at"] if last["status"] not in LIVE else None,
        args=payload.get("args", []), kwargs=payload.get("kwargs", {}), backend=backend.alias,
        errors=[error_of(attempt["error"]) for attempt in attempts if attempt["error"]],
        worker_ids=[attempt["worker"] or "" for attempt in started],
    )  # fmt: skip
    object.__setattr__(result, "_return_value", last["outcome"])
    return result


def error_of(error: Mapping[str, Any]) -> TaskError:
    """Return a recorded failure. The path of its class is that of the last line of its traceback."""
    text = error.get("traceback") or ""
    names = LAST_LINE_OF_TRACEBACK.findall(text.replace("Traceback (most recent call last)", ""))
    name = next((found for found in reversed(names) if found.rpartition(".")[2] == error["type"]), error["type"])
    path = f"builtins.{name}" if hasattr(builtins, name) else name
    return TaskError(exception_class_path=path, traceback=text or f"{error['type']}: {error['message']}")


# in workers


def work_of(backend: RotaBackend, task: Task) -> Callable[..., Any]:
    """Return the function of a task as Rota calls it."""

    def work(ctx: RunContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = running_result(backend, task, ctx, args, kwargs)
        task_started.send(sender=type(backend), task_result=result)
        try:
            value = normalize_json(task.func(*context_of(task, result), *args, **kwargs))
        except BaseException:
            finish(result, TaskResultStatus.FAILED, None)
            task_finished.send(sender=type(backend), task_result=result)
            raise
        finish(result, TaskResultStatus.SUCCESSFUL, value)
        task_finished.send(sender=type(backend), task_result=result)
        return value

    return work


def async_work(backend: RotaBackend, task: Task) -> Callable[..., Any]:
    """Return the async function of a task as Rota awaits it."""

    async def work(ctx: RunContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = running_result(backend, task, ctx, args, kwargs)
        await task_started.asend(sender=type(backend), task_result=result)
        try:
            value = normalize_json(await task.func(*context_of(task, result), *args, **kwargs))
        except BaseException:
            finish(result, TaskResultStatus.FAILED, None)
            await task_finished.asend(sender=type(backend), task_result=result)
            raise
        finish(result, TaskResultStatus.SUCCESSFUL, value)
        await task_finished.asend(sender=type(backend), task_result=result)
        return value

    return work


def running_result(
    backend: RotaBackend, task: Task, ctx: RunContext, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult:
    now = timezone.now()
    return TaskResult(
        task=task, id=ctx.job.id, status=TaskResultStatus.RUNNING, enqueued_at=ctx.job.queued_at, started_at=now,
        last_attempted_at=now, finished_at=None, args=args, kwargs=kwargs, backend=backend.alias, errors=[],
        worker_ids=[ctx.worker] * ctx.attempt,
    )  # fmt: skip


def context_of(task: Task, result: TaskResult) -> list[TaskContext]:
    return [TaskContext(task_result=result)] if task.takes_context else []


def finish(result: TaskResult, status: TaskResultStatus, value: object) -> None:
    for name, content in (("status", status), ("finished_at", timezone.now()), ("_return_value", value)):
        object.__setattr__(result, name, content)
