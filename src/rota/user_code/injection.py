"""Dependency injection: a function gets its own parameters from a payload, and provided values by their type.

A signature is analysed once; a run only validates its payload and makes the injected values.
"""

import asyncio
import contextlib
import inspect
import logging
import sys
import types
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import orjson
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from rota.core.errors import Invalid, together
from rota.engine.runner import RunContext
from rota.user_code.frames import FrameReference, frame_type
from rota.user_code.services import ArtifactManager, JobScheduler, Serializer

make_typed_dict: Any = TypedDict  # mypy accepts it only as a class statement

UserFunction = Callable[..., Any]  # of a program, with any parameters and result

SCOPES = ("run", "process")


@dataclass(frozen=True, slots=True)
class Provider:
    """Factory of an injected type: called once per run or once per process, with its own injected `dependencies`."""

    factory: UserFunction  # of a generator function: its context manager
    managed: bool  # the factory returns a context manager
    scope: str
    dependencies: Mapping[str, type]  # by parameter name
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # concurrent runs share one value of the process


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function: those of its payload, and those that are injected."""

    adapter: TypeAdapter[dict[str, object]]
    injected: Mapping[str, type]
    frames: Mapping[str, type]  # data frames: the payload has references to artifacts
    defaults: Mapping[str, object]
    is_async: bool

    def check(self, payload: object, field: str) -> dict[str, object]:
        """Return the function's own parameters, validated. Raises Invalid for those that are missing, unknown or of a
        wrong type."""
        try:
            return self.adapter.validator.validate_python({} if payload is None else payload)  # type: ignore[no-any-return]
        except ValidationError as error:
            problems = [
                wrong_parameter(problem["type"], problem["loc"], problem["input"], problem["msg"], field)
                for problem in error.errors()
            ]
            raise together(problems) from None

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters."""
        schema = self.adapter.json_schema()
        for name, value in self.defaults.items():
            with contextlib.suppress(TypeError):  # a default that is not JSON
                schema["properties"][name]["default"] = orjson.loads(orjson.dumps(value))
        return schema


class Injector:
    """The types that a program can have injected: Rota's services, and what the program provides."""

    def __init__(self) -> None:
        self.providers: dict[type, Provider] = {}
        self.signatures: dict[UserFunction, Signature] = {}
        self.serializers: list[Serializer] = []
        self.labels: Mapping[int, str] = {0: "execution"}
        self.process = InjectionScope(self)
        self.has_session_providers = False
        self.provide(logging.Logger, logger)
        self.provide(JobScheduler, job_scheduler)
        self.provide(ArtifactManager, self.artifacts)

    def provide(self, provided: type, factory: UserFunction, scope: str = "run") -> None:
        """Inject the value of the factory into parameters of this type. The factory may be sync, async, or a generator
        that cleans up after its `yield`, and may have injected parameters itself. A value with `aclose` or `close` is
        closed at the end of its run or, with the scope `process`, of the process. Raises Invalid for an unknown scope
        or a parameter that cannot be injected."""
        self.add_session_providers()
        if scope not in SCOPES:
            raise Invalid("scope", scope, f"is not one of {', '.join(SCOPES)}")
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
        dependencies = {
            parameter.name: parameter.annotation
            for parameter in parameters
            if parameter.default is parameter.empty or parameter.annotation in self.providers
        }
        for name, needed in dependencies.items():
            provider = self.providers.get(needed)
            if provider is None and needed is not RunContext:
                raise Invalid(
                    name, needed, f"cannot be injected into the factory of {provided.__name__}; provide it first"
                )
            if provider is not None and provider.scope == "run" and scope == "process":
                raise Invalid(name, needed, f"is closed with its run; {provided.__name__} would outlive it")
        managed = True
        if inspect.isasyncgenfunction(factory):
            factory = contextlib.asynccontextmanager(factory)
        elif inspect.isgeneratorfunction(factory):
            factory = contextlib.contextmanager(factory)
        else:
            managed = False
        self.providers[provided] = Provider(factory, managed, scope, dependencies)
        self.signatures.clear()

    def signature(self, function: UserFunction) -> Signature:
        """Return the analysed signature of a function. Raises Invalid if the function cannot be called with a
        payload."""
        signature = self.signatures.get(function)
        if signature is None:
            signature = self.signatures[function] = analyse(function, self.injectables)
        return signature

    @property
    def injectables(self) -> set[type]:
        """The types that can be injected."""
        self.add_session_providers()
        return {RunContext, *self.providers}

    def add_session_providers(self) -> None:
        """Provide database sessions once SQLAlchemy's asyncio is imported: importing it is slow, and a function that
        has a session as a parameter has imported it."""
        if not self.has_session_providers and "sqlalchemy.ext.asyncio" in sys.modules:
            from rota.user_code import sessions

            self.has_session_providers = True
            self.provide(sessions.Database, sessions.own_database, scope="process")
            self.provide(sessions.AsyncSession, sessions.session)

    def artifacts(self, ctx: RunContext) -> ArtifactManager:
        return ArtifactManager(ctx.engine, ctx.org_id, ctx.run_id, self.serializers, self.labels)


@dataclass(slots=True)
class InjectionScope:
    """The injected values of a run, or of the process, and what closes them."""

    injector: Injector
    ctx: RunContext | None = None
    values: dict[type, Any] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def get(self, injected_type: type) -> Any:
        """Return the value of this type; made on first use."""
        if injected_type is RunContext:
            return self.ctx
        provider = self.injector.providers[injected_type]
        scope = self if provider.scope == "run" else self.injector.process
        if injected_type not in scope.values:
            async with provider.lock if scope is not self else contextlib.nullcontext():
                if injected_type not in scope.values:
                    arguments = {name: await self.get(needed) for name, needed in provider.dependencies.items()}
                    scope.values[injected_type] = await scope.make(provider, arguments)
        return scope.values[injected_type]

    async def make(self, provider: Provider, arguments: Mapping[str, object]) -> object:
        value = provider.factory(**arguments)
        if provider.managed:
            if isinstance(value, AbstractAsyncContextManager):
                return await self.stack.enter_async_context(value)
            return self.stack.enter_context(value)
        if inspect.isawaitable(value):
            value = await value
        close = getattr(value, "aclose", None) or getattr(value, "close", None)
        if close is not None:
            self.stack.push_async_callback(call_or_await, close)
        return value

    async def close(self) -> None:
        self.values.clear()
        await self.stack.aclose()


def logger(ctx: RunContext) -> logging.Logger:
    return logging.getLogger(f"rota.task.{ctx.info.name}")


def job_scheduler(ctx: RunContext) -> JobScheduler:
    return JobScheduler(ctx.engine, ctx.org_id)


async def call_or_await(function: Callable[[], object]) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result


def analyse(function: UserFunction, injectable: Collection[type]) -> Signature:
    """Return the signature of a function. Raises Invalid for positional-only parameters and for types that are neither
    JSON nor injectable."""
    name = getattr(function, "__name__", repr(function))
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Invalid("function", name, f"has a type hint that cannot be read: {error}") from error
    injected: dict[str, type] = {}
    frames: dict[str, type] = {}
    own: dict[str, object] = {}
    defaults: dict[str, object] = {}
    extra: Literal["forbid", "allow"] = "forbid"
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise Invalid("function", name, f"takes {parameter.name} by position only; parameters are passed by name")
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            hint = hints.get(parameter.name, Any)
            plain = without_none(hint)
            if plain in injectable:
                injected[parameter.name] = plain
                continue
            if frame_type(plain) is not None:
                frames[parameter.name] = plain
                hint = FrameReference if hint is plain else FrameReference | None
            required = parameter.default is parameter.empty
            if not required:
                defaults[parameter.name] = parameter.default
            own[parameter.name] = Required[hint] if required else NotRequired[hint]
    parameters: Any = make_typed_dict("Parameters", own)
    parameters.__pydantic_config__ = ConfigDict(extra=extra)
    try:
        return Signature(TypeAdapter(parameters), injected, frames, defaults, inspect.iscoroutinefunction(function))
    except PydanticSchemaGenerationError as error:
        reason = str(error).splitlines()[0]
        raise Invalid(
            "function",
            name,
            f"has a parameter that is neither JSON nor provided: {reason}; register its type by app.provide(…)",
        ) from error


def without_none(hint: Any) -> Any:
    """`T` of `T | None`, `Optional[T]` and `Annotated[T, …]`."""
    if get_origin(hint) is Annotated:
        return without_none(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        rest = [argument for argument in get_args(hint) if argument is not type(None)]
        return without_none(rest[0]) if len(rest) == 1 else hint
    return hint


def wrong_parameter(problem: str, location: tuple[int | str, ...], value: object, message: str, field: str) -> Invalid:
    """Return pydantic's error as ours."""
    path = ".".join(map(str, (field, *location)))
    match problem:
        case "missing":
            return Invalid(path, None, "is missing")
        case "extra_forbidden":
            return Invalid(path, value, "is not a parameter of this task")
        case "dict_type" if not location:
            return Invalid(path, value, "is not an object of parameters")
        case _:
            return Invalid(path, value, f"does not fit: {message[0].lower()}{message[1:]}")
