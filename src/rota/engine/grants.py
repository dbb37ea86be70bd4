"""Execution grants: durable, scoped, revocable authority under which work runs without its owner logged in.

SCOPE_FORMAT_CENTRALIZED: only this module knows the format of scopes; other modules use kinds and targets.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, or_, select, update

from rota.core.errors import Invalid, NotFound
from rota.core.ids import new_id
from rota.core.kinds import registered, traits_of
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import grants, jobs, schedules
from rota.engine import billing_accounts

g, s = grants.c, schedules.c

SCOPE_LIMIT = 300  # characters


# scopes


def parse_scopes(value: object, consent: bool) -> list[str]:
    """Parse scopes of a request: exact, all graphs of a provider, or with consent everything of a kind. Raises
    Invalid."""
    if not isinstance(value, list) or not 1 <= len(value) <= 100:
        raise Invalid("scopes", value, "is not a list of 1 to 100 scopes like graph:execute:langgraph:poet")
    return [parse_scope(scope, consent) for scope in value]


def parse_scope(value: object, consent: bool) -> str:
    if not isinstance(value, str) or len(value) > SCOPE_LIMIT:
        raise Invalid("scopes", value, f"is not a text of at most {SCOPE_LIMIT} characters")
    for kind, traits in registered().items():
        resource = value.removeprefix(scope_for(kind, ""))
        if resource == value:
            continue
        if resource == "*" and not consent:
            raise Invalid("scopes", value, "allows everything of its kind; say so with consent: true")
        if not resource.isprintable() or resource != resource.strip():
            raise Invalid("scopes", value, "has control characters or blanks at its end: no name has; remove them")
        if resource == "*" or traits.grant_resource.fullmatch(resource):
            return value
    forms = ", ".join(scope_for(kind, "…") for kind in registered())
    raise Invalid("scopes", value, f"is not a scope; known are {forms}")


def scope_for(kind: str, target: str) -> str:
    return f"{kind}:{traits_of(kind).grant_action}:{target}"


def covers(scopes: Collection[str], kind: str, targets: Collection[str]) -> bool:
    """Whether work of this kind on something that goes by any of these names is allowed."""
    providers = {target.partition(":")[0] for target in targets}  # such as `langgraph` of `langgraph:poet`
    resources = {"*", *targets, *(f"{provider}:*" for provider in providers)}
    return not {scope_for(kind, resource) for resource in resources}.isdisjoint(scopes)


# grants


@dataclass(frozen=True, slots=True)
class Grant:
    """A row of `grants`."""

    id: str
    org_id: str
    owner_id: str
    billing_account_id: str
    scopes: list[str]
    schedule_id: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    budget_per_day: int | None
    budget_total: int | None
    spent_day: datetime | None
    spent_on_day: int
    spent_total: int
    created_at: datetime


def mint(
    tx: Tx, org_id: str, owner_id: str, scopes: Sequence[str], now: datetime, *, schedule_id: str | None = None,
    billing_account_id: str | None = None, expires_at: datetime | None = None, budget: Mapping[str, int] | None = None,
) -> str:  # fmt: skip
    """A new grant, charged to an account of the org, by default its owner's; returns its id."""
    account_id = billing_account_id or billing_accounts.account_of(tx, org_id, owner_id, now).id
    account = billing_accounts.get(tx, org_id, account_id).id
    limits = budget or {}
    row = {
        "id": new_id(), "org_id": org_id, "owner_id": owner_id, "billing_account_id": account, "scopes": list(scopes),
        "schedule_id": schedule_id, "expires_at": expires_at, "budget_per_day": limits.get("per_day"),
        "budget_total": limits.get("total"), "spent_on_day": 0, "spent_total": 0, "created_at": now,
    }  # fmt: skip
    insert_rows(tx, grants, [row])
    return str(row["id"])


def find(tx: Tx, org_id: str, grant_id: str) -> Grant | None:
    row = tx.execute(select(grants).where(g.org_id == org_id, g.id == grant_id)).one_or_none()
    return None if row is None else Grant(**row._asdict())


def get(tx: Tx, org_id: str, grant_id: str) -> Grant:
    grant = find(tx, org_id, grant_id)
    if grant is None:
        raise NotFound(f"grant {grant_id!r} not found")
    return grant


def minted_for(tx: Tx, grant_id: str) -> str | None:
    """The id of the schedule that a grant was minted with, if any."""
    return tx.execute(select(g.schedule_id).where(g.id == grant_id)).scalar_one_or_none()


def trouble(tx: Tx, org_id: str, grant_id: str, kind: str, targets: Collection[str], now: datetime) -> str | None:
    """Why work may not run under a grant, as a code; None if it may. Checked in this order."""
    grant = find(tx, org_id, grant_id)
    if grant is None:
        return "grant_not_found"
    if grant.revoked_at is not None:
        return "grant_revoked"
    if grant.expires_at is not None and grant.expires_at <= now:
        return "grant_expired"
    return None if covers(grant.scopes, kind, targets) else "grant_scope"


def used_up(tx: Tx, grant_id: str, now: datetime) -> str | None:
    """Return which budget of a grant is used up: `total`, `per_day`, or None."""
    grant = tx.execute(select(grants).where(g.id == grant_id)).one_or_none()
    if grant is None:
        return None
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    spent = grant.spent_on_day if grant.spent_day == today else 0
    if grant.budget_total is not None and grant.spent_total >= grant.budget_total:
        return "total"
    return "per_day" if grant.budget_per_day is not None and spent >= grant.budget_per_day else None


def revoke(tx: Tx, org_id: str, grant_id: str, now: datetime) -> str:
    """From now on nothing starts under it. Revoking again changes nothing."""
    get(tx, org_id, grant_id)
    tx.execute(update(grants).where(g.id == grant_id, g.revoked_at.is_(None)).values(revoked_at=now))
    return grant_id


def revoke_minted(tx: Tx, schedule_id: str, now: datetime) -> None:
    """The grant that a schedule's creation minted ends with it."""
    tx.execute(update(grants).where(g.schedule_id == schedule_id, g.revoked_at.is_(None)).values(revoked_at=now))


def jobs_under(tx: Tx, org_id: str, grant_id: str) -> list[str]:
    """The jobs that hold a grant and have not ended. Few jobs have terms at all, and fewer are alive."""
    rows = tx.execute(select(jobs.c.id, jobs.c.terms).where(jobs.c.org_id == org_id, jobs.c.terms.is_not(None)))
    return [row.id for row in rows if row.terms.get("grant_id") == grant_id]


def lapsing(tx: Tx, org_id: str, before: datetime) -> list[dict[str, object]]:
    """Return enabled schedules whose grant is revoked, deleted, or expires before `before`, with time and reason."""
    ends = or_(g.id.is_(None), g.revoked_at.is_not(None), g.expires_at < before)
    stmt = (
        select(s.id, s.name, s.kind, s.target, s.grant_id, g.expires_at, g.revoked_at)
        .select_from(schedules.outerjoin(grants, and_(g.id == s.grant_id, g.org_id == s.org_id)))
        .where(s.org_id == org_id, s.grant_id.is_not(None), s.deleted_at.is_(None), s.enabled, ends)
        .order_by(s.name)
    )
    return [
        {
            "schedule_id": row.id, "schedule_name": row.name, "kind": row.kind, "target": row.target,
            "grant_id": row.grant_id, "lapses_at": row.revoked_at or row.expires_at,
            "reason": "grant_revoked" if row.revoked_at else "grant_expired" if row.expires_at else "grant_not_found",
        }
        for row in tx.execute(stmt)
    ]  # fmt: skip


def users_of(tx: Tx, org_id: str, grant_id: str) -> list[str]:
    """Return the names of the schedules that run under a grant and stop with its revocation."""
    stmt = select(s.name).where(s.org_id == org_id, s.grant_id == grant_id, s.deleted_at.is_(None)).order_by(s.name)
    return list(tx.execute(stmt).scalars())
