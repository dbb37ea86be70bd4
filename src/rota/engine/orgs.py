"""Organisations: which exist, how many runs and whether commands are allowed, and the user for whom their code acts."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import select, update

from rota.core.errors import NotFound, Refused
from rota.core.ids import new_id
from rota.db.dialect import Tx, notify
from rota.db.statement import insert_new
from rota.db.tables import orgs, users

SYSTEM_USER_NAME = "system"
NO_SHELL = "org '{slug}' may not run stored commands; the instance admin allows it: `rota org set {slug} --shell`"

o, u = orgs.c, users.c


def org_by_slug(tx: Tx, slug: str) -> str | None:
    """Return the id of an org, None if no org has this slug."""
    return tx.execute(select(o.id).where(o.slug == slug)).scalar_one_or_none()


def slug_of(tx: Tx, org_id: str) -> str:
    return str(tx.execute(select(o.slug).where(o.id == org_id)).scalar_one())


def edit_org(tx: Tx, slug: str, changes: Mapping[str, object]) -> None:
    """Change the right to run commands (`shell`) or the limit (`max_running`) of an org. Raises NotFound."""
    if not tx.execute(update(orgs).where(o.slug == slug).values(**changes)).rowcount:
        raise NotFound(f"org {slug!r} not found; `rota org list` lists those of this installation")
    notify(tx, "tasks")  # workers read permissions and limits again, and poll for jobs


class OrgLimit(NamedTuple):
    """How many runs of an org may run at once; None: no limit."""

    id: str
    slug: str
    max_running: int | None


def limits(tx: Tx) -> list[OrgLimit]:
    """Return the limits of all orgs."""
    rows = tx.execute(select(o.id, o.slug, o.max_running))
    return [OrgLimit(row.id, row.slug, row.max_running) for row in rows]


def check_shell(tx: Tx, org_id: str) -> None:
    """Raise Refused if the installation does not allow an org to run commands."""
    slug, allowed = tx.execute(select(o.slug, o.shell).where(o.id == org_id)).one()
    if not allowed:
        raise Refused(NO_SHELL.format(slug=slug))


def system_user(tx: Tx, org_id: str, now: datetime) -> str:
    """Return the id of the user for whom an org's code and first key act; it is created when first needed."""
    system = select(u.id).where(u.org_id == org_id, u.email.is_(None))
    user_id = tx.execute(system).scalar_one_or_none()
    if user_id is None:
        user = {"id": new_id(), "org_id": org_id, "name": SYSTEM_USER_NAME, "role": "admin"}
        insert_new(tx, users, [{**user, "created_at": now, "updated_at": now}], ("id",))
        user_id = tx.execute(system).scalar_one()
    return str(user_id)
