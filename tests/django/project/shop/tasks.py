"""Tasks of the shop: one of Rota, the others of Django's Tasks framework."""

from typing import Any

from django.db import connection

from rota.django import app
from shop.models import Note, Order

try:
    from django.tasks import TaskContext, task
except ModuleNotFoundError:
    from django_tasks import TaskContext, task


class OutOfStock(Exception):
    """Raised by `refuse`."""


@app.task("shop.confirm")
def confirm(order: str) -> str:
    Note.objects.create(text=f"confirmed {order}")
    return order


@app.task("shop.connections")
def connections_left() -> bool:
    """Return whether the connection of an earlier task in this thread was closed."""
    closed = connection.connection is None
    connection.ensure_connection()
    return closed


@task
def add(a: int, b: int = 1) -> int:
    Note.objects.create(text=f"added {a} and {b}")
    return a + b


@task(queue_name="mail", priority=5)
async def count_orders() -> int:
    return await Order.objects.acount()


@task(takes_context=True)
def describe(context: TaskContext, words: list[str]) -> dict[str, Any]:
    return {"attempt": context.attempt, "id": context.task_result.id, "words": words}


@task
def refuse() -> None:
    raise OutOfStock("nothing left")


@task
def fail() -> None:
    raise ValueError("wrong")
