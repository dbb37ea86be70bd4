"""Rows of workflows and of their handlers, and the lock of a workflow.

The row of a workflow is the lock of everything in it. Publish, begin, commit and operators' commands lock it first
(`get` with `hold`), then the serial key, then jobs; no other module of Rota writes the tables of workflows. The lock
holder has the handlers in memory, decides from these which consumers must run, and changes a handler in both places
(`update_handler`). So a publish during a run is never lost: it sets a flag that the run's commit does not clear.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import and_, select, update

from rota.core.errors import NotFound
from rota.db import tables
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.kinds.workflows.rules import WORKFLOW
from rota.kinds.workflows.store import statements
from rota.kinds.workflows.store.records import HandlerRow, WorkflowRow

SCRIPT = "script"  # the source of uploaded workflows; the others name their program

w, h = tables.workflows.c, tables.handlers.c


def get(tx: Tx, org_id: str, key: str, hold: bool = False, with_key: bool = False) -> WorkflowRow:
    """Return a workflow of an org by its id or name; with `hold`, lock it until the transaction ends, and `with_key`
    also its serial key. Raises NotFound."""
    if hold:
        rows = statements.LOCK_WORKFLOW.run(tx, org_id=org_id, key=key, of_kind=WORKFLOW if with_key else "")
    else:
        rows = statements.WORKFLOW.run(tx, org_id=org_id, key=key)
    if not rows:
        raise NotFound(f"workflow {key!r} not found")
    columns = dict(zip(w.keys(), rows[0], strict=False))
    if hold and not rows[0][-2]:  # the row changed while this waited for it
        return with_handlers(tx, columns, with_key)
    own = [row[len(w) : len(w) + len(h)] for row in rows if row[0] == columns["id"] and row[len(w)] is not None]
    return workflow_row(columns, own, with_key)


def get_by_id(tx: Tx, workflow_id: str, hold: bool = False) -> WorkflowRow:
    """Return a workflow that exists, also a deleted one."""
    stmt = select(tables.workflows).where(w.id == workflow_id)
    row = tx.execute(stmt.with_for_update() if hold else stmt).one()
    return with_handlers(tx, row._asdict())


def with_handlers(tx: Tx, columns: Record, key_locked: bool = False) -> WorkflowRow:
    """Return the workflow of these columns with its handlers. They are read by a second statement: one that waited for
    a lock still sees other tables as they were before it waited."""
    return workflow_row(columns, statements.HANDLERS.run(tx, workflow_id=columns["id"]), key_locked)


def workflow_row(columns: Record, handler_rows: Iterable[Sequence[object]], key_locked: bool) -> WorkflowRow:
    handlers = [HandlerRow(**dict(zip(h.keys(), row, strict=True))) for row in handler_rows]  # type: ignore[arg-type]
    return WorkflowRow(**columns, handlers={handler.name: handler for handler in handlers}, key_locked=key_locked)


def update_handler(tx: Tx, handler: HandlerRow, **changes: object) -> None:
    """Change columns of a handler, in the database and in the record; values that are equal are not written."""
    new = {name: value for name, value in changes.items() if getattr(handler, name) != value}
    if new:
        row = and_(h.workflow_id == handler.workflow_id, h.name == handler.name)
        tx.execute(update(tables.handlers).where(row).values(new))
        for name, value in new.items():
            setattr(handler, name, value)
