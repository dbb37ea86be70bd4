"""Functions that misbehave: each is a failed run with a clear error, and the worker continues."""

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text as sql

from rota.engine.runner import LOG_LIMIT, Capture
from rota.user_code.processes import OUTPUT_LIMIT
from tests.kinds.tasks.harness import TaskHarness, open_task_harness


def leaves() -> None:
    sys.exit(3)


async def leaves_async() -> None:
    sys.exit("good-bye")


def interrupts() -> None:
    raise KeyboardInterrupt


async def interrupts_async() -> None:
    raise KeyboardInterrupt


def stops_iterating() -> None:
    next(iter([]))


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def closes() -> None:
    raise GeneratorExit


def recurses() -> None:
    recurses()


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (leaves, "SystemExit: 3"),
        (leaves_async, "SystemExit: good-bye"),
        (interrupts, "KeyboardInterrupt: KeyboardInterrupt"),
        (interrupts_async, "KeyboardInterrupt: KeyboardInterrupt"),
        (stops_iterating, "RuntimeError: the function raised StopIteration"),
        (cancels_itself, "CancelledError: CancelledError"),
        (closes, "GeneratorExit: GeneratorExit"),
        (recurses, "RecursionError: maximum recursion depth exceeded"),
    ],
)
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_the_worker_survives_any_exception_of_a_function(
    harness: TaskHarness, function: Callable[[], Any], error: str
) -> None:
    harness.program.task(function)
    harness.program.task("fine")(lambda: "fine")
    run = await harness.run(function)
    assert (run["status"], run["reason"]) == ("failed", "logic")
    assert f"{run['error']['type']}: {run['error']['message']}" == error
    assert (await harness.run("fine"))["outcome"] == "fine"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (object(), "Type is not JSON serializable: object"),
        ({1: 2}, "Dict key must be str"),
        ({"x": {1, 2}}, "Type is not JSON serializable: set"),
        (2**64, "Integer exceeds 64-bit range"),
        ("\ud800", "str is not valid UTF-8: surrogates not allowed"),
        (
            "x" * 2**20,
            "has 1048578 bytes of JSON; at most 1048576 are allowed: save it as an artifact",
        ),
    ],
)
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_result_that_cannot_be_kept_is_a_clear_failure(harness: TaskHarness, result: Any, error: str) -> None:
    harness.program.task("odd")(lambda: result)
    run = await harness.run("odd")
    assert (run["status"], run["reason"], run["outcome"]) == ("failed", "logic", None)
    assert error in run["error"]["message"]


async def test_a_result_with_unstorable_characters_affects_no_other_run(harness: TaskHarness) -> None:
    harness.program.task("nul")(lambda: {"text": "a\0b"})
    harness.program.task("fine")(lambda: "fine")
    await harness.declare()
    for name in ("fine", "nul", "fine"):
        await harness.engine.enqueue(harness.org_id, "task", name, [None])
    await harness.work()
    assert await harness.history("fine") == ["manual #1 success"] * 2
    assert len(await harness.history("nul")) == 1


def forks_in_thread() -> str:
    return "parent" if os.fork() else "child"


async def forks_on_loop() -> str:
    return "parent" if os.fork() else "child"


@pytest.mark.parametrize("function", [forks_in_thread, forks_on_loop])
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_function_that_forks_leaves_no_second_worker(harness: TaskHarness, function: Callable[[], Any]) -> None:
    """The copy ends where the function ends: it must not write a result, nor go on claiming jobs."""
    harness.program.task(function)
    assert (await harness.run(function))["outcome"] == "parent"
    _, status = await asyncio.to_thread(os.waitpid, -1, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await harness.history(function.__name__) == ["manual #1 success"]


def says_much() -> None:
    for _ in range(20_000):
        print("x" * 999)
    print("the end")


def says_much_in_one_line() -> None:
    for _ in range(20):
        sys.stdout.write("x" * 1_000_000)
    sys.stdout.write("the end")


@pytest.mark.parametrize("function", [says_much, says_much_in_one_line])
async def test_of_twenty_megabytes_the_log_keeps_head_and_tail(
    harness: TaskHarness, function: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Capture("stdout", sys.stdout))
    harness.program.task(function)
    run = await harness.run(function)
    assert run["status"] == "success"
    await check_capped(harness, run)


async def test_of_twenty_megabytes_of_a_process_log_and_outcome_keep_the_end(isolated_harness: TaskHarness) -> None:
    run = await isolated_harness.run("chatter")
    lines = await check_capped(isolated_harness, run)
    assert lines[0] == "x" + "é" * 999
    assert {*lines[1:]} == {"é" * 999}  # no character was cut in two


async def test_a_command_that_says_much_keeps_its_end(harness: TaskHarness) -> None:
    harness.program.shell("chatter", "yes 0123456789abcde | head -c 20000000; echo the end")
    run = await harness.run("chatter")
    assert len(run["outcome"]["stdout"]) == OUTPUT_LIMIT
    assert run["outcome"]["stdout"].endswith("the end\n")
    await check_capped(harness, run)


async def check_capped(harness: TaskHarness, run: dict[str, Any]) -> list[str]:
    stmt = "SELECT stream, text FROM logs WHERE run_id = :run ORDER BY id"
    rows = await harness.db.read(lambda tx: tx.execute(sql(stmt), {"run": run["id"]}).all())
    said = [row.text for row in rows if row.stream == "stdout"]
    (note,) = [row.text for row in rows if row.stream == "system"]
    assert note.endswith("characters left out …")
    assert LOG_LIMIT * 0.9 < sum(len(line) + 1 for line in said) <= LOG_LIMIT * 1.1
    return said


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


async def swallows_its_cancellation() -> None:
    for _ in range(3):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def spins() -> None:
    while True:
        pass


@pytest.mark.parametrize("function", [waits_for_ever, swallows_its_cancellation, spins])
@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_function_that_never_returns_ends_at_its_timeout(clean_url: str, function: Callable[[], Any]) -> None:
    harness = await open_task_harness(clean_url, cancel_grace=timedelta(milliseconds=20))
    harness.program.task("stays", timeout=timedelta(milliseconds=50))(function)
    run = await harness.run("stays")
    await harness.close()
    assert (run["status"], run["reason"]) == (
        ("success", None) if function is swallows_its_cancellation else ("failed", "timeout")
    )  # what the work returned wins over a cancel that came too late


async def test_an_isolated_function_that_never_returns_ends_at_its_timeout(isolated_harness: TaskHarness) -> None:
    run = await isolated_harness.run("stay")
    assert (run["status"], run["reason"], run["error"]["message"]) == ("failed", "timeout", "still running after 1 s")


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_isolated_functions_hurt_only_themselves(isolated_harness: TaskHarness) -> None:
    harness = isolated_harness
    await harness.declare()
    jobs = {}
    for name in ("leave", "odd", "die", "fork", "plain"):
        (jobs[name],) = await harness.engine.enqueue(
            harness.org_id, "task", name, [{"x": 1} if name == "plain" else None]
        )
    await harness.work()
    runs = {name: await harness.last_run(job_id) for name, job_id in jobs.items()}
    errors = {name: run["error"] and (run["error"]["type"], run["error"]["message"]) for name, run in runs.items()}
    assert errors["leave"] == ("SystemExit", "3")
    assert errors["odd"] == (
        "LogicError",
        "the task's result is not JSON: Type is not JSON serializable: object",
    )
    assert runs["odd"]["attempt"] == 1  # a LogicError is not retried, whatever the task's retry policy
    assert errors["die"] == ("ChildLost", "the process of this run died (signal SIGKILL)")
    assert (runs["die"]["reason"], runs["die"]["attempt"]) == ("quarantined", 3)
    assert runs["fork"]["outcome"] == 7
    assert runs["plain"]["outcome"] == 2
