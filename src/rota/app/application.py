"""`Rota`: what a program declares. Importing it starts nothing; `rota up app.py` runs it."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

from rota.core.errors import Invalid
from rota.core.policy import Retry
from rota.core.triggers import parse_interval
from rota.kinds.tasks import Task, TaskRegistry

F = TypeVar("F", bound=Callable[..., Any])


class Rota:
    """A program's tasks and schedules.

    app = Rota()

    @app.task
    async def report(day: str) -> dict: ...

    app.schedule("nightly", "report", cron="0 2 * * *", params={"day": "today"})
    """

    def __init__(self, org: str = "default") -> None:
        self.org = org
        self.registry = TaskRegistry()
        self.schedules: list[dict[str, Any]] = []

    @overload
    def task(self, name: F) -> F: ...
    @overload
    def task(self, name: str | None = None, **options: Any) -> Callable[[F], F]: ...
    def task(self, name: Any = None, **options: Any) -> Any:
        """Register a function, under its own name or the given one. Options: retry, timeout, isolation, version."""
        if callable(name):
            self.registry.add(Task(name.__name__, function=name))
            return name

        def remember(function: F) -> F:
            self.registry.add(Task(name or function.__name__, function=function, **task_options(options)))
            return function

        return remember

    def shell(self, name: str, command: str, **options: Any) -> None:
        """Register a command for the system's shell."""
        self.registry.add(Task(name, command=command, **task_options(options)))

    def schedule(
        self,
        name: str,
        target: str | Callable[..., Any],
        *,
        cron: str | None = None,
        every: str | float | timedelta | None = None,
        at: str | datetime | None = None,
        params: Any = None,
        retry: Retry | dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Say when a task runs: by `cron`, `every` interval or once `at` a moment; other fields as in the API."""
        task = target if isinstance(target, str) else target.__name__
        body: dict[str, Any] = {"name": name, "kind": "task", "target": task, "input": params, **fields}
        if cron is not None:
            body["cron_expression"] = cron
        if every is not None:
            body["interval"] = every.total_seconds() if isinstance(every, timedelta) else every
        if at is not None:
            body["run_at"] = at
        if retry is not None:
            body["retry"] = retry.dump() if isinstance(retry, Retry) else retry
        own = self.registry.find(task)
        if own is not None:
            body.setdefault("retry", own.retry.dump() if own.retry else None)
            body.setdefault("timeout_seconds", int(own.timeout.total_seconds()) if own.timeout else None)
        if any(one["name"] == name for one in self.schedules):
            raise Invalid("name", name, "is declared twice")
        self.schedules.append({key: value for key, value in body.items() if value is not None})


def task_options(options: dict[str, Any]) -> dict[str, Any]:
    known = {"retry", "timeout", "isolation", "version"}
    for name, value in options.items():
        if name not in known:
            raise Invalid(name, value, f"is not an option of a task; known are {', '.join(sorted(known))}")
    found = dict(options)
    if found.get("timeout") is not None and not isinstance(found["timeout"], timedelta):
        found["timeout"] = parse_interval(found["timeout"], "timeout")
    if found.get("isolation", "none") not in ("none", "process"):
        raise Invalid("isolation", found["isolation"], "is neither none nor process")
    return found


def load_app(where: str) -> Rota:
    """The `Rota` in a Python file, or at `module:attribute`."""
    if where.endswith(".py") or "/" in where:
        path = Path(where).resolve()
        if not path.is_file():
            raise Invalid("APP", where, "is not a file")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(f"rota_app_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise Invalid("APP", where, "is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        found = [value for value in vars(module).values() if isinstance(value, Rota)]
        if len(found) != 1:
            raise Invalid("APP", where, f"has {len(found)} Rota objects where one is expected")
        return found[0]
    name, _, attribute = where.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    value = getattr(importlib.import_module(name), attribute or "app", None)
    if not isinstance(value, Rota):
        raise Invalid("APP", where, "names no Rota object; write module:attribute")
    return value
