"""Whether a database has the schema that this code expects. Answered without Alembic, which takes long to load."""

from functools import cache
from pathlib import Path

from sqlalchemy import inspect, text

from rota.db.dialect import Tx

MIGRATIONS = Path(__file__).parent / "migrations"
KEPT_IN = "alembic_version"  # the table in which Alembic keeps the revision


def check(tx: Tx) -> str | None:
    """What is wrong with the schema, if anything."""
    known = revisions()
    current = (
        tx.execute(text(f"SELECT version_num FROM {KEPT_IN}")).scalar() if inspect(tx).has_table(KEPT_IN) else None
    )
    if current == known[-1]:
        return None
    if current is None:
        return "the database has no tables of Rota yet; run `rota migrate`"
    if current not in known:
        return f"the database was made by a newer Rota (schema {current}); upgrade this one"
    return f"the database has an old schema ({current}, this Rota needs {known[-1]}); run `rota migrate`"


@cache
def revisions() -> list[str]:
    """All that this Rota has, in their order: the names of their files begin with them."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))
