"""The registry of a program's tasks (functions and commands), and the options of a task."""

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from rota.core import parse
from rota.core.errors import Conflict, Invalid, together
from rota.core.flow import Rate
from rota.core.model import PAYLOAD_LIMIT
from rota.core.policy import Retry, parse_retry
from rota.core.steps import OnNewVersion
from rota.core.timing.triggers import parse_interval
from rota.db.paging import Record
from rota.kinds.tasks.executors.container_options import read_container
from rota.kinds.tasks.executors.functions import check_function
from rota.kinds.tasks.executors.options import EXECUTORS, check_executor
from rota.kinds.tasks.flow_options import FLOW_OPTIONS, check_flow_options
from rota.user_code.injection import Injector

P = ParamSpec("P")
R = TypeVar("R")

VERSION_CHARACTERS = 60
COMMAND_OPTIONS = ("cwd", "env", "stdin")  # not of stored functions
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE_PATTERN = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")


@dataclass(frozen=True, slots=True)
class Task:
    """A function or a command that can run, with its options."""

    name: str
    function: Callable[..., object] | None = None
    command: str | None = None  # of a function: the name that it is registered under
    parameters: Mapping[str, object] | None = None
    retry: Retry | None = None
    timeout: timedelta | None = None
    isolation: str = "none"
    executor: str | None = None  # where it runs, if not in its worker
    container: Mapping[str, object] | None = None  # that it runs in, see `container_options.Container`
    version: str | None = None
    cache_ttl: timedelta | None = None
    env: Mapping[str, str] | tuple[str, ...] = ()  # variables of a command, or patterns of those that it inherits
    cwd: str | None = None
    stdin: str | None = None
    memory_mb: int | None = None
    delete_with_schedule: bool = False  # of a stored task: deleted with its last schedule
    rate: Rate | None = None  # how often a job may start, all workers together
    burst: int | None = None  # how many may start at once after a pause
    rate_key: str | None = None  # the parameter whose values have a rate each
    max_running: int | None = None  # how many jobs may run at once
    max_running_key: str | None = None  # the parameter whose values have a limit each
    heartbeat: timedelta | None = None  # a run must call `ctx.heartbeat()` at least so often
    debounce: timedelta | None = None  # jobs enqueued within this span become one
    debounce_key: str | None = None
    debounce_max: timedelta | None = None  # how long a job may be postponed so
    throttle: timedelta | None = None  # at most one job is enqueued per span
    throttle_key: str | None = None
    on_new_version: str | None = None  # of runs with recorded steps, see OnNewVersion
    priority: int | None = None  # of jobs that are enqueued without one
    queue: str | None = None

    @property
    def limited(self) -> bool:
        """Whether the start of its jobs has to wait for a rate or a place."""
        return self.rate is not None or self.max_running is not None

    @property
    def type(self) -> str:
        return "shell" if self.function is None else "python"


class DuplicateTask(Conflict, ValueError):
    """A task of this name is registered already."""


class class_or_instance_method(Generic[P, R]):
    """A method that, called on the class, acts on the registry that all programs of the process share."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: "TaskRegistry | None", owner: "type[TaskRegistry]") -> Callable[P, R]:
        return functools.partial(self.method, owner() if instance is None else instance)


class TaskRegistry:
    """The tasks of a program. Only registered functions run: none is imported or evaluated by name.

    `TaskRegistry.register("sum")` registers for all programs of the process; `TaskRegistry("billing").register("sum")`
    does so as `billing.sum`.
    """

    shared: ClassVar[dict[str, Task]] = {}  # of all programs of the process

    def __init__(self, namespace: str = "", own: dict[str, Task] | None = None) -> None:
        self.prefix = f"{namespace}." if namespace else ""
        self.own = self.shared if own is None else own

    @classmethod
    def of_program(cls) -> "TaskRegistry":
        """Return a registry that finds shared tasks, and registers tasks for one program."""
        return cls(own={})

    @class_or_instance_method
    def register(self, /, name: str, **options: object) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator that registers a function."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            self.register_function(name, function, **options)
            return function

        return decorate

    @class_or_instance_method
    def register_function(self, /, name: str, function: Callable[..., object], **options: object) -> None:
        self.add(Task(name, function=function, **task_options(options)))

    @class_or_instance_method
    def get(self, name: str) -> Callable[..., object]:
        """Return a function by its name. Raises KeyError."""
        task = self.find(self.prefix + name)
        if task is None:
            raise KeyError(self.prefix + name)
        if task.function is None:
            raise KeyError(f"{name} is a command, not a function")
        return task.function

    @class_or_instance_method
    def list_all(self) -> list[str]:
        return sorted(name for name in self.tasks() if name.startswith(self.prefix))

    @class_or_instance_method
    def clear(self) -> None:
        for name in self.list_all():
            self.own.pop(name, None)

    def add(self, task: Task) -> None:
        """Register a task. Raises DuplicateTask, or Invalid for its name."""
        name = self.prefix + task.name
        named = replace(task, name=name, command=task.command or name, version=task.version or version_of(task))
        parse.name(name, "name")
        options = {option: getattr(task, option) for option in OPTIONS}
        check_flow_options(options, task.function, is_command=task.function is None)
        if wrong := check_executor(options, is_command=task.function is None):
            raise together(wrong)
        if self.find(name) is not None:
            raise DuplicateTask(f"task {name!r} is already registered; choose another name")
        self.own[name] = named

    def find(self, name: str) -> Task | None:
        return self.own.get(name) or self.shared.get(name)

    def find_function(self, name: str) -> Task | None:
        """Return the task of a registered function; None for a command or an unknown name."""
        task = self.find(name)
        return task if task is not None and task.function is not None else None

    def tasks(self) -> dict[str, Task]:
        return {**self.shared, **self.own}

    def name_of(self, task: str | Callable[..., object]) -> str:
        """Return the name that a function is registered under; a text is returned as it is. Raises Invalid."""
        if isinstance(task, str):
            return task
        for name, registered in self.tasks().items():
            if registered.function is task:
                return name
        raise Invalid("task", getattr(task, "__name__", repr(task)), "is not a registered function of this program")

    def executors(self) -> dict[str, str]:
        """Return the executors of tasks, by name."""
        return {name: task.executor for name, task in self.tasks().items() if task.executor is not None}

    def functions(self) -> list[str]:
        return [name for name, task in self.tasks().items() if task.function is not None]


def task_rows(registry: TaskRegistry, injector: Injector, program: str | None) -> list[Record]:
    """Return the rows of the tasks that a program declares. Raises Invalid for a function that cannot run on the
    cluster of its executor."""
    for name, executor in registry.executors().items():
        if (task := registry.find_function(name)) is not None and task.function is not None:
            check_function(executor, name, task.function, injector)
    return [
        {
            "name": task.name,
            "task_type": task.type,
            "command": task.command,
            "version": task.version,
            "options": dump_options(task) or None,
            "program": program,
            "schema": None if task.function is None else injector.signature(task.function).schema(),
        }
        for name in registry.list_all()
        if (task := registry.find(name)) is not None
    ]


def version_of(task: Task) -> str:
    """Return a hash of the command, or of the function's source."""
    if task.function is None:
        return digest(task.command or "")
    try:
        return digest(inspect.getsource(task.function))
    except (OSError, TypeError):  # defined at run time, or built in
        code = getattr(task.function, "__code__", None)
        return digest(f"{code.co_code!r}{code.co_consts!r}" if code else repr(task.function))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


# options


def task_options(fields: Mapping[str, object]) -> Record:
    """Return the options of a task, parsed, from code or from JSON. Raises Invalid, for all wrong ones at once."""
    form = parse.Form(fields, frozenset(OPTIONS))
    options = {name: form.take(name, read, None) for name, read in OPTIONS.items()}
    form.done()
    rate, burst = options["rate"], options["burst"]
    if isinstance(rate, Rate) and isinstance(burst, int):
        options["rate"] = replace(rate, burst=burst)
    return {name: value for name, value in options.items() if value is not None}


def dump_options(task: Task) -> dict[str, object]:
    """Return the options of a task as JSON, in the form that `task_options` reads."""
    options: dict[str, object] = {}
    for name in OPTIONS.keys() - {"version"}:
        value = getattr(task, name)
        match value:
            case timedelta():
                options[name] = value.total_seconds()
            case Retry():
                options[name] = value.dump()
            case Rate():
                options[name] = str(value)
            case _ if value != DEFAULTS[name]:
                options[name] = list(value) if isinstance(value, tuple) else value
    return options


def read_duration(value: object, field: str) -> timedelta:
    return value if isinstance(value, timedelta) else parse_interval(value, field)


def read_env(value: object, field: str) -> Mapping[str, str] | tuple[str, ...]:
    if isinstance(value, Mapping):
        variables = {read_variable(name, field): text for name, text in value.items()}
        return {name: parse.text(text, f"{field}.{name}", 100_000) for name, text in variables.items()}
    if isinstance(value, list | tuple):
        return tuple(read_variable(name, field, VARIABLE_PATTERN) for name in value)
    raise Invalid(field, value, "is neither an object of variables nor a list of names to inherit")


def read_variable(value: object, field: str, allowed: re.Pattern[str] = VARIABLE_NAME) -> str:
    name = parse.label(value, field)
    if not allowed.fullmatch(name):
        wildcards = ", or * and ? for several variables" if allowed is VARIABLE_PATTERN else ""
        raise Invalid(
            field, value, f"is not the name of a variable: letters, digits and _, not a digit first{wildcards}"
        )
    return name


OPTIONS: dict[str, Callable[[object, str], object]] = {
    "retry": lambda value, _: value if isinstance(value, Retry) else parse_retry(value),
    "timeout": read_duration,
    "isolation": lambda value, field: parse.one_of(value, field, ["none", "process"]),
    "executor": lambda value, field: parse.one_of(value, field, list(EXECUTORS)),
    "container": read_container,
    "version": lambda value, field: parse.text(value, field, VERSION_CHARACTERS, required=True),
    "cache_ttl": read_duration,
    "env": read_env,
    "cwd": lambda value, field: parse.text(value, field, 4096, required=True),
    "stdin": lambda value, field: parse.text(value, field, PAYLOAD_LIMIT),
    "memory_mb": lambda value, field: parse.whole(value, field, 16, 1_048_576),
    "delete_with_schedule": parse.flag,
    "heartbeat": read_duration,
    "debounce": read_duration,
    "debounce_max": read_duration,
    "throttle": read_duration,
    "on_new_version": lambda value, field: parse.one_of(value, field, [rule.value for rule in OnNewVersion]),
    **FLOW_OPTIONS,
}
DEFAULTS = {option.name: option.default for option in fields(Task)}
