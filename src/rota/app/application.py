"""`Rota`: declarations of a program. Importing it starts nothing; `rota up app.py` runs it."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from rota.app.assembly import BUILT_IN_KINDS, make_engine
from rota.app.callers_transactions import (
    AwaitedConnection,
    BlockingConnection,
    CallersTransactions,
    EnqueueRequest,
    unknown_org,
)
from rota.app.settings import Settings
from rota.core import parse
from rota.core.clock import SystemClock
from rota.core.errors import Invalid, NotFound
from rota.core.policy import Retry
from rota.db.connection import Database, open_database
from rota.db.wake import Wake
from rota.engine import orgs, workers
from rota.engine.commands import Engine
from rota.engine.metrics import Metrics
from rota.engine.runner import Runner
from rota.kinds.alarms.manager import DeclaredChannel
from rota.kinds.alarms.models import AlarmBody
from rota.kinds.graphs.registry import GraphOptions, GraphRegistry
from rota.kinds.pipelines.registry import PipelineOptions, PipelineRegistry
from rota.kinds.tasks.dbt import dbt_task
from rota.kinds.tasks.registry import Task, TaskRegistry, task_options
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.declaration import Workflow
from rota.user_code.injection import Injector
from rota.user_code.services import Serializer

if TYPE_CHECKING:
    from rota.app.site import MountedSite

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
PACKAGE = str(Path(__file__).parents[1])


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
        self.alarms: list[tuple[dict[str, object], list[DeclaredChannel]]] = []  # with the channels that they declare
        self._engine: tuple[Engine, asyncio.AbstractEventLoop] | None = None
        self._own_db: Database | None = None  # opened by `enqueue`; None if the process's engine is used
        self._org_id: str | None = None
        self._callers = CallersTransactions(org, self.registry, self.injector)

    @overload
    def task(self, name: F) -> F: ...
    @overload
    def task(self, name: str | None = None, **options: object) -> Callable[[F], F]: ...
    def task(self, name: F | str | None = None, **options: object) -> F | Callable[[F], F]:
        """Register a function as a task, by default under its own name. Options: retry, timeout, heartbeat, isolation
        (`process`), version, on_new_version (`continue`, `restart` or `park`), cache_ttl, memory_mb, queue, priority,
        and those of flow control: rate, burst, rate_key, max_running, max_running_key, debounce, debounce_key,
        debounce_max, throttle, throttle_key. Raises Invalid."""
        if name is not None and not isinstance(name, str):
            self.registry.add(Task(name.__name__, function=name))
            return name

        def register(function: F) -> F:
            self.registry.add(Task(name or function.__name__, function=function, **task_options(options)))
            return function

        return register

    def shell(self, name: str, command: str, **options: object) -> None:
        """Register a shell command as a task. Options: retry, timeout, env, cwd, stdin, memory_mb, cache_ttl,
        executor and container (docs/executors.md), queue, priority, and those of flow control (see `task`)."""
        self.registry.add(Task(name, command=command, **task_options(options)))

    def dbt(self, name: str, project_dir: str, **options: object) -> None:
        """Register a command of a dbt project as a task. Options: command (`build`), select, exclude, target,
        profiles_dir, executable, env, and those of tasks: retry, timeout, queue, priority and flow control."""
        self.registry.add(dbt_task(name, project_dir, options))

    def graph(self, name: str, graph: object, *, provider: str = "langgraph", **options: Unpack[GraphOptions]) -> None:
        """Register a graph as `provider:name`: a compiled LangGraph graph or, for the provider `python`, an async
        generator function. Options: version, description, prices (`{model: (input, output)}` in US dollars per million
        tokens, for models that do not report their cost)."""
        self.graphs.add(name, graph, provider, **options)

    def pipeline(self, name: str, sql: str | None = None, **options: Unpack[PipelineOptions]) -> Callable[[F], F]:
        """Declare a pipeline `namespace/layer/name`: by its SQL or, as a decorator, by a function that may take a
        DuckDB connection and returns a relation. Options: reads (tables that a function reads), after (upstream
        pipelines on whose success it runs), description; append_by, merge_by or partition_by, by which runs change a
        part of the table (docs/pipelines.md)."""

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
        rrule: str | None = None,
        params: object = None,
        retry: Retry | dict[str, object] | None = None,
        **fields: object,
    ) -> None:
        """Schedule a task, or another kind of work (`kind="graph"`, `"pipeline"` or an added one): by `cron`, by
        interval (`every`), once (`at`) or by a recurrence rule (`rrule`); other fields as in the API. Raises Invalid if
        the name is declared twice."""
        task = self.registry.name_of(target)
        body: dict[str, object] = {"name": name, "kind": "task", "target": task, "input": params, **fields}
        if cron is not None:
            body["cron_expression"] = cron
        if every is not None:
            body["interval"] = every.total_seconds() if isinstance(every, timedelta) else every
        if at is not None:
            body["run_at"] = at
        if rrule is not None:
            body["rrule"] = rrule
        if retry is not None:
            body["retry"] = retry.dump() if isinstance(retry, Retry) else retry
        if any(schedule["name"] == name for schedule in self.schedules):
            raise Invalid("name", name, "is declared twice")
        self.schedule_places[name] = place_of_call()
        self.schedules.append({key: value for key, value in body.items() if value is not None})

    def alarm(
        self,
        name: str,
        *,
        when: str,
        on: str | None = None,
        notify: Sequence[DeclaredChannel | str] = (),
        **fields: object,
    ) -> None:
        """Declare an alarm: `app.alarm("late", when="late > 5m", on=tag("nightly"), notify=[email("ops@a.org")])`.
        `notify` has channels, or names of stored ones; other fields as in the API. Raises Invalid."""
        if any(alarm["name"] == name for alarm, _ in self.alarms):
            raise Invalid("name", name, "is declared twice")
        channels = [channel for channel in notify if isinstance(channel, DeclaredChannel)]
        names = [channel.name if isinstance(channel, DeclaredChannel) else channel for channel in notify]
        body = AlarmBody.read({"name": name, "when": when, "on": on, "notify": names, **fields}).present()
        self.alarms.append((body, channels))

    # jobs

    @overload
    def enqueue(
        self,
        task: str | Callable[..., object],
        params: Mapping[str, object] | None = None,
        /,
        *,
        connection: BlockingConnection,
        run_at: str | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        job_key: str | None = None,
        key_mode: str = "reject",
        after: Sequence[str] = (),
        when: str = "success",
        **named: object,
    ) -> str: ...
    @overload
    def enqueue(
        self,
        task: str | Callable[..., object],
        params: Mapping[str, object] | None = None,
        /,
        *,
        connection: AwaitedConnection | None = None,
        run_at: str | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        job_key: str | None = None,
        key_mode: str = "reject",
        after: Sequence[str] = (),
        when: str = "success",
        **named: object,
    ) -> Coroutine[Any, Any, str]: ...
    def enqueue(
        self,
        task: str | Callable[..., object],
        params: Mapping[str, object] | None = None,
        /,
        *,
        connection: object = None,
        run_at: str | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        job_key: str | None = None,
        key_mode: str = "reject",
        after: Sequence[str] = (),
        when: str = "success",
        **named: object,
    ) -> str | Coroutine[Any, Any, str]:
        """Enqueue a task, now or at `run_at`; returns the job's id. Parameters: a mapping, keyword arguments, or both.

        Jobs of one `serial_key` run one after the other. While another job has the same `job_key`, `key_mode` decides:
        `reject` raises Conflict, `preserve` returns that job, `replace` replaces it if it has not started.
        With `after`, ids of jobs, it runs when all of these have ended: `when` they succeeded (`success`), at least one
        did not (`failure`), or in any case (`any`). Queue and priority are by default those of the task.

        With `connection`, the caller's own connection or session, the job becomes part of its transaction. On one that
        is not awaited this is a plain call: it returns the id itself. Raises Refused for a connection to another
        database, in autocommit mode, or closed.

        Without it, inside a process that runs this program its engine is used, elsewhere the database that the
        settings name: then `await app.close()` at the end.
        """
        payload = {**(params or {}), **named} or None
        request = EnqueueRequest(task, [payload], run_at, queue, priority, serial_key, job_key, key_mode, after, when)
        answer = self._enqueue(request, connection)
        return answer[0] if isinstance(answer, list) else first_of(answer)

    @overload
    def enqueue_many(
        self,
        task: str | Callable[..., object],
        params: Sequence[Mapping[str, object] | None],
        /,
        *,
        connection: BlockingConnection,
        run_at: str | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        after: Sequence[str] = (),
        when: str = "success",
    ) -> list[str]: ...
    @overload
    def enqueue_many(
        self,
        task: str | Callable[..., object],
        params: Sequence[Mapping[str, object] | None],
        /,
        *,
        connection: AwaitedConnection | None = None,
        run_at: str | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        after: Sequence[str] = (),
        when: str = "success",
    ) -> Coroutine[Any, Any, list[str]]: ...
    def enqueue_many(
        self,
        task: str | Callable[..., object],
        params: Sequence[Mapping[str, object] | None],
        /,
        *,
        connection: object = None,
        run_at: str | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        after: Sequence[str] = (),
        when: str = "success",
    ) -> list[str] | Coroutine[Any, Any, list[str]]:
        """Enqueue a job per item of `params`, in one transaction; returns their ids. `connection` as in `enqueue`."""
        payloads = [None if item is None else dict(item) for item in params]
        request = EnqueueRequest(task, payloads, run_at, queue, priority, serial_key, after=after, when=when)
        return self._enqueue(request, connection)

    def asgi(self, *, worker: bool = False, **settings: object) -> "MountedSite":
        """Return API and dashboard as an ASGI application, to be mounted at any path: `fastapi_app.mount("/rota",
        app.asgi())`. With `worker` it also schedules and runs, and needs `FastAPI(lifespan=site.lifespan)`; what the
        program declares belongs to the file that calls this, as with `rota up FILE`. `settings` override those of the
        environment."""
        from rota.app.site import MountedSite  # here: a program that only declares tasks loads no web framework

        return MountedSite(self, place_of_call().rpartition(":")[0] if worker else None, **settings)

    async def signal(
        self, topic: str, *, key: str | None = None, payload: object = None, id: str | None = None
    ) -> bool:
        """Send a signal to a run that waits for its topic and key; returns whether one did, else it is kept. The same
        `id` is one signal. Uses the engine or database that `enqueue` uses."""

        async def send(engine: Engine) -> bool:
            org_id = await self._org(engine)
            sent = await engine.send_signal(org_id, topic, key=key, payload=payload, signal_id=id, sender="program")
            return sent.delivered

        return await self._with_engine(send)

    async def batch(
        self,
        name: str,
        task: str | Callable[..., object],
        params: Sequence[Mapping[str, object] | None],
        /,
        *,
        then: str | Callable[..., object],
        then_params: Mapping[str, object] | None = None,
        when: str = "any",
        queue: str | None = None,
        priority: int | None = None,
    ) -> list[str]:
        """Enqueue a job per item of `params`, and a job of the task `then` that runs when all have ended, in one
        transaction; returns their ids, that of the last job last. Raises Conflict while the last job of a batch with
        this name has not ended."""
        payloads = [None if item is None else dict(item) for item in params]

        async def command(engine: Engine) -> list[str]:
            ids, last = await engine.enqueue_batch(
                await self._org(engine),
                name,
                "task",
                self.registry.name_of(task),
                payloads,
                self.registry.name_of(then),
                None if then_params is None else dict(then_params),
                when=when,
                queue_name=None if queue is None else parse.name(queue, "queue"),
                priority=None if priority is None else parse.whole(priority, "priority", -100, 100),
            )
            return [*ids, last]

        return await self._with_engine(command)

    async def close(self) -> None:
        """Close the database that `enqueue` opened, if any."""
        if self._own_db is not None:
            db, self._own_db, self._engine = self._own_db, None, None
            await db.close()

    def use(self, engine: Engine) -> None:
        """Enqueue through this engine from now on, on the running event loop."""
        self._engine = engine, asyncio.get_running_loop()

    async def _with_engine(self, command: Callable[[Engine], Coroutine[object, None, R]]) -> R:
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

    def _enqueue(self, request: EnqueueRequest, connection: object) -> list[str] | Coroutine[Any, Any, list[str]]:
        if connection is None:
            return self._with_engine(lambda engine: self._enqueue_by(engine, request))
        return self._callers.enqueue(request, connection, self._url())

    def _url(self) -> str:
        """Return the URL of the database whose workers run this program's jobs."""
        return Settings.load().database_url if self._engine is None else self._engine[0].db.url

    async def _enqueue_by(self, engine: Engine, request: EnqueueRequest) -> list[str]:
        org_id = await self._org(engine)
        options, target = request.options(org_id), self.registry.name_of(request.task)
        return await engine.enqueue(org_id, "task", target, request.payloads, **options)

    async def _org(self, engine: Engine) -> str:
        """Return the id of the program's org. Raises NotFound."""
        if self._own_db is not None and self._org_id is None and isinstance(engine.clock, SystemClock):
            engine.clock.sync(await engine.db.read(workers.measure))
        if self._org_id is None:
            self._org_id = await engine.db.read(orgs.org_by_slug, self.org)
        if self._org_id is None:
            raise NotFound(unknown_org(self.org))
        return self._org_id


async def first_of(ids: Coroutine[Any, Any, list[str]]) -> str:
    return (await ids)[0]


def place_of_call() -> str:
    """Return file and line of the caller outside Rota, for messages about its declaration."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
