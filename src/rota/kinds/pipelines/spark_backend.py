"""The Ibis backend of a Spark session. Rows in memory travel as Arrow: Spark does not support the newest pandas."""

from typing import Any

from ibis.backends.pyspark import Backend


class ArrowBackend(Backend):  # type: ignore[misc]
    """A backend that exchanges rows as Arrow."""

    def _register_in_memory_table(self, op: Any) -> None:
        self._session.createDataFrame(op.data.to_pyarrow(op.schema)).createOrReplaceTempView(op.name)

    def to_pyarrow_batches(self, expr: Any, /, **_: Any) -> Any:
        table = expr.as_table()
        self._run_pre_execute_hooks(table)
        return self._session.sql(self.compile(table)).toArrow().to_reader()


def backend_of(session: Any) -> Any:
    """Return the backend of a session."""
    backend = ArrowBackend()
    backend.do_connect(session)
    return backend
