"""Program whose tasks run in their own processes; loaded by workers of tests and by those processes."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import func, select

from rota import ArtifactManager, AsyncSession, JobScheduler, Rota, RunContext, tables

app = Rota()


class Client:
    """A service that the program provides per run."""


def client(ctx: RunContext) -> Iterator[Client]:
    print(f"opened for attempt {ctx.attempt}")
    yield Client()
    print("closed")


app.provide(Client, client)


class Pool:
    """A service that the program provides once per process."""

    def close(self) -> None:
        print("pool closed")


app.provide(Pool, Pool, scope="process")


@app.task(isolation="process")
async def look(
    limit: int,
    client: Client,
    pool: Pool,
    session: AsyncSession,
    artifacts: ArtifactManager,
    logger: logging.Logger,
    ctx: RunContext,
) -> dict[str, Any]:
    logger.info("looking")
    ctx.log.line("log", "logged")
    count = (await session.execute(select(func.count()).select_from(tables.tasks))).scalar_one()
    saved = await artifacts.save({"pid": os.getpid()}, label="where")
    return {"limit": limit, "tasks": count, "saved": saved, "pid": os.getpid(), "run": ctx.run_id}


@app.task(isolation="process")
def hire(scheduler: JobScheduler) -> str:
    """In a thread of the child, where nothing is awaited."""
    return str(scheduler.add_job(plain, x=3))


@app.task
def plain(x: int) -> int:
    return x + 1


@app.task(isolation="process")
async def too_large(artifacts: ArtifactManager) -> None:
    await artifacts.save("x" * 1001)


@app.task(isolation="process")
def leave() -> None:
    sys.exit(3)


@app.task(isolation="process")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(isolation="process", timeout=1)
def stay() -> None:
    time.sleep(3600)


@app.task(isolation="process", retry={"max_retries": 2})
def odd() -> object:
    return object()


@app.task(isolation="process")
def chatter() -> None:
    line = "é" * 999 + "\n"
    sys.stdout.write("x" + line * 10_000)


@app.task(isolation="process")
def fork() -> int:
    return 7 if os.fork() else 8


@app.task(isolation="process")
async def waits(ctx: RunContext) -> list[Any]:
    """A durable task in a process of its own: it ends while the run waits."""
    process = await ctx.step("process", os.getpid)
    return [process, os.getpid(), await ctx.wait_for("go")]
