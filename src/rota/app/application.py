"""`Rota`: declarations of a program. Importing it starts nothing; `rota up app.py` runs it."""

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType, ModuleType
from typing import TypeVar, Unpack, overload

from rota.access import reports as access_reports
from rota.app.settings import Settings
from rota.billing import reports as billing_reports
from rota.core import parse
from rota.core.clock import SystemClock
from rota.core.errors import Invalid, NotFound
from rota.core.policy import Retry
from rota.core.timing import triggers
from rota.db.connection import Database, open_database
from rota.db.wake import Wake
from rota.engine import orgs, workers
from rota.engine.commands import Engine
from rota.engine.extensions import Extensions
from rota.engine.metrics import Metrics
from rota.engine.runner import Runner
from rota.frame.http.maintenance import prune_idempotency_keys
from rota.kinds.graphs.registry import GraphOptions, GraphRegistry
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.hosts.runner import HostRunner
from rota.kinds.pipelines.executor import executor_here
from rota.kinds.pipelines.registry import PipelineOptions, PipelineRegistry
from rota.kinds.pipelines.runner import PipelineRunner
from rota.kinds.tasks.registry import Task, TaskRegistry, task_options
from rota.kinds.tasks.runner import TaskRunner
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.repair import CommandRepairer, RepairRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.reports import installation
from rota.reports import schedules as schedule_reports
from rota.user_code.injection import Injector
from rota.user_code.services import Serializer

F = TypeVar("F", bound=Callable[..., object])
PACKAGE = str(Path(__file__).parents[1])
BUILT_IN_KINDS = frozenset(
    runner.kind for runner in (TaskRunner, GraphRunner, PipelineRunner, WorkflowRunner, RepairRunner, HostRunner)
)


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
        self.pipelines = PipelineRegistry()
        self.workflows: dict[str, Workflow] = {}
        self.connectors = Connectors()
        self.injector = Injector()
        self.runners: dict[str, Runner] = {}  # of kinds that the program adds
        self.schedules: list[dict[str, object]] = []
        self.schedule_places: dict[str, str] = {}  # by name: file and line of the declaration
        self._engine: tuple[Engine, asyncio.AbstractEventLoop] | None = None
        self._own_db: Database | None = None  # opened by `enqueue`; None if the process's engine is used
        self._org_id: str | None = None

    @overload
    def task(self, name: F) -> F: ...
    @overload
    def task(self, name: str | None = None, **options: object) -> Callable[[F], F]: ...
    def task(self, name: F | str | None = None, **options: object) -> F | Callable[[F], F]:
        """Register a function as a task, by default under its own name. Options: retry, timeout, isolation (`process`),
        version, cache_ttl, memory_mb."""
        if name is not None and not isinstance(name, str):
            self.registry.add(Task(name.__name__, function=name))
            return name

        def register(function: F) -> F:
            self.registry.add(Task(name or function.__name__, function=function, **task_options(options)))
            return function

        return register

    def shell(self, name: str, command: str, **options: object) -> None:
        """Register a shell command as a task. Options: retry, timeout, env, cwd, stdin, memory_mb, cache_ttl."""
        self.registry.add(Task(name, command=command, **task_options(options)))

    def graph(self, name: str, graph: object, *, provider: str = "langgraph", **options: Unpack[GraphOptions]) -> None:
        """Register a graph as `provider:name`: a compiled LangGraph graph or, for the provider `python`, an async
        generator function. Options: version, description, prices (`{model: (input, output)}` in US dollars per million
        tokens, for models that do not report their cost)."""
        self.graphs.add(name, graph, provider, **options)

    def pipeline(self, name: str, sql: str | None = None, **options: Unpack[PipelineOptions]) -> Callable[[F], F]:
        """Declare a pipeline `namespace/layer/name`: by its SQL or, as a decorator, by a function that may take a
        DuckDB connection and returns a relation. Options: reads (tables that a function reads), after (upstream
        pipelines on whose success it runs), description."""

        def register(function: F) -> F:
            self.pipelines.add(name, function, None, **options)
            return function

        if sql is not None:
            self.pipelines.add(name, None, sql, **options)
        return register

    def workflow(self, workflow: Workflow) -> Workflow:
        """Register a workflow. Raises Invalid if it is inconsistent: here, or when the program is loaded if its
        handlers are declared later."""
        if workflow.handlers:
            workflow.check()
        if workflow.name in self.workflows:
            raise Invalid("workflow", workflow.name, "is declared twice")
        self.workflows[workflow.name] = workflow
        return workflow

    def connector(self, name: str, connector: object) -> None:
        """Register an object whose methods marked `@read` and `@mutation` workflows may call as `name.method`."""
        self.connectors.add(name, connector)

    def kind(self, runner: Runner) -> None:
        """Add a kind of work, `runner.kind`. Raises Invalid if the program or Rota has that kind already."""
        if runner.kind in self.runners or runner.kind in BUILT_IN_KINDS:
            raise Invalid("kind", runner.kind, "is declared twice")
        self.runners[runner.kind] = runner

    def provide(self, wanted: type, factory: Callable[..., object], scope: str = "run") -> None:
        """Inject the factory's result into task parameters of type `wanted`: created once per `run` or `process`."""
        self.injector.provide(wanted, factory, scope)

    def serializer(self, serializer: Serializer) -> None:
        """Register how values of a type are serialised, as results and artifacts."""
        self.injector.serializers.append(serializer)

    @property
    def injectables(self) -> set[type]:
        """Return the types that are injected."""
        return self.injector.injectables

    def schedule(
        self,
        name: str,
        target: str | Callable[..., object],
        *,
        cron: str | None = None,
        every: str | float | timedelta | None = None,
        at: str | datetime | None = None,
        params: object = None,
        retry: Retry | dict[str, object] | None = None,
        **fields: object,
    ) -> None:
        """Schedule a task, or another kind of work (`kind="graph"`, `"pipeline"` or an added one): by `cron`, by
        interval (`every`) or once (`at`); other fields as in the API. Raises Invalid if the name is declared twice."""
        task = self.registry.name_of(target)
        body: dict[str, object] = {"name": name, "kind": "task", "target": task, "input": params, **fields}
        if cron is not None:
            body["cron_expression"] = cron
        if every is not None:
            body["interval"] = every.total_seconds() if isinstance(every, timedelta) else every
        if at is not None:
            body["run_at"] = at
        if retry is not None:
            body["retry"] = retry.dump() if isinstance(retry, Retry) else retry
        if any(schedule["name"] == name for schedule in self.schedules):
            raise Invalid("name", name, "is declared twice")
        self.schedule_places[name] = place_of_call()
        self.schedules.append({key: value for key, value in body.items() if value is not None})

    # jobs

    async def enqueue(
        self,
        task: str | Callable[..., object],
        params: Mapping[str, object] | None = None,
        /,
        *,
        run_at: str | datetime | None = None,
        queue: str = "default",
        priority: int = 0,
        serial_key: str | None = None,
        job_key: str | None = None,
        **named: object,
    ) -> str:
        """Enqueue a task, now or at `run_at`; returns the job's id. Parameters: a mapping, keyword arguments, or both.

        Jobs of one `serial_key` run one after the other. Raises Conflict while another job has the same `job_key`.
        Inside a process that runs this program its engine is used, elsewhere the database that the settings name: then
        `await app.close()` at the end.
        """
        payload = {**(params or {}), **named} or None
        job_ids = await self._with_engine(
            lambda engine: self._enqueue(engine, task, [payload], run_at, queue, priority, serial_key, job_key)
        )
        return job_ids[0]

    async def enqueue_many(
        self,
        task: str | Callable[..., object],
        params: Sequence[Mapping[str, object] | None],
        /,
        *,
        run_at: str | datetime | None = None,
        queue: str = "default",
        priority: int = 0,
        serial_key: str | None = None,
    ) -> list[str]:
        """Enqueue a job per item of `params`, in one transaction; returns their ids."""
        payloads = [None if item is None else dict(item) for item in params]
        return await self._with_engine(
            lambda engine: self._enqueue(engine, task, payloads, run_at, queue, priority, serial_key)
        )

    async def close(self) -> None:
        """Close the database that `enqueue` opened, if any."""
        if self._own_db is not None:
            db, self._own_db, self._engine = self._own_db, None, None
            await db.close()

    def use(self, engine: Engine) -> None:
        """Enqueue through this engine from now on, on the running event loop."""
        self._engine = engine, asyncio.get_running_loop()

    async def _with_engine(self, command: Callable[[Engine], Coroutine[object, None, list[str]]]) -> list[str]:
        """Run a command on the engine's own event loop, from any loop."""
        if self._engine is None or self._engine[1].is_closed():
            settings = Settings.load()
            self._own_db = open_database(settings.database_url)
            self.use(make_engine(settings, self, None, self._own_db, SystemClock(), Wake(), Metrics()))
        assert self._engine is not None
        engine, loop = self._engine
        if loop is asyncio.get_running_loop():
            return await command(engine)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(command(engine), loop))

    async def _enqueue(
        self,
        engine: Engine,
        task: str | Callable[..., object],
        payloads: Sequence[object],
        run_at: str | datetime | None,
        queue: str,
        priority: int,
        serial_key: str | None,
        job_key: str | None = None,
    ) -> list[str]:
        if self._own_db is not None and self._org_id is None and isinstance(engine.clock, SystemClock):
            engine.clock.sync(await engine.db.read(workers.measure))
        if self._org_id is None:
            self._org_id = await engine.db.read(orgs.org_by_slug, self.org)
        if self._org_id is None:
            raise NotFound(f"org {self.org!r} not found in this database; `rota up` creates the first")
        return await engine.enqueue(
            self._org_id,
            "task",
            self.registry.name_of(task),
            payloads,
            run_at=None if run_at is None else triggers.parse_instant(run_at, "run_at"),
            queue_name=parse.name(queue, "queue"),
            priority=parse.whole(priority, "priority", -100, 100),
            serial_key=None if serial_key is None else f"{self._org_id}:{parse.label(serial_key, 'serial_key')}",
            job_key=None if job_key is None else parse.label(job_key, "job_key"),
        )


def place_of_call() -> str:
    """Return file and line of the caller outside Rota, for messages about its declaration."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


EXTENSIONS = Extensions(
    describers={
        "schedules": schedule_reports.schedule,
        "queues": installation.queue,
        "orgs": lambda tx, _, key: access_reports.org(tx, key),
        "users": access_reports.user,
        "api-keys": access_reports.api_key,
        "grants": billing_reports.grant,
        "billing": billing_reports.changed,
    },
    prunes=(prune_idempotency_keys,),
)


def make_engine(
    settings: Settings, program: Rota, app: str | None, db: Database, clock: SystemClock, wake: Wake, metrics: Metrics
) -> Engine:
    """Create the engine of a process, with the runners of all kinds."""
    warehouse = settings.warehouse_dir or settings.data_dir / "warehouse"
    executor = executor_here(warehouse, settings.pipeline_slots)
    remote = None
    if settings.graph_endpoint:
        from rota.kinds.graphs.remote import Remote  # imported here: its HTTP client takes long to load

        remote = Remote(settings.graph_endpoint, settings.service_token)
    command, limit = settings.repair_command, timedelta(seconds=settings.repair_timeout_seconds)
    repairer = CommandRepairer(command, limit) if command else None
    workflows = WorkflowRunner(
        program.workflows, program.connectors, db, program.org, Sandbox(settings.trust_scripts), repairer is not None
    )
    runners: tuple[Runner, ...] = (
        TaskRunner(program.registry, db, app, settings.concurrency, program.injector, program.org, settings.orgs),
        GraphRunner(program.graphs, db, clock, program.org, remote, app),
        PipelineRunner(program.pipelines, db, executor, program.org, program.injector),
        workflows,
        RepairRunner(workflows.scripts, repairer),
        HostRunner(db, clock),
        *program.runners.values(),
    )
    return Engine(
        db, clock, wake, {runner.kind: runner for runner in runners}, settings.engine_settings(), metrics, EXTENSIONS
    )


def load_app(where: str) -> Rota:
    """Load the `Rota` object of a Python file, or at `module:attribute`. Raises Invalid."""
    if where.endswith(".py") or "/" in where:
        programs = [value for value in vars(load_file(where)).values() if isinstance(value, Rota)]
        if len(programs) != 1:
            raise Invalid("APP", where, f"has {len(programs)} Rota objects where one is expected")
        return programs[0]
    name, _, attribute = where.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    value = getattr(importlib.import_module(name), attribute or "app", None)
    if not isinstance(value, Rota):
        raise Invalid("APP", where, "names no Rota object; write module:attribute")
    return value


def load_file(where: str) -> ModuleType:
    """Import a Python file as a module. Raises Invalid if it is not one."""
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
