"""Child process of an isolated run: loads the program, runs one function, writes its result to a pipe, exits."""

import asyncio
import logging
import os
import sys
from datetime import datetime
from decimal import Decimal
from functools import partial

import orjson

from rota.app.application import Rota
from rota.app.programs import load_app, load_file
from rota.app.secrets import close_memory
from rota.core.clock import SystemClock, stopwatch, system_time
from rota.core.model import Job
from rota.core.policy import Billing, Terms, classify
from rota.db.connection import Database, open_database
from rota.db.retry import retry_until_available
from rota.db.wake import Wake
from rota.engine import runs, workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import Canceled, RunContext, RunLog, Skipped
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.tasks.runner import TaskRunner
from rota.user_code.child_process import peak_of
from rota.user_code.processes import HEARTBEAT, ChildAnswer, ChildOrder, dump_failure, dump_suspension, load_objects

LOG_FLUSH_SECONDS = 0.2
HEARTBEAT_SECONDS = 0.1


def main() -> None:
    close_memory()  # it holds the URL of the database
    order: ChildOrder = orjson.loads(sys.stdin.buffer.read())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")  # to the run's log
    os.set_inheritable(order["result_fd"], False)
    answer = asyncio.run(run(order))
    answer["peak_memory_bytes"] = peak_of("self")
    with os.fdopen(order["result_fd"], "wb") as results:
        results.write(orjson.dumps(answer) + b"\n")


async def run(order: ChildOrder) -> ChildAnswer:
    db = open_database(order["database_url"])
    settings = EngineSettings(
        artifact_limit=order["artifact_limit"],
        objects=load_objects(order["objects"]),
        billing=Billing(order["billing"]),
        markup=Decimal(order["markup"]),
    )
    try:
        program = program_of(order)
        return await (run_graph if "graph" in order else run_task)(order, db, program, settings)
    except Skipped as error:
        return {"skipped": error.reason, "failure": None if error.failure is None else dump_failure(error.failure)}
    except Canceled as error:
        return {"canceled": error.by}
    except BaseException as error:
        return {"failure": dump_failure(getattr(error, "failure", None) or classify(error, order["capture_locals"]))}
    finally:
        await db.close()


async def run_task(order: ChildOrder, db: Database, program: Rota, settings: EngineSettings) -> ChildAnswer:
    runner = TaskRunner(program.registry, db, injector=program.injector, threads=1, org=program.org)
    clock = SystemClock()
    clock.sync(await db.read(workers.measure))  # the due times of its waits are compared with the database's clock
    engine = Engine(db, clock, Wake(), {"task": runner}, settings)
    program.use(engine)
    ctx = make_context(order, engine)
    ctx.heartbeat()
    try:
        return {"outcome": await runner.call(ctx, program.registry.get(order["task"]), order["payload"])}
    except BaseException as error:
        if ctx.suspension is not None:
            return {"suspended": dump_suspension(ctx.suspension), "recorded_steps": True}
        if isinstance(error, Skipped | Canceled) or not ctx.info.recorded_steps:
            raise
        return {
            "failure": dump_failure(getattr(error, "failure", None) or classify(error, order["capture_locals"])),
            "recorded_steps": True,
        }
    finally:
        await program.injector.process.close()
        for _, _, _, line in ctx.log.take(last=True):
            print(line)


async def run_graph(order: ChildOrder, db: Database, program: Rota, settings: EngineSettings) -> ChildAnswer:
    """Run a graph. This process writes its log and usage itself; the worker receives only the result."""
    clock = SystemClock()
    clock.sync(await db.read(workers.measure))
    runner = GraphRunner(program.graphs, db, clock, program.org)
    ctx = make_context(order, Engine(db, clock, Wake(), {"graph": runner}, settings))
    ended = asyncio.Event()
    log_writer = asyncio.ensure_future(write_log(db, ctx.log, clock, ended))
    try:
        outcome = await runner.execute(ctx)
    finally:
        ended.set()
        await log_writer
    return {"outcome": outcome, "artifact_id": ctx.info.artifact_id}


async def write_log(db: Database, log: RunLog, clock: SystemClock, ended: asyncio.Event) -> None:
    """Flush the run's log every 0.2 s, and its last lines when `ended` is set."""
    last = False
    while not last:
        last = await clock.wait(ended, LOG_FLUSH_SECONDS)
        if lines := log.take(last):
            await retry_until_available(partial(db.tx, runs.write_logs, lines))


def program_of(order: ChildOrder) -> Rota:
    """Load the program that the worker runs or, if the worker has none, the one in the function's own file."""
    if order["app"] is not None:
        return load_app(order["app"])
    programs = [value for value in vars(load_file(order["module"])).values() if isinstance(value, Rota)]
    return programs[0] if len(programs) == 1 else Rota()


def make_context(order: ChildOrder, engine: Engine) -> RunContext:
    now = system_time()
    slot = datetime.fromisoformat(order["slot"]) if order["slot"] else None
    graph = order.get("graph")
    job = Job(
        id=order["job_id"],
        org_id=order["org_id"],
        kind="graph" if graph else "task",
        target=graph or order["task"],
        route=order["route"],
        payload=order["payload"],
        queue=order["queue"],
        serial_key=None,
        schedule_id=order.get("schedule_id"),
        slot=slot,
        trigger=order["trigger"],
        attempt=order["attempt"] - 1,
        tries=0,
        crashes=order["crashes"],
        rescues=order["rescues"],
        fence=order["fence"],
        queued_at=now,
        run_at=now,
        terms=Terms(grant_id=order.get("grant_id") or order["job_grant_id"]),
        last_run_id=None,
        trace=order.get("trace"),
        parent_id=order["parent_id"],
        waiting=order["waiting"],
        reserved_at=None,
        place_key=None,
    )
    log = RunLog(order["run_id"], system_time)
    ctx = RunContext(job, order["run_id"], order["attempt"], order["worker"], log, _engine=engine)
    ctx.started_at = datetime.fromisoformat(order["started_at"])
    ctx.info.name = order.get("name", job.target)
    ctx.forward_heartbeat = HeartbeatPipe(order["result_fd"]).send
    return ctx


class HeartbeatPipe:
    """Passes heartbeats to the worker, at most one in HEARTBEAT_SECONDS: a function may call it in a tight loop."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.sent_at = pipe, 0.0

    def send(self) -> None:
        now = stopwatch()
        if now - self.sent_at >= HEARTBEAT_SECONDS:
            self.sent_at = now
            os.write(self.pipe, HEARTBEAT)  # one write of few bytes: never mixed with another


if __name__ == "__main__":
    main()
