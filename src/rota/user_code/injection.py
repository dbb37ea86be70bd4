"""What a function is called with: its own parameters from a payload, and things of the program by their type.

A signature is analysed once; a run only checks its values and asks for what is wanted.
"""

import asyncio
import contextlib
import inspect
import logging
import sys
import types
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import orjson
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from rota.core.errors import Invalid, together
from rota.engine.runner import RunContext
from rota.user_code.services import ArtifactManager, JobScheduler, Serializer

named_types: Any = TypedDict  # mypy knows it only as a statement

SCOPES = ("run", "process")


@dataclass(frozen=True, slots=True)
class Provider:
    """Where values of a type come from: made once per run, or once per process, from others that it wants."""

    factory: Callable[..., Any]  # of a generator function, the context manager that it is
    managed: bool
    scope: str
    wants: Mapping[str, type]
    making: asyncio.Lock = field(default_factory=asyncio.Lock)  # many runs may want a thing of the process at once


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes."""

    adapter: TypeAdapter[dict[str, Any]]
    injected: Mapping[str, type]
    defaults: Mapping[str, Any]
    awaited: bool  # it is an async function

    def check(self, payload: Any, field: str) -> dict[str, Any]:
        """The function's own parameters from a payload: all that are needed, no others, each of its type."""
        try:
            return self.adapter.validator.validate_python({} if payload is None else payload)  # type: ignore[no-any-return]
        except ValidationError as error:
            wrong = [
                wrong_parameter(one["type"], one["loc"], one["input"], one["msg"], field) for one in error.errors()
            ]
            raise together(wrong) from None

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters."""
        told = self.adapter.json_schema()
        for name, value in self.defaults.items():
            with contextlib.suppress(TypeError):  # a default that JSON cannot say
                told["properties"][name]["default"] = orjson.loads(orjson.dumps(value))
        return told


class Injector:
    """What can be injected in one program: Rota's own services, and what the program provides."""

    def __init__(self) -> None:
        self.providers: dict[type, Provider] = {}
        self.signatures: dict[Callable[..., Any], Signature] = {}
        self.serializers: list[Serializer] = []
        self.labels: Mapping[int, str] = {0: "execution"}
        self.process = Made(self)
        self.knows_sessions = False
        self.provide(logging.Logger, logger)
        self.provide(JobScheduler, job_scheduler)
        self.provide(ArtifactManager, self.artifacts)

    def provide(self, wanted: type, factory: Callable[..., Any], scope: str = "run") -> None:
        """Inject what the factory makes wherever a parameter has this type. The factory may be sync or async, a
        generator that tidies up after its `yield`, and want injected things itself. A value with `aclose` or `close` is
        closed at the end of its run or, with the scope `process`, of the process."""
        self.know_sessions()
        if scope not in SCOPES:
            raise Invalid("scope", scope, f"is not one of {', '.join(SCOPES)}")
        asked = inspect.signature(factory, eval_str=True).parameters.values()
        wants = {
            one.name: one.annotation for one in asked if one.default is one.empty or one.annotation in self.providers
        }
        for name, needed in wants.items():
            known = self.providers.get(needed)
            if known is None and needed is not RunContext:
                raise Invalid(name, needed, f"is nothing that could be injected into the factory of {wanted.__name__}")
            if known is not None and known.scope == "run" and scope == "process":
                raise Invalid(name, needed, f"is closed with its run; {wanted.__name__} would outlive it")
        managed = True
        if inspect.isasyncgenfunction(factory):
            factory = contextlib.asynccontextmanager(factory)
        elif inspect.isgeneratorfunction(factory):
            factory = contextlib.contextmanager(factory)
        else:
            managed = False
        self.providers[wanted] = Provider(factory, managed, scope, wants)
        self.signatures.clear()

    def signature(self, function: Callable[..., Any]) -> Signature:
        found = self.signatures.get(function)
        if found is None:
            found = self.signatures[function] = analysed(function, self.injectables)
        return found

    @property
    def injectables(self) -> set[type]:
        """The types that are injected."""
        self.know_sessions()
        return {RunContext, *self.providers}

    def know_sessions(self) -> None:
        """Sessions take long to load. Nobody can ask for one who has not loaded them."""
        if not self.knows_sessions and "sqlalchemy.ext.asyncio" in sys.modules:
            from rota.user_code import sessions

            self.knows_sessions = True
            self.provide(sessions.Database, sessions.own_database, scope="process")
            self.provide(sessions.AsyncSession, sessions.session)

    def artifacts(self, ctx: RunContext) -> ArtifactManager:
        return ArtifactManager(ctx.engine, ctx.org_id, ctx.run_id, self.serializers, self.labels)


@dataclass(slots=True)
class Made:
    """What was made for a run, or for the process, and how it is closed."""

    injector: Injector
    ctx: RunContext | None = None
    values: dict[type, Any] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def get(self, wanted: type) -> Any:
        if wanted is RunContext:
            return self.ctx
        provider = self.injector.providers[wanted]
        home = self if provider.scope == "run" else self.injector.process
        if wanted not in home.values:
            async with provider.making if home is not self else contextlib.nullcontext():
                if wanted not in home.values:
                    given = {name: await self.get(needed) for name, needed in provider.wants.items()}
                    home.values[wanted] = await home.make(provider, given)
        return home.values[wanted]

    async def make(self, provider: Provider, given: Mapping[str, Any]) -> Any:
        value = provider.factory(**given)
        if provider.managed:
            if hasattr(value, "__aenter__"):
                return await self.stack.enter_async_context(value)
            return self.stack.enter_context(value)
        if inspect.isawaitable(value):
            value = await value
        close = getattr(value, "aclose", None) or getattr(value, "close", None)
        if close is not None:
            self.stack.push_async_callback(finished, close)
        return value

    async def close(self) -> None:
        self.values.clear()
        await self.stack.aclose()


def logger(ctx: RunContext) -> logging.Logger:
    return logging.getLogger(f"rota.task.{ctx.info.name}")


def job_scheduler(ctx: RunContext) -> JobScheduler:
    return JobScheduler(ctx.engine, ctx.org_id)


async def finished(close: Callable[[], Any]) -> None:
    result = close()
    if inspect.isawaitable(result):
        await result


def analysed(function: Callable[..., Any], injectable: Collection[type]) -> Signature:
    """Look at a function once: what is injected, and what its payload must have."""
    name = getattr(function, "__name__", repr(function))
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Invalid("function", name, f"has a type hint that cannot be read: {error}") from error
    injected: dict[str, type] = {}
    own: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    extra: Any = "forbid"
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            extra = "allow"
        elif one.kind is one.POSITIONAL_ONLY:
            raise Invalid("function", name, f"takes {one.name} by position only; parameters are given by name")
        elif one.kind is not one.VAR_POSITIONAL:
            hint = hints.get(one.name, Any)
            plain = without_none(hint)
            if plain in injectable:
                injected[one.name] = plain
                continue
            if one.default is not one.empty:
                defaults[one.name] = one.default
            own[one.name] = Required[hint] if one.default is one.empty else NotRequired[hint]
    parameters: Any = named_types("Parameters", own)
    parameters.__pydantic_config__ = ConfigDict(extra=extra)
    try:
        return Signature(TypeAdapter(parameters), injected, defaults, inspect.iscoroutinefunction(function))
    except PydanticSchemaGenerationError as error:
        reason = str(error).splitlines()[0]
        raise Invalid(
            "function", name, f"takes something that neither comes as JSON nor is provided: {reason}; app.provide(…) it"
        ) from error


def without_none(hint: Any) -> Any:
    """`T` of `T | None`, `Optional[T]` and `Annotated[T, …]`."""
    if get_origin(hint) is Annotated:
        return without_none(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        rest = [one for one in get_args(hint) if one is not type(None)]
        return without_none(rest[0]) if len(rest) == 1 else hint
    return hint


def wrong_parameter(kind: str, where: tuple[int | str, ...], value: Any, message: str, field: str) -> Invalid:
    named = ".".join(map(str, (field, *where)))
    match kind:
        case "missing":
            return Invalid(named, None, "is missing")
        case "extra_forbidden":
            return Invalid(named, value, "is not a parameter of this task")
        case "dict_type" if not where:
            return Invalid(named, value, "is not an object of parameters")
        case _:
            return Invalid(named, value, f"does not fit: {message[0].lower()}{message[1:]}")
