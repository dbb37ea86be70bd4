"""What a Django project does with Rota, as assertions. A worker runs beside it."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

from django.db import connection, transaction  # noqa: E402
from django.utils import timezone  # noqa: E402
from shop import tasks  # noqa: E402
from shop.models import Note, Order  # noqa: E402

from rota.core.errors import Invalid  # noqa: E402
from rota.django import app, enqueue, enqueue_many  # noqa: E402

try:
    from django.tasks import default_task_backend
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued
except ModuleNotFoundError:
    from django_tasks import default_task_backend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued


def wait(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait until a condition holds; fails after a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def finished(result: Any) -> Any:
    def ended() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait(ended)
    return result


def ended(job_id: str) -> Any:
    """Return the last attempt of a job of Rota when it has ended."""
    wait(lambda: app.read_job(job_id)[-1]["status"] not in ("pending", "running"))
    return app.read_job(job_id)[-1]


def raises(kind: type[BaseException], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def jobs() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM jobs")
        return int(cursor.fetchone()[0])


# Rota's own tasks, in Django's transaction
with transaction.atomic():
    Order.objects.create(name="A1")
    enqueue("shop.confirm", {"order": "A1"})
wait(lambda: Note.objects.filter(text="confirmed A1").exists())
try:
    with transaction.atomic():
        Order.objects.create(name="A2")
        enqueue(tasks.confirm, {"order": "A2"})
        raise RuntimeError("no")
except RuntimeError:
    assert not Order.objects.filter(name="A2").exists()
with transaction.atomic():
    Order.objects.create(name="A3")
    try:
        with transaction.atomic():  # a savepoint
            enqueue(tasks.confirm, {"order": "A4"})
            raise RuntimeError("no")
    except RuntimeError:
        app.enqueue("shop.confirm", order="A3", connection=connection)
wait(lambda: Note.objects.filter(text="confirmed A3").exists())
enqueue_many("shop.confirm", [{"order": "B1"}, {"order": "B2"}], queue="mail")  # outside: a transaction of its own
wait(lambda: Note.objects.filter(text__startswith="confirmed B").count() == 2)
assert "input.order is missing" in raises(Invalid, lambda: enqueue("shop.confirm"))
assert not Note.objects.filter(text__in=["confirmed A2", "confirmed A4"]).exists()

# Django's Tasks framework
backend = default_task_backend
flags = (backend.supports_defer, backend.supports_async_task, backend.supports_get_result, backend.supports_priority)
assert flags == (True, True, True, True), flags
seen: list[str] = []
task_enqueued.connect(lambda sender, task_result, **_: seen.append(task_result.id), weak=False)
result = tasks.add.enqueue(2, b=3)
assert (result.status, seen) == ("READY", [result.id])
assert (finished(result).status, result.return_value) == ("SUCCESSFUL", 5)
assert (result.args, result.kwargs, result.errors, result.attempts) == ([2], {"b": 3}, [], 1)
assert result.enqueued_at <= result.started_at <= result.finished_at
assert Note.objects.filter(text="added 2 and 3").count() == 1
assert tasks.add.get_result(result.id).return_value == 5
raises(TaskResultMismatch, lambda: tasks.fail.get_result(result.id))
raises(TaskResultDoesNotExist, lambda: tasks.add.get_result("01ARZ3NDEKTSV4RRFFQ69G5FAV"))
raises(TaskResultDoesNotExist, lambda: backend.get_result(enqueue("shop.confirm", {"order": "C1"})))
assert finished(tasks.describe.enqueue(["a"])).return_value["attempt"] == 1

broken = finished(tasks.refuse.enqueue())
assert broken.status == "FAILED"
assert broken.errors[0].exception_class is tasks.OutOfStock, broken.errors
assert "nothing left" in broken.errors[0].traceback
raises(ValueError, lambda: broken.return_value)
assert finished(tasks.fail.enqueue()).errors[0].exception_class is ValueError

later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1), priority=7, queue_name="mail").enqueue(1)
with connection.cursor() as cursor:
    cursor.execute("SELECT state, queue, priority FROM jobs WHERE id = %s", [later.id])
    assert cursor.fetchone() == ("later", "mail", 7)
later.refresh()
assert (later.status, later.started_at) == ("READY", None)
soon = tasks.add.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue(5)
assert finished(soon).return_value == 6
assert soon.started_at >= soon.enqueued_at + timedelta(seconds=0.5)

raises(InvalidTask, lambda: tasks.add.using(queue_name="unknown"))
raises(InvalidTask, lambda: tasks.add.using(priority=101))
raises(TypeError, lambda: tasks.add.enqueue(object()))
before = jobs()
try:
    with transaction.atomic():
        Order.objects.create(name="D1")
        tasks.add.enqueue(100)
        raise RuntimeError("no")
except RuntimeError:
    assert jobs() == before


async def use_async() -> None:
    result = await tasks.count_orders.aenqueue()
    deadline = time.monotonic() + 20
    while not result.is_finished:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
        await result.arefresh()
    assert result.return_value == await Order.objects.acount(), result
    assert (await tasks.count_orders.aget_result(result.id)).status == "SUCCESSFUL"


asyncio.run(use_async())

# a task leaves no connection open: CONN_MAX_AGE is 0, so the next task in the same thread finds none
if connection.vendor == "postgresql":
    for _ in range(12):  # more than the five threads of the worker
        assert ended(enqueue("shop.connections"))["outcome"] is True

print("the story ends well with Django", django.__version__)
