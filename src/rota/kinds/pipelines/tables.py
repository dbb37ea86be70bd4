"""The tables that a function of a pipeline may read, as Ibis tables of any engine."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rota.core.errors import LogicError


class PipelineTables(Mapping[str, Any]):
    """The tables that a function reads, by path, as Ibis tables; `backend` is their Ibis backend."""

    def __init__(self, backend: Any, tables: Mapping[str, Callable[[], Any]]) -> None:
        self.backend = backend
        self.tables = tables

    def __getitem__(self, path: str) -> Any:
        """Return a table. Raises LogicError for one that is not declared in `reads`."""
        if path not in self.tables:
            raise LogicError(f"table {path!r} is not among the tables that the function reads; add it to `reads`")
        return self.tables[path]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)
