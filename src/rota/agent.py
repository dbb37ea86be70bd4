"""API for job types of a host, in a file that `rota agent run --types FILE` loads:

    from rota.agent import job_type

    @job_type("backup", schema={"properties": {"to": {"type": "string"}}, "required": ["to"]})
    def backup(order):
        print("to", order.payload["to"], "as", order.server["name"])
        return {"bytes": 42}

A function prints to the run's log, returns its outcome as JSON, and raises to fail; `TransientError` means that a
retry may succeed. `read_only=True` lets it run beside others; `reconcile=` names a function that is called after a
crash of unknown outcome: it returns whether the work was applied, or None if it cannot know.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rota.core.errors import Refused, TransientError

__all__ = ["TYPES", "JobType", "Order", "Refused", "TransientError", "job_type"]

F = TypeVar("F", bound="Callable[[Order], object]")


@dataclass(frozen=True, slots=True)
class Order:
    """A job for a host, as its function receives it."""

    job_id: str
    run_id: str
    attempt: int
    fence: int  # rises with each claim: pass it to systems that can reject an older one
    job_type: str
    payload: Mapping[str, Any]
    server: Mapping[str, Any]  # id, name, type, config
    slot: str | None = None
    schedule_id: str | None = None


@dataclass(frozen=True, slots=True)
class JobType:
    """A job type of an agent: its function, and the schema of its payload."""

    name: str
    function: Callable[[Order], object]
    schema: Mapping[str, object]
    read_only: bool = False
    reconcile: Callable[[Order], bool | None] | None = None


TYPES: dict[str, JobType] = {}


def job_type(
    name: str,
    *,
    schema: Mapping[str, object] | None = None,
    read_only: bool = False,
    reconcile: Callable[[Order], bool | None] | None = None,
) -> Callable[[F], F]:
    """Register a function as a job type of this agent."""

    def register(function: F) -> F:
        if name in TYPES:
            raise ValueError(f"job type {name!r} is already registered")
        TYPES[name] = JobType(name, function, schema or {}, read_only, reconcile)
        return function

    return register
