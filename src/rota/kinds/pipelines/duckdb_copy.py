"""Copies of tables of another engine in DuckDB, for functions that ask for a DuckDB connection."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from rota.core.errors import LogicError
from rota.version import DISTRIBUTION


def copied_to_duckdb(tables: Mapping[str, Any]) -> Any:
    """Return a DuckDB connection with copies of tables, of batches of Arrow by path. Raises LogicError if DuckDB is not
    installed."""
    if find_spec("duckdb") is None:
        raise LogicError(f"a DuckDB connection needs DuckDB: install {DISTRIBUTION}[duckdb]")
    import duckdb

    con = duckdb.connect()
    con.execute("SET enable_progress_bar = false")  # it would write to the terminal
    for namespace in sorted({path.split("/")[0] for path in tables}):
        con.execute(f"ATTACH ':memory:' AS \"{namespace}\"")
    for path, batches in tables.items():
        namespace, layer, name = (f'"{part}"' for part in path.split("/"))
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {namespace}.{layer}")
        con.register("copied_rows", batches)
        con.execute(f"CREATE TABLE {namespace}.{layer}.{name} AS SELECT * FROM copied_rows")
        con.unregister("copied_rows")
    return con
