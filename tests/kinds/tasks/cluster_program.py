"""Functions that tests run on clusters. They append lines to a file, which shows what happened on the nodes."""

import asyncio
import logging
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from rota import Rota, RunContext

START_LIMITS = {"dask": "5s", "ray": "45s"}  # Ray starts a process for each run
FACTOR = 3  # a global of the module travels with its functions


def note(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(f"{text}\n")


def multiply(number: int) -> int:
    return number * FACTOR


def report(path: str, number: int, ctx: RunContext, logger: logging.Logger) -> dict[str, Any]:
    """What a function on a node has."""
    print("printed", number)
    logger.info("logged")
    ctx.log.line("log", "a line of its own")
    note(path, f"pid {os.getpid()}")
    return {"number": multiply(number), "run": ctx.run_id, "attempt": ctx.attempt, "slot": ctx.slot}


async def wait_a_moment(number: int) -> int:
    await asyncio.sleep(0.01)
    return number + 1


def fail_as(kind: str) -> None:
    import rota

    raise getattr(rota, kind)(f"a {kind}") if hasattr(rota, kind) else ValueError(kind)


def chat() -> None:
    for number in range(60_000):
        print(f"line {number} {'x' * 50}")


def use_a_step(ctx: RunContext) -> None:
    ctx.step("first", print)


def result_of(size: int) -> str:
    return "x" * size


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def linger(path: str, seconds: float = 60.0) -> str:
    """Start a process that ignores SIGTERM in a session of its own, and stay."""
    subprocess.Popen(["setsid", "sh", "-c", f"trap '' TERM; while true; do date >> {path}.child; sleep 0.05; done"])
    note(path, f"begin {os.getpid()} {os.getppid()}")
    time.sleep(seconds)
    note(path, "end")
    return "done"


def stop_when_asked(path: str, ctx: RunContext) -> None:
    note(path, "begin")
    note(path, f"canceled {ctx.canceled.wait(60)}")


def once_lost(path: str, seconds: float) -> int:
    """Note each start; only the first one stays, and its node is killed by the test."""
    note(path, f"begin {os.getpid()} {os.getppid()}")
    if len(Path(path).read_text().splitlines()) == 1:
        time.sleep(seconds)
    return 42


def burn(seconds: float) -> float:
    """Use the CPU for so long."""
    started = time.process_time()
    while time.process_time() - started < seconds:
        sum(range(1000))
    return seconds


def beat(times: int, ctx: RunContext) -> None:
    for _ in range(times):
        time.sleep(0.3)
        ctx.heartbeat()


FUNCTIONS = (
    report,
    wait_a_moment,
    fail_as,
    chat,
    use_a_step,
    result_of,
    die,
    linger,
    stop_when_asked,
    once_lost,
    burn,
)


def program(executor: str) -> Rota:
    app = Rota()
    for function in FUNCTIONS:
        app.task(executor=executor)(function)
    app.task(executor=executor, heartbeat="5s")(beat)
    app.task("short", executor=executor, timeout=START_LIMITS[executor])(linger)
    app.task("no_retry", executor=executor, retry={"max_retries": 0})(once_lost)
    return app
