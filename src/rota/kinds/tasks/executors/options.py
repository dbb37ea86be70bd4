"""The option `executor` of tasks, and the options that it excludes."""

from collections.abc import Mapping
from typing import Any

from rota.core.errors import Invalid

EXECUTORS = ("dask",)


def check_executor(options: Mapping[str, Any], is_command: bool) -> list[Invalid]:
    """Return what is wrong with the options of a task that names an executor."""
    executor = options.get("executor")
    if executor is None:
        return []
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
