"""Operations on objects that are not done: uploads whose artifact is not stored yet, and deletions.

An upload is recorded before it begins, and its record is deleted in the transaction that stores the artifact. A
deletion is recorded in the transaction that deletes the artifact, until the object is gone.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import and_, delete, insert, literal, or_, select, update

from rota.db.column_types import Instant
from rota.db.dialect import Tx, database_now
from rota.db.tables import artifacts, object_operations

o, a = object_operations.c, artifacts.c

ABANDONED_AFTER = timedelta(hours=1)  # without a renewal by its process
LATE_UPLOADS = timedelta(days=1)  # a process that was stopped may go on with an upload that was given up


class Operation(StrEnum):
    UPLOAD = "upload"
    ABANDONED = "abandoned"  # an upload whose process is gone; its object is deleted, once more after LATE_UPLOADS
    DELETE = "delete"


def begin_upload(tx: Tx, key: str, org_id: str) -> None:
    values = {"object_key": key, "org_id": org_id, "operation": Operation.UPLOAD, "updated_at": database_now(tx)}
    tx.execute(insert(object_operations).values(values))


def renew_upload(tx: Tx, key: str) -> bool:
    """Return whether the upload may go on: it was not given up."""
    stmt = update(object_operations).where(o.object_key == key, o.operation == Operation.UPLOAD)
    return tx.execute(stmt.values(updated_at=database_now(tx))).rowcount == 1


def end_upload(tx: Tx, key: str) -> bool:
    """Delete the record of an upload, whose artifact is stored in this transaction; False if it was given up."""
    stmt = delete(object_operations).where(o.object_key == key, o.operation == Operation.UPLOAD)
    return tx.execute(stmt).rowcount == 1


def delete_of_runs(tx: Tx, run_ids: Collection[str]) -> None:
    """Record the deletion of the objects of these runs, whose artifacts are deleted in this transaction."""
    columns = ("object_key", "org_id", "operation", "updated_at")
    now = literal(database_now(tx), Instant())
    objects = select(a.object_key, a.org_id, literal(Operation.DELETE.value), now).where(
        a.run_id.in_(run_ids), a.object_key.is_not(None)
    )
    tx.execute(insert(object_operations).from_select(columns, objects))


def give_up_uploads(tx: Tx, limit: int) -> list[str]:
    """Give up uploads whose processes are gone; returns the keys of their objects."""
    now = database_now(tx)
    old = and_(o.operation == Operation.UPLOAD, o.updated_at < now - ABANDONED_AFTER)
    keys = list(tx.execute(select(o.object_key).where(old).limit(limit).with_for_update(skip_locked=True)).scalars())
    stmt = update(object_operations).where(o.object_key.in_(keys), old)
    tx.execute(stmt.values(operation=Operation.ABANDONED, updated_at=now))
    return keys


def due_deletions(tx: Tx, keep: timedelta, limit: int) -> list[str]:
    """Return the keys of objects to delete: those of artifacts that were deleted at least `keep` ago, and those of
    uploads that were given up LATE_UPLOADS ago."""
    now = database_now(tx)
    due = or_(
        and_(o.operation == Operation.DELETE, o.updated_at <= now - keep),
        and_(o.operation == Operation.ABANDONED, o.updated_at <= now - LATE_UPLOADS),
    )
    return list(tx.execute(select(o.object_key).where(due).limit(limit)).scalars())


def end_deletions(tx: Tx, keys: Sequence[str]) -> None:
    """Delete the records of deletions that are done."""
    stmt = delete(object_operations).where(o.object_key.in_(keys), o.operation != Operation.UPLOAD)
    tx.execute(stmt)


def has_objects(tx: Tx) -> bool:
    """Return whether the content of any artifact is in the object store."""
    return tx.execute(select(a.id).where(a.object_key.is_not(None)).limit(1)).first() is not None
