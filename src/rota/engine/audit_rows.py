"""The audit log's rows. They are added, never changed, and forgotten by age; `reports.list_audit` reads them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select

from rota.db.dialect import Tx, insert_rows
from rota.db.tables import audit_log


def append(tx: Tx, line: Mapping[str, Any]) -> None:
    insert_rows(tx, audit_log, [line])


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Forget the oldest lines; returns how many."""
    old = select(audit_log.c.id).where(audit_log.c.at < before).order_by(audit_log.c.at, audit_log.c.id).limit(limit)
    ids = tx.execute(old).scalars().all()
    if ids:
        tx.execute(delete(audit_log).where(audit_log.c.id.in_(ids)))
    return len(ids)
