"""Declarations of workflows: topics, producers, consumers. Invalid ones are refused when the program is loaded."""

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rota.core import parse, timing_form
from rota.core.clock import system_time
from rota.core.errors import Invalid, together
from rota.db.paging import Record
from rota.kinds.workflows.rules import HandlerKind
from rota.kinds.workflows.scripts.script_api import STEPS

T = TypeVar("T")
Call = Callable[..., Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A producer (one step, `produce`) or a consumer (`prepare`, and perhaps `mutate` and `next`)."""

    name: str
    kind: HandlerKind
    steps: Mapping[str, Call]
    publishes: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    schedule: Mapping[str, object] | None = None
    connectors: tuple[str, ...] | None = None  # that it may call; None: all of the program

    def dump(self) -> Record:
        return {
            "name": self.name,
            "type": self.kind.value,
            "steps": list(self.steps),
            "subscribe": list(self.subscribe),
            "publishes": list(self.publishes),
            "schedule": self.schedule,
        }


class Workflow:
    """Producers and consumers that exchange events through topics, one run at a time.

    inbox = Workflow("inbox-to-sheet", topics=["mail"])

    @inbox.producer(schedule=every("5m"), publishes=["mail"])
    async def poll_mail(ctx, state): ...

    With `isolate` a handler that fails is on hold while the others continue; else the whole workflow waits for it. With
    `connectors` its handlers may call only these, or single methods: `["mail", "sheets.append"]`; a script may call
    none that it does not name. `repair` is for scripts: `auto`, `ask` an operator first, or `off`.
    """

    def __init__(
        self,
        name: str,
        *,
        topics: Sequence[str] = (),
        description: str = "",
        isolate: bool = False,
        version: str | None = None,
        connectors: Sequence[str] | None = None,
        repair: str = "auto",
    ) -> None:
        self.name, self.topics, self.description, self.isolate = name, tuple(topics), description, isolate
        self.connectors, self.repair = None if connectors is None else tuple(connectors), repair
        self.handlers: dict[str, Handler] = {}
        self._version = version

    def producer(
        self, *, schedule: Mapping[str, object], publishes: Sequence[str], name: str | None = None
    ) -> Callable[[T], T]:
        """Decorate `async def poll(ctx, state)`, which returns its new state, or None to keep it."""

        def declare(function: T) -> T:
            handler_name = name or str(getattr(function, "__name__", ""))
            self._add(handler_name, HandlerKind.PRODUCER, {"produce": function}, publishes, schedule=schedule)
            return function

        return declare

    def consumer(
        self, *, subscribe: Sequence[str], publishes: Sequence[str] = (), name: str | None = None
    ) -> Callable[[T], T]:
        """Decorate a class with `prepare(ctx, state)` and, where needed, `mutate(ctx, prepared)` and
        `next(ctx, prepared, mutation)`."""

        def declare(cls: T) -> T:
            consumer = cls() if isinstance(cls, type) else cls
            steps = {step: getattr(consumer, step) for step in STEPS if hasattr(consumer, step)}
            handler_name = name or str(getattr(cls, "__name__", type(consumer).__name__))
            self._add(handler_name, HandlerKind.CONSUMER, steps, publishes, subscribe)
            return cls

        return declare

    def _add(
        self,
        name: str,
        kind: HandlerKind,
        steps: Mapping[str, Any],  # functions of the program; `check` refuses others
        publishes: Sequence[str],
        subscribe: Sequence[str] = (),
        schedule: Mapping[str, object] | None = None,
    ) -> None:
        if name in self.handlers:
            raise Invalid(f"workflow {self.name}", name, "is the name of two handlers")
        topics = tuple(publishes), tuple(subscribe)
        self.handlers[name] = Handler(name, kind, steps, *topics, schedule=schedule, connectors=self.connectors)

    @property
    def version(self) -> str:
        """The declared version, or a hash of declarations and source code of the handlers."""
        return self._version or hashlib.sha256(repr(sorted(sources(self))).encode()).hexdigest()[:12]

    def dump(self) -> Record:
        """Return the declaration as JSON, as the database keeps it."""
        handlers = [handler.dump() for handler in self.handlers.values()]
        connectors = {} if self.connectors is None else {"connectors": list(self.connectors), "repair": self.repair}
        return {"topics": list(self.topics), "isolate": self.isolate, "handlers": handlers, **connectors}

    def check(self) -> None:
        """Raise Invalid with all problems of the declaration, each with the name of its handler."""
        errors = list(problems(self))
        if errors:
            raise together(errors)


def problems(workflow: Workflow) -> Iterator[Invalid]:
    yield from errors_of(parse.name, workflow.name, "workflow")
    for topic in workflow.topics:
        yield from errors_of(parse.name, topic, f"workflow {workflow.name}, topics")
    handlers = list(workflow.handlers.values())
    if not handlers:
        yield Invalid(f"workflow {workflow.name}", None, "has no producer and no consumer")
    subscribed = {topic for handler in handlers for topic in handler.subscribe}
    for handler in handlers:
        where = f"workflow {workflow.name}, {handler.kind.value} {handler.name}"
        for value, problem in handler_problems(handler, workflow.topics, subscribed):
            yield Invalid(where, value, problem)
        yield from errors_of(parse.name, handler.name, where)
        if handler.kind is HandlerKind.PRODUCER:
            yield from errors_of(check_schedule, handler.schedule, where)


def handler_problems(
    handler: Handler, topics: Sequence[str], subscribed: Collection[str]
) -> Iterator[tuple[object, str]]:
    for field, names in (("publishes", handler.publishes), ("subscribe", handler.subscribe)):
        for topic in names:
            if topic not in topics:
                yield topic, f"is not a topic that the workflow declares: `{field}`"
    for topic in handler.publishes:
        if topic in topics and topic not in subscribed:
            yield topic, "is published, but no consumer subscribes to it: its events would stay pending"
    for step, call in handler.steps.items():
        if not inspect.iscoroutinefunction(call):
            yield step, "is not an async function"
    if handler.kind is HandlerKind.PRODUCER:
        if not handler.publishes:
            yield [], "is empty: `publishes` names the topics that it publishes to"
        return
    if not handler.subscribe:
        yield [], "is empty: `subscribe` names the topics that it reads"
    if "prepare" not in handler.steps:
        yield "prepare", "is not defined in the consumer's class"
    if handler.publishes and "next" not in handler.steps:
        yield list(handler.publishes), "is published nowhere: `publishes` needs a `next`"


def errors_of(read: Callable[[object, str], object], value: object, where: str) -> list[Invalid]:
    try:
        read(value, where)
    except Invalid as error:
        return [Invalid(where, problem.value, problem.right) for problem in error.all]
    return []


def check_schedule(schedule: object, where: str) -> None:
    if not isinstance(schedule, Mapping):
        raise Invalid(where, schedule, "is not a schedule: use every(...) or cron(...)")
    timing_form.parse_timing(schedule, now=system_time())


def sources(workflow: Workflow) -> Iterator[tuple[str, str, str]]:
    """Yield the source code of each step, and the declaration of each handler."""
    for handler in workflow.handlers.values():
        yield handler.name, "declaration", repr(handler.dump())
        for step, call in handler.steps.items():
            try:
                text = inspect.getsource(call)
            except (OSError, TypeError):  # made at run time
                code = getattr(call, "__code__", None)
                text = f"{code.co_code!r}{code.co_consts!r}" if code else repr(call)
            yield handler.name, step, text
