"""Python functions as tasks of your own web service. Run it with: uvicorn --app-dir examples python_tasks:app

    curl -s localhost:8000/api/v1/tasks
    curl -s -X POST localhost:8000/api/v1/tasks/sum/\\$execute -H 'content-type: application/json' \\
         -d '{"parameters": {"b": 2}}'
    curl -s localhost:8000/api/v1/jobs/JOB_ID          # its artifact_id names the result
    curl -s localhost:8000/api/v1/artifacts/ARTIFACT_ID
"""

import asyncio
import time

from fastapi import FastAPI
from sqlalchemy import func, select

from rota import AsyncSession, ServiceBuilder, ServiceInfo, TaskIn, TaskRegistry, tables


@TaskRegistry.register("calculate_sum")
async def calculate_sum(a: int, b: int) -> dict[str, int]:
    """Parameters come from the task and from the request; their types are validated before anything runs."""
    await asyncio.sleep(0.01)
    return {"result": a + b}


@TaskRegistry.register("shout")
def shout(text: str) -> str:
    """A function that is not async runs in a thread, so it does not block the event loop."""
    time.sleep(0.01)
    return text.upper()


@TaskRegistry.register("count_tasks")
async def count_tasks(session: AsyncSession, enabled: bool = True) -> dict[str, int]:
    """The session is injected by its type, and closed when the function returns."""
    stmt = select(func.count()).select_from(tables.tasks).where(tables.tasks.c.enabled == enabled)
    return {"tasks": (await session.execute(stmt)).scalar_one()}


@TaskRegistry.register("fail")
def fail() -> None:
    """The run fails; its artifact has the traceback."""
    raise ValueError("this task was designed to fail")


async def seed(app: FastAPI) -> None:
    """Store tasks: rows that name a function and have parameters. Saving under an existing id replaces the row."""
    known = {task["name"] for task in await app.state.tasks.find_all()}
    for task in (
        TaskIn(name="sum", command="calculate_sum", task_type="python", parameters={"a": 40, "b": 2}),
        TaskIn(name="hello", command="shout", task_type="python", parameters={"text": "hello"}),
        TaskIn(name="count", command="count_tasks", task_type="python"),
        TaskIn(name="failing", command="fail", task_type="python"),
        TaskIn(name="orphan", command="a_function_that_is_gone", task_type="python"),  # switched off at the start
    ):
        if task.name not in known:
            await app.state.tasks.save(task)


app = (
    ServiceBuilder(info=ServiceInfo(display_name="Python tasks"))
    .with_health()
    .with_artifacts()
    .with_jobs(max_concurrency=5)
    .with_tasks(validate_on_startup=True)
    .on_startup(seed)
    .build()
)
