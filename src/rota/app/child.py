"""The process of an isolated run: loads the app, runs one function, writes the result to a pipe, ends."""

import asyncio
import inspect
import os
import sys
from datetime import datetime
from typing import Any

import orjson

from rota.app.application import load_app
from rota.core.clock import wall
from rota.core.model import Job
from rota.core.policy import NO_TERMS, classify
from rota.engine.runner import RunContext, RunLog
from rota.kinds.tasks import bound, checked


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    answer = run(order)
    with os.fdopen(order["result_fd"], "wb") as results:
        results.write(orjson.dumps(answer))


def run(order: dict[str, Any]) -> dict[str, Any]:
    try:
        task = load_app(order["app"]).registry.get(order["task"])
        call = bound(task, context(order))
        outcome = asyncio.run(call()) if inspect.iscoroutinefunction(task.function) else call()
        return {"outcome": checked(outcome)}
    except BaseException as error:
        told = classify(error).dump()
        return {"failure": {"kind": told.pop("code"), **told}}


def context(order: dict[str, Any]) -> RunContext:
    now = wall()
    slot = datetime.fromisoformat(order["slot"]) if order["slot"] else None
    job = Job(
        id=order["job_id"], org_id=order["org_id"], kind="task", target=order["task"], route="",
        payload=order["payload"], queue="", serial_key=None, schedule_id=None, slot=slot, trigger=order["trigger"],
        attempt=order["attempt"] - 1, tries=0, crashes=0, rescues=0, fence=order["fence"], queued_at=now, run_at=now,
        terms=NO_TERMS, last_run_id=None, trace_id=None,
    )  # fmt: skip
    log = RunLog(order["run_id"], wall)
    return RunContext(job, order["run_id"], order["attempt"], order["worker"], log)


if __name__ == "__main__":
    main()
