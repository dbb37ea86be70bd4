"""What a program declares: workflows with their topics, producers and consumers. What cannot work is refused here."""

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from rota.core import parse
from rota.core.clock import system_time
from rota.core.errors import Invalid, together
from rota.kinds.workflows.rules import HandlerKind

T = TypeVar("T")
Call = Callable[..., Awaitable[Any]]

STEPS = ("prepare", "mutate", "next")


@dataclass(frozen=True, slots=True)
class Reservation:
    """Events of one topic that a run takes for itself."""

    topic: str
    ids: Sequence[str]


@dataclass(slots=True)
class Prepare:
    """What `prepare` decided: which events this run handles, what the later steps need, when to look again."""

    reservations: Mapping[str, Sequence[str]] | Sequence[Reservation] = field(default_factory=dict)
    data: Any = None
    wake_at: datetime | str | None = None
    title: str | None = None

    def dump(self) -> dict[str, Any]:
        """As JSON; what is wrong with it is found out by whoever reads it."""
        given = self.reservations
        if isinstance(given, Sequence) and all(isinstance(one, Reservation) for one in given):
            found: dict[str, list[str]] = {}
            for one in given:
                found.setdefault(one.topic, []).extend(one.ids)
            given = found
        wake = self.wake_at.isoformat() if isinstance(self.wake_at, datetime) else self.wake_at
        return {"reservations": given, "data": self.data, "wake_at": wake, "title": self.title}


@dataclass(frozen=True, slots=True)
class Mutation:
    """What `next` is told about the mutation: `applied` with its result, `none`, or `skipped`."""

    status: str
    result: Any = None


def every(interval: str | float) -> dict[str, Any]:
    """A schedule: `every("5m")`."""
    return {"interval": interval}


def cron(expression: str, timezone: str = "UTC") -> dict[str, Any]:
    """A schedule: `cron("0 9 * * 1-5", "Europe/Oslo")`."""
    return {"cron_expression": expression, "timezone": timezone}


@dataclass(frozen=True, slots=True)
class Handler:
    """A producer (one step, `produce`) or a consumer (`prepare`, and perhaps `mutate` and `next`)."""

    name: str
    kind: HandlerKind
    steps: Mapping[str, Call]
    publishes: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    schedule: Mapping[str, Any] | None = None
    connectors: tuple[str, ...] | None = None  # that it may call; all of the program's, where nothing is said

    def dump(self) -> dict[str, Any]:
        return {
            "name": self.name, "type": self.kind.value, "steps": list(self.steps), "subscribe": list(self.subscribe),
            "publishes": list(self.publishes), "schedule": self.schedule,
        }  # fmt: skip


class Workflow:
    """Producers and consumers that talk through topics, one run at a time.

    inbox = Workflow("inbox-to-sheet", topics=["mail"])

    @inbox.producer(schedule=every("5m"), publishes=["mail"])
    async def poll_mail(ctx, state): ...

    With `isolate` a handler that fails is put aside while the others go on; else the whole workflow waits for it. With
    `connectors` its handlers may call those alone, or single methods: `["mail", "sheets.append"]`; a script may call
    none that it does not name. `repair` is for scripts: `auto`, `ask` a person first, or `off`.
    """

    def __init__(
        self, name: str, *, topics: Sequence[str] = (), description: str = "", isolate: bool = False,
        version: str | None = None, connectors: Sequence[str] | None = None, repair: str = "auto",
    ) -> None:  # fmt: skip
        self.name, self.topics, self.description, self.isolate = name, tuple(topics), description, isolate
        self.connectors, self.repair = None if connectors is None else tuple(connectors), repair
        self.handlers: dict[str, Handler] = {}
        self._version = version

    def producer(
        self, *, schedule: Mapping[str, Any], publishes: Sequence[str], name: str | None = None
    ) -> Callable[[T], T]:
        """A decorator for `async def poll(ctx, state)`, which returns its new state, or None to keep it."""

        def remember(function: T) -> T:
            called = name or str(getattr(function, "__name__", ""))
            self._add(
                called, HandlerKind.PRODUCER, {"produce": function}, publishes=publishes, schedule=schedule,
                connectors=self.connectors,
            )  # fmt: skip
            return function

        return remember

    def consumer(
        self, *, subscribe: Sequence[str], publishes: Sequence[str] = (), name: str | None = None
    ) -> Callable[[T], T]:
        """A decorator for a class with `prepare(ctx, state)` and, where needed, `mutate(ctx, prepared)` and
        `next(ctx, prepared, mutation)`."""

        def remember(cls: T) -> T:
            one = cls() if isinstance(cls, type) else cls
            steps = {step: getattr(one, step) for step in STEPS if hasattr(one, step)}
            called = name or str(getattr(cls, "__name__", type(one).__name__))
            self._add(
                called,
                HandlerKind.CONSUMER,
                steps,
                publishes=publishes,
                subscribe=subscribe,
                connectors=self.connectors,
            )
            return cls

        return remember

    def _add(self, name: str, kind: HandlerKind, steps: Mapping[str, Any], **more: Any) -> None:
        if name in self.handlers:
            raise Invalid(f"workflow {self.name}", name, "is the name of two handlers")
        more = {key: tuple(value) if isinstance(value, list) else value for key, value in more.items()}
        self.handlers[name] = Handler(name, kind, steps, **more)

    @property
    def version(self) -> str:
        """Changes when the code of a handler does."""
        return self._version or hashlib.sha256(repr(sorted(sources(self))).encode()).hexdigest()[:12]

    def dump(self) -> dict[str, Any]:
        """The declaration as JSON, as the database keeps it."""
        handlers = [one.dump() for one in self.handlers.values()]
        reach = {} if self.connectors is None else {"connectors": list(self.connectors), "repair": self.repair}
        return {"topics": list(self.topics), "isolate": self.isolate, "handlers": handlers, **reach}

    def check(self) -> None:
        """Refuse what cannot work, all of it at once, each with the name of its handler."""
        wrong = list(problems(self))
        if wrong:
            raise together(wrong)


def problems(workflow: Workflow) -> Iterator[Invalid]:
    yield from found_wrong(parse.name, workflow.name, "workflow")
    for topic in workflow.topics:
        yield from found_wrong(parse.name, topic, f"workflow {workflow.name}, topics")
    handlers = list(workflow.handlers.values())
    if not handlers:
        yield Invalid(f"workflow {workflow.name}", None, "has no producer and no consumer")
    subscribed = {topic for one in handlers for topic in one.subscribe}
    for one in handlers:
        where = f"workflow {workflow.name}, {one.kind.value} {one.name}"
        for value, right in wrong_about(one, workflow.topics, subscribed):
            yield Invalid(where, value, right)
        yield from found_wrong(parse.name, one.name, where)
        if one.kind is HandlerKind.PRODUCER:
            yield from found_wrong(read_schedule, one.schedule, where)


def wrong_about(one: Handler, topics: Sequence[str], subscribed: Collection[str]) -> Iterator[tuple[object, str]]:
    for word, named in (("publishes", one.publishes), ("subscribe", one.subscribe)):
        for topic in named:
            if topic not in topics:
                yield topic, f"is not a topic that the workflow declares: `{word}`"
    for topic in one.publishes:
        if topic in topics and topic not in subscribed:
            yield topic, "is published, but no consumer subscribes to it: its events would wait for ever"
    for step, call in one.steps.items():
        if not inspect.iscoroutinefunction(call):
            yield step, "is not an async function"
    if one.kind is HandlerKind.PRODUCER:
        if not one.publishes:
            yield [], "is empty: `publishes` names the topics that it publishes to"
        return
    if not one.subscribe:
        yield [], "is empty: `subscribe` names the topics that it reads"
    if "prepare" not in one.steps:
        yield "prepare", "is not defined in the consumer's class"
    if one.publishes and "next" not in one.steps:
        yield list(one.publishes), "is published nowhere: `publishes` needs a `next`"


def found_wrong(read: Callable[[Any, str], object], value: object, where: str) -> list[Invalid]:
    try:
        read(value, where)
    except Invalid as error:
        return [Invalid(where, one.value, one.right) for one in error.all]
    return []


def read_schedule(given: Any, where: str) -> None:
    if not isinstance(given, Mapping):
        raise Invalid(where, given, "is not a schedule: use every(...) or cron(...)")
    parse.parse_timing(given, now=system_time())


def sources(workflow: Workflow) -> Iterator[tuple[str, str, str]]:
    for one in workflow.handlers.values():
        yield one.name, "declaration", repr(one.dump())
        for step, call in one.steps.items():
            try:
                text = inspect.getsource(call)
            except (OSError, TypeError):  # made at run time
                code = getattr(call, "__code__", None)
                text = f"{code.co_code!r}{code.co_consts!r}" if code else repr(call)
            yield one.name, step, text
