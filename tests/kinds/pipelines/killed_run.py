"""Runs pipelines without a worker, each in a process of its own that kills itself at the n-th call of a function of
pipelines. The processes are forks of this one, which has imported everything.

`python -m tests.kinds.pipelines.killed_run PLACE URL` reads a run per line as JSON, and answers each with the exit code
of its process and the number of calls. With `here` as a third argument it runs them itself: to start Spark takes long.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from rota.kinds.pipelines.executor import Materialisation, executor_here
from rota.kinds.pipelines.increments import increment_of

PIPELINES = os.sep + os.path.join("rota", "kinds", "pipelines") + os.sep
lock = threading.Lock()
calls = 0


async def slug_of(org_id: str) -> str:
    return "default"


async def run(place: Path, url: str, order: dict[str, Any]) -> None:
    executor = executor_here(place, 1, url, slug_of)
    assert executor is not None
    sql, increment = order["sql"], increment_of(order["increment"])
    await executor.submit(Materialisation("run", "org", order["path"], executor.check(sql), sql, increment))
    await executor.close()


def fork_run(place: Path, url: str, order: dict[str, Any]) -> tuple[int, str]:
    """Run an order in a fork; returns its exit code and what it counted."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run_counted(place, url, order)
            os.write(writer, str(calls).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as counted:
        text = counted.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def run_counted(place: Path, url: str, order: dict[str, Any]) -> None:
    def count(frame: FrameType, event: str, arg: object) -> None:
        global calls
        if event in ("call", "return") and PIPELINES in frame.f_code.co_filename:
            with lock:
                calls += 1
                if calls == order["point"]:
                    os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    sys.setprofile(count)
    asyncio.run(run(place, url, order))
    sys.setprofile(None)


def run_here(place: Path, url: str, order: dict[str, Any]) -> tuple[int, str]:
    asyncio.run(run(place, url, order))
    return 0, "0"


def main(place: str, url: str, here: str = "") -> None:
    executor_here(Path(place), 1, url, slug_of)  # imports the engine
    if url.startswith("sc:"):
        import_module("pyspark.sql.connect.session")
        import_module("rota.kinds.pipelines.spark_backend")
    for line in sys.stdin:
        answer = (run_here if here else fork_run)(Path(place), url, json.loads(line))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
