"""Rows of workflows and of their handlers, and the lock of a workflow.

The row of a workflow is the lock of everything in it. Publish, begin, commit and operators' commands lock it first
(`get` with `hold`), then the serial key, then jobs; no other module of Rota writes the tables of workflows. The lock
holder has the handlers in memory, decides from these which consumers must run, and changes a handler in both places
(`update_handler`). So a publish during a run is never lost: it sets a flag that the run's commit does not clear.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Text, bindparam, or_, select

from rota.core.errors import NotFound
from rota.db import tables
from rota.db.dialect import Given, Tx, hot, records_of, update_row
from rota.kinds.workflows.store.records import HandlerRow, WorkflowRow

SCRIPT = "script"  # the source of uploaded workflows; the others name their program

w, h = tables.workflows.c, tables.handlers.c


def get(tx: Tx, org_id: str, key: str, hold: bool = False) -> WorkflowRow:
    """Return a workflow of an org by its id or name; with `hold`, lock it until the transaction ends. Raises
    NotFound."""
    rows = records_of(tx, list(w), select_workflow(tx, Given({"org": org_id, "key": key}, (hold,))))
    if not rows:
        raise NotFound(f"workflow {key!r} not found")
    return with_handlers(tx, dict(zip(w.keys(), rows[0], strict=True)))


@hot
def select_workflow(_: Tx, hold: bool) -> Any:
    org, key = bindparam("org", type_=w.org_id.type), bindparam("key", type_=Text)
    stmt = select(tables.workflows).where(w.org_id == org, or_(w.id == key, w.name == key), w.deleted_at.is_(None))
    stmt = stmt.order_by(w.id != key)
    return stmt.with_for_update() if hold else stmt


def get_by_id(tx: Tx, workflow_id: str, hold: bool = False) -> WorkflowRow:
    """Return a workflow that exists, also a deleted one."""
    stmt = select(tables.workflows).where(w.id == workflow_id)
    row = tx.execute(stmt.with_for_update() if hold else stmt).one()
    return with_handlers(tx, row._asdict())


def with_handlers(tx: Tx, columns: Mapping[str, Any]) -> WorkflowRow:
    """Return the workflow of these columns with its handlers. They are read by a second statement: one that waited for
    a lock still sees other tables as they were before it waited."""
    rows = records_of(tx, list(h), select_handlers(tx, Given({"workflow": columns["id"]})))
    handlers = [HandlerRow(**dict(zip(h.keys(), row, strict=True))) for row in rows]
    return WorkflowRow(**columns, handlers={handler.name: handler for handler in handlers})


@hot
def select_handlers(_: Tx) -> Any:
    workflow_id = bindparam("workflow", type_=h.workflow_id.type)
    return select(tables.handlers).where(h.workflow_id == workflow_id).order_by(h.name)


def update_handler(tx: Tx, handler: HandlerRow, **changes: Any) -> None:
    """Change columns of a handler, in the database and in the record; values that are equal are not written."""
    new = {name: value for name, value in changes.items() if getattr(handler, name) != value}
    if new:
        update_row(tx, tables.handlers, {"workflow_id": handler.workflow_id, "name": handler.name}, new)
        for name, value in new.items():
            setattr(handler, name, value)
