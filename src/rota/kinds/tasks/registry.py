"""What can run: functions that a program registers, commands, and the options of each."""

import functools
import hashlib
import inspect
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from rota.core import parse
from rota.core.errors import Conflict, Invalid
from rota.core.model import PAYLOAD_LIMIT
from rota.core.policy import Retry, parse_retry
from rota.core.timing.triggers import parse_interval
from rota.user_code.injection import Injector

P = ParamSpec("P")
R = TypeVar("R")

VERSION_LIMIT = 60  # characters
OF_COMMANDS = ("cwd", "env", "stdin")  # options that stored functions do not have
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PATTERN = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")


@dataclass(frozen=True, slots=True)
class Task:
    """What can run: a function, or a command."""

    name: str
    function: Callable[..., Any] | None = None
    command: str | None = None  # of a function the name that it is registered under
    parameters: Mapping[str, Any] | None = None
    retry: Retry | None = None
    timeout: timedelta | None = None
    isolation: str = "none"
    version: str | None = None
    cache_ttl: timedelta | None = None
    env: Mapping[str, str] | tuple[str, ...] = ()  # variables of a command, or names of those to let through
    cwd: str | None = None
    stdin: str | None = None
    memory_mb: int | None = None
    delete_with_schedule: bool = False  # of a stored task: it goes with the last schedule that runs it

    @property
    def type(self) -> str:
        return "shell" if self.function is None else "python"


class DuplicateTask(Conflict, ValueError):
    """Two functions want one name."""


class either(Generic[P, R]):
    """A method that, called on the class itself, acts on the registry that everybody shares."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: "TaskRegistry | None", owner: "type[TaskRegistry]") -> Callable[P, R]:
        return functools.partial(self.method, owner() if instance is None else instance)


class TaskRegistry:
    """The functions that may run. Only what is registered runs: nothing is imported or evaluated by name.

    `TaskRegistry.register("sum")` is for everybody; `TaskRegistry("billing").register("sum")` makes it `billing.sum`.
    """

    shared: ClassVar[dict[str, Task]] = {}

    def __init__(self, namespace: str = "", known: MutableMapping[str, Task] | None = None) -> None:
        self.prefix = f"{namespace}." if namespace else ""
        self.known = self.shared if known is None else known
        self.layers = self.known.maps if isinstance(self.known, ChainMap) else [self.known]

    @classmethod
    def of_program(cls) -> "TaskRegistry":
        """A registry that knows what is shared; what it learns itself stays its own."""
        return cls(known=ChainMap({}, cls.shared))

    @either
    def register(self, /, name: str, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator that registers a function."""

        def remember(function: Callable[P, R]) -> Callable[P, R]:
            self.register_function(name, function, **options)
            return function

        return remember

    @either
    def register_function(self, /, name: str, function: Callable[..., Any], **options: Any) -> None:
        self.add(Task(name, function=function, **task_options(options)))

    @either
    def get(self, name: str) -> Callable[..., Any]:
        """A function by its name. Raises KeyError."""
        function = self.known[self.prefix + name].function
        if function is None:
            raise KeyError(f"{name} is a command, not a function")
        return function

    @either
    def list_all(self) -> list[str]:
        return sorted(name for name in self.known if name.startswith(self.prefix))

    @either
    def clear(self) -> None:
        for name in self.list_all():
            self.known.pop(name, None)

    def add(self, task: Task) -> None:
        name = self.prefix + task.name
        named = replace(task, name=name, command=task.command or name, version=task.version or version_of(task))
        parse.name(named.name, "name")
        if named.name in self.known:
            raise DuplicateTask(f"task {named.name}: a task of this name is registered already")
        self.known[named.name] = named

    def find(self, name: str) -> Task | None:
        for layer in self.layers:  # asked for every run, and a ChainMap takes ten times as long
            if name in layer:
                return layer[name]
        return None

    def name_of(self, task: str | Callable[..., Any]) -> str:
        """What a function is registered as; a name stands for itself."""
        if isinstance(task, str):
            return task
        found = next((one.name for one in self.known.values() if one.function is task), None)
        if found is None:
            raise Invalid("task", getattr(task, "__name__", repr(task)), "is no function that this program registered")
        return found

    def functions(self) -> list[str]:
        return [name for name, task in self.known.items() if task.function is not None]


def task_rows(registry: TaskRegistry, injector: Injector, program: str | None) -> list[dict[str, Any]]:
    """What a program declares, as the database keeps it."""
    return [
        {
            "name": task.name, "task_type": task.type, "command": task.command, "version": task.version,
            "options": dump_options(task) or None, "program": program,
            "schema": None if task.function is None else injector.signature(task.function).schema(),
        }
        for name in registry.list_all()
        if (task := registry.find(name)) is not None
    ]  # fmt: skip


def version_of(task: Task) -> str:
    """A version that changes when the code does."""
    if task.function is None:
        return digest(task.command or "")
    try:
        return digest(inspect.getsource(task.function))
    except (OSError, TypeError):  # made at run time, or built in
        code = getattr(task.function, "__code__", None)
        return digest(f"{code.co_code!r}{code.co_consts!r}" if code else repr(task.function))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


# what a task may be given


def task_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task, from code or from JSON; all wrong ones are told at once."""
    form = parse.Form(given, frozenset(OPTIONS))
    found = {name: form.take(name, read, None) for name, read in OPTIONS.items()}
    form.done()
    return {name: value for name, value in found.items() if value is not None}


def dump_options(task: Task) -> dict[str, Any]:
    """The options of a task as JSON, in the form that `task_options` reads."""
    found: dict[str, Any] = {}
    for name in OPTIONS.keys() - {"version"}:
        value = getattr(task, name)
        match value:
            case timedelta():
                found[name] = value.total_seconds()
            case Retry():
                found[name] = value.dump()
            case _ if value != DEFAULTS[name]:
                found[name] = list(value) if isinstance(value, tuple) else value
    return found


def read_span(value: Any, field: str) -> timedelta:
    return value if isinstance(value, timedelta) else parse_interval(value, field)


def read_env(value: Any, field: str) -> Mapping[str, str] | tuple[str, ...]:
    if isinstance(value, Mapping):
        variables = {variable(name, field): text for name, text in value.items()}
        return {name: parse.text(text, f"{field}.{name}", 100_000) for name, text in variables.items()}
    if isinstance(value, list | tuple):
        return tuple(variable(name, field, PATTERN) for name in value)
    raise Invalid(field, value, "is neither an object of variables nor a list of names to let through")


def variable(value: Any, field: str, allowed: re.Pattern[str] = VARIABLE) -> str:
    name = parse.label(value, field)
    if not allowed.fullmatch(name):
        wildcards = ", or * and ? for several variables" if allowed is PATTERN else ""
        raise Invalid(
            field, value, f"is not the name of a variable: letters, digits and _, not a digit first{wildcards}"
        )
    return name


OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "retry": lambda value, _: value if isinstance(value, Retry) else parse_retry(value),
    "timeout": read_span,
    "isolation": lambda value, field: parse.one_of(value, field, ["none", "process"]),
    "version": lambda value, field: parse.text(value, field, VERSION_LIMIT, required=True),
    "cache_ttl": read_span,
    "env": read_env,
    "cwd": lambda value, field: parse.text(value, field, 4096, required=True),
    "stdin": lambda value, field: parse.text(value, field, PAYLOAD_LIMIT),
    "memory_mb": lambda value, field: parse.whole(value, field, 16, 1_048_576),
    "delete_with_schedule": parse.flag,
}
DEFAULTS = {one.name: one.default for one in fields(Task)}
