"""The process of an isolated run: loads the program, runs one function, writes the result to a pipe, ends."""

import asyncio
import logging
import os
import sys
from datetime import datetime
from typing import Any

import orjson

from rota.app.application import Rota, load_app, load_file
from rota.core.clock import SystemClock, wall
from rota.core.model import Job
from rota.core.policy import NO_TERMS, classify
from rota.engine.engine import Engine, EngineSettings
from rota.engine.runner import RunContext, RunLog
from rota.kinds.tasks import TaskRunner
from rota.store.database import open_database
from rota.store.wake import Wake


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")  # to the run's log
    os.set_inheritable(order["result_fd"], False)
    answer = asyncio.run(run(order))
    with os.fdopen(order["result_fd"], "wb") as results:
        results.write(orjson.dumps(answer) + b"\n")


async def run(order: dict[str, Any]) -> dict[str, Any]:
    db = open_database(order["database_url"])
    settings = EngineSettings(artifact_limit=order["artifact_limit"])
    try:
        program = program_of(order)
        runner = TaskRunner(program.registry, db, injector=program.injector, threads=1)
        engine = Engine(db, SystemClock(), Wake(), {"task": runner}, settings)
        program.use(engine)
        ctx = context(order, engine)
        try:
            return {"outcome": await runner.call(ctx, program.registry.get(order["task"]), order["payload"])}
        finally:
            await program.injector.process.close()
            for _, _, _, line in ctx.log.take(last=True):
                print(line)
    except BaseException as error:
        told = (getattr(error, "failure", None) or classify(error)).dump()
        return {"failure": {"kind": told.pop("code"), **told}}
    finally:
        await db.close()


def program_of(order: dict[str, Any]) -> Rota:
    """The program that the worker runs or, where it was given none, that of the function's own file."""
    if order["app"] is not None:
        return load_app(order["app"])
    found = [value for value in vars(load_file(order["module"])).values() if isinstance(value, Rota)]
    return found[0] if len(found) == 1 else Rota()


def context(order: dict[str, Any], engine: Engine) -> RunContext:
    now = wall()
    slot = datetime.fromisoformat(order["slot"]) if order["slot"] else None
    job = Job(
        id=order["job_id"], org_id=order["org_id"], kind="task", target=order["task"], route="",
        payload=order["payload"], queue="", serial_key=None, schedule_id=None, slot=slot, trigger=order["trigger"],
        attempt=order["attempt"] - 1, tries=0, crashes=0, rescues=0, fence=order["fence"], queued_at=now, run_at=now,
        terms=NO_TERMS, last_run_id=None, trace_id=None,
    )  # fmt: skip
    log = RunLog(order["run_id"], wall)
    ctx = RunContext(job, order["run_id"], order["attempt"], order["worker"], log, host=engine)
    ctx.about.name = order["name"]
    return ctx


if __name__ == "__main__":
    main()
