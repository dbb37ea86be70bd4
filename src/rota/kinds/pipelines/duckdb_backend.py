"""The Ibis backend of a DuckDB connection whose configuration is locked. Imported only when a function asks for tables:
importing Ibis takes seconds.
"""

from collections.abc import Sequence
from typing import Any

import duckdb
from ibis.backends.duckdb import Backend


class LockedBackend(Backend):  # type: ignore[misc]
    """A backend that does not set the settings of its connection."""

    def _post_connect(self, extensions: Sequence[str] | None = None) -> None:  # noqa: ARG002
        self._record_batch_readers_consumed: dict[str, bool] = {}


def backend_of(con: duckdb.DuckDBPyConnection) -> Any:
    """Return the backend of a connection."""
    return LockedBackend.from_connection(con)
