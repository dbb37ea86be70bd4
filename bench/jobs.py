"""The program that the benchmark's workers run. Each body leaves a trace in a file, so that the runs can be counted."""

import os
import time
from pathlib import Path

from rota.app.application import Rota

OUT = Path(os.environ.get("BENCH_OUT", "."))

app = Rota()
files: dict[str, int] = {}


@app.task
async def tick() -> None:
    """Counts: one byte per run, and the moment of this process's first run."""
    if "ran" not in files:
        (OUT / f"first.{os.getpid()}").write_text(repr(time.time()))
    append("ran", b".")


@app.task
async def stamp(i: int) -> None:
    """Tells when it started."""
    append("starts", b"%d %.6f\n" % (i, time.time()))


@app.task
async def quiet() -> None:
    """For schedules that are there but hardly ever due."""


def append(name: str, data: bytes) -> None:
    if name not in files:
        files[name] = os.open(OUT / name, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(files[name], data)
