"""CPU time and peak memory of runs, as far as they are known."""

import sys
import time

import pytest

from rota.engine.instruments import CPU, MEMORY
from rota.user_code.child_process import SAMPLE_SECONDS
from tests.kinds.tasks.harness import TaskHarness

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20
BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


@linux
async def test_a_command_has_the_cpu_time_of_its_processes_and_the_peak_of_the_largest(harness: TaskHarness) -> None:
    between_readings = SAMPLE_SECONDS[1]  # the peak of a process smaller than the worker is known from readings only
    hold = f"import time; held = b'x' * (200 << 20); time.sleep({2.5 * between_readings})"
    harness.program.shell("burn", f"{sys.executable} -c '{BURN}'; {sys.executable} -c \"{hold}\"")
    run = await harness.run("burn")
    assert run["status"] == "success", run
    assert 0.3 <= run["cpu_seconds"] < 30
    assert 200 * MIB < run["peak_memory_bytes"] < 2000 * MIB
    assert harness.engine.metrics.total(CPU, "task") == harness.engine.metrics.total(MEMORY, "task") == 1


@linux
async def test_a_small_command_does_not_have_the_memory_of_its_worker(harness: TaskHarness) -> None:
    harness.program.shell("small", "sleep 0.3")
    ballast = b"x" * (100 * MIB)
    run = await harness.run("small")
    assert len(ballast) > 50 * MIB > run["peak_memory_bytes"] > 0


async def test_a_failed_command_has_them_too(harness: TaskHarness) -> None:
    harness.program.shell("fails", f"{sys.executable} -c '{BURN}'; exit 3")
    run = await harness.run("fails")
    assert (run["status"], run["reason"]) == ("failed", "logic")
    assert run["cpu_seconds"] >= 0.3


async def test_a_sync_function_has_the_cpu_time_of_its_thread(harness: TaskHarness) -> None:
    @harness.program.task
    def burn() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        time.sleep(0.2)

    run = await harness.run(burn)
    assert 0.2 <= run["cpu_seconds"] < 0.39
    assert run["peak_memory_bytes"] is None


async def test_of_an_async_function_nothing_is_known(harness: TaskHarness) -> None:
    @harness.program.task
    async def quick() -> None: ...

    run = await harness.run(quick)
    assert (run["cpu_seconds"], run["peak_memory_bytes"]) == (None, None)


async def test_an_isolated_function_reports_its_peak(isolated_harness: TaskHarness) -> None:
    run = await isolated_harness.run("hire")
    assert run["cpu_seconds"] > 0.01
    if sys.platform == "linux":
        assert run["peak_memory_bytes"] > 10 * MIB
    crashed = await isolated_harness.run("die")
    assert crashed["cpu_seconds"] > 0.01
