"""The task that a job names: whether it accepts the job's parameters, and which workers can run it."""

from collections.abc import Mapping

from rota.core.errors import Invalid, NotFound, together
from rota.core.flow import EnqueueRules
from rota.core.parse import wrong_names
from rota.db.dialect import Tx
from rota.kinds.tasks import store
from rota.kinds.tasks.flow import rules_for, rules_of
from rota.kinds.tasks.registry import Task, TaskRegistry, dump_options
from rota.user_code.injection import Injector

DECLARED_ROUTE_PREFIX = "task"
DISABLED_ROUTE = "disabled"  # jobs of disabled tasks: any worker skips them
NOT_PARAMETERS = "is not an object of parameters"
UNKNOWN_TASK = "is not a known task; see `rota task list`"


def resolve_in(
    tx: Tx, org_id: str, slug: str, target: str, payload: object, registry: TaskRegistry, injector: Injector
) -> tuple[str, EnqueueRules | None]:
    """Return the route of a task's job and the rules of the task, as `TaskRunner.resolve` and `enqueue_rules` do, in
    the caller's transaction. `registry` and `injector` are those of a program of this org. A function of the program
    that no worker has stored yet is accepted: its job waits for one, so web processes may be deployed before workers.
    Raises Invalid."""
    try:
        row = store.get(tx, org_id, target)
    except NotFound as error:
        task = registry.find_function(target)
        if task is None or task.function is None:
            raise Invalid("target", target, UNKNOWN_TASK) from error
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid("input", payload, NOT_PARAMETERS) from error
        signature = injector.signature(task.function)
        signature.check(payload, "input")
        rules = rules_for(org_id, task.name, dump_options(task), signature.schema(), None, payload)
        return f"{DECLARED_ROUTE_PREFIX}:{slug}:{target}", rules
    check_payload(row, payload, "input", registry.find_function(row.command), injector)
    return route_of(row, slug), rules_of(row, payload)


def check_payload(row: store.TaskRow, payload: object, field: str, task: Task | None, injector: Injector) -> None:
    """Raises Invalid for a payload that does not fit. `task` has the function, if it is loaded; else only names are
    checked, and types when it runs."""
    if payload is not None and not isinstance(payload, Mapping):
        raise Invalid(field, payload, NOT_PARAMETERS)
    if row.task_type == "python":
        parameters = {**(row.parameters or {}), **(payload or {})}
        if task is not None and task.function is not None:
            injector.signature(task.function).check(parameters, field)
        elif wrong := wrong_names(row.schema or {}, parameters, field, "parameter of this task"):
            raise together(wrong)


def route_of(row: store.TaskRow, slug: str) -> str:
    """Return the route of a task's jobs: to workers that have its function or, while it is disabled, to any."""
    if not row.enabled:
        return DISABLED_ROUTE
    if row.source == store.CODE:
        return f"{DECLARED_ROUTE_PREFIX}:{slug}:{row.name}"
    return f"shell:{slug}" if row.task_type == "shell" else row_route(slug, row.command)


def row_route(org: str, function: str) -> str:
    """Return the route of stored tasks of an org that name a function."""
    return f"row:{org}:{function}"
