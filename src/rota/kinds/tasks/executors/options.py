"""The option `executor` of tasks, and the options that it excludes."""

from collections.abc import Mapping
from typing import Any

from rota.core.errors import Invalid

EXECUTORS = ("dask", "ray", "container", "kubernetes")
WITH_CONTAINER = ("container", "kubernetes")


def check_executor(options: Mapping[str, Any], is_command: bool) -> list[Invalid]:
    """Return what is wrong with the options of a task that names an executor."""
    executor, container = options.get("executor"), options.get("container")
    if container and executor not in WITH_CONTAINER:
        return [
            Invalid(
                "container",
                container,
                "has an effect only with executor 'container' or 'kubernetes'; add it, or leave both out",
            )
        ]
    if executor is None:
        return []
    if executor in WITH_CONTAINER:
        return check_container(options, is_command)
    if is_command:
        return [Invalid("executor", executor, "runs functions, not commands; leave it out")]
    wrong = []
    if options.get("isolation") == "process":
        reason = f"cannot be combined with executor {executor!r}, where each run has a process of its own; leave it out"
        wrong.append(Invalid("isolation", "process", reason))
    wrong += [
        Invalid(name, options[name], f"has no effect with executor {executor!r}: leave it out")
        for name in ("cwd", "env", "stdin")
        if options.get(name)
    ]
    return wrong


def check_container(options: Mapping[str, Any], is_command: bool) -> list[Invalid]:
    """Return what is wrong with the options of a task that runs in a container."""
    wrong, executor, container = [], options["executor"], options.get("container") or {}
    if executor == "kubernetes" and not is_command:
        return [Invalid("executor", executor, "runs commands, not functions: use app.shell, or executor 'container'")]
    unfit = ("manifest",) if executor == "container" else ("network", "python")
    wrong += [
        Invalid(f"container.{name}", container[name], f"has no effect with executor {executor!r}; leave it out")
        for name in unfit
        if name in container
    ]
    if not container:
        wrong.append(Invalid("container", None, 'is missing: name an image, such as {"image": "python:3.13"}'))
    if options.get("isolation") == "process":
        wrong.append(Invalid("isolation", "process", f"cannot be combined with executor {executor!r}; leave it out"))
    if options.get("stdin") and not is_command:
        wrong.append(Invalid("stdin", options["stdin"], "is an option of commands, not of functions; leave it out"))
    return wrong
