"""Flow control of tasks: the limits of a job that is about to start, and the rules for jobs that are enqueued."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rota.core.flow import Debounce, EnqueueRules, Limits, PlaceLimit, RateLimit, Throttle, flow_key
from rota.kinds.tasks.registry import Task, task_options
from rota.kinds.tasks.store import TaskRow

DEBOUNCE_MAX_PERIODS = 10  # how long jobs may be postponed, unless the task has `debounce_max`
RULES = ("queue", "priority", "debounce", "throttle")  # options that decide about an enqueued job


def limits_of(task: Task, org_id: str, parameters: object) -> Limits:
    """Return what a job of a limited task has to wait for."""

    def key(scope: str, parameter: str | None) -> str:
        value = None if parameter is None else value_of(task, parameter, parameters)
        return flow_key(scope, org_id, task.name, value=value)

    rates = () if task.rate is None else (RateLimit(key("task", task.rate_key), task.rate),)
    if task.max_running is None:
        return Limits(rates)
    return Limits(rates, PlaceLimit(key("task", task.max_running_key), task.max_running))


def value_of(task: Task, parameter: str, parameters: object) -> object:
    """Return the value of a parameter of a job; its default if the job has none."""
    members = parameters if isinstance(parameters, Mapping) else {}
    if parameter in members or task.function is None:
        return members.get(parameter)
    return defaults_of(task.function).get(parameter)


@functools.lru_cache(maxsize=1000)
def defaults_of(function: Callable[..., object]) -> dict[str, object]:
    """Return the default values of a function's parameters, as far as they are plain JSON."""
    parameters = inspect.signature(function).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if isinstance(parameter.default, str | int | float | bool)
    }


def rules_of(row: TaskRow, payload: object) -> EnqueueRules | None:
    """Return the rules for enqueued jobs of a task; None if its options have none."""
    return rules_for(row.org_id, row.name, row.options, row.schema, row.parameters, payload)


def rules_for(
    org_id: str,
    name: str,
    stored_options: Mapping[str, object] | None,
    schema: Mapping[str, Any] | None,
    set_parameters: Mapping[str, object] | None,
    payload: object,
) -> EnqueueRules | None:
    """Return the rules for enqueued jobs of a task with these options, as `dump_options` stores them."""
    if not stored_options or not any(rule in stored_options for rule in RULES):
        return None
    options: Mapping[str, Any] = task_options(stored_options)
    parameters = {**(set_parameters or {}), **(payload if isinstance(payload, Mapping) else {})}
    properties = (schema or {}).get("properties", {})

    def key(scope: str, parameter: str | None) -> str:
        default = properties.get(parameter, {}).get("default")
        value = None if parameter is None else parameters.get(parameter, default)
        return flow_key(scope, org_id, name, value=value)

    debounce, throttle = options.get("debounce"), options.get("throttle")
    return EnqueueRules(
        options.get("queue"),
        options.get("priority"),
        None
        if debounce is None
        else Debounce(
            key("debounce", options.get("debounce_key")),
            debounce,
            options.get("debounce_max") or debounce * DEBOUNCE_MAX_PERIODS,
        ),
        None if throttle is None else Throttle(key("throttle", options.get("throttle_key")), throttle),
    )
