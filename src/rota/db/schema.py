"""Whether a database has the schema that this code expects. Answered without Alembic, which takes long to load."""

from functools import cache
from pathlib import Path

from sqlalchemy import inspect, text

from rota.db.dialect import Tx

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "alembic_version"  # in which Alembic keeps the revision
INCOMPLETE = "incomplete "  # before the revision: rows are still being copied into this database
MOVED = "moved "  # before the revision: the installation has moved to another database
MOVED_TABLE = "moved_to"  # its only row has the URL of that database
MOVED_AWAY = "this installation has moved to {place}: set ROTA_DATABASE_URL to that database"


def check(tx: Tx) -> str | None:
    """What is wrong with the schema, if anything. A newer one of the same generation is fine."""
    current = revision_of(tx)
    if current is not None and current.startswith(MOVED):
        url = tx.execute(text(f"SELECT url FROM {MOVED_TABLE}")).scalar()
        return f"{MOVED_AWAY.format(place=url)}. To use this one again, start a process with --force, none on the other"
    return check_revision(current)


def check_revision(current: str | None) -> str | None:
    """What is wrong with a schema of this revision, if anything."""
    known = revisions()
    if current == known[-1] or is_extended(known[-1], current):
        return None
    if current is None:
        return "the database has no tables of Rota yet; run `rota migrate`"
    if current.startswith(INCOMPLETE):
        return "a move into this database was interrupted; repeat `rota db move`, or use another database"
    if current.startswith(MOVED):
        return MOVED_AWAY.format(place="another database")
    if current not in known:
        return f"the database was made by a newer Rota (schema {current}); upgrade this one"
    return f"the database has an old schema ({current}, this Rota needs {known[-1]}); run `rota migrate`"


def revision_of(tx: Tx) -> str | None:
    """Return the revision of the schema, None without tables of Rota."""
    if not inspect(tx).has_table(VERSION_TABLE):
        return None
    revision: str | None = tx.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return revision


def is_extended(own: str, current: str | None) -> bool:
    """Return whether `current` is a newer schema that this Rota can work with: of the same generation (the first two
    of four digits). Migrations within a generation only add."""
    return current is not None and len(current) == len(own) and current[:2] == own[:2] and current > own


@cache
def revisions() -> list[str]:
    """All that this Rota has, in their order: the names of their files begin with them."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))
