"""`Rota`: what a program declares. Importing it starts nothing; `rota up app.py` runs it."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

from rota.core.errors import Invalid
from rota.core.policy import Retry
from rota.engine.injection import Injector
from rota.engine.runner import RunContext
from rota.engine.services import Serializer
from rota.kinds.graphs import GraphRegistry
from rota.kinds.tasks import Task, TaskRegistry, task_options

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
        self.registry = TaskRegistry.of_program()
        self.graphs = GraphRegistry()
        self.injector = Injector()
        self.schedules: list[dict[str, Any]] = []

    @overload
    def task(self, name: F) -> F: ...
    @overload
    def task(self, name: str | None = None, **options: Any) -> Callable[[F], F]: ...
    def task(self, name: Any = None, **options: Any) -> Any:
        """Register a function, under its own name or the given one. Options: retry, timeout, isolation (`process`),
        version, cache_ttl, memory_mb."""
        if callable(name):
            self.registry.add(Task(name.__name__, function=name))
            return name

        def remember(function: F) -> F:
            self.registry.add(Task(name or function.__name__, function=function, **task_options(options)))
            return function

        return remember

    def shell(self, name: str, command: str, **options: Any) -> None:
        """Register a command for the system's shell. Options: retry, timeout, env, cwd, stdin, memory_mb, cache_ttl."""
        self.registry.add(Task(name, command=command, **task_options(options)))

    def graph(self, name: str, graph: Any, *, provider: str = "langgraph", **options: Any) -> None:
        """Register a graph as `provider:name`: a compiled LangGraph graph or, for the provider `python`, an async
        generator function. Options: version, description, prices (`{model: (input, output)}` in US dollars per million
        tokens, for calls whose cost the model does not tell)."""
        self.graphs.add(name, graph, provider, **options)

    def provide(self, wanted: type, factory: Callable[..., Any], scope: str = "run") -> None:
        """Inject what the factory makes wherever a task's parameter has this type: once per `run` or `process`."""
        self.injector.provide(wanted, factory, scope)

    def serializer(self, serializer: Serializer) -> None:
        """Say how values of some type are kept, as results and artifacts."""
        self.injector.serializers.append(serializer)

    @property
    def injectables(self) -> set[type]:
        """The types that are injected."""
        return {RunContext, *self.injector.providers}

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
        """Say when a task runs, or a graph (`kind="graph"`): by `cron`, `every` interval or once `at` a moment; other
        fields as in the API."""
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
        if any(one["name"] == name for one in self.schedules):
            raise Invalid("name", name, "is declared twice")
        self.schedules.append({key: value for key, value in body.items() if value is not None})


def load_app(where: str) -> Rota:
    """The `Rota` in a Python file, or at `module:attribute`."""
    if where.endswith(".py") or "/" in where:
        found = [value for value in vars(load_file(where)).values() if isinstance(value, Rota)]
        if len(found) != 1:
            raise Invalid("APP", where, f"has {len(found)} Rota objects where one is expected")
        return found[0]
    name, _, attribute = where.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    value = getattr(importlib.import_module(name), attribute or "app", None)
    if not isinstance(value, Rota):
        raise Invalid("APP", where, "names no Rota object; write module:attribute")
    return value


def load_file(where: str) -> ModuleType:
    """Run a Python file as a module."""
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
    return module
