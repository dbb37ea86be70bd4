"""Connectors: the only way a handler reaches systems outside. Each method is marked `@read` or `@mutation`.

class Sheets:
    @read
    async def rows(self, sheet): ...

    @mutation(reconcile="find_row")
    async def append_row(self, sheet, row, idempotency_key): ...

    async def find_row(self, idempotency_key, params): return Applied(...) | NotApplied() | Unsure()

A mutation without an answer is not repeated: its reconcile method is called, or an operator decides. An exception that
was raised before the effect is marked so: `not_applied(TransientError("too many requests"))`.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, overload

from rota.core import parse
from rota.core.effects import Answer, checked_answer
from rota.core.errors import Invalid, LogicError
from rota.kinds.workflows.rules import Op

F = TypeVar("F", bound=Callable[..., object])

MARK = "__rota_connector__"


def read(method: F) -> F:
    """Mark a method that changes nothing."""
    setattr(method, MARK, (Op.READ, None))
    return method


@overload
def mutation(method: F) -> F: ...
@overload
def mutation(*, reconcile: str | None = None) -> Callable[[F], F]: ...
def mutation(method: F | None = None, *, reconcile: str | None = None) -> F | Callable[[F], F]:
    """Mark a method that changes something outside. It gets the parameter `idempotency_key` if it has one."""

    def mark(method: F) -> F:
        setattr(method, MARK, (Op.MUTATE, reconcile))
        return method

    return mark if method is None else mark(method)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a connector, such as `sheets.append_row`."""

    name: str
    op: Op
    call: Callable[..., object]
    reconcile: Callable[..., object] | None

    async def invoke(self, params: Mapping[str, object], key: str | None = None) -> object:
        """Call the method, with the idempotency key if it takes one."""
        kwargs = dict(params)
        if key is not None and "idempotency_key" in inspect.signature(self.call).parameters:
            kwargs["idempotency_key"] = key
        return await call(self.call, **kwargs)

    async def ask(self, key: str, params: Mapping[str, object]) -> Answer:
        """Call the reconcile method of a mutation. Raises LogicError for another answer."""
        assert self.reconcile is not None
        return checked_answer(self.name, await call(self.reconcile, key, dict(params)))


async def call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call an async function on the event loop, another in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


class Connectors:
    """The connectors of a program, by method name."""

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}

    def add(self, name: str, connector: object) -> None:
        """Add the marked methods of an object. Raises Invalid."""
        parse.name(name, "connector")
        if any(method.startswith(f"{name}.") for method in self.methods):
            raise Invalid("connector", name, "is declared twice")
        marked = [method for method in dir(type(connector)) if hasattr(getattr(type(connector), method, None), MARK)]
        if "." in name or not marked:
            raise Invalid("connector", name, "has a dot in its name, or no method marked @read or @mutation")
        for method in marked:
            op, reconcile_name = getattr(getattr(type(connector), method), MARK)
            reconcile = None if reconcile_name is None else getattr(connector, reconcile_name, None)
            if reconcile_name is not None and reconcile is None:
                raise Invalid(f"connector {name}.{method}", reconcile_name, "is no method of it: `reconcile`")
            self.methods[f"{name}.{method}"] = Method(f"{name}.{method}", op, getattr(connector, method), reconcile)

    def find(self, name: str) -> Method:
        """Return a method by its full name. Raises LogicError."""
        if name not in self.methods:
            known = ", ".join(sorted(self.methods)) or "none"
            raise LogicError(f"{name} is not a method of a connector of this program; known methods: {known}")
        return self.methods[name]
