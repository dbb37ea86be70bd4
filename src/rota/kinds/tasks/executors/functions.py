"""Functions of a program on their way to a cluster: checks at their declaration, pickles, and failures that return."""

import importlib
import importlib.util
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rota.core.errors import MAX_RETRY_AFTER_SECONDS, Invalid, LogicError
from rota.core.policy import Failure, FailureClass
from rota.engine.runner import RunContext
from rota.kinds.tasks.executors.container_options import Container
from rota.kinds.tasks.executors.node_code import node_source
from rota.user_code.injection import Injector, Signature

CALL_LIMIT = 64 << 20  # bytes of a pickled function with its parameters
RESULT_FACTOR = 10  # a result may have so many times the size of an artifact as a pickle: Parquet is denser
TRAVELING = {RunContext: "context", logging.Logger: "logger"}  # injected types that a node has
PACKAGES = {  # of the extras
    "dask": ("cloudpickle", "distributed"),
    "ray": ("cloudpickle", "ray", "grpc"),
    "container": ("cloudpickle",),
}
ERRORS = "rota.core.errors."
CLASSES = {  # of failures, by the class of an error on a node; the first that fits
    f"{ERRORS}TransientError": FailureClass.TRANSIENT,
    "builtins.ConnectionError": FailureClass.TRANSIENT,
    "builtins.TimeoutError": FailureClass.TRANSIENT,
    f"{ERRORS}AuthError": FailureClass.AUTH,
    f"{ERRORS}PermissionDenied": FailureClass.PERMISSION,
}

pickling = threading.Lock()  # what is pickled by value is set for the whole process


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A call of a function on a cluster."""

    executor: str
    name: str  # of the task
    function: Callable[..., object]
    arguments: Mapping[str, object]
    signature: Signature
    memory_mb: int | None
    container: Container | None = None  # that it runs in


def missing_extra(executor: str) -> str:
    return f"needs a package that is not installed: pip install 'rota-scheduler[{executor}]'"


def check_function(executor: str, name: str, function: Callable[..., object], injector: Injector) -> None:
    """Raises Invalid, by the name of the task, for a function that cannot run on a cluster: a service is injected into
    it, it cannot be pickled, or the extra of the executor is not installed."""
    services = [
        f"{parameter}: {injected.__name__}"
        for parameter, injected in injector.signature(function).injected.items()
        if injected not in TRAVELING
    ]
    if services:
        raise Invalid(
            "executor",
            executor,
            f"cannot run task {name!r}: {', '.join(services)} cannot be sent to another machine; create it in the "
            "function, or leave the executor out. RunContext and logging.Logger can be injected",
        )
    if any(importlib.util.find_spec(package) is None for package in PACKAGES[executor]):
        raise Invalid("executor", executor, f"of task {name!r} {missing_extra(executor)}")
    try:
        dump(name, function, {})
    except LogicError as error:
        raise Invalid("executor", executor, f"cannot run it: {error.message}") from error


def make_order(ctx: RunContext, call: RemoteCall, artifact_limit: int) -> dict[str, Any]:
    """Return what a node needs to run a call. Raises LogicError for what cannot be pickled, or is too large."""
    job = ctx.job
    return {
        "source": node_source(),
        "executor": call.executor,
        "key": f"rota-{ctx.run_id}-{ctx.attempt}",
        "call": dump(call.name, call.function, dict(call.arguments)),
        "injected": {name: TRAVELING[injected] for name, injected in call.signature.injected.items()},
        "logger": f"rota.task.{call.name}",
        "memory_mb": None if call.container else call.memory_mb,  # the engine limits that of a container
        "container": call.container,
        "grace": ctx.cancel_grace.total_seconds(),
        "result_limit": artifact_limit * RESULT_FACTOR,
        "python": ".".join(map(str, sys.version_info[:2])),
        "context": {
            "run_id": ctx.run_id,
            "attempt": ctx.attempt,
            "slot": job.slot,
            "fence": job.fence,
            "org_id": job.org_id,
        },
    }


def dump(name: str, function: Callable[..., object], arguments: Mapping[str, object]) -> bytes:
    """Pickle a function with its parameters. Its module goes along by value, other modules by name. Raises
    LogicError for what cannot be pickled or is too large."""
    pickler = importlib.import_module("cloudpickle")
    with by_value(pickler, sys.modules.get(function.__module__)):
        try:
            pickled: bytes = pickler.dumps((portable(function), arguments))
        except Exception as error:  # of any class: it comes from the objects
            raise LogicError(
                f"the function of task {name!r} cannot be sent to another machine: {type(error).__name__}: {error}; "
                "create what cannot be pickled inside the function"
            ) from error
    if len(pickled) > CALL_LIMIT:
        raise LogicError(
            f"the function of task {name!r} and its parameters have {len(pickled)} bytes; at most {CALL_LIMIT} can be "
            "sent: store the data where the nodes can read it, and pass its address"
        )
    return pickled


@contextmanager
def by_value(pickler: Any, module: types.ModuleType | None) -> Iterator[None]:
    """Pickle what a module defines by value: the nodes do not have the program."""
    with pickling:
        if module is None or module.__name__ == "__main__":
            yield
            return
        pickler.register_pickle_by_value(module)
        try:
            yield
        finally:
            pickler.unregister_pickle_by_value(module)


def portable(function: Callable[..., object]) -> Callable[..., object]:
    """Return a copy of a function without its annotations, which may name classes that no node has."""
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__module__, copy.__qualname__ = (
        function.__kwdefaults__,
        function.__module__,
        function.__qualname__,
    )
    return copy


def failure_from(fields: Mapping[str, Any]) -> Failure:
    """Return the failure of an error on a node, in the class that it would have in the worker."""
    classes = fields["classes"]
    failure_class = next((CLASSES[name] for name in classes if name in CLASSES), FailureClass.LOGIC)
    final = f"{ERRORS}LogicError" in classes or "__main__.NodeError" in classes
    seconds, code = fields["seconds"], fields["code"]
    retry_after = None
    if f"{ERRORS}RetryAfter" in classes and type(seconds) in (int, float) and 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
        retry_after = timedelta(seconds=seconds)
    name = str(fields["type"])
    message = str(fields["message"]) or name
    return Failure(
        failure_class,
        name,
        f"{name}: {message}" if name == "KeyError" else message,
        str(fields["traceback"]),
        code=str(code) if f"{ERRORS}GiveUp" in classes else None,
        final=final,
        retry_after=retry_after,
    )
