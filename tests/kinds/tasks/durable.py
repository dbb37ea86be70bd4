"""Helpers of tests of durable tasks: enqueue a job, read its last run and steps, functions that count their calls."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from rota.db.tables import steps
from rota.testing import World


async def enqueue(rota: World, task: str, **params: Any) -> str:
    (job_id,) = await rota.engine.enqueue(rota.org_id, "task", task, [params or None])
    return job_id


async def last_run(rota: World, job_id: str) -> dict[str, Any]:
    return (await rota.runs(job_id=job_id))[-1]


async def recorded(rota: World, job_id: str) -> list[tuple[str, str]]:
    stmt = select(steps.c.name, steps.c.status).where(steps.c.job_id == job_id).order_by(steps.c.seq)
    return [(row.name, row.status) for row in await rota.engine.db.read(lambda tx: list(tx.execute(stmt)))]


class Calls(list[str]):
    """Which functions were called, in order."""

    def function(self, name: str, *errors: Exception, result: object = None) -> Callable[..., object]:
        """Return a function that raises these errors in turn, then returns `result`, or its name."""
        left = list(errors)

        def called(*args: object) -> object:
            self.append(name)
            if left:
                raise left.pop(0)
            return name if result is None else result

        return called
