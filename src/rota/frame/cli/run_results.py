"""Find a run, wait until it has ended, print its result, exit with its status."""

import sys

import typer

from rota.frame.cli.connection import Answer, ApiRefusal, Connection, Exit, exit_refused, fail, item_path, print_stderr
from rota.frame.cli.output import print_data, print_details
from rota.frame.cli.terminal import json_text, output

UNFINISHED = ("pending", "running")
POLL_SECONDS = 0.5


def find_run(connection: Connection, key: str) -> Answer:
    """Return a run by its id, or the newest run of a job by the job's id, of a schedule or of a task by its
    name. Exits with NOT_FOUND."""
    try:
        run: Answer = connection.try_call("GET", item_path("runs", key))
        return run
    except ApiRefusal as refusal:
        if refusal.status != 404:
            exit_refused(refusal)
    for field in ("job_id", "schedule_id", "target"):
        items = connection.get("/runs", **{field: key}, limit=1)["items"]
        if items:
            return dict(items[0])
    return fail(
        f"no run found for {key!r}: it is no id of a run or job, and no schedule or target of this name has run",
        Exit.NOT_FOUND,
    )


def show_job_or_result(connection: Connection, answer: Answer, wait: bool, timeout: float) -> None:
    """Print the id of the created job or, with `wait`, the result of its run; then exit with its status."""
    if not wait:
        print_details(connection, answer, ["job_id"])
        return
    ended = find_run(connection, wait_until_ended(connection, answer["job_id"], timeout)["id"])
    if not print_data(connection, ended):
        print_result(ended["outcome"])
    exit_with_status(ended)


def print_result(outcome: object) -> None:
    """Print a result: text and the output of commands and graphs as text, everything else as JSON."""
    if isinstance(outcome, dict) and outcome.keys() == {"exit_code", "stdout", "stderr"}:
        print(output(outcome["stdout"]), end="")
        print(output(outcome["stderr"], sys.stderr), end="", file=sys.stderr)
    elif isinstance(outcome, dict) and outcome.get("content") and outcome.keys() == {"content", "artifact_id"}:
        print(output(outcome["content"]))
    elif outcome is not None:
        print(output(outcome) if isinstance(outcome, str) else json_text(outcome, indent=2))


def wait_for_job(connection: Connection, job_id: str, timeout: float) -> None:
    """Wait until a job has ended, print it and exit with its status."""
    job = wait_until_ended(connection, job_id, timeout)
    print_details(connection, job, ("id", "status", "attempt", "started_at", "finished_at"))
    exit_with_status(job)


def wait_until_ended(connection: Connection, job_id: str, timeout: float) -> Answer:
    """Poll a job until it has ended and return it. Exits with TIMED_OUT after `timeout` seconds."""
    from rota.core.clock import stopwatch

    end = stopwatch() + timeout
    while (job := connection.get(f"/jobs/{job_id}"))["status"] in UNFINISHED or suspended(job):
        if stopwatch() > end:
            fail(f"job {job_id} is still {job['status']} after {timeout:g} s", Exit.TIMED_OUT)
        sleep()
    return dict(job)


def suspended(job: Answer) -> bool:
    """Whether the run of a job sleeps or waits, and goes on later."""
    return job["status"] == "paused" and job["waiting"] is not None


def exit_with_status(ended: Answer) -> None:
    """Exit with RUN_FAILED unless a job or run succeeded."""
    if ended["status"] != "success":
        from rota.core.explain import error_text

        print_stderr(f"error: {error_text(ended['error'] or {}) or ended['status']}")
        raise typer.Exit(Exit.RUN_FAILED)


def sleep(seconds: float = POLL_SECONDS) -> None:
    from rota.core import clock

    clock.blocking_sleep(seconds)
