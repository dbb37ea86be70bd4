"""Tasks as records with the field names of the API. Reads only."""

from sqlalchemy import and_, or_, select

from rota.core.errors import NotFound
from rota.core.redact import public_task, redacted
from rota.db.dialect import ResultRow, Tx
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, matching, page_by
from rota.db.tables import schedules, task_versions, tasks
from rota.kinds.tasks.store import TaskRow

s = schedules.c
TASK = (
    tasks.c.id, tasks.c.name, tasks.c.task_type, tasks.c.command, tasks.c.parameters, tasks.c.enabled, tasks.c.source,
    tasks.c.version, tasks.c.options, tasks.c.created_at, tasks.c.updated_at,
)  # fmt: skip


TASK_OPTIONS = (
    "retry",
    "timeout",
    "isolation",
    "executor",
    "container",
    "cache_ttl",
    "env",
    "cwd",
    "stdin",
    "memory_mb",
    "delete_with_schedule",
    "queue",
    "priority",
    "rate",
    "burst",
    "rate_key",
    "max_running",
    "max_running_key",
    "heartbeat",
    "debounce",
    "debounce_key",
    "debounce_max",
    "throttle",
    "throttle_key",
    "on_new_version",
)


def list_tasks(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    task_type: str | None = None,
    enabled: bool | None = None,
) -> Page:
    stmt = matching(
        select(*TASK).where(tasks.c.org_id == org_id), (tasks.c.task_type, task_type), (tasks.c.enabled, enabled)
    )
    return page_by(tx, stmt, tasks.c.id, limit, cursor, lambda row: task_record(dict_of(row)))


def task(tx: Tx, org_id: str, key: str) -> Record:
    """Return a task by its id or name. Raises NotFound."""
    by_id_or_name = and_(tasks.c.org_id == org_id, or_(tasks.c.id == key, tasks.c.name == key))
    row = tx.execute(select(*TASK).where(by_id_or_name).order_by(tasks.c.id != key)).first()
    if row is None:
        raise NotFound(f"task {key!r} not found")
    return task_record(dict_of(row))


def task_record(record: Record) -> Record:
    """Return a task with its options among its other fields, as in requests."""
    options = record.pop("options") or {}
    return {**record, **{name: options.get(name) for name in TASK_OPTIONS}}


def run_artifact(tx: Tx, run: ResultRow, public: bool) -> Record:
    """Return what a run of a task ran, and its result or how it failed; with `public`, secrets are hidden."""
    known = snapshot(tx, run.org_id, run.target_name, run.target_version) or {"name": run.target_name}
    task = {**known, "version": run.target_version}
    if isinstance(run.outcome, dict) and task.get("task_type") == "shell":
        data: Record = {"task": task, **{name: run.outcome.get(name) for name in ("stdout", "stderr", "exit_code")}}
    else:
        ran = {**task, "parameters": {**(task.get("parameters") or {}), **(run.input or {})}}
        error = run.error and {name: run.error.get(name) for name in ("type", "message", "traceback")}
        data = {"task": ran, "result": run.outcome, "error": error}
    return redacted({**data, "task": public_task(data["task"])}) if public else data


def snapshot(tx: Tx, org_id: str, name: str | None, version: str | None) -> Record | None:
    """Return a task as it was in this version, None if that is not known. The version of a function stands behind that
    of its row."""
    v, versions = task_versions.c, [version, (version or "").partition("/")[0]]
    stmt = select(v.snapshot).where(v.org_id == org_id, v.name == name, v.version.in_(versions))
    return tx.execute(stmt.order_by(v.version != version)).scalar()


def schedules_of(tx: Tx, org_id: str, task: TaskRow, by_name: bool = False) -> list[str]:
    """Return the ids of the schedules that run a task; with `by_name` only of those that name it by its name."""
    named = s.target == task.name if by_name else s.target.in_([task.id, task.name])
    stmt = select(s.id).where(s.org_id == org_id, s.kind == "task", named, s.deleted_at.is_(None))
    return list(tx.execute(stmt.order_by(s.id)).scalars())
