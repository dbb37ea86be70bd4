"""SQL expressions about the state of jobs."""

from collections.abc import Iterable

from sqlalchemy import ColumnElement, literal_column

from rota.core.states import Move, State, state_after
from rota.db.tables import jobs

# Compared so that no index serves it, for jobs that are looked up by id: see `statements.py`.
IS_RUNNING = jobs.c.state.concat(literal_column("''")) == literal_column("'running'")


def is_in(state: ColumnElement[str], states: Iterable[State]) -> ColumnElement[bool]:
    """Test the state with literals: a partial index serves no parameter."""
    values: list[ColumnElement[str]] = [literal_column(f"'{value.value}'") for value in states]
    return state == values[0] if len(values) == 1 else state.in_(values)


def lease_values(move: Move, worker: str | None, fence: int) -> dict[str, object]:
    """Return the columns that a lease sets; the move is LEASE, CLAIM or ADOPT. `statements.CLAIM` sets the same."""
    return {"state": state_after(move).value, "lease_owner": worker, "fence": fence, "solo_key": None}
