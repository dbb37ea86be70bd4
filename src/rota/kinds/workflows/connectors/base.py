"""Connectors: the only way a handler reaches the world outside. Each method says whether it reads or changes something.

class Sheets:
    @read
    async def rows(self, sheet): ...

    @mutation(reconcile="find_row")
    async def append_row(self, sheet, row, idempotency_key): ...

    async def find_row(self, idempotency_key, params): return Applied(...) | NotApplied() | Unsure()

A mutation that has no answer is not tried again: its reconcile method is asked, or a person. An exception that is known
to come from before the effect may say so: `not_applied(TransientError("too many requests"))`.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from rota.core import parse
from rota.core.errors import Invalid, LogicError, PermissionDenied
from rota.kinds.workflows.rules import Op

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Exception)

MARK = "__rota_connector__"


@dataclass(frozen=True, slots=True)
class Applied:
    """It happened."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotApplied:
    """It surely did not happen, and will not."""


@dataclass(frozen=True, slots=True)
class Unsure:
    """Nobody can tell yet: ask again later."""


def read(method: F) -> F:
    """A method that changes nothing."""
    setattr(method, MARK, (Op.READ, None))
    return method


@overload
def mutation(method: F) -> F: ...
@overload
def mutation(*, reconcile: str | None = None) -> Callable[[F], F]: ...
def mutation(method: Any = None, *, reconcile: str | None = None) -> Any:
    """A method that changes something outside. One that takes `idempotency_key` is given it."""

    def mark(method: F) -> F:
        setattr(method, MARK, (Op.MUTATE, reconcile))
        return method

    return mark if method is None else mark(method)


def not_applied(error: E) -> E:
    """The error, with the knowledge that the effect did not happen."""
    error.applied = False  # type: ignore[attr-defined]
    return error


def surely_failed(error: BaseException) -> bool:
    """Whether an error of a mutation tells that it did not happen. No answer tells nothing."""
    return isinstance(error, LogicError | PermissionDenied) or getattr(error, "applied", None) is False


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a connector, found by its full name."""

    name: str
    op: Op
    call: Callable[..., Any]
    reconcile: Callable[..., Any] | None

    async def invoke(self, params: Mapping[str, Any], key: str | None = None) -> Any:
        given = dict(params)
        if key is not None and "idempotency_key" in inspect.signature(self.call).parameters:
            given["idempotency_key"] = key
        return await answer(self.call, **given)

    async def ask(self, key: str, params: Mapping[str, Any]) -> Applied | NotApplied | Unsure:
        """What became of a mutation, as its service knows."""
        assert self.reconcile is not None
        found = await answer(self.reconcile, key, dict(params))
        if not isinstance(found, Applied | NotApplied | Unsure):
            raise LogicError(f"{self.name}: its reconcile method must answer Applied(…), NotApplied() or Unsure()")
        return found


async def answer(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Async methods on the loop, others in a thread."""
    if inspect.iscoroutinefunction(call):
        return await call(*args, **kwargs)
    return await asyncio.to_thread(call, *args, **kwargs)


class Connectors:
    """The connectors of a program."""

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}

    def add(self, name: str, connector: Any) -> None:
        parse.name(name, "connector")
        if any(one.startswith(f"{name}.") for one in self.methods):
            raise Invalid("connector", name, "is declared twice")
        found = [one for one in dir(type(connector)) if hasattr(getattr(type(connector), one, None), MARK)]
        if "." in name or not found:
            raise Invalid("connector", name, "has a dot in its name, or no method marked @read or @mutation")
        for one in found:
            op, reconcile = getattr(getattr(type(connector), one), MARK)
            asks = None if reconcile is None else getattr(connector, reconcile, None)
            if reconcile is not None and asks is None:
                raise Invalid(f"connector {name}.{one}", reconcile, "is no method of it: `reconcile`")
            self.methods[f"{name}.{one}"] = Method(f"{name}.{one}", op, getattr(connector, one), asks)

    def find(self, name: str) -> Method:
        if name not in self.methods:
            known = ", ".join(sorted(self.methods)) or "none"
            raise LogicError(f"{name} is not a method of a connector of this program; there are: {known}")
        return self.methods[name]
