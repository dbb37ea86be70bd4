"""Metadata of the tables and helpers for indexes."""

from sqlalchemy import ColumnElement, Index, MetaData, Sequence, String, TextClause, text

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


def where_state(*states: State) -> TextClause:
    quoted = [f"'{state.value}'" for state in states]
    return text(f"state = {quoted[0]}" if len(quoted) == 1 else f"state IN ({', '.join(quoted)})")


def partial_index(
    name: str,
    *columns: str | ColumnElement[object],
    where: TextClause | ColumnElement[bool],
    unique: bool = False,
) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)
