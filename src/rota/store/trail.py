"""The audit log's rows. They are only ever added; `reports.list_audit` reads them."""

from collections.abc import Mapping
from typing import Any

from rota.store.dialect import Tx, insert_rows
from rota.store.tables import audit_log


def append(tx: Tx, line: Mapping[str, Any]) -> None:
    insert_rows(tx, audit_log, [line])
