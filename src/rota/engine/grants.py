"""Execution grants: durable, scoped, revocable authority under which work runs without its owner logged in.

SCOPE_FORMAT_CENTRALIZED: only this module knows the format of scopes; other modules use kinds and targets.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, or_, select, update

from rota.core.errors import Invalid, NotFound
from rota.core.ids import new_id
from rota.core.kinds import registered, traits_of
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import grants, jobs, schedules
from rota.engine import billing_accounts, statements

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

    def trouble(self, kind: str, targets: Collection[str], now: datetime) -> str | None:
        """Why work may not run under it, as a code; None if it may. Checked in this order."""
        if self.revoked_at is not None:
            return "grant_revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "grant_expired"
        return None if covers(self.scopes, kind, targets) else "grant_scope"

    def used_up(self, now: datetime) -> str | None:
        """Return which of its budgets is used up: `total`, `per_day`, or None."""
        if self.budget_total is not None and self.spent_total >= self.budget_total:
            return "total"
        spent = self.spent_on_day if self.spent_day == day_of(now) else 0
        return "per_day" if self.budget_per_day is not None and spent >= self.budget_per_day else None


@dataclass(frozen=True, slots=True)
class Authority:
    """A grant with the account that it is charged to, as far as a run depends on it."""

    grant: Grant
    balance_credits: int | None  # None: the account is not found
    closed_at: datetime | None
    key_id: str | None  # the default virtual key of the account


def day_of(instant: datetime) -> datetime:
    """The start of the day, in UTC, that an instant is charged to."""
    return instant.replace(hour=0, minute=0, second=0, microsecond=0)


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
    rows = statements.FIND_GRANT.run(tx, org_id=org_id, grant_id=grant_id)
    return grant_of(rows[0]) if rows else None


def authority_of(tx: Tx, org_id: str, grant_id: str) -> Authority | None:
    """Return a grant with its account, in one statement; None if it is not found."""
    rows = statements.FIND_AUTHORITY.run(tx, org_id=org_id, grant_id=grant_id)
    columns = len(statements.GRANT)
    return Authority(grant_of(rows[0][:columns]), *rows[0][columns:]) if rows else None


def grant_of(values: Sequence[Any]) -> Grant:
    """Return a grant from the values of `statements.GRANT`."""
    return Grant(**dict(zip(statements.GRANT, values, strict=True)))


def of_ids(tx: Tx, grant_ids: Collection[str]) -> dict[str, Grant]:
    """Return grants of any org by id; unknown ids are left out."""
    return {row.id: Grant(**row._asdict()) for row in tx.execute(select(grants).where(g.id.in_(grant_ids)))}


def get(tx: Tx, org_id: str, grant_id: str) -> Grant:
    grant = find(tx, org_id, grant_id)
    if grant is None:
        raise NotFound(f"grant {grant_id!r} not found")
    return grant


def minted_for(tx: Tx, grant_id: str) -> str | None:
    """The id of the schedule that a grant was minted with, if any."""
    return tx.execute(select(g.schedule_id).where(g.id == grant_id)).scalar_one_or_none()


def trouble(tx: Tx, org_id: str, grant_id: str, kind: str, targets: Collection[str], now: datetime) -> str | None:
    """Why work may not run under a grant, as a code; None if it may."""
    grant = find(tx, org_id, grant_id)
    return "grant_not_found" if grant is None else grant.trouble(kind, targets, now)


def used_up(tx: Tx, grant_id: str, now: datetime) -> str | None:
    """Return which budget of a grant is used up: `total`, `per_day`, or None."""
    grant = of_ids(tx, [grant_id]).get(grant_id)
    return None if grant is None else grant.used_up(now)


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
