"""Metadata of the tables and helpers for indexes."""

from typing import Any

from sqlalchemy import Index, MetaData, Sequence, String, text

from rota.core.states import State

Id = String(26)
Name = String(200)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

fences = Sequence("fences", metadata=metadata)  # SQLite keeps it in `counters`


def where_state(*states: State) -> Any:
    quoted = [f"'{state.value}'" for state in states]
    return text(f"state = {quoted[0]}" if len(quoted) == 1 else f"state IN ({', '.join(quoted)})")


def partial_index(name: str, *columns: Any, where: Any, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)
