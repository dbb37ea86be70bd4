"""Runs dbt: a project's command is a task in a process of its own, whose outcome has the result of each of its nodes
(models, tests, seeds and snapshots), as dbt writes them to `run_results.json`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from rota.core.errors import Invalid, LogicError
from rota.core.policy import Failure, FailureClass
from rota.core.process_groups import describe_exit, last_line
from rota.engine.runner import RunContext, WorkFailed
from rota.kinds.tasks.registry import Task, task_options
from rota.user_code import processes
from rota.version import DISTRIBUTION

OWN_OPTIONS = ("command", "select", "exclude", "target", "profiles_dir", "executable", "env")
COMMANDS = ("build", "run", "test", "seed", "snapshot")
NODES_MAX = 1_000  # in an outcome; the others are counted
MESSAGE_CHARACTERS = 300  # of a node
PROJECT_FILE = "dbt_project.yml"
INHERITED = ("DBT_*",)
FAILED = ("error", "fail", "runtime error")
# Texts of databases that were out of reach, or too busy, for a moment.
OUT_OF_REACH = re.compile(
    r"connection refused|could not connect|connection (was |unexpectedly )?(closed|lost|reset)|closed the connection|"
    r"timeout expired|timed out|could not translate host name|no route to host|too many (clients|connections)|"
    r"could not set lock on file|deadlock detected|is starting up|is shutting down",
    re.IGNORECASE,
)
WRONG_CREDENTIALS = re.compile(r"authentication failed|no password supplied|permission denied", re.IGNORECASE)


def dbt_task(name: str, project_dir: str, options: Mapping[str, object]) -> Task:
    """Return the task of a command of a dbt project. Raises Invalid for a wrong option, or if dbt is not installed.
    Unless `max_running` says otherwise, one run of it at a time."""
    own = {option: value for option, value in options.items() if option in OWN_OPTIONS}
    rest = {"max_running": 1} | {option: value for option, value in options.items() if option not in OWN_OPTIONS}
    return Task(name, function=dbt_function(name, project_dir, own), **task_options(rest))


def dbt_function(name: str, project_dir: str, options: Mapping[str, Any]) -> Callable[..., Awaitable[object]]:
    """Return the function of a task that runs dbt. Raises Invalid."""
    project = Path(project_dir).absolute()
    if not (project / PROJECT_FILE).is_file():
        raise Invalid("project_dir", str(project_dir), f"is not a dbt project: it has no {PROJECT_FILE}")
    command = options.get("command", COMMANDS[0])
    if command not in COMMANDS:
        raise Invalid("command", command, f"is not one of {', '.join(COMMANDS)}")
    executable = options.get("executable")
    if executable is None and find_spec("dbt") is None:
        remedy = f"needs dbt: install {DISTRIBUTION}[dbt], or name the dbt of another environment as `executable`"
        raise Invalid("dbt", name, remedy)
    fixed = [*selection("select", options.get("select", ())), *selection("exclude", options.get("exclude", ()))]
    if "target" in options:
        fixed += ["--target", plain_word(options["target"], "target")]
    profiles = Path(options.get("profiles_dir", project)).absolute()
    allowed = options.get("env", ())

    async def run_dbt(
        ctx: RunContext, select: str | None = None, full_refresh: bool = False, vars: dict[str, Any] | None = None
    ) -> object:
        arguments = fixed if select is None else [*fixed, *selection("select", select)]
        if full_refresh:
            arguments = [*arguments, "--full-refresh"]
        if vars:
            arguments = [*arguments, "--vars", json.dumps(vars)]
        with tempfile.TemporaryDirectory(prefix="rota-dbt-") as target:
            words = [
                *([sys.executable, "-m", "dbt.cli.main"] if executable is None else [executable]),
                *("--no-use-colors", "--no-send-anonymous-usage-stats", "--no-version-check", command),
                *("--project-dir", str(project), "--profiles-dir", str(profiles)),
                *("--target-path", target, "--log-path", target, *arguments),
            ]
            return await run(ctx, words, project, Path(target), allowed)

    run_dbt.__doc__ = f"dbt {command} of {project.name}"
    return run_dbt


async def run(
    ctx: RunContext, words: Sequence[str], project: Path, target: Path, env: Mapping[str, str] | Sequence[str]
) -> object:
    """Run dbt until it ends; returns what it did. Raises WorkFailed with the results of the nodes, LogicError if dbt
    cannot start."""
    patterns, variables = ((), env) if isinstance(env, Mapping) else (env, {})
    environment = processes.environment(ctx, (*INHERITED, *patterns), variables)
    try:
        process = await processes.start(ctx, words, environment, str(project))
    except (OSError, subprocess.SubprocessError) as error:
        raise LogicError(f"dbt cannot be started: {error}") from error
    output = await processes.supervise(ctx, process, b"")
    outcome = outcome_of(read_json(target / "run_results.json"), read_json(target / "manifest.json"))
    if process.returncode:
        text = last_line(output["stderr"]) or last_line(output["stdout"])
        raise WorkFailed(failure_of(process.returncode, outcome, output["stdout"] + output["stderr"], text), outcome)
    return outcome


def outcome_of(results: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of a run: its nodes with their results and upstream nodes. Pure."""
    parents = manifest.get("parent_map", {})
    nodes = [node_result(result, parents) for result in results.get("results", ())]
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node["status"]] = counts.get(node["status"], 0) + 1
    outcome = {"counts": counts, "nodes": sorted(nodes, key=failed_first)[:NODES_MAX]}
    return outcome if len(nodes) <= NODES_MAX else {**outcome, "nodes_left_out": len(nodes) - NODES_MAX}


def node_result(result: Mapping[str, Any], parents: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    unique_id = str(result["unique_id"])
    response = result.get("adapter_response") or {}
    rows = response.get("rows_affected")
    return {
        "node": unique_id,
        "status": result["status"],
        "rows": rows if isinstance(rows, int) and rows >= 0 else None,
        "failures": result.get("failures"),
        "duration_ms": round(float(result.get("execution_time") or 0) * 1000),
        "message": str(result.get("message") or "")[:MESSAGE_CHARACTERS],
        "reads": list(parents.get(unique_id, ())),
    }


def failed_first(node: Mapping[str, Any]) -> bool:
    return node["status"] not in FAILED


def failure_of(code: int, outcome: Mapping[str, Any], output: str, text: str) -> Failure:
    """Classify the failure of dbt by the messages of its nodes, or by its output if no node has failed. Pure."""
    failed = [node for node in outcome["nodes"] if node["status"] in FAILED]
    if code < 0:
        return Failure(FailureClass.TRANSIENT, "DbtEnded", f"dbt was ended by {describe_exit(code)}")
    messages = [node["message"] for node in failed] or [output]
    failure_class = FailureClass.LOGIC
    if all(OUT_OF_REACH.search(message) for message in messages):
        failure_class = FailureClass.TRANSIENT
    elif all(WRONG_CREDENTIALS.search(message) for message in messages):
        failure_class = FailureClass.AUTH
    if not failed:
        return Failure(failure_class, "DbtFailed", f"dbt exited with code {code}: {text}")
    first = failed[0]
    named = f"{first['node']}: {' '.join(first['message'].split())}"
    return Failure(
        failure_class, "DbtFailed", f"{len(failed)} of {sum(outcome['counts'].values())} nodes failed; {named}"
    )


def selection(option: str, value: str | Sequence[str]) -> list[str]:
    """Return the arguments of an option of dbt that takes several words. Raises Invalid."""
    words = value.split() if isinstance(value, str) else list(value)
    return [f"--{option}", *(plain_word(word, option) for word in words)] if words else []


def plain_word(word: object, field: str) -> str:
    if not isinstance(word, str) or not word or word.startswith("-"):
        raise Invalid(field, word, "is not a selection of dbt: it is empty or begins with -")
    return word


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a file of dbt; empty if dbt ended before it wrote one."""
    try:
        content = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}
