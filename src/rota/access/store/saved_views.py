"""Saved views: named filters of runs, of a user. `visibility` decides who else of the organisation may use one: with
`private` only its owner, with `link` everybody who has its id, with `org` everybody, in their lists."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, case, delete, func, literal_column, or_, select, update

from rota.core.errors import Conflict, NotFound, Refused
from rota.core.ids import new_id
from rota.core.run_filter import RunFilter
from rota.db.dialect import Tx, upsert
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, page_by
from rota.db.tables import saved_views, users

VIEWS_MAX = 200  # of a user


class Visibility(StrEnum):
    PRIVATE = "private"
    LINK = "link"
    ORG = "org"


v = saved_views.c
VIEW = (v.id, v.name, v.filter, v.visibility, v.owner_id, users.c.name.label("owner_name"), v.created_at, v.updated_at)
WITH_OWNER = saved_views.outerjoin(users, users.c.id == v.owner_id)


def list_views(tx: Tx, org_id: str, user_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return the views of a user and those that others share with the organisation, by name."""
    listed = or_(v.owner_id == user_id, v.visibility == Visibility.ORG.value)
    stmt = select(*VIEW).select_from(WITH_OWNER).where(v.org_id == org_id, listed)
    return page_by(tx, stmt, [v.name, v.id], limit, cursor, lambda row: record_of(dict_of(row)))


def find(tx: Tx, org_id: str, user_id: str, key: str) -> Record:
    """Return a view by its id, or by the name of an own one or one that is shared; the own one first. Raises NotFound
    also for a private view of another user."""
    own = v.owner_id == user_id
    by_id = and_(v.id == key, or_(own, v.visibility != Visibility.PRIVATE.value))
    by_name = and_(v.name == key, or_(own, v.visibility == Visibility.ORG.value))
    first = case((v.id == key, literal_column("0")), (own, literal_column("1")), else_=literal_column("2"))
    stmt = select(*VIEW).select_from(WITH_OWNER).where(v.org_id == org_id, or_(by_id, by_name))
    row = tx.execute(stmt.order_by(first, v.id).limit(1)).one_or_none()
    if row is None:
        raise NotFound(f"view {key!r} not found")
    return record_of(dict_of(row))


def add(tx: Tx, org_id: str, user_id: str, name: str, filter: RunFilter, visibility: Visibility, now: datetime) -> str:
    """Store a view; returns its id. Raises Conflict if the user has one of this name, or too many."""
    count = tx.execute(select(func.count()).where(of_user(org_id, user_id))).scalar_one()
    if count >= VIEWS_MAX:
        raise Conflict(f"you have {count} views, and {VIEWS_MAX} are allowed; delete some")
    view_id = new_id()
    row = {
        "id": view_id, "org_id": org_id, "owner_id": user_id, "name": name, "filter": filter.present(),
        "visibility": visibility.value, "created_at": now, "updated_at": now,
    }  # fmt: skip
    insertion = upsert(tx, saved_views).values(row).on_conflict_do_nothing().returning(v.id)
    if tx.execute(insertion).scalar_one_or_none() is None:
        raise name_taken(name)
    return view_id


def edit(
    tx: Tx,
    org_id: str,
    user_id: str,
    key: str,
    *,
    now: datetime,
    name: str | None = None,
    filter: RunFilter | None = None,
    visibility: Visibility | None = None,
) -> str:
    """Change an own view; None keeps a value. Returns its id. Raises NotFound, Conflict, or Refused for another's."""
    view = find_own(tx, org_id, user_id, key)
    if name is not None and name != view["name"]:
        same = select(v.id).where(of_user(org_id, user_id), v.name == name)
        if tx.execute(same).first() is not None:
            raise name_taken(name)
    changes: Record = {
        "name": name,
        "filter": None if filter is None else filter.present(),
        "visibility": None if visibility is None else visibility.value,
    }
    values = {field: value for field, value in changes.items() if value is not None}
    tx.execute(update(saved_views).where(v.id == view["id"]).values(updated_at=now, **values))
    return str(view["id"])


def remove(tx: Tx, org_id: str, user_id: str, key: str, *, any_owner: bool = False) -> str:
    """Delete an own view, or with `any_owner` a shared one of another user; returns its id.
    Raises NotFound or Refused."""
    view = find(tx, org_id, user_id, key) if any_owner else find_own(tx, org_id, user_id, key)
    tx.execute(delete(saved_views).where(v.id == view["id"]))
    return str(view["id"])


def find_own(tx: Tx, org_id: str, user_id: str, key: str) -> Record:
    view = find(tx, org_id, user_id, key)
    if view["owner_id"] != user_id:
        raise Refused(f"view '{view['name']}' belongs to {view['owner_name']}; save a view of your own")
    return view


def of_user(org_id: str, user_id: str) -> ColumnElement[bool]:
    return and_(v.org_id == org_id, v.owner_id == user_id)


def name_taken(name: str) -> Conflict:
    return Conflict(f"you have a view '{name}' already; choose another name, or edit that one")


def record_of(row: Record) -> Record:
    """Return a view as the API shows it, with the address of its page."""
    return {**row, "link": f"/runs?view={row['id']}"}
